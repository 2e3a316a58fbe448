"""Rows of two sides by whole columns: which of them belong together, and columns of the pairs.

Called by the vectorized operators of joins.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from moorage.api.functions import OutputTag
from moorage.api.vectorized import BatchContext, KeyedBatchFunction
from moorage.api.window_times import Numbers, firsts_of
from moorage.api.windows import MAX_TIME, MIN_TIME
from moorage_state.columnar.codec import fitted
from moorage_state.types import parse_type

_MADE = 1 << 17
_FIRST_KEYS, _MOST_KEYS = 256, 4096
MOST_ROWS = 1 << 17
"""About so many rows that wait are held at once."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of some keys, in the order of the keys' positions and, of a key, of their times.

    Attributes:
        keys: for each row the position of its key.
        times: for each its event time in milliseconds.
        rows: their columns.
    """

    keys: Numbers
    times: Numbers
    rows: pa.StructArray

    def take(self, places: Any) -> "Rows":
        """Some of them, in order."""
        return Rows(self.keys[places], self.times[places], self.rows.take(pa.array(places)))

    def of_keys(self, first: int, end: int) -> "Rows":
        """Those of the keys from one position on to before another."""
        begin, stop = np.searchsorted(self.keys, (first, end))
        some = slice(begin, stop)
        return Rows(self.keys[some], self.times[some], self.rows.slice(begin, stop - begin))

    def merged(self, later: "Rows") -> "Rows":
        """These and others; of a time, these go first."""
        if not len(self.keys):
            return later
        if not len(later.keys):
            return self
        keys = np.concatenate((self.keys, later.keys))
        times = np.concatenate((self.times, later.times))
        order = np.lexsort((times, keys))
        rows = pa.concat_arrays([self.rows, later.rows])
        return Rows(keys[order], times[order], rows.take(pa.array(order)))

    def cells(self) -> tuple[Numbers, Numbers]:
        """Their keys and times, each pair once."""
        firsts = firsts_of(self.keys, self.times)
        return self.keys[firsts], self.times[firsts]

    def spans(self, keys: Numbers, earliest: Numbers, latest: Numbers) -> tuple[Numbers, Numbers]:
        """Where those of a key begin and end whose times are not before and not after others.

        Args:
            keys, earliest, latest: of each span.
        """
        if len(self.keys) and self.keys[0] == self.keys[-1] and (keys == self.keys[0]).all():
            begins = np.searchsorted(self.times, earliest)
            return begins, np.searchsorted(self.times, latest, side="right")
        # A key and a time do not fit into one number; a key and the rank of a time do.
        known = np.unique(self.times)
        width = len(known) + 1
        places = self.keys * width + np.searchsorted(known, self.times)
        begins = np.searchsorted(places, keys * width + np.searchsorted(known, earliest))
        after = np.searchsorted(known, latest, side="right")
        return begins, np.searchsorted(places, keys * width + after)


def stored_rows(column: pa.Array, places: Numbers, kind: str) -> pa.StructArray:
    """Some rows of a column, as a state of this DDL type has them."""
    return fitted(column.take(pa.array(places)), parse_type(kind))


def put_rows(ctx: BatchContext, state: Any, old: Rows, new: Rows) -> None:
    """Let rows wait.

    Args:
        old: what waits already of their keys and times, and stays before them.
    """
    rows = old.merged(new)
    firsts = firsts_of(rows.keys, rows.times)
    offsets = pa.array(np.append(firsts, len(rows.keys)), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, rows.rows)
    ctx.put_map_values(state, rows.keys[firsts], rows.times[firsts], lists)


def forget(ctx: BatchContext, state: Any, keys: Numbers, times: Numbers) -> None:
    """Remove what waits of these keys at these times."""
    ctx.put_map_values(state, keys, times, pa.nulls(len(keys)))


def aside(
    function: KeyedBatchFunction, tag: OutputTag | None, late: pa.StructArray
) -> Iterator[Any]:
    """Late rows to their side output; without one they are counted as dropped."""
    if tag is None:
        function.late_rows_dropped += len(late)
    elif len(late):
        yield tag, pa.RecordBatch.from_struct_array(late)


NO_ROWS = Rows(np.zeros(0, np.int64), np.zeros(0, np.int64), pa.array([], pa.struct([])))


def rows_of(keys: Numbers, times: Numbers, lists: pa.ListArray) -> Rows:
    """The rows of lists, each of which has a key and a time; a null one has none."""
    lengths = np.asarray(lists.value_lengths().fill_null(0), np.int64)
    return Rows(np.repeat(keys, lengths), np.repeat(times, lengths), lists.flatten())


def register_earliest(ctx: BatchContext, *dues: tuple[Numbers, Numbers]) -> None:
    """Have a timer of each key at the earliest of its times, or before.

    A timer for each row costs more than all else; who is called for the earliest sets the next one.

    Args:
        dues: positions of keys, and for each a time.
    """
    keys = np.concatenate([of for of, _ in dues])
    times = np.concatenate([at for _, at in dues])
    order = np.lexsort((times, keys))
    keys, times = keys[order], times[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    ctx._register_first(keys[first], times[first])  # noqa: SLF001 - of the engine, and of joins


def shifted(times: Numbers, by: int) -> Numbers:
    """Times so much later, but none that are no times."""
    by = max(-MAX_TIME, min(by, MAX_TIME))
    if by < 0:
        return np.maximum(times, MIN_TIME - by) + by
    return np.minimum(times, MAX_TIME - by) + by


def each_pair(begins: Numbers, counts: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Of rows to each of which some others belong that lie together, each with each of them.

    Args:
        begins, counts: for each row where the others begin, and how many they are.

    Returns:
        Positions of rows and of others, some pairs at a time.
    """
    until = np.cumsum(counts)
    before = begins - (until - counts)
    found = int(until[-1]) if len(until) else 0
    for first in range(0, found, _MADE):
        pair = np.arange(first, min(first + _MADE, found))
        row = np.searchsorted(until, pair, side="right")
        yield row, pair + before[row]


class Portions:
    """Goes through keys or windows, so many at a time that their rows are not too many.

    One is held as a whole.

    Attributes:
        rows: how many those have that were given last; whoever goes through says so.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._most = _FIRST_KEYS
        self.rows = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The first of some, and the one after the last."""
        at = 0
        while at < self._count:
            end = min(at + self._most, self._count)
            self.rows = 0
            yield at, end
            # As many as have so many rows if those that come have as many.
            fitting = (end - at) * MOST_ROWS // max(1, self.rows)
            self._most = max(1, min(2 * self._most, fitting, _MOST_KEYS))
            at = end


class Picked:
    """Columns of some rows, taken when they are asked for."""

    def __init__(self, rows: pa.StructArray, places: Any) -> None:
        self._rows, self._places = rows, pa.array(places)

    def __getitem__(self, name: str) -> pa.Array:
        return self._rows.field(name).take(self._places)


class SelectedPairs:
    """Makes batches of columns of both sides.

    Args:
        named: for each column of the result, "left.column", "right.column" or a time of the join.
    """

    def __init__(self, named: Mapping[str, str]) -> None:
        self._named = {name: tuple(given.split(".", 1)) for name, given in named.items()}

    def batch(self, **sides: Mapping[str, pa.Array] | Picked) -> pa.RecordBatch:
        """The columns that were named, of what has each of them."""
        return pa.RecordBatch.from_pydict(
            {name: sides[of][which] for name, (of, which) in self._named.items()}
        )

    def __contains__(self, column: str) -> bool:
        return tuple(column.split(".", 1)) in self._named.values()


def require_times(ctx: BatchContext) -> Numbers:
    """The event times of a call's rows, which all have one."""
    assert ctx.timestamps is not None  # noqa: S101  who made the join has looked
    times: Numbers = ctx.timestamps.to_numpy()
    return times
