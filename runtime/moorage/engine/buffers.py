"""What a function yields, until it leaves as batches: rows of its output and of side outputs.

Decides which output a row is of. Called by the key loop and the firing of timers for every row, and
by the sending for batches. The buffer of an operator without side outputs looks for none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from moorage.api.functions import OutputTag, undeclared
from moorage.engine.shapes import RowShape
from moorage_state.errors import UserError

__all__ = ["FLUSH_ROWS", "OutputBuffer", "TaggedBuffer"]

FLUSH_ROWS = 8192
"""Output rows that are enough for a batch."""


class OutputBuffer:
    """Collects what a function yields and turns it into record batches of a fixed schema.

    Attributes:
        rows: what waits for `take`; always the same list.
        append: adds a tuple.
        as_tuple: makes a tuple of a list or a dict; raises `UserError` for what is no row.
        total: rows that were taken.

    Args:
        uid: the operator, for error messages.
        schema: the declared output columns.
        sides: by name, the columns of its side outputs; None for one that nobody takes, whose rows
            are dropped at once.
    """

    def __init__(
        self, uid: str, schema: pa.Schema, sides: Mapping[str, pa.Schema | None] | None = None
    ) -> None:
        declared = sides or {}
        self._uid = uid
        self._shape = RowShape(uid, schema, alone=not declared)
        self._declared = list(declared)
        self._sides = {n: RowShape(uid, s, n) for n, s in declared.items() if s is not None}
        self.rows: list[Any] = []
        self.append: Callable[[Any], None] = self.rows.append
        self.as_tuple: Callable[[Any], tuple[Any, ...]] = self._shape.as_tuple
        self.total = 0

    def extend(self, produced: Iterable[Any]) -> None:
        """Add rows: tuples (or lists) in column order, or dicts by column name.

        A list or dict may be used again by its owner as soon as it was yielded.

        Raises:
            UserError: for what is no row; the width of tuples is judged by `take`.
        """
        append, as_tuple = self.append, self.as_tuple
        for row in produced:
            append(row if type(row) is tuple else as_tuple(row))

    @property
    def full(self) -> bool:
        """Whether it is time to take a batch."""
        return len(self.rows) >= FLUSH_ROWS

    def takes(self, tag: Any) -> bool:
        """Whether somebody takes the rows of a side output.

        Raises:
            UserError: the operator does not declare it.
        """
        if type(tag) is not OutputTag:
            raise UserError(
                f"a side output is named by its OutputTag: operator={self._uid} got={tag!r:.200}"
            )
        if tag.name not in self._declared:
            raise undeclared(f"operator={self._uid}", tag.name, self._declared)
        return tag.name in self._sides

    def emit(self, tag: OutputTag, row: Any) -> None:
        """Add a row of a side output.

        Raises:
            UserError: see `takes`; or it is no row of it.
        """
        if self.takes(tag):
            self.rows.append((tag, self._sides[tag.name].as_tuple(row)))

    def take(self) -> tuple[list[Any], pa.RecordBatch]:
        """The rows since the last call, as they are and as a batch.

        Raises:
            UserError: when a row is of another width, or a value does not fit its column.
        """
        rows = self.rows.copy()
        self.rows.clear()
        self.total += len(rows)
        return rows, self._shape.batch(rows)

    def take_sides(self) -> Iterator[tuple[str, list[Any], pa.RecordBatch]]:
        """The same of each side output that had rows in the last `take`, with its name."""
        return iter(())

    def batches_of(self, made: Any, side_output: str = "") -> Iterator[pa.RecordBatch]:
        """An Arrow table or batch as batches of the declared schema.

        Raises:
            UserError: it is none, lacks a column, or has one that does not fit.
        """
        shape = self._sides[side_output] if side_output else self._shape
        for batch in shape.batches_of(made):
            self.total += batch.num_rows
            yield batch


class TaggedBuffer(OutputBuffer):
    """The buffer of an operator with side outputs.

    The rows of all outputs wait in one list, so that it is full after so many rows, whichever they
    are of.
    """

    def __init__(
        self, uid: str, schema: pa.Schema, sides: Mapping[str, pa.Schema | None] | None = None
    ) -> None:
        super().__init__(uid, schema, sides)
        self._waiting: dict[str, list[Any]] = {}
        self.append = self._append
        self.as_tuple = self._as_tuple

    def take(self) -> tuple[list[Any], pa.RecordBatch]:
        """See `OutputBuffer.take`: the rows of the main output."""
        mine: list[Any] = []
        for row in self.rows:
            if _is_tagged(row):
                self._waiting.setdefault(row[0].name, []).append(row[1])
            else:
                mine.append(row)
        self.rows[:] = mine
        return super().take()

    def take_sides(self) -> Iterator[tuple[str, list[Any], pa.RecordBatch]]:
        """See `OutputBuffer.take_sides`."""
        waiting, self._waiting = self._waiting, {}
        for name, rows in waiting.items():
            self.total += len(rows)
            yield name, rows, self._sides[name].batch(rows)

    def _append(self, row: tuple[Any, ...]) -> None:
        if not _is_tagged(row):
            self.rows.append(row)
        elif len(row) == 2:
            self.emit(*row)
        else:
            raise UserError(
                f"a row of a side output is yielded as one value after its tag, (tag, row): "
                f"operator={self._uid} side_output={row[0].name} got={row!r:.200}"
            )

    def _as_tuple(self, row: Any) -> tuple[Any, ...]:
        if isinstance(row, (tuple, list)) and _is_tagged(row):
            return tuple(row)
        return self._shape.as_tuple(row)


def _is_tagged(row: Any) -> bool:
    return len(row) > 0 and type(row[0]) is OutputTag
