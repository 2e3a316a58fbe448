"""Joins in windows by whole columns: rows of both sides into windows, and pairs out of them.

Does what `window_join.WindowJoinOperator` does one row at a time, over the same state, where
columns of pairs are asked for: in `Tumbling` and `Sliding` windows with their own trigger, which
are gone once they end. Functions of one's own are called for rows, so they go by rows.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from moorage.api.functions import RuntimeContext
from moorage.api.join_functions import SIDES
from moorage.api.vectorized import BatchContext, DueTimers, KeyedBatchFunction
from moorage.api.window_operator import CONTENTS, NAMESPACE
from moorage.api.window_times import Numbers, WindowTimes, instants, row_times
from moorage.api.windows import AtEnd, ByEnd, Sliding, Windowing
from moorage_state.descriptors import ListStateDescriptor

_FIRST_WINDOWS, _MOST_WINDOWS = 256, 4096
_ROWS = 1 << 17
"""About so many rows of windows are held at once; one window is held as a whole."""

_MADE = 1 << 17


def joins_by_column(windows: Windowing) -> bool:
    """Whether the pairs of such windows are found by columns."""
    own_trigger = type(windows.trigger) is AtEnd
    return isinstance(windows.assigner, Sliding) and own_trigger and not windows.lateness_ms


class WindowPairs(ByEnd, KeyedBatchFunction):
    """Columns of all pairs of rows that fall into one window.

    Args:
        row: the DDL type of what is kept: a row of either side.
        named: for each column of the result, "left.column", "right.column" or a time of the window.
    """

    def __init__(self, windows: Windowing, row: str, named: Mapping[str, str]) -> None:
        self._windows = WindowTimes(windows)
        self.by_end = windows.by_end
        self._row = row
        self._named = {name: tuple(given.split(".", 1)) for name, given in named.items()}

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        self._contents = ctx.get_namespaced_state(
            ListStateDescriptor(CONTENTS, self._row), NAMESPACE
        )

    def process_batch(self, keys: pa.Array, table: pa.RecordBatch, ctx: BatchContext) -> None:  # noqa: ARG002
        """Put rows of both sides into their windows."""
        windows, watermark = self._windows, ctx.current_watermark()
        times = row_times(table.num_rows, ctx, windows.reach, by_event=windows.by_event)
        late = windows.late(times, watermark)
        if late is not None:
            self.late_rows_dropped += int(late.sum())
        rows = pa.StructArray.from_arrays([table.column(side) for side in SIDES], names=SIDES)
        for span in windows.spans(table.num_rows):
            some = slice(span.start, span.stop)
            pairs = windows.assigned(ctx.key_index[some], times[some], watermark)
            if not len(pairs.keys):
                continue
            mine = rows.slice(span.start, len(span))
            if pairs.rows is not None:
                mine = mine.take(pa.array(pairs.rows))
            ends = pairs.starts + windows.size
            ctx.append_namespaced_values(
                self._contents, pairs.keys, pairs.starts, ends, column=mine
            )
            firsts = pairs.firsts()
            ctx.register_timers(pairs.keys[firsts], ends[firsts] - 1, windows.domain)

    def on_timers(self, keys: pa.Array, timers: DueTimers, ctx: BatchContext) -> Iterator[Any]:  # noqa: ARG002
        """Pairs of windows that end, which are forgotten."""
        if timers.domain is not self._windows.domain:
            return
        index, starts, ends = self._windows.ending(timers, 0, self.earlier)
        at, most = 0, _FIRST_WINDOWS
        while at < len(index):
            some = slice(at, at + most)
            window = starts[some], ends[some]
            lists = ctx.get_namespaced_lists(self._contents, index[some], *window)
            yield from self._pairs(lists, *window)
            ctx.clear_namespaced_lists(self._contents, index[some], *window)
            at += most
            # As many as have so many rows if those that come are as long.
            fitting = most * _ROWS // max(1, len(lists.values))
            most = max(1, min(2 * most, fitting, _MOST_WINDOWS))

    def _pairs(
        self, lists: pa.ListArray, starts: Numbers, ends: Numbers
    ) -> Iterator[pa.RecordBatch]:
        """Each left row of a window with each right one, some pairs at a time."""
        rows, borders = lists.values, lists.offsets.to_numpy()
        lefts, rights = (_Side(rows.field(side), borders) for side in SIDES)
        counts = lefts.counts * rights.counts
        until = np.cumsum(counts)
        found = int(until[-1]) if len(until) else 0
        for first in range(0, found, _MADE):
            pair = np.arange(first, min(first + _MADE, found))
            window = np.searchsorted(until, pair, side="right")
            left, right = np.divmod(pair - (until[window] - counts[window]), rights.counts[window])
            picked: dict[str, Mapping[str, pa.Array] | _Picked] = {
                "left": lefts.picked(window, left),
                "right": rights.picked(window, right),
                "window": {"start": instants(starts[window]), "end": instants(ends[window])},
            }
            columns = {name: picked[of][which] for name, (of, which) in self._named.items()}
            yield pa.RecordBatch.from_pydict(columns)


class _Side:
    """The rows of one side in some windows.

    Attributes:
        counts: how many each window has.
    """

    def __init__(self, structs: pa.StructArray, borders: Numbers) -> None:
        self._structs = structs
        there = np.asarray(structs.is_valid())
        self._places = np.flatnonzero(there)
        before = np.concatenate(([0], np.cumsum(there)))[borders]
        self._begins = before[:-1]
        self.counts: Numbers = np.diff(before)

    def picked(self, window: Numbers, nth: Numbers) -> "_Picked":
        """The columns of rows that are the `nth` of their window."""
        return _Picked(self._structs, pa.array(self._places[self._begins[window] + nth]))


class _Picked:
    """Columns of some rows, taken when they are asked for."""

    def __init__(self, structs: pa.StructArray, places: pa.Array) -> None:
        self._structs, self._places = structs, places

    def __getitem__(self, name: str) -> pa.Array:
        return self._structs.field(name).take(self._places)
