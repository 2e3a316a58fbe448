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
from moorage.api.join_columns import Picked, Portions, SelectedPairs, each_pair
from moorage.api.join_functions import SIDES
from moorage.api.vectorized import BatchContext, DueTimers, KeyedBatchFunction
from moorage.api.window_operator import CONTENTS, NAMESPACE
from moorage.api.window_times import Numbers, WindowTimes, instants, row_times
from moorage.api.windows import AtEnd, ByEnd, Sliding, Windowing
from moorage_state.descriptors import ListStateDescriptor


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
        self._selected = SelectedPairs(named)

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
        index, starts, ends = self._windows.over(timers, ctx, self.earlier)
        for first, end in (portions := Portions(len(index))):
            window = starts[first:end], ends[first:end]
            lists = ctx.get_namespaced_lists(self._contents, index[first:end], *window)
            portions.rows = len(lists.values)
            yield from self._pairs(lists, *window)
            ctx.clear_namespaced_lists(self._contents, index[first:end], *window)

    def _pairs(
        self, lists: pa.ListArray, starts: Numbers, ends: Numbers
    ) -> Iterator[pa.RecordBatch]:
        """Each left row of a window with each right one, some pairs at a time."""
        rows, borders = lists.values, lists.offsets.to_numpy()
        lefts, rights = (_Side(rows.field(side), borders) for side in SIDES)
        windows = np.repeat(np.arange(len(starts)), lefts.counts)
        for left, right in each_pair(rights.begins[windows], rights.counts[windows]):
            window = {
                "start": instants(starts[windows[left]]),
                "end": instants(ends[windows[left]]),
            }
            sides = lefts.picked(left), rights.picked(right)
            yield self._selected.batch(left=sides[0], right=sides[1], window=window)


class _Side:
    """The rows of one side in some windows, one window's after the other's.

    Attributes:
        begins: which of them is the first one of each window.
        counts: how many each window has.
    """

    def __init__(self, structs: pa.StructArray, borders: Numbers) -> None:
        self._structs = structs
        there = np.asarray(structs.is_valid())
        self._places = np.flatnonzero(there)
        before = np.concatenate(([0], np.cumsum(there)))[borders]
        self.begins: Numbers = before[:-1]
        self.counts: Numbers = np.diff(before)

    def picked(self, which: Numbers) -> Picked:
        """The columns of some of them."""
        return Picked(self._structs, self._places[which])
