"""Rows in and out: Arrow batches to named tuples, what functions yield to Arrow batches.

Decides how columns become Python values (whole columns at a time) and refuses output that is not
of the declared schema with the column's name. Called by the subtask for every batch.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from moorage.engine.strictness import misfit
from moorage.engine.whole_columns import fitted
from moorage_state.errors import UserError

__all__ = ["FLUSH_ROWS", "OutputBuffer", "RowReader", "column_values", "group_starts"]

FLUSH_ROWS = 8192
"""Output rows that are enough for a batch."""


def column_values(column: pa.Array) -> list[Any]:
    """The column as Python values; numbers without nulls take the short way through NumPy."""
    kind = column.type
    values: list[Any]
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
    """Positions at which the value of any of `columns` differs from the row before; 0 first.

    The columns hold no nulls.
    """
    rows = len(columns[0])
    if rows == 0:
        return np.zeros(0, np.int64)
    changed = np.zeros(rows, dtype=bool)
    changed[0] = True
    for column in columns:
        differs = pc.not_equal(column.slice(1), column.slice(0, rows - 1))
        changed[1:] |= differs.to_numpy(zero_copy_only=False).astype(bool)
    return np.flatnonzero(changed)


class RowReader:
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


class OutputBuffer:
    """Collects what a function yields and turns it into record batches of a fixed schema.

    Attributes:
        rows: tuples that wait for `take`; always the same list.

    Args:
        uid: the operator, for error messages.
        schema: the declared output columns.
    """

    def __init__(self, uid: str, schema: pa.Schema) -> None:
        self._uid = uid
        self._schema = schema
        self._names = schema.names
        self._width = len(schema.names)
        self.rows: list[Any] = []
        self.total = 0

    def extend(self, produced: Iterable[Any]) -> None:
        """Add rows: tuples (or lists) in column order, or dicts by column name.

        A list or dict may be used again by its owner as soon as it was yielded.

        Raises:
            UserError: for what is no row; the width of tuples is judged by `take`.
        """
        append = self.rows.append
        for row in produced:
            append(row if type(row) is tuple else self.as_tuple(row))

    @property
    def full(self) -> bool:
        """Whether it is time to take a batch."""
        return len(self.rows) >= FLUSH_ROWS

    def take(self) -> tuple[list[Any], pa.RecordBatch]:
        """The rows since the last call, as they are and as a batch.

        Raises:
            UserError: when a row is of another width, or a value does not fit its column.
        """
        rows = self.rows.copy()
        self.rows.clear()
        self.total += len(rows)
        if not rows:
            return rows, pa.RecordBatch.from_pylist([], schema=self._schema)
        try:
            columns = list(zip(*rows, strict=True))
        except ValueError:
            columns = []
        if len(columns) != self._width:
            raise self._misshapen(next(row for row in rows if len(row) != self._width))
        arrays = [self._array(i, column) for i, column in enumerate(columns)]
        return rows, pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def batches_of(self, made: Any) -> Iterable[pa.RecordBatch]:
        """An Arrow table or batch as batches of the declared schema.

        Raises:
            UserError: it is none, lacks a column, or has one that does not fit.
        """
        for batch in fitted(made, self._schema, self._uid):
            self.total += batch.num_rows
            yield batch

    def _array(self, index: int, values: Sequence[Any]) -> pa.Array:
        field = self._schema.field(index)
        if reason := misfit(field, values):
            raise self._unfit(field, reason)
        try:
            return pa.array(values, type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as exc:
            raise self._unfit(field, str(exc)) from exc

    def _unfit(self, field: pa.Field, reason: str) -> UserError:
        return UserError(
            f"an output value does not fit its column: operator={self._uid} "
            f"column={field.name} declared={field.type}: {reason}"
        )

    def as_tuple(self, row: Any) -> tuple[Any, ...]:
        """A row as `extend` takes it. Raises `UserError` for what is no row."""
        if isinstance(row, dict):
            return self._from_dict(row)
        if isinstance(row, (tuple, list)) and len(row) == self._width:
            return tuple(row)
        raise self._misshapen(row)

    def _from_dict(self, row: dict[str, Any]) -> tuple[Any, ...]:
        unknown = sorted(str(name) for name in row if name not in self._names)
        if unknown:
            raise UserError(
                f"the operator yields columns that its output does not declare: "
                f"operator={self._uid} columns={unknown} declared={self._names}"
            )
        return tuple(row.get(name) for name in self._names)

    def _misshapen(self, row: Any) -> UserError:
        return UserError(
            f"the operator must yield rows, each a tuple of {self._width} values or a dict: "
            f"operator={self._uid} declared={self._names} got={row!r:.200}; a single row is "
            f"yielded, or returned in a list"
        )
