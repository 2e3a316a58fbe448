"""Interval joins by whole columns: columns of pairs of rows whose times are not far apart.

Does what `interval_join.IntervalJoinOperator` does one row at a time, over the same state, where
columns of pairs are asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from moorage.api.functions import OutputTag, RuntimeContext
from moorage.api.join_columns import (
    MOST_ROWS,
    NO_ROWS,
    Picked,
    Portions,
    Rows,
    SelectedPairs,
    aside,
    each_pair,
    forget,
    put_rows,
    register_earliest,
    require_times,
    rows_of,
    shifted,
    stored_rows,
)
from moorage.api.join_functions import SIDES
from moorage.api.vectorized import BatchContext, DueTimers, KeyedBatchFunction
from moorage.api.waiting_rows import INTERVAL_ROWS, waiting_rows
from moorage.api.window_times import Numbers, instants, require_known
from moorage_state.keyed import TimeDomain


class IntervalPairs(KeyedBatchFunction):
    """Columns of all pairs of rows of one key that are near in time.

    Args:
        rows, lower, upper, late: see `IntervalJoinOperator`.
        named: for each column of the result, "left.column", "right.column" or "pair.time".
    """

    def __init__(
        self,
        rows: Sequence[str],
        lower: int,
        upper: int,
        late: Sequence[OutputTag | None],
        named: Mapping[str, str],
    ) -> None:
        self._types = tuple(rows)
        self._bounds = lower, upper
        self._waits = max(upper, 0), max(-lower, 0)
        self._late = tuple(late)
        self._selected = SelectedPairs(named)
        self._timed = "pair.time" in self._selected

    def open(self, ctx: RuntimeContext) -> None:
        """Get the states."""
        self._states = [
            ctx.get_map_state(waiting_rows(name, kind))
            for name, kind in zip(INTERVAL_ROWS, self._types, strict=True)
        ]
        self._known = _Known()

    def process_batch(
        self, keys: pa.Array, table: pa.RecordBatch, ctx: BatchContext
    ) -> Iterator[Any]:
        """Pairs of these rows with each other, and with those that wait."""
        times = require_times(ctx)
        late = times <= ctx.current_watermark()
        new: list[Rows] = []
        for side, (name, kind) in enumerate(zip(SIDES, self._types, strict=True)):
            column = table.column(name)
            mine = np.asarray(column.is_valid())
            yield from aside(self, self._late[side], column.filter(pa.array(mine & late)))
            places = np.flatnonzero(mine & ~late)
            rows = stored_rows(column, places, kind)
            new.append(Rows(ctx.key_index[places], times[places], rows))
        known = self._known
        known.begin(keys)
        for first, end in (portions := Portions(len(keys))):
            some = [rows.of_keys(first, end) for rows in new]
            # The last one also if its rows were late: those that run on may not be.
            having = np.concatenate([*(rows.keys for rows in some), [end - 1]])
            asked = np.setdiff1d(having, known.keys)
            read = [rows_of(*ctx.get_map_entries(state, asked)) for state in self._states]
            old = [
                one.of_keys(first, end).merged(other)
                for one, other in zip(known.rows, read, strict=True)
            ]
            portions.rows = sum(len(rows.keys) for rows in old)
            yield from self._pairs(some[0], old[1].merged(some[1]))
            yield from self._pairs(old[0], some[1])
            for side in (0, 1):
                self._keep(ctx, side, old[side], some[side])
            self._register(ctx, some)
        last = [one.merged(other) for one, other in zip(old, some, strict=True)]
        known.end(keys, [rows.of_keys(end - 1, end) for rows in last])

    def on_timers(self, keys: pa.Array, timers: DueTimers, ctx: BatchContext) -> None:
        """Forget the rows to which nothing belongs that is still to come."""
        if timers.domain is not TimeDomain.EVENT_TIME:
            return
        watermark = ctx.current_watermark()
        due = np.unique(timers.key_index)
        for first, end in (portions := Portions(len(due))):
            left: list[Rows] = []
            for state, wait in zip(self._states, self._waits, strict=True):
                found = Rows(*ctx.get_map_entries(state, due[first:end]))
                portions.rows += len(found.keys)
                gone = shifted(found.times, wait) <= watermark
                forget(ctx, state, found.keys[gone], found.times[gone])
                stays = found.take(np.flatnonzero(~gone))
                left.append(rows_of(stays.keys, stays.times, stays.rows))
            self._register(ctx, left)
            self._known.add(keys, due[first:end], left)

    def _register(self, ctx: BatchContext, waiting: list[Rows]) -> None:
        """Be called when the first of these rows is to be forgotten."""
        # A row of the end of time is forgotten with the job's input: there is no later time.
        pairs = zip(waiting, self._waits, strict=True)
        register_earliest(ctx, *((rows.keys, shifted(rows.times, wait)) for rows, wait in pairs))

    def _pairs(self, lefts: Rows, rights: Rows) -> Iterator[pa.RecordBatch]:
        lower, upper = self._bounds
        near = shifted(lefts.times, lower), shifted(lefts.times, upper)
        begins, ends = rights.spans(lefts.keys, *near)
        for left, right in each_pair(begins, ends - begins):
            pair: dict[str, Any] = {}
            if self._timed:
                later = np.maximum(lefts.times[left], rights.times[right])
                require_known(later)
                pair["time"] = instants(later)
            sides = Picked(lefts.rows, left), Picked(rights.rows, right)
            yield self._selected.batch(left=sides[0], right=sides[1], pair=pair)

    def _keep(self, ctx: BatchContext, side: int, old: Rows, new: Rows) -> None:
        """Let rows wait, behind those of the same time that wait already."""
        if not len(new.keys):
            return
        keys, times = new.cells()
        begins, ends = old.spans(keys, times, times)
        there = [places for _, places in each_pair(begins, ends - begins)]
        same = old.take(np.concatenate(there)) if there else NO_ROWS
        put_rows(ctx, self._states[side], same, new)


class _Known:
    """What waits for keys that come again at once: it need not be read again.

    With their rows, after timers that were due before them; or as the first of a call, where their
    rows run on.

    Attributes:
        keys: the positions of such keys in a call.
        rows: what they have of both sides.
    """

    def __init__(self) -> None:
        self._of: pa.Array | None = None
        self._running: tuple[Any, list[Rows]] | None = None
        self._forget()

    def _forget(self) -> None:
        self.keys = np.zeros(0, np.int64)
        self.rows = [NO_ROWS, NO_ROWS]

    def add(self, of: pa.Array, keys: Numbers, rows: list[Rows]) -> None:
        """Know what waits for some keys of a call whose timers have fired, if it is not much."""
        if of is not self._of:
            self._forget()
            self._of = of
        if sum(len(known.keys) for known in self.rows) < MOST_ROWS:
            self.keys = np.append(self.keys, keys)
            self.rows = [one.merged(other) for one, other in zip(self.rows, rows, strict=True)]

    def begin(self, of: pa.Array) -> None:
        """The rows of these keys come, of which the first may have had some before."""
        if of is not self._of:
            self._forget()
        if self._running is not None and of[0] == self._running[0]:
            # Its timers have not fired: they wait for all of its rows.
            self.keys = np.append(self.keys, 0)
            mine = zip(self._running[1], self.rows, strict=True)
            self.rows = [one.merged(other) for one, other in mine]

    def end(self, of: pa.Array, last: list[Rows]) -> None:
        """Know only what waits for the last of these keys, now that its rows were handled."""
        self._forget()
        self._of = None
        first = [Rows(np.zeros_like(rows.keys), rows.times, rows.rows) for rows in last]
        self._running = of[len(of) - 1], first
