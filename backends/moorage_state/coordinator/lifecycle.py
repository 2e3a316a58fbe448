"""What happens to a checkpoint from its trigger to its end, and to the files it leaves behind.

Called by the coordinator, which decides when. Every way to end leads through here, so a checkpoint
ends once, is counted once, and its files are discarded only if it cannot exist.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum

from moorage_state.coordinator.completed import CompletedCheckpointStore, StoreChange
from moorage_state.coordinator.config import ToleranceAction
from moorage_state.coordinator.effects import (
    DiscardCheckpoint,
    DiscardState,
    FailJob,
    FinalizeCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    NotifyCheckpointSubsumed,
    ToleranceExceeded,
)
from moorage_state.coordinator.failures import CheckpointFailureManager, Verdict
from moorage_state.coordinator.messages import AcknowledgeCheckpoint, MessageOutcome, TaskId
from moorage_state.coordinator.outbox import Outbox
from moorage_state.coordinator.pending import CompletedCheckpoint, PendingCheckpoint, Phase
from moorage_state.coordinator.properties import CheckpointProperties, JobStatus
from moorage_state.coordinator.reasons import CheckpointException, CheckpointFailureReason
from moorage_state.coordinator.stats import CheckpointStatsTracker
from moorage_state.errors import Bug

__all__ = ["Lifecycle"]

_REMEMBERED_ENDS = 1000


class _End(Enum):
    """How a checkpoint ended, as far as late messages are concerned."""

    FAILED = "failed"
    FAILED_SAVEPOINT = "failed_savepoint"
    MAY_EXIST = "may_exist"


class Lifecycle:
    """The pending checkpoints of a run, and their ends.

    Attributes:
        pending: by id, oldest first.
        triggering: the one that waits for a boundary.
        cleaning: those being deleted.
        ended: why nothing more can begin; None while the coordinator is alive.
    """

    def __init__(
        self,
        tasks_to_commit_to: tuple[TaskId, ...],
        store: CompletedCheckpointStore,
        failures: CheckpointFailureManager,
        stats: CheckpointStatsTracker,
        on_exceeded: ToleranceAction,
        wall_clock: Callable[[], float],
    ) -> None:
        self._to_commit_to = tasks_to_commit_to
        self.store = store
        self._failures = failures
        self._stats = stats
        self._on_exceeded = on_exceeded
        self._wall_clock = wall_clock
        self.outbox = Outbox()
        self.pending: dict[int, PendingCheckpoint] = {}
        self.triggering: int | None = None
        self.cleaning: set[int] = set()
        self.ended: CheckpointException | None = None
        self._status: JobStatus | None = None
        self._acknowledged: deque[PendingCheckpoint] = deque()
        self._finalizing: PendingCheckpoint | None = None
        self._in_doubt: set[int] = set()
        self._ends: dict[int, _End] = {}

    @property
    def pinned(self) -> frozenset[int]:
        """The completed checkpoints whose files pending ones may reference."""
        return frozenset(one.base_id for one in self.pending.values() if one.base_id)

    @property
    def _live(self) -> frozenset[int]:
        """The checkpoints that may still come to exist, or exist without our knowing."""
        return frozenset((*self.pending, *self._in_doubt))

    def begin(self, checkpoint: PendingCheckpoint) -> None:
        """A checkpoint was triggered and waits for its boundary."""
        self.pending[checkpoint.checkpoint_id] = checkpoint
        self.triggering = checkpoint.checkpoint_id
        self._stats.pending(checkpoint)

    def run(self, checkpoint: PendingCheckpoint) -> None:
        """Its boundary came: tasks are at it."""
        checkpoint.advance(Phase.RUNNING)
        self.triggering = None
        self._if_acknowledged(checkpoint)

    def refuse(
        self, properties: CheckpointProperties, exception: CheckpointException
    ) -> CheckpointException:
        """A request failed before it had an id."""
        self._stats.failed(None, exception, self._wall_clock())
        self._judge(self._failures.failed(properties, exception), exception)
        return exception

    def acknowledge(self, message: AcknowledgeCheckpoint) -> MessageOutcome:
        """Take a task's part in, or see to what it uploaded for nothing."""
        checkpoint = self.pending.get(message.checkpoint_id)
        if checkpoint is None:
            return self._late(message)
        if message.task not in checkpoint.tasks:
            own = self._register_late(message, checkpoint.properties.is_savepoint)
            self._discard_state(own)
            return MessageOutcome.UNKNOWN_TASK
        if message.task in checkpoint.states:
            return MessageOutcome.DUPLICATE
        shared = dict(message.shared)
        if not checkpoint.properties.is_savepoint:
            shared, unused = self.store.registry.register_all(
                shared, message.checkpoint_id, self._live
            )
            self._discard_state(unused)
        outcome = checkpoint.acknowledge(message, shared)
        self._stats.subtask(message.checkpoint_id, message.task, message.metrics)
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
        task: TaskId | None = None,
    ) -> None:
        """End a checkpoint that is not being finalized; what was uploaded for it is deleted."""
        if not checkpoint.is_abortable:
            raise Bug(f"it may exist already: checkpoint={checkpoint.checkpoint_id}")
        if checkpoint in self._acknowledged:
            self._acknowledged.remove(checkpoint)
        self._fail(checkpoint, exception, task, may_exist=False)

    def take_finalizing(self, checkpoint_id: int) -> PendingCheckpoint:
        """Return the checkpoint whose finalization is answered. Raises Bug for any other."""
        checkpoint = self._finalizing
        if checkpoint is None or checkpoint.checkpoint_id != checkpoint_id:
            raise Bug(f"no such checkpoint is being finalized: checkpoint={checkpoint_id}")
        return checkpoint

    def complete(self, checkpoint: PendingCheckpoint, completed: CompletedCheckpoint) -> None:
        """A checkpoint exists: older ones make room, and everybody hears of it."""
        self._finalizing = None
        del self.pending[checkpoint.checkpoint_id]
        change = StoreChange()
        if completed.properties.is_recovery_point:
            self.store.registry.checkpoint_completed(completed.checkpoint_id)
            self._in_doubt = {one for one in self._in_doubt if one > completed.checkpoint_id}
            change = self.store.add(completed, self.pinned, self._live)
        self._remember(completed.checkpoint_id, _End.MAY_EXIST)
        self._failures.succeeded(completed.checkpoint_id)
        self._stats.completed(completed)
        if self.ended is None and completed.properties.is_recovery_point:
            self._drop_subsumed(completed.checkpoint_id)
            self._notify_complete(completed, change)
        self.apply(change)
        self.outbox.end(checkpoint.future, completed)
        self._finalize_next()

    def fail_finalization(
        self, checkpoint: PendingCheckpoint, exception: CheckpointException, *, may_exist: bool
    ) -> None:
        """Its manifest or log entry could not be written, or nobody knows whether it was."""
        self._finalizing = None
        if may_exist and checkpoint.properties.is_recovery_point:
            self._in_doubt.add(checkpoint.checkpoint_id)
        self._fail(checkpoint, self.ended or exception, None, may_exist=may_exist)
        self._finalize_next()

    def end(self, status: JobStatus, exception: CheckpointException) -> None:
        """Nothing more begins. Suspended, nothing more is deleted either: it is another's now."""
        self.ended = exception
        self._status = status
        self._acknowledged.clear()
        self.abort_all(exception)
        self.apply(self.store.shutdown(status, self.pinned, self._live))

    def abort_all(self, exception: CheckpointException) -> None:
        """End all that can still be given up."""
        for checkpoint in [one for one in self.pending.values() if one.is_abortable]:
            self.abort(checkpoint, exception)

    def apply(self, change: StoreChange) -> None:
        """Delete what a change of the store let go."""
        for one in change.discard:
            self._discard(DiscardCheckpoint(one.checkpoint_id, completed=one))
        self._discard_state(change.unused)
        self._stats.discarded([one.checkpoint_id for one in change.discard])

    def _fail(
        self,
        checkpoint: PendingCheckpoint,
        exception: CheckpointException,
        task: TaskId | None,
        *,
        may_exist: bool,
    ) -> None:
        checkpoint_id = checkpoint.checkpoint_id
        del self.pending[checkpoint_id]
        if self.triggering == checkpoint_id:
            self.triggering = None
        self._stats.failed(checkpoint_id, exception, self._wall_clock())
        self.outbox.emit(
            NotifyCheckpointAborted(
                checkpoint_id, self.store.latest_id, checkpoint.timestamp, self._to_commit_to
            )
        )
        if may_exist:
            self._remember(checkpoint_id, _End.MAY_EXIST)
        else:
            savepoint = checkpoint.properties.is_savepoint
            self._remember(checkpoint_id, _End.FAILED_SAVEPOINT if savepoint else _End.FAILED)
            self._discard(DiscardCheckpoint(checkpoint_id, handles=checkpoint.own_handles()))
        verdict = self._failures.failed(checkpoint.properties, exception, checkpoint_id, task)
        self._judge(verdict, exception)
        self.outbox.end(checkpoint.future, exception)

    def _if_acknowledged(self, checkpoint: PendingCheckpoint) -> None:
        if checkpoint.phase is Phase.RUNNING and checkpoint.is_fully_acknowledged:
            self._acknowledged.append(checkpoint)
            self._finalize_next()

    def _finalize_next(self) -> None:
        """One at a time, so that checkpoints complete in an order that everybody agrees on."""
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
                one.shared,
                one.metrics,
                one,
            )
        )

    def _drop_subsumed(self, completed_id: int) -> None:
        reason = CheckpointFailureReason.CHECKPOINT_SUBSUMED
        message = f"{reason.message}: newer={completed_id}"
        for one in [p for p in self.pending.values() if p.checkpoint_id < completed_id]:
            if one.can_be_subsumed:
                self.abort(one, CheckpointException(reason, message))

    def _notify_complete(self, completed: CompletedCheckpoint, change: StoreChange) -> None:
        checkpoint_id, tasks = completed.checkpoint_id, self._to_commit_to
        self.outbox.emit(NotifyCheckpointComplete(checkpoint_id, completed.timestamp, tasks))
        if change.notify_subsumed is not None:
            self.outbox.emit(NotifyCheckpointSubsumed(change.notify_subsumed, tasks))

    def _late(self, message: AcknowledgeCheckpoint) -> MessageOutcome:
        """A part of a checkpoint that has ended: of a failed one it is deleted.

        The handle of one that may exist is perhaps part of it, and of one that is not remembered
        nobody knows: those are left to a sweep, which looks at manifests.
        """
        end = self._ends.get(message.checkpoint_id)
        if end in (_End.FAILED, _End.FAILED_SAVEPOINT):
            self._stats.subtask(message.checkpoint_id, message.task, message.metrics)
            self._discard_state(self._register_late(message, end is _End.FAILED_SAVEPOINT))
        return self.known_end(message.checkpoint_id)

    def _register_late(
        self,
        message: AcknowledgeCheckpoint,
        is_savepoint: bool,  # noqa: FBT001 - private
    ) -> tuple[object, ...]:
        """Keep shared files, which the task may go on to use; return what is to be deleted."""
        if is_savepoint:
            return message.handles
        known = {
            key: handle
            for key, handle in message.shared.items()
            if handle is not None or self.store.registry.get(key) is not None
        }
        _, unused = self.store.registry.register_all(
            known, message.checkpoint_id, self._live, late=True
        )
        return (*(() if message.state is None else (message.state,)), *unused)

    def _judge(self, verdict: Verdict, exception: CheckpointException) -> None:
        fails_job = verdict.exceeded and self._on_exceeded is ToleranceAction.FAIL_JOB
        if verdict.must_fail or fails_job:
            self.outbox.emit(FailJob(exception))
        elif verdict.exceeded:
            self.outbox.emit(ToleranceExceeded(exception))

    def _discard(self, effect: DiscardCheckpoint) -> None:
        if self._status is not JobStatus.SUSPENDED:
            self.cleaning.add(effect.checkpoint_id)
            self.outbox.emit(effect)

    def _discard_state(self, handles: tuple[object, ...]) -> None:
        if handles and self._status is not JobStatus.SUSPENDED:
            self.outbox.emit(DiscardState(handles))

    def _remember(self, checkpoint_id: int, end: _End) -> None:
        self._ends[checkpoint_id] = end
        if len(self._ends) > _REMEMBERED_ENDS:
            del self._ends[next(iter(self._ends))]
