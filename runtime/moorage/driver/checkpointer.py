"""Checkpoints and savepoints of a running job: the coordinator's decisions, carried out.

The coordinator decides what is taken when and what follows; here the ranges are snapshot at an
epoch boundary, uploads run in threads beside the epochs, manifests and log entries are written,
and output is published. Called by the run under its epoch lock; threads hand their results over
and touch nothing else.
"""

import datetime
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from moorage.driver.background import Background
from moorage.driver.directories import make_last_part
from moorage.driver.manifests import Boundary, ManifestMaker, handles_of
from moorage.driver.output import OutputKeeper
from moorage.driver.requests import SavepointRequest, SavepointView
from moorage.driver.savepoints import ClaimedSavepoints
from moorage.driver.settings import JobSettings
from moorage.driver.snapshot_writer import CheckpointReport, SnapshotWriter, Work
from moorage.engine.fleet import FleetUpload, RangeFleet
from moorage.graph import JobGraph
from moorage.sinks import Committable
from moorage_state.coordinator import (
    AcknowledgeCheckpoint,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureManager,
    CheckpointFailureReason,
    CheckpointFuture,
    CheckpointMetrics,
    CheckpointRetentionPolicy,
    CompletedCheckpointStore,
    CountingIdCounter,
    DeclineCheckpoint,
    DiscardCheckpoint,
    Effect,
    FailJob,
    FinalizeCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    SavepointFormat,
    TaskId,
    ToleranceAction,
    ToleranceExceeded,
    TriggerTasks,
)
from moorage_state.errors import (
    Bug,
    CorruptState,
    Fenced,
    LocalDiskError,
    MoorageError,
    Retryable,
    StaleLease,
    UserError,
    VersionGone,
)
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Manifest,
    SavepointStore,
    Swept,
    UnderWay,
    sweep,
)

__all__ = ["Boundary", "CheckpointReport", "Checkpointer"]

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 0.05
_SWEEP_SECONDS = 3600.0
_STOPPED = (
    CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
    CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
)
_DRIVER = TaskId("", 0)
"""Stands for the driver, so that a job without state has a task to wait for as well."""
_FATAL = (Fenced, Bug, CorruptState, LocalDiskError, VersionGone)


@dataclass(frozen=True, slots=True)
class _Staged:
    epoch: int
    uid: str
    items: list[Committable]


class Checkpointer:
    """Checkpoints of one run.

    Args:
        run: the number of the run under the writer's fence.
        base: the checkpoint of this lineage that the run was restored from, if any: what it holds
            is not uploaded again.
        epoch: the epoch the run begins after.
        output: publishes what a completed checkpoint covers.
        tell: takes sentences for people.
        clock: seconds on a clock that only goes forward.
    """

    def __init__(
        self,
        settings: JobSettings,
        graph: JobGraph,
        store: CheckpointStore,
        writer: LogWriter,
        fleet: RangeFleet,
        run: int,
        base: Manifest | None,
        *,
        epoch: int,
        output: OutputKeeper,
        tell: Callable[[str], None] = _log.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._graph = graph
        self._store = store
        self._writer = writer
        self._fleet = fleet
        self._run = run
        self._output = output
        self._tell = tell
        self._clock = clock
        manifests = ManifestMaker(settings, graph, writer, run)
        self._snapshots = SnapshotWriter(graph, store, writer, fleet, manifests, clock)
        self._background = Background()
        self._claimed = ClaimedSavepoints(writer, settings.retain)
        self._base = handles_of(base) if base is not None else {}
        self._base_id = base.checkpoint_id if base is not None else 0
        # After a restore from elsewhere this lineage has no checkpoint of that epoch yet.
        self._covered_epoch = epoch if base is not None or epoch == 0 else epoch - 1
        self._staged: list[_Staged] = []
        self._staged_at: dict[int, list[_Staged]] = {}
        self._done: list[int] = []
        self._works: dict[int, Work] = {}
        self._reports: list[CheckpointReport] = []
        self._last_error: MoorageError | None = None
        self._next_sweep = clock()
        self.last: CheckpointReport | None = None
        self.broken = False
        self._coordinator = self._new_coordinator()
        self._coordinator.start_checkpoint_scheduler()

    def _new_coordinator(self) -> CheckpointCoordinator:
        settings = self._settings
        tasks = [_DRIVER] + [
            TaskId(operator.uid, i)
            for operator in self._graph.operators
            for i in range(settings.parallelism)
        ]
        return CheckpointCoordinator(
            self._writer.lineage,
            checkpoint_config(settings),
            tasks,
            tasks,
            tasks,
            CountingIdCounter(self._store.next_id(self._writer.entries)),
            CompletedCheckpointStore(settings.retain),
            CheckpointFailureManager(settings.tolerable_failures),
            self._clock,
            wall_clock=time.time,
        )

    # -- from the run ----------------------------------------------------------------------

    def staged(self, epoch: int, committables: Mapping[str, list[Committable]]) -> None:
        """Take note of what a committed epoch staged; the next checkpoint covers it."""
        self._staged += [_Staged(epoch, uid, items) for uid, items in committables.items()]

    def poll(self, epoch: int, at: Callable[[], Boundary]) -> list[CheckpointReport]:
        """At a boundary: take in what threads did, and do what is due. Returns what completed.

        Args:
            epoch: the last committed epoch.
            at: what a checkpoint that begins now holds.

        Raises:
            Fenced: another driver took over.
            MoorageError: the run cannot go on, or too many checkpoints failed in a row.
        """
        self._background.take()
        if epoch > self._covered_epoch or self._works:
            self._coordinator.on_time(self._clock())
        self._carry_out(at)
        reports, self._reports = self._reports, []
        return reports

    def savepoint(self, request: SavepointRequest, at: Callable[[], Boundary]) -> None:
        """Begin a savepoint; the request is answered when it is complete or failed."""
        savepoint_format = SavepointFormat(request.format)
        try:
            location = self._settings.savepoint_url(request.name)
            make_last_part("state.savepointDir", self._settings.savepoint_dir)
            SavepointStore(location, create=True).check_empty()
            if request.stop:
                future = self._coordinator.trigger_synchronous_savepoint(
                    terminate=False, location=location, savepoint_format=savepoint_format
                )
            else:
                future = self._coordinator.trigger_savepoint(location, savepoint_format)
        except MoorageError as error:
            request.answer(error)
            return
        future.add_done_callback(partial(self._answer, request))
        self._carry_out(at)

    def wait(self, at: Callable[[], Boundary]) -> list[CheckpointReport]:
        """Wait for all that is under way; their own timeouts end the wait."""
        reports: list[CheckpointReport] = []
        while self._works or self._coordinator.pending_ids:
            self._background.take(_WAIT_SECONDS)
            self._coordinator.on_time(self._clock())
            self._carry_out(at)
            reports, self._reports = reports + self._reports, []
        return reports

    def finish(
        self, epoch: int, at: Callable[[], Boundary], *, finished: bool = False
    ) -> list[CheckpointReport]:
        """Take the last checkpoint of the run, if anything happened since the one before.

        Raises:
            MoorageError: it did not complete.
        """
        self._coordinator.stop_checkpoint_scheduler()
        reports = self.wait(at)
        if not finished and epoch <= self._covered_epoch:
            return reports
        self._last_error = None
        future = self._coordinator.trigger_checkpoint()
        self._carry_out(at)
        reports += self.wait(at)
        if not future.done or future.exception() is not None:
            raise self._failure(future)
        return reports

    def go_on(self) -> None:
        """Take periodic checkpoints again: the job was to stop and does not."""
        self._coordinator.start_checkpoint_scheduler()

    def abandon(self) -> None:
        """The run ends: when this returns, what is under way completes now or never."""
        self._coordinator.suspend()
        for checkpoint_id in list(self._works):
            self._fleet.aborted(checkpoint_id)
        self._background.join()
        # Who waits for a savepoint that is in place already hears of it.
        with suppress(Exception):
            self._background.take()

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint or savepoint is being taken."""
        return bool(self._works)

    # -- effects ---------------------------------------------------------------------------

    def _carry_out(self, at: Callable[[], Boundary]) -> None:
        while effects := self._coordinator.drain():
            for effect in effects:
                try:
                    self._do(effect, at)
                except BaseException:
                    # The effects after it are lost: the run must not go on.
                    self.broken = True
                    raise

    def _do(self, effect: Effect, at: Callable[[], Boundary]) -> None:
        match effect:
            case TriggerTasks():
                self._trigger(effect, at)
            case FinalizeCheckpoint():
                self._begin_finalizing(effect)
            case NotifyCheckpointComplete():
                self._completed(effect.checkpoint_id)
            case NotifyCheckpointAborted():
                self._aborted(effect.checkpoint_id)
            case DiscardCheckpoint():
                # What may be deleted is for the log to say: `_retire` and the sweep.
                self._aborted(effect.checkpoint_id)
                self._coordinator.discarded(effect.checkpoint_id)
            case ToleranceExceeded():
                self._tell(f"more checkpoints failed in a row than are tolerated: {effect.cause}")
            case FailJob():
                if self._settings.fail_on_tolerance:
                    raise _underneath(effect.cause)
                self._tell(f"the job goes on without its savepoint: {effect.cause}")
            case _:
                pass  # times, and files that came too late: the sweep finds those

    def _trigger(self, effect: TriggerTasks, at: Callable[[], Boundary]) -> None:
        """The synchronous part, then the upload in a thread."""
        checkpoint_id, started = effect.checkpoint_id, self._clock()
        incremental = self._settings.incremental and effect.options.checkpoint_type.shares_files
        try:
            boundary = at()
            pause = self._fleet.snapshot(checkpoint_id)
        except MoorageError as error:
            self._fleet.aborted(checkpoint_id)
            if isinstance(error, _FATAL):
                raise
            reason = CheckpointFailureReason.TASK_CHECKPOINT_FAILURE
            self._note(error, checkpoint_id)
            self._coordinator.trigger_failed(checkpoint_id, reason, error)
            if isinstance(error, (Retryable, StaleLease)):
                self._fleet.recover()
            return
        work = Work(
            checkpoint_id,
            effect.options,
            boundary,
            pause,
            started,
            self._base_id if incremental else 0,
            self._base if incremental else {},
        )
        self._works[checkpoint_id] = work
        # Kept for it, as a newer checkpoint may be the first to publish some of it.
        self._staged_at[checkpoint_id] = list(self._staged)
        self._coordinator.triggered(checkpoint_id)
        self._background.run(
            f"upload-{checkpoint_id}",
            partial(self._snapshots.upload, work),
            partial(self._uploaded, work),
        )

    def _uploaded(self, work: Work, result: FleetUpload | BaseException) -> None:
        """Every range acknowledges, or one declines for all."""
        job, checkpoint_id = self._writer.lineage, work.checkpoint_id
        if isinstance(result, BaseException):
            error = self._survivable(work, result)
            reason = CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
            decline = DeclineCheckpoint(job, _DRIVER, checkpoint_id, reason, str(error))
            self._coordinator.receive_decline_message(decline)
            return
        work.uploaded = result
        seconds = self._clock() - work.started
        acknowledge = self._coordinator.receive_acknowledge_message
        for uid, handles in result.handles.items():
            for i, handle in enumerate(sorted(handles, key=lambda handle: handle.start)):
                metrics = CheckpointMetrics(
                    work.pause_seconds, seconds, full_size=handle.bytes_total
                )
                task = TaskId(uid, i)
                acknowledge(AcknowledgeCheckpoint(job, task, checkpoint_id, metrics, handle))
        metrics = CheckpointMetrics(async_duration=seconds, size=result.bytes_written)
        acknowledge(AcknowledgeCheckpoint(job, _DRIVER, checkpoint_id, metrics))

    def _begin_finalizing(self, effect: FinalizeCheckpoint) -> None:
        work = self._works[effect.checkpoint_id]
        covered = max((e for e in self._done if e <= work.boundary.epoch), default=-1)
        for staged in self._staged_at.pop(work.checkpoint_id, []):
            if staged.epoch > covered:
                work.committables.setdefault(staged.uid, []).extend(staged.items)
        self._background.run(
            f"finalize-{work.checkpoint_id}",
            partial(self._snapshots.finalize, work),
            partial(self._finalized, effect, work),
        )

    def _finalized(
        self, effect: FinalizeCheckpoint, work: Work, result: str | BaseException
    ) -> None:
        if isinstance(result, BaseException):
            error = self._survivable(work, result)
            self._coordinator.finalize_failed(work.checkpoint_id, error)
            return
        completed = effect.completed(time.time(), result, work.report)
        if work.is_savepoint:
            # Tasks and sinks hear nothing of it: it commits no output.
            self._works.pop(work.checkpoint_id, None)
            self._fleet.aborted(work.checkpoint_id)  # its local copy: no recovery begins from it
            self._tell(
                f"savepoint completed: {result} format={work.options.format.value} "
                f"epoch={work.boundary.epoch} bytes={work.report.bytes_total if work.report else 0}"
            )
        self._coordinator.finalized(work.checkpoint_id, completed)

    # -- endings ---------------------------------------------------------------------------

    def _completed(self, checkpoint_id: int) -> None:
        work = self._works.pop(checkpoint_id, None)
        if work is None:
            return  # a savepoint that the job stops with
        report = work.report
        if report is None or work.uploaded is None:
            raise Bug(f"a checkpoint completed without a result: checkpoint={checkpoint_id}")
        self.last = report
        self._covered_epoch = max(self._covered_epoch, report.epoch)
        self._staged = [staged for staged in self._staged if staged.epoch > report.epoch]
        self._done = [e for e in self._done if self._works] + [report.epoch]
        self._fleet.complete(checkpoint_id, report.epoch, work.uploaded.handles)
        self._base, self._base_id = work.uploaded.handles, checkpoint_id
        self._writer.refresh()  # a driver that was stalled must not publish over its successor
        self._output.publish(checkpoint_id, work.committables)
        self._retire(report)
        self._reports.append(report)

    def _aborted(self, checkpoint_id: int) -> None:
        self._staged_at.pop(checkpoint_id, None)
        if self._works.pop(checkpoint_id, None) is not None:
            self._fleet.aborted(checkpoint_id)

    def _retire(self, newest: CheckpointReport) -> None:
        """Let go of old checkpoints; what cannot be deleted now is taken up the next time."""
        pinned = {self._base_id, *(work.base_id for work in self._works.values())} - {0}
        try:
            self._store.retire(self._writer, self._settings.retain, pinned=pinned)
            self._claimed.release()
            self._output.retire(self._run, newest.checkpoint_id, newest.epoch)
        except Retryable as error:
            _log.warning("old checkpoints could not be retired, will try again: %s", error)
        if self._clock() >= self._next_sweep:
            self._sweep(pinned)

    def _sweep(self, pinned: Collection[int]) -> None:
        """Delete, beside the epochs, what crashes and aborted uploads have left for a day."""
        self._next_sweep = self._clock() + _SWEEP_SECONDS
        now = datetime.datetime.now(datetime.UTC)
        under_way = UnderWay(checkpoint_ids=tuple(self._works), pinned=tuple(pinned), since=now)
        action = partial(sweep, self._store.objects, self._writer, now=now, under_way=under_way)
        self._background.run("sweep", action, _swept, awaited=False)

    def _survivable(self, work: Work, error: BaseException) -> MoorageError:
        """The error, if the job can go on after it; else it is raised.

        A savepoint is a person's wish: whatever goes wrong with it, the job runs on, unless
        another driver took over.
        """
        known = isinstance(error, MoorageError) and not isinstance(error, (Fenced, Bug))
        if isinstance(error, Fenced) or not (known or work.is_savepoint):
            raise error
        if not isinstance(error, MoorageError):
            error = Bug(f"a savepoint failed unexpectedly: {type(error).__name__}: {error}")
        self._note(error, work.checkpoint_id)
        return error

    def _answer(self, request: SavepointRequest, future: CheckpointFuture) -> None:
        error = future.exception()
        if error is not None:
            if error.reason in _STOPPED:
                request.answer(
                    UserError(
                        f"the job was stopped before the savepoint was complete: "
                        f"name={request.name}; to end a job with one use --stop"
                    )
                )
                return
            declined = error.reason is CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
            cause = self._last_error if declined else None
            request.answer(cause or _underneath(error))
            return
        done = future.result()
        report: CheckpointReport = done.payload
        request.answer(
            SavepointView(
                name=request.name,
                url=done.external_pointer,
                checkpoint_id=report.checkpoint_id,
                epoch=report.epoch,
                bytes_total=report.bytes_total,
                duration_seconds=report.seconds,
            )
        )

    def _note(self, error: MoorageError, checkpoint_id: int) -> None:
        self._last_error = error
        _log.error("checkpoint failed: checkpoint=%d: %s", checkpoint_id, error)

    def _failure(self, future: CheckpointFuture) -> MoorageError:
        """Why the last checkpoint did not complete."""
        error = future.exception()
        if error is not None and self._last_error is None:
            return _underneath(error)
        return self._last_error or Retryable(
            "the last checkpoint did not complete; the next run continues from the one before"
        )


def checkpoint_config(settings: JobSettings) -> CheckpointConfig:
    """The coordinator's settings for a job."""
    return CheckpointConfig(
        interval=settings.interval_seconds,
        timeout=settings.timeout_seconds,
        max_concurrent=settings.max_concurrent,
        min_pause=settings.min_pause_seconds,
        tolerable_failures=settings.tolerable_failures,
        retention=CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
        on_tolerance_exceeded=(
            ToleranceAction.FAIL_JOB if settings.fail_on_tolerance else ToleranceAction.DEGRADE
        ),
        coalesce_periodic=True,
    )


def _swept(result: Swept | BaseException) -> None:
    if isinstance(result, Fenced) or not isinstance(result, (Swept, MoorageError)):
        raise result
    if isinstance(result, MoorageError):
        _log.warning("the checkpoint directory was not swept, will try again: %s", result)
    elif result.objects:
        count, size = len(result.objects), result.bytes
        _log.info("swept the checkpoint directory: objects=%d bytes=%d", count, size)


def _underneath(error: BaseException) -> MoorageError:
    """The error that a person should see."""
    cause = getattr(error, "cause", None)
    found = cause if isinstance(cause, MoorageError) else error
    return found if isinstance(found, MoorageError) else Bug(f"{type(error).__name__}: {error}")
