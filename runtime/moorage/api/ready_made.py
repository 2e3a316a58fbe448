"""Ready-made operators of a keyed stream: each a vectorized function that anybody could write.

Called by job files through `KeyedStream`, which has these methods.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from moorage.api.aggregate_columns import AggregateColumns
from moorage.api.aggregates import Aggregate, Aggregates, bound
from moorage.api.aggregates import count as count_rows
from moorage.api.aggregates import max_ as max_of
from moorage.api.aggregates import min_ as min_of
from moorage.api.aggregates import sum_ as sum_of
from moorage.api.declarations import check_flag, check_named, ddl_of, parse_duration, type_ddl
from moorage.api.functions import OutputTag, RuntimeContext
from moorage.api.vectorized import BatchContext, DueTimers, KeyedBatchFunction
from moorage_state.descriptors import ValueStateDescriptor
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain

if TYPE_CHECKING:
    from moorage.api.streams import DataStream, KeyedStream

_SHARE = 100
_Odd = str | OutputTag


class ReadyMade:
    """The methods; mixed into `KeyedStream`."""

    def aggregate(
        self, *, uid: str, null_key: _Odd = "fail", bad_time: _Odd = "fail", **named: Aggregate
    ) -> "DataStream":
        """The aggregates of all rows of the key so far, after each row: its key and they.

        Args:
            uid: the operator's stable name.
            null_key, bad_time: see `process`.
            named: for each column of the result its aggregate, such as ``n=count()``.

        Raises:
            UserError: see `WindowedStream.aggregate` and `process`.
        """
        return self._running(uid, named, null_key, bad_time)

    def count(self, *, uid: str, null_key: _Odd = "fail", bad_time: _Odd = "fail") -> "DataStream":
        """How many rows the key has had, after each, as `count`; see `aggregate`."""
        return self._running(uid, {"count": count_rows()}, null_key, bad_time)

    def sum(
        self, column: str, *, uid: str, null_key: _Odd = "fail", bad_time: _Odd = "fail"
    ) -> "DataStream":
        """The sum of a column over all rows of the key, after each, under the column's name."""
        check_named("sum", uid, (column,), _keyed(self).stream.schema)
        return self._running(uid, {column: sum_of(column)}, null_key, bad_time)

    def min(
        self, column: str, *, uid: str, null_key: _Odd = "fail", bad_time: _Odd = "fail"
    ) -> "DataStream":
        """The least value of a column so far, after each row, under the column's name."""
        check_named("min", uid, (column,), _keyed(self).stream.schema)
        return self._running(uid, {column: min_of(column)}, null_key, bad_time)

    def max(
        self, column: str, *, uid: str, null_key: _Odd = "fail", bad_time: _Odd = "fail"
    ) -> "DataStream":
        """The greatest value of a column so far, after each row, under the column's name."""
        check_named("max", uid, (column,), _keyed(self).stream.schema)
        return self._running(uid, {column: max_of(column)}, null_key, bad_time)

    def _running(
        self, uid: str, named: dict[str, Aggregate], null_key: _Odd, bad_time: _Odd
    ) -> "DataStream":
        mine = _keyed(self)
        aggregates = bound(uid, named, mine.stream.schema, mine.columns)
        output = f"{ddl_of(mine.stream.schema, mine.columns)}, {aggregates.output}"
        function = Running(aggregates, mine.columns)
        return mine.process(function, uid=uid, output=output, null_key=null_key, bad_time=bad_time)

    def deduplicate(
        self,
        *columns: str,
        uid: str,
        by: str | Sequence[str] = (),
        ttl: str | None = None,
        null_key: _Odd = "fail",
        bad_time: _Odd = "fail",
    ) -> "DataStream":
        """Of rows that are equal in their key and in these columns the first one.

        Args:
            columns: those beside the key; none: of each key the first row.
            uid: the operator's stable name.
            by: more of them, for who names them so, as `top_n` does.
            ttl: forget a row so long after it came, in processing time: the next one like it is a
                first one. None: never, and state grows with every value.
            null_key, bad_time: see `process`; a null in one of the columns is one in the key.

        Raises:
            UserError: a column is not there, or no duration; or see `process`.
        """
        mine = _keyed(self)
        more: Any = by if isinstance(by, (list, tuple)) else [by]
        beside = (*columns, *more)
        check_named("deduplicate", uid, beside, mine.stream.schema)
        keyed = mine.stream.key_by(*dict.fromkeys((*mine.columns, *beside)))
        ttl_ms = None if ttl is None else parse_duration(ttl)
        if ttl_ms == 0:
            raise UserError(
                f"rows are forgotten after some time, such as '1d': uid={uid} ttl={ttl}"
            )
        output = ddl_of(mine.stream.schema)
        return keyed.process(
            FirstRows(ttl_ms), uid=uid, output=output, null_key=null_key, bad_time=bad_time
        )

    def top_n(
        self,
        n: int,
        *,
        by: str,
        uid: str,
        ascending: bool = False,
        null_key: _Odd = "fail",
        bad_time: _Odd = "fail",
    ) -> "DataStream":
        """The `n` rows of the key with the greatest `by`, whenever they change.

        All of them come again, the stream's columns and `rank` from 1: a later row replaces the
        earlier one of its key and rank. Of rows that are equal in `by` the first one is before.

        Args:
            by: a column; rows in which it is null, or NaN, do not count.
            uid: the operator's stable name.
            ascending: the least instead.
            null_key, bad_time: see `process`.

        Raises:
            UserError: a column is not there or has no order; no count, or no flag; or see
                `process`.
        """
        mine = _keyed(self)
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise UserError(f"top_n takes a positive number of rows: uid={uid} n={n!r}")
        check_flag("top_n", "ascending", ascending)
        check_named("top_n", uid, (by,), mine.stream.schema)
        bound(uid, {"by": max_of(by)}, mine.stream.schema)
        if named := [name for name in mine.stream.schema.names if name.lower() == "rank"]:
            raise UserError(
                f"top_n gives rows a column rank, and the stream has one: uid={uid} "
                f"columns={named}; rename it in transform"
            )
        row = type_ddl(mine.stream.schema)
        output = f"{ddl_of(mine.stream.schema)}, rank int"
        return mine.process(
            TopRows(n, by, row, ascending),
            uid=uid,
            output=output,
            null_key=null_key,
            bad_time=bad_time,
        )


def _keyed(stream: Any) -> "KeyedStream":
    return stream  # type: ignore[no-any-return]  # it is mixed into this class alone


class Running(KeyedBatchFunction):
    """Aggregates of all rows of a key so far, after each row."""

    def __init__(self, aggregates: Aggregates, key_columns: tuple[str, ...]) -> None:
        self._ddl = aggregates.ddl
        self._key_columns = key_columns
        self._columns = AggregateColumns(aggregates)
        self.reads = aggregates.columns

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state: what is kept, as of a window."""
        self._kept = ctx.get_state(ValueStateDescriptor("aggregates", self._ddl))

    def process_batch(self, keys: pa.Array, table: pa.RecordBatch, ctx: BatchContext) -> pa.Table:  # noqa: ARG002
        """Add rows."""
        each = self._columns.of_rows(table, None, np.arange(table.num_rows))
        nth = np.arange(table.num_rows) - ctx.starts[ctx.key_index]
        stored = self._columns.stored(ctx.get_values(self._kept))
        before = self._columns.spread(stored, ctx.starts, table.num_rows)
        running = self._columns.running(self._columns.merged(before, each), nth)
        lasts = np.append(ctx.starts[1:], table.num_rows) - 1
        ctx.put_values(self._kept, self._columns.column(self._columns.picked(running, lasts)))
        mine = {name: table.column(name) for name in self._key_columns}
        return pa.table(mine | self._columns.results(running))


class FirstRows(KeyedBatchFunction):
    """The first row of each key; with a time to live, the first after so long."""

    def __init__(self, ttl_ms: int | None) -> None:
        self._ttl_ms = ttl_ms

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state: when the key's first row came."""
        self._seen = ctx.get_state(ValueStateDescriptor("seen", "bigint"))

    def process_batch(
        self,
        keys: pa.Array,  # noqa: ARG002
        table: pa.RecordBatch,
        ctx: BatchContext,
    ) -> pa.RecordBatch:
        """Keep rows of keys that have none."""
        now, seen = ctx.current_processing_time(), ctx.get_values(self._seen)
        first = seen.is_null()
        if self._ttl_ms is not None:
            first = pc.or_(first, pc.less_equal(seen.fill_null(now), now - self._ttl_ms))
        new = np.asarray(first)
        ctx.put_values(self._seen, pc.if_else(first, now, seen))
        if self._ttl_ms is not None:
            self._look_again(np.flatnonzero(new), now, self._ttl_ms, ctx)
        return table.take(pa.array(ctx.starts[new]))

    def on_timers(self, keys: pa.Array, timers: DueTimers, ctx: BatchContext) -> None:  # noqa: ARG002
        """Forget keys, but for those that came again after they were over."""
        if self._ttl_ms is None:
            return
        index = np.unique(timers.key_index)
        seen, now = ctx.get_values(self._seen, index), ctx.current_processing_time()
        gone = pc.less_equal(seen.fill_null(now), now - self._ttl_ms)
        ctx.put_values(self._seen, pc.if_else(gone, pa.scalar(None, pa.int64()), seen), index)
        # Those whose timer was set when the time to live was shorter have no other one.
        stays = np.asarray(pc.and_not(seen.is_valid(), gone))
        since = seen.filter(pa.array(stays)).to_numpy()
        self._look_again(index[stays], since, self._ttl_ms, ctx)

    @staticmethod
    def _look_again(
        index: NDArray[np.int64], since: NDArray[np.int64] | int, ttl_ms: int, ctx: BatchContext
    ) -> None:
        """Set timers for keys whose first row came then."""
        # What says when a row is forgotten is the state; its removal may wait a little, so that
        # many of them come together.
        step = max(1, ttl_ms // _SHARE)
        gone_at = -(-(since + ttl_ms) // step) * step
        times = np.full(len(index), gone_at, np.int64)
        ctx.register_timers(index, times, TimeDomain.PROCESSING_TIME)


class TopRows(KeyedBatchFunction):
    """The rows of a key that are greatest in one column, whenever they change."""

    def __init__(self, n: int, by: str, row: str, ascending: bool) -> None:  # noqa: FBT001 - as declared
        self._n, self._by, self._row = n, by, row
        self._order = "ascending" if ascending else "descending"

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state: the rows, best first."""
        self._top = ctx.get_state(ValueStateDescriptor("top", f"array<{self._row}>"))

    def process_batch(
        self, keys: pa.Array, table: pa.RecordBatch, ctx: BatchContext
    ) -> Iterator[pa.Table]:
        """Put rows among the best of their key."""
        stored = ctx.get_values(self._top)
        ours = stored.flatten()
        held = np.asarray(pc.list_value_length(stored).fill_null(0), np.int64)
        before = np.repeat(np.arange(len(keys)), held)
        index = np.concatenate([before, ctx.key_index])
        fields = dict(zip((f.name for f in ours.type), ours.flatten(), strict=True))
        rows = pa.table(
            {
                name: pa.concat_arrays([fields[name], table.column(name).cast(fields[name].type)])
                for name in table.schema.names
            }
        )
        # Arrow sorts stably: of equal rows those that were there before, then the earlier ones.
        ranked = pa.table({"key": index, "by": rows.column(self._by).combine_chunks()})
        places = pc.sort_indices(ranked, sort_keys=[("key", "ascending"), ("by", self._order)])
        order = places.to_numpy().astype(np.int64)
        order = order[_ordered(ranked.column("by"))[order]]
        of = index[order]
        begins = np.flatnonzero(np.append(True, of[1:] != of[:-1])) if len(of) else order
        rank = np.arange(len(of)) - np.repeat(begins, np.diff(begins, append=len(of)))
        best = rank < self._n
        order, of, rank = order[best], of[best], rank[best]
        changed = np.zeros(len(keys), bool)
        changed[of[order >= len(before)]] = True
        picked = rows.take(pa.array(order)).combine_chunks()
        ends = np.searchsorted(of, np.arange(len(keys) + 1))
        parts = [picked.column(name).combine_chunks() for name in table.schema.names]
        structs = pa.StructArray.from_arrays(parts, names=table.schema.names)
        lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), structs)
        empty = pa.array(np.arange(len(keys)), mask=np.diff(ends) == 0)
        ctx.put_values(self._top, lists.take(empty))
        told = pa.array(changed[of])
        ranks = pa.array(rank + 1, pa.int32())
        yield picked.append_column("rank", ranks).filter(told)


def _ordered(column: Any) -> Any:
    """Which values have an order."""
    if pa.types.is_floating(column.type):
        # Of a null it is null, too.
        column = pc.if_else(pc.is_nan(column), None, column)
    return np.asarray(column.is_valid())
