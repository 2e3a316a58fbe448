"""What a backend does with what it should not be given: it says so, and every one says the same."""

import datetime
from itertools import islice

import msgspec
import pytest

from moorage_state.checks import StateTypeError
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import Bug, CorruptState, IllegalConfigurationError, UserError
from moorage_state.keyed.timers import TimeDomain
from moorage_state.state_backends import (
    DriverCheckpointStorage,
    EmbeddedRocksDBStateBackend,
    FilesystemCheckpointStorage,
)
from moorage_state.timetolive import StateTtlConfig

from .conftest import CHECKPOINT, SAVEPOINT

TTL = StateTtlConfig(datetime.timedelta(days=1))
COUNT = ValueStateDescriptor("count", "long")
WINDOW = ValueStateDescriptor("window", "long")
ITEMS = ListStateDescriptor("items", "long")
SEEN = MapStateDescriptor("seen", "string", "long")
TOTAL = ReducingStateDescriptor("total", "long", "sum")
LIVING = [
    ValueStateDescriptor("living-count", "long", TTL),
    ListStateDescriptor("living-items", "long", TTL),
    MapStateDescriptor("living-seen", "string", "long", TTL),
]


# -- after dispose ----------------------------------------------------------------------------


def uses(one, states):
    count, items, seen, total, *living = states
    yield from [count.value, count.clear, lambda: count.update(1), total.get, lambda: total.add(1)]
    yield from [items.get, items.clear, lambda: items.add(1), lambda: items.update([1])]
    yield from [lambda: list(items), lambda: items.add_all([1]), seen.items, seen.clear]
    yield from [lambda: seen.put("a", 1), lambda: seen.get("a"), lambda: seen.remove("a")]
    yield from [lambda: list(seen), seen.is_empty, lambda: list(seen.entries())]
    yield from [living[0].value, lambda: living[0].update(1), living[1].get, living[2].items]
    yield from [lambda: living[1].add(1), lambda: living[2].put("a", 1)]
    yield from [lambda: one.set_current_key("a"), lambda: one.set_current_key("new")]
    yield from [lambda: one.get_state(COUNT)]
    yield from [lambda: one.get_partitioned_state(1, "long", WINDOW), one.timers]
    yield from [lambda: one.merge_namespaces(1, [2], "long", TOTAL), lambda: one.get_keys("count")]
    factory = DriverCheckpointStorage().create_access("job").location_for_checkpoint(1)
    yield lambda: one.snapshot(1, 0.0, factory.stream_factory(), CHECKPOINT)


@pytest.mark.parametrize("used", [True, False])
def test_a_backend_that_was_disposed_of_refuses_everything(op, used):
    (one,) = op.made
    states = [one.get_or_create_keyed_state(d) for d in (COUNT, ITEMS, SEEN, TOTAL, *LIVING)]
    timers = [one.timers(domain) for domain in TimeDomain]
    one.set_current_key("a")
    for domain in timers:
        domain.register(5)
    if used:
        states[0].update(1)
        states[2].put("a", 1)
        states[4].value()
        assert states[1].get() == []
    one.dispose()
    for n, use in enumerate(uses(one, states)):
        with pytest.raises(Bug, match="the state backend was disposed of"):
            raise AssertionError(f"use {n} was accepted: {use()!r}")
    for domain in timers:
        for use in (lambda d: d.register(1), lambda d: d.delete(5), lambda d: d.peek(), len):
            with pytest.raises(Bug, match="the state backend was disposed of"):
                use(domain)
        with pytest.raises(Bug, match="the state backend was disposed of"):
            domain.fire_due(9, lambda *_: None)


# -- namespaces -------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [ITEMS, "count", None], ids=["list", "text", "none"])
def test_a_state_is_asked_for_with_its_own_kind_of_descriptor(op, given):
    (one,) = op.made
    with pytest.raises(TypeError, match=r"expected=ValueStateDescriptor got="):
        one.get_state(given)
    if given is not ITEMS:
        with pytest.raises(TypeError, match=r"expected=a state descriptor got="):
            one.get_or_create_keyed_state(given)


@pytest.mark.parametrize(
    ("ddl", "namespace"),
    [
        ("tinyint", 300),
        ("long", True),
        ("long", "5"),
        ("long", 1.0),
        ("long", 1 << 63),
        ("long", (1, 2)),
        ("string", 5),
        ("string", "\ud800"),
        ("timestamp", datetime.datetime(2020, 1, 1)),  # noqa: DTZ001
    ],
)
def test_a_namespace_of_another_type_is_refused(op, ddl, namespace):
    op.with_key("a")
    with pytest.raises(StateTypeError, match="a namespace is not of its declared type: state=w"):
        op.current.get_partitioned_state(namespace, ddl, WINDOW)


@pytest.mark.parametrize(("ddl", "namespace"), [("long", None), (None, 5)])
def test_a_state_has_namespaces_or_it_has_none(op, ddl, namespace):
    op.with_key("a")
    with pytest.raises(UserError, match=r"state was declared with.* namespaces: state=window"):
        op.current.get_partitioned_state(namespace, ddl, WINDOW)


def test_each_namespace_has_a_handle_of_its_own(op):
    op.with_key("a")
    one, other = (op.current.get_partitioned_state(n, "long", WINDOW) for n in (1, 2))
    one.update(10)
    other.update(20)
    assert (one.value(), other.value()) == (10, 20)
    op.current.get_partitioned_state(3, "long", WINDOW)
    assert one.value() == 10


# -- keys and iteration -----------------------------------------------------------------------


def test_a_state_that_nobody_knows_has_no_keys(op):
    assert list(op.made[0].get_keys("unknown")) == []


def test_keys_are_those_that_are_there_when_it_is_asked(op):
    for n in range(50):
        op.with_key(f"k{n}")
        op.state(COUNT).update(n)
    found = []
    for key in op.made[0].get_keys("count"):
        found.append(key)
        op.with_key(key + "x")
        op.state(COUNT).update(1)
    assert sorted(found) == sorted(f"k{n}" for n in range(50))


def test_a_list_is_not_cut_short_where_the_key_changes_while_it_is_read(op):
    op.with_key("a")
    items = op.state(ITEMS)
    items.add_all(range(9000))
    op.with_key("b")
    op.with_key("a")
    reading = iter(items)
    assert next(reading) == 0
    items.clear()
    op.with_key("b")
    with pytest.raises(RuntimeError, match="read on when another key is current"):
        list(islice(reading, 9000))


# -- snapshots --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CHECKPOINT, SAVEPOINT], ids=["checkpoint", "savepoint"])
@pytest.mark.parametrize("storage", ["driver", "filesystem"])
def test_a_checkpoint_may_be_taken_again_before_it_is_written(op, kind, storage):
    if storage == "driver":
        op.storage = DriverCheckpointStorage()
    futures = []
    op.with_key("a")
    for n in (1, 2):
        op.state(COUNT).update(n)
        op.checkpoint_id = 10
        # Savepoints have places of their own.
        op.storage = (
            op.storage
            if kind is CHECKPOINT
            else FilesystemCheckpointStorage(str(op.path / f"store-{n}"))
        )
        futures += op.begin(kind)
    found = []
    for future in futures:
        future.run()
    for future in futures:
        op.restore([future.result(0).handle])
        op.with_key("a")
        found.append(op.state(COUNT).value())
    assert found == [1, 2]


def test_aborting_a_checkpoint_cancels_all_that_were_taken_under_its_id(op):
    op.with_key("a")
    op.state(COUNT).update(1)
    futures = []
    for checkpoint_id in (10, 10, 11):
        op.checkpoint_id = checkpoint_id - 1
        futures += op.begin()
    op.made[0].notify_checkpoint_aborted(10)
    assert [future.canceled for future in futures] == [True, True, False]


def test_a_canonical_handle_that_lacks_a_states_file_is_refused(op):
    op.with_key("a")
    op.state(COUNT).update(1)
    op.state(ITEMS).add(1)
    (handle,) = op.take(SAVEPOINT)
    for ref in handle.range.files:
        files = [other for other in handle.range.files if other is not ref]
        less = msgspec.structs.replace(handle.range, files=files)
        with pytest.raises(CorruptState, match=f"states={ref.name.removesuffix('.parquet')}"):
            op.restore([msgspec.structs.replace(handle, range=less)])


# -- what is refused at once ------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["", "x" * 300, "../x", "a\0b", "a/b"])
def test_an_operator_that_no_snapshot_could_be_named_by_is_refused(backend, operator, tmp_path):
    from moorage_state.keygroups import KeyGroupRange
    from moorage_state.state_backends import Environment

    with pytest.raises(UserError, match="operator identifier cannot name state"):
        backend.create_keyed_state_backend(
            Environment(local_dir=tmp_path), "job", operator, ["string"], 8, KeyGroupRange(0, 7)
        )


@pytest.mark.parametrize("given", ["a,b", "/a,/b", "relative", ""])
def test_a_local_directory_that_cannot_be_one_is_refused_at_once(given):
    with pytest.raises(IllegalConfigurationError, match=r"key=state.backend.rocksdb.localdir"):
        EmbeddedRocksDBStateBackend(local_dir=given)


@pytest.mark.parametrize("given", ["hdfs://x/y", "://x", "relative/dir"])
def test_an_address_that_no_store_takes_is_refused_at_once(given):
    with pytest.raises(IllegalConfigurationError, match=r"key=state.checkpoints.dir"):
        FilesystemCheckpointStorage(given)
