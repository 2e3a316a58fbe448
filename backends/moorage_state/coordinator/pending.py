"""One checkpoint: while tasks are at it, and when it is complete."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from moorage_state.coordinator.future import CheckpointFuture
from moorage_state.coordinator.messages import (
    AcknowledgeCheckpoint,
    CheckpointMetrics,
    MessageOutcome,
    SharedStateKey,
    TaskId,
)
from moorage_state.coordinator.properties import CheckpointProperties
from moorage_state.errors import Bug

__all__ = ["CompletedCheckpoint", "PendingCheckpoint", "Phase"]


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that exists.

    Attributes:
        timestamp: of the trigger, in seconds since 1970.
        completed_at: when it was in the log, likewise.
        external_pointer: what a person names to restore it.
        states: by task, its handle.
        shared: by task, the shared files it references; what came as None is resolved.
        metrics: by task, what it measured.
        payload: whatever the driver wants back with it, such as the manifest.
    """

    job_id: str
    checkpoint_id: int
    timestamp: float
    completed_at: float
    properties: CheckpointProperties
    external_pointer: str = ""
    states: Mapping[TaskId, Any] = field(default_factory=dict)
    shared: Mapping[TaskId, Mapping[SharedStateKey, Any]] = field(default_factory=dict)
    metrics: Mapping[TaskId, CheckpointMetrics] = field(default_factory=dict)
    payload: Any = None

    @property
    def operators(self) -> frozenset[str]:
        """The operators it has state of."""
        return frozenset(task.operator for task in self.states)

    @property
    def size(self) -> int:
        """What it uploaded, in bytes."""
        return sum(metrics.size for metrics in self.metrics.values())

    @property
    def full_size(self) -> int:
        """What a restore reads, in bytes."""
        return sum(metrics.full_size for metrics in self.metrics.values())

    @property
    def duration(self) -> float:
        """From the trigger to the end, in seconds."""
        return max(0.0, self.completed_at - self.timestamp)


class Phase(Enum):
    """How far a pending checkpoint is. It moves downwards only, or ends."""

    TRIGGERING = "triggering"
    """Waits for an epoch boundary."""

    RUNNING = "running"
    """Tasks are at it."""

    FINALIZING = "finalizing"
    """Its manifest is being written: only the answer to that ends it."""


_NEXT = {Phase.TRIGGERING: Phase.RUNNING, Phase.RUNNING: Phase.FINALIZING}


@dataclass(slots=True, eq=False)
class PendingCheckpoint:
    """A checkpoint that was triggered and has not ended.

    Attributes:
        timestamp: of the trigger, in seconds since 1970.
        tasks: whose acknowledgement it needs.
        deadline: on the coordinator's clock.
        boundary_deadline: when the wait for a boundary ends, on the same clock.
        base_id: the newest completed checkpoint when it was triggered: what the tasks may
            reference, so not to be deleted before this one ended. 0 for none.
    """

    job_id: str
    checkpoint_id: int
    timestamp: float
    properties: CheckpointProperties
    tasks: frozenset[TaskId]
    deadline: float
    boundary_deadline: float
    future: CheckpointFuture
    base_id: int = 0
    external_location: str | None = None
    phase: Phase = Phase.TRIGGERING
    states: dict[TaskId, Any] = field(default_factory=dict)
    shared: dict[TaskId, Mapping[SharedStateKey, Any]] = field(default_factory=dict)
    metrics: dict[TaskId, CheckpointMetrics] = field(default_factory=dict)

    def advance(self, phase: Phase) -> None:
        """Go to the next phase. Raises Bug for any other."""
        if _NEXT.get(self.phase) is not phase:
            raise Bug(
                f"a checkpoint cannot go there: checkpoint={self.checkpoint_id} "
                f"from={self.phase.value} to={phase.value}"
            )
        self.phase = phase

    def acknowledge(
        self, message: AcknowledgeCheckpoint, shared: Mapping[SharedStateKey, Any]
    ) -> MessageOutcome:
        """Note a task's part; `shared` are its files as the registry has them."""
        if message.task not in self.tasks:
            return MessageOutcome.UNKNOWN_TASK
        if message.task in self.states:
            return MessageOutcome.DUPLICATE
        self.states[message.task] = message.state
        self.shared[message.task] = shared
        self.metrics[message.task] = message.metrics
        return MessageOutcome.ACCEPTED

    @property
    def is_fully_acknowledged(self) -> bool:
        """Whether every task it waits for has answered."""
        return len(self.states) == len(self.tasks)

    @property
    def can_be_subsumed(self) -> bool:
        """Whether a newer completed checkpoint makes it superfluous."""
        return not (self.properties.is_savepoint or self.properties.forced)

    @property
    def is_abortable(self) -> bool:
        """Whether it can still be given up: not while its manifest may be in the store."""
        return self.phase is not Phase.FINALIZING

    def missing(self) -> Iterable[TaskId]:
        """The tasks that have not answered."""
        return sorted(self.tasks - self.states.keys())

    def own_handles(self) -> tuple[Any, ...]:
        """What nothing but this checkpoint references: of a savepoint all, else the private."""
        own = [state for state in self.states.values() if state is not None]
        if self.properties.is_savepoint:
            own += [h for files in self.shared.values() for h in files.values() if h is not None]
        return tuple(own)

    def completed(
        self, completed_at: float, external_pointer: str = "", payload: Any = None
    ) -> CompletedCheckpoint:
        """The checkpoint that this one has become."""
        return CompletedCheckpoint(
            self.job_id,
            self.checkpoint_id,
            self.timestamp,
            completed_at,
            self.properties,
            external_pointer,
            dict(self.states),
            dict(self.shared),
            dict(self.metrics),
            payload,
        )
