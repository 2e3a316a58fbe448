"""From a request to a checkpoint whose tasks are told: the queue, the checks, the id."""

from collections.abc import Callable
from itertools import count
from math import inf

from moorage_state.coordinator.config import CheckpointConfig, CheckpointingMode
from moorage_state.coordinator.decider import (
    CheckpointRequestDecider,
    Decision,
    Load,
    TriggerRequest,
)
from moorage_state.coordinator.effects import TriggerTasks
from moorage_state.coordinator.future import CheckpointFuture
from moorage_state.coordinator.identity import CheckpointIdCounter
from moorage_state.coordinator.lifecycle import Lifecycle
from moorage_state.coordinator.messages import TaskId
from moorage_state.coordinator.pending import PendingCheckpoint
from moorage_state.coordinator.properties import (
    CheckpointOptions,
    CheckpointProperties,
    CheckpointType,
)
from moorage_state.coordinator.reasons import (
    CheckpointException,
    CheckpointFailureReason,
    reason_of,
)
from moorage_state.coordinator.schedule import PeriodicTrigger
from moorage_state.errors import Bug

__all__ = ["Launcher"]


class Launcher:
    """Begins checkpoints, one at a time.

    Attributes:
        last_completion: when the last checkpoint completed, on the coordinator's clock.
        force_full: the next checkpoint must reference nothing older.
    """

    def __init__(  # noqa: PLR0917 - called in one place
        self,
        job_id: str,
        config: CheckpointConfig,
        tasks_to_trigger: tuple[TaskId, ...],
        tasks_to_wait_for: frozenset[TaskId],
        ids: CheckpointIdCounter,
        lifecycle: Lifecycle,
        periodic: PeriodicTrigger,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        ready: Callable[[], CheckpointFailureReason | None],
    ) -> None:
        self._job_id = job_id
        self._config = config
        self._to_trigger = tasks_to_trigger
        self._to_wait_for = tasks_to_wait_for
        self._ids = ids
        self._life = lifecycle
        self._periodic = periodic
        self._clock = clock
        self._wall_clock = wall_clock
        self._ready = ready
        self._decider = CheckpointRequestDecider(config.max_concurrent, config.pause)
        self._numbers = count()
        self._last_id = 0
        self.last_completion = -inf
        self.force_full = False

    @property
    def queued(self) -> tuple[TriggerRequest, ...]:
        """What waits, the next one first."""
        return self._decider.queued

    def submit(
        self, properties: CheckpointProperties, location: str | None, *, is_periodic: bool
    ) -> CheckpointFuture:
        """Take in a request; it or another one may begin."""
        request = TriggerRequest(
            properties, is_periodic, self._clock(), next(self._numbers), location
        )
        if self._life.ended is not None:
            self._life.outbox.end(request.future, self._life.ended)
        elif self._carry_out(self._decider.submit(request, self._load())):
            self.run_queue()
        return request.future

    def run_queue(self) -> None:
        """Begin what may begin now."""
        while self._life.ended is None and self._carry_out(self._decider.choose(self._load())):
            pass

    def abort_queue(self, exception: CheckpointException) -> None:
        """Turn away all that wait."""
        for request in self._decider.abort_all():
            self._life.outbox.end(request.future, exception)

    def continue_above(self, checkpoint_id: int) -> None:
        """Ids go on above that of a restored snapshot."""
        self._ids.set_count(checkpoint_id + 1)
        self._last_id = max(self._last_id, checkpoint_id)

    def _load(self) -> Load:
        life = self._life
        return Load(
            self._clock(),
            life.triggering is not None,
            len(life.pending),
            len(life.cleaning),
            self.last_completion,
        )

    def _carry_out(self, decision: Decision) -> bool:
        """Do what was decided; returns whether the queue should be looked at again."""
        for request, reason in decision.rejected:
            self._life.outbox.end(request.future, CheckpointException(reason))
        if decision.retry_at is not None:
            self._periodic.postpone(decision.retry_at)
        return decision.start is not None and not self._start(decision.start)

    def _start(self, request: TriggerRequest) -> bool:
        """Begin a checkpoint; False if that failed, which ends the request and nothing else."""
        try:
            checkpoint_id = self._claim(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator goes on
            exception = _as_checkpoint_exception(error)
            self._life.refuse(request.properties, exception)
            self._life.outbox.end(request.future, exception)
            return False
        options = self._options(request)
        base = self._life.store.base_id if options.checkpoint_type.shares_files else 0
        pending = self._pending(request, checkpoint_id, base)
        self._life.begin(pending)
        self._life.outbox.emit(
            TriggerTasks(checkpoint_id, pending.timestamp, options, self._to_trigger, base)
        )
        return True

    def _claim(self, request: TriggerRequest) -> int:
        """Check what must be so, and return an id."""
        if request.is_periodic and not self._periodic.is_running:
            raise CheckpointException(CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN)
        blocked = self._ready()
        if blocked is not None:
            raise CheckpointException(blocked)
        checkpoint_id = self._ids.get_and_increment()
        if checkpoint_id <= self._last_id:
            raise Bug(f"ids only grow: last={self._last_id} next={checkpoint_id}")
        self._last_id = checkpoint_id
        return checkpoint_id

    def _options(self, request: TriggerRequest) -> CheckpointOptions:
        properties = request.properties
        kind = properties.checkpoint_type
        if self.force_full and not properties.is_savepoint:
            kind = CheckpointType.FULL_CHECKPOINT
        aligned = self._config.mode is CheckpointingMode.EXACTLY_ONCE
        return CheckpointOptions(kind, request.external_location, properties.format, aligned)

    def _pending(
        self, request: TriggerRequest, checkpoint_id: int, base_id: int
    ) -> PendingCheckpoint:
        now, aligned = self._clock(), self._config.aligned_timeout
        return PendingCheckpoint(
            self._job_id,
            checkpoint_id,
            self._wall_clock(),
            request.properties,
            self._to_wait_for,
            deadline=now + self._config.timeout,
            boundary_deadline=inf if aligned is None else now + aligned,
            future=request.future,
            base_id=base_id,
            external_location=request.external_location,
        )


def _as_checkpoint_exception(error: Exception) -> CheckpointException:
    if isinstance(error, CheckpointException):
        return error
    return CheckpointException(reason_of(error), str(error), error)
