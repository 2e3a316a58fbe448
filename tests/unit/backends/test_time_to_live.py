"""Time to live on every backend: namespaces that merge, what snapshots leave out, what is swept."""

from datetime import timedelta

import pytest
from moorage_testing.contract_ttl import described

from moorage_state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.timetolive import StateTtlConfig, StateVisibility, UpdateType

TTL_MS = 100
KEYS = [f"key-{n}" for n in range(12)]


def ttl(milliseconds=TTL_MS, **options):
    return StateTtlConfig(timedelta(milliseconds=milliseconds), **options)


QUIET = ttl(cleanup_in_background=False)
SHOWN = ttl(cleanup_in_background=False, visibility=StateVisibility.ReturnExpiredIfNotCleanedUp)
LEFT_OUT = ttl(cleanup_in_background=False, cleanup_in_full_snapshot=True)
ON_READ = ttl(update_type=UpdateType.OnReadAndWrite)


class Largest(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return max(value, accumulator)

    def get_result(self, accumulator):
        return accumulator

    def merge(self, one, other):
        return max(one, other)


def items(config):
    return ListStateDescriptor("items", "string", config)


def combining(config):
    return (
        ReducingStateDescriptor("sum", "long", "sum", config),
        AggregatingStateDescriptor("largest", "long", Largest(), config),
    )


@pytest.fixture
def at(op):
    """The state of a descriptor for the current key in a namespace."""
    op.with_key("k")
    return lambda descriptor, namespace: op.current.get_partitioned_state(
        namespace, "bigint", descriptor
    )


def later(op, milliseconds, *, restored=False):
    op.now_ms += milliseconds
    if restored:
        op.restore(op.take())
    op.with_key("another key")
    op.with_key("k")


# -- merging ----------------------------------------------------------------------------------


@pytest.mark.parametrize("restored", [False, True])
def test_elements_that_merge_keep_their_times_and_what_has_expired_stays_behind(op, at, restored):
    for element in ("old", "new"):
        at(items(QUIET), 2).add(element)
        later(op, 60, restored=restored)
    at(items(QUIET), 1).add("own")
    op.current.merge_namespaces(1, [2], "bigint", items(QUIET))
    assert at(items(QUIET), 1).get() == ["own", "new"]
    later(op, 39, restored=restored)
    assert at(items(QUIET), 1).get() == ["own", "new"]
    later(op, 1, restored=restored)
    assert at(items(QUIET), 1).get() == ["own"]
    assert at(items(QUIET), 2).get() == []


def test_expired_elements_that_may_be_read_merge_and_are_read(op, at):
    for element in ("old", "new"):
        at(items(SHOWN), 2).add(element)
        later(op, 60)
    op.current.merge_namespaces(1, [2], "bigint", items(SHOWN))
    assert at(items(SHOWN), 1).get() == ["old", "new"]
    later(op, 50)
    at(items(SHOWN), 1).get()
    later(op, 0)
    assert at(items(SHOWN), 1).get() == []


def test_reading_what_was_merged_renews_it_where_reading_does(op, at):
    at(items(ON_READ), 2).add("x")
    for descriptor in combining(ON_READ):
        at(descriptor, 2).add(5)
    later(op, 60)
    for descriptor in (items(ON_READ), *combining(ON_READ)):
        op.current.merge_namespaces(1, [2], "bigint", descriptor)
        assert at(descriptor, 1).get()
    later(op, 60)
    assert at(items(ON_READ), 1).get() == ["x"]
    assert [at(descriptor, 1).get() for descriptor in combining(ON_READ)] == [5, 5]


@pytest.mark.parametrize("restored", [False, True])
def test_what_merges_into_nothing_keeps_its_time(op, at, restored):
    for descriptor in combining(QUIET):
        at(descriptor, 2).add(5)
    later(op, 60, restored=restored)
    for descriptor in combining(QUIET):
        op.current.merge_namespaces(1, [2], "bigint", descriptor)
    later(op, 39, restored=restored)
    assert [at(descriptor, 1).get() for descriptor in combining(QUIET)] == [5, 5]
    later(op, 1, restored=restored)
    assert [at(descriptor, 1).get() for descriptor in combining(QUIET)] == [None, None]


def test_what_is_combined_by_merging_begins_its_time_anew_without_what_has_expired(op, at):
    for namespace, wait in ((3, 60), (2, 60), (1, 0)):
        for descriptor in combining(QUIET):
            at(descriptor, namespace).add(10**namespace)
        later(op, wait)
    for descriptor in combining(QUIET):
        op.current.merge_namespaces(1, [2, 3], "bigint", descriptor)
    later(op, 99)
    assert [at(descriptor, 1).get() for descriptor in combining(QUIET)] == [110, 100]
    later(op, 1)
    assert [at(descriptor, 1).get() for descriptor in combining(QUIET)] == [None, None]


def test_what_was_merged_is_swept_when_its_own_time_is_over(op, at):
    at(items(ttl()), 2).add("x")
    for descriptor in combining(ttl()):
        at(descriptor, 2).add(5)
    later(op, 60)
    for descriptor in (items(ttl()), *combining(ttl())):
        op.current.merge_namespaces(1, [2], "bigint", descriptor)
    op.now_ms += 46
    for n in range(12):
        op.with_key(f"other-{n}")
    op.restore(op.take())
    assert op.stored_entries() == 0


# -- snapshots --------------------------------------------------------------------------------


def fill(op, states):
    value, elements, seen, total, mean = states
    for key in KEYS:
        op.with_key(key)
        op.state(value).update(1)
        op.state(elements).add_all([1, 2])
        op.state(seen).put_all({"a": 1, "b": 2})
        op.state(total).add(5)
        op.state(mean).add(5)


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
@pytest.mark.parametrize("config", [QUIET, SHOWN], ids=["hidden", "shown"])
def test_a_snapshot_has_what_has_expired(op, options, kind, config):
    fill(op, described(config))
    op.now_ms += 2 * TTL_MS
    op.restore(op.take(options[kind]))
    assert op.stored_entries() == 7 * len(KEYS)


def test_a_full_snapshot_is_without_what_has_expired_where_that_is_declared(op, options):
    fill(op, described(LEFT_OUT))
    op.now_ms += 2 * TTL_MS
    handles = op.take(options["savepoint"])
    assert op.stored_entries() == 7 * len(KEYS)
    op.restore(handles)
    assert op.stored_entries() == 0


def test_a_checkpoint_is_a_copy_and_has_what_has_expired(op):
    fill(op, described(LEFT_OUT))
    op.now_ms += 2 * TTL_MS
    op.restore(op.take())
    assert op.stored_entries() == 7 * len(KEYS)


def test_how_state_is_cleaned_up_is_known_before_it_is_declared_again(op, options):
    fill(op, described(LEFT_OUT))
    op.restore(op.take())
    op.now_ms += 2 * TTL_MS
    op.restore(op.take(options["savepoint"]))
    assert op.stored_entries() == 0
    fill(op, described(QUIET))
    op.restore(op.take(options["savepoint"]))
    op.now_ms += 2 * TTL_MS
    for key in KEYS * 3:
        op.with_key(key)
    op.restore(op.take(options["savepoint"]))
    assert op.stored_entries() == 7 * len(KEYS)


# -- sweeping ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
@pytest.mark.parametrize("before", [None, QUIET, ttl(1_000_000)], ids=["none", "unswept", "longer"])
def test_what_was_stored_before_is_swept_by_what_is_declared_now(op, options, kind, before):
    fill(op, described(before))
    op.restore(op.take(options[kind]))
    op.with_key("another key")
    for descriptor in described(ttl()):
        op.state(descriptor)
    for _ in range(2):
        op.take()
    op.now_ms += 2 * TTL_MS
    for n in range(60):
        op.with_key(f"other-{n}")
    for _ in range(2):
        op.take()
    assert op.stored_entries() == 0


def test_what_is_cleared_while_its_time_begins_stays_cleared(op):
    items = ListStateDescriptor("s", "long")
    op.with_key("k")
    op.state(items).add(1)
    op.restore(op.take())
    op.with_key("k")
    swept = ListStateDescriptor("s", "long", ttl())
    op.state(swept).add(2)
    op.take()
    op.state(swept).clear()
    op.with_key("another key")
    op.take()
    assert op.stored_entries() == 0


def test_a_value_that_is_declared_with_a_time_to_live_later_is_read_as_before(op):
    op.with_key("k")
    op.state(ValueStateDescriptor("v", "struct<a:int>")).update((1,))
    op.restore(op.take())
    op.with_key("k")
    assert op.state(ValueStateDescriptor("v", "struct<a:long>", ttl())).value() == (1,)


def test_an_entry_that_is_put_again_after_it_was_swept_stays(op):
    seen = MapStateDescriptor("seen", "string", "long", ttl())
    op.with_key("k")
    op.state(seen).put("x", 1)
    assert dict(op.state(seen).items()) == {"x": 1}
    op.now_ms += 2 * TTL_MS
    for _ in range(2):
        op.with_key("k")
        op.state(seen).put("x", 2)
    op.with_key("k")
    assert dict(op.state(seen).items()) == {"x": 2}
    assert op.state(seen).get("x") == 2
    op.with_key("another key")
    op.with_key("k")
    assert op.state(seen).get("x") == 2
