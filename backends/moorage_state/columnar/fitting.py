"""Columns that users make, as columns of a declared type.

Decides what is close enough: what loses nothing, and structs by the names of their fields, however
deep they lie. A field that lacks has its default, as with a dict. Called by the columnar codec.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moorage_state.columnar.arrow import arrow_type
from moorage_state.types import StateType

__all__ = ["fitted"]


def fitted(column: pa.Array, parsed: StateType) -> pa.Array:
    """The column with the Arrow type of `parsed`.

    Raises:
        pa.ArrowException: it is another type, has other fields, or a value would lose something.
    """
    kind = column.type
    if parsed.name == "struct" and pa.types.is_struct(kind):
        return _struct(column, parsed)
    if parsed.name == "array" and _is_list(kind):
        return _array(column, parsed)
    if parsed.name == "map" and pa.types.is_map(kind):
        return _map(column, parsed)
    return column.cast(arrow_type(parsed))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _struct(column: pa.Array, parsed: StateType) -> pa.Array:
    names = [field.name for field in column.type]
    strange = sorted({name for name in names if name not in parsed.fields})
    if strange or len(set(names)) != len(names):
        raise pa.ArrowInvalid(
            f"no field {strange}" if strange else f"two fields of a name: {names}"
        )
    parts = dict(zip(names, column.flatten(), strict=True))
    fields = [
        fitted(parts[name], child) if name in parts else _filled(child, default, len(column))
        for name, child, default in zip(
            parsed.fields, parsed.children, parsed.defaults, strict=True
        )
    ]
    mask = pc.invert(column.is_valid()) if column.null_count else None
    return pa.StructArray.from_arrays(fields, fields=list(arrow_type(parsed)), mask=mask)


def _filled(parsed: StateType, default: object, count: int) -> pa.Array:
    kind = arrow_type(parsed)
    return pa.nulls(count, kind) if default is None else pa.repeat(pa.scalar(default, kind), count)


def _array(column: pa.Array, parsed: StateType) -> pa.Array:
    plain = column.cast(pa.list_(column.type.value_type))
    items = fitted(plain.flatten(), parsed.children[0])
    return pa.ListArray.from_arrays(_offsets(plain), items, type=arrow_type(parsed))


def _map(column: pa.Array, parsed: StateType) -> pa.Array:
    kind = column.type
    entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    plain = column.cast(pa.list_(entry))
    parts = [fitted(*each) for each in zip(plain.flatten().flatten(), parsed.children, strict=True)]
    return pa.MapArray.from_arrays(_offsets(plain), *parts, type=arrow_type(parsed))


def _offsets(lists: pa.Array) -> pa.Array:
    """Where each list begins in what `flatten` gives; null where the list is."""
    lengths = np.asarray(pc.list_value_length(lists).fill_null(0), np.int32)
    ends = np.concatenate((np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)))
    missing = np.append(~np.asarray(lists.is_valid()), False)
    return pa.array(ends, pa.int32(), mask=missing)
