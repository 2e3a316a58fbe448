"""The window operator by whole columns: aggregates of windows that end by time, or are counted.

Does what `window_operator` does one row at a time, over the same state, for the usual cases:
`Tumbling`, `Sliding` and `Count` with their own triggers. Rows that come when their window is over
and not gone give a result each, which is left to the way of one row at a time.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moorage.api.aggregate_columns import AggregateColumns, Column
from moorage.api.functions import OutputTag, RuntimeContext
from moorage.api.vectorized import BatchContext, DueTimers, KeyedBatchFunction
from moorage.api.window_operator import CONTENTS, COUNTED, NAMESPACE, Aggregated
from moorage.api.windows import (
    GLOBAL_WINDOW,
    LAST_TIME,
    AtEnd,
    Count,
    EachCount,
    Sliding,
    Windowing,
    beyond,
)
from moorage_state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain

_Numbers = NDArray[np.int64]
_PAIRS = 1 << 19


def by_column(
    windows: Windowing, contents: Any, key_columns: tuple[str, ...]
) -> KeyedBatchFunction | None:
    """The operator by columns, where it can do what was asked for."""
    if not isinstance(contents, Aggregated):
        return None
    assigner, trigger = windows.assigner, windows.trigger
    if isinstance(assigner, Sliding) and type(trigger) is AtEnd:
        return TimeWindows(windows, contents, key_columns)
    if isinstance(assigner, Count) and isinstance(trigger, EachCount) and trigger.purge:
        return CountWindows(trigger.count, contents, key_columns)
    return None


class _Columns(KeyedBatchFunction):
    """What both have in common.

    Attributes:
        contents: handle of what is kept of windows.
    """

    def __init__(self, contents: Aggregated, key_columns: tuple[str, ...]) -> None:
        self._key_columns = key_columns
        self._aggregates = contents.aggregates
        self._columns = AggregateColumns(contents.aggregates)

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        descriptor = AggregatingStateDescriptor(CONTENTS, self._aggregates.ddl, self._aggregates)
        self.contents = ctx.get_namespaced_state(descriptor, NAMESPACE)

    def table(self, keys: pa.Array, index: _Numbers, columns: dict[str, pa.Array]) -> pa.Table:
        """Rows of keys and what there is beside them."""
        mine = keys.take(pa.array(index))
        parts = [mine] if len(self._key_columns) == 1 else mine.flatten()
        return pa.table({**dict(zip(self._key_columns, parts, strict=True)), **columns})


class _Pairs(NamedTuple):
    """Rows, once for each window that they are in, by key and window.

    Attributes:
        rows: positions in the table; None: each row once, as they lie.
        keys: positions of the keys.
        starts: when each window begins.
    """

    rows: _Numbers | None
    keys: _Numbers
    starts: _Numbers

    def where(self, wanted: NDArray[np.bool_]) -> "_Pairs":
        """Some of them."""
        if wanted.all():
            return self
        rows = np.arange(len(self.keys)) if self.rows is None else self.rows
        return _Pairs(rows[wanted], self.keys[wanted], self.starts[wanted])

    def firsts(self) -> _Numbers:
        """Where another key or window begins."""
        if not len(self.keys):
            return np.zeros(0, np.int64)
        changed = np.ones(len(self.keys), bool)
        changed[1:] = (self.keys[1:] != self.keys[:-1]) | (self.starts[1:] != self.starts[:-1])
        return np.flatnonzero(changed)


class TimeWindows(_Columns):
    """Aggregates of windows of one size."""

    def __init__(
        self, windows: Windowing, contents: Aggregated, key_columns: tuple[str, ...]
    ) -> None:
        super().__init__(contents, key_columns)
        assigner: Any = windows.assigner
        self._size, self._slide = assigner.size_ms, assigner.slide_ms
        self._offset, self._domain = assigner.offset_ms, assigner.domain
        self._by_event = assigner.domain is TimeDomain.EVENT_TIME
        self._lateness = windows.lateness_ms if self._by_event else 0
        self._late: OutputTag | None = windows.late

    def process_batch(
        self, keys: pa.Array, table: pa.RecordBatch, ctx: BatchContext
    ) -> Iterator[Any]:
        """Add rows to their windows; results of those that are over."""
        times = self._times(table, ctx)
        if self._by_event:
            yield from self._sorted_out(table, times, ctx)
        # A row in very many windows comes so many times.
        step = max(1, _PAIRS // -(-self._size // self._slide))
        for first in range(0, table.num_rows, step):
            yield from self._rows(keys, table, times, range(first, first + step), ctx)

    def _rows(
        self,
        keys: pa.Array,
        table: pa.RecordBatch,
        times: _Numbers,
        span: range,
        ctx: BatchContext,
    ) -> Iterator[pa.Table]:
        """Add some rows to those of their windows that are not gone."""
        some = slice(span.start, span.stop)
        table = table.slice(span.start, len(span))
        pairs = self._assigned(ctx.key_index[some], times[some])
        if self._by_event:
            gone_at = pairs.starts + (self._size - 1 + self._lateness)
            pairs = pairs.where(gone_at > ctx.current_watermark())
        if self._lateness and len(pairs.keys):
            over = pairs.starts + (self._size - 1) <= ctx.current_watermark()
            if over.any():
                yield self._one_by_one(keys, table, pairs.where(over), ctx)
                pairs = pairs.where(~over)
        self._add(table, pairs, ctx)

    def on_timers(self, keys: pa.Array, timers: DueTimers, ctx: BatchContext) -> Iterator[Any]:
        """Results of windows that end; those that are gone are forgotten."""
        if timers.domain is not self._domain:
            return
        index, starts = self._ending(timers, 0)
        if len(index):
            column = ctx.get_namespaced_values(self.contents, index, starts, starts + self._size)
            if column.null_count < len(column):
                there = np.asarray(column.is_valid())
                kept = self._columns.stored(column.filter(pa.array(there)))
                yield self._results(keys, index[there], starts[there], kept)
            if not self._lateness:
                self._clear(index, starts, ctx)
        if self._lateness:
            self._clear(*self._ending(timers, self._lateness), ctx)

    def _ending(self, timers: DueTimers, after: int) -> tuple[_Numbers, _Numbers]:
        """Keys and starts of windows that may have ended `after` the timers' times."""
        starts = timers.times + (1 - after - self._size)
        fits = (starts - self._offset) % self._slide == 0
        return timers.key_index[fits], starts[fits]

    def _clear(self, index: _Numbers, starts: _Numbers, ctx: BatchContext) -> None:
        nothing = pa.nulls(len(index), self._columns.type)
        ends = starts + self._size
        ctx.put_namespaced_values(self.contents, index, starts, ends, column=nothing)

    def _times(self, table: pa.RecordBatch, ctx: BatchContext) -> _Numbers:
        if not self._by_event:
            return np.full(table.num_rows, ctx.current_processing_time(), np.int64)
        if ctx.timestamps is None or ctx.timestamps.null_count:
            raise UserError(
                "a row without event time has no window: declare with_event_time for every input "
                "of a union, or take time='processing'"
            )
        times: _Numbers = ctx.timestamps.to_numpy()
        for time_ms in (int(times.min()), int(times.max())):
            if not -LAST_TIME <= time_ms <= LAST_TIME:
                raise beyond(time_ms)
        return times

    def _assigned(self, key_index: _Numbers, times: _Numbers) -> _Pairs:
        last = times - (times - self._offset) % self._slide
        if self._size == self._slide:
            pairs = _Pairs(None, key_index, last)
        else:
            most = -(-self._size // self._slide)
            starts = last[:, None] - self._slide * np.arange(most)
            rows = np.repeat(np.arange(len(times)), most)
            pairs = _Pairs(rows, key_index[rows], starts.ravel())
            pairs = pairs.where(pairs.starts > times[rows] - self._size)
        # Rows of a key come by time; then those of its tumbling windows lie together already.
        back = (pairs.starts[1:] < pairs.starts[:-1]) & (pairs.keys[1:] == pairs.keys[:-1])
        if not back.any():
            return pairs
        order = np.lexsort((pairs.starts, pairs.keys))
        rows = order if pairs.rows is None else pairs.rows[order]
        return _Pairs(rows, pairs.keys[order], pairs.starts[order])

    def _sorted_out(
        self, table: pa.RecordBatch, times: _Numbers, ctx: BatchContext
    ) -> Iterator[tuple[OutputTag, pa.RecordBatch]]:
        """Rows all of whose windows are gone: the last one of a row is the last to go."""
        watermark = ctx.current_watermark()
        if self._late is None or not len(times) or times.min() + self._lateness > watermark:
            return
        last = times - (times - self._offset) % self._slide
        late = (last + (self._size - 1 + self._lateness) <= watermark) | (
            last + self._size <= times
        )
        late &= times + self._lateness <= watermark
        if late.any():
            yield self._late, table.filter(pa.array(late))

    def _add(self, table: pa.RecordBatch, pairs: _Pairs, ctx: BatchContext) -> None:
        firsts = pairs.firsts()
        if not len(firsts):
            return
        index, starts = pairs.keys[firsts], pairs.starts[firsts]
        kept = self._columns.of_rows(table, pairs.rows, firsts)
        stored = ctx.get_namespaced_values(self.contents, index, starts, starts + self._size)
        if stored.null_count < len(stored):
            kept = self._columns.merged(self._columns.stored(stored), kept)
        column = self._columns.column(kept)
        ends = starts + self._size
        ctx.put_namespaced_values(self.contents, index, starts, ends, column=column)
        if stored.null_count:
            new = np.asarray(stored.is_null())
            self._wait(index[new], starts[new], ctx)

    def _wait(self, index: _Numbers, starts: _Numbers, ctx: BatchContext) -> None:
        """Set the timers of new windows."""
        ends = starts + (self._size - 1)
        ctx.register_timers(index, ends, self._domain)
        if self._lateness:
            ctx.register_timers(index, ends + self._lateness, self._domain)

    def _one_by_one(
        self, keys: pa.Array, table: pa.RecordBatch, pairs: _Pairs, ctx: BatchContext
    ) -> pa.Table:
        """Add late rows that still count, with a result after each."""
        add, rows = self._aggregates.add, pairs.rows
        taken = table if rows is None else table.take(pa.array(rows))
        values = list(zip(*(column.to_pylist() for column in taken.columns), strict=True))
        firsts = pairs.firsts()
        index, starts = pairs.keys[firsts], pairs.starts[firsts]
        ends = starts + self._size
        stored = ctx.get_namespaced_values(self.contents, index, starts, ends)
        after: list[Any] = []
        last: list[Any] = []
        for kept, first, after_last in zip(
            stored.to_pylist(), firsts, [*firsts[1:], len(values)], strict=True
        ):
            so_far = self._aggregates.create_accumulator()
            if kept is not None:
                so_far = tuple(kept.values())
            for row in values[first:after_last]:
                so_far = add(row, so_far)
                after.append(so_far)
            last.append(so_far)
        ctx.put_namespaced_values(
            self.contents, index, starts, ends, column=self._columns.rows(last)
        )
        new = np.asarray(stored.is_null())
        gone = ends[new] - 1 + self._lateness
        ctx.register_timers(index[new], gone, self._domain)
        kept_after = self._columns.stored(self._columns.rows(after))
        return self._results(keys, pairs.keys, pairs.starts, kept_after)

    def _results(
        self, keys: pa.Array, index: _Numbers, starts: _Numbers, kept: list[Column]
    ) -> pa.Table:
        times = {"window_start": starts, "window_end": starts + self._size}
        columns = {name: _instants(column) for name, column in times.items()}
        return self.table(keys, index, columns | self._columns.results(kept))


class CountWindows(_Columns):
    """Aggregates of so many rows of a key each."""

    def __init__(self, size: int, contents: Aggregated, key_columns: tuple[str, ...]) -> None:
        super().__init__(contents, key_columns)
        self._size = size

    def open(self, ctx: RuntimeContext) -> None:
        """Get the states."""
        super().open(ctx)
        descriptor = ReducingStateDescriptor(COUNTED, "bigint", "sum")
        self.counted = ctx.get_namespaced_state(descriptor, NAMESPACE)

    def process_batch(
        self, keys: pa.Array, table: pa.RecordBatch, ctx: BatchContext
    ) -> Iterator[Any]:
        """Add rows; results of windows that are full."""
        index = np.arange(len(keys))
        window = [np.full(len(keys), bound, np.int64) for bound in GLOBAL_WINDOW]
        before = ctx.get_namespaced_values(self.counted, index, *window).fill_null(0).to_numpy()
        stored = ctx.get_namespaced_values(self.contents, index, *window)
        counts = np.diff(ctx.starts, append=table.num_rows)
        # The how manieth row of its key each is, those included that were counted before.
        nth = np.arange(table.num_rows) + (before - ctx.starts)[ctx.key_index]
        begins = nth % self._size == 0
        begins[ctx.starts] = True
        firsts = np.flatnonzero(begins)
        kept = self._columns.of_rows(table, None, firsts)
        # Only the first of a key goes on with what was kept.
        opening = np.flatnonzero(np.isin(firsts, ctx.starts))
        earlier = self._columns.spread(self._columns.stored(stored), opening, len(firsts))
        kept = self._columns.merged(earlier, kept)
        lengths = np.diff(firsts, append=table.num_rows)
        full = (nth[firsts] % self._size) + lengths == self._size
        whose = ctx.key_index[firsts]
        if full.any():
            done = self._columns.picked(kept, full)
            yield self.table(keys, whose[full], self._columns.results(done))
        left = (before + counts) % self._size
        last = np.append(opening[1:], len(firsts)) - 1
        column = self._columns.column(self._columns.picked(kept, last))
        empty = pa.array(np.arange(len(keys)), mask=left == 0)
        ctx.put_namespaced_values(self.contents, index, *window, column=column.take(empty))
        remaining = pa.array(left, mask=left == 0)
        ctx.put_namespaced_values(self.counted, index, *window, column=remaining)


def _instants(times: _Numbers) -> pa.Array:
    return pa.array(times * 1000).view(pa.timestamp("us", "UTC"))
