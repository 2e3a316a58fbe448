"""Vectorized functions over keyed streams: whole chunks of keys at once, state by column.

What a user writes where a Python call for every row costs too much.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moorage.api.functions import KeyedProcessFunction, OutputTag, to_be_defined
from moorage_state.keyed import TimeDomain, ValueState

_Columns: TypeAlias = "pa.Table | pa.RecordBatch"
_Made: TypeAlias = "_Columns | tuple[OutputTag, _Columns]"
BatchOutput: TypeAlias = "_Made | Iterable[_Made] | None"


Positions: TypeAlias = "NDArray[np.int64] | Sequence[int]"


class _States(Protocol):
    def get(self, state: Any, of: "Positions | None" = None) -> pa.Array: ...
    def put(self, state: Any, column: Any, of: "Positions | None" = None) -> None: ...
    def get_at(self, state: Any, of: Positions, namespaces: Sequence[Positions]) -> pa.Array: ...
    def put_at(
        self, state: Any, of: Positions, namespaces: Sequence[Positions], column: Any
    ) -> None: ...
    def lists_at(
        self, state: Any, of: Positions, namespaces: Sequence[Positions]
    ) -> pa.ListArray: ...
    def append_at(
        self, state: Any, of: Positions, namespaces: Sequence[Positions], column: Any
    ) -> None: ...
    def clear_lists_at(
        self, state: Any, of: Positions, namespaces: Sequence[Positions]
    ) -> None: ...

    def map_at(self, state: Any, of: Positions, map_keys: Positions) -> pa.Array: ...
    def put_map_at(self, state: Any, of: Positions, map_keys: Positions, column: Any) -> None: ...
    def map_entries(self, state: Any, of: Positions) -> "MapEntries": ...


class MapEntries(NamedTuple):
    """Entries of some keys' maps, those of a key together, in the order of their own keys.

    Attributes:
        key_index: for each, the position of its key.
        map_keys: for each, its own key in the map.
        values: for each, its value.
    """

    key_index: NDArray[np.int64]
    map_keys: NDArray[np.int64]
    values: pa.Array


class _Timers(Protocol):
    def register(
        self, positions: Sequence[int], times: Sequence[int], domain: TimeDomain, now_ms: int
    ) -> None: ...
    def register_first(self, positions: Sequence[int], times: Sequence[int]) -> None: ...
    def delete(
        self, positions: Sequence[int], times: Sequence[int], domain: TimeDomain
    ) -> None: ...


class DueTimers(NamedTuple):
    """Timers of some keys that are due, by key and time.

    Attributes:
        domain: what kind they are of.
        key_index: for each, the position of its key.
        times: for each, its time in milliseconds since 1970 UTC.
    """

    domain: TimeDomain
    key_index: NDArray[np.int64]
    times: NDArray[np.int64]


class BatchContext:
    """Handed to `process_batch` and `on_timers`: the chunk's keys, their state and their timers.

    Attributes:
        starts: where each key's rows begin in the table; they lie together.
        key_index: for each row, the position of its key.
        timestamps: event times of the rows in milliseconds; None where none is declared.
        counts: for each row how many it stands for; None, as always for functions of yours: itself.

    In `on_timers` there are no rows.
    """

    def __init__(
        self,
        states: _States,
        starts: NDArray[np.int64],
        rows: int,
        timestamps: pa.Array | None,
        watermark: int,
        emit: Callable[[OutputTag, Any], None],
        timers: _Timers | None = None,
        now_ms: int = 0,
        *,
        counts: NDArray[np.int64] | None = None,
    ) -> None:
        self._timers = timers
        self._now_ms = now_ms
        self._states = states
        self._emit = emit
        self._watermark = watermark
        self.starts = starts
        lengths = np.diff(starts, append=rows)
        self.key_index: NDArray[np.int64] = np.repeat(np.arange(len(starts)), lengths)
        self.timestamps = timestamps
        self.counts = counts

    def current_watermark(self) -> int:
        """The event time up to which the stream is taken to be complete."""
        return self._watermark

    def current_processing_time(self) -> int:
        """See `TimerService.current_processing_time`."""
        return self._now_ms

    def register_timers(
        self, key_index: Positions, times: Positions, domain: TimeDomain = TimeDomain.EVENT_TIME
    ) -> None:
        """Have `on_timers` called for keys at times; once for each key, time and domain.

        Args:
            key_index: for each timer the position of its key.
            times: for each its time in milliseconds since 1970 UTC.

        Raises:
            RuntimeError: the function has no `on_timers`.
        """
        self._require().register(_listed(key_index), _listed(times), domain, self._now_ms)

    def _register_first(self, key_index: Positions, times: Positions) -> None:
        """Have `on_timers` called by event time for keys, each once, where nothing calls before."""
        self._require().register_first(_listed(key_index), _listed(times))

    def delete_timers(
        self, key_index: Positions, times: Positions, domain: TimeDomain = TimeDomain.EVENT_TIME
    ) -> None:
        """Delete timers, those of them that are set; see `register_timers`."""
        self._require().delete(_listed(key_index), _listed(times), domain)

    def _require(self) -> _Timers:
        if self._timers is None:
            raise RuntimeError(
                "this function sets timers but does not define on_timers(keys, timers, ctx)"
            )
        return self._timers

    def get_namespaced_values(
        self, state: Any, key_index: Positions, *namespaces: Positions
    ) -> pa.Array:
        """The values of a namespaced state as a column, null where there is none.

        Args:
            state: what `RuntimeContext.get_namespaced_state` gave for a value, reducing or
                aggregating state (then these are accumulators), with namespaces of integers.
            key_index: for each value the position of its key.
            namespaces: for each value its namespace, an array for each of its columns.

        Raises:
            UserError: it is no such state, or one with a time to live; or there are not as many
                namespaces as positions.
        """
        return self._states.get_at(state, key_index, namespaces)

    def put_namespaced_values(
        self, state: Any, key_index: Positions, *namespaces: Positions, column: Any
    ) -> None:
        """Set a namespaced state, see `get_namespaced_values`; null clears.

        Raises:
            StateTypeError: the column is not of the state's type.
            UserError: it has another length; or see `get_namespaced_values`.
        """
        self._states.put_at(state, key_index, namespaces, column)

    def get_namespaced_lists(
        self, state: Any, key_index: Positions, *namespaces: Positions
    ) -> pa.ListArray:
        """The lists of a namespaced list state, empty where there is none.

        All of them are held at once: ask for some at a time where they may be long.

        Args:
            state: what `RuntimeContext.get_namespaced_state` gave for a list state, with namespaces
                of integers.
            key_index, namespaces: see `get_namespaced_values`; each list once.

        Raises:
            UserError: it is no such state, or one with a time to live.
        """
        return self._states.lists_at(state, key_index, namespaces)

    def append_namespaced_values(
        self, state: Any, key_index: Positions, *namespaces: Positions, column: Any
    ) -> None:
        """Add values at the end of lists, see `get_namespaced_lists`; one list may get several.

        Raises:
            StateTypeError: the column is not of the type of the lists' elements, or has a null.
            UserError: it has another length; or see `get_namespaced_lists`.
        """
        self._states.append_at(state, key_index, namespaces, column)

    def clear_namespaced_lists(
        self, state: Any, key_index: Positions, *namespaces: Positions
    ) -> None:
        """Remove lists, those of them that are there; see `get_namespaced_lists`."""
        self._states.clear_lists_at(state, key_index, namespaces)

    def get_map_values(self, state: Any, key_index: Positions, map_keys: Positions) -> pa.Array:
        """One entry of each of many keys' maps as a column, null where there is none.

        Args:
            state: what `RuntimeContext.get_map_state` gave for a map whose keys are `long`.
            key_index: for each value the position of its key.
            map_keys: for each value its own key in the map.

        Raises:
            UserError: it is no such state, or one with a time to live; or there are not as many
                `map_keys` as positions.
        """
        return self._states.map_at(state, key_index, map_keys)

    def put_map_values(
        self, state: Any, key_index: Positions, map_keys: Positions, column: Any
    ) -> None:
        """Set entries, see `get_map_values`; null removes. Of one that comes twice the last counts.

        Raises:
            StateTypeError: the column is not of the type of the map's values.
            UserError: it has another length; or see `get_map_values`.
        """
        self._states.put_map_at(state, key_index, map_keys, column)

    def get_map_entries(self, state: Any, key_index: Positions) -> MapEntries:
        """All entries of the maps of some keys, each of which is named once.

        All of them are held at once: ask for some keys at a time where they may be many.

        Raises:
            UserError: see `get_map_values`.
        """
        return self._states.map_entries(state, key_index)

    def get_values(self, state: ValueState, key_index: "Positions | None" = None) -> pa.Array:
        """The values of a state as a column, one for each key, null where there is none.

        Args:
            state: what `RuntimeContext.get_state` gave.
            key_index: the positions of the keys; None: all.

        Raises:
            UserError: it is no value state of this function, or one with a time to live.
        """
        return self._states.get(state, key_index)

    def put_values(
        self, state: ValueState, column: Any, key_index: "Positions | None" = None
    ) -> None:
        """Set a state for all keys of the chunk: an Arrow array of one value for each key.

        Null clears. A narrower type is widened; a struct may be given by some of its fields.

        Args:
            state: what `RuntimeContext.get_state` gave.
            column: the values.
            key_index: the positions of the keys, each once; None: all.

        Raises:
            StateTypeError: the column is not of the state's type.
            UserError: it has another length; or see `get_values`.
        """
        self._states.put(state, column, key_index)

    def output(self, tag: OutputTag, table: pa.Table | pa.RecordBatch) -> None:
        """Send rows to a side output; the same as yielding ``tag, table``.

        Raises:
            UserError: the operator does not declare the side output.
        """
        self._emit(tag, table)


def _listed(given: Positions) -> list[int]:
    numbers: list[int] = np.asarray(given, np.int64).tolist()
    return numbers


class KeyedBatchFunction(KeyedProcessFunction):
    """A function over all rows of many keys at once, with states as columns.

    `open` gets the handles of states as for any function; `process_batch` reads and writes
    them through its context. A key comes once in a call, with its rows in their order, but its rows
    may be spread over several calls: what one call put, the next one gets. Where `on_timers` is
    defined, timers can be set; time stands still within an epoch.

    It must be deterministic, as a `KeyedProcessFunction` must be.

    Attributes:
        reads: the columns of the stream that `process_batch` gets, beside those of the key: others
            are not read from the source where it can leave them out; None: all.
    """

    reads: tuple[str, ...] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """See `KeyedProcessFunction`."""
        super().__init_subclass__(**options)
        cls.has_timers = cls.on_timers is not KeyedBatchFunction.on_timers

    @to_be_defined
    def process_batch(
        self,
        keys: pa.Array,  # noqa: ARG002
        table: pa.RecordBatch,  # noqa: ARG002
        ctx: BatchContext,  # noqa: ARG002
    ) -> BatchOutput:
        """Handle the rows of some keys.

        Args:
            keys: the keys, each once; structs of the key columns where there are several.
            table: the stream's columns, the rows of a key together, in the order of `keys`.

        Returns:
            Arrow tables or batches of the declared output columns, by name, and pairs
            ``tag, table`` for side outputs; or None.
        """
        raise TypeError(f"{type(self).__name__} does not define process_batch(keys, table, ctx)")

    def on_timers(
        self,
        keys: pa.Array,  # noqa: ARG002
        timers: DueTimers,  # noqa: ARG002
        ctx: BatchContext,  # noqa: ARG002
    ) -> BatchOutput:
        """Handle timers of one kind that are due, of some keys; gives what `process_batch` gives.

        For a key, an epoch is: timers that are due, its rows, timers that have become due.
        """
        raise TypeError(f"{type(self).__name__} does not define on_timers(keys, timers, ctx)")
