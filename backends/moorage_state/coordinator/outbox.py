"""What one call of the coordinator leads to: effects in order, then the ends of futures."""

from collections import deque

from moorage_state.coordinator.effects import Effect, ScheduleAt
from moorage_state.coordinator.future import CheckpointFuture
from moorage_state.coordinator.pending import CompletedCheckpoint
from moorage_state.coordinator.reasons import CheckpointException

__all__ = ["Outbox"]


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
