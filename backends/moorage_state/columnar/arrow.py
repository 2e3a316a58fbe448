"""State types in Arrow: which column type stands for a declared type, and values both ways.

Decides what a canonical file says of a value, so that its bytes come back exactly. A `float` is a
64-bit column, because state keeps it in 64 bits; timestamps are in UTC with microseconds; pickled
objects are the bytes they are. Called by the columns of canonical files and by vectorized
functions. Knows neither files nor databases.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from moorage_state.types import StateType

_Convert = Callable[[Any], Any]

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
