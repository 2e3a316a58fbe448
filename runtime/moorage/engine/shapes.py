"""The declared columns of one output of an operator, and what is made to be of them.

Decides which rows and tables are of the declared columns, and what is said of those that are not:
always the operator, the side output if it is one, the column and the value. Called by the output
buffer for what functions yield.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from moorage.api.functions import OutputTag, undeclared
from moorage.engine.strictness import misfit
from moorage.engine.whole_columns import fitted
from moorage_state.errors import UserError

__all__ = ["RowShape"]


class RowShape:
    """One output of an operator.

    Args:
        uid: the operator.
        schema: the declared columns.
        side_output: its name, if it is one.
        alone: the operator has no other output, so that a tag in a row is one too many.
    """

    def __init__(
        self, uid: str, schema: pa.Schema, side_output: str = "", *, alone: bool = False
    ) -> None:
        self._alone = alone
        self._place = f"operator={uid}" + (f" side_output={side_output}" if side_output else "")
        self._names = schema.names
        self._width = len(schema.names)
        self.schema = schema

    def as_tuple(self, row: Any) -> tuple[Any, ...]:
        """A row as `batch` takes it. Raises `UserError` for what is no row."""
        if isinstance(row, dict):
            return self._from_dict(row)
        if isinstance(row, (tuple, list)) and len(row) == self._width:
            return tuple(row)
        raise self._misshapen(row)

    def batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Tuples as a batch.

        Raises:
            UserError: when a row is of another width, or a value does not fit its column.
        """
        if not rows:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        try:
            columns = list(zip(*rows, strict=True))
        except ValueError:
            columns = []
        if len(columns) != self._width:
            raise self._misshapen(next(row for row in rows if len(row) != self._width))
        arrays = [self._array(i, column) for i, column in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def batches_of(self, made: Any) -> Iterator[pa.RecordBatch]:
        """An Arrow table or batch as batches of the declared schema.

        Raises:
            UserError: it is none, lacks a column, or has one that does not fit.
        """
        return fitted(made, self.schema, self._place)

    def _array(self, index: int, values: Sequence[Any]) -> pa.Array:
        field = self.schema.field(index)
        if reason := misfit(field, values):
            raise self._unfit(field, reason, values)
        try:
            return pa.array(values, type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as exc:
            raise self._unfit(field, str(exc), values) from exc

    def _unfit(self, field: pa.Field, reason: str, values: Sequence[Any]) -> UserError:
        if (tag := self._tag_among(values)) is not None:
            return undeclared(self._place, tag.name, ())
        return UserError(
            f"an output value does not fit its column: {self._place} "
            f"column={field.name} declared={field.type}: {reason}"
        )

    def _from_dict(self, row: dict[str, Any]) -> tuple[Any, ...]:
        unknown = sorted(str(name) for name in row if name not in self._names)
        if unknown:
            raise UserError(
                f"the operator yields columns that its output does not declare: "
                f"{self._place} columns={unknown} declared={self._names}"
            )
        return tuple(row.get(name) for name in self._names)

    def _misshapen(self, row: Any) -> UserError:
        if isinstance(row, (tuple, list)) and (tag := self._tag_among(row[:1])) is not None:
            return undeclared(self._place, tag.name, ())
        return UserError(
            f"the operator must yield rows, each a tuple of {self._width} values or a dict: "
            f"{self._place} declared={self._names} got={row!r:.200}; a single row is "
            f"yielded, or returned in a list"
        )

    def _tag_among(self, values: Sequence[Any]) -> OutputTag | None:
        found = (value for value in values if type(value) is OutputTag)
        return next(found, None) if self._alone else None
