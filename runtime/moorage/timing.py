"""Time as a user function sees it: the watermark, processing time, and timers of both.

Handed out by the contexts of `moorage.functions`. Knows nothing of epochs but that the engine fixes
both times for one: within an epoch neither moves.
"""

from operator import index
from typing import Any

from moorage_state.keyed import KeyTimers, TimeDomain

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

        It moves between epochs, never within one. `NO_WATERMARK` before the first event time,
        `MAX_WATERMARK` when a bounded job has seen its last record.
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
        self._require().register(_milliseconds(timestamp))

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the current key's timer at `timestamp`, if it is set."""
        self._require().delete(_milliseconds(timestamp))

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called for the current key once processing time is at `timestamp`.

        Once per key and time; also when no row comes. A time that has passed fires when the key's
        rows are done; from within `on_timer` of that time or a later one, in the next epoch.

        Raises: see `register_event_time_timer`.
        """
        self._require().register(_milliseconds(timestamp), TimeDomain.PROCESSING_TIME)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the current key's processing-time timer at `timestamp`, if it is set."""
        self._require().delete(_milliseconds(timestamp), TimeDomain.PROCESSING_TIME)

    def _require(self) -> KeyTimers:
        if self._timers is None:
            raise RuntimeError(
                "this function sets a timer but does not define on_timer(timestamp, ctx)"
            )
        return self._timers


def _milliseconds(timestamp: Any) -> int:
    try:
        time_ms = index(timestamp)
    except TypeError as exc:
        raise TypeError(
            f"a timer's time is an integer of milliseconds since 1970 UTC: got={timestamp!r} of "
            f"type {type(timestamp).__name__}"
        ) from exc
    if not NO_WATERMARK <= time_ms <= MAX_WATERMARK:
        raise ValueError(f"a timer's time does not fit 64 bits: got={time_ms}")
    return time_ms
