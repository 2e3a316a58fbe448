"""What the driver tells sinks at a start and after a checkpoint, from a real log and manifests."""

import threading
from datetime import UTC, datetime
from typing import Any, cast
from unittest.mock import Mock

import pyarrow as pa
import pytest
from moorage_testing.manifests import checkpoint_manifest
from py4j.protocol import Py4JError, Py4JNetworkError

from moorage.api.file_sink import FileSink
from moorage.api.foreach_sinks import ForeachCheckpoint
from moorage.api.graph import JobGraph, SinkNode
from moorage.api.sinks import LiveOutput, SinkContext, SinkRetire, StageId, TwoPhaseCommitSink
from moorage.api.streams import DataStream
from moorage.driver import output
from moorage.driver.output import (
    OutputKeeper,
    PendingSavepoint,
    check_sinks,
    check_sinks_beside,
    history_of,
    left_behind,
)
from moorage.driver.refusals import RestorePointIncompatible
from moorage.driver.restore_point import Choice
from moorage.engine.task_failures import RunRefused, SparkEnded
from moorage.sinks import records
from moorage_state import failpoints
from moorage_state.errors import (
    CorruptState,
    Fenced,
    LocalDiskError,
    Retryable,
    StoreDenied,
    StoreUnavailable,
    UserError,
)
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Owner,
    Retire,
    Run,
    Savepoint,
    history,
)
from moorage_state.snapshots.savepoints import as_savepoint
from moorage_state.stores import MemoryStore

SCHEMA = pa.schema([("n", pa.int64())])
OWNER = Owner("here", "default", "job", "uid-1")
NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Job:
    """A lineage with one sink; `start` is a new process."""

    def __init__(self, sink, store):
        self.sink, self.store = sink, store
        self.graph = JobGraph(sinks=[SinkNode("out", cast("DataStream", None), sink)])
        self.last_id = self.epoch = 0
        self.savepoints = []
        self.pending = []

    def start(self, manifest=None, *, explicit=False):
        self.writer = LogWriter.claim(self.store, OWNER, "test")
        self.checkpoints = CheckpointStore(self.store)
        self.keeper = OutputKeeper(
            self.graph, self.checkpoints, self.writer, lambda: self.savepoints
        )
        told = list(self.keeper.admit(manifest))
        path = f"chk-{manifest.checkpoint_id}" if manifest else None
        if manifest and manifest.lineage != self.writer.lineage:
            path = f"file:///elsewhere/{manifest.lineage}/{path}"
        copied = 0
        if manifest and manifest.kind == "savepoint":
            path, copied = f"file:///elsewhere/{manifest.name}", manifest.checkpoint_id
        self.writer.append(Run(self.writer.fence, 0, path, explicit, restored_id=copied))
        return told + list(self.keeper.restore(0, manifest))

    @property
    def run(self):
        return f"f{self.writer.fence}r0"

    def stage(self, *numbers):
        self.epoch += 1
        stage = StageId(self.writer.lineage, self.run, self.epoch, "count", 0)
        writer = self.sink.open_writer(stage, SCHEMA)
        writer.write(pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA))
        return writer.finish()

    def complete(self, items, *, publish=True, **changes):
        self.last_id += 1
        manifest = self.manifest(items, **changes)
        self.checkpoints.complete(self.writer, manifest, NOW)
        if publish:
            self.keeper.publish(self.last_id, {"out": items})
            self.keeper.retire(0, self.last_id, self.epoch, self.pending)
        return manifest

    def go_on(self, numbers):
        """Complete a checkpoint for each, retire all but the newest three; returns the last."""
        for number in numbers:
            manifest = self.complete(self.stage(number))
            if self.last_id > 3:
                self.writer.append(Retire(self.writer.fence, self.last_id - 3))
            self.writer.compact()
        return manifest

    def manifest(self, items, **changes):
        values: dict[str, Any] = {
            "lineage": self.writer.lineage,
            "checkpoint_id": self.last_id,
            "fence": self.writer.fence,
            "epoch": self.epoch,
            "created_at": NOW,
            "sinks": {"out": items},
        }
        return checkpoint_manifest(**(values | changes))


class Counting(TwoPhaseCommitSink):
    """Keeps what it published; a sink as a user would write it."""

    def __init__(self):
        self.published = {}
        self.discarded = []

    def open_writer(self, stage, _schema):
        return CountingWriter(stage)

    def publish(self, _lineage, checkpoint_id, committables):
        self.published[checkpoint_id] = [item["stage"] for item in committables]
        return len(committables)

    def discard(self, _lineage, run, live):
        self.discarded.append((run, [item["stage"] for item in live]))


class CountingWriter:
    def __init__(self, stage):
        self.stage, self.rows = stage, 0

    def write(self, batch):
        self.rows += batch.num_rows

    def finish(self):
        return [{"stage": f"{self.stage.run}-{self.stage.epoch}", "rows": self.rows}]

    def abort(self):
        self.rows = 0


@pytest.fixture
def store(tmp_path):
    yield MemoryStore.named(tmp_path.name)
    MemoryStore.forget(tmp_path.name)


@pytest.fixture(params=["rename", "list"])
def files(request, store, tmp_path):
    return Job(FileSink(tmp_path / "out", commit=request.param), store)


@pytest.fixture
def calls():
    return []


@pytest.fixture
def called(store, calls):
    def function(tables, _info):
        calls.extend(n for table in tables for n in table.column("n").to_pylist())

    return Job(ForeachCheckpoint(function).bind(SinkContext("out", "", store.url, SCHEMA)), store)


def rows_of(job):
    tables = (pa.parquet.read_table(path) for path in job.sink.files())
    return sorted(n for table in tables for n in table.column("n").to_pylist())


def test_output_that_was_not_published_before_the_end_is_published_at_the_next_start(files):
    files.start()
    manifest = files.complete(files.stage(1), publish=False)
    assert rows_of(files) == []
    assert files.start(manifest) == []
    assert rows_of(files) == [1]


@pytest.mark.parametrize("empty", [False, True])
def test_unpublished_output_survives_a_way_back_and_is_there_on_the_way_forward(files, empty):
    """The process ended between a checkpoint's log entry and its publication."""
    files.start()
    older = files.complete(files.stage(1))
    newer = files.complete(files.stage(2), publish=False)
    files.start(None if empty else older, explicit=True)
    assert rows_of(files) == ([] if empty else [1])
    files.start(newer, explicit=True)
    assert rows_of(files) == [1, 2]


def test_a_driver_that_stalls_in_a_retirement_leaves_the_records_of_newer_checkpoints(
    files, monkeypatch
):
    files.start()
    first = files.complete(files.stage(1))
    monkeypatch.setattr(records, "COMPACT_AT", 1)

    def take_over(place):
        if place == "sink.unread":
            monkeypatch.undo()
            files.start(first)
            files.complete(files.stage(2))
            monkeypatch.setattr(records, "COMPACT_AT", 1)

    stalled, items = files.sink, first.sinks["out"]
    point = SinkRetire(files.writer.lineage, files.run, 1, 1, (LiveOutput((1,), items),))
    monkeypatch.setattr(failpoints, "hit", take_over)
    stalled.retire(point)
    monkeypatch.undo()
    assert rows_of(files) == [1, 2]
    files.start(first, explicit=True)
    assert rows_of(files) == [1]


def test_going_back_takes_back_and_going_forward_brings_back(files):
    files.start()
    manifests = [files.complete(files.stage(n)) for n in (1, 2, 3)]
    (sentence,) = files.start(manifests[0], explicit=True)
    assert "files=2" in sentence
    assert rows_of(files) == [1]
    files.complete(files.stage(4))
    files.start(manifests[2], explicit=True)
    assert rows_of(files) == [1, 2, 3]


def test_a_replaced_driver_touches_no_sink(files):
    files.start()
    manifest = files.complete(files.stage(1))
    stalled, number = files.keeper, files.writer.fence
    files.start(manifest)
    assert files.writer.fence > number
    before = files.sink.files()
    with pytest.raises(Fenced):
        list(stalled.restore(0, None))
    assert files.sink.files() == before


def test_output_of_another_lineage_is_dropped_and_somebody_is_told(files):
    files.start()
    theirs = files.manifest(files.stage(1), lineage="theirs", checkpoint_id=9)
    (sentence,) = files.keeper.restore(0, theirs)
    assert sentence == (
        "output that the restore point covers and another lineage staged is dropped, for that "
        "lineage publishes it: lineage=theirs rows={'out': 1}"
    )
    assert rows_of(files) == []


def test_output_of_a_sink_that_the_job_no_longer_has_is_named(store):
    job = Job(Counting(), store)
    job.start()
    manifest = job.complete(job.stage(1), sinks={"gone": [{"rows": 3}]})
    (sentence,) = job.start(manifest)
    assert "a sink that the job no longer has" in sentence
    assert sentence.endswith("uid=gone rows=3")


def test_a_savepoint_of_the_lineage_publishes_what_it_covers_once(files):
    files.start()
    first = files.complete(files.stage(1))
    pending = files.stage(2)
    files.last_id += 1
    savepoint = files.manifest(pending, kind="savepoint", name="s", checkpoint_id=files.last_id)
    later = files.complete(pending + files.stage(3))
    assert rows_of(files) == [1, 2, 3]
    assert history_of(files.writer.entries, savepoint) == (first.checkpoint_id, 2)
    list(files.keeper.restore(1, savepoint))
    assert rows_of(files) == [1, 2]
    list(files.keeper.restore(2, later))
    assert rows_of(files) == [1, 2, 3]


def test_a_copy_of_a_checkpoint_that_was_let_go_goes_on_with_all_output_before_it(files):
    files.start()
    copy, _ = as_savepoint(files.go_on(range(1, 11)), "copy")
    files.go_on(range(11, 21))
    (sentence,) = files.start(copy, explicit=True)
    assert "files=10" in sentence
    assert rows_of(files) == [*range(1, 11)]
    # Until nothing is there any more that was before the copy was restored.
    last = files.go_on(range(31, 39))
    assert rows_of(files) == [*range(1, 11), *range(31, 39)]
    assert files.start(last) == []
    files.go_on([39])
    assert rows_of(files) == [*range(1, 11), *range(31, 40)]


def test_a_point_of_a_run_that_the_log_does_not_tell_of_is_refused_and_nothing_is_touched(files):
    files.start()
    files.go_on(range(1, 11))
    lost = files.manifest([], kind="savepoint", name="lost", checkpoint_id=15, fence=7)
    with pytest.raises(RestorePointIncompatible, match="checkpoint=chk-15 run=f7r0"):
        files.start(lost, explicit=True)
    assert not any(isinstance(e, Run) and e.explicit for e in files.writer.entries)
    assert rows_of(files) == [*range(1, 11)]


def test_a_function_got_the_rows_of_a_copied_checkpoint_before_that_was_let_go(called, calls):
    called.start()
    copy, _ = as_savepoint(called.go_on(range(1, 4)), "copy")
    called.go_on(range(4, 11))
    check_sinks(called.graph, copy, called.writer.lineage, called.writer.entries)
    (sentence,) = called.start(copy, explicit=True)
    assert "OutputAlreadyPublished" in sentence
    called.go_on([11])
    assert calls == [*range(1, 12)]


def test_rows_of_a_copied_checkpoint_that_no_function_got_are_missed(called, calls):
    called.start()
    older = called.complete(called.stage(1))
    left = called.complete(called.stage(2), publish=False)
    called.start(older, explicit=True)
    called.go_on(range(3, 9))
    copy, _ = as_savepoint(left, "copy")
    with pytest.raises((CorruptState, RestorePointIncompatible)):
        called.start(copy, explicit=True)
    assert calls == [1, *range(3, 9)]


def test_rows_of_a_savepoint_that_checkpoints_overtook_do_not_come_again(called, calls):
    called.start()
    called.complete(called.stage(1))
    items = called.stage(2)
    called.last_id += 1
    savepoint = called.manifest(items, kind="savepoint", name="s", checkpoint_id=2)
    called.pending = [PendingSavepoint(called.writer.fence, 0, 2, called.epoch, {"out": items})]
    called.complete(items + called.stage(3))
    called.go_on(range(4, 9))
    called.pending, called.savepoints = [], [savepoint]
    called.writer.append(
        Savepoint(called.writer.fence, 0, 2, "file:///s", "sha256:0", savepoint.epoch, NOW)
    )
    called.go_on([9])
    called.start(savepoint, explicit=True)
    assert calls == [*range(1, 10)]


def test_a_newer_copy_in_a_log_that_was_set_back_goes_on_with_all_output_before_it(files):
    files.start()
    files.go_on(range(1, 6))
    newer = files.manifest(files.stage(9), kind="savepoint", name="newer", checkpoint_id=9)
    files.start(newer, explicit=True)
    assert rows_of(files) == [1, 2, 3, 4, 5, 9]
    files.last_id = 9
    last = files.go_on(range(10, 14))
    assert files.start(last) == []
    files.go_on([14])
    assert rows_of(files) == [1, 2, 3, 4, 5, *range(9, 15)]


def test_a_newer_copy_in_a_log_that_was_set_back_and_went_on_is_refused(files):
    files.start()
    files.go_on(range(1, 6))
    newer = files.manifest([], kind="savepoint", name="newer", checkpoint_id=9)
    files.start(files.complete(files.stage(6)))
    files.go_on([7])
    with pytest.raises(RestorePointIncompatible, match="checkpoint=chk-9 run=f1r0"):
        files.start(newer, explicit=True)
    assert rows_of(files) == [*range(1, 8)]


def test_what_a_savepoint_covers_is_kept_where_no_checkpoint_needs_it(files):
    files.start()
    first = files.complete(files.stage(1))
    pending = files.stage(2)
    files.last_id += 1
    savepoint = files.manifest(pending, kind="savepoint", name="s", checkpoint_id=files.last_id)
    files.savepoints = [savepoint]
    files.start(first, explicit=True)
    files.last_id = 15  # the next one comes with a sweep
    files.complete(files.stage(9))
    list(files.keeper.restore(1, savepoint))
    assert rows_of(files) == [1, 2]


def test_nothing_is_forgotten_while_a_manifest_is_damaged(files, store):
    files.start()
    manifests = [files.complete(files.stage(n)) for n in (1, 2)]
    files.start(manifests[0], explicit=True)
    files.last_id = 15
    good = store.get("chk-2/MANIFEST")
    store.put("chk-2/MANIFEST", good[:-9])
    files.keeper = OutputKeeper(files.graph, files.checkpoints, files.writer)
    files.complete(files.stage(3))
    store.put("chk-2/MANIFEST", good)
    files.start(manifests[1], explicit=True)
    assert rows_of(files) == [1, 2]


def test_nothing_is_forgotten_while_the_store_of_a_savepoint_denies(files):
    def denied():
        raise StoreDenied("403")

    files.start()
    first = files.complete(files.stage(1))
    pending = files.stage(2)
    files.last_id += 1
    savepoint = files.manifest(pending, kind="savepoint", name="s", checkpoint_id=files.last_id)
    files.savepoints = [savepoint]
    files.start(first, explicit=True)
    files.last_id = 15  # the next one comes with a sweep
    files.keeper = OutputKeeper(files.graph, files.checkpoints, files.writer, denied)
    files.complete(files.stage(9))
    list(files.keeper.restore(1, savepoint))
    assert rows_of(files) == [1, 2]


def test_what_a_checkpoint_costs_does_not_grow_with_the_savepoints(files, monkeypatch):
    """A log of years with hundreds of them was gone through twice for each."""
    files.start()
    files.complete(files.stage(0))
    for number in range(1, 11):
        items = files.stage(number)
        files.last_id += 1
        made = files.manifest(items, kind="savepoint", name=f"s{number}")
        files.savepoints.append(made)
        named = f"memory://s{number}", "sha256:0", made.epoch
        files.writer.append(Savepoint(files.writer.fence, 0, made.checkpoint_id, *named, NOW))
    gone_through = Mock(side_effect=history._parents)
    monkeypatch.setattr(history, "_parents", gone_through)
    told: list[SinkRetire] = []
    monkeypatch.setattr(files.sink, "retire", told.append)
    for number in (11, 12):
        files.complete(files.stage(number))
    assert gone_through.call_count == 2
    found = [tuple(live.history) for live in told[-1].live]
    assert found == [(1, 12, 13), (1, 12), (1,), *((1, number) for number in range(2, 12))]


def test_savepoints_are_looked_for_where_nobody_waits_for_the_sinks(files):
    """Their stores may not answer for minutes: neither a publication nor a restore waits for it."""
    free = []

    def look_again():
        published = threading.Thread(target=files.keeper.publish, args=(1, {}), daemon=True)
        published.start()
        published.join(10)
        free.append(not published.is_alive())

    files.start()
    files.keeper = OutputKeeper(files.graph, files.checkpoints, files.writer, look_again=look_again)
    first = files.complete(files.stage(1))
    assert free == [True]
    list(files.keeper.restore(1, first))
    assert free == [True]


@pytest.mark.parametrize("error", [StoreDenied("403"), StoreUnavailable("away")])
def test_people_are_told_once_what_keeps_output_from_being_forgotten(files, error):
    def refused():
        raise error

    files.start()
    first = files.complete(files.stage(1))
    files.keeper = OutputKeeper(files.graph, files.checkpoints, files.writer, refused)
    told = [*files.keeper.restore(1, first), *files.keeper.restore(2, first)]
    text = "no output is forgotten while a manifest cannot be read: 403"
    assert told == ([text] if isinstance(error, StoreDenied) else [])


def test_a_sink_of_ones_own_publishes_again_and_warns_about_what_it_cannot_take_back(store):
    job = Job(Counting(), store)
    job.start()
    first = job.complete(job.stage(1))
    second = job.complete(job.stage(2), publish=False)
    assert job.start(second) == []
    assert job.sink.published == {1: ["f1r0-1"], 2: ["f1r0-2"]}
    assert job.sink.discarded[-1] == ("f2r0", ["f1r0-2", "f1r0-1", "f1r0-2"])
    (sentence,) = job.start(first, explicit=True)
    assert sentence == (
        "OutputAlreadyPublished: output of checkpoints after the restore point cannot be taken "
        "back, and comes again under new ids: sink=Counting checkpoints=chk-2"
    )
    assert job.start(first) == []


def test_a_sink_of_ones_own_drops_nothing_while_a_manifest_is_damaged(store):
    job = Job(Counting(), store)
    job.start()
    job.complete(job.stage(1))
    second = job.complete(job.stage(2))
    store.put("chk-1/MANIFEST", b"")
    before = len(job.sink.discarded)
    job.start(second)
    assert len(job.sink.discarded) == before


def test_a_function_that_fails_at_a_start_is_the_jobs_failure(store):
    def function(_tables, _info):
        raise ValueError("no such table")

    context = SinkContext("out", "", store.url, SCHEMA)
    job = Job(ForeachCheckpoint(function).bind(context), store)
    job.start()
    manifest = job.complete(job.stage(1), publish=False)
    # No reason to delete the checkpoints: the next run calls it again.
    with pytest.raises(RunRefused, match="no such table"):
        job.start(manifest)


def test_what_was_left_behind_is_what_the_run_before_had(store):
    job = Job(Counting(), store)
    job.start()
    assert left_behind(job.writer.entries, ()) == ()
    manifests = [job.complete(job.stage(n)) for n in (1, 2, 3)]
    job.start(manifests[0], explicit=True)
    assert left_behind(job.writer.entries, (1,)) == (2, 3)
    job.start(manifests[0])
    assert left_behind(job.writer.entries, (1,)) == ()
    job.start(None, explicit=True)
    assert left_behind(job.writer.entries, ()) == (1,)


def test_a_function_gets_what_a_savepoint_covers_and_nobody_handed_over(store):
    calls = []

    def function(tables, info):
        calls.append((info.checkpoint_id, [n for t in tables for n in t["n"].to_pylist()]))

    context = SinkContext("out", "", store.url, SCHEMA)
    job = Job(ForeachCheckpoint(function).bind(context), store)
    job.start()
    job.complete(job.stage(1))
    pending = job.stage(2)
    job.last_id += 1
    job.savepoints = [job.manifest(pending, kind="savepoint", name="s", checkpoint_id=2)]
    job.writer.append(Savepoint(job.writer.fence, 0, 2, "file:///s", "sha256:0", job.epoch, NOW))
    job.start(None, explicit=True)
    list(job.keeper.restore(1, job.savepoints[0]))
    list(job.keeper.restore(2, job.savepoints[0]))
    assert calls == [(1, [1]), (2, [2])]


def test_sinks_that_want_to_know_hear_of_each_committed_epoch(store):
    heard = []

    class Listening(Counting):
        def commit_epoch(self, info, committables):
            heard.append((info.run, info.epoch, len(committables)))

    job = Job(Listening(), store)
    job.start()
    job.keeper.commit_epoch(0, 1, {"out": job.stage(1)})
    job.keeper.commit_epoch(0, 2, {})
    assert heard == [("f1r0", 1, 1)]


class Failing(Counting):
    """Fails wherever it is told to."""

    error: Exception | None = None

    def _fail(self):
        if self.error is not None:
            raise self.error

    def publish(self, *args):
        self._fail()
        return super().publish(*args)

    def restore(self, point):
        self._fail()
        return super().restore(point)

    def commit_epoch(self, _info, _committables):
        self._fail()

    def retire(self, _point):
        self._fail()


@pytest.fixture
def failing(store):
    job = Job(Failing(), store)
    job.start()
    job.complete(job.stage(1))
    return job


def calls_of(job):
    """All that the driver asks of sinks, by what an error says of it."""
    items = {"out": job.stage(2)}
    return {
        "call=publish checkpoint=2": lambda: job.keeper.publish(2, items),
        "call=retire checkpoint=2": lambda: job.keeper.retire(0, 2, 2),
        "call=commit_epoch run=f1r0 epoch=2": lambda: job.keeper.commit_epoch(0, 2, items),
        "call=restore checkpoint=None": lambda: list(job.keeper.restore(1, None)),
    }


@pytest.mark.parametrize(
    "error", [ConnectionResetError("the database is away"), OSError(28, "full"), KeyError("n")]
)
def test_what_a_sink_raises_names_it_and_is_no_fault_of_the_manifest_nor_of_spark(failing, error):
    failing.sink.error = error
    for where, call in calls_of(failing).items():
        with pytest.raises(UserError, match="a sink failed; the next run calls it again") as told:
            call()
        assert f"sink=out {where} error={type(error).__name__}: " in str(told.value)
        # A plain one is that while the stream runs, which is when all others are called.
        assert type(told.value) is (RunRefused if "restore" in where else UserError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreUnavailable("away"), StoreUnavailable),
        (LocalDiskError("full"), LocalDiskError),
        (Py4JError("ExecutorLostFailure: executor 1"), Retryable),
        (Py4JNetworkError("Answer from Java side is empty"), SparkEnded),
    ],
)
def test_what_another_run_may_cure_is_still_told_as_that(failing, error, kind):
    failing.sink.error = error
    for call in calls_of(failing).values():
        with pytest.raises(kind) as told:
            call()
        assert type(told.value) is kind


def test_a_run_restores_its_sinks_when_the_one_before_has_forgotten_what_it_may(store, monkeypatch):
    """A chore outlives its run where the store is slow, and deletes what a restore would read."""
    forgetting, restored, done = threading.Event(), threading.Event(), []

    class Slow(Counting):
        def retire(self, _point):
            forgetting.set()
            restored.wait(0.2)  # as long as nobody does
            done.append("forgot")

        def restore(self, point):
            done.append("restored")
            restored.set()
            return super().restore(point)

    job = Job(Slow(), store)
    job.start()
    job.complete(job.stage(1), publish=False)
    done.clear()
    restored.clear()
    chore = threading.Thread(target=job.keeper.retire, args=(0, 1, 1))
    chore.start()
    assert forgetting.wait(10)
    monkeypatch.setattr(output, "_QUIET_SECONDS", 0.01)
    told = list(job.keeper.restore(1, None))
    chore.join()
    assert done == ["forgot", "restored"]
    assert told[0].startswith("waiting until the sinks of the run before have deleted")


def elsewhere(kind, path, store):
    """A sink that somebody gives the same uid."""
    if kind == "function":
        return ForeachCheckpoint(lambda _tables, _info: None).bind(
            SinkContext("out", "", store.url, SCHEMA)
        )
    return FileSink(path / "elsewhere", commit=kind)


def graph_of(sink):
    return JobGraph(sinks=[SinkNode("out", cast("DataStream", None), sink)])


@pytest.mark.scenario(70)
@pytest.mark.parametrize("kind", ["rename", "list", "function"])
@pytest.mark.parametrize("other", ["rename", "list", "function"])
def test_what_a_sink_of_another_place_or_kind_staged_is_refused_and_nothing_is_touched(
    kind, other, store, tmp_path
):
    job = Job(elsewhere(kind, tmp_path / "before", store), store)
    job.start()
    manifest, lineage = job.complete(job.stage(1), publish=False), job.writer.lineage
    new = elsewhere(other, tmp_path / "after", store)
    if kind == other == "function":
        check_sinks(graph_of(new), manifest, lineage, ())  # one place, that of the checkpoints
        return
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((CorruptState, RestorePointIncompatible), match="another uid") as caught:
        check_sinks(graph_of(new), manifest, lineage, ())
    assert "sink=out" in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    job.graph = graph_of(new)
    with pytest.raises(type(caught.value)):  # and a start says the same
        job.start(manifest)


@pytest.mark.parametrize("kind", ["rename", "list", "function"])
def test_its_own_output_a_sink_finds_before_and_after_it_was_published(kind, store, tmp_path):
    job = Job(elsewhere(kind, tmp_path, store), store)
    job.start()
    items = job.stage(1)
    manifest = job.complete(items, publish=False)
    check_sinks(job.graph, manifest, job.writer.lineage, job.writer.entries)
    job.keeper.publish(1, {"out": items})
    check_sinks(job.graph, manifest, job.writer.lineage, job.writer.entries)
    # What another lineage staged is published by that one, and a new sink has nothing to find.
    check_sinks(graph_of(elsewhere("list", tmp_path / "x", store)), manifest, "another", ())
    empty = job.manifest([])
    check_sinks(graph_of(elsewhere("list", tmp_path / "x", store)), empty, job.writer.lineage, ())


def test_a_point_that_was_let_go_meanwhile_is_not_held_against_a_sink(store, tmp_path):
    job = Job(FileSink(tmp_path / "out"), store)
    job.start()
    gone = job.complete([{"file": "gone", "staged": "gone", "rows": 1}], publish=False)
    there = job.complete(job.stage(2))
    choices = iter([Choice(there, explicit=False)])
    lineage = job.writer.lineage
    check_sinks_beside(job.graph, lineage, (), Choice(gone, explicit=False), choices.__next__)
    with pytest.raises(CorruptState, match="gone"):
        check_sinks_beside(
            job.graph,
            lineage,
            (),
            Choice(gone, explicit=False),
            lambda: Choice(gone, explicit=False),
        )
