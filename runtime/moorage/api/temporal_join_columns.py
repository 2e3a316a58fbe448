"""Temporal joins by whole columns: rows with columns of the version that holds for them.

Do what the operators of `temporal_join` do one row at a time, over the same state, where columns
are asked for.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from moorage.api.functions import OutputTag, RuntimeContext
from moorage.api.join_columns import (
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
    stored_rows,
)
from moorage.api.join_functions import SIDES
from moorage.api.vectorized import BatchContext, DueTimers, KeyedBatchFunction
from moorage.api.waiting_rows import ROWS, latest, versions, waiting_rows
from moorage.api.windows import MIN_TIME
from moorage_state.keyed import TimeDomain


class LatestPairs(KeyedBatchFunction):
    """Columns of rows and of the versions that came last; versions are the first stream.

    Args:
        version, outer: see `LatestVersionJoin`.
        named: for each column of the result, "left.column" of a row or "right.column" of a version.
    """

    def __init__(self, version: str, named: Mapping[str, str], *, outer: bool) -> None:
        self._type = version
        self._outer = outer
        self._selected = SelectedPairs(named)

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        self._latest = ctx.get_state(latest(self._type))

    def process_batch(
        self, keys: pa.Array, table: pa.RecordBatch, ctx: BatchContext
    ) -> Iterator[pa.RecordBatch]:
        """Join rows with the version before them: in the table, or that of the state."""
        came, rows = (table.column(side) for side in SIDES)
        is_version = np.asarray(came.is_valid())
        place = np.flatnonzero(is_version)
        new = stored_rows(came, place, self._type)
        versions_of = ctx.key_index[place]
        which = np.flatnonzero(~is_version)
        index = ctx.key_index[which]
        # Of each row the newest of the versions before it, if that is of its key.
        before = np.cumsum(is_version)[which] - 1
        here = before >= 0
        here[here] = versions_of[before[here]] == index[here]
        stored = ctx.get_values(self._latest)
        there = here | np.asarray(stored.is_valid())[index]
        known = pa.concat_arrays([stored, new])
        version = np.where(here, len(keys) + before, index)
        if not self._outer:
            which, version, there = which[there], version[there], there[there]
        if len(which):
            sides = Picked(rows, which), Picked(known, pa.array(version, mask=~there))
            yield self._selected.batch(left=sides[0], right=sides[1])
        last = np.flatnonzero(np.diff(versions_of, append=-1))
        ctx.put_values(self._latest, new.take(pa.array(last)), versions_of[last])


class VersionedPairs(KeyedBatchFunction):
    """Columns of rows and of the versions that hold at their times; versions are the first stream.

    Args:
        row, version, outer, late: see `VersionedJoin`.
        named: for each column of the result, "left.column" of a row or "right.column" of a version.
    """

    def __init__(
        self,
        row: str,
        version: str,
        named: Mapping[str, str],
        *,
        outer: bool,
        late: OutputTag | None,
    ) -> None:
        self._types = row, version
        self._outer = outer
        self._late = late
        self._selected = SelectedPairs(named)

    def open(self, ctx: RuntimeContext) -> None:
        """Get the states."""
        row, version = self._types
        self._rows = ctx.get_map_state(waiting_rows(ROWS, row))
        self._versions = ctx.get_map_state(versions(version))

    def process_batch(
        self,
        keys: pa.Array,  # noqa: ARG002
        table: pa.RecordBatch,
        ctx: BatchContext,
    ) -> Iterator[Any]:
        """Keep versions, and rows until their time has come."""
        row, version = self._types
        times = require_times(ctx)
        came, waiting = (table.column(side) for side in SIDES)
        is_version = np.asarray(came.is_valid())
        place = np.flatnonzero(is_version)
        kept = stored_rows(came, place, version)
        # Of several versions of one time the last one counts; a late one holds for later rows.
        ctx.put_map_values(self._versions, ctx.key_index[place], times[place], kept)
        late = ~is_version & (times <= ctx.current_watermark())
        yield from aside(self, self._late, waiting.filter(pa.array(late)))
        place = np.flatnonzero(~is_version & ~late)
        if len(place):
            rows = stored_rows(waiting, place, row)
            new = Rows(ctx.key_index[place], times[place], rows)
            index, at = new.cells()
            old = rows_of(index, at, ctx.get_map_values(self._rows, index, at))
            put_rows(ctx, self._rows, old, new)
        register_earliest(ctx, (ctx.key_index[~late], times[~late]))

    def on_timers(self, keys: pa.Array, timers: DueTimers, ctx: BatchContext) -> Iterator[Any]:  # noqa: ARG002
        """Join the rows whose time has come; versions that no later row can have are forgotten."""
        if timers.domain is not TimeDomain.EVENT_TIME:
            return
        watermark = ctx.current_watermark()
        due = np.unique(timers.key_index)
        for first, end in (portions := Portions(len(due))):
            some = due[first:end]
            known = Rows(*ctx.get_map_entries(self._versions, some))
            lists = Rows(*ctx.get_map_entries(self._rows, some))
            now = lists.times <= watermark
            done = lists.take(np.flatnonzero(now))
            rows = rows_of(done.keys, done.times, done.rows)
            portions.rows = len(known.keys) + len(rows.keys)
            yield from self._joined(rows, known)
            forget(ctx, self._rows, done.keys, done.times)
            until = np.full_like(some, watermark)
            begins, ends = known.spans(some, np.full_like(some, MIN_TIME), until)
            for _, old in each_pair(begins, np.maximum(ends - begins - 1, 0)):
                forget(ctx, self._versions, known.keys[old], known.times[old])
            later = known.times > watermark
            register_earliest(
                ctx, (known.keys[later], known.times[later]), (lists.keys[~now], lists.times[~now])
            )

    def _joined(self, rows: Rows, known: Rows) -> Iterator[pa.RecordBatch]:
        begins, ends = known.spans(rows.keys, np.full_like(rows.times, MIN_TIME), rows.times)
        there = ends > begins
        ones = np.ones(len(there), np.int64)
        for some, _ in each_pair(ones, ones if self._outer else there.astype(np.int64)):
            version = pa.array(ends[some] - 1, mask=~there[some])
            sides = Picked(rows.rows, some), Picked(known.rows, version)
            yield self._selected.batch(left=sides[0], right=sides[1])
