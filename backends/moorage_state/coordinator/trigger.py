"""When a checkpoint begins: the queue of requests, the alarm of periodic ones, and the start.

Called by the coordinator. A request waits in the queue until it may begin, gets an id, and becomes
a pending checkpoint whose tasks are to be told at the next boundary.
"""

import math
import random
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from moorage_state.coordinator.checkpoint import CheckpointFuture, PendingCheckpoint, TaskId
from moorage_state.coordinator.effects import TriggerTasks
from moorage_state.coordinator.failures import (
    CheckpointException,
    CheckpointFailureReason,
    reason_of,
)
from moorage_state.coordinator.lifecycle import Lifecycle
from moorage_state.coordinator.properties import (
    CheckpointConfig,
    CheckpointingMode,
    CheckpointOptions,
    CheckpointProperties,
    CheckpointType,
)
from moorage_state.errors import Bug, UserError

# -- requests that wait ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TriggerRequest:
    """A checkpoint that somebody asked for, at `timestamp` on the coordinator's clock.

    Requests of one moment are in the order of their `number`.
    """

    properties: CheckpointProperties
    is_periodic: bool
    timestamp: float
    number: int
    external_location: str | None = None
    future: CheckpointFuture = field(default_factory=CheckpointFuture, compare=False)

    @property
    def order(self) -> tuple[bool, bool, bool, float, int]:
        """Savepoints first, then forced, then those that somebody waits for, then by time."""
        return (
            not self.properties.is_savepoint,
            not self.properties.forced,
            self.is_periodic,
            self.timestamp,
            self.number,
        )


class Load(NamedTuple):
    """What the decision depends on beside the queue; times are on the coordinator's clock.

    `is_triggering`: a trigger waits for its boundary; `pending`: checkpoints that have not ended.
    """

    now: float
    is_triggering: bool
    pending: int
    last_completion: float


class Decision(NamedTuple):
    """What to do now.

    Attributes:
        start: the request to start, if one may.
        rejected: requests that are out of the queue, with the reason.
        retry_at: when the periodic trigger should fire instead of when it would, on the
            coordinator's clock.
    """

    start: TriggerRequest | None = None
    rejected: tuple[tuple[TriggerRequest, CheckpointFailureReason], ...] = ()
    retry_at: float | None = None


class CheckpointRequestDecider:
    """The queue of requests."""

    def __init__(
        self, max_concurrent: int, min_pause: float, max_queued_requests: int = 1000
    ) -> None:
        if max_concurrent < 1 or max_queued_requests < 1:
            raise Bug(f"no room: max_concurrent={max_concurrent} queue={max_queued_requests}")
        self._max_concurrent = max_concurrent
        self._min_pause = min_pause
        self._max_queued = max_queued_requests
        self._queue: list[TriggerRequest] = []

    @property
    def queued(self) -> tuple[TriggerRequest, ...]:
        """What waits, the next one first."""
        return tuple(self._queue)

    def submit(self, request: TriggerRequest, load: Load) -> Decision:
        """Take in a new request and say what may start: it, another one or nothing."""
        too_many = CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
        if len(self._queue) >= self._max_queued and not self._queue[-1].is_periodic:
            return Decision(rejected=((request, too_many),))
        insort(self._queue, request, key=lambda one: one.order)
        evicted: tuple[tuple[TriggerRequest, CheckpointFailureReason], ...] = ()
        if len(self._queue) > self._max_queued:
            evicted = ((self._queue.pop(), too_many),)
        decision = self.choose(load)
        return decision._replace(rejected=(*evicted, *decision.rejected))

    def choose(self, load: Load) -> Decision:
        """Say which of the queued requests may start."""
        if load.is_triggering or not self._queue:
            return Decision()
        first = self._queue[0]
        if load.pending >= self._max_concurrent and not first.properties.forced:
            return Decision()
        earliest = load.last_completion + self._min_pause
        if first.is_periodic and not first.properties.forced and load.now < earliest:
            reason = CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
            return Decision(None, ((self._queue.pop(0), reason),), earliest)
        return Decision(self._queue.pop(0))

    def abort_all(self) -> tuple[TriggerRequest, ...]:
        """Empty the queue; returns what was in it."""
        aborted, self._queue = tuple(self._queue), []
        return aborted


# -- the alarm of periodic ones --------------------------------------------------------------------


class PeriodicTrigger:
    """The alarm clock of the periodic checkpoints; see `CheckpointCoordinator` for its clocks.

    `due` is on `clock`, which only goes forward; `next_time` is asked in seconds since 1970.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        next_time: Callable[[float], float] | None,
        rng: random.Random,
    ) -> None:
        self._interval = config.effective_interval
        self._pause = config.pause
        self._clock = clock
        self._wall_clock = wall_clock
        self._next_time = next_time
        self._rng = rng
        self._wall_due = -math.inf
        self.due: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether a next time is set."""
        return self.due is not None

    def start(self) -> None:
        """Set the first time: with an interval, after a random part of it.

        Raises:
            UserError: there is neither an interval nor a calendar.
        """
        if self._next_time is not None:
            self._by_calendar(self._next_time)
        elif self._interval is not None:
            # So that jobs which were started together do not all write at once.
            self.due = self._clock() + self._rng.uniform(self._pause, self._interval)
        else:
            raise UserError(
                "periodic checkpoints need a schedule: give checkpoint.interval or checkpoint.cron"
            )

    def stop(self) -> None:
        """Unset it."""
        self.due = None

    def postpone(self, due: float) -> None:
        """Fire at this time instead of when it would; the rhythm goes on from there."""
        if self.is_running:
            self._wall_due = -math.inf
            self.due = due

    def fire(self, now: float) -> bool:
        """Whether it is time; then the next time is set. What passed unnoticed is left out."""
        if self.due is None or now < self.due:
            return False
        if self._next_time is not None:
            if self._wall_clock() < self._wall_due:
                # The wall clock was set back, or runs slower: wait for the rest.
                self.due = now + (self._wall_due - self._wall_clock())
                return False
            self._by_calendar(self._next_time)
            return True
        interval = self._interval or 0.0
        self.due += (math.floor((now - self.due) / interval) + 1) * interval
        if self.due <= now:  # the sum was rounded down
            self.due = now + interval
        return True

    def _by_calendar(self, next_time: Callable[[float], float]) -> None:
        wall = self._wall_clock()
        self._wall_due = next_time(wall)
        self.due = self._clock() + max(0.0, self._wall_due - wall)


# -- the start -------------------------------------------------------------------------------------


class CheckpointIdCounter:
    """Where ids come from: from the first that the store says is free, and they only grow."""

    def __init__(self, first: int = 1) -> None:
        self._next = first

    @property
    def next_id(self) -> int:
        """The id that the next checkpoint gets."""
        return self._next

    def pass_over(self, taken: int) -> None:
        """Give out only ids above this one."""
        self._next = max(self._next, taken + 1)

    def get_and_increment(self) -> int:
        """Return the next id."""
        self._next += 1
        return self._next - 1


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
        self.last_completion = -math.inf
        self.force_full = False

    @property
    def queued(self) -> tuple[TriggerRequest, ...]:
        """What waits, the next one first."""
        return self._decider.queued

    def submit(
        self,
        properties: CheckpointProperties,
        location: str | None,
        *,
        is_periodic: bool,
        future: CheckpointFuture | None = None,
    ) -> CheckpointFuture:
        """Take in a request; it or another one may begin.

        Args:
            future: of who waits for it already.
        """
        now, number = self._clock(), next(self._numbers)
        future = future or CheckpointFuture()
        request = TriggerRequest(properties, is_periodic, now, number, location, future)
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

    def _load(self) -> Load:
        life = self._life
        return Load(
            self._clock(),
            life.triggering is not None,
            len(life.pending),
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
        base = self._life.base_id if options.checkpoint_type.shares_files else 0
        pending = self._pending(request, checkpoint_id)
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
        # Files are named by it: an id that was used may lie in the store already.
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

    def _pending(self, request: TriggerRequest, checkpoint_id: int) -> PendingCheckpoint:
        now, aligned = self._clock(), self._config.aligned_timeout
        return PendingCheckpoint(
            self._job_id,
            checkpoint_id,
            self._wall_clock(),
            request.properties,
            self._to_wait_for,
            deadline=now + self._config.timeout,
            boundary_deadline=math.inf if aligned is None else now + aligned,
            future=request.future,
            external_location=request.external_location,
        )


def _as_checkpoint_exception(error: Exception) -> CheckpointException:
    if isinstance(error, CheckpointException):
        return error
    return CheckpointException(reason_of(error), str(error), error)
