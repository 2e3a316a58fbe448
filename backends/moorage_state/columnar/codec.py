"""The columnar codec of one type: values' bytes to an Arrow column and back.

Decides by type which way a column goes: as NumPy columns where the type is flat, or a list of
such, else value by value through the codec for single values. Both ways give and take the same
bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from moorage_state.checks import StateTypeError
from moorage_state.codecs import opaque_encoder
from moorage_state.columnar.arrow import arrow_type, from_arrow, is_list, to_arrow, widened
from moorage_state.columnar.columns import (
    Cells,
    Part,
    Reader,
    Texts,
    array_head,
    boolean_part,
    date_part,
    double_part,
    integer_part,
    joined,
    only_where,
    struct_part,
    text_part,
    timestamp_part,
)
from moorage_state.evolution import mark_of, raw_of_latest, reader_of
from moorage_state.types import StateType, parse_type

_FLAT = {
    *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean"),
    *("date", "timestamp", "string", "binary"),
}
# What datetime knows: the years 1 to 9999.
_FIRST_DAY, _LAST_DAY = -719162, 2932896

_DAY_MICROS = 86_400_000_000

_NIL = b"\xc0"
_ONE_ITEM = b"\x91"
_items_of = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_READERS: dict[str, Callable[[Reader], Cells]] = {
    "float": Reader.doubles,
    "double": Reader.doubles,
    "boolean": Reader.booleans,
    "date": Reader.dates,
    "timestamp": Reader.timestamps,
}
_PARTS: dict[str, Callable[[NDArray[Any], NDArray[np.bool_]], Part]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), integer_part),
    "float": double_part,
    "double": double_part,
    "boolean": boolean_part,
    "date": date_part,
    "timestamp": timestamp_part,
}


def fitted(column: pa.Array, parsed: StateType) -> pa.Array:
    """The column with the Arrow type of `parsed`.

    Raises `pa.ArrowException` where it is another type, has other fields, or would lose something.
    """
    kind = column.type
    if parsed.name == "struct" and pa.types.is_struct(kind):
        return _struct(column, parsed)
    if parsed.name == "array" and is_list(kind):
        return _array(column, parsed)
    if parsed.name == "map" and pa.types.is_map(kind):
        return _map(column, parsed)
    return widened(column, arrow_type(parsed))


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


def is_columnar(ddl: str) -> bool:
    """Whether values of this type are read and written as whole NumPy columns.

    So are lists of such values, but no structs with lists in them.
    """
    parsed = parse_type(ddl)
    return _is_columnar(parsed.children[0] if parsed.name == "array" else parsed)


def _is_columnar(parsed: StateType) -> bool:
    inner = parsed.name == "struct" and all(map(_is_columnar, parsed.children))
    return parsed.name in _FLAT or inner


class ColumnCodec:
    """Reads and writes many values of one state at once.

    Args:
        earlier: the types that stored values may still have; `StateSchema.earlier`.
        state: the name of the state, for errors.
        declared: the type with the defaults for fields that a column to be written lacks; `ddl`
            where it is None.
    """

    def __init__(
        self,
        ddl: str,
        earlier: Sequence[str] = (),
        state: str = "",
        declared: str | None = None,
    ) -> None:
        self._parsed = parse_type(ddl)
        self._declared = parse_type(declared or ddl)
        self._where = f"state={state} " if state else ""
        self.type: pa.DataType = arrow_type(self._parsed)
        self._flat = is_columnar(ddl)
        lists = self._flat and self._parsed.name == "array"
        self._items = ColumnCodec(self._parsed.children[0].ddl, (), state) if lists else None
        self._latest = raw_of_latest(ddl, earlier) if earlier else None
        self._decode = reader_of(ddl, earlier, opaque=True)
        self._encode = opaque_encoder(ddl, state)
        self._mark = mark_of(len(earlier))

    def decode(self, raws: Sequence[bytes | None]) -> pa.Array:
        """The column of these values; null where there is none. Raises ValueError."""
        if not self._flat:
            values = [None if raw is None else self._decode(raw) for raw in raws]
            return to_arrow(self._parsed, values)
        there = [raw for raw in raws if raw is not None]
        if self._latest is not None:
            there = list(map(self._latest, there))
        found = self._read(there)
        if len(there) == len(raws):
            return found
        valid = np.fromiter((raw is not None for raw in raws), bool, len(raws))
        places = pa.array(np.cumsum(valid) - 1, mask=~valid)
        return found.take(places)

    def encode(self, column: pa.Array) -> list[bytes | None]:
        """The bytes of each value, None where the column is null. Raises StateTypeError."""
        column = self._fitting(column)
        valid = column.is_valid()
        there = column if column.null_count == 0 else column.filter(valid)
        raws = self._write(there)
        if len(there) == len(column):
            return list(raws)
        found: list[bytes | None] = [None] * len(column)
        for place, raw in zip(np.flatnonzero(valid), raws, strict=True):
            found[int(place)] = raw
        return found

    # -- reading ---------------------------------------------------------------------------

    def _read(self, raws: list[bytes]) -> pa.Array:
        if not raws:
            return pa.array([], self.type)
        if self._items is not None:
            return self._read_lists(raws, self._items)
        reader, parsed = Reader.of(raws), self._parsed
        if parsed.name != "struct":
            column = _read_field(reader, parsed)
        else:
            reader.struct(len(parsed.fields))
            fields = [_read_field(reader, child) for child in parsed.children]
            column = pa.StructArray.from_arrays(fields, fields=list(self.type))
        reader.end()
        return column

    def _read_lists(self, raws: list[bytes], items: "ColumnCodec") -> pa.Array:
        lists: list[list[bytes]] = [
            # The head of a list of one is one byte, and most have one.
            [raw[1:]] if raw.startswith(_ONE_ITEM) else list(map(bytes, _items_of(raw)))
            for raw in raws
        ]
        ends = np.cumsum([0, *map(len, lists)])
        inner = [None if raw == _NIL else raw for raw in chain.from_iterable(lists)]
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items.decode(inner), self.type)

    # -- writing ---------------------------------------------------------------------------

    def _fitting(self, column: Any) -> pa.Array:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if not isinstance(column, pa.Array):
            raise self._misfit(f"give an Arrow array, not {type(column).__name__}")
        if column.type == self.type:
            return column
        try:
            return fitted(column, self._declared)
        except pa.ArrowException as error:
            raise self._misfit(
                f"a column of {column.type} is none of {self.type}: {error}"
            ) from error

    def _write(self, column: pa.Array) -> list[bytes]:
        if not self._flat:
            return [self._mark + self._encode(v) for v in from_arrow(self._parsed, column)]
        if self._items is not None:
            return self._write_lists(column, self._items)
        parsed = self._parsed
        if parsed.name != "struct":
            return joined([self._part(column, parsed)], self._mark)
        head = self._mark + array_head(len(parsed.children))
        return joined(list(self._fields(column, parsed)), head)

    def _write_lists(self, column: pa.ListArray, items: "ColumnCodec") -> list[bytes]:
        raws = [_NIL if raw is None else raw for raw in items.encode(column.flatten())]
        counts: NDArray[np.int64] = pc.list_value_length(column).to_numpy()
        heads = {count: self._mark + array_head(count) for count in np.unique(counts).tolist()}
        if list(heads) == [1]:
            return list(map(heads[1].__add__, raws))
        rest = iter(raws)
        return [heads[count] + b"".join(islice(rest, count)) for count in counts.tolist()]

    def _fields(self, column: pa.Array, parsed: StateType) -> Iterator[Part]:
        """The fields of structs, and of the structs in these, one after the other."""
        for field, child in zip(column.flatten(), parsed.children, strict=True):
            if child.name != "struct":
                yield self._part(field, child)
                continue
            valid = np.asarray(field.is_valid())
            yield struct_part(len(child.children), valid)
            for part in self._fields(field, child):
                yield only_where(part, valid)

    def _part(self, column: pa.Array, parsed: StateType) -> Part:
        if parsed.name in {"string", "binary"}:
            return _text(column, binary=parsed.name == "binary")
        valid = np.asarray(column.is_valid())
        values = _numbers(column, parsed)
        if parsed.name in {"date", "timestamp"}:
            self._check_years(values[valid], 1 if parsed.name == "date" else _DAY_MICROS)
        return _PARTS[parsed.name](values, valid)

    def _check_years(self, values: NDArray[np.int64], unit: int) -> None:
        if len(values) and not (
            _FIRST_DAY * unit <= values.min() and values.max() < (_LAST_DAY + 1) * unit
        ):
            raise self._misfit("a time is outside the years 1 to 9999")

    def _misfit(self, why: str) -> StateTypeError:
        declared = self._parsed.ddl
        return StateTypeError(
            f"a column is not of its state's type: {self._where}declared={declared}: {why}"
        )


def _read_field(reader: Reader, parsed: StateType) -> pa.Array:
    if parsed.name == "struct":
        return _read_structs(reader, parsed)
    if parsed.name in {"string", "binary"}:
        return _texts(reader.texts(binary=parsed.name == "binary"), arrow_type(parsed))
    cells = _READERS.get(parsed.name, Reader.integers)(reader)
    mask = None if cells.valid.all() else ~cells.valid
    kind = arrow_type(parsed)
    if parsed.name == "date":
        return pa.array(cells.values.astype(np.int32), mask=mask).view(kind)
    if parsed.name == "timestamp":
        return pa.array(cells.values, mask=mask).view(kind)
    values = cells.values if mask is None else np.where(cells.valid, cells.values, 0)
    return pa.array(values, mask=mask).cast(kind)


def _read_structs(reader: Reader, parsed: StateType) -> pa.Array:
    inner, valid = reader.optional_struct(len(parsed.fields))
    if not valid.any():
        reader.rejoin(inner, valid)
        return pa.nulls(len(valid), arrow_type(parsed))
    fields = [_read_field(inner, child) for child in parsed.children]
    reader.rejoin(inner, valid)
    found = pa.StructArray.from_arrays(fields, fields=list(arrow_type(parsed)))
    if valid.all():
        return found
    return found.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def _texts(texts: Texts, kind: pa.DataType) -> pa.Array:
    offsets = pa.py_buffer(texts.offsets.astype(np.int32))
    mask = None
    if not texts.valid.all():
        mask = pa.py_buffer(np.packbits(texts.valid, bitorder="little"))
    found = pa.Array.from_buffers(kind, len(texts.valid), [mask, offsets, pa.py_buffer(texts.data)])
    found.validate(full=True)
    return found


def _text(column: pa.Array, *, binary: bool) -> Part:
    plain = column if column.offset == 0 else pa.concat_arrays([column])
    _, offsets_of, data_of = plain.buffers()
    count = len(plain)
    if not count:
        none = np.zeros(0, np.int64)
        return text_part(np.zeros(0, np.uint8), none, none.astype(bool), binary=binary)
    offsets = np.frombuffer(offsets_of, np.int32)[: count + 1].astype(np.int64)
    data = np.frombuffer(data_of or b"", np.uint8)
    valid = np.asarray(plain.is_valid())
    lengths = np.where(valid, np.diff(offsets), 0)
    if int(lengths.sum()) != int(offsets[-1] - offsets[0]) or offsets[0]:
        starts = np.repeat(offsets[:-1] - (np.cumsum(lengths) - lengths), lengths)
        data = data[starts + np.arange(int(lengths.sum()))]
    return text_part(data[: int(lengths.sum())], lengths, valid, binary=binary)


def _numbers(column: pa.Array, parsed: StateType) -> NDArray[Any]:
    """The values of a column of fixed width, 0 where they are null."""
    if parsed.name == "date":
        column = column.view(pa.int32())
    elif parsed.name == "timestamp":
        column = column.view(pa.int64())
    if column.null_count:
        column = column.fill_null(pa.scalar(0).cast(column.type))
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found
