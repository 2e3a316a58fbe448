"""Aggregates by name: what is kept for each, and how rows and kept values come together.

An aggregate is made of parts, each one field of a flat struct that is kept for a key or a window.
Every part knows one row at a time (`add`), two kept values (`merge`) and whole columns (`reduced`);
all give the same. Called by whoever offers `count`, `sum_`, `min_`, `max_` and `avg`.
"""

import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    FractionalType,
    MapType,
    NumericType,
    StructType,
)

from moorage.api.misplaced import did_you_mean
from moorage_state.checks import added
from moorage_state.descriptors import AggregateFunction
from moorage_state.errors import UserError
from moorage_state.types import quoted

_Kind = Literal["count", "sum", "min", "max", "avg"]
_Op = Literal["rows", "values", "sum", "min", "max"]
_MOST_DIGITS, _MORE_DIGITS = 38, 10
MOST = (1 << 63) - 1
"""The greatest sum of integers; the least is one further from 0, as in every long."""
LOW_BITS = 32
"""Of an integer that is added up in two halves, those in the low one."""
_OF_ANY_ORDER = {
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a column; None is the rows themselves."""

    kind: _Kind
    column: str | None = None

    def __str__(self) -> str:
        """As a job file has it."""
        name = self.kind if self.kind in {"count", "avg"} else f"{self.kind}_"
        return f"{name}({'' if self.column is None else repr(self.column)})"


def count(column: str | None = None) -> Aggregate:
    """How many rows; or of a column how many values that are not null."""
    return Aggregate("count", column)


def sum_(column: str) -> Aggregate:
    """The sum: a long of integers, a double of floats, a decimal of decimals; null of none."""
    return Aggregate("sum", column)


def min_(column: str) -> Aggregate:
    """The least value that is not null; null if there is none. NaN is greater than any number."""
    return Aggregate("min", column)


def max_(column: str) -> Aggregate:
    """The greatest value that is not null; null if there is none. NaN is greater than any."""
    return Aggregate("max", column)


def avg(column: str) -> Aggregate:
    """The mean of the values that are not null, as a double; null if there are none."""
    return Aggregate("avg", column)


@dataclass(frozen=True, slots=True)
class Part:
    """One field of what is kept.

    Attributes:
        name: of the field.
        op: what it is of the column's values.
        ddl: its type.
        at: the position of the column in a row.
        as_float: values are added as doubles.
    """

    name: str
    op: _Op
    ddl: str
    column: str = ""
    at: int = -1
    as_float: bool = False

    @property
    def scale(self) -> int:
        """How many digits of a decimal are behind the point."""
        return int(self.ddl.rstrip(")").rpartition(",")[2])

    @property
    def adds_up(self) -> bool:
        """Whether any rows of it may be put together first, and the result is the same to the bit.

        Sums of floats are another one in another order. Of what has no fixed size Spark has to sort
        all rows first.
        """
        if self.op in {"rows", "values"}:
            return True
        return self.ddl == "bigint" if self.op == "sum" else self.ddl in _OF_ANY_ORDER

    @property
    def local_columns(self) -> tuple[str, ...]:
        """The columns that hold it where rows were added up: of a sum the high and the low half."""
        if self.op == "rows":
            return ()
        names = ("high", "low") if self.op == "sum" else (self.op,)
        return tuple(f"_m_{name}{self.at}" for name in names)

    def of(self, row: Sequence[Any]) -> Any:
        """The part for one row; None where it has no value."""
        if self.op == "rows":
            return 1
        value = row[self.at]
        if self.op == "values":
            return int(value is not None)
        if self.as_float and value is not None:
            value = float(value)
        # Of 0.0 and -0.0, which are equal, the least would be whichever came first.
        return value + 0.0 if isinstance(value, float) else value


class LocalAggregate(NamedTuple):
    """How rows may be added up before they travel to where their key's state is.

    Rows of a key are put together if no multiple of `pane_ms`, plus `offset_ms`, lies between their
    event times; with a `pane_ms` of 0 whatever these are.
    """

    parts: tuple[Part, ...]
    pane_ms: int = 0
    offset_ms: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the sums."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.local_columns))


def merged(op: _Op, one: Any, other: Any) -> Any:
    """Two values of a part as one; null is nothing."""
    if one is None or other is None:
        return other if one is None else one
    if op == "min":
        # NaN is not equal to itself, and greater than any number.
        return other if other < one or one != one else one  # noqa: PLR0124
    if op == "max":
        return other if other > one or other != other else one  # noqa: PLR0124
    return added(one, other)


@dataclass(frozen=True, slots=True)
class Aggregates(AggregateFunction):
    """The aggregates of one operator over rows of one schema; picklable.

    Attributes:
        parts: what is kept, in the order of the fields.
        results: for each aggregate its name, its type, and the parts that it is made of.
    """

    parts: tuple[Part, ...]
    results: tuple[tuple[str, str, tuple[int, ...]], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the stream, those that any of them is of."""
        return tuple({part.column: None for part in self.parts if part.column})

    @property
    def ddl(self) -> str:
        """The type of what is kept."""
        return f"struct<{','.join(f'{quoted(p.name)}:{p.ddl}' for p in self.parts)}>"

    @property
    def output(self) -> str:
        """The columns of the results as DDL."""
        return ", ".join(f"`{name}` {ddl}" for name, ddl, _ in self.results)

    def create_accumulator(self) -> tuple[Any, ...]:
        """See `AggregateFunction`."""
        return tuple(0 if p.op in {"rows", "values"} else None for p in self.parts)

    def add(self, value: Any, accumulator: Any) -> tuple[Any, ...]:
        """See `AggregateFunction`; `value` is a row."""
        return self._checked(
            tuple(
                merged(part.op, kept, part.of(value))
                for part, kept in zip(self.parts, accumulator, strict=True)
            )
        )

    def merge(self, one: Any, other: Any) -> tuple[Any, ...]:
        """See `AggregateFunction`."""
        return self._checked(
            tuple(merged(p.op, a, b) for p, a, b in zip(self.parts, one, other, strict=True))
        )

    def get_result(self, accumulator: Any) -> tuple[Any, ...]:
        """See `AggregateFunction`: the values of the aggregates."""
        return tuple(_result([accumulator[i] for i in parts]) for _, _, parts in self.results)

    def _checked(self, kept: tuple[Any, ...]) -> tuple[Any, ...]:
        for part, value in zip(self.parts, kept, strict=True):
            if part.op == "sum" and value is not None and not fits(part, value):
                raise overflow(part)
        return kept


def fits(part: Part, value: Any) -> bool:
    """Whether the part can hold a sum: a long, or a decimal of so many digits."""
    if isinstance(value, int):
        return -MOST - 1 <= value <= MOST
    if isinstance(value, decimal.Decimal):
        return value.adjusted() + part.scale < _MOST_DIGITS
    return True


def overflow(part: Part) -> UserError:
    """What is said of a sum that its type cannot hold any more."""
    kind, room, other = "integers", "64 bits", "a double or a decimal"
    if part.ddl != "bigint":
        kind, room, other = "decimals", f"{_MOST_DIGITS} digits", "a double"
    return UserError(
        f"a sum of {kind} does not fit {room}: column={part.column}; cast it to {other} in "
        f"transform"
    )


def _result(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    total, values = parts
    return total / values if values else None


def bound(
    uid: str, named: Mapping[str, Any], schema: StructType, beside: Sequence[str] = ()
) -> Aggregates:
    """The aggregates over rows of `schema`, by the names of their results.

    Args:
        beside: the other columns of the result.

    Raises:
        UserError: there are none, or one is none, or of a column that is not there or does not fit,
            or two columns of the result have one name.
    """
    if not named:
        raise UserError(f"name at least one aggregate, such as n=count(): uid={uid}")
    columns = [*beside]
    parts: list[Part] = []
    results = []
    for name, aggregate in named.items():
        made, ddl = _parts(uid, name, aggregate, schema)
        if name.lower() in map(str.lower, columns):
            raise UserError(
                f"the result has a column of this name already: uid={uid} {name}={aggregate} "
                f"columns={columns}; name it otherwise, as in "
                f"aggregate(uid={uid!r}, {name}_{aggregate.kind}={aggregate})"
            )
        if same := {part.name for part in made} & {part.name for part in parts}:
            raise UserError(
                f"avg keeps a sum and a count under these names, and another aggregate is called "
                f"so: uid={uid} {name}={aggregate} names={sorted(same)}; rename one of the two"
            )
        columns.append(name)
        results.append((name, ddl, tuple(range(len(parts), len(parts) + len(made)))))
        parts += made
    return Aggregates(tuple(parts), tuple(results))


def _parts(uid: str, name: str, aggregate: Any, schema: StructType) -> tuple[list[Part], str]:
    if not name.isidentifier():
        raise UserError(
            f"an aggregate is named by a letter and letters, digits and underscores, as its state "
            f"is: uid={uid} name={name!r}; name it in aggregate(), or the column in transform"
        )
    if not isinstance(aggregate, Aggregate):
        raise UserError(
            f"an aggregate is count(), sum_(column), min_, max_ or avg: uid={uid} "
            f"{name}={aggregate!r:.100}"
        )
    kind, column = aggregate.kind, aggregate.column
    if column is None and kind == "count":
        return [Part(name, "rows", "bigint")], "bigint"
    if column not in schema.names:
        raise UserError(
            f"no such column to aggregate: uid={uid} {name}={kind} column={column!r} "
            f"columns={schema.names}{did_you_mean(column, schema.names)}"
        )
    at, of = schema.names.index(column), schema[column].dataType
    if kind == "count":
        return [Part(name, "values", "bigint", column, at)], "bigint"
    if kind == "avg":
        _require(isinstance(of, NumericType), uid, name, aggregate, of)
        total = Part(f"{name}_sum", "sum", "double", column, at, as_float=True)
        return [total, Part(f"{name}_count", "values", "bigint", column, at)], "double"
    if kind == "sum":
        _require(isinstance(of, NumericType), uid, name, aggregate, of)
        ddl = _summed(of)
        return [Part(name, "sum", ddl, column, at, as_float=ddl == "double")], ddl
    _require(not isinstance(of, ArrayType | MapType | StructType), uid, name, aggregate, of)
    return [Part(name, kind, of.simpleString(), column, at)], of.simpleString()


def _summed(of: DataType) -> str:
    if isinstance(of, DecimalType):
        return f"decimal({min(_MOST_DIGITS, of.precision + _MORE_DIGITS)},{of.scale})"
    return "double" if isinstance(of, FractionalType) else "bigint"


def _require(fits: bool, uid: str, name: str, aggregate: Aggregate, of: DataType) -> None:  # noqa: FBT001
    if not fits:
        raise UserError(
            f"a column of this type has no {aggregate.kind}: uid={uid} {name}={aggregate.kind} "
            f"column={aggregate.column} type={of.simpleString()}"
        )
