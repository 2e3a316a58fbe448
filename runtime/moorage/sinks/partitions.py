"""Hive-style partitions: `column=value/` directories, named exactly as Spark names them."""

from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from moorage_state.errors import UserError

__all__ = ["check_partitioning", "partition_name", "split", "without"]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^") | {chr(c) for c in (*range(1, 32), 127)}
_MAX_NAME_BYTES = 255
_MAX_ESCAPE = 255
"""The highest character that two hex digits can name."""

_TYPES = (pt.is_integer, pt.is_string, pt.is_large_string, pt.is_boolean, pt.is_date, pt.is_decimal)


def check_partitioning(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise UserError where rows of `schema` cannot be partitioned by `columns`."""
    missing = [name for name in columns if name not in schema.names]
    if missing or len(set(columns)) < len(columns):
        raise UserError(
            f"partition_by needs different columns of the stream: partition_by={list(columns)} "
            f"columns={schema.names}"
        )
    if columns and len(columns) == len(schema.names):
        raise UserError(
            f"partition_by takes every column, so nothing is left for the files: "
            f"columns={schema.names}; leave one out"
        )
    if hidden := [name for name in columns if name.startswith(".")]:
        raise UserError(
            f"readers skip directories that start with a dot; rename the column: columns={hidden}"
        )
    for name in columns:
        if not any(check(schema.field(name).type) for check in _TYPES):
            raise UserError(
                f"this type has no sure spelling as a directory name: column={name} "
                f"type={schema.field(name).type}; partition by a string, a whole number, a "
                f"decimal, a boolean or a date"
            )


def without(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """What is left for the files."""
    return pa.schema([field for field in schema if field.name not in columns])


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The directory and the rows of each partition; rows keep their order.

    The rows come without the partition columns; without any, the directory is "".
    """
    if not columns:
        yield "", batch
        return
    rest = batch.select([name for name in batch.schema.names if name not in columns])
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    for name in columns:
        encoded = batch.column(name).dictionary_encode()
        indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        # Renumbered from 0 after each column, so that no product of sizes can overflow.
        codes = codes * (len(encoded.dictionary) + 1) + indices + 1
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for start, end in pairwise([*starts, len(order)]):
        rows = order[start:end]
        first = int(rows[0])
        yield (
            "/".join(partition_name(name, batch.column(name)[first].as_py()) for name in columns),
            rest.take(pa.array(rows)),
        )


def partition_name(column: str, value: Any) -> str:
    """`column=value`, escaped; null and the empty string are one partition, as in Spark.

    Raises:
        UserError: the value cannot be the name of a directory.
    """
    name = f"{_escape(column)}={_escape(_text(value))}"
    if len(name.encode()) > _MAX_NAME_BYTES or not name.isprintable():
        raise UserError(
            f"a partition value is too long for a directory name, or has characters that cannot "
            f"be printed: column={column} value={str(value)[:80]!r}"
        )
    return name


def _text(value: Any) -> str:
    if value is None or value == "":
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.isoformat() if isinstance(value, date) else str(value)


def _escape(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if _must_escape(c) else c for c in text)


def _must_escape(char: str) -> bool:
    return char in _ESCAPED or (not char.isprintable() and 0 < ord(char) <= _MAX_ESCAPE)
