"""Output that comes as Arrow tables: made to fit the declared columns, and hashed by column.

Decides what of a table is refused and which bytes stand for a column in a digest: those of its
values, not what Arrow happens to hold where there is a null. Called by the output of a subtask.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from moorage_state.errors import UserError

__all__ = ["fitted", "hash_column"]


_PLAIN = {32: pa.int32(), 64: pa.int64()}


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...


def fitted(made: Any, schema: pa.Schema, place: str) -> Iterator[pa.RecordBatch]:
    """The batches of a table, with the columns of `schema` in their order.

    Args:
        place: the operator, and the side output if it is one, as messages name them.

    Raises:
        UserError: naming the place and the column.
    """
    if not isinstance(made, (pa.Table, pa.RecordBatch)):
        raise UserError(
            f"a vectorized operator gives Arrow tables or batches: {place} "
            f"got={type(made).__name__}"
        )
    if sorted(made.schema.names) != sorted(schema.names):
        raise UserError(
            f"a table does not have the columns that the operator's output declares: "
            f"{place} columns={made.schema.names} declared={schema.names}"
        )
    table = made if isinstance(made, pa.Table) else pa.Table.from_batches([made])
    columns = [_fitted(table.column(field.name), field, place) for field in schema]
    for batch in pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches():
        if batch.num_rows:
            yield batch


def _fitted(column: pa.ChunkedArray, field: pa.Field, place: str) -> pa.ChunkedArray:
    try:
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowException as error:
        raise UserError(
            f"an output column does not fit: {place} column={field.name} "
            f"declared={field.type} got={column.type}: {error}"
        ) from error


def hash_column(digest: _Hash, column: pa.Array) -> None:
    """Add the values of a column to a digest."""
    digest.update(np.packbits(np.asarray(column.is_valid())).tobytes())
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _hash_texts(digest, column)
    elif pa.types.is_primitive(kind) and not pa.types.is_float16(kind):
        digest.update(np.ascontiguousarray(_numbers(column)).tobytes())
    else:
        digest.update(repr(column.to_pylist()).encode())


def _numbers(column: pa.Array) -> Any:
    """The values of a column of fixed width, 0 where there is a null."""
    kind = column.type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        column = column.view(_PLAIN[kind.bit_width])
    if column.null_count:
        column = column.fill_null(pa.scalar(0).cast(column.type))
    return column.to_numpy(zero_copy_only=False)


def _hash_texts(digest: _Hash, column: pa.Array) -> None:
    empty = "" if pa.types.is_string(column.type) else b""
    filled = column.fill_null(pa.scalar(empty, column.type)) if column.null_count else column
    if not len(filled):
        return
    _, offsets_of, data_of = filled.buffers()
    offsets = np.frombuffer(offsets_of, np.int32)[filled.offset : filled.offset + len(filled) + 1]
    digest.update(np.diff(offsets).tobytes())
    if data_of is not None:
        start, end = int(offsets[0]), int(offsets[-1])
        digest.update(data_of.slice(start, end - start))
