"""The outputs of an operator in one subtask: what its function yields, on to sinks and operators.

Decides which output a row is of, and what the digest covers that consumers compare. A buffer takes
the rows one by one, `SubtaskOutput` sends them in batches.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import xxhash

from moorage.api.functions import OutputTag, undeclared
from moorage.api.sinks import Sink, SinkWriter, StageId
from moorage.engine.acks import Tally, mark_of, tally_of
from moorage.engine.columns import carried_batch, row_batch, side_column
from moorage.engine.output_types import RowShape, fitted, hash_column
from moorage.engine.samples import SampledRows, Sampler
from moorage.engine.subtask_plan import SubtaskPlan
from moorage_state.errors import UserError

FLUSH_ROWS = 8192
"""Output rows that are enough for a batch."""

_PAIR = 2


class OutputBuffer:
    """Collects what a function yields and turns it into record batches of a fixed schema.

    Attributes:
        rows: what waits for `take`; always the same list.
        append: adds a tuple.
        as_tuple: makes a tuple of a list or a dict; raises `UserError` for what is no row.
        total: rows that were taken.

    Args:
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

    def extend(self, produced: Iterable[Any]) -> Iterator[Any] | None:
        """Add rows: tuples (or lists) in column order, or dicts by column name.

        Returns:
            What is left to be added when the buffer is full, after a `take`; None for nothing. One
            row or timer may give more rows than there is memory for.

        Raises:
            UserError: for what is no row; the width of tuples is judged by `take`.
        """
        append, as_tuple, rows = self.append, self.as_tuple, self.rows
        try:
            left = iter(produced)
            for row in left:
                # A list or dict may be used again by its owner as soon as it was yielded.
                append(row if type(row) is tuple else as_tuple(row))
                if len(rows) >= FLUSH_ROWS:
                    return left
        except TypeError:
            self.require_rows(produced)
            raise
        return None

    def require_rows(self, produced: Any) -> None:
        """Refuse what a function gave in place of rows, which no loop can take apart."""
        if not hasattr(produced, "__iter__"):
            raise self._shape.misshapen(produced) from None

    @property
    def full(self) -> bool:
        """Whether it is time to take a batch."""
        return len(self.rows) >= FLUSH_ROWS

    def takes(self, tag: Any) -> bool:
        """Whether somebody takes the rows of a side output; refuses one that is not declared."""
        if type(tag) is not OutputTag:
            raise UserError(
                f"a side output is named by its OutputTag: operator={self._uid} got={tag!r:.200}"
            )
        if tag.name not in self._declared:
            raise undeclared(f"operator={self._uid}", tag.name, self._declared)
        return tag.name in self._sides

    def emit(self, tag: OutputTag, row: Any) -> None:
        """Add a row of a side output."""
        if self.takes(tag):
            self.rows.append((tag, self._sides[tag.name].as_tuple(row)))

    def take(self) -> pa.RecordBatch:
        """The rows since the last call.

        Raises:
            UserError: when a row is of another width, or a value does not fit its column.
        """
        batch = self._shape.batch(self.rows)
        self.rows.clear()
        self.total += batch.num_rows
        return batch

    def take_sides(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The same of each side output that had rows in the last `take`, with its name."""
        return iter(())

    def batches_of(self, made: Any, side_output: str = "") -> Iterator[pa.RecordBatch]:
        """An Arrow table or batch as batches of the declared schema."""
        shape = self._sides[side_output] if side_output else self._shape
        for batch in fitted(made, shape.schema, shape.place):
            self.total += batch.num_rows
            yield batch


class TaggedBuffer(OutputBuffer):
    """The buffer of an operator with side outputs; `OutputBuffer` looks for none."""

    def __init__(
        self, uid: str, schema: pa.Schema, sides: Mapping[str, pa.Schema | None] | None = None
    ) -> None:
        super().__init__(uid, schema, sides)
        self._waiting: dict[str, list[Any]] = {}
        self.append = self._append
        self.as_tuple = self._as_tuple

    def take(self) -> pa.RecordBatch:
        """See `OutputBuffer.take`: the rows of the main output."""
        mine: list[Any] = []
        for row in self.rows:
            if _is_tagged(row):
                self._waiting.setdefault(row[0].name, []).append(row[1])
            else:
                mine.append(row)
        self.rows[:] = mine
        return super().take()

    def take_sides(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """See `OutputBuffer.take_sides`."""
        waiting, self._waiting = self._waiting, {}
        for name, rows in waiting.items():
            self.total += len(rows)
            yield name, self._sides[name].batch(rows)

    def _append(self, row: tuple[Any, ...]) -> None:
        # Rows of all outputs wait in one list, so that it is full after so many, whichever they are
        # of.
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


@dataclass(slots=True)
class _Outlet:
    """One output of the operator.

    Attributes:
        column: of a side output, the column that carries its rows.
        read: whether an operator reads it.
        sent: rows that went on to operators.
    """

    schema: pa.Schema
    sinks: tuple[tuple[str, Sink], ...]
    read: bool
    column: str = ""
    sent: int = 0
    writers: list[tuple[str, SinkWriter]] = field(default_factory=list)


class SubtaskOutput:
    """The output of one attempt of one subtask; used once.

    Attributes:
        buffer: what the function has yielded since the last `flush`.
        sent: by output, the rows that went downstream.
        sink_seconds: for which sinks opened, wrote and finished.
    """

    def __init__(self, plan: SubtaskPlan, subtask: int) -> None:
        self._plan = plan
        self._subtask = subtask
        read = bool(plan.downstream) and plan.main_read
        self._outlets = {"": _Outlet(plan.output, plan.sinks, read)}
        sides: dict[str, pa.Schema | None] = {}
        for index, side in enumerate(plan.side_outputs):
            sides[side.name] = side.schema if side.used else None
            if side.used:
                column = side_column(index)
                self._outlets[side.name] = _Outlet(side.schema, side.sinks, side.read, column)
        self.buffer = (TaggedBuffer if sides else OutputBuffer)(plan.uid, plan.output, sides)
        self._mixed = any(side.read for side in plan.side_outputs)
        self._tables: list[tuple[str, Any]] = []
        self._sampler = Sampler(plan.sampling) if plan.sampling is not None else None
        self._hash = xxhash.xxh3_128()
        self.sent: dict[str, Tally] = {}
        self.sink_seconds = 0.0

    @property
    def digest(self) -> str:
        """Of all rows that went downstream; empty where nothing is downstream."""
        return self._hash.hexdigest() if self._plan.downstream else ""

    @property
    def samples(self) -> dict[str, SampledRows]:
        """By sink uid, the sample of its rows, where one is taken."""
        return self._sampler.taken() if self._sampler is not None else {}

    def open(self) -> None:
        """Open a writer for each sink."""
        plan = self._plan
        stage = StageId(plan.lineage, plan.run, plan.epoch, plan.uid, self._subtask)
        with self._in_sinks():
            for outlet in self._outlets.values():
                for uid, sink in outlet.sinks:
                    outlet.writers.append((uid, sink.open_writer(stage, outlet.schema)))

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Send what the buffer holds; yields what is for other operators.

        Raises:
            UserError: a row is not of the declared schema.
        """
        yield from self._batch("", self.buffer.take())
        for name, batch in self.buffer.take_sides():
            yield from self._batch(name, batch)
        yield from self._emitted()

    def flush_with(self, left: Iterator[Any] | None) -> Iterator[pa.RecordBatch]:
        """Send the full buffer, and after it what `OutputBuffer.extend` had left."""
        while self.buffer.full:
            yield from self.flush()
            left = None if left is None else self.buffer.extend(left)

    def emit_table(self, tag: OutputTag, made: Any) -> None:
        """Keep a table or batch of a side output until the next `flush`."""
        if self.buffer.takes(tag):
            self._tables.append((tag.name, made))

    def send(self, made: Any) -> Iterator[pa.RecordBatch]:
        """Send what a vectorized function gave, like `flush`: a table or batch, or a tag and it."""
        if is_pair(made):
            self.emit_table(*made)
            yield from self._emitted()
        else:
            yield from self._table("", made)

    def send_aside(self, name: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Send rows that are not processed to a side output, as they came, if it is used."""
        if name and name in self._outlets:
            yield from self._table(name, batch.select(list(self._plan.columns)))

    def finish(self) -> dict[str, list[dict[str, Any]]]:
        """What the sinks staged, by their uid; writers that staged nothing are left out."""
        staged: dict[str, list[dict[str, Any]]] = {}
        with self._in_sinks():
            for outlet in self._outlets.values():
                staged |= {uid: writer.finish() for uid, writer in outlet.writers}
        for outlet in self._outlets.values():
            outlet.writers = []
        return {uid: items for uid, items in staged.items() if items}

    def writers(self) -> list[SinkWriter]:
        """Those that are open: what they staged is to be dropped after a failure."""
        return [writer for outlet in self._outlets.values() for _, writer in outlet.writers]

    @contextmanager
    def _in_sinks(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.sink_seconds += time.monotonic() - began

    def _emitted(self) -> Iterator[pa.RecordBatch]:
        tables, self._tables = self._tables, []
        for name, made in tables:
            yield from self._table(name, made)

    def _table(self, name: str, made: Any) -> Iterator[pa.RecordBatch]:
        for batch in self.buffer.batches_of(made, name):
            yield from self._batch(name, batch)

    def _batch(self, name: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        outlet = self._outlets[name]
        if outlet.writers:
            with self._in_sinks():
                for _, writer in outlet.writers:
                    writer.write(batch)
                if self._sampler is not None:
                    self._sampler.add([uid for uid, _ in outlet.writers], batch)
        if outlet.read:
            # With the number of rows no two outputs have the same bytes.
            self._hash.update(f"{name}:{batch.num_rows}:".encode())
            for column in batch.columns:
                hash_column(self._hash, column)
            carried = batch
            if self._mixed:
                carried = carried_batch(batch, outlet.column, self._plan.carried)
            mark = mark_of(self._hash.intdigest(), self._subtask)
            yield row_batch(carried, self._subtask, outlet.sent, mark)
            outlet.sent += batch.num_rows
            before = self.sent.get(name, Tally())
            self.sent[name] = before + tally_of(mark, batch.num_rows)


def is_pair(made: Any) -> bool:
    """Whether it is a tag and what goes to that side output."""
    return isinstance(made, tuple) and len(made) == _PAIR and type(made[0]) is OutputTag
