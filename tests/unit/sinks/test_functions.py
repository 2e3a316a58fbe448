"""Functions that are called with output: when, with what, and again after which failures."""

import pickle
import tempfile

import pyarrow as pa
import pytest

from moorage.api import foreach_sinks
from moorage.api.foreach_sinks import ForeachCheckpoint, ForeachEpoch
from moorage.api.sinks import (
    CheckpointInfo,
    EpochInfo,
    LiveOutput,
    SinkContext,
    SinkRestore,
    SinkRetire,
    StageId,
)
from moorage_state import failpoints
from moorage_state.errors import CorruptState, StoreUnavailable, UserError
from moorage_state.stores import open_store

SCHEMA = pa.schema([("n", pa.int64())])
LINEAGE = "0f3c"


@pytest.fixture
def calls():
    return []


@pytest.fixture
def context(store_url):
    return SinkContext("calls", "", store_url, SCHEMA)


@pytest.fixture
def per_checkpoint(context, calls):
    def function(tables, info):
        calls.append((info, [n for table in tables for n in table.column("n").to_pylist()]))

    return ForeachCheckpoint(function).bind(context)


@pytest.fixture
def per_epoch(context, calls):
    def function(table, info):
        calls.append((info, table.column("n").to_pylist()))

    return ForeachEpoch(function).bind(context)


def stage(sink, *numbers, epoch=1, run="f1r0"):
    writer = sink.open_writer(StageId(LINEAGE, run, epoch, "count", 0), SCHEMA)
    writer.write(pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA))
    return writer.finish()


def stored(store_url):
    return [i.key for i in open_store(store_url).list("") if i.key.endswith(".parquet")]


def crash_at(monkeypatch, place):
    def hit(name):
        if name == place:
            raise InterruptedError(name)

    monkeypatch.setattr(failpoints, "hit", hit)


def test_a_function_gets_the_rows_of_a_checkpoint_once(per_checkpoint, calls, store_url):
    items = stage(per_checkpoint, 1, 2) + stage(per_checkpoint, 3, epoch=2)
    for _ in range(2):
        assert per_checkpoint.publish(LINEAGE, 7, items) == 3
    assert calls == [(CheckpointInfo(LINEAGE, 7), [1, 2, 3])]
    assert stored(store_url) == []


def test_the_rows_of_a_large_epoch_are_not_held_in_memory(context, monkeypatch):
    seen: list[tuple[pa.Schema, int, int]] = []

    def function(table, _info):
        seen.append((table.schema, table.nbytes, pa.total_allocated_bytes() - before))
        assert sum(len(batch) for batch in table.to_batches()) == 4 * 100_000
        kept.append(table)

    kept: list[pa.Table] = []
    sink = ForeachEpoch(function).bind(context)
    items = [item for _ in range(4) for item in stage(sink, *range(100_000))]
    for limit in (1 << 30, 1):
        monkeypatch.setattr(foreach_sinks, "_IN_MEMORY_BYTES", limit)
        monkeypatch.setattr(sink, "_drop", lambda *_: None)
        before = pa.total_allocated_bytes()
        sink.commit_epoch(EpochInfo(LINEAGE, "f1r0", limit), items)
    (schema, size, held), (same, _, mapped) = seen
    assert schema == same
    assert held >= size > 8 * 100_000
    assert mapped < size / 4
    assert kept[0].equals(kept[1])  # also when the file is gone


def test_a_crash_before_the_record_leads_to_the_same_call_again(per_checkpoint, calls, monkeypatch):
    items = stage(per_checkpoint, 1)
    with monkeypatch.context() as patch:
        crash_at(patch, "sink.after_call")
        with pytest.raises(InterruptedError):
            per_checkpoint.publish(LINEAGE, 7, items)
    live = (LiveOutput((7,), items),)
    per_checkpoint.restore(SinkRestore(LINEAGE, "f2r0", (7,), items, live))
    assert calls == [(CheckpointInfo(LINEAGE, 7), [1])] * 2


def test_a_crash_after_the_record_leads_to_no_call(per_checkpoint, calls, monkeypatch, store_url):
    items = stage(per_checkpoint, 1)
    with monkeypatch.context() as patch:
        crash_at(patch, "sink.recorded")
        with pytest.raises(InterruptedError):
            per_checkpoint.publish(LINEAGE, 7, items)
    per_checkpoint.restore(SinkRestore(LINEAGE, "f2r0", (7,), items))
    assert len(calls) == 1
    assert stored(store_url) == []


def test_a_function_that_fails_with_rows_unread_leaves_no_file_of_them_here(
    context, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def function(tables, _info):
        next(tables)
        raise ValueError("no such table")

    sink = ForeachCheckpoint(function).bind(context)
    with pytest.raises(UserError, match="no such table") as failed:
        sink.publish(LINEAGE, 7, stage(sink, 1) + stage(sink, 2, epoch=2))
    # Looked at while the error, and all that it holds on to, is there.
    assert list(tmp_path.iterdir()) == []
    assert failed.value.__cause__ is not None


@pytest.mark.parametrize("kind", [ForeachCheckpoint, ForeachEpoch])
def test_what_a_function_raises_ends_the_run_and_loses_nothing(kind, context, store_url):
    answers = iter([ValueError("no such table"), None])

    def function(_rows, _info):
        if error := next(answers):
            raise error

    sink = kind(function).bind(context)
    items = stage(sink, 1)

    def call():
        if kind is ForeachEpoch:
            sink.commit_epoch(EpochInfo(LINEAGE, "f1r0", 1), items)
        else:
            sink.publish(LINEAGE, 7, items)

    with pytest.raises(
        UserError, match=r"failed; it is called again .* error=ValueError: no such table"
    ):
        call()
    assert len(stored(store_url)) == 1
    call()
    assert stored(store_url) == []


def test_an_error_of_the_store_within_the_function_is_no_error_of_the_function(context):
    def function(_tables, _info):
        raise StoreUnavailable("no answer")

    sink = ForeachCheckpoint(function).bind(context)
    with pytest.raises(StoreUnavailable):
        sink.publish(LINEAGE, 7, stage(sink, 1))


def test_rows_of_a_checkpoint_that_was_in_doubt_come_once(per_checkpoint, calls):
    """The log write of 7 was in doubt, so 8 covers its output as well."""
    seventh = stage(per_checkpoint, 1)
    eighth = seventh + stage(per_checkpoint, 2, epoch=2)
    per_checkpoint.publish(LINEAGE, 8, eighth)
    per_checkpoint.restore(SinkRestore(LINEAGE, "f2r0", (7,), seventh))
    assert calls == [(CheckpointInfo(LINEAGE, 8), [1, 2])]


def test_going_back_says_that_rows_were_handed_over(per_checkpoint, per_epoch):
    items = {n: stage(per_checkpoint, n) for n in (1, 2, 3)}
    per_checkpoint.publish(LINEAGE, 1, items[1])
    per_checkpoint.publish(LINEAGE, 2, items[2])
    point = SinkRestore(LINEAGE, "f2r0", (1,), items[1], (), (2, 3))
    (sentence,) = per_checkpoint.restore(point)
    assert sentence.startswith("OutputAlreadyPublished: ")
    assert sentence.endswith("sink=foreach_checkpoint calls checkpoints=chk-2")
    (sentence,) = per_epoch.restore(point)
    assert sentence.endswith("sink=foreach_epoch calls checkpoints=chk-2, chk-3")


def test_rows_that_were_never_handed_over_wait_for_a_way_forward(per_checkpoint, calls, store_url):
    first, second = stage(per_checkpoint, 1), stage(per_checkpoint, 2, epoch=2)
    per_checkpoint.publish(LINEAGE, 1, first)
    live = (LiveOutput((1,), first), LiveOutput((1, 2), second))
    assert per_checkpoint.restore(SinkRestore(LINEAGE, "f2r0", (1,), first, live, (2,))) == []
    assert len(stored(store_url)) == 1
    per_checkpoint.restore(SinkRestore(LINEAGE, "f3r0", (1, 2), second, live))
    assert [info.checkpoint_id for info, _ in calls] == [1, 2]


def test_rows_that_are_missing_are_an_error(per_checkpoint, calls, store_url):
    items = stage(per_checkpoint, 1)
    open_store(store_url).delete(stored(store_url)[0])
    with pytest.raises(CorruptState, match="rows that the checkpoint covers are missing"):
        per_checkpoint.publish(LINEAGE, 7, items)
    assert calls == []


def test_rows_that_a_replaced_driver_hands_over_meanwhile_are_not_missing(
    per_checkpoint, calls, monkeypatch
):
    items = stage(per_checkpoint, 1)

    def meanwhile(place):
        if place == "sink.before_call":
            monkeypatch.undo()
            per_checkpoint.publish(LINEAGE, 7, items)

    monkeypatch.setattr(failpoints, "hit", meanwhile)
    per_checkpoint.restore(SinkRestore(LINEAGE, "f2r0", (7,), items))
    assert calls == [(CheckpointInfo(LINEAGE, 7), [1])]


def test_records_go_when_nothing_can_ask_for_them(per_checkpoint, store_url):
    items = {n: stage(per_checkpoint, n, epoch=n) for n in (1, 2, 3)}
    for n, staged in items.items():
        per_checkpoint.publish(LINEAGE, n, staged)
    stage(per_checkpoint, 9, epoch=3)
    live = (LiveOutput((1, 2, 3), items[3]),)
    per_checkpoint.retire(SinkRetire(LINEAGE, "f1r0", 3, 3, live))
    (key,) = (info.key for info in open_store(store_url).list(""))
    assert key == f"sinks/calls/handed/{LINEAGE}/{3:020d}.json"


def test_a_replaced_driver_leaves_the_records_of_newer_checkpoints(per_checkpoint, calls):
    first = stage(per_checkpoint, 1)
    later = stage(per_checkpoint, 2, run="f2r0")
    per_checkpoint.publish(LINEAGE, 1, first)
    per_checkpoint.publish(LINEAGE, 2, later)
    per_checkpoint.retire(SinkRetire(LINEAGE, "f1r0", 1, 1, (LiveOutput((1,), first),)))
    per_checkpoint.publish(LINEAGE, 2, later)
    assert [info.checkpoint_id for info, _ in calls] == [1, 2]


def test_a_function_gets_the_rows_of_each_epoch(per_epoch, calls, store_url):
    info = EpochInfo(LINEAGE, "f1r0", 4)
    items = stage(per_epoch, 1) + stage(per_epoch, 2)
    stage(per_epoch, 9)
    per_epoch.commit_epoch(info, items)
    assert calls == [(info, [1, 2])]
    assert per_epoch.publish(LINEAGE, 7, items) == 2
    assert len(stored(store_url)) == 1
    per_epoch.retire(SinkRetire(LINEAGE, "f1r0", 4, 7, ()))
    assert stored(store_url) == []


def test_what_a_lost_run_staged_for_epochs_goes(per_epoch, calls, store_url):
    stage(per_epoch, 1)
    assert per_epoch.restore(SinkRestore(LINEAGE, "f2r0", (), [])) == []
    assert (stored(store_url), calls) == ([], [])


@pytest.mark.parametrize("kind", [ForeachCheckpoint, ForeachEpoch])
def test_the_function_stays_on_the_driver(kind, context):
    """It may hold on to what cannot be sent: a connection, the Spark session."""
    sink = kind(lambda _rows, _info: None).bind(context)
    assert pickle.loads(pickle.dumps(sink)).open_writer(
        StageId(LINEAGE, "f1r0", 1, "count", 0), SCHEMA
    )


def test_a_function_needs_a_checkpoint_directory():
    sink = ForeachCheckpoint(lambda _tables, _info: None)
    with pytest.raises(UserError, match="rows for a function are staged in the checkpoint dir"):
        sink.bind(SinkContext("calls", "/job", "", SCHEMA))
