"""Progress of a run, gathered for whoever watches it.

Turns epochs, checkpoints and phases into `JobProgress` values and hands each to the listener.
Called by the driver from the thread that runs epochs and from the one that waits for them.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from moorage.driver.manifests import CheckpointReport, view_of
from moorage.driver.types import JobProgress
from moorage.driver.views import (
    ChangelogView,
    CheckpointRecord,
    CheckpointView,
    EpochPhases,
    ExecutorsView,
    FailureView,
    GraphView,
    OddRows,
    QueryableView,
    RestoredView,
    SampleView,
    SavepointView,
    ServerPart,
    SinkOutput,
    SubtaskView,
    WatermarkView,
)
from moorage_state.coordinator import CheckpointException, CompletedCheckpoint, PendingCheckpoint
from moorage_state.snapshots import SnapshotRoot

HISTORY = 100
"""How many checkpoints and savepoints are remembered."""
DETAILED = 10
"""Of how many of them also who wrote them."""

_log = logging.getLogger(__name__)

_WINDOW_SECONDS = 10.0
_TOLD_SECONDS = 10
"""Of a clock that is behind: less is what clocks are corrected by every day."""
_NO_ODD_ROWS = OddRows()
_NO_PHASES = EpochPhases()
_NO_FAILURES = frozenset({
    "CHECKPOINT_COORDINATOR_SHUTDOWN",
    "CHECKPOINT_COORDINATOR_SUSPEND",
    "CHECKPOINT_SUBSUMED",
})  # fmt: skip
"""Given up because the run or the job ended, or because a newer one came first."""


class Reporter:
    """The latest `JobProgress`, and the way to a new one."""

    def __init__(
        self, listener: Callable[[JobProgress], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listener = listener
        self._clock = clock
        # Twice by one thread: records are changed and published in one step.
        self._lock = threading.RLock()
        self._recent: deque[tuple[float, int]] = deque([(clock(), 0)])
        self._restoring: float | None = None
        self._told_of_clock = False
        self._told_of_rows: set[str] = set()
        self.progress = JobProgress()

    # -- the run ---------------------------------------------------------------------------

    def job(self, parallelism: int, max_parallelism: int) -> None:
        """How the job is cut."""
        self._publish(parallelism=parallelism, max_parallelism=max_parallelism)

    def configuration(self, told: Sequence[tuple[str, str]]) -> None:
        """How its checkpoints and epochs are configured."""
        self._publish(configuration=tuple(told))

    def graph(self, view: GraphView, sinks: tuple[SinkOutput, ...]) -> None:
        """What the job is made of."""
        self._publish(graph=view, sinks=sinks)

    def sample(self, view: SampleView | None) -> None:
        """The sample of the output that somebody wants; None once nobody does."""
        self._publish(sample=view)

    def queryable(self, views: tuple[QueryableView, ...]) -> None:
        """The states that may be looked up."""
        if views != self.progress.queryable:
            self._publish(queryable=views)

    def claimed(self, lineage: str, fence: int) -> None:
        """The fence is claimed."""
        self._publish(lineage=lineage, fence=fence)

    def earlier(self, records: tuple[CheckpointRecord, ...], retain: int) -> None:
        """What the lineage has at the start, and how many checkpoints stay in it."""
        self._publish(earlier=records, retain=retain)

    def standby(self, *, stands_by: bool) -> None:
        """It stands by from now on; or no more, and what is told next is of the job's stream."""
        now = self.progress
        changes: dict[str, object] = {"standby": stands_by}
        if now.standby and not stands_by:
            self._restoring = None
            changes |= {"phase": "starting", "rows_total": 0, "epochs": 0, "rewinds": 0}
            changes |= {"odd": OddRows(), "restored": None, "restored_from": None, "opened": {}}
            changes |= {"last_checkpoint": None, "in_epoch": False, "epoch_began": None}
            changes |= {"sample": None}
        self._publish(**changes)

    def released(self) -> None:
        """The lineage was given up."""
        self._publish(released=True)

    def executors(self, view: ExecutorsView) -> None:
        """Processes came, or went."""
        if view != self.progress.executors:
            self._publish(executors=view)

    def phase(self, phase: str, message: str = "", *, restoring_from: str | None = None) -> None:
        """Something else is going on now; the rate is counted from when the stream begins."""
        now = self._clock()
        more: dict[str, object] = {}
        if phase in {"restoring", "starting"} and self._restoring is None:
            self._restoring = now
        if phase == "running":
            self._recent = deque([(now, self.progress.rows_total)])
            if self._restoring is not None:
                more["restore_seconds"] = now - self._restoring
                self._restoring = None
        if phase == "rewinding":
            more["rewinds"] = self.progress.rewinds + 1
        if phase != self.progress.phase:
            more |= {"in_epoch": False, "epoch_began": None}
            more |= {"tasks": 0, "moves": self.progress.moves + 1}
        self._publish(phase=phase, message=message, restoring_from=restoring_from, **more)

    def message(self, text: str) -> None:
        """Something a person should read."""
        self._publish(message=text)

    def messages(self, texts: Iterable[str]) -> None:
        """Several of them."""
        for text in texts:
            self.message(text)

    def restoring(self, path: str | None) -> None:
        """This is what the run is about to begin from."""
        self.phase("restoring", restoring_from=path)

    def restored(
        self, path: str | None, manifest: SnapshotRoot | None, *, own: bool = True
    ) -> None:
        """What the run began from; `own`: a checkpoint of the job's lineage."""
        if manifest is None or path is None:
            self._publish(restored_from=None, restored=None, epoch=0)
            return
        view = CheckpointView(
            checkpoint_id=manifest.checkpoint_id,
            epoch=manifest.epoch,
            completed_at=manifest.created_at,
            bytes_total=manifest.bytes_total,
            bytes_uploaded=0,
            duration_seconds=0.0,
        )
        restored = RestoredView(path, manifest.checkpoint_id, manifest.created_at, own)
        last = view if own else None
        self._publish(
            restored_from=path, restored=restored, epoch=manifest.epoch, last_checkpoint=last
        )

    def opened(self, ranges: Sequence[tuple[str, int]], epoch: int, *, again: bool) -> None:
        """A run has its ranges: where the state of each came from, and its bytes.

        Args:
            again: another run was before; then people are told.
        """
        found: dict[str, tuple[int, int]] = {}
        for source, size in ranges:
            count, total = found.get(source, (0, 0))
            found[source] = count + 1, total + size
        more: dict[str, object] = {}
        if again and found:
            told = (f"{n} {source} ({size >> 20} MiB)" for source, (n, size) in found.items())
            more["message"] = f"going on after epoch {epoch}; ranges: {', '.join(sorted(told))}"
        sums = dict(self.progress.opened)
        for source, (count, total) in found.items():
            before = sums.get(source, (0, 0))
            sums[source] = before[0] + count, before[1] + total
        self._publish(opened=sums, **more)

    def changelog(self, view: ChangelogView) -> None:
        """Deltas, or a copy of all ranges, began to go to the store, are there, or failed."""
        self._publish(changelog=view)

    def nothing_left(self, epoch: int) -> None:
        """What the run began from is deleted; the job had come to `epoch`."""
        self._publish(restored_from=None, restored=None, last_checkpoint=None, epoch=epoch)

    def epoch_began(self) -> None:
        """An epoch is under way from now on, until it is committed or something else goes on."""
        now = datetime.now(UTC)
        self._publish(in_epoch=True, epoch_began=now, tasks=0, moves=self.progress.moves + 1)

    def lives(self, *, tasks: int = 0, moved: bool = True) -> None:
        """What was seen of Spark: how many of its tasks run, and whether something got on."""
        if moved or tasks != self.progress.tasks:
            self._publish(tasks=tasks, moves=self.progress.moves + (1 if moved else 0))

    def lag(self, rows: int | None) -> None:
        """So many rows wait in the sources; None where these do not say."""
        self._publish(lag_rows=rows, lag_looks=self.progress.lag_looks + 1)

    def epoch(
        self,
        epoch: int,
        rows: int,
        state_bytes: int,
        bound: tuple[int, int] | None,
        seconds: float = 0.0,
        odd: OddRows = _NO_ODD_ROWS,
        *,
        phases: EpochPhases = _NO_PHASES,
        subtasks: tuple[SubtaskView, ...] | None = None,
        watermarks: tuple[WatermarkView, ...] = (),
    ) -> None:
        """An epoch was committed; it took `seconds`.

        Args:
            subtasks: None: they are not looked at for each epoch.
        """
        now = self._clock()
        total = self.progress.rows_total + rows
        self._recent.append((now, total))
        while len(self._recent) > 2 and now - self._recent[0][0] > _WINDOW_SECONDS:
            self._recent.popleft()
        since, before = self._recent[0]
        rate = (total - before) / max(now - since, 1e-9)
        self._publish(
            epoch=epoch,
            rows_total=total,
            rows_per_second=rate,
            state_bytes=state_bytes,
            bound=bound,
            message="",
            epochs=self.progress.epochs + 1,
            epoch_seconds=seconds,
            epoch_rows=rows,
            epoch_phases=phases,
            subtasks=self.progress.subtasks if subtasks is None else subtasks,
            watermarks=watermarks,
            odd=self.progress.odd + odd,
            in_epoch=False,
            epoch_began=None,
            tasks=0,
            moves=self.progress.moves + 1,
        )

    def watermarks(self, found: tuple[WatermarkView, ...]) -> None:
        """How far event time has come, while no epoch runs that would tell it."""
        if found != self.progress.watermarks:
            self._publish(watermarks=found)

    def clock(self, behind_ms: int) -> None:
        """By how much the machine's clock is behind processing time; people are told once."""
        behind = behind_ms // 1000
        if behind == self.progress.clock_behind_seconds:
            return
        more: dict[str, object] = {}
        if behind >= _TOLD_SECONDS and not self._told_of_clock:
            self._told_of_clock = True
            more["message"] = (
                f"processing time stands still: the clock of this machine is behind it "
                f"by={timedelta(seconds=behind)}, having gone back, or having been ahead when the "
                f"restored checkpoint was taken; timers of processing time and time to live wait "
                f"until it has caught up: set the clock, or wait"
            )
            _log.warning("%s", more["message"])
        if behind == 0 and self._told_of_clock:
            self._told_of_clock = False
            _log.warning("processing time goes on: the clock has caught up")
        self._publish(clock_behind_seconds=behind, **more)

    def strange_rows(self, found: Mapping[str, str]) -> None:
        """What is to be told of inputs, by what it is about; people are told once of each."""
        for name in sorted(found.keys() - self._told_of_rows):
            self._told_of_rows.add(name)
            self.message(found[name])

    # -- checkpoints -----------------------------------------------------------------------

    def checkpoint(self, report: CheckpointReport) -> None:
        """A checkpoint was completed."""
        self._publish(last_checkpoint=view_of(report))

    def pending(self, checkpoint: PendingCheckpoint) -> None:
        """See `CheckpointTracker`, which this is for the coordinator."""
        record = CheckpointRecord(
            checkpoint.checkpoint_id,
            "Savepoint" if checkpoint.properties.is_savepoint else "Checkpoint",
            "InProgress",
            datetime.fromtimestamp(checkpoint.timestamp, UTC),
        )
        with self._lock:
            self._publish(checkpoints=(record, *self.progress.checkpoints)[:HISTORY])

    def saving(self, checkpoint_id: int, done: int, of: int) -> None:
        """So many state servers have written their part of a savepoint."""
        self._record(checkpoint_id, {}, servers=(done, of))

    def completed(self, checkpoint: CompletedCheckpoint) -> None:
        """See `CheckpointTracker`."""
        report: CheckpointReport = checkpoint.payload
        more: dict[str, object] = {"storage_error": "", "moves": self.progress.moves + 1}
        if not checkpoint.properties.is_savepoint:
            count = self.progress.completed_checkpoints + 1
            more |= {"completed_checkpoints": count, "failed_in_a_row": 0}
        self._record(
            report.checkpoint_id,
            more,
            state="Completed",
            completed_at=report.completed_at,
            duration_seconds=report.seconds,
            bytes_total=report.bytes_total,
            bytes_uploaded=report.bytes_uploaded,
            objects_written=report.objects_written,
            epoch=report.epoch,
            url=checkpoint.external_pointer,
            pause_seconds=report.pause_seconds,
            upload_seconds=report.upload_seconds,
            parts=tuple(
                ServerPart(one.place, one.seconds, one.objects, one.bytes_written, one.ranges)
                for one in report.shares
            ),
        )

    def failed(self, checkpoint_id: int | None, failure: CheckpointException, at: float) -> None:
        """See `CheckpointTracker`."""
        now, view = self.progress, FailureView(failure.reason.name, str(failure))
        record = next((r for r in now.checkpoints if r.checkpoint_id == checkpoint_id), None)
        more: dict[str, object] = {}
        if view.code not in _NO_FAILURES and (record is None or record.kind == "Checkpoint"):
            more = {
                "failed_checkpoints": now.failed_checkpoints + 1,
                "failed_in_a_row": now.failed_in_a_row + (1 if failure.reason.counts else 0),
                "last_failure": view,
            }
        seconds = at - record.triggered_at.timestamp() if record else 0.0
        self._record(
            checkpoint_id,
            more,
            state="Failed",
            duration_seconds=max(0.0, seconds),
            failure=view,
        )

    def savepoint(self, view: SavepointView) -> None:
        """A savepoint was completed."""
        self._publish(last_savepoint=view)

    def storage(self, error: str) -> None:
        """Why the store cannot be used, or that it can again (empty)."""
        if error != self.progress.storage_error:
            self._publish(storage_error=error)

    def _record(
        self, checkpoint_id: int | None, more: dict[str, object], **changes: object
    ) -> None:
        """Change the record of one checkpoint, and other fields with it."""
        with self._lock:
            records = tuple(
                replace(r, **changes) if r.checkpoint_id == checkpoint_id else r  # type: ignore[arg-type]  # names are checked by `replace`
                for r in self.progress.checkpoints
            )
            old = (replace(r, parts=()) if r.parts else r for r in records[DETAILED:])
            records = (*records[:DETAILED], *old)
            self._publish(checkpoints=records, **more)

    def _publish(self, **changes: object) -> None:
        with self._lock:
            self.progress = replace(self.progress, **changes)  # type: ignore[arg-type]  # as above
            self._listener(self.progress)
