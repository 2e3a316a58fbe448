"""Aggregates by whole columns: what `aggregates` does for one row at a time, for many groups.

Numbers and times go through NumPy, everything else value by value. Called by the vectorized window
operator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moorage.api.aggregates import LOW_BITS, MOST, Aggregates, Part, fits, merged, overflow
from moorage_state.columnar.arrow import arrow_type
from moorage_state.types import parse_type

_WIDTHS = {"tinyint", "smallint", "int", "bigint", "date", "timestamp"}
_FLOATS = {"float", "double"}
_SAFE = float(1 << 62)
_UFUNCS: dict[str, Any] = {
    "rows": np.add,
    "values": np.add,
    "sum": np.add,
    "min": np.fmin,  # NaN is greater than any number, so it is the least only if there is no other
    "max": np.maximum,
}


@dataclass(frozen=True, slots=True)
class Column:
    """A part of many groups: its values, and which of them there are; 0 where there is none.

    Sums of integers of which one does not fit NumPy's are Python's: more values may bring it back.
    """

    values: NDArray[Any]
    valid: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Lane:
    """How the values of one part lie in NumPy."""

    part: Part
    name: str
    dtype: Any

    @classmethod
    def of(cls, part: Part) -> "_Lane":
        name = parse_type(part.ddl).name
        dtype = np.int64 if name in _WIDTHS else np.float64 if name in _FLOATS else object
        return cls(part, name, dtype)

    def read(self, column: Any) -> Column:
        """An Arrow column."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        valid = np.asarray(column.is_valid())
        if self.dtype is object:
            values = np.empty(len(column), object)
            values[:] = column.to_pylist()
            return Column(values, valid)
        if self.name == "date":
            column = column.cast(pa.int32())
        elif self.name == "timestamp":
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        elif self.dtype is np.float64 and pa.types.is_decimal(column.type):
            # Not at once: Arrow divides by a power of ten, and of 0.3 makes 0.30000000000000004.
            column = column.cast(pa.string()).cast(pa.float64())
        if column.null_count:
            column = column.fill_null(pa.scalar(0).cast(column.type))
        values = column.to_numpy(zero_copy_only=False).astype(self.dtype)
        # See `Part.of`.
        return Column(values + 0.0 if self.dtype is np.float64 else values, valid)

    def of_rows(self, table: pa.RecordBatch, rows: Any) -> Column:
        """The part of each of some rows, all if `rows` is None."""
        op = self.part.op
        if op == "rows":
            count = table.num_rows if rows is None else len(rows)
            return Column(np.ones(count, np.int64), np.ones(count, bool))
        column = table.column(self.part.column)
        if op == "values":
            there = np.asarray(column.is_valid())
            there = there if rows is None else there[rows]
            return Column(there.astype(np.int64), np.ones(len(there), bool))
        found = self.read(column)
        return found if rows is None else Column(found.values[rows], found.valid[rows])

    def of_added_up(self, table: pa.RecordBatch, rows: Any, counts: NDArray[np.int64]) -> Column:
        """As `of_rows`, of rows that each stand for as many as `counts` says."""
        values, valid = counts, np.ones(len(counts), bool)
        if self.part.op != "rows":
            found = [self.read(table.column(name)) for name in self.part.local_columns]
            values = found[-1].values
            # Of no value there are none, and not nothing.
            valid = valid if self.part.op == "values" else found[-1].valid
            if self.part.op == "sum":
                values = whole_of(found[0].values, values)
        return Column(values, valid) if rows is None else Column(values[rows], valid[rows])

    def reduced(self, column: Column, starts: NDArray[np.int64]) -> Column:
        """Groups of values, which begin at `starts`, as one each."""
        if not len(starts):
            return Column(column.values[:0], column.valid[:0])
        if self.dtype is object:
            return self._one_by_one(column, starts)
        values = column.values
        all_valid = bool(column.valid.all())
        if not all_valid:
            values = np.where(column.valid, values, self._neutral)
        if self._is_long_sum and self._may_be_full(values, times=_longest(starts, len(values))):
            summed = self._counted_out(np.add.reduceat(values.astype(object), starts))
        else:
            summed = _UFUNCS[self.part.op].reduceat(values, starts)
        if all_valid:
            return Column(summed, np.ones(len(starts), bool))
        valid = np.logical_or.reduceat(column.valid, starts)
        return Column(np.where(valid, summed, 0), valid)

    def merged(self, one: Column, other: Column) -> Column:
        """Two columns as one, value by value."""
        if self.dtype is object:
            pairs = zip(one.values.tolist(), other.values.tolist(), strict=True)
            values = np.empty(len(one.values), object)
            values[:] = [merged(self.part.op, a, b) for a, b in pairs]
            return Column(values, one.valid | other.valid)
        a = np.where(one.valid, one.values, self._neutral)
        b = np.where(other.valid, other.values, self._neutral)
        if self._is_long_sum and self._may_be_full(a, b):
            both = self._counted_out(a.astype(object) + b.astype(object))
        else:
            both = _UFUNCS[self.part.op](a, b)
        valid = one.valid | other.valid
        return Column(np.where(valid, both, 0), valid)

    def arrow(self, column: Column) -> pa.Array:
        """As an Arrow column of the part's type."""
        kind = arrow_type(parse_type(self.part.ddl))
        mask = None if column.valid.all() else ~column.valid
        if column.values.dtype == object:
            values = column.values.tolist()
            if self.part.op == "sum" and not all(
                fits(self.part, value) for value in values if value is not None
            ):
                raise overflow(self.part)
            return pa.array(values, kind, mask=mask)
        if self.name == "date":
            return pa.array(column.values.astype(np.int32), mask=mask).view(kind)
        if self.name == "timestamp":
            return pa.array(column.values, mask=mask).view(kind)
        return pa.array(column.values, mask=mask).cast(kind)

    @property
    def _neutral(self) -> Any:
        if self.part.op not in {"min", "max"}:
            return 0
        least = self.part.op == "max"
        if self.dtype is np.float64:
            # Not infinity: of infinities and nothing, the infinity has to come out.
            return -np.inf if least else np.nan
        return np.iinfo(np.int64).min if least else np.iinfo(np.int64).max

    def _one_by_one(self, column: Column, starts: NDArray[np.int64]) -> Column:
        values = column.values.tolist()
        ends = [*starts[1:].tolist(), len(values)]
        found = np.empty(len(starts), object)
        found[:] = [
            reduce(lambda a, b: merged(self.part.op, a, b), values[start:end])
            for start, end in zip(starts.tolist(), ends, strict=True)
        ]
        return Column(found, np.array([value is not None for value in found], bool))

    @property
    def _is_long_sum(self) -> bool:
        return self.part.op == "sum" and self.dtype is np.int64

    @staticmethod
    def _may_be_full(*columns: NDArray[Any], times: int = 1) -> bool:
        """Whether sums of so many values of each column may be greater than a long."""
        highest = sum(float(np.abs(c.astype(np.float64)).max(initial=0)) for c in columns)
        return highest * times >= _SAFE

    @staticmethod
    def _counted_out(sums: NDArray[Any]) -> NDArray[Any]:
        """Sums that were made of Python's integers, as NumPy's if all of them fit.

        NumPy's own would begin anew at the other end and say nothing.
        """
        if len(sums) and not -MOST - 1 <= min(sums) <= max(sums) <= MOST:
            return sums
        return sums.astype(np.int64)


def whole_of(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[Any]:
    """Sums of integers of the sums of their halves."""
    if np.abs(high).max(initial=0) >= 1 << (62 - LOW_BITS):
        return (high.astype(object) << LOW_BITS) + low
    return (high << LOW_BITS) + low


def _longest(starts: NDArray[np.int64], length: int) -> int:
    """How many values the longest group has."""
    return int(np.diff(starts, append=length).max())


class AggregateColumns:
    """The aggregates of one operator by column."""

    def __init__(self, aggregates: Aggregates) -> None:
        self._aggregates = aggregates
        self._lanes = [_Lane.of(part) for part in aggregates.parts]

    def of_rows(
        self,
        table: pa.RecordBatch,
        rows: Any,
        starts: NDArray[np.int64],
        counts: NDArray[np.int64] | None = None,
    ) -> list[Column]:
        """What is kept of groups of rows.

        Args:
            rows: their positions in the table, group after group; None: all, as they lie.
            starts: where each group begins.
            counts: of rows that were added up before, how many each stands for.
        """
        return [
            lane.reduced(
                lane.of_rows(table, rows)
                if counts is None
                else lane.of_added_up(table, rows, counts),
                starts,
            )
            for lane in self._lanes
        ]

    def stored(self, column: pa.Array) -> list[Column]:
        """What was kept, of the state's column; a null there has nothing."""
        return [lane.read(field) for lane, field in zip(self._lanes, column.flatten(), strict=True)]

    def merged(self, one: Sequence[Column], other: Sequence[Column]) -> list[Column]:
        """Of both, group by group."""
        return [lane.merged(a, b) for lane, a, b in zip(self._lanes, one, other, strict=True)]

    def running(self, kept: Sequence[Column], nth: NDArray[np.int64]) -> list[Column]:
        """Of each value what it and those before it in its group make together.

        Args:
            nth: how manieth of its group each is, from 0.
        """
        found, step, most = list(kept), 1, int(nth.max(initial=0))
        # Each pass adds what the pass before made of twice as many.
        while step <= most:
            later = np.flatnonzero(nth >= step)
            made = self.merged(self.picked(found, later - step), self.picked(found, later))
            for at, (part, new) in enumerate(zip(found, made, strict=True)):
                kind = np.result_type(part.values, new.values)
                found[at] = Column(part.values.astype(kind, copy=False), part.valid)
                found[at].values[later], part.valid[later] = new.values, new.valid
            step *= 2
        return found

    def column(self, kept: Sequence[Column]) -> pa.Array:
        """What is kept, as the state's column."""
        fields = [lane.arrow(part) for lane, part in zip(self._lanes, kept, strict=True)]
        return pa.StructArray.from_arrays(fields, names=[p.name for p in self._aggregates.parts])

    @property
    def type(self) -> pa.DataType:
        """Of the state's column."""
        parts = self._aggregates.parts
        return pa.struct([(p.name, arrow_type(parse_type(p.ddl))) for p in parts])

    def reduced(self, kept: Sequence[Column], starts: NDArray[np.int64]) -> list[Column]:
        """Groups of what was kept as one each.

        Args:
            starts: where each group begins.
        """
        return [lane.reduced(part, starts) for lane, part in zip(self._lanes, kept, strict=True)]

    def appended(self, one: Sequence[Column], other: Sequence[Column]) -> list[Column]:
        """Groups, and after them others."""
        return [
            Column(np.concatenate([a.values, b.values]), np.concatenate([a.valid, b.valid]))
            for a, b in zip(one, other, strict=True)
        ]

    def picked(self, kept: Sequence[Column], which: NDArray[Any]) -> list[Column]:
        """Some groups, by their positions or a mask."""
        return [Column(part.values[which], part.valid[which]) for part in kept]

    def spread(self, kept: Sequence[Column], places: NDArray[np.int64], count: int) -> list[Column]:
        """The same at other positions of `count`; nothing at those between."""
        found = []
        for part in kept:
            values = np.zeros(count, part.values.dtype)
            if values.dtype == object:
                values[:] = None
            valid = np.zeros(count, bool)
            values[places], valid[places] = part.values, part.valid
            found.append(Column(values, valid))
        return found

    def results(self, kept: Sequence[Column]) -> dict[str, pa.Array]:
        """The aggregates' columns, by name."""
        found = {}
        for name, _, parts in self._aggregates.results:
            if len(parts) == 1:
                found[name] = self._lanes[parts[0]].arrow(kept[parts[0]])
            else:
                total, values = (kept[i] for i in parts)
                some = values.values > 0
                mean = total.values / np.where(some, values.values, 1)
                found[name] = pa.array(mean, mask=~some)
        return found
