"""A clock that goes when it is told to."""

from datetime import UTC, datetime, timedelta

__all__ = ["FakeClock"]


class FakeClock:
    """Time, aware, in UTC; `advance` moves it, and `put` sets what it shows."""

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

    def put(self, seconds: float) -> None:
        """Put it forward by so many seconds, of which none has passed."""
        self._now += timedelta(seconds=seconds)
