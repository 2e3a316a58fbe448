"""When an epoch without input is due: for timers, where no row comes that would bring one.

Decides that a job without input neither misses its timers nor keeps two processors busy: between
two ticks lies at least the job's epoch interval, and data goes first. Called by the run each time
it looks around between epochs.
"""

import time
from collections.abc import Callable

from moorage.engine.event_time import Watermarks
from moorage.engine.subtask_plan import NEVER, UNKNOWN

__all__ = ["Ticking"]

_REST_SECONDS = 0.2
"""The least time between an epoch and a tick, however short the job's interval is."""

_QUIET_SECONDS = 1.0
"""Beyond the interval: when Spark has brought nothing for so long, its sources have nothing."""


class Ticking:
    """Looks at the time since the last epoch.

    Args:
        timers: whether any function of the job has timers.
        epoch_seconds: the job's epoch interval.
        clock: seconds that never go back.
    """

    def __init__(
        self, *, timers: bool, epoch_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timers = timers
        self._interval = max(epoch_seconds, _REST_SECONDS)
        self._clock = clock
        self._last = clock()

    def epoch_ended(self) -> None:
        """An epoch has just been committed."""
        self._last = self._clock()

    @property
    def quiet(self) -> bool:
        """Whether the sources seem to have nothing to read."""
        return self._clock() - self._last > _QUIET_SECONDS + self._interval

    def due(self, watermarks: Watermarks, next_timer: int, now_ms: int) -> bool:
        """Whether to run an epoch without input.

        Args:
            next_timer: the earliest processing-time timer; NEVER or UNKNOWN where that is so.
            now_ms: processing time.
        """
        if not self.timers:
            return False
        if next_timer not in {NEVER, UNKNOWN} and next_timer <= now_ms:
            return self._clock() - self._last >= self._interval
        return self.quiet and (next_timer == UNKNOWN or watermarks.advanced)
