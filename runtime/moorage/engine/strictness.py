"""Which Python values an output column takes: none that Arrow would quietly change.

Arrow cuts 1.5 to 1 for a column of integers, takes a number for a timestamp and forgets unknown
fields of a struct. Decides, one pass over the types of a whole column, whether its values are what
was declared. Called by the output buffer for every column of every batch.
"""

import datetime
import decimal
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["misfit"]

_TAKEN: list[tuple[Callable[[pa.DataType], bool], tuple[type, ...]]] = [
    (pa.types.is_boolean, (bool, np.bool_)),
    (pa.types.is_integer, (int, np.integer)),
    (pa.types.is_floating, (float, int, np.floating, np.integer)),
    (pa.types.is_decimal, (decimal.Decimal, int)),
    (pa.types.is_string, (str,)),
    (pa.types.is_large_string, (str,)),
    (pa.types.is_binary, (bytes, bytearray)),
    (pa.types.is_large_binary, (bytes, bytearray)),
    (pa.types.is_date, (datetime.date,)),
    (pa.types.is_timestamp, (datetime.datetime,)),
    (pa.types.is_list, (list, tuple, np.ndarray)),
    (pa.types.is_large_list, (list, tuple, np.ndarray)),
    (pa.types.is_map, (dict, list, tuple)),
    (pa.types.is_struct, (dict, tuple)),
]


def misfit(field: pa.Field, values: Sequence[Any]) -> str:
    """Why `values` are not of the declared `field`; empty when they are, as far as types tell."""
    if not field.nullable and None in values:
        return "it is declared not null, and there is a null"
    return _of_kind(field.type, values)


def _of_kind(kind: pa.DataType, values: Sequence[Any]) -> str:
    taken = next((types for applies, types in _TAKEN if applies(kind)), (object,))
    for found in set(map(type, values)) - {type(None)}:
        if not issubclass(found, taken) or _is_lookalike(kind, found):
            example = next(v for v in values if type(v) is found)
            return f"got {example!r:.100} of Python type {found.__name__}"
    if pa.types.is_timestamp(kind):
        return _time_zones(kind, values)
    if pa.types.is_nested(kind):
        return _inside(kind, [v for v in values if v is not None])
    return ""


def _is_lookalike(kind: pa.DataType, found: type) -> bool:
    """A boolean is an int to Python, and a datetime a date."""
    if pa.types.is_date(kind):
        return issubclass(found, datetime.datetime)
    return issubclass(found, bool) and not pa.types.is_boolean(kind)


def _time_zones(kind: pa.DataType, values: Sequence[Any]) -> str:
    if kind.tz is not None and any(v is not None and v.tzinfo is None for v in values):
        return "got a datetime without a time zone; give it one, for example datetime.timezone.utc"
    return ""


def _inside(kind: pa.DataType, values: Sequence[Any]) -> str:
    if pa.types.is_struct(kind):
        return _fields(kind, values)
    if pa.types.is_map(kind):
        pairs = list(chain.from_iterable(v.items() if isinstance(v, dict) else v for v in values))
        keys, items = [k for k, _ in pairs], [i for _, i in pairs]
        return misfit(kind.key_field, keys) or misfit(kind.item_field, items)
    return misfit(kind.value_field, list(chain.from_iterable(values)))


def _fields(kind: pa.DataType, values: Iterable[Any]) -> str:
    fields = list(kind)
    names = [f.name for f in fields]
    rows = []
    for value in values:
        if isinstance(value, dict):
            if unknown := sorted(str(k) for k in value if k not in names):
                return f"there are no such fields: {unknown}"
            rows.append([value.get(name) for name in names])
        elif len(value) == len(names):
            rows.append(value)
        else:
            return f"a struct has {len(names)} fields: got {value!r:.100}"
    columns = zip(*rows, strict=True)
    reasons = (misfit(f, column) for f, column in zip(fields, columns, strict=False))
    return next((reason for reason in reasons if reason), "")
