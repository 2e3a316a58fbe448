"""What the coordinator wants done. The driver does it, in order, and answers where it says so."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moorage_state.coordinator.checkpoint import (
    CheckpointFuture,
    CompletedCheckpoint,
    PendingCheckpoint,
    TaskId,
)
from moorage_state.coordinator.failures import CheckpointException
from moorage_state.coordinator.properties import (
    CheckpointMetaData,
    CheckpointOptions,
    CheckpointProperties,
)


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
    _pending: PendingCheckpoint = field(repr=False, compare=False)

    def completed(
        self, completed_at: float, external_pointer: str = "", payload: Any = None
    ) -> CompletedCheckpoint:
        """The checkpoint as it is once it exists, from `completed_at` (seconds since 1970) on.

        `external_pointer` is what a person names to restore it.
        """
        return self._pending.completed(completed_at, external_pointer, payload)


@dataclass(frozen=True, slots=True)
class NotifyCheckpointComplete:
    """Tell tasks and sinks: what it holds is safe. May get lost; the next one covers it."""

    checkpoint_id: int
    timestamp: float
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class NotifyCheckpointAborted:
    """Tell tasks to give up a checkpoint, whatever they have done for it."""

    checkpoint_id: int
    timestamp: float
    tasks: tuple[TaskId, ...]


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
    | NotifyCheckpointAborted
    | FailJob
    | ToleranceExceeded
    | ScheduleAt
)


class Outbox:
    """Effects that wait to be drained, and futures that wait for the call to be over."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._ends: deque[tuple[CheckpointFuture, CompletedCheckpoint | CheckpointException]] = (
            deque()
        )
        self._wake: float | None = None

    def emit(self, effect: Effect) -> None:
        """Have something done."""
        self._effects.append(effect)

    def end(
        self, future: CheckpointFuture, result: CompletedCheckpoint | CheckpointException
    ) -> None:
        """Complete a future once the coordinator is at rest."""
        self._ends.append((future, result))

    def settle(self, wake: float | None) -> None:
        """The coordinator is at rest: say when it wants to be woken, then tell who waits.

        A listener may call the coordinator again; what comes of it is told in the same order.
        """
        if wake != self._wake:
            self._wake = wake
            self._effects.append(ScheduleAt(wake))
        while self._ends:
            future, result = self._ends.popleft()
            future.complete(result)

    def drain(self) -> list[Effect]:
        """Return the effects so far and forget them."""
        effects, self._effects = self._effects, []
        return effects
