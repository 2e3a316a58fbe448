"""The coordinator itself: what requests, messages, answers and time do to checkpoints.

What can be decided without the others is in the modules beside: the queue, the counter of
failures, the schedule, and in `lifecycle` all that follows a trigger.
"""

from dataclasses import replace

from moorage_state.coordinator.assembly import CoordinatorParts
from moorage_state.coordinator.future import CheckpointFuture
from moorage_state.coordinator.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    MessageOutcome,
    TaskId,
)
from moorage_state.coordinator.pending import CompletedCheckpoint, PendingCheckpoint, Phase
from moorage_state.coordinator.properties import (
    CheckpointProperties,
    ClaimMode,
    JobStatus,
    SavepointFormat,
)
from moorage_state.coordinator.reasons import (
    CheckpointException,
    CheckpointFailureReason,
    reason_of,
)
from moorage_state.coordinator.restore import check_mapping, claimed_properties
from moorage_state.errors import Bug, Fenced, StoreUnavailable, UserError

__all__ = ["CheckpointCoordinator"]


class CheckpointCoordinator(CoordinatorParts):
    """Coordinates the checkpoints of one run of a job. See the package for how to use it.

    Not for several threads at once: the driver calls it under a lock of its own.

    Args:
        job_id: messages of other jobs are not taken.
        tasks_to_trigger: who is told to begin.
        tasks_to_wait_for: whose acknowledgements make it complete.
        tasks_to_commit_to: who hears that it is complete, aborted or subsumed.
        clock: seconds on a clock that only goes forward.
        wall_clock: seconds since 1970, for timestamps and calendars; `clock` if not given.
        stats: where everything is counted.
        next_time: the first time of a calendar after a given one, both in seconds since 1970; it
            takes the place of the interval.
        ready: called before a checkpoint begins; a reason it returns turns the request away.
        rng: where the delay of the first periodic checkpoint comes from.
    """

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

        Args:
            reason: what `error` stands for, if not given.

        Returns whether that was waited for.
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
        """A task's part is durable.

        Raises:
            Bug: it references a shared file that is not known.
        """
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
        if message.metrics is not None:
            self.stats.subtask(message.checkpoint_id, message.task, message.metrics)
        self._life.abort(checkpoint, message.exception, message.task)
        self._proceed()
        return MessageOutcome.ACCEPTED

    def task_failed(self, task: TaskId, error: BaseException | None = None) -> None:
        """A task is lost: what it has not acknowledged cannot complete."""
        reason = CheckpointFailureReason.TASK_FAILURE
        where = f"operator={task.operator} subtask={task.subtask}"
        for one in [o for o in self._life.pending.values() if task in o.missing()]:
            message = f"{error or reason.message}: {where}"
            self._life.abort(one, CheckpointException(reason, message, error))
        self._proceed()

    def abort_pending_checkpoints(self, reason: CheckpointFailureReason, message: str = "") -> None:
        """Abort all that are pending, as when a part of the job restarts."""
        self._life.abort_all(CheckpointException(reason, message))
        self._proceed()

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

    def finalize_failed(
        self, checkpoint_id: int, error: BaseException, *, uncertain: bool = False
    ) -> None:
        """The manifest or the log's entry could not be written.

        Args:
            uncertain: it may be in the log all the same, so nothing of it is deleted. Always so
                if the store did not answer or another writer took over.

        Raises:
            Bug: it was not asked for.
        """
        checkpoint = self._life.take_finalizing(checkpoint_id)
        reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
        may_exist = uncertain or isinstance(error, (StoreUnavailable, Fenced))
        exception = CheckpointException(reason, f"{reason.message}: {error}", error)
        self._life.fail_finalization(checkpoint, exception, may_exist=may_exist)
        self._proceed()

    def discarded(self, checkpoint_id: int) -> None:
        """The files of a checkpoint are deleted, or cannot be: the next may begin."""
        self._life.cleaning.discard(checkpoint_id)
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

    def shutdown(self, status: JobStatus) -> None:
        """The job reached its end: nothing more begins, and retained checkpoints go as agreed.

        A finalization under way goes on: answer it.
        """
        reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
        if not status.is_globally_terminal:
            reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
        self._end(status, reason)

    def suspend(self) -> None:
        """Another driver goes on with the job: nothing more begins and nothing is deleted."""
        self.shutdown(JobStatus.SUSPENDED)

    # Restoring.

    def restore_latest_checkpointed_state(
        self,
        error_if_no_checkpoint: bool,  # noqa: FBT001 - the signature that people know
        all_or_nothing_state: bool,  # noqa: FBT001
        *,
        allow_non_restored_state: bool = False,
    ) -> CompletedCheckpoint | None:
        """Return the checkpoint to restore; None if there is none.

        Raises:
            UserError: there is none and that is an error, or it does not fit (`check_mapping`).
            Bug: the coordinator has ended.
        """
        self._check_alive()
        latest = self.store.latest
        if latest is None:
            if error_if_no_checkpoint:
                raise UserError(
                    f"no completed checkpoint to restore: job={self._job_id}; name a savepoint, "
                    f"or say that the job may start empty"
                )
            return None
        check_mapping(
            latest,
            self._to_wait_for,
            all_or_nothing_state=all_or_nothing_state,
            allow_non_restored_state=allow_non_restored_state,
        )
        self._launcher.force_full = latest.properties.is_unclaimed
        self.stats.restored(latest, self._wall_clock())
        return latest

    def restore_savepoint(
        self,
        snapshot: CompletedCheckpoint,
        mode: ClaimMode,
        *,
        allow_non_restored_state: bool = False,
    ) -> CompletedCheckpoint:
        """Start from a savepoint, or from another job's checkpoint, and say whose it is now.

        Ids go on above its own.

        Raises:
            UserError: it does not fit.
            Bug: the coordinator has ended, or retains a checkpoint that is newer.
        """
        self._check_alive()
        properties = claimed_properties(mode, self._config.properties)
        restored = replace(snapshot, properties=properties)
        check_mapping(
            restored,
            self._to_wait_for,
            all_or_nothing_state=False,
            allow_non_restored_state=allow_non_restored_state,
        )
        self._life.apply(self.store.restored(restored, mode))
        self._launcher.continue_above(snapshot.checkpoint_id)
        self._launcher.force_full = restored.properties.is_unclaimed
        self.stats.restored(restored, self._wall_clock())
        self._settle()
        return restored

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
        if self._config.coalesce_periodic and any(one.is_periodic for one in self.queued):
            self._periodic.missed += 1
            return
        self.trigger_checkpoint(is_periodic=True)

    def _stop(self, why: str) -> None:
        self._periodic.stop()
        reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
        self._abort_everything(CheckpointException(reason, f"{reason.message}: {why}"))

    def _abort_everything(self, exception: CheckpointException) -> None:
        self._launcher.abort_queue(exception)
        self._life.abort_all(exception)

    def _end(self, status: JobStatus, reason: CheckpointFailureReason) -> None:
        if self._life.ended is None:
            self._periodic.stop()
            exception = CheckpointException(reason, f"{reason.message}: status={status.value}")
            self._launcher.abort_queue(exception)
            self._life.end(status, exception)
        self._settle()

    def _go_on_after(self, future: CheckpointFuture) -> None:
        if future.exception() is not None and self._life.ended is None:
            self.start_checkpoint_scheduler()

    def _check_alive(self) -> None:
        if self._life.ended is not None:
            raise Bug(f"the coordinator has ended: {self._life.ended}")
