"""What a user writes: functions over keyed streams, and the contexts they are handed.

The names are Flink's (PyFlink users will know them); rows are named tuples as Spark users know
them. Called by the subtask on executors. Knows nothing of epochs, servers or checkpoints.
"""

from collections.abc import Callable, Iterable
from typing import Any

from moorage.tags import OutputTag
from moorage.timing import MAX_WATERMARK, NO_WATERMARK, TimeDomain, TimerService
from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed import (
    AggregatingState,
    FoldingState,
    KeyedStateStore,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)

__all__ = [
    "MAX_WATERMARK",
    "NO_WATERMARK",
    "KeyedProcessFunction",
    "ProcessContext",
    "RuntimeContext",
    "TimeDomain",
    "TimerService",
]


def nowhere(tag: OutputTag, row: Any) -> None:  # noqa: ARG001
    """Where side outputs of a context go that no operator has."""
    raise RuntimeError(f"no operator runs that could send rows: side_output={tag.name}")


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

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """One value per key, to which added values are reduced."""
        return self._store.reducing_state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """An accumulator per key, into which values are added."""
        return self._store.aggregating_state(descriptor)

    def get_folding_state(self, descriptor: FoldingStateDescriptor) -> FoldingState:
        """Deprecated: use `get_aggregating_state`."""
        return self._store.folding_state(descriptor)


class ProcessContext:
    """Handed to `process` and `on_timer`: whose turn it is, and when.

    Attributes:
        key: the current key: the column's value, or a tuple where several columns form the key.
    """

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self.key: Any = None
        self._timestamp: int | None = None
        self._domain: TimeDomain | None = None
        self._emit: Callable[[OutputTag, Any], None] = nowhere

    def get_current_key(self) -> Any:
        """The same as `key`, under the name that PyFlink gives it."""
        return self.key

    def timestamp(self) -> int | None:
        """Event time of the row, or of the timer that fires; None where none is declared."""
        return self._timestamp

    def time_domain(self) -> TimeDomain | None:
        """What kind of timer fires; None in `process`."""
        return self._domain

    def timer_service(self) -> TimerService:
        """Set and delete timers, read the watermark and processing time."""
        return self._timers

    def output(self, tag: OutputTag, row: Any) -> None:
        """Send a row to a side output; the same as yielding ``tag, row``.

        Raises:
            UserError: the operator does not declare the side output, or it is no row of it.
        """
        self._emit(tag, row)


class KeyedProcessFunction:
    """A function over the rows of one key at a time, with state and timers.

    Rows of a key come in this order: the order of their source partition; across source
    partitions by event time where one is declared. `process` and `on_timer` return None or an
    iterable of output rows (or are generators): tuples in the order of the declared output
    columns, or dicts; and pairs ``tag, row`` for side outputs. They must be deterministic: Spark
    may run them again on the same rows, and two runs that differ fail the epoch.

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

        `ctx.time_domain()` says of which kind. An event-time timer set here that is due already
        fires next. One that always sets the next never ends at `MAX_WATERMARK`: ask
        `current_watermark` first. With the backend batch, what is set at the end of a key is
        ignored.
        """
        raise TypeError(f"{type(self).__name__} does not define on_timer(timestamp, ctx)")

    def close(self) -> None:
        """Release what `open` took; called once after the last row, also after a failure."""
