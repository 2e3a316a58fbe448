"""When the next periodic checkpoint is due: by an interval, or by a calendar."""

import math
import random
from collections.abc import Callable

from moorage_state.coordinator.config import CheckpointConfig
from moorage_state.errors import UserError

__all__ = ["PeriodicTrigger"]


class PeriodicTrigger:
    """The alarm clock of the periodic checkpoints.

    Args:
        config: has the interval, if there is one.
        clock: seconds on a clock that only goes forward; `due` is on it.
        wall_clock: seconds since 1970.
        next_time: the first time of a calendar after a given one, both in seconds since 1970.
        rng: where the first delay comes from.
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
        self.missed = 0

    @property
    def is_running(self) -> bool:
        """Whether a next time is set."""
        return self.due is not None

    def start(self) -> None:
        """Set the first time: with an interval, after a random part of it.

        Jobs that were started together do not all write at once then.

        Raises:
            UserError: there is neither an interval nor a calendar.
        """
        if self._next_time is not None:
            self._by_calendar(self._next_time)
        elif self._interval is not None:
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
        """Whether it is time; then the next time is set.

        Times that passed unnoticed are left out and counted in `missed`.
        """
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
        missed = math.floor((now - self.due) / interval)
        self.missed += missed
        self.due += (missed + 1) * interval
        if self.due <= now:  # the sum was rounded down
            self.due = now + interval
        return True

    def _by_calendar(self, next_time: Callable[[float], float]) -> None:
        wall = self._wall_clock()
        self._wall_due = next_time(wall)
        self.due = self._clock() + max(0.0, self._wall_due - wall)
