"""What a driver knows of itself, for its endpoint, its metrics and its end.

Takes the driver's progress as it comes and makes the reports of the contract from it at any time.
It never waits for the driver: a long epoch or a store that hangs does not make it late. Called by
the driver (as its listener), by the endpoint and by `main`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyspark

from moorage.cluster.load import LoadWindow
from moorage.driver.requests import JobRequest, Requests, Stopped, StopRequest
from moorage.driver.run_status import RunStatus, run_status
from moorage.driver.types import JobProgress
from moorage.driver.views import (
    CheckpointRecord,
    CheckpointView,
    FailureView,
    SampleView,
    SavepointView,
    WatermarkView,
    furthest_behind,
)
from moorage_api.driver import (
    DRIVER_FORMAT,
    CheckpointSummary,
    DriverState,
    LoadReport,
    OutputSample,
    RequestError,
    RequestView,
    RestoredFrom,
    SampleSegment,
    SavepointInfo,
    SinkView,
)
from moorage_state.coordinator import CheckpointException
from moorage_state.errors import MoorageError
from moorage_state.stores.addresses import child

_WINDOW_SECONDS = 60.0
_MAX_EPOCHS = 10_000
_MAX_TEXT = 2_000
_OUTDATED_SECONDS = 300.0
_STEP = timedelta(seconds=1)
_END_MS = int(datetime(3000, 1, 1, tzinfo=UTC).timestamp() * 1000)
"""Where the times of reports end."""


@dataclass(frozen=True, slots=True)
class DriverAttempt:
    """Which driver this is.

    Attributes:
        checkpoint_dir: as the manifest writes it.
    """

    number: int
    job: str
    namespace: str
    job_uid: str
    checkpoint_dir: str


@dataclass(frozen=True, slots=True)
class CommittedEpoch:
    """One that was committed."""

    at: float
    seconds: float
    rows: int


class _Clock:
    """Moments of the monotonic clock as times of day, told anew once that was set. For any thread.

    A time that was written down before the clock was set seems to lie an hour back, or ahead.
    """

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._zero = wall_clock() - timedelta(seconds=clock())

    def now(self) -> datetime:
        """The time of day; from then on all others are by it."""
        wall = self._wall_clock()
        zero = wall - timedelta(seconds=self._clock())
        # Less is no step, and would have every report differ from the one before.
        if abs(zero - self._zero) >= _STEP:
            self._zero = zero
        return wall

    def at(self, moment: float | None) -> datetime | None:
        """When that was."""
        return self._zero + timedelta(seconds=moment) if moment is not None else None


class Board:
    """The newest progress, and what follows from it; for any thread.

    Args:
        observe: hears of every epoch, and of every checkpoint that ended.
        load_seconds: over how long the load is told.
    """

    def __init__(
        self,
        attempt: DriverAttempt,
        requests: Requests,
        redact: Callable[[str], str],
        *,
        observe: Callable[[CommittedEpoch | CheckpointRecord], object] = lambda _event: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        load_seconds: float = 900.0,
    ) -> None:
        self.attempt = attempt
        self._requests = requests
        self._redact = redact
        self._observe = observe
        self._clock = clock
        self._times = _Clock(clock, wall_clock)
        self._lock = threading.Lock()
        self._progress = JobProgress()
        self._recent: deque[CommittedEpoch] = deque(maxlen=_MAX_EPOCHS)
        self._load = LoadWindow(load_seconds)
        self._running_from: float | None = None
        self._last_progress: float | None = None
        self._last_move: float | None = None
        self._last_checkpoint: float | None = None
        self._epoch_began: float | None = None
        self._storage = ""
        self._answered: float | None = None
        self._refused = 0.0

    def __call__(self, progress: JobProgress) -> None:
        """The driver's listener."""
        with self._lock:
            before, self._progress = self._progress, progress
            self._note_run(before, progress)
            self._mark(before, progress)
            if progress.storage_error and (
                progress.storage_error != before.storage_error
                or progress.checkpoints is not before.checkpoints
            ):
                self._refused = self._clock()
            epoch: CommittedEpoch | None = None
            if progress.epochs > before.epochs:  # fewer, where a driver that stood by leads
                epoch = CommittedEpoch(self._clock(), progress.epoch_seconds, progress.epoch_rows)
                self._recent.append(epoch)
                self._load.epoch(epoch.at, epoch.seconds, epoch.rows)
                self._last_progress = self._clock()
        if epoch is not None:
            self._observe(epoch)
        if progress.checkpoints is not before.checkpoints:
            self._observe_ended(before.checkpoints, progress.checkpoints)

    def _note_run(self, before: JobProgress, now: JobProgress) -> None:
        """See whether the stream runs by now: what it did while it stood by is not the job's."""
        if before.standby and not now.standby:
            self._running_from = None
            self._recent.clear()
        if now.phase == "running" and self._running_from is None:
            self._running_from = self._clock()

    def storage(self, error: str) -> None:
        """Why the store cannot be used, as somebody beside the driver found; empty if it can."""
        self._storage = error
        self._answered = None if error else self._clock()

    @property
    def progress(self) -> JobProgress:
        """The newest."""
        return self._progress

    # -- reports ---------------------------------------------------------------------------

    def state(self) -> DriverState:
        """`GET /state`."""
        now = self.progress
        busy, rate = self.rates()
        executors, answered_at = now.executors, self._times.now()
        watermark, uid, held_by = _furthest_behind(now.watermarks)
        return DriverState(
            attempt=self.attempt.number,
            job_uid=self.attempt.job_uid,
            phase=now.phase,
            standby=now.standby,
            message=self._clean(now.message),
            lineage=now.lineage,
            fence=now.fence,
            epoch=now.epoch,
            watermark=watermark,
            watermark_of=self._clean(uid),
            watermark_held_by=self._clean(held_by),
            rows_total=now.rows_total,
            rows_per_second=rate,
            busy_ratio=busy,
            load=self.load(),
            state_bytes=now.state_bytes,
            parallelism=now.parallelism,
            max_parallelism=now.max_parallelism,
            executors_desired=executors.desired,
            executors_ready=executors.ready,
            executors_lost=executors.lost,
            rewinds=now.rewinds,
            last_progress_time=self._times.at(self._last_progress),
            last_move_time=self._times.at(self._last_move),
            epoch_since=self._times.at(self._epoch_began),
            epoch_seconds=now.epoch_seconds,
            tasks_running=now.tasks,
            answered_at=answered_at,
            running_since=None if now.standby else self._times.at(self._running_from),
            restored_from=self.restored_from(),
            last_checkpoint=self.last_checkpoint(),
            last_savepoint=self.savepoint(now.last_savepoint),
            completed_checkpoints=now.completed_checkpoints,
            last_checkpoint_time=self._times.at(self._last_checkpoint),
            consecutive_failed_checkpoints=now.failed_in_a_row,
            last_checkpoint_failure=self._failure(now.last_failure),
            storage_error=self.storage_error,
            sinks=self.sinks(),
            sample=_sample(now.sample) if now.sample is not None else None,
            requests=tuple(self.request(request) for request in self._requests.latest()),
        )

    def status(self) -> RunStatus:
        """`GET /status`: for a person's tree, what a run on their machine says by its socket."""
        found = run_status(
            self.attempt.job, self.attempt.checkpoint_dir, self.progress, self._times.now()
        )
        failure, savepoint = found.last_failure, found.last_savepoint
        return replace(
            found,
            message=self._clean(found.message),
            storage_error=self.storage_error,
            checkpoint_dir=self._redact(found.checkpoint_dir),
            restored_from=self._redact(found.restored_from) if found.restored_from else None,
            last_failure=replace(failure, message=self._clean(failure.message))
            if failure
            else None,
            last_savepoint=replace(savepoint, url=self._redact(savepoint.url))
            if savepoint
            else None,
        )

    def checkpoints(self) -> dict[str, Any]:
        """`GET /checkpoints`: newest first."""
        records = [self._record(record) for record in self.progress.checkpoints]
        return {"format": DRIVER_FORMAT, "checkpoints": records}

    def request(self, request: JobRequest) -> RequestView:
        """How far a request is."""
        state, result, error = request.state, request.result, request.error
        view = RequestView(request_id=request.request_id, kind=request.kind, state=state)
        if state == "Failed" and error is not None:
            failure = FailureView(error_code(error), str(error))
            return view.model_copy(update={"error": self._failure(failure)})
        if state != "Completed":
            return view
        match result:
            case CheckpointView():
                return view.model_copy(update={"checkpoint": self.checkpoint(result)})
            case SavepointView():
                return view.model_copy(update={"savepoint": self.savepoint(result)})
            case Stopped():
                checkpoint = self.last_checkpoint() if result.checkpoint else None
                savepoint = self.savepoint(result.savepoint)
                return view.model_copy(update={"checkpoint": checkpoint, "savepoint": savepoint})
            case _:
                return view

    def stopped_with(self) -> SavepointInfo | None:
        """The savepoint that the job was stopped with."""
        for request in self._requests.latest():
            if isinstance(request, StopRequest):
                stopped = request.granted or request.result
                if isinstance(stopped, Stopped):
                    return self.savepoint(stopped.savepoint)
        return None

    def restored_from(self) -> RestoredFrom | None:
        """What the stream began from."""
        restored = self.progress.restored
        if restored is None:
            return None
        return RestoredFrom(
            path=self._address(restored.path) if restored.own else restored.path,
            checkpoint_id=restored.checkpoint_id,
            completed_at=restored.completed_at,
        )

    def last_checkpoint(self) -> CheckpointSummary | None:
        """The newest of this lineage that this driver knows."""
        now = self.progress
        own = now.completed_checkpoints > 0 or (now.restored is not None and now.restored.own)
        return self.checkpoint(now.last_checkpoint) if own and now.last_checkpoint else None

    def checkpoint(self, view: CheckpointView) -> CheckpointSummary:
        """A completed checkpoint."""
        return CheckpointSummary(
            id=view.checkpoint_id,
            path=self._address(f"chk-{view.checkpoint_id}"),
            epoch=view.epoch,
            completed_at=view.completed_at,
            size_bytes=view.bytes_total,
            uploaded_bytes=view.bytes_uploaded,
            duration_ms=round(view.duration_seconds * 1000),
        )

    def savepoint(self, view: SavepointView | None) -> SavepointInfo | None:
        """A completed savepoint."""
        if view is None:
            return None
        return SavepointInfo(
            name=view.name,
            path=self._redact(view.url),
            checkpoint_id=view.checkpoint_id,
            epoch=view.epoch,
            size_bytes=view.bytes_total,
            duration_ms=round(view.duration_seconds * 1000),
            manifest_digest=view.manifest_digest,
            max_parallelism=view.max_parallelism,
            spark_version=pyspark.__version__,
            completed_at=view.completed_at,
        )

    def sinks(self) -> tuple[SinkView, ...] | None:
        """Those of the job, once its code has described them."""
        known = self.progress.sinks
        if known is None:
            return None
        return tuple(SinkView(uid=one.uid, takes_back=one.takes_back) for one in known)

    @property
    def storage_error(self) -> str:
        """Why the store cannot be used at the moment.

        What a checkpoint met says so until another one ended. Of a stream that hangs none does:
        then it can be used where it has answered for so long that another one should have ended.
        """
        met = self.progress.storage_error
        if self._answered is not None and self._answered - self._refused > _OUTDATED_SECONDS:
            met = ""
        return self._clean(met or self._storage)

    def epoch_age(self) -> float:
        """How many seconds the epoch under way has taken; 0 between two."""
        began = self._epoch_began
        return max(self._clock() - began, 0.0) if began is not None else 0.0

    def rates(self) -> tuple[float, float]:
        """Of the last minute: the share of time spent in epochs, and input rows per second.

        The epoch under way counts as time; its rows count once it is committed.
        """
        now, under_way = self._clock(), self.epoch_age()
        with self._lock:
            if self._running_from is None:
                return 0.0, 0.0
            window = max(min(_WINDOW_SECONDS, now - self._running_from), 1e-3)
            recent = [epoch for epoch in self._recent if now - epoch.at < window]
        # Of an epoch that began before the window, only what lies in it.
        busy = sum(min(epoch.seconds, window - (now - epoch.at)) for epoch in recent)
        busy += min(under_way, window)
        return min(busy / window, 1.0), sum(epoch.rows for epoch in recent) / window

    def load(self) -> LoadReport | None:
        """What the stream bore lately."""
        now, under_way = self._clock(), self.epoch_age()
        with self._lock:
            return self._load.report(now, under_way)

    # -- underneath ------------------------------------------------------------------------

    def _mark(self, before: JobProgress, progress: JobProgress) -> None:
        """Note when what has changed did so; under the lock."""
        if progress.moves != before.moves:
            self._last_move = self._clock()
        if progress.completed_checkpoints > before.completed_checkpoints:
            self._last_checkpoint = self._clock()
        if not progress.in_epoch:
            self._epoch_began = None
        elif not before.in_epoch:
            self._epoch_began = self._clock()
        if _runs_anew(before, progress):
            self._load.begin(self._clock())
        if progress.subtasks is not before.subtasks:
            self._load.subtasks(self._clock(), progress.subtasks)
        if progress.lag_looks != before.lag_looks and progress.lag_rows is not None:
            self._load.lag(self._clock(), progress.lag_rows)

    def _observe_ended(
        self, before: tuple[CheckpointRecord, ...], after: tuple[CheckpointRecord, ...]
    ) -> None:
        known = {r.checkpoint_id for r in before if r.state != "InProgress"}
        for record in after:
            if record.state != "InProgress" and record.checkpoint_id not in known:
                self._observe(record)

    def _record(self, record: CheckpointRecord) -> dict[str, Any]:
        failure = self._failure(record.failure)
        done = record.completed_at
        return {
            "id": record.checkpoint_id,
            "kind": record.kind,
            "state": record.state,
            "triggeredAt": record.triggered_at.isoformat(),
            "completedAt": done.isoformat() if done else None,
            "durationMs": round(record.duration_seconds * 1000),
            "sizeBytes": record.bytes_total,
            "uploadedBytes": record.bytes_uploaded,
            "objects": record.objects_written,
            "failure": failure.to_json() if failure else None,
        }

    def _failure(self, failure: FailureView | None) -> RequestError | None:
        if failure is None:
            return None
        return RequestError(code=failure.code, message=self._clean(failure.message))

    def _address(self, name: str) -> str:
        return child(self.attempt.checkpoint_dir, name)

    def _clean(self, text: str) -> str:
        return self._redact(text)[:_MAX_TEXT]


def _sample(view: SampleView) -> OutputSample:
    """The sample of the output; rows as the report writes them."""
    return OutputSample(
        percent=view.percent,
        except_columns=view.except_columns,
        since_epoch=view.since_epoch,
        start={uid: dict(at) for uid, at in view.start.items()},
        limits={uid: f"{limit:016x}" for uid, limit in view.limits.items()},
        segments=tuple(
            SampleSegment(
                epochs=one.epochs,
                end={uid: dict(at) for uid, at in one.end.items()},
                rows={
                    uid: {f"{row:016x}": count for row, count in rows.items()}
                    for uid, rows in one.rows.items()
                },
            )
            for one in view.segments
        ),
        trouble=view.trouble,
    )


def _runs_anew(before: JobProgress, now: JobProgress) -> bool:
    """Whether the stream begins to run, or has done so with other subtasks or after a rewind."""
    if now.phase != "running":
        return False
    return before.phase in {"starting", "restoring", "rewinding"} or (
        before.parallelism != now.parallelism
    )


def _furthest_behind(watermarks: Sequence[WatermarkView]) -> tuple[datetime | None, str, str]:
    """The watermark that is furthest behind, whose it is, and what it waits for.

    Event time is anything that a row says. A report can have no time before 1970, for which 1970
    is told, and none after its end, of which nothing is told.
    """
    found = furthest_behind(watermarks)
    if found is None or (found.time_ms or 0) >= _END_MS:
        return None, "", ""
    time = None
    if found.time_ms is not None:
        time = datetime.fromtimestamp(max(found.time_ms, 0) / 1000, UTC)
    return time, found.uid, found.held_by


def error_code(error: BaseException) -> str:
    """A stable word for an error."""
    if isinstance(error, CheckpointException):
        return error.reason.name
    return error.code if isinstance(error, MoorageError) else "internal"
