"""A clock that goes when it is told to."""

from datetime import UTC, datetime, timedelta

__all__ = ["AnotherClock", "FakeClock"]


class FakeClock:
    """Time, aware, in UTC; `advance` moves it."""

    def __init__(self, start: datetime = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)) -> None:
        self._now = start
        self._passed = 0.0

    def now(self) -> datetime:
        """The time."""
        return self._now

    def tick(self) -> float:
        """Seconds that have passed."""
        return self._passed

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += timedelta(seconds=seconds)
        self._passed += seconds


class AnotherClock:
    """Another machine's, which goes with this one and may be set."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._ahead = timedelta(0)

    def now(self) -> datetime:
        """What it shows."""
        return self._clock.now() + self._ahead

    def tick(self) -> float:
        """Seconds that have passed."""
        return self._clock.tick()

    def put(self, seconds: float) -> None:
        """Put it forward by so many seconds, of which none has passed."""
        self._ahead += timedelta(seconds=seconds)
