"""State types in Arrow: which column type stands for a declared type, and values both ways.

Decides what a canonical file says of a value, so that its bytes come back exactly. A `float` is a
64-bit column, because state keeps it in 64 bits; timestamps are in UTC with microseconds; pickled
objects are the bytes they are. Called by the columns of canonical files and by vectorized
functions, for their output, too. Knows neither files nor databases.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from moorage_state.types import StateType

_Convert = Callable[[Any], Any]
_Is = Callable[[pa.DataType], bool]

_SCALARS: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "pickle": pa.binary(),
}


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    plain = types.is_binary(kind) or types.is_large_binary(kind)
    return bool(plain or types.is_fixed_size_binary(kind) or types.is_binary_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether it is a type of lists, however they lie in memory."""
    plain = types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_list_view(kind)
    return bool(plain or types.is_large_list(kind) or types.is_large_list_view(kind))


# What is declared, and what is widened to it.
_WIDENED: list[tuple[_Is, tuple[_Is, ...]]] = [
    (types.is_integer, (types.is_integer,)),
    (types.is_floating, (types.is_floating, types.is_integer)),
    (types.is_decimal, (types.is_decimal, types.is_integer)),
    (types.is_date, (types.is_date,)),
    (_is_text, (_is_text,)),
    (_is_bytes, (_is_bytes,)),
]


def widened(column: Any, kind: pa.DataType) -> Any:
    """An array, in chunks or not, as one of the wider type `kind`.

    Arrow itself takes a number for a timestamp and a boolean for 1, reads numbers in strings, and
    forgets unknown fields. Raises `pa.ArrowException` for these, and where a value is too large.
    """
    if not _is_narrower(column.type, kind):
        raise pa.ArrowInvalid("it is no narrower type; make it one in the function")
    return column.cast(kind)


def _is_narrower(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether both hold values of one sort. Whether these fit is seen when they are cast."""
    if types.is_dictionary(given):
        given = given.value_type
    if types.is_null(given):
        return True
    if types.is_timestamp(kind):
        return types.is_timestamp(given) and (given.tz is None) == (kind.tz is None)
    if is_list(kind) and is_list(given):
        return _is_narrower(given.value_type, kind.value_type)
    if types.is_struct(kind) and types.is_struct(given):
        known = {field.name: field.type for field in kind}
        return all(f.name in known and _is_narrower(f.type, known[f.name]) for f in given)
    if types.is_map(kind) and types.is_map(given):
        keys = _is_narrower(given.key_type, kind.key_type)
        return keys and _is_narrower(given.item_type, kind.item_type)
    taken = next((taken for declared, taken in _WIDENED if declared(kind)), None)
    return given.id == kind.id if taken is None else any(applies(given) for applies in taken)


def arrow_type(parsed: StateType) -> pa.DataType:
    """The type of a column that holds values of `parsed`."""
    children = [arrow_type(child) for child in parsed.children]
    if parsed.name == "decimal":
        return pa.decimal128(*parsed.params)
    if parsed.name == "array":
        return pa.list_(pa.field("element", children[0]))
    if parsed.name == "map":
        return pa.map_(children[0], children[1])
    if parsed.name == "struct":
        return pa.struct(list(zip(parsed.fields, children, strict=True)))
    return _SCALARS[parsed.name]


def to_arrow(parsed: StateType, values: Sequence[Any]) -> pa.Array:
    """A column of values that `codecs.decoder` gave. Raises `pa.ArrowException`."""
    convert = _outgoing(parsed)
    plain = values if convert is None else [convert(value) for value in values]
    return pa.array(plain, arrow_type(parsed))


def from_arrow(parsed: StateType, column: pa.Array) -> list[Any]:
    """The values of a column as `codecs.encoder` takes them; None where it is null."""
    if parsed.name == "struct" and column.null_count == 0:
        # By field: a dict for each row, as Arrow makes it, takes three times as long.
        fields = zip(parsed.children, column.flatten(), strict=True)
        return list(zip(*(from_arrow(child, field) for child, field in fields), strict=True))
    kind = column.type
    plain: list[Any]
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        plain = column.to_numpy(zero_copy_only=False).tolist()
    else:
        plain = column.to_pylist()
    convert = _incoming(parsed)
    return plain if convert is None else [convert(value) for value in plain]


def _outgoing(parsed: StateType) -> _Convert | None:
    """Makes lists of pairs of the dicts in a value; None where it holds none."""
    inner = [_outgoing(child) for child in parsed.children]
    if parsed.name == "map":
        item = inner[1] or _same
        return _unless_null(lambda value: [(k, item(v)) for k, v in value.items()])
    return _within(parsed, inner, lambda value: value)


def _incoming(parsed: StateType) -> _Convert | None:
    """Makes dicts of the lists of pairs that Arrow gives for maps; None where there are none."""
    inner = [_incoming(child) for child in parsed.children]
    if parsed.name == "map":
        item = inner[1] or _same
        return _unless_null(lambda pairs: {k: item(v) for k, v in pairs})
    return _within(parsed, inner, lambda row: row.values())


def _within(
    parsed: StateType, inner: list[_Convert | None], fields_of: _Convert
) -> _Convert | None:
    """A conversion of what lies inside of an array or a struct; a struct becomes a tuple."""
    if not any(inner):
        return None
    converts = [convert or _same for convert in inner]
    if parsed.name == "array":
        return _unless_null(lambda items: [converts[0](item) for item in items])
    return _unless_null(
        lambda row: tuple(c(v) for c, v in zip(converts, fields_of(row), strict=True))
    )


def _unless_null(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value
