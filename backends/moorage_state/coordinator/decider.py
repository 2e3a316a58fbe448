"""Which requested checkpoint may start, which waits and which is turned away."""

from bisect import insort
from dataclasses import dataclass, field
from typing import NamedTuple

from moorage_state.coordinator.future import CheckpointFuture
from moorage_state.coordinator.properties import CheckpointProperties
from moorage_state.coordinator.reasons import CheckpointFailureReason
from moorage_state.errors import Bug

__all__ = ["CheckpointRequestDecider", "Decision", "Load", "TriggerRequest"]


@dataclass(frozen=True, slots=True)
class TriggerRequest:
    """A checkpoint that somebody asked for.

    Attributes:
        timestamp: of the request, on the coordinator's clock.
        number: of the request, so that the order is complete.
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
    """What the decision depends on beside the queue.

    Attributes:
        now: on the coordinator's clock.
        is_triggering: a trigger waits for its boundary.
        pending: checkpoints that have not ended.
        cleaning: checkpoints being deleted.
        last_completion: on the coordinator's clock.
    """

    now: float
    is_triggering: bool
    pending: int
    cleaning: int
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
        if load.is_triggering or not self._queue or load.cleaning > self._max_concurrent:
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
