"""The declared columns of an output, and which rows and tables are of them.

Decides what is said of those that are not: always the operator, the side output if it is one, the
column and the value. Called by the output of a subtask for every batch.
"""

import datetime
import decimal
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moorage.api.functions import OutputTag, undeclared
from moorage_state.columnar.arrow import widened
from moorage_state.errors import UserError

# Arrow cuts 1.5 to 1 for a column of integers, takes a number for a timestamp and forgets unknown
# fields of a struct: what it would quietly change is refused here. Types of whole columns are
# looked at, in one pass, as this is done for every batch.
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
_PLAIN = {32: pa.int32(), 64: pa.int64()}


def misfit(field: pa.Field, values: Sequence[Any]) -> str:
    """Why `values` are not of the declared `field`; empty when they are, as far as types tell."""
    # By type: an array is equal to None element by element, and has no truth.
    if not field.nullable and type(None) in map(type, values):
        return "it is declared not null, and there is a null"
    return _of_kind(field.type, values)


def _of_kind(kind: pa.DataType, values: Sequence[Any]) -> str:
    taken = next((types for applies, types in _TAKEN if applies(kind)), (object,))
    for found in set(map(type, values)) - {type(None)}:
        if not issubclass(found, taken) or _is_lookalike(kind, found):
            example = next(v for v in values if type(v) is found)
            return f"got {example!r:.100} of Python type {found.__name__}{_hint(kind, found)}"
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


def _hint(kind: pa.DataType, found: type) -> str:
    """How the times that functions are given, which are integers, become timestamps."""
    if pa.types.is_timestamp(kind) and issubclass(found, (int, np.integer)):
        return (
            "; give datetime.fromtimestamp(ms / 1000, UTC) where this is milliseconds, such as "
            "ctx.window.start, or declare the column as long"
        )
    return ""


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


def column_of(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Values as a column; its structs may be dicts and tuples.

    Raises:
        pa.ArrowException, OverflowError, TypeError, ValueError: one is not of this type.
    """
    try:
        return pa.array(values, type=kind)
    except pa.ArrowTypeError:
        if not pa.types.is_nested(kind):
            raise
        # Arrow takes all of them for what the first one is. Structs of rows are dicts, and those
        # of states named tuples.
        return pa.array([_by_name(kind, value) for value in values], type=kind)


def _by_name(kind: pa.DataType, value: Any) -> Any:
    """A value, of which all structs are dicts."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        row = value if isinstance(value, dict) else dict(zip(names, value, strict=True))
        return {field.name: _by_name(field.type, row.get(field.name)) for field in kind}
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        # Arrow refuses a pair that is no tuple, such as a string or a set of two.
        return [
            (_by_name(kind.key_type, pair[0]), _by_name(kind.item_type, pair[1]))
            if isinstance(pair, tuple)
            else pair
            for pair in pairs
        ]
    return [_by_name(kind.value_type, element) for element in value]


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...


def fitted(made: Any, schema: pa.Schema, place: str) -> Iterator[pa.RecordBatch]:
    """The batches of a table, with the columns of `schema` in their order.

    Args:
        place: the operator, and the side output if it is one, as messages name them.
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
        if not field.nullable and column.null_count:
            raise pa.ArrowInvalid("it is declared not null, and there is a null")
        return column if column.type == field.type else widened(column, field.type)
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
    elif pa.types.is_list(kind):
        hash_column(digest, pc.list_value_length(column))
        hash_column(digest, column.flatten())
    elif pa.types.is_struct(kind):
        for field in column.flatten():
            hash_column(digest, field)
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


class RowShape:
    """One output of an operator.

    Args:
        alone: the operator has no other output, so that a tag in a row is one too many.
    """

    def __init__(
        self, uid: str, schema: pa.Schema, side_output: str = "", *, alone: bool = False
    ) -> None:
        self._alone = alone
        self.place = f"operator={uid}" + (f" side_output={side_output}" if side_output else "")
        self._names = schema.names
        self._width = len(schema.names)
        self.schema = schema

    def as_tuple(self, row: Any) -> tuple[Any, ...]:
        """A row as `batch` takes it."""
        if isinstance(row, dict):
            return self._from_dict(row)
        if isinstance(row, (tuple, list)) and len(row) == self._width:
            return tuple(row)
        raise self.misshapen(row)

    def batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Tuples as a batch."""
        if not rows:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        try:
            columns = list(zip(*rows, strict=True))
        except ValueError:
            columns = []
        if len(columns) != self._width:
            raise self.misshapen(next(row for row in rows if len(row) != self._width))
        arrays = [self._array(i, column) for i, column in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, index: int, values: Sequence[Any]) -> pa.Array:
        field = self.schema.field(index)
        if reason := misfit(field, values):
            raise self._unfit(field, reason, values)
        try:
            return column_of(field.type, values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as exc:
            raise self._unfit(field, str(exc), values) from exc

    def _unfit(self, field: pa.Field, reason: str, values: Sequence[Any]) -> UserError:
        if (tag := self._tag_among(values)) is not None:
            return undeclared(self.place, tag.name, ())
        return UserError(
            f"an output value does not fit its column: {self.place} "
            f"column={field.name} declared={field.type}: {reason}"
        )

    def _from_dict(self, row: dict[str, Any]) -> tuple[Any, ...]:
        unknown = sorted(str(name) for name in row if name not in self._names)
        if unknown:
            raise UserError(
                f"the operator yields columns that its output does not declare: "
                f"{self.place} columns={unknown} declared={self._names}"
            )
        return tuple(row.get(name) for name in self._names)

    def misshapen(self, row: Any) -> UserError:
        """What to raise for what is no row, nor several."""
        if isinstance(row, (tuple, list)) and (tag := self._tag_among(row[:1])) is not None:
            return undeclared(self.place, tag.name, ())
        return UserError(
            f"the operator must yield rows, each a tuple of {self._width} values or a dict: "
            f"{self.place} declared={self._names} got={row!r:.200}; a single row is "
            f"yielded, or returned in a list"
        )

    def _tag_among(self, values: Sequence[Any]) -> OutputTag | None:
        found = (value for value in values if type(value) is OutputTag)
        return next(found, None) if self._alone else None
