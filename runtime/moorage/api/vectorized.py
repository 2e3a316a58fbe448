"""Vectorized functions over keyed streams: whole chunks of keys at once, state by column.

What a user writes where a Python call for every row costs too much.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moorage.api.functions import KeyedProcessFunction, OutputTag
from moorage_state.keyed import ValueState

_Columns: TypeAlias = "pa.Table | pa.RecordBatch"
_Made: TypeAlias = "_Columns | tuple[OutputTag, _Columns]"
BatchOutput: TypeAlias = "_Made | Iterable[_Made] | None"


class _States(Protocol):
    def get(self, state: Any) -> pa.Array: ...
    def put(self, state: Any, column: Any) -> None: ...


class BatchContext:
    """Handed to `process_batch`: the chunk's keys and their state.

    Attributes:
        starts: where each key's rows begin in the table; they lie together.
        key_index: for each row, the position of its key.
        timestamps: event times of the rows in milliseconds; None where none is declared.
    """

    def __init__(
        self,
        states: _States,
        starts: NDArray[np.int64],
        rows: int,
        timestamps: pa.Array | None,
        watermark: int,
        emit: Callable[[OutputTag, Any], None],
    ) -> None:
        self._states = states
        self._emit = emit
        self._watermark = watermark
        self.starts = starts
        counts = np.diff(starts, append=rows)
        self.key_index: NDArray[np.int64] = np.repeat(np.arange(len(starts)), counts)
        self.timestamps = timestamps

    def current_watermark(self) -> int:
        """The event time up to which the stream is taken to be complete."""
        return self._watermark

    def get_values(self, state: ValueState) -> pa.Array:
        """The values of a state as a column, one for each key, null where there is none.

        Raises:
            UserError: it is no value state of this function, or one with a time to live.
        """
        return self._states.get(state)

    def put_values(self, state: ValueState, column: Any) -> None:
        """Set a state for all keys of the chunk: an Arrow array of one value for each key.

        Null clears. A narrower type is widened; a struct may be given by some of its fields.

        Raises:
            StateTypeError: the column is not of the state's type.
            UserError: it has another length; or see `get_values`.
        """
        self._states.put(state, column)

    def output(self, tag: OutputTag, table: pa.Table | pa.RecordBatch) -> None:
        """Send rows to a side output; the same as yielding ``tag, table``.

        Raises:
            UserError: the operator does not declare the side output.
        """
        self._emit(tag, table)


class KeyedBatchFunction(KeyedProcessFunction):
    """A function over all rows of many keys at once, with value states as columns.

    `open` gets the handles of value states as for any function; `process_batch` reads and writes
    them through its context. A key comes once in a call, with its rows in their order, but its rows
    may be spread over several calls: what one call put, the next one gets. There are no timers.

    It must be deterministic, as a `KeyedProcessFunction` must be.
    """

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
