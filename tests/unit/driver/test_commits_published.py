"""Output that follows each commit, through the end of the driver at every step, and a takeover.

The checkpointer, the log, the keeper of output and a sink on a store are the real ones; a step is
every call of the lineage's store, every write of the sink's, and every named place.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
import pytest
from moorage_testing.checkpointed_job import Job

from moorage.api.file_sink import FileSink
from moorage.api.graph import SinkNode
from moorage.api.sinks import StageId
from moorage.sinks import bucket
from moorage_state import failpoints
from moorage_state.errors import Fenced
from moorage_state.snapshots import Checkpoint, LineageLog
from moorage_state.stores import MemoryStore, open_store
from moorage_state.tuning import ChangelogOptions

LOG = ChangelogOptions(True, 60.0, 1)
SCHEMA = pa.schema([("n", pa.int64())])
EPOCHS = 4
LATER = 2
"""Epochs of a successor."""
WRITES = {"put", "put_file", "put_if_absent", "delete", "delete_many"}


class DriverEnds(BaseException):
    """The process ends here: nothing that it does later arrives."""


class Steps:
    """Counts steps, and at one of them does what is to be done, or ends; for any thread."""

    def __init__(self, at: int, action: Callable[[], None] | None = None) -> None:
        self.left = at
        self._action = action or self._end
        self._lock = threading.Lock()
        self.ended = False

    def _end(self) -> None:
        self.ended = True
        raise DriverEnds

    def step(self, _place: str = "") -> None:
        if self.ended:
            raise DriverEnds
        with self._lock:
            self.left -= 1
            due = self.left == 0
        if due:
            self._action()


class Seen:
    """A store as one driver sees it: what was written arrived, though it may not hear of it."""

    def __init__(self, store: Any, steps: Steps) -> None:
        self._store, self._steps = store, steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in WRITES:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self._steps.step()
            result = found(*arguments, **options)
            self._steps.step()
            return result

        return call


class Lineage:
    """A job of which each epoch stages one row, its number."""

    def __init__(self) -> None:
        for name in ("commits", "out"):
            MemoryStore.forget(name)
        self.store = open_store("memory://commits", create=True)
        self.out = open_store("memory://out", create=True)

    def job(self, steps: Steps | None = None) -> Job:
        """A driver; another one takes over from it when it is made."""

        def seen(store: Any) -> Any:
            return Seen(store, steps) if steps else store

        sink = FileSink("memory://out", commit="list")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bucket, "open_output", lambda _url: seen(self.out))
            sink._output()
        node = SinkNode("out", cast("Any", None), sink)
        return Job(seen(self.store), [node], changelog=LOG, publishes_commits=True, retain=2)

    def run(self, job: Job, epochs: int) -> None:
        """So many epochs, two of them in one commit, and all that follows."""
        for _ in range(epochs):
            job.epoch += 1
            run = f"f{job.writer.fence}r0"
            stage = StageId(job.writer.lineage, run, job.epoch, "count", 0)
            writer = job.sinks[0].sink.open_writer(stage, SCHEMA)
            writer.write(pa.RecordBatch.from_pydict({"n": [job.epoch]}, schema=SCHEMA))
            job.checkpointer.staged(job.epoch, {"out": writer.finish()})
            job.poll()
            if job.epoch % 3:
                job.settle()
            else:
                job.within()
        job.settle()
        job.checkpointer.finish(job.epoch, job.boundary)
        job.checkpointer.finish_chores(job_finished=True)
        job.checkpointer.abandon()

    def committed(self) -> int:
        """The last epoch that an entry of the log covers."""
        entries = (entry for _, entry in LineageLog.open(self.store).read())
        return max((e.epoch for e in entries if isinstance(e, Checkpoint)), default=0)

    def published(self) -> list[int]:
        """What readers see."""
        rows: list[int] = []
        for path in FileSink("memory://out", commit="list").files():
            data = self.out.get(path.removeprefix("memory://out/"))
            rows += pa.parquet.read_table(pa.BufferReader(data)).column("n").to_pylist()
        return sorted(rows)


def live(lineage: Lineage, steps: Steps) -> None:
    """A driver's life, which may end at any step of any of its threads."""
    job: Job | None = None
    try:
        with failpoints.watched(steps.step):
            job = lineage.job(steps)
            lineage.run(job, EPOCHS)
    finally:
        if job is not None:
            with suppress(BaseException):
                job.checkpointer.abandon(job_ends=True)


@pytest.fixture(scope="module")
def count() -> int:
    """How many steps a life has, about."""
    steps = Steps(-1)
    live(Lineage(), steps)
    return -steps.left


def check_end(lineage: Lineage, nth: int) -> None:
    """A driver that ends at this step, and the one that follows."""
    steps = Steps(nth)
    with suppress(DriverEnds):
        live(lineage, steps)
    found, covered = lineage.published(), lineage.committed()
    assert found == list(range(1, len(found) + 1)), nth
    assert len(found) <= covered, f"{nth}: published before its commit"
    successor = lineage.job()
    assert successor.epoch == covered, nth
    assert lineage.published() == list(range(1, covered + 1)), nth
    lineage.run(successor, LATER)
    assert lineage.published() == list(range(1, covered + LATER + 1)), nth


def check_stall(lineage: Lineage, nth: int) -> None:
    """A driver that another one takes over from at this step, and that goes on then."""
    last: list[int] = []
    over = threading.Event()

    def take_over() -> None:
        try:
            successor = lineage.job()
            last.append(successor.epoch + LATER)
            lineage.run(successor, LATER)
        except Fenced:
            last.clear()  # by the other, which had no fence yet
        finally:
            over.set()

    fenced, steps = False, Steps(nth, take_over)
    try:
        live(lineage, steps)
    except Fenced:
        fenced = True
    # A chore of the stalled one may be where the other has taken over.
    assert steps.left > 0 or over.wait(20)
    assert not fenced or lineage.committed() == last[0], nth
    assert lineage.published() == list(range(1, lineage.committed() + 1)), nth


@pytest.mark.parametrize("check", [check_end, check_stall])
def test_each_row_is_published_once_and_after_its_commit(
    count: int, check: Callable[[Lineage, int], None]
) -> None:
    assert count > 60
    for nth in range(1, count, 4):
        check(Lineage(), nth)


@pytest.mark.soak
@pytest.mark.parametrize("check", [check_end, check_stall])
def test_at_every_step_each_row_is_published_once(
    count: int, check: Callable[[Lineage, int], None]
) -> None:
    for nth in range(1, count + 10):
        check(Lineage(), nth)
