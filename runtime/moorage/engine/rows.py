"""Rows in: Arrow batches to named tuples.

Decides how columns become Python values, whole columns at a time, and where a key begins. Called by
the subtask for every batch; what functions yield is the business of `moorage.engine.buffers`.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = ["RowReader", "column_values", "group_starts"]


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
