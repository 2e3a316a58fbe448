"""Operator state in the process: snapshots in two phases, and what restores get."""

import hashlib
import threading
from decimal import Decimal

import pytest
from msgspec.structs import replace

from moorage_state.descriptors import ListStateDescriptor, MapStateDescriptor
from moorage_state.errors import CorruptState, NewerFormat, UserError
from moorage_state.operator_state.backend import OperatorStateBackend
from moorage_state.operator_state.snapshots import reassign
from moorage_state.state_backends.futures import SnapshotCanceled
from moorage_state.state_backends.storage import CheckpointStreamFactory

BUFFER = ListStateDescriptor("buffer", "string")
OFFSETS = ListStateDescriptor("offsets", "long")
RULES = MapStateDescriptor("rules", "string", "array<long>")


@pytest.fixture
def streams(tmp_path):
    return CheckpointStreamFactory(f"file://{tmp_path}", "chk-1/", inline_bytes=0)


def taken(backend, streams, checkpoint_id=1):
    future = backend.snapshot(checkpoint_id, 0.0, streams)
    future.run()
    return future.result().handle


def filled(number, *, rules=()):
    backend = OperatorStateBackend("op")
    backend.get_list_state(BUFFER).add_all([f"{number}a", f"{number}b"])
    backend.get_union_list_state(OFFSETS).add(number)
    backend.get_broadcast_state(RULES).put_all(dict(rules))
    return backend


def test_what_is_written_after_the_synchronous_part_is_not_in_the_snapshot(streams):
    backend = filled(0, rules=[("a", [1])])
    value = backend.get_broadcast_state(RULES).get("a")
    future = backend.snapshot(1, 0.0, streams)
    backend.get_list_state(BUFFER).update(["later"])
    backend.get_broadcast_state(RULES).put("b", [2])
    value.append(9)
    threads = [threading.Thread(target=future.run) for _ in range(3)]
    for thread in threads:
        thread.start()
    restored = OperatorStateBackend("op", [future.result(30).handle])
    for thread in threads:
        thread.join()
    assert restored.get_list_state(BUFFER).get() == ["0a", "0b"]
    assert restored.get_broadcast_state(RULES).items() == [("a", [1])]
    assert backend.get_list_state(BUFFER).get() == ["later"]


def test_without_operator_state_a_snapshot_is_complete_at_once(streams):
    future = OperatorStateBackend("op").snapshot(1, 0.0, streams)
    assert future.done
    assert future.result().handle is None
    assert future.result().state_size == 0


def test_a_canceled_snapshot_leaves_nothing(streams, tmp_path):
    future = filled(0).snapshot(1, 0.0, streams)
    assert future.cancel()
    future.run()
    with pytest.raises(SnapshotCanceled):
        future.result()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_disposing_cancels_what_is_not_through_and_can_be_repeated(streams):
    backend = filled(0)
    future = backend.snapshot(1, 0.0, streams)
    backend.dispose()
    backend.dispose()
    assert future.canceled
    assert backend.get_registered_state_names() == set()


@pytest.mark.parametrize(
    ("parallelism", "lists"),
    [
        (2, [["0a", "0b"], ["1a", "1b"]]),
        (3, [["0a", "0b"], ["1a"], ["1b"]]),
        (1, [["0a", "0b", "1a", "1b"]]),
    ],
)
def test_handles_are_dealt_out_by_the_rules(streams, parallelism, lists):
    handles = [taken(filled(n, rules=[("from", [n])]), streams) for n in range(2)]
    restored = [OperatorStateBackend("op", mine) for mine in reassign(handles, parallelism)]
    assert [backend.get_list_state(BUFFER).get() for backend in restored] == lists
    for backend in restored:
        assert sorted(backend.get_union_list_state(OFFSETS).get()) == [0, 1]
    copies = [backend.get_broadcast_state(RULES).get("from") for backend in restored]
    assert copies == [[n % 2] for n in range(parallelism)]


def test_subtasks_without_operator_state_are_counted(streams):
    handles = [None, taken(filled(1), streams), None]
    assert [[s.schema.name for h in mine for s in h.states] for mine in reassign(handles, 3)] == [
        ["offsets"],
        ["buffer", "offsets", "rules"],
        ["offsets"],
    ]


def test_states_that_nobody_asks_for_are_carried_on(streams):
    first = taken(filled(7, rules=[("a", [1])]), streams)
    second = OperatorStateBackend("op", [first])
    assert second.get_registered_state_names() == {"buffer", "offsets"}
    assert second.get_registered_broadcast_state_names() == {"rules"}
    third = OperatorStateBackend("op", [taken(second, streams, 2)])
    assert third.get_list_state(BUFFER).get() == ["7a", "7b"]
    assert third.get_broadcast_state(RULES).get("a") == [1]


@pytest.mark.parametrize("asked", [True, False])
def test_a_union_does_not_multiply_however_often_it_is_restored(streams, asked):
    handles = [taken(filled(n), streams) for n in range(2)]
    for checkpoint_id, parallelism in enumerate([2, 3, 1, 2, 2], 2):
        made = [OperatorStateBackend("op", mine) for mine in reassign(handles, parallelism)]
        if asked:
            for backend in made:
                assert sorted(backend.get_union_list_state(OFFSETS).get()) == [0, 1]
        handles = [taken(backend, streams, checkpoint_id) for backend in made]
    (restored,) = [OperatorStateBackend("op", mine) for mine in reassign(handles, 1)]
    assert sorted(restored.get_union_list_state(OFFSETS).get()) == [0, 1]


def test_what_a_subtask_adds_to_or_clears_of_a_union_is_its_own(streams):
    first = reassign([taken(filled(n), streams) for n in range(2)], 2)
    one, other = [OperatorStateBackend("op", mine) for mine in first]
    one.get_union_list_state(OFFSETS).update([5])
    other.get_union_list_state(OFFSETS).add(6)
    assert one.get_union_list_state(OFFSETS).get() == [5]
    handles = [taken(backend, streams, 2) for backend in (one, other)]
    for mine in reassign(handles, 2):
        restored = OperatorStateBackend("op", mine)
        assert sorted(restored.get_union_list_state(OFFSETS).get()) == [1, 5, 6]


PAIRS = ListStateDescriptor("pairs", "struct<n:int>")
LATER_PAIRS = ListStateDescriptor("pairs", "struct<n:int,note:string DEFAULT 'new'>")
LATER_RULES = MapStateDescriptor("rules", "string", "array<decimal(20,0)>")


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_what_a_subtask_did_not_ask_for_is_carried_on_with_the_type_it_was_written_with(
    streams, parallelism
):
    first = [filled(n, rules=[("from", [n])]) for n in range(2)]
    for n, backend in enumerate(first):
        backend.get_list_state(PAIRS).add_all([(n,), (n + 10,)])
    taken_first = reassign([taken(backend, streams) for backend in first], 2)
    second = [OperatorStateBackend("op", mine) for mine in taken_first]
    second[0].get_list_state(LATER_PAIRS).add((5, "5"))
    second[0].get_broadcast_state(LATER_RULES).put("new", [Decimal(7)])
    handles = [taken(backend, streams, 2) for backend in second]
    third = [OperatorStateBackend("op", mine) for mine in reassign(handles, parallelism)]
    # Nobody asks: what two types wrote goes on side by side.
    fourth = [taken(backend, streams, 3) for backend in third]
    restored = [OperatorStateBackend("op", mine) for mine in reassign(fourth, parallelism)]
    pairs = [pair for backend in restored for pair in backend.get_list_state(LATER_PAIRS).get()]
    assert pairs == [(0, "new"), (10, "new"), (5, "5"), (1, "new"), (11, "new")]
    for n, backend in enumerate(restored):
        rules = dict(backend.get_broadcast_state(LATER_RULES).items())
        assert rules == ({"from": [1]} if n % 2 else {"from": [0], "new": [7]})


def test_handles_that_contradict_each_other_about_a_state_are_refused(streams):
    one, other = OperatorStateBackend("op"), OperatorStateBackend("op")
    one.get_list_state(BUFFER).add("a")
    other.get_union_list_state(BUFFER).add("b")
    with pytest.raises(UserError, match="'buffer' was written as list state<string>"):
        OperatorStateBackend("op", [taken(one, streams), taken(other, streams)])


def test_handles_of_several_snapshots_are_not_mixed(streams):
    handles = [taken(filled(0), streams, 1), taken(filled(1), streams, 2)]
    with pytest.raises(UserError, match="several operators or snapshots"):
        reassign(handles, 2)


def test_a_redeclared_state_is_refused_at_its_registration(streams):
    restored = OperatorStateBackend("op", [taken(filled(0), streams)])
    with pytest.raises(UserError, match="'offsets' was written as union list state<bigint>"):
        restored.get_list_state(OFFSETS)


@pytest.mark.parametrize(
    ("at", "data", "error", "message"),
    [
        (0, b"X", CorruptState, "not what was written|not a stream"),
        (8, b"\xff", CorruptState, "not what was written"),
    ],
)
def test_damaged_streams_are_refused(streams, tmp_path, at, data, error, message):
    handle = taken(filled(0), streams)
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + data + raw[at + 1 :])
    with pytest.raises(error, match=message):
        OperatorStateBackend("op", [handle])


def test_a_newer_format_is_refused():
    streams = CheckpointStreamFactory("memory://x", "chk-1/", inline_bytes=None)
    handle = taken(filled(0), streams)
    data = handle.stream.data
    newer = data[:8] + b"\x00\x09" + data[10:]
    stream = replace(handle.stream, data=newer, sha256=hashlib.sha256(newer).hexdigest())
    with pytest.raises(NewerFormat, match="upgrade moorage"):
        OperatorStateBackend("op", [replace(handle, stream=stream)])
