"""The contract of state with a time to live, as bodies that run over any backend's harness.

`BODIES` are all of them; see `moorage_testing.contract_kinds`. The time that state sees is fixed
for an epoch: a body sets `now_ms` and begins a new epoch.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.timetolive import StateTtlConfig, StateVisibility, UpdateType
from moorage_testing.contract_combining import Mean
from moorage_testing.state_contract import StateHarness

__all__ = ["BODIES", "SECOND", "described"]

SECOND = 1000
TTL = timedelta(seconds=10)

BODIES: list[Callable[[StateHarness], None]] = []


def body(function):
    BODIES.append(function)
    return function


def described(ttl, prefix=""):
    """A descriptor of each kind with this time to live."""
    return (
        ValueStateDescriptor(f"{prefix}value", "long", ttl),
        ListStateDescriptor(f"{prefix}items", "long", ttl),
        MapStateDescriptor(f"{prefix}seen", "string", "long", ttl),
        ReducingStateDescriptor(f"{prefix}sum", "long", "sum", ttl),
        AggregatingStateDescriptor(f"{prefix}mean", "sum long, n long", Mean(), ttl),
    )


WRITES = described(StateTtlConfig(TTL))
READS = described(StateTtlConfig(TTL, UpdateType.OnReadAndWrite), "r-")
SHOWN = described(
    StateTtlConfig(
        TTL,
        visibility=StateVisibility.ReturnExpiredIfNotCleanedUp,
        cleanup_in_background=False,
    ),
    "s-",
)


def write(h, states):
    value, items, seen, total, mean = states
    h.state(value).update(1)
    h.state(items).add_all([1, 2])
    h.state(seen).put_all({"a": 1, "b": 2})
    h.state(total).add(5)
    h.state(mean).add_all([1, 2])


def read(h, states):
    value, items, seen, total, mean = states
    return (
        h.state(value).value(),
        h.state(items).get(),
        dict(h.state(seen).items()),
        h.state(total).get(),
        h.state(mean).get(),
    )


WRITTEN = (1, [1, 2], {"a": 1, "b": 2}, 5, 1.5)
EMPTY: tuple[Any, ...] = (None, [], {}, None, None)


def later(h, seconds, key="k"):
    h.now_ms += int(seconds * SECOND)
    h.new_epoch()
    h.with_key(key)


@body
def state_lives_until_its_time_is_over_and_not_a_millisecond_longer(h):
    h.with_key("k")
    write(h, WRITES)
    later(h, 9.999)
    assert read(h, WRITES) == WRITTEN
    later(h, 0.001)
    assert read(h, WRITES) == EMPTY


@body
def an_expired_value_reads_as_its_default(h):
    count = ValueStateDescriptor("hits", "long", StateTtlConfig(TTL), default=3)
    h.with_key("k")
    h.state(count).update(h.state(count).value() + 1)
    later(h, 9)
    assert h.state(count).value() == 4
    later(h, 1)
    assert h.state(count).value() == 3


@body
def writing_begins_the_time_anew_and_reading_does_not(h):
    h.with_key("k")
    write(h, WRITES)
    later(h, 6)
    assert read(h, WRITES) == WRITTEN
    h.state(WRITES[0]).update(2)
    h.state(WRITES[2]).put("a", 3)
    h.state(WRITES[3]).add(1)
    later(h, 6)
    assert read(h, WRITES) == (2, [], {"a": 3}, 6, None)


@body
def reading_begins_the_time_anew_where_that_is_declared(h):
    h.with_key("k")
    write(h, READS)
    for _ in range(3):
        later(h, 6)
        assert read(h, READS) == WRITTEN
    later(h, 10)
    assert read(h, READS) == EMPTY


@body
def reading_one_entry_of_a_map_renews_that_entry_only(h):
    h.with_key("k")
    h.state(READS[2]).put_all({"a": 1, "b": 2})
    later(h, 6)
    assert h.state(READS[2]).get("a") == 1
    later(h, 6)
    assert dict(h.state(READS[2]).items()) == {"a": 1}


@body
def changing_in_place_what_was_read_changes_nothing_that_is_stored(h):
    tags = ValueStateDescriptor("tags", "array<string>", READS[0].ttl)
    h.with_key("k")
    h.state(tags).update(["a"])
    later(h, 1)
    h.state(tags).value().append("not stored")
    later(h, 1)
    assert h.state(tags).value() == ["a"]


@body
def every_element_of_a_list_has_its_own_time(h):
    items = WRITES[1]
    for n in range(4):
        h.with_key("k")
        h.state(items).add(n)
        later(h, 4)
    assert h.state(items).get() == [2, 3]
    assert list(h.state(items)) == [2, 3]


@body
def an_expired_value_is_not_reduced_into_a_new_one(h):
    for states in (WRITES, SHOWN):
        h.with_key("k")
        h.state(states[3]).add(5)
        h.state(states[4]).add(5)
        later(h, 10)
        h.state(states[3]).add(1)
        h.state(states[4]).add(1)
        assert h.state(states[3]).get() == 1
        assert h.state(states[4]).get() == 1.0


@body
def what_has_expired_may_be_read_once_where_that_is_declared(h):
    h.with_key("k")
    write(h, SHOWN)
    later(h, 10)
    assert read(h, SHOWN) == WRITTEN
    later(h, 0)
    assert read(h, SHOWN) == EMPTY


@body
def an_expired_entry_of_a_map_is_found_by_its_key_once(h):
    h.with_key("k")
    h.state(SHOWN[2]).put_all({"a": 1, "b": 2})
    later(h, 10)
    assert not h.state(SHOWN[2]).is_empty()
    assert h.state(SHOWN[2]).get("a") == 1
    assert h.state(SHOWN[2]).get("a") is None
    h.state(SHOWN[2]).put("b", 9)
    assert dict(h.state(SHOWN[2]).items()) == {"b": 9}


@body
def writing_over_what_has_expired_hides_it(h):
    h.with_key("k")
    write(h, SHOWN)
    later(h, 10)
    h.state(SHOWN[0]).update(3)
    h.state(SHOWN[1]).update([3])
    h.state(SHOWN[2]).clear()
    assert h.state(SHOWN[0]).value() == 3
    assert h.state(SHOWN[1]).get() == [3]
    assert h.state(SHOWN[2]).is_empty()


@body
def state_of_keys_that_never_come_again_goes_without_being_read(h):
    for key in "abc":
        h.with_key(key)
        write(h, WRITES)
    h.new_epoch()
    for _ in range(3):
        later(h, 11, "another key")
    assert h.stored_entries() in (0, None)


@body
def state_that_is_written_again_and_again_does_not_go(h):
    for _ in range(12):
        h.with_key("k")
        value = h.state(WRITES[0]).value() or 0
        h.state(WRITES[0]).update(value + 1)
        h.state(WRITES[2]).put("a", value)
        later(h, 3)
    assert h.state(WRITES[0]).value() == 12
    assert h.state(WRITES[2]).get("a") == 11


@body
def the_time_of_a_value_survives_a_snapshot(h):
    h.with_key("k")
    write(h, WRITES)
    h.now_ms += 6 * SECOND
    taken = h.snapshot()
    later(h, 20)
    assert read(h, WRITES) == EMPTY
    now, h.now_ms = h.now_ms, h.now_ms - 18 * SECOND
    h.restore(taken)
    h.with_key("k")
    assert read(h, WRITES) == WRITTEN
    h.now_ms = now
    later(h, 0)
    assert read(h, WRITES) == EMPTY


@body
def a_time_to_live_survives_a_change_of_parallelism(h):
    keys = [f"key-{n}" for n in range(12)]
    for key in keys:
        h.with_key(key)
        write(h, WRITES)
    h.now_ms += 5 * SECOND
    h.rescale(5)
    for key in keys:
        h.with_key(key)
        assert read(h, WRITES) == WRITTEN
    h.now_ms += 5 * SECOND
    h.rescale(2)
    for key in keys:
        h.with_key(key)
        assert read(h, WRITES) == EMPTY
    later(h, 11)
    later(h, 11)
    assert h.stored_entries() in (0, None)


@body
def clearing_state_with_a_time_to_live_leaves_nothing_in_the_end(h):
    h.with_key("k")
    write(h, WRITES)
    h.new_epoch()
    h.with_key("k")
    for descriptor in WRITES:
        h.state(descriptor).clear()
    assert read(h, WRITES) == EMPTY
    later(h, 11)
    later(h, 11)
    assert h.stored_entries() in (0, None)
