"""What happens to a checkpoint from its trigger to its end.

Called by the coordinator, which decides when. Every way to end leads through here, so a checkpoint
ends once and is counted once. What becomes of its files is for the lineage's log to say: of one
that failed they lie there until a sweep finds that no manifest names them.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from moorage_state.coordinator.checkpoint import (
    AcknowledgeCheckpoint,
    CompletedCheckpoint,
    MessageOutcome,
    PendingCheckpoint,
    Phase,
    TaskId,
)
from moorage_state.coordinator.effects import (
    FailJob,
    FinalizeCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    Outbox,
    ToleranceExceeded,
)
from moorage_state.coordinator.failures import (
    CheckpointException,
    CheckpointFailureManager,
    CheckpointFailureReason,
    Verdict,
)
from moorage_state.coordinator.properties import CheckpointProperties, ToleranceAction
from moorage_state.errors import Bug

_REMEMBERED_ENDS = 1000


class CheckpointTracker(Protocol):
    """Hears of each checkpoint, for metrics, a status, and people."""

    def pending(self, checkpoint: PendingCheckpoint) -> None:
        """It was begun."""
        ...

    def completed(self, checkpoint: CompletedCheckpoint) -> None:
        """It exists."""
        ...

    def failed(self, checkpoint_id: int | None, failure: CheckpointException, at: float) -> None:
        """It failed, at a time in seconds since 1970; without an id, before it was begun."""
        ...


class Lifecycle:
    """The pending checkpoints of a run, and their ends.

    Attributes:
        pending: by id, oldest first.
        triggering: the one that waits for a boundary.
        base_id: the newest checkpoint whose files later ones may reference; 0 if there is none.
            Never a savepoint, whose files are a person's.
        ended: why nothing more can begin; None while the coordinator is alive.
    """

    def __init__(
        self,
        tasks_to_commit_to: tuple[TaskId, ...],
        failures: CheckpointFailureManager,
        tracker: CheckpointTracker,
        on_exceeded: ToleranceAction,
        wall_clock: Callable[[], float],
    ) -> None:
        self._to_commit_to = tasks_to_commit_to
        self._failures = failures
        self._tracker = tracker
        self._on_exceeded = on_exceeded
        self._wall_clock = wall_clock
        self.outbox = Outbox()
        self.pending: dict[int, PendingCheckpoint] = {}
        self.triggering: int | None = None
        self.base_id = 0
        self.ended: CheckpointException | None = None
        self._acknowledged: deque[PendingCheckpoint] = deque()
        self._finalizing: PendingCheckpoint | None = None
        # Ids of the newest that ended; a dict because it keeps their order.
        self._ends: dict[int, None] = {}

    def begin(self, checkpoint: PendingCheckpoint) -> None:
        """A checkpoint was triggered and waits for its boundary."""
        self.pending[checkpoint.checkpoint_id] = checkpoint
        self.triggering = checkpoint.checkpoint_id
        self._tracker.pending(checkpoint)

    def run(self, checkpoint: PendingCheckpoint) -> None:
        """Its boundary came: tasks are at it."""
        checkpoint.advance(Phase.RUNNING)
        self.triggering = None
        self._if_acknowledged(checkpoint)

    def refuse(
        self, properties: CheckpointProperties, exception: CheckpointException
    ) -> CheckpointException:
        """A request failed before it had an id."""
        self._tracker.failed(None, exception, self._wall_clock())
        self._judge(self._failures.failed(properties, exception), exception)
        return exception

    def acknowledge(self, message: AcknowledgeCheckpoint) -> MessageOutcome:
        """Take a task's part in."""
        checkpoint = self.pending.get(message.checkpoint_id)
        if checkpoint is None:
            return self.known_end(message.checkpoint_id)
        outcome = checkpoint.acknowledge(message)
        if outcome is MessageOutcome.ACCEPTED:
            self._if_acknowledged(checkpoint)
        return outcome

    def known_end(self, checkpoint_id: int) -> MessageOutcome:
        """What a message about a checkpoint that is not pending is."""
        if checkpoint_id in self._ends:
            return MessageOutcome.LATE
        return MessageOutcome.UNKNOWN_CHECKPOINT

    def abort(
        self,
        checkpoint: PendingCheckpoint,
        exception: CheckpointException,
        *,
        on_task: bool = False,
    ) -> None:
        """End a checkpoint that is not being finalized; with `on_task`, a task gave it up."""
        if not checkpoint.is_abortable:
            raise Bug(f"it may exist already: checkpoint={checkpoint.checkpoint_id}")
        if checkpoint in self._acknowledged:
            self._acknowledged.remove(checkpoint)
        self._fail(checkpoint, exception, on_task=on_task)

    def take_finalizing(self, checkpoint_id: int) -> PendingCheckpoint:
        """Return the checkpoint whose finalization is answered. Raises Bug for any other."""
        checkpoint = self._finalizing
        if checkpoint is None or checkpoint.checkpoint_id != checkpoint_id:
            raise Bug(f"no such checkpoint is being finalized: checkpoint={checkpoint_id}")
        return checkpoint

    def complete(self, checkpoint: PendingCheckpoint, completed: CompletedCheckpoint) -> None:
        """A checkpoint exists: everybody hears of it."""
        self._finalizing = None
        del self.pending[checkpoint.checkpoint_id]
        if not completed.properties.is_savepoint:
            # One that is not subsumed may complete after a newer one.
            self.base_id = max(self.base_id, completed.checkpoint_id)
        self._remember(completed.checkpoint_id)
        self._failures.succeeded(completed.checkpoint_id)
        self._tracker.completed(completed)
        if self.ended is None and completed.properties.is_recovery_point:
            self._drop_subsumed(completed.checkpoint_id)
            self.outbox.emit(
                NotifyCheckpointComplete(
                    completed.checkpoint_id, completed.timestamp, self._to_commit_to
                )
            )
        self.outbox.end(checkpoint.future, completed)
        self._finalize_next()

    def fail_finalization(
        self, checkpoint: PendingCheckpoint, exception: CheckpointException, *, again: bool = False
    ) -> None:
        """Its manifest or log entry could not be written, or nobody knows whether it was.

        Args:
            again: only its id was taken, and another one follows: it does not count as a failure,
                and who waits for it hears of that one.
        """
        self._finalizing = None
        self._fail(checkpoint, self.ended or exception, again=again)
        self._finalize_next()

    def end(self, exception: CheckpointException) -> None:
        """Nothing more begins."""
        self.ended = exception
        self._acknowledged.clear()
        self.abort_all(exception)

    def abort_all(self, exception: CheckpointException) -> None:
        """End all that can still be given up."""
        for checkpoint in [one for one in self.pending.values() if one.is_abortable]:
            self.abort(checkpoint, exception)

    def _fail(
        self,
        checkpoint: PendingCheckpoint,
        exception: CheckpointException,
        *,
        on_task: bool = False,
        again: bool = False,
    ) -> None:
        checkpoint_id = checkpoint.checkpoint_id
        del self.pending[checkpoint_id]
        if self.triggering == checkpoint_id:
            self.triggering = None
        self._tracker.failed(checkpoint_id, exception, self._wall_clock())
        self.outbox.emit(
            NotifyCheckpointAborted(checkpoint_id, checkpoint.timestamp, self._to_commit_to)
        )
        self._remember(checkpoint_id)
        if again:
            return
        verdict = self._failures.failed(
            checkpoint.properties, exception, checkpoint_id, on_task=on_task
        )
        self._judge(verdict, exception)
        self.outbox.end(checkpoint.future, exception)

    def _if_acknowledged(self, checkpoint: PendingCheckpoint) -> None:
        if checkpoint.phase is Phase.RUNNING and checkpoint.is_fully_acknowledged:
            self._acknowledged.append(checkpoint)
            self._finalize_next()

    def _finalize_next(self) -> None:
        # One at a time: checkpoints complete in an order that log, sinks and tasks agree on.
        if self._finalizing is not None or not self._acknowledged:
            return
        one = self._finalizing = self._acknowledged.popleft()
        one.advance(Phase.FINALIZING)
        self.outbox.emit(
            FinalizeCheckpoint(
                one.checkpoint_id,
                one.timestamp,
                one.properties,
                one.external_location,
                one.states,
                one,
            )
        )

    def _drop_subsumed(self, completed_id: int) -> None:
        reason = CheckpointFailureReason.CHECKPOINT_SUBSUMED
        message = f"{reason.message}: newer={completed_id}"
        for one in [p for p in self.pending.values() if p.checkpoint_id < completed_id]:
            if one.can_be_subsumed:
                self.abort(one, CheckpointException(reason, message))

    def _judge(self, verdict: Verdict, exception: CheckpointException) -> None:
        fails_job = verdict.exceeded and self._on_exceeded is ToleranceAction.FAIL_JOB
        if verdict.must_fail or fails_job:
            self.outbox.emit(FailJob(exception))
        elif verdict.exceeded:
            self.outbox.emit(ToleranceExceeded(exception))

    def _remember(self, checkpoint_id: int) -> None:
        self._ends[checkpoint_id] = None
        if len(self._ends) > _REMEMBERED_ENDS:
            del self._ends[next(iter(self._ends))]
