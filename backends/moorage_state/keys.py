"""Canonical bytes of keys: one key, one byte string, in every process and release.

Called by the keyed state store and by offline readers. Within a key, integers and times are eight
bytes with the sign bit flipped, so that bytes sort as the numbers do; a decimal is its digits in
full ("-1.50"); a single string or binary stands for itself; in a key of several columns each is
preceded by its length. Where a range stores what under these bytes, `keylayout` says.
"""

import datetime
import decimal
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage_state.checks import decimal_fitter
from moorage_state.keylayout import (
    KEYED_STATE,
    decode_time,
    encode_time,
    key_prefix,
)
from moorage_state.types import StateType, parse_type

_SIGN = 1 << 63
_U64 = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)

_NUMBER_PREFIX = np.dtype([("group", ">u2"), ("kind", "u1"), ("length", ">u4"), ("key", ">u8")])


class OrderedKeys(NamedTuple):
    """Keys as they are stored one after the other.

    Attributes:
        order: the positions that the keys had.
        prefixes: what each key's stored state starts with.
        runs_on: whether the first is the key that was asked for.
    """

    order: NDArray[np.int64]
    prefixes: list[bytes]
    runs_on: bool


class KeyCodec:
    """Turns a key (a tuple of column values) into bytes and back.

    Values are taken to be of the declared DDL `types`, as Arrow gives them; whoever has them from
    elsewhere checks them with `codecs.checker` first. Raises ValueError for a type that keys cannot
    have.
    """

    def __init__(self, types: Sequence[str]) -> None:
        self._types = [parse_type(t) for t in types]
        for parsed in self._types:
            if not parsed.is_key:
                raise ValueError(
                    f"a key column cannot be {parsed.ddl}: floats and containers have no single "
                    f"canonical form; cast it to a string, integer, decimal or timestamp"
                )
        self.encode: Callable[[tuple[Any, ...]], bytes]
        if len(self._types) == 1:
            single = _encoder(self._types[0])
            self.encode = lambda key: single(key[0])
        else:
            self.encode = self._encode_many
        self._is_number = len(self._types) == 1 and self._types[0].bits is not None
        self._encoders = [_encoder(t) for t in self._types]
        self._decoders = [_decoder(t) for t in self._types]

    @property
    def ddl(self) -> list[str]:
        """The canonical type of each column, as manifests record them."""
        return [t.ddl for t in self._types]

    def ordered(
        self,
        groups: NDArray[Any],
        columns: Sequence[Sequence[Any] | NDArray[Any]],
        current: bytes = b"",
    ) -> "OrderedKeys":
        """What `key_prefix` gives for each key, in the order of these bytes, the last key last.

        Args:
            groups: the key group of each key.
            columns: the keys' values by column; at least one key.
            current: if this is the prefix of the first key, that stays the first.
        """
        # The usual key: one integer takes a short way through NumPy.
        if self._is_number:
            return _ordered_numbers(groups, np.asarray(columns[0], np.int64), current)
        keys = map(self.encode, zip(*columns, strict=True))
        prefixes = [
            key_prefix(group, key) for group, key in zip(groups.tolist(), keys, strict=True)
        ]
        runs_on = prefixes[0] == current
        by_bytes = np.array(sorted(range(len(prefixes)), key=prefixes.__getitem__), np.int64)
        order = _pinned(by_bytes, runs_on=runs_on)
        return OrderedKeys(order, [prefixes[i] for i in order.tolist()], runs_on)

    def decode(self, raw: bytes) -> tuple[Any, ...]:
        """The key whose bytes these are."""
        if len(self._decoders) == 1:
            return (self._decoders[0](raw),)
        values = []
        at = 0
        for decode in self._decoders:
            (length,) = _LENGTH.unpack_from(raw, at)
            at += _LENGTH.size
            values.append(decode(raw[at : at + length]))
            at += length
        return tuple(values)

    def _encode_many(self, key: tuple[Any, ...]) -> bytes:
        parts: list[bytes] = []
        for encode, value in zip(self._encoders, key, strict=True):
            raw = encode(value)
            parts.append(_LENGTH.pack(len(raw)))
            parts.append(raw)
        return b"".join(parts)


def _ordered_numbers(
    groups: NDArray[Any], numbers: NDArray[np.int64], current: bytes
) -> OrderedKeys:
    runs_on = key_prefix(int(groups[0]), encode_time(int(numbers[0]))) == current
    order = np.argsort(numbers)
    # Sixteen bits are sorted by counting; a stable sort keeps the numbers in order.
    order = order[np.argsort(groups.astype(np.uint16)[order], kind="stable")]
    order = _pinned(order, runs_on=runs_on)
    table = np.empty(len(numbers), _NUMBER_PREFIX)
    table["group"] = groups[order]
    table["kind"] = KEYED_STATE
    table["length"] = _U64.size
    table["key"] = numbers[order].view(np.uint64) ^ np.uint64(_SIGN)
    raw: Any = table.view(np.dtype((np.void, table.itemsize)))
    prefixes: list[bytes] = raw.tolist()
    return OrderedKeys(order, prefixes, runs_on)


def _pinned(order: NDArray[np.int64], *, runs_on: bool) -> NDArray[np.int64]:
    """`order` with the last key at the end and, if its rows run on, the first at the beginning."""
    last = len(order) - 1
    if runs_on:
        order = np.concatenate(([0], order[order != 0]))
    # The rows of the last key may run on in the next chunk, where it must be the current one.
    return np.concatenate((order[order != last], [last]))


def encoded_namespaces(columns: Sequence[Any]) -> list[bytes]:
    """What stands behind the state's id for many namespaces of integers, a column after the other.

    The same bytes as `keyed.namespaces.namespace_bytes` gives for each.
    """
    numbers = [np.ascontiguousarray(column, np.int64) for column in columns]
    several = len(numbers) > 1
    fields: list[tuple[str, str]] = [("size", ">u4")]
    for i in range(len(numbers)):
        fields += [(f"length{i}", ">u4")] if several else []
        fields.append((f"value{i}", ">u8"))
    table = np.empty(len(numbers[0]), np.dtype(fields))
    table["size"] = table.itemsize - _LENGTH.size
    for i, column in enumerate(numbers):
        if several:
            table[f"length{i}"] = _U64.size
        table[f"value{i}"] = column.view(np.uint64) ^ np.uint64(_SIGN)
    raw: Any = table.view(np.dtype((np.void, table.itemsize)))
    found: list[bytes] = raw.tolist()
    return found


def encoded_numbers(column: Any) -> list[bytes]:
    """The bytes that `KeyCodec(["bigint"]).encode` gives for each of many numbers."""
    signed = np.ascontiguousarray(column, np.int64)
    raw: Any = (signed.view(np.uint64) ^ np.uint64(_SIGN)).astype(">u8").view("V8")
    found: list[bytes] = raw.tolist()
    return found


def decoded_numbers(raws: Sequence[bytes]) -> NDArray[np.int64]:
    """The numbers that `encoded_numbers` made these bytes of."""
    raw = np.frombuffer(b"".join(raws), ">u8").astype(np.uint64)
    return (raw ^ np.uint64(_SIGN)).view(np.int64)


def _timestamp_micros(value: datetime.datetime) -> int:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) // _MICROSECOND


def _decimal_text(precision: int, scale: int) -> Callable[[decimal.Decimal], bytes]:
    fit = decimal_fitter(precision, scale)
    return lambda value: format(fit(value), "f").encode()


def column_encoder(ddl: str) -> Callable[[Any], bytes]:
    """What gives for a value the bytes that `KeyCodec([ddl]).encode` gives for a tuple of it."""
    return _encoder(parse_type(ddl))


def _encoder(parsed: StateType) -> Callable[[Any], bytes]:
    if parsed.bits is not None or parsed.name == "boolean":
        return lambda value: _U64.pack(value + _SIGN)
    if parsed.name == "decimal":
        return _decimal_text(*parsed.params)
    table: dict[str, Callable[[Any], bytes]] = {
        "string": str.encode,
        "binary": bytes,
        "date": lambda value: encode_time(value.toordinal()),
        "timestamp": lambda value: encode_time(_timestamp_micros(value)),
    }
    return table[parsed.name]


def _decoder(parsed: StateType) -> Callable[[bytes], Any]:
    table: dict[str, Callable[[bytes], Any]] = {
        "string": bytes.decode,
        "binary": bytes,
        "boolean": lambda raw: bool(decode_time(raw)),
        "date": lambda raw: datetime.date.fromordinal(decode_time(raw)),
        "timestamp": lambda raw: _EPOCH + decode_time(raw) * _MICROSECOND,
        "decimal": lambda raw: decimal.Decimal(raw.decode()),
    }
    return table.get(parsed.name, decode_time)
