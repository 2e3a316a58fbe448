"""Rows in: from Arrow batches to the rows of each key as named tuples.

Decides how columns become Python values, whole columns at a time, and which rows are not processed:
those with a null key, or without an event time. Called by the subtask.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from moorage.engine.columns import (
    COUNT_COLUMN,
    GROUP_COLUMN,
    INPUT_COLUMN,
    NULLS_COLUMN,
    TIME_COLUMN,
    stream_column,
)
from moorage.engine.subtask_plan import SubtaskPlan
from moorage_state.keys import KeyCodec


def column_values(column: pa.Array) -> list[Any]:
    """The column as Python values; numbers without nulls take the short way through NumPy."""
    kind = column.type
    values: list[Any]
    # The short way: to_pylist() makes an Arrow scalar of each value first.
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        values = column.to_numpy(zero_copy_only=False).tolist()
    else:
        values = column.to_pylist()
        if (mapped := _with_maps(kind)) is not None:
            values = list(map(mapped, values))
    return values


def _with_maps(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Makes dicts of the lists of pairs that Arrow gives for maps; None where there are none."""
    if pa.types.is_map(kind):
        item = _with_maps(kind.item_type)
        if item is None:
            return lambda pairs: None if pairs is None else dict(pairs)
        return lambda pairs: None if pairs is None else {k: item(v) for k, v in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _with_maps(kind.value_type)
        if element is not None:
            return lambda values: None if values is None else [element(v) for v in values]
    if pa.types.is_struct(kind):
        fields = {f.name: inner for f in kind if (inner := _with_maps(f.type)) is not None}
        if fields:
            return lambda row: (
                None if row is None else row | {n: inner(row[n]) for n, inner in fields.items()}
            )
    return None


def group_starts(columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Positions at which any of `columns` (no nulls) differs from the row before; 0 first."""
    rows = len(columns[0])
    if rows == 0:
        return np.zeros(0, np.int64)
    changed = np.zeros(rows, dtype=bool)
    changed[0] = True
    for column in columns:
        differs = pc.not_equal(column.slice(1), column.slice(0, rows - 1))
        changed[1:] |= differs.to_numpy(zero_copy_only=False).astype(bool)
    return np.flatnonzero(changed)


class TupleReader:
    """Makes named tuples of a stream's columns out of Arrow batches."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        row = namedtuple("Row", self._columns, rename=True)  # type: ignore[misc]  # noqa: PYI024 - columns are known at run time only
        # What `row._make` does, without a Python frame for each row.
        self._make: Callable[[Iterable[Any]], Any] = partial(tuple.__new__, row)

    def rows(self, batch: pa.RecordBatch) -> list[Any]:
        """The rows of `batch`, which holds at least the stream's columns, by name."""
        values = [column_values(batch.column(name)) for name in self._columns]
        return list(map(self._make, zip(*values, strict=True)))


class TwoStreamReader:
    """Makes pairs of the rows of an operator over two streams: the side, and the named tuple."""

    def __init__(self, streams: Sequence[Sequence[str]]) -> None:
        self._readers = [TupleReader(columns) for columns in streams]

    def rows(self, batch: pa.RecordBatch) -> list[Any]:
        """The rows of `batch` in their order."""
        found: list[Any] = [None] * batch.num_rows
        for side, reader in enumerate(self._readers):
            structs = batch.column(stream_column(side))
            places = np.flatnonzero(structs.is_valid().to_numpy(zero_copy_only=False))
            mine = pa.RecordBatch.from_struct_array(structs.take(pa.array(places)))
            for place, row in zip(places.tolist(), reader.rows(mine), strict=True):
                found[place] = side, row
        return found


def reader_of(plan: SubtaskPlan) -> TupleReader | TwoStreamReader:
    """What makes of rows what `process` gets."""
    return TwoStreamReader(plan.streams) if plan.streams else TupleReader(plan.columns)


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
    """The chunk of a batch that is not empty and has no null key; it may go on with `current`."""
    groups = batch.column(GROUP_COLUMN)
    columns = [batch.column(name) for name in key_columns]
    starts = group_starts([groups, *columns])
    firsts = pa.array(starts)
    values = _values([column.take(firsts) for column in columns])
    # Rows come sorted by the hash of their key, which Spark sorts fastest; state lies by key group
    # and key. In that order the server walks over neighbours instead of jumping about. The last key
    # stays last, as its rows may run on in the next batch, and `current` first.
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


def counts_of(batch: pa.RecordBatch) -> NDArray[np.int64] | None:
    """For each row how many it stands for; None where each stands for itself."""
    if COUNT_COLUMN not in batch.schema.names:
        return None
    counts: NDArray[np.int64] = batch.column(COUNT_COLUMN).to_numpy()
    return counts


def count_rows(batch: pa.RecordBatch, which: NDArray[np.bool_] | None = None) -> int:
    """How many rows there are, or how many of those that a mask picks."""
    counts = counts_of(batch)
    if counts is None:
        return int(batch.num_rows if which is None else which.sum())
    return int(counts.sum() if which is None else counts[which].sum())


def times_of(batch: pa.RecordBatch) -> list[int | None] | None:
    """Event times of the rows in milliseconds; None where no row has one."""
    column = time_column(batch)
    return None if column is None else column_values(column)


class RowFilter:
    """Finds odd rows in batches of keyed rows; one for each attempt of a subtask.

    Attributes:
        null_feeds: by feed, how many rows had a null in their key.
        null_rows: how many of these had nulls alone.
        bad_times: how many others had no event time where their input declares one.
        first_bad_time: names the first of them; empty where there are none.
    """

    def __init__(self, plan: SubtaskPlan) -> None:
        self._plan = plan
        self.null_feeds: dict[int, int] = {}
        self.null_rows = self.bad_times = 0
        self.first_bad_time = ""

    def sort_out(
        self, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, Sequence[tuple[str, pa.RecordBatch]]]:
        """The rows to process, and the others with the side output that the plan has for them."""
        aside: list[tuple[str, pa.RecordBatch]] = []
        if (null := self._null_keys(batch)) is not None:
            rows, batch = _split(batch, null)
            self._count_null_keys(rows)
            # Nulls alone are what Spark makes of a line that it cannot read.
            self.null_rows += _null_rows(rows, self._plan)
            aside.append((self._plan.null_keys_to, rows))
        if (missing := missing_times(batch, self._plan.time_columns)) is not None:
            self._note_bad_time(batch, int(missing.argmax()))
            rows, batch = _split(batch, missing)
            self.bad_times += count_rows(rows)
            aside.append((self._plan.bad_times_to, rows))
        return batch, aside

    def _null_keys(self, batch: pa.RecordBatch) -> NDArray[np.bool_] | None:
        columns = [batch.column(name) for name in self._plan.key_columns]
        if not any(column.null_count for column in columns):
            return None
        null = np.zeros(batch.num_rows, dtype=bool)
        for column in columns:
            null |= column.is_null().to_numpy(zero_copy_only=False)
        return null

    def _count_null_keys(self, rows: pa.RecordBatch) -> None:
        feeds, counts = [0], [count_rows(rows)]
        # Beside a broadcast union the column is there, and null in rows of a single stream.
        if len(self._plan.time_columns) > 1:
            inputs = rows.column(INPUT_COLUMN).to_numpy()
            feeds = np.unique(inputs).tolist()
            counts = [count_rows(rows, inputs == feed) for feed in feeds]
        for feed, count in zip(feeds, counts, strict=True):
            self.null_feeds[feed] = self.null_feeds.get(feed, 0) + count

    def _note_bad_time(self, batch: pa.RecordBatch, row: int) -> None:
        if self.first_bad_time:
            return
        plan = self._plan
        values = tuple(batch.column(name)[row].as_py() for name in plan.key_columns)
        index = batch.column(INPUT_COLUMN)[row].as_py() if len(plan.time_columns) > 1 else 0
        clock = plan.inputs[index] if plan.inputs else ""
        source = f"input={clock} " if clock else ""
        key = values[0] if len(values) == 1 else values
        self.first_bad_time = f"{source}column={plan.time_columns[index]} key={key!r:.100}"


def missing_times(batch: pa.RecordBatch, time_columns: Sequence[str]) -> NDArray[np.bool_] | None:
    """Which rows have no event time although their input declares one; None where all have.

    Args:
        time_columns: see `SubtaskPlan`.
    """
    if not any(time_columns) or not batch.num_rows:
        return None
    column = batch.column(TIME_COLUMN)
    if not column.null_count:
        return None
    missing: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    if not all(time_columns):
        declared = np.array([bool(name) for name in time_columns])
        missing &= declared[batch.column(INPUT_COLUMN).to_numpy()]
    return missing if missing.any() else None


def _split(batch: pa.RecordBatch, odd: NDArray[np.bool_]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    mask = pa.array(odd)
    return batch.filter(mask), batch.filter(pc.invert(mask))


def _null_rows(batch: pa.RecordBatch, plan: SubtaskPlan) -> int:
    if NULLS_COLUMN in batch.schema.names:
        return int(pc.sum(batch.column(NULLS_COLUMN)).as_py() or 0)
    columns = [batch.column(name) for name in plan.columns]
    if plan.streams:
        # A field of a struct that is null is null, too.
        columns = [c for side in range(2) for c in batch.column(stream_column(side)).flatten()]
    null = np.ones(batch.num_rows, dtype=bool)
    for column in columns:
        null &= column.is_null().to_numpy(zero_copy_only=False)
    return int(null.sum())
