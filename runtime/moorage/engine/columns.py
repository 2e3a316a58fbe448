"""The engine's own columns beside a stream's, how outputs share them, and rows that are no data.

Shared by the planner (driver) and the subtask (executor).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

KIND_COLUMN = "_m_kind"
"""ROW, ACK, START or BROADCAST."""
GROUP_COLUMN = "_m_kg"
"""Key group of a row; subtask of a start row."""
TIME_COLUMN = "_m_time"
"""Event time of a row in milliseconds, null where none is declared."""
INPUT_COLUMN = "_m_in"
"""Position of the row's feed among the operator's, where there are several, or time is declared."""
ACK_COLUMN = "_m_ack"
"""An encoded acknowledgement."""
ORDINAL_COLUMN = "_m_ord"
"""The subtask that produced a row, and the row's position in what it produced."""
COUNT_COLUMN = "_m_rows"
"""How many rows a row stands for, where rows were added up before they came; else not there."""
NULLS_COLUMN = "_m_nulls"
"""How many of these were nulls alone; null for none."""
MARK_COLUMN = "_m_mark"
"""Of the batch that a row of another operator was sent in, see `acks`; null for other rows."""
TARGET_COLUMN = "_m_target"
"""The subtask that a row goes to."""

SOURCE_ORDER = "_m_src"
"""Position of a row in what a partition of its source brought."""

OUTPUT_COLUMNS = (KIND_COLUMN, ORDINAL_COLUMN, MARK_COLUMN, TARGET_COLUMN, ACK_COLUMN)
"""The engine's own, after those that carry an operator's outputs."""

ROW, ACK, START, BROADCAST = 0, 1, 2, -1

# As `monotonically_increasing_id` numbers rows: one column to sort by.
_ORDINAL_BITS = 40


def broadcast_column(index: int) -> str:
    """The column that holds the broadcast stream's column of this index, beside keyed rows."""
    return f"_m_b{index}"


def stream_column(side: int) -> str:
    """The column that holds rows of one of two streams as structs; null in those of the other."""
    return f"_m_r{side}"


def find_column(batch: pa.RecordBatch, path: str) -> pa.Array:
    """A column, or with a dot that of a struct; values are of no use where the struct is null."""
    name, _, field = path.partition(".")
    column = batch.column(name)
    return column.field(field) if field else column


def side_column(index: int) -> str:
    """The column that holds rows of the operator's side output of this index, as structs."""
    return f"_m_o{index}"


def carried_schema(output: pa.Schema | None, sides: Iterable[tuple[int, pa.Schema]]) -> pa.Schema:
    """The columns that carry what operators read of another's outputs.

    Args:
        output: of the main output; None where nobody reads it.
        sides: indexes and columns of the side outputs that somebody reads.
    """
    structs = [
        pa.field(side_column(i), pa.struct([(f.name, f.type) for f in schema]))
        for i, schema in sides
    ]
    return pa.schema([*(output or ()), *structs])


def carried_batch(batch: pa.RecordBatch, column: str, carried: pa.Schema) -> pa.RecordBatch:
    """Rows of one output as rows of all that is carried; `column` is of a side output, or empty."""
    mine = dict(zip(batch.schema.names, batch.columns, strict=True))
    if column:
        mine = {column: pa.StructArray.from_arrays(batch.columns, names=batch.schema.names)}
    arrays = [mine[f.name] if f.name in mine else pa.nulls(batch.num_rows, f.type) for f in carried]
    return pa.RecordBatch.from_arrays(arrays, names=carried.names)


def ack_batch(
    raws: Sequence[bytes], carried: pa.Schema, subtask: int, *, downstream: bool
) -> pa.RecordBatch:
    """Acknowledgements as rows: for the driver, or for the same subtask of the next operator."""
    count = len(raws)
    if not downstream:
        return pa.RecordBatch.from_arrays([pa.array(raws, pa.binary())], names=[ACK_COLUMN])
    return pa.RecordBatch.from_arrays(
        [
            *(pa.nulls(count, f.type) for f in carried),
            pa.array(np.full(count, ACK, dtype=np.int8)),
            pa.nulls(count, pa.int64()),
            pa.nulls(count, pa.int64()),
            pa.array(np.full(count, subtask, dtype=np.int32)),
            pa.array(raws, pa.binary()),
        ],
        names=[*carried.names, *OUTPUT_COLUMNS],
    )


def row_batch(batch: pa.RecordBatch, subtask: int, first: int, mark: int) -> pa.RecordBatch:
    """Carried rows for downstream operators.

    Args:
        first: the position of the first of them in what the subtask produced.
        mark: 64 bits, see `acks`.
    """
    count = batch.num_rows
    start = (subtask << _ORDINAL_BITS) + first
    return pa.RecordBatch.from_arrays(
        [
            *batch.columns,
            pa.array(np.full(count, ROW, dtype=np.int8)),
            pa.array(np.arange(start, start + count, dtype=np.int64)),
            pa.array(np.full(count, mark, dtype=np.uint64).view(np.int64)),
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.binary()),
        ],
        names=[*batch.schema.names, *OUTPUT_COLUMNS],
    )
