"""What a user writes: functions over keyed streams, and the contexts they are handed.

The names are Flink's (PyFlink users will know them); rows are named tuples as Spark users know
them. Called by the subtask on executors. Knows nothing of epochs, servers or checkpoints.
"""

from collections.abc import Iterable
from operator import index
from typing import Any

from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed import (
    EventTimeTimers,
    KeyedStateStore,
    ListState,
    MapState,
    ValueState,
)

__all__ = [
    "MAX_WATERMARK",
    "NO_WATERMARK",
    "KeyedProcessFunction",
    "ProcessContext",
    "RuntimeContext",
    "TimerService",
]

MAX_WATERMARK = (1 << 63) - 1
"""The watermark after the last record of a bounded job: every event-time timer is due."""

NO_WATERMARK = -(1 << 63)
"""The watermark before any record with an event time was seen."""


class RuntimeContext:
    """Handed to `open`: gives the handles of the operator's keyed state."""

    def __init__(self, store: KeyedStateStore, uid: str, subtask: int, parallelism: int) -> None:
        self._store = store
        self.uid = uid
        self.subtask = subtask
        self.parallelism = parallelism

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """One value per key."""
        return self._store.value_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """A list per key; adding to it reads nothing."""
        return self._store.list_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """A map per key."""
        return self._store.map_state(descriptor)


class TimerService:
    """Event-time timers of the current key, and the watermark they follow.

    Times are integers: milliseconds since 1970-01-01 UTC.
    """

    def __init__(self, timers: EventTimeTimers | None, watermark: int) -> None:
        self._timers = timers
        self._watermark = watermark

    def current_watermark(self) -> int:
        """The event time up to which the stream is taken to be complete.

        It moves between epochs, never within one. `NO_WATERMARK` before the first event time,
        `MAX_WATERMARK` when a bounded job has seen its last record.
        """
        return self._watermark

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

    def _require(self) -> EventTimeTimers:
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


class ProcessContext:
    """Handed to `process` and `on_timer`: whose turn it is, and when.

    Attributes:
        key: the current key: the column's value, or a tuple where several columns form the key.
    """

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self.key: Any = None
        self._timestamp: int | None = None

    def get_current_key(self) -> Any:
        """The same as `key`, under the name that PyFlink gives it."""
        return self.key

    def timestamp(self) -> int | None:
        """Event time of the row, or of the timer that fires; None where none is declared."""
        return self._timestamp

    def timer_service(self) -> TimerService:
        """Set and delete timers, read the watermark."""
        return self._timers


class KeyedProcessFunction:
    """A function over the rows of one key at a time, with state and timers.

    Rows of a key come in this order: the order of their source partition; across source
    partitions by event time where one is declared. `process` and `on_timer` return None or an
    iterable of output rows (or are generators): tuples in the order of the declared output
    columns, or dicts. They must be deterministic: Spark may run them again on the same rows, and
    two runs that differ fail the epoch.

    An instance lives for one subtask and one epoch; what has to last goes into state. `open` is
    called at the start of each epoch in each subtask.
    """

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state handles; called once before the first row."""

    def process(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle one row, a named tuple of the stream's columns."""
        raise TypeError(f"{type(self).__name__} does not define process(row, ctx)")

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle a timer of the current key that has become due.

        A timer set here that is due already fires next. One that always sets the next never ends
        at `MAX_WATERMARK`: ask `current_watermark` first.
        """
        raise TypeError(f"{type(self).__name__} does not define on_timer(timestamp, ctx)")

    def close(self) -> None:
        """Release what `open` took; called once after the last row, also after a failure."""
