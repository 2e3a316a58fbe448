"""A chunk: the rows of one Arrow batch, key after key in the order their state is stored in.

Rows come sorted by the hash of their key, for that is what Spark sorts fastest; state lies by key
group and key. A chunk puts its keys in the second order, so that reads and writes of the state
server walk over neighbours instead of jumping about. Rows of a key stay as they came. Called by
the subtask; must not know what is done with a row.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moorage.engine.columns import GROUP_COLUMN, TIME_COLUMN
from moorage.engine.rows import column_values, group_starts
from moorage_state.keys import KeyCodec

__all__ = ["Chunk", "by_key", "chunk_of", "time_column", "times_of"]


class Chunk(NamedTuple):
    """Rows by key.

    Attributes:
        rows: the batch, its rows in the order of their keys.
        keys: the keys as functions see them.
        prefixes: what each key's stored state starts with.
        starts: where each key's rows begin.
        runs_on: whether the first key is the one that the chunk before ended with.
    """

    rows: pa.RecordBatch
    keys: list[Any]
    prefixes: list[bytes]
    starts: list[int]
    runs_on: bool


def chunk_of(
    batch: pa.RecordBatch, key_columns: Sequence[str], codec: KeyCodec, current: bytes
) -> Chunk:
    """The chunk of a batch that is not empty and holds no null key.

    The last key stays the last, because its rows may run on in the next batch, and so the first
    stays the first if its prefix is `current`.
    """
    groups = batch.column(GROUP_COLUMN)
    columns = [batch.column(name) for name in key_columns]
    starts = group_starts([groups, *columns])
    firsts = pa.array(starts)
    values = _values([column.take(firsts) for column in columns])
    ordered = codec.ordered(groups.take(firsts).to_numpy(), values, current)
    rows, begins = _rows_by_key(batch, starts, ordered.order)
    heads = pa.array(starts[ordered.order])
    keys = [column_values(column.take(heads)) for column in columns]
    return Chunk(
        rows,
        keys[0] if len(keys) == 1 else list(zip(*keys, strict=True)),
        ordered.prefixes,
        begins.tolist(),
        ordered.runs_on,
    )


def _values(columns: Sequence[pa.Array]) -> list[Sequence[Any]]:
    """The values of key columns, which hold no nulls; a single one of integers stays in NumPy."""
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        return [columns[0].to_numpy()]
    return [column_values(column) for column in columns]


def _rows_by_key(
    batch: pa.RecordBatch, starts: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """The rows with their keys in this order, and where each key's rows begin then."""
    if len(starts) == batch.num_rows:
        return batch.take(pa.array(order)), starts
    counts = np.diff(starts, append=batch.num_rows)[order]
    begins = np.cumsum(counts) - counts
    places = np.repeat(starts[order] - begins, counts) + np.arange(batch.num_rows)
    return batch.take(pa.array(places)), begins


def by_key(values: list[Any], starts: list[int]) -> Iterable[Sequence[Any]]:
    """The values of each key, which begin at `starts`."""
    if len(starts) == len(values):
        return zip(values, strict=True)
    return map(values.__getitem__, map(slice, starts, [*starts[1:], len(values)]))


def time_column(batch: pa.RecordBatch) -> pa.Array | None:
    """The event times; None where none is declared or no row has one."""
    if TIME_COLUMN not in batch.schema.names:
        return None
    column = batch.column(TIME_COLUMN)
    return None if column.null_count == len(column) else column


def times_of(batch: pa.RecordBatch) -> list[int | None] | None:
    """Event times of the rows in milliseconds; None where no row has one."""
    column = time_column(batch)
    return None if column is None else column_values(column)
