"""Where an operator's outputs go in one subtask: to their sinks, and on to other operators.

Decides what the digest covers that consumers compare: every row that goes downstream, of the main
output and of side outputs. Called by the subtask and its loops.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from moorage.api.functions import OutputTag
from moorage.api.sinks import Sink, SinkWriter, StageId
from moorage.engine.buffers import OutputBuffer, TaggedBuffer
from moorage.engine.columns import carried_batch, row_batch, side_column
from moorage.engine.subtask_plan import SubtaskPlan
from moorage.engine.whole_columns import hash_column

__all__ = ["Sending", "is_pair"]

_PAIR = 2


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


class Sending:
    """The output of one attempt of one subtask; used once.

    Attributes:
        buffer: what the function has yielded since the last `flush`.
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
        self._hash = xxhash.xxh3_128()

    @property
    def digest(self) -> str:
        """Of all rows that went downstream; empty where nothing is downstream."""
        return self._hash.hexdigest() if self._plan.downstream else ""

    def open(self) -> None:
        """Open a writer for each sink."""
        plan = self._plan
        stage = StageId(plan.lineage, plan.run, plan.epoch, plan.uid, self._subtask)
        for outlet in self._outlets.values():
            for uid, sink in outlet.sinks:
                outlet.writers.append((uid, sink.open_writer(stage, outlet.schema)))

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Send what the buffer holds; yields what is for other operators.

        Raises:
            UserError: a row is not of the declared schema.
        """
        rows, batch = self.buffer.take()
        yield from self._rows("", rows, batch)
        for name, aside, side_batch in self.buffer.take_sides():
            yield from self._rows(name, aside, side_batch)
        yield from self._emitted()

    def emit_table(self, tag: OutputTag, made: Any) -> None:
        """Keep a table or batch of a side output until the next `flush`.

        Raises:
            UserError: the operator does not declare the side output.
        """
        if self.buffer.takes(tag):
            self._tables.append((tag.name, made))

    def send(self, made: Any) -> Iterator[pa.RecordBatch]:
        """Send what a vectorized function gave, like `flush`: a table or batch, or a tag and one.

        Raises:
            UserError: it is none of these, or not of the declared schema.
        """
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
        for outlet in self._outlets.values():
            staged |= {uid: writer.finish() for uid, writer in outlet.writers}
        for outlet in self._outlets.values():
            outlet.writers = []
        return {uid: items for uid, items in staged.items() if items}

    def writers(self) -> list[SinkWriter]:
        """Those that are open: what they staged is to be dropped after a failure."""
        return [writer for outlet in self._outlets.values() for _, writer in outlet.writers]

    def _emitted(self) -> Iterator[pa.RecordBatch]:
        tables, self._tables = self._tables, []
        for name, made in tables:
            yield from self._table(name, made)

    def _rows(self, name: str, rows: list[Any], batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not rows:
            return
        outlet = self._outlets[name]
        if outlet.read:
            self._hash.update(f"{name}:".encode())
            self._hash.update(_hashable(rows))
        yield from self._send_to(outlet, batch)

    def _table(self, name: str, made: Any) -> Iterator[pa.RecordBatch]:
        outlet = self._outlets[name]
        for batch in self.buffer.batches_of(made, name):
            if outlet.read:
                self._hash.update(f"{name}:".encode())
                for column in batch.columns:
                    hash_column(self._hash, column)
            yield from self._send_to(outlet, batch)

    def _send_to(self, outlet: _Outlet, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for _, writer in outlet.writers:
            writer.write(batch)
        if outlet.read:
            carried = batch
            if self._mixed:
                carried = carried_batch(batch, outlet.column, self._plan.carried)
            yield row_batch(carried, self._subtask, outlet.sent)
            outlet.sent += batch.num_rows


def is_pair(made: Any) -> bool:
    """Whether it is a tag and what goes to that side output."""
    return isinstance(made, tuple) and len(made) == _PAIR and type(made[0]) is OutputTag


def _plain(value: Any) -> Any:
    """What stands for a value in a digest: all of it, where `repr` would shorten an array."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else repr(value)


_pack = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def _hashable(rows: list[Any]) -> bytes:
    try:
        return _pack(rows)
    except OverflowError:  # integers of more than 64 bits, in a column of decimals
        return repr(rows).encode()
