"""Checkpoints and savepoints of a running job: the coordinator's decisions, carried out.

The coordinator decides what is taken when and what follows; here the ranges are snapshot at an
epoch boundary, uploads run in threads beside the epochs, manifests and log entries are written,
and output is published. Called by the run under its epoch lock, or in the middle of an epoch, when
nobody else is in here; threads hand their results over and touch nothing else.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from moorage.api.graph import JobGraph
from moorage.api.sinks import Committable
from moorage.driver.coordination import (
    Place,
    Requesters,
    acknowledge,
    decline,
    new_coordinator,
    reason_of_part,
    trigger_savepoint,
    underneath,
)
from moorage.driver.housekeeping import Background, Housekeeper
from moorage.driver.manifests import (
    LOG_BASE,
    Boundary,
    CheckpointReport,
    ManifestMaker,
    SnapshotWriter,
    Staged,
    Work,
)
from moorage.driver.materialization import Materialization
from moorage.driver.output import OutputKeeper, PendingSavepoint
from moorage.driver.refusals import RestorePointIncompatible, RestorePointNotFound
from moorage.driver.reporter import Reporter
from moorage.driver.requests import CheckpointRequest, JobRequest, SavepointRequest
from moorage.driver.settings import JobSettings
from moorage.engine.fleet import FleetUpload, RangeFleet
from moorage_state.coordinator import (
    CheckpointFailureReason,
    CheckpointIdCounter,
    CompletedCheckpointStore,
    Effect,
    FailJob,
    FinalizeCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
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
from moorage_state.server.operations import COPY
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    SnapshotRoot,
    UnderWay,
)

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 0.05
_UPLOADS_END_SECONDS = 5.0
"""What uploads that were cancelled may take to notice; what they write is swept in any case."""
_AFTER_FAILURE_SECONDS = 1.0
"""Before epochs get a checkpoint of their own again, if one failed."""
_LAST_CHORES_SECONDS = 10.0
"""How long the end of a run waits for deletions; the next run takes up what is left."""
_FATAL = (Fenced, Bug, CorruptState, VersionGone)
# After these a range may be out of work: it is opened again before the next epoch.
_RECOVERED = (Retryable, StaleLease, LocalDiskError)


class Checkpointer:
    """Checkpoints of one run."""

    def __init__(
        self,
        settings: JobSettings,
        graph: JobGraph,
        store: CheckpointStore,
        writer: LogWriter,
        fleet: RangeFleet,
        run: int,
        *,
        completed: CompletedCheckpointStore,
        housekeeper: Housekeeper,
        output: OutputKeeper,
        reporter: Reporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._graph = graph
        self._store = store
        self._writer = writer
        self._fleet = fleet
        self._run = run
        self._output = output
        self._reporter = reporter
        self._clock = clock
        manifests = ManifestMaker(settings, graph, writer, run, reporter.progress.graph)
        self._snapshots = SnapshotWriter(
            graph, store, writer, fleet, manifests, clock, reporter.saving
        )
        self._background = Background()
        self._materialization = (
            Materialization(settings.changelog, fleet, self._background, reporter, clock)
            if settings.changelog is not None
            else None
        )
        self._base: SnapshotRoot | None = None
        self._covered_epoch = 0
        self._staged: list[Staged] = []
        self._done: list[int] = []
        self._works: dict[int, Work] = {}
        self._reports: list[CheckpointReport] = []
        self.last: CheckpointReport | None = None
        self.broken = False
        self._last_failure = float("-inf")
        self._requesters = Requesters(settings, writer, reporter)
        self._first_id = store.next_id(writer.entries)
        self._ids = CheckpointIdCounter(self._first_id)
        self._coordinator = new_coordinator(
            settings, graph, writer.lineage, completed, self._ids, reporter, clock
        )
        self._completed_store = completed
        self._housekeeper = housekeeper

    # -- from the run ----------------------------------------------------------------------

    def restore(self, *, must_exist: bool) -> SnapshotRoot | None:
        """What the run begins from; None for nothing.

        Args:
            must_exist: to begin with nothing would lose state.

        Raises:
            RestorePointNotFound: there is nothing, and must be.
            RestorePointIncompatible: it has state that the job has no operator for.
        """
        policy = self._settings.restore
        try:
            found = self._coordinator.restore_latest_checkpointed_state(
                error_if_no_checkpoint=must_exist,
                all_or_nothing_state=not policy.allow_non_restored,
            )
        except UserError as error:
            if self._completed_store.latest is None:
                raise RestorePointNotFound(_nothing_there(self._settings)) from error
            raise RestorePointIncompatible(*error.args) from error
        if found is None:
            return None
        manifest: SnapshotRoot = found.payload
        own = manifest.lineage == self._writer.lineage
        if own and manifest.checkpoint_id >= self._first_id:
            # Of a log that was set back a copy may have a higher one than it names.
            self._ids.pass_over(manifest.checkpoint_id)
        if self._coordinator.base_id:
            self._base, self._covered_epoch = manifest, manifest.epoch
            if self._materialization is not None:
                self._materialization.restored(manifest.extra.get(LOG_BASE))
        else:
            # After a restore from elsewhere this lineage has no checkpoint of that epoch yet.
            self._covered_epoch = max(0, manifest.epoch - 1)
        return manifest

    def staged(self, epoch: int, committables: Mapping[str, list[Committable]]) -> None:
        """Take note of what a committed epoch staged; the next checkpoint covers it."""
        self._staged += [Staged(epoch, uid, items) for uid, items in committables.items()]

    def poll(self, epoch: int, at: Callable[[], Boundary]) -> list[CheckpointReport]:
        """At a boundary: take in what threads did, and do what is due. Returns what completed.

        Args:
            at: what a checkpoint that begins now holds.

        Raises:
            Fenced: another driver took over.
            MoorageError: the run cannot go on, or too many checkpoints failed in a row.
        """
        self._background.take()
        # So that those that completed no longer stand in the way of the next one.
        self._carry_out(at)
        # Without a new epoch a periodic checkpoint would be the one before once more.
        if epoch > self._covered_epoch or self._works or self._lists_next:
            self._coordinator.on_time(self._clock())
        elif self._writer.fenced:
            self._writer.settle()  # raises: nothing else would, while there is nothing to do
        if self._commits_now(epoch):
            self._coordinator.trigger_checkpoint()
        if self._materialization is not None and not self._works and epoch > self._covered_epoch:
            self._materialization.ahead(epoch)
        self._carry_out(at)
        reports, self._reports = self._reports, []
        return reports

    def within_epoch(self) -> None:
        """In the middle of an epoch: let what is uploaded become a checkpoint beside it.

        Nothing begins, ends or fails before the boundary.
        """
        for work in self._works.values():
            self._acknowledge(work)
        self._carry_out(_no_boundary)

    def _commits_now(self, epoch: int) -> bool:
        """Whether the epochs since the last checkpoint get one of their own at once."""
        wanted = self._settings.publishes_commits or self._fleet.crowded
        if not wanted or epoch <= self._covered_epoch:
            return False
        failed = self._clock() - self._last_failure < _AFTER_FAILURE_SECONDS
        return not (self._works or self._coordinator.pending_ids or failed)

    def checkpoint(self, request: CheckpointRequest, at: Callable[[], Boundary]) -> None:
        """Begin a checkpoint that somebody asked for, as soon as another may begin."""
        request.running()
        future = self._coordinator.trigger_checkpoint()
        future.add_done_callback(partial(self._requesters.answer, request))
        self._carry_out(at)

    def savepoint(self, request: SavepointRequest, at: Callable[[], Boundary]) -> None:
        """Begin a savepoint; the request is answered when it is complete or failed.

        One that an earlier driver began for the same request is carried on with; one that it
        completed is the answer.
        """
        request.running()
        self._background.run(
            f"place-{request.name}",
            self._requesters.finding_place(request),
            partial(self._begin_savepoint, request, at),
        )

    def wait(
        self, at: Callable[[], Boundary], give_up: Callable[[], bool] = lambda: False
    ) -> list[CheckpointReport]:
        """Wait for all that is under way; their own timeouts end the wait.

        Args:
            give_up: asked all the time whether to abort what can be aborted.
        """
        reports: list[CheckpointReport] = []
        while self._works or self._coordinator.pending_ids or self._requesters.finds_place:
            self._background.take(_WAIT_SECONDS)
            self._coordinator.on_time(self._clock())
            if give_up():
                self._coordinator.stop_checkpoint_scheduler()
            self._carry_out(at)
            reports, self._reports = reports + self._reports, []
        return reports

    def finish(
        self, epoch: int, at: Callable[[], Boundary], *, finished: bool = False
    ) -> list[CheckpointReport]:
        """Take the last checkpoint of the run, if anything happened since the one before.

        Raises MoorageError: it did not complete.
        """
        self._coordinator.stop_checkpoint_scheduler()
        self._requesters.give_up_places()
        reports = self.wait(at)
        if not finished and epoch <= self._covered_epoch:
            return reports
        self._requesters.forget()
        future = self._coordinator.trigger_checkpoint()
        self._carry_out(at)
        reports += self.wait(at)
        if not future.done or future.exception() is not None:
            raise self._requesters.why(future)
        return reports

    def finish_chores(self, *, job_finished: bool) -> None:
        """Wait for what follows the last checkpoint; not for long, the next run takes it up.

        Args:
            job_finished: then no error of it changes how the job ended.
        """
        try:
            for _ in range(int(_LAST_CHORES_SECONDS / _WAIT_SECONDS)):
                if not self._housekeeper.busy:
                    break
                self._background.take(_WAIT_SECONDS)
        except MoorageError as error:
            if not job_finished:
                raise
            _log.warning("old checkpoints were not let go: %s", error)

    def begin(self) -> None:
        """The run is restored: take checkpoints from here on, and let old ones go."""
        self._housekeeper.serve(
            self._run, self._background, self._unfinished, self._pending_savepoints
        )
        self.go_on()

    def go_on(self) -> None:
        """Take periodic checkpoints, also again: the job was to stop and does not."""
        if not self._settings.in_one_epoch:
            self._coordinator.start_checkpoint_scheduler()

    def abandon(self, *, job_ends: bool = False) -> None:
        """The run ends: when this returns, what is under way has completed or never will.

        Args:
            job_ends: there is no next run, so nobody waits for uploads that lead to nothing.
        """
        # First: whatever still answers must find a coordinator that takes no answer.
        self._coordinator.suspend()
        self._fleet.abandon([*self._works, *self._unlisted])
        self._background.join(0.0 if job_ends else _UPLOADS_END_SECONDS)
        # Who waits for a savepoint that is in place already hears of it.
        with suppress(Exception):
            self._background.take()

    def take_suspended(self) -> list[JobRequest]:
        """What was asked for and given up, for no fault of its own: the run ends, or the job."""
        return self._requesters.take_suspended()

    @property
    def builds(self) -> bool:
        """Whether the next checkpoint lists a log that begins with what the restore point lists."""
        return self._base is not None and self._materialization is not None

    @property
    def _unlisted(self) -> tuple[int, ...]:
        return self._materialization.unlisted if self._materialization else ()

    @property
    def _lists_next(self) -> bool:
        return self._materialization is not None and self._materialization.waits

    @property
    def next_id(self) -> int:
        """The id of the next checkpoint or savepoint that begins."""
        return self._ids.next_id

    @property
    def takes_savepoint(self) -> bool:
        """Whether a savepoint is being taken, which the end of the run would undo."""
        takes = any(work.is_savepoint for work in self._works.values())
        return takes or self._requesters.finds_place

    def _unfinished(self) -> UnderWay:
        """What is being taken, and what that, the next one or a range reads; any thread may ask."""
        works = list(self._works.values())  # in one step, and before the base that follows them
        built = {work.base.checkpoint_id for work in works if work.base}
        bases = {self._coordinator.base_id, *built, *self._fleet.reads_from} - {0}
        ids = (work.checkpoint_id for work in works)
        return UnderWay((*ids, *self._unlisted), tuple(bases), self._fleet.reads_elsewhere)

    def _pending_savepoints(self) -> list[PendingSavepoint]:
        """What savepoints under way cover: a checkpoint that was faster may publish it."""
        works = [work for work in self._works.values() if work.is_savepoint]
        fence, run = self._writer.fence, self._run
        return [
            PendingSavepoint(fence, run, w.checkpoint_id, w.boundary.epoch, _by_sink(w.staged))
            for w in works
        ]

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
            case ToleranceExceeded():
                self._reporter.message(
                    f"more checkpoints failed in a row than are tolerated: {effect.cause}"
                )
            case FailJob():
                if self._settings.fail_on_tolerance:
                    raise underneath(effect.cause)
                self._reporter.message(f"the job goes on without its savepoint: {effect.cause}")
            case _:
                pass  # times: `poll` comes often enough

    def _begin_savepoint(
        self, request: SavepointRequest, at: Callable[[], Boundary], result: Place | BaseException
    ) -> None:
        """At a boundary: it is known where the savepoint is to lie, or that it lies there."""
        try:
            location = self._requesters.placed(request, result)
            if location is None:
                return
            future = trigger_savepoint(self._coordinator, request, location)
        except MoorageError as error:
            request.answer(error)
            return
        future.add_done_callback(partial(self._requesters.answer, request))
        self._carry_out(at)

    def _trigger(self, effect: TriggerTasks, at: Callable[[], Boundary]) -> None:
        """The synchronous part, then the upload in a thread."""
        checkpoint_id, started = effect.checkpoint_id, self._clock()
        # A savepoint is whole in any case.
        log = None if effect.options.checkpoint_type.is_savepoint else self._materialization
        base_id = effect.base_id if self._settings.incremental or log else 0
        base = self._base if base_id else None
        way = log.way(checkpoint_id, builds=base is not None) if log else COPY
        reason = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
        try:
            boundary = at()
            reason = CheckpointFailureReason.TASK_CHECKPOINT_FAILURE
            pause = self._fleet.snapshot(checkpoint_id, way, base.checkpoint_id if base else 0)
        except MoorageError as error:
            self._fleet.aborted(checkpoint_id)
            if log is not None:
                log.aborted(checkpoint_id)
            if isinstance(error, _FATAL):
                raise
            self._requesters.note(error, checkpoint_id)
            reason = reason_of_part(error, reason)
            self._coordinator.trigger_failed(checkpoint_id, reason, error)
            if isinstance(error, _RECOVERED):
                self._fleet.recover()
            return
        work = Work(
            checkpoint_id,
            effect.options,
            boundary,
            pause,
            started,
            base,
            attempt=self._requesters.attempt_at(effect.options.target_location),
            staged=list(self._staged),
            log_base_ms=log.base_ms if log else None,
        )
        self._works[checkpoint_id] = work
        self._coordinator.triggered(checkpoint_id)
        self._background.run(
            f"upload-{checkpoint_id}",
            partial(self._snapshots.upload, work),
            partial(self._uploaded, work),
        )

    def _uploaded(self, work: Work, result: FleetUpload | BaseException) -> None:
        """Every range acknowledges, or one declines for all."""
        if self._materialization is not None and not work.is_savepoint:
            self._materialization.uploaded(result, self._clock() - work.started)
        if isinstance(result, BaseException):
            error = self._requesters.survivable(work, result)
            decline(self._coordinator, self._writer.lineage, work.checkpoint_id, error)
            return
        self._acknowledge(work)

    def _acknowledge(self, work: Work) -> None:
        """Every range acknowledges, once, if they are all uploaded."""
        if work.uploaded is not None and not work.acknowledged:
            work.acknowledged = True
            acknowledge(self._coordinator, self._writer.lineage, work, work.uploaded)

    def _begin_finalizing(self, effect: FinalizeCheckpoint) -> None:
        work = self._works[effect.checkpoint_id]
        covered = max((e for e in self._done if e <= work.boundary.epoch), default=-1)
        work.committables = _by_sink([one for one in work.staged if one.epoch > covered])
        self._background.run(
            f"finalize-{work.checkpoint_id}",
            partial(self._finalize, work),
            partial(self._finalized, effect, work),
            writes=True,
        )

    def _finalize(self, work: Work) -> str:
        """In a thread: let it exist, then publish what it covers."""
        address = self._snapshots.finalize(work)
        # Published before a newer one may exist: that holds only what came since, and a restore
        # publishes again what the restored one holds, and nothing of those before it.
        if not work.is_savepoint:
            try:
                # A driver that was stalled must not publish over its successor.
                self._writer.refresh()
                self._output.publish(work.checkpoint_id, work.committables)
            except BaseException as error:  # noqa: BLE001 - raised by who takes the result
                work.unpublished = error
        return address

    def _finalized(
        self, effect: FinalizeCheckpoint, work: Work, result: str | BaseException
    ) -> None:
        if isinstance(result, BaseException):
            error = self._requesters.survivable(work, result)
            self._coordinator.finalize_failed(work.checkpoint_id, error)
            return
        completed = effect.completed(time.time(), result, work.report)
        if work.is_savepoint:
            # Tasks and sinks hear nothing of it: it commits no output.
            self._works.pop(work.checkpoint_id, None)
            self._fleet.aborted(work.checkpoint_id)  # its local copy: no recovery begins from it
            self._reporter.message(
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
        if checkpoint_id == self._coordinator.base_id:
            self._base = work.manifest
        if self._materialization is not None:
            self._materialization.completed(checkpoint_id)
        if work.unpublished is not None:
            raise work.unpublished
        self._housekeeper.after(report)
        self._reports.append(report)

    def _aborted(self, checkpoint_id: int) -> None:
        work = self._works.pop(checkpoint_id, None)
        self._last_failure = self._clock()
        if work is not None:
            work.aborted = True
            self._fleet.aborted(checkpoint_id)
            if self._materialization is not None and not work.is_savepoint:
                self._materialization.aborted(checkpoint_id)


def _by_sink(staged: Sequence[Staged]) -> dict[str, list[Committable]]:
    """The same, by the uids of the sinks."""
    items: dict[str, list[Committable]] = {}
    for one in staged:
        items.setdefault(one.uid, []).extend(one.items)
    return items


def _no_boundary() -> Boundary:
    raise Bug("a checkpoint cannot begin in the middle of an epoch")


def _nothing_there(settings: JobSettings) -> str:
    return (
        f"there is no checkpoint to go on from, and to begin with nothing would lose state: "
        f"job={settings.name} checkpointDir={settings.checkpoint_dir}; see what there is with "
        f"moorage snapshots ls JOB.yaml, and name that in restore.path with a higher "
        f"restore.nonce; or set restore.mode: Empty to begin with nothing"
    )
