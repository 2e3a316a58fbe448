"""The coordinator itself: what requests, messages, answers and time do to checkpoints.

What can be decided without the others is in the modules beside: when one begins in `trigger`, all
that follows in `lifecycle`, and which failures count in `failures`.
"""

import random
from collections.abc import Callable, Collection, Iterable

from moorage_state.coordinator.checkpoint import (
    AcknowledgeCheckpoint,
    CheckpointFuture,
    CompletedCheckpoint,
    DeclineCheckpoint,
    MessageOutcome,
    PendingCheckpoint,
    Phase,
    TaskId,
)
from moorage_state.coordinator.completed import CompletedCheckpointStore
from moorage_state.coordinator.effects import Effect
from moorage_state.coordinator.failures import (
    CheckpointException,
    CheckpointFailureManager,
    CheckpointFailureReason,
    reason_of,
)
from moorage_state.coordinator.lifecycle import CheckpointTracker, Lifecycle
from moorage_state.coordinator.properties import (
    CheckpointConfig,
    CheckpointProperties,
    JobEnd,
    SavepointFormat,
)
from moorage_state.coordinator.trigger import (
    CheckpointIdCounter,
    Launcher,
    PeriodicTrigger,
    TriggerRequest,
)
from moorage_state.errors import AlreadyExists, Bug, UserError


class CheckpointCoordinator:
    """Coordinates the checkpoints of one run of a job. See the package for how to use it.

    Not for several threads at once: the driver calls it under a lock of its own.

    Args:
        job_id: messages of other jobs are not taken.
        tasks_to_trigger: who is told to begin.
        tasks_to_wait_for: whose acknowledgements make it complete.
        tasks_to_commit_to: who hears that it is complete, aborted or subsumed.
        clock: seconds on a clock that only goes forward.
        wall_clock: seconds since 1970, for timestamps and calendars; `clock` if not given.
        tracker: hears of each checkpoint.
        next_time: the first time of a calendar after a given one, both in seconds since 1970; it
            takes the place of the interval.
        ready: called before a checkpoint begins; a reason it returns turns the request away.
        rng: where the delay of the first periodic checkpoint comes from.
    """

    def __init__(  # noqa: PLR0917 - the signature that people know
        self,
        job_id: str,
        config: CheckpointConfig,
        tasks_to_trigger: Iterable[TaskId],
        tasks_to_wait_for: Iterable[TaskId],
        tasks_to_commit_to: Iterable[TaskId],
        id_counter: CheckpointIdCounter,
        completed_store: CompletedCheckpointStore,
        failure_manager: CheckpointFailureManager,
        clock: Callable[[], float],
        *,
        wall_clock: Callable[[], float] | None = None,
        tracker: CheckpointTracker,
        next_time: Callable[[float], float] | None = None,
        ready: Callable[[], CheckpointFailureReason | None] = lambda: None,
        rng: random.Random | None = None,
    ) -> None:
        self._job_id = job_id
        self._config = config
        self._to_trigger = tuple(tasks_to_trigger)
        self._to_wait_for = frozenset(tasks_to_wait_for)
        self._clock = clock
        self._wall_clock = wall_clock or clock
        self._store = completed_store
        self._life = Lifecycle(
            tuple(tasks_to_commit_to),
            failure_manager,
            tracker,
            config.on_tolerance_exceeded,
            self._wall_clock,
        )
        self._periodic = PeriodicTrigger(
            config,
            clock,
            self._wall_clock,
            next_time,
            rng or random.Random(),  # noqa: S311 - it spreads load
        )
        self._launcher = Launcher(
            job_id,
            config,
            self._to_trigger,
            self._to_wait_for,
            id_counter,
            self._life,
            self._periodic,
            clock,
            self._wall_clock,
            ready,
        )

    # What it looks like from outside.

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """The checkpoints that have not ended, oldest first."""
        return tuple(self._life.pending)

    @property
    def queued(self) -> tuple[TriggerRequest, ...]:
        """The requests that wait, the next one first."""
        return self._launcher.queued

    @property
    def base_id(self) -> int:
        """The checkpoint whose files the next one may reference; 0 for none. For any thread."""
        return self._life.base_id

    @property
    def next_wake(self) -> float | None:
        """When `on_time` should be called, on the coordinator's clock."""
        if self._life.ended is not None:
            return None
        wakes = [_limit(one) for one in self._life.pending.values() if one.is_abortable]
        if self._periodic.due is not None:
            wakes.append(self._periodic.due)
        return min(wakes, default=None)

    def drain(self) -> list[Effect]:
        """Return what is to be done, in this order, and forget it."""
        return self._life.outbox.drain()

    # Beginning.

    def start_checkpoint_scheduler(self) -> None:
        """Begin to take periodic checkpoints. What is pending or queued is aborted before.

        Raises:
            UserError: there is no schedule.
            Bug: the coordinator has ended.
        """
        self._check_alive()
        self._stop("the scheduler starts")
        self._periodic.start()
        self._settle()

    def stop_checkpoint_scheduler(self) -> None:
        """Take no more periodic checkpoints, and abort what is pending or queued."""
        if self._life.ended is None:
            self._stop("the scheduler was stopped")
        self._settle()

    def trigger_checkpoint(
        self,
        properties: CheckpointProperties | None = None,
        external_location: str | None = None,
        is_periodic: bool = False,  # noqa: FBT001, FBT002 - the signature that people know
    ) -> CheckpointFuture:
        """Ask for a checkpoint; it starts at once, later or never.

        Args:
            properties: of a checkpoint as the job takes them, if not given.
            external_location: where a person wants the savepoint.
            is_periodic: nobody waits for it: it is the first to be left out.

        Raises:
            UserError: a place is given for what is no savepoint.
        """
        properties = properties or self._config.properties
        if external_location is not None and not properties.is_savepoint:
            raise UserError(
                f"only a savepoint has a place of its own: location={external_location}; ask for "
                f"a savepoint, or give no location"
            )
        future = self._launcher.submit(properties, external_location, is_periodic=is_periodic)
        self._settle()
        return future

    def trigger_savepoint(
        self,
        location: str | None = None,
        savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
    ) -> CheckpointFuture:
        """Ask for a savepoint; it does not wait for the pause or for others to complete."""
        properties = CheckpointProperties.for_savepoint(savepoint_format=savepoint_format)
        return self.trigger_checkpoint(properties, location)

    def trigger_synchronous_savepoint(
        self,
        *,
        terminate: bool,
        location: str | None = None,
        savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
    ) -> CheckpointFuture:
        """Ask for the savepoint that the job stops with.

        All other checkpoints are aborted first. If it fails, the periodic ones start again.
        """
        was_running = self._periodic.is_running
        self.stop_checkpoint_scheduler()
        future = self.trigger_checkpoint(
            CheckpointProperties.for_sync_savepoint(
                terminate=terminate, savepoint_format=savepoint_format
            ),
            location,
        )
        if was_running:
            future.add_done_callback(self._go_on_after)
        return future

    def triggered(self, checkpoint_id: int) -> bool:
        """The boundary came and all tasks were told; returns whether it was waited for."""
        checkpoint = self._life.pending.get(checkpoint_id)
        if checkpoint is None or checkpoint.phase is not Phase.TRIGGERING:
            return False
        self._life.run(checkpoint)
        self._proceed()
        return True

    def trigger_failed(
        self,
        checkpoint_id: int,
        reason: CheckpointFailureReason | None = None,
        error: BaseException | None = None,
    ) -> bool:
        """The trigger failed, before its boundary or while tasks were told.

        Without a `reason` it is what `error` stands for. Returns whether that was waited for.
        """
        checkpoint = self._life.pending.get(checkpoint_id)
        if checkpoint is None or not checkpoint.is_abortable:
            return False
        if reason is None:
            default = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
            reason = default if error is None else reason_of(error, default)
        self._life.abort(checkpoint, CheckpointException(reason, str(error or ""), error))
        self._proceed()
        return True

    # Messages of tasks.

    def receive_acknowledge_message(self, message: AcknowledgeCheckpoint) -> MessageOutcome:
        """A task's part is durable."""
        if self._life.ended is not None:
            return MessageOutcome.SHUT_DOWN
        if message.job_id != self._job_id:
            return MessageOutcome.WRONG_JOB
        outcome = self._life.acknowledge(message)
        self._settle()
        return outcome

    def receive_decline_message(self, message: DeclineCheckpoint) -> MessageOutcome:
        """A task does not take part: the checkpoint fails."""
        if self._life.ended is not None:
            return MessageOutcome.SHUT_DOWN
        if message.job_id != self._job_id:
            return MessageOutcome.WRONG_JOB
        checkpoint = self._life.pending.get(message.checkpoint_id)
        if checkpoint is None:
            return self._life.known_end(message.checkpoint_id)
        if message.task not in self._to_wait_for and message.task not in self._to_trigger:
            return MessageOutcome.UNKNOWN_TASK
        if not checkpoint.is_abortable:
            return MessageOutcome.DUPLICATE
        self._life.abort(checkpoint, message.exception, on_task=True)
        self._proceed()
        return MessageOutcome.ACCEPTED

    # Answers of the driver.

    def finalized(self, checkpoint_id: int, completed: CompletedCheckpoint) -> None:
        """The checkpoint is in the log.

        Raises:
            Bug: it was not asked for.
        """
        checkpoint = self._life.take_finalizing(checkpoint_id)
        if completed.checkpoint_id != checkpoint_id:
            raise Bug(f"not the same: asked={checkpoint_id} got={completed.checkpoint_id}")
        self._life.complete(checkpoint, completed)
        self._launcher.last_completion = self._clock()
        if not completed.properties.is_savepoint:
            self._launcher.force_full = False
        self._proceed()

    def finalize_failed(self, checkpoint_id: int, error: BaseException) -> None:
        """The manifest or the log's entry could not be written, as far as is known.

        After `AlreadyExists` a checkpoint begins again under the next id, for who waits for it.

        Raises:
            Bug: it was not asked for.
        """
        checkpoint = self._life.take_finalizing(checkpoint_id)
        reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
        exception = CheckpointException(reason, f"{reason.message}: {error}", error)
        taken = isinstance(error, AlreadyExists) and not checkpoint.properties.is_savepoint
        again = taken and self._life.ended is None
        self._life.fail_finalization(checkpoint, exception, again=again)
        if again:
            self._launcher.submit(
                checkpoint.properties, None, is_periodic=False, future=checkpoint.future
            )
        self._proceed()

    def on_time(self, now: float) -> float | None:
        """Do what is due at `now`; returns when to be called again, None for not at all."""
        if self._life.ended is None:
            for one in [o for o in self._life.pending.values() if o.is_abortable]:
                self._expire(one, now)
            self._launcher.run_queue()
            self._tick(now)
        self._settle()
        return self.next_wake

    # Ending.

    def shutdown(self, status: JobEnd) -> None:
        """The job reached its end, or another driver goes on with it: nothing more begins.

        A finalization under way goes on: answer it. What becomes of the retained checkpoints then
        is for `CompletedCheckpointStore.shutdown`.
        """
        reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
        if not status.is_globally_terminal:
            reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
        if self._life.ended is None:
            self._periodic.stop()
            exception = CheckpointException(reason, f"{reason.message}: status={status.value}")
            self._launcher.abort_queue(exception)
            self._life.end(exception)
        self._settle()

    def suspend(self) -> None:
        """Another driver, or another run, goes on with the job."""
        self.shutdown(JobEnd.SUSPENDED)

    # Restoring.

    def restore_latest_checkpointed_state(
        self,
        error_if_no_checkpoint: bool,  # noqa: FBT001 - the signature that people know
        all_or_nothing_state: bool,  # noqa: FBT001
    ) -> CompletedCheckpoint | None:
        """Return what the run begins from, None for nothing; later checkpoints build on it.

        Args:
            error_if_no_checkpoint: to begin with nothing would lose state.
            all_or_nothing_state: all state of the checkpoint must belong to operators of the job;
                else that of operators which are gone is left behind (Flink's allowNonRestoredState
                is the opposite).

        Raises:
            UserError: there is none and that is an error, or it has state that must not be left.
            Bug: the coordinator has ended.
        """
        self._check_alive()
        latest = self._store.latest
        if latest is None:
            if error_if_no_checkpoint:
                raise UserError(
                    f"no completed checkpoint to restore: job={self._job_id}; name a savepoint, "
                    f"or say that the job may start empty"
                )
            return None
        own = {task.operator for task in self._to_wait_for}
        if all_or_nothing_state:
            check_all_restored(latest.operators, own)
        unclaimed = latest.properties.unclaimed
        self._launcher.force_full = unclaimed
        self._life.base_id = 0 if unclaimed else latest.checkpoint_id
        return latest

    # Underneath.

    def _proceed(self) -> None:
        """Something ended: see what may begin, and tell who waits."""
        self._launcher.run_queue()
        self._settle()

    def _settle(self) -> None:
        self._life.outbox.settle(self.next_wake)

    def _expire(self, checkpoint: PendingCheckpoint, now: float) -> None:
        waits = checkpoint.phase is Phase.TRIGGERING
        if checkpoint.deadline <= now:
            reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
        elif waits and checkpoint.boundary_deadline <= now:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED_TIME_OUT
        else:
            return
        missing = ",".join(f"{task.operator}/{task.subtask}" for task in checkpoint.missing())
        message = f"{reason.message}: checkpoint={checkpoint.checkpoint_id} missing={missing}"
        self._life.abort(checkpoint, CheckpointException(reason, message))

    def _tick(self, now: float) -> None:
        if not self._periodic.fire(now):
            return
        # Where a slow checkpoint keeps one waiting, another would find nothing new.
        waits = any(one.is_periodic for one in self.queued)
        if not (self._config.coalesce_periodic and waits):
            self.trigger_checkpoint(is_periodic=True)

    def _stop(self, why: str) -> None:
        self._periodic.stop()
        reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
        self._abort_everything(CheckpointException(reason, f"{reason.message}: {why}"))

    def _abort_everything(self, exception: CheckpointException) -> None:
        self._launcher.abort_queue(exception)
        self._life.abort_all(exception)

    def _go_on_after(self, future: CheckpointFuture) -> None:
        if future.exception() is not None and self._life.ended is None:
            self.start_checkpoint_scheduler()

    def _check_alive(self) -> None:
        if self._life.ended is not None:
            raise Bug(f"the coordinator has ended: {self._life.ended}")


def check_all_restored(stored: Collection[str], job: Collection[str]) -> None:
    """Refuse a checkpoint with state of operators that the job does not have.

    Args:
        stored: the operators that the checkpoint has state of.
        job: those of the job.

    Raises UserError: naming them, and what to do.
    """
    gone = sorted(set(stored) - set(job))
    if gone:
        uids = sorted(filter(None, job))
        raise UserError(
            f"the checkpoint has state of operators that the job no longer has: uids={gone} "
            f"job={uids}; give a renamed operator its old uid back, or name both in "
            f"restore.uidMapping ({gone[0]}: NEW_UID), or set restore.allowNonRestoredState: true "
            f"to leave that state behind"
        )


def _limit(checkpoint: PendingCheckpoint) -> float:
    """When a checkpoint is given up."""
    if checkpoint.phase is Phase.TRIGGERING:
        return min(checkpoint.deadline, checkpoint.boundary_deadline)
    return checkpoint.deadline
