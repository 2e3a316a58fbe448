"""What the coordinator wants done. The driver does it, in order, and answers where it says so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage_state.coordinator.messages import CheckpointMetrics, SharedStateKey, TaskId
from moorage_state.coordinator.pending import CompletedCheckpoint, PendingCheckpoint
from moorage_state.coordinator.properties import (
    CheckpointMetaData,
    CheckpointOptions,
    CheckpointProperties,
)
from moorage_state.coordinator.reasons import CheckpointException

__all__ = [
    "DiscardCheckpoint",
    "DiscardState",
    "Effect",
    "FailJob",
    "FinalizeCheckpoint",
    "NotifyCheckpointAborted",
    "NotifyCheckpointComplete",
    "NotifyCheckpointSubsumed",
    "ScheduleAt",
    "ToleranceExceeded",
    "TriggerTasks",
]


@dataclass(frozen=True, slots=True)
class TriggerTasks:
    """Take the synchronous part at the next boundary.

    Answer `triggered` or `trigger_failed`; nothing else starts before, unless this one is aborted
    first. Tasks answer with `receive_acknowledge_message` or `receive_decline_message`.
    """

    checkpoint_id: int
    timestamp: float
    options: CheckpointOptions
    tasks: tuple[TaskId, ...]
    base_id: int
    """The checkpoint whose files may be referenced; 0 for none."""

    @property
    def metadata(self) -> CheckpointMetaData:
        """Its name in time, as functions are told."""
        return CheckpointMetaData(self.checkpoint_id, self.timestamp)


@dataclass(frozen=True, slots=True)
class FinalizeCheckpoint:
    """All acknowledged: make it exist (manifest, then log). One is under way at a time.

    Answer `finalized(id, effect.completed(...))` or `finalize_failed`. It has no timeout, and the
    end of the coordinator does not call it back: whether it exists is for the store to say.
    """

    checkpoint_id: int
    timestamp: float
    properties: CheckpointProperties
    external_location: str | None
    states: Mapping[TaskId, Any]
    shared: Mapping[TaskId, Mapping[SharedStateKey, Any]]
    metrics: Mapping[TaskId, CheckpointMetrics]
    _pending: PendingCheckpoint = field(repr=False, compare=False)

    def completed(
        self, completed_at: float, external_pointer: str = "", payload: Any = None
    ) -> CompletedCheckpoint:
        """The checkpoint as it is once it exists.

        Args:
            completed_at: in seconds since 1970.
            external_pointer: what a person names to restore it.
            payload: kept with it.
        """
        return self._pending.completed(completed_at, external_pointer, payload)


@dataclass(frozen=True, slots=True)
class NotifyCheckpointComplete:
    """Tell tasks and sinks: what it holds is safe. May get lost; the next one covers it."""

    checkpoint_id: int
    timestamp: float
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class NotifyCheckpointSubsumed:
    """Tell tasks that this one and all before it are no longer retained."""

    checkpoint_id: int
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class NotifyCheckpointAborted:
    """Tell tasks to give up a checkpoint, whatever they have done for it."""

    checkpoint_id: int
    latest_completed_id: int
    timestamp: float
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Delete what belongs to a checkpoint alone. Answer `discarded`, failed or not.

    Attributes:
        completed: the checkpoint that was subsumed or ended with the job; None for one that never
            completed.
        handles: of one that never completed: what tasks had uploaded for it.
    """

    checkpoint_id: int
    completed: CompletedCheckpoint | None = None
    handles: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscardState:
    """Delete files that came too late or that nothing references any more. No answer."""

    handles: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class FailJob:
    """End the job as failed."""

    cause: CheckpointException


@dataclass(frozen=True, slots=True)
class ToleranceExceeded:
    """More failures in a row than are tolerated, and the job is to run on: say so."""

    cause: CheckpointException


@dataclass(frozen=True, slots=True)
class ScheduleAt:
    """Call `on_time` at this time of the coordinator's clock; None: not at all.

    Takes the place of the one before.
    """

    time: float | None


Effect = (
    TriggerTasks
    | FinalizeCheckpoint
    | NotifyCheckpointComplete
    | NotifyCheckpointSubsumed
    | NotifyCheckpointAborted
    | DiscardCheckpoint
    | DiscardState
    | FailJob
    | ToleranceExceeded
    | ScheduleAt
)
