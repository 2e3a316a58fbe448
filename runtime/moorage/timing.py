"""Time as a user function sees it: the watermark, processing time, and timers of both.

Handed out by the contexts of `moorage.functions`. Knows nothing of epochs but that the engine fixes
both times for one: within an epoch neither moves.
"""

from moorage_state.keyed import KeyTimers, TimeDomain
from moorage_state.keyed.timers import timer_time

__all__ = ["MAX_WATERMARK", "NO_WATERMARK", "TimeDomain", "TimerService"]

MAX_WATERMARK = (1 << 63) - 1
"""The watermark after the last record of a bounded job: every event-time timer is due."""

NO_WATERMARK = -(1 << 63)
"""The watermark before any record with an event time was seen."""


class TimerService:
    """Timers of the current key, and the two times they follow.

    Times are integers: milliseconds since 1970-01-01 UTC.
    """

    def __init__(self, timers: KeyTimers | None, watermark: int, now_ms: int) -> None:
        self._timers = timers
        self._watermark = watermark
        self._now_ms = now_ms

    def current_watermark(self) -> int:
        """The event time up to which the stream is taken to be complete.

        In `on_timer` of an event-time timer it is at or past the timer. It moves between epochs;
        within one only for a key of an operator with timers that goes by a single input, as that
        key's rows do. `NO_WATERMARK` before the first event time, `MAX_WATERMARK` when a bounded
        job has seen its last record.
        """
        return self._watermark

    def current_processing_time(self) -> int:
        """The driver's clock when it began the epoch.

        One number for all subtasks and attempts of an epoch, so that functions that use it stay
        deterministic. It never goes back, not after a restore either.
        """
        return self._now_ms

    def register_event_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called for the current key at `timestamp`; once per key and time.

        Raises:
            RuntimeError: when the function has no `on_timer`.
            TypeError: when `timestamp` is not an integer.
            ValueError: when it does not fit 64 bits.
        """
        self._require().register(timer_time(timestamp))

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the current key's timer at `timestamp`, if it is set."""
        self._require().delete(timer_time(timestamp))

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called for the current key once processing time is at `timestamp`.

        Once per key and time; also when no row comes. A time that has passed fires when the key's
        rows are done; if `on_timer` sets it, in the next epoch, unless it is later than the
        processing-time timer that fires.

        Raises: see `register_event_time_timer`.
        """
        self._require().register(timer_time(timestamp), TimeDomain.PROCESSING_TIME)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the current key's processing-time timer at `timestamp`, if it is set."""
        self._require().delete(timer_time(timestamp), TimeDomain.PROCESSING_TIME)

    def _require(self) -> KeyTimers:
        if self._timers is None:
            raise RuntimeError(
                "this function sets a timer but does not define on_timer(timestamp, ctx)"
            )
        return self._timers
