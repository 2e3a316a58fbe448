"""What tasks tell the coordinator, and how it takes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from moorage_state.coordinator.reasons import CheckpointException, CheckpointFailureReason

__all__ = [
    "AcknowledgeCheckpoint",
    "CheckpointMetrics",
    "DeclineCheckpoint",
    "MessageOutcome",
    "SharedStateKey",
    "TaskId",
]


class TaskId(NamedTuple):
    """One subtask of one stateful operator."""

    operator: str
    subtask: int


class SharedStateKey(NamedTuple):
    """A file that several checkpoints may reference; `scope` keeps backends apart."""

    scope: str
    file_id: str


@dataclass(frozen=True, slots=True)
class CheckpointMetrics:
    """What one subtask measured. Times are seconds, sizes bytes.

    Attributes:
        size: what this checkpoint uploaded.
        full_size: what a restore reads.
    """

    sync_duration: float = 0.0
    async_duration: float = 0.0
    alignment_duration: float = 0.0
    start_delay: float = 0.0
    size: int = 0
    full_size: int = 0


@dataclass(frozen=True, slots=True)
class AcknowledgeCheckpoint:
    """A task's part is durable.

    Attributes:
        state: the handle of what belongs to this checkpoint alone; opaque to the coordinator.
        shared: handles of files that later checkpoints may reference too. None stands for a file
            that is registered already and was not uploaded again.
    """

    job_id: str
    task: TaskId
    checkpoint_id: int
    metrics: CheckpointMetrics = CheckpointMetrics()
    state: Any = None
    shared: Mapping[SharedStateKey, Any] = field(default_factory=dict)

    @property
    def handles(self) -> tuple[Any, ...]:
        """All that was uploaded for it."""
        own = () if self.state is None else (self.state,)
        return (*own, *(handle for handle in self.shared.values() if handle is not None))


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """A task does not take part.

    Attributes:
        reason: why.
        message: for people; the reason's own text if empty.
    """

    job_id: str
    task: TaskId
    checkpoint_id: int
    reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_DECLINED
    message: str = ""
    metrics: CheckpointMetrics | None = None

    @property
    def exception(self) -> CheckpointException:
        """The message as an error."""
        where = f"operator={self.task.operator} subtask={self.task.subtask}"
        return CheckpointException(self.reason, f"{self.message or self.reason.message}: {where}")


class MessageOutcome(Enum):
    """What became of a message."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """The task has answered already; nothing changed."""

    UNKNOWN_TASK = "unknown_task"
    """The task is none of those waited for; its handle is discarded."""

    LATE = "late"
    """The checkpoint completed or failed before; the handle of a failed one is discarded."""

    UNKNOWN_CHECKPOINT = "unknown_checkpoint"
    """No such checkpoint is remembered. Its handle may be part of something: it is left alone."""

    WRONG_JOB = "wrong_job"
    """It is another job's; nothing changed."""

    SHUT_DOWN = "shut_down"
    """The coordinator has ended."""

    @property
    def reason(self) -> CheckpointFailureReason | None:
        """What to tell the sender, if it should hear of it."""
        if self in (
            MessageOutcome.UNKNOWN_TASK,
            MessageOutcome.LATE,
            MessageOutcome.UNKNOWN_CHECKPOINT,
        ):
            return CheckpointFailureReason.UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE
        return None
