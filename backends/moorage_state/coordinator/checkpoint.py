"""One checkpoint: what tasks say of it, how far it is, and what it is once it is complete."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from moorage_state.coordinator.failures import CheckpointException, CheckpointFailureReason
from moorage_state.coordinator.properties import CheckpointProperties
from moorage_state.errors import Bug

_log = logging.getLogger(__name__)


# -- what tasks say --------------------------------------------------------------------------------


class TaskId(NamedTuple):
    """One subtask of one stateful operator."""

    operator: str
    subtask: int


@dataclass(frozen=True, slots=True)
class AcknowledgeCheckpoint:
    """A task's part is durable; `state` is its handle, opaque to the coordinator."""

    job_id: str
    task: TaskId
    checkpoint_id: int
    state: Any = None


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """A task does not take part; `message` is for people, the reason's own text if empty."""

    job_id: str
    task: TaskId
    checkpoint_id: int
    reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_DECLINED
    message: str = ""

    @property
    def exception(self) -> CheckpointException:
        """The message as an error."""
        where = f"operator={self.task.operator} subtask={self.task.subtask}"
        return CheckpointException(self.reason, f"{self.message or self.reason.message}: {where}")


class MessageOutcome(Enum):
    """What became of a message. Whatever it is, files that came for nothing are a sweep's."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """The task has answered already; nothing changed."""

    UNKNOWN_TASK = "unknown_task"
    """The task is none of those waited for."""

    LATE = "late"
    """The checkpoint completed or failed before."""

    UNKNOWN_CHECKPOINT = "unknown_checkpoint"
    """No such checkpoint is remembered."""

    WRONG_JOB = "wrong_job"
    """It is another job's; nothing changed."""

    SHUT_DOWN = "shut_down"
    """The coordinator has ended."""


# -- complete --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that exists.

    Attributes:
        timestamp: of the trigger, in seconds since 1970.
        completed_at: when it was in the log, likewise.
        external_pointer: what a person names to restore it.
        states: by task, its handle.
        payload: whatever the driver wants back with it, such as the manifest.
    """

    job_id: str
    checkpoint_id: int
    timestamp: float
    completed_at: float
    properties: CheckpointProperties
    external_pointer: str = ""
    states: Mapping[TaskId, Any] = field(default_factory=dict)
    payload: Any = None

    @property
    def operators(self) -> frozenset[str]:
        """The operators it has state of."""
        return frozenset(task.operator for task in self.states)


class CheckpointFuture:
    """The end of one requested checkpoint. It completes once, either way; without threads.

    The coordinator completes it at the end of the call that decided it, so a callback finds the
    coordinator at rest and may call it.
    """

    def __init__(self) -> None:
        self._result: CompletedCheckpoint | None = None
        self._error: CheckpointException | None = None
        self._callbacks: list[Callable[[CheckpointFuture], object]] = []

    @property
    def done(self) -> bool:
        """Whether the checkpoint completed or failed."""
        return self._result is not None or self._error is not None

    def result(self) -> CompletedCheckpoint:
        """Return the completed checkpoint.

        Raises:
            CheckpointException: it failed.
            Bug: it is not done.
        """
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise Bug("the checkpoint is not done; wait for its callback")
        return self._result

    def exception(self) -> CheckpointException | None:
        """Return why it failed; None if it completed or is not done."""
        return self._error

    def add_done_callback(self, callback: Callable[["CheckpointFuture"], object]) -> None:
        """Call `callback` with this future once it is done; at once if it is."""
        if self.done:
            self._call(callback)
        else:
            self._callbacks.append(callback)

    def complete(self, result: CompletedCheckpoint | CheckpointException) -> None:
        """End it. Called by the coordinator only; a second time is a Bug."""
        if self.done:
            raise Bug("a checkpoint ends once")
        if isinstance(result, CheckpointException):
            self._error = result
        else:
            self._result = result
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[["CheckpointFuture"], object]) -> None:
        try:
            callback(self)
        except Exception:  # noqa: BLE001 - a listener's fault must not stop the coordinator
            _log.exception("a listener of a checkpoint failed")


# -- pending ---------------------------------------------------------------------------------------


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
    """

    job_id: str
    checkpoint_id: int
    timestamp: float
    properties: CheckpointProperties
    tasks: frozenset[TaskId]
    deadline: float
    boundary_deadline: float
    future: CheckpointFuture
    external_location: str | None = None
    phase: Phase = Phase.TRIGGERING
    states: dict[TaskId, Any] = field(default_factory=dict)

    def advance(self, phase: Phase) -> None:
        """Go to the next phase. Raises Bug for any other."""
        if _NEXT.get(self.phase) is not phase:
            raise Bug(
                f"a checkpoint cannot go there: checkpoint={self.checkpoint_id} "
                f"from={self.phase.value} to={phase.value}"
            )
        self.phase = phase

    def acknowledge(self, message: AcknowledgeCheckpoint) -> MessageOutcome:
        """Note a task's part."""
        if message.task not in self.tasks:
            return MessageOutcome.UNKNOWN_TASK
        if message.task in self.states:
            return MessageOutcome.DUPLICATE
        self.states[message.task] = message.state
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
            payload,
        )
