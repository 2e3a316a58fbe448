"""Key hashes: from keys to key groups, for whole columns at once.

Decides what the hash of a key is under each recorded id. `flink-murmur` is Flink's own: the Java
hash code of the key, murmured. A lineage has one key hash for ever, since stored keys begin with
their key group; whoever restores checks the id before a key is looked up. Called by the engine
before the shuffle, by look-ups of single keys and by writers of savepoints. Knows no Arrow.

Java's hash codes are reproduced for keys of one column that is an integer, a boolean or a string;
a tinyint, smallint or int is its own hash, a bigint is folded, a string is hashed over its UTF-16
units. Any other key (dates, times, decimals, binary, several columns) is hashed by its canonical
bytes as Java hashes a byte array. A null counts as hash 0; keys that hold one are never stored.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moorage_state.errors import UserError
from moorage_state.keygroups import KEY_HASHES
from moorage_state.keys import KeyCodec
from moorage_state.types import parse_type

Hashes = NDArray[np.int32]
Columns = Sequence[Sequence[Any] | NDArray[Any]]

_TRUE, _FALSE = 1231, 1237
_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_ADD = np.uint32(0xE6546B64)
_FINAL = (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))
_WORD_BYTES = np.uint32(4)
_ASCII_END = 0x80
_CONTINUES = 0x80
_TWO_UNITS = 0xF0


def check_key_hash(key_hash: str) -> str:
    """The id itself. Raises `UserError` when this release does not know it."""
    if key_hash not in KEY_HASHES:
        raise UserError(
            f"keys are hashed by a function that this moorage does not know: key_hash={key_hash} "
            f"known={','.join(KEY_HASHES)}; use the version that wrote the state"
        )
    return key_hash


def murmur(hashes: Hashes) -> Hashes:
    """Flink's ``MathUtils.murmurHash`` of each hash code: never negative."""
    h = hashes.astype(np.int32, copy=False).view(np.uint32) * _C1
    h = _rotated(h, 15) * _C2
    h = _rotated(h, 13) * np.uint32(5) + _ADD
    h ^= _WORD_BYTES
    h ^= h >> np.uint32(16)
    h *= _FINAL[0]
    h ^= h >> np.uint32(13)
    h *= _FINAL[1]
    h ^= h >> np.uint32(16)
    signed = h.view(np.int32)
    # The minimum has no counterpart: its negation is itself, and Flink makes it 0.
    made: Hashes = np.where(signed == np.iinfo(np.int32).min, np.int32(0), np.abs(signed))
    return made


def groups_of_hashes(hashes: Hashes, max_parallelism: int) -> Hashes:
    """The key group of each Java hash code."""
    return (murmur(hashes) % np.int32(max_parallelism)).astype(np.int32)


def flink_groups(types: Sequence[str], max_parallelism: int) -> Callable[[Columns], Hashes]:
    """A function from key columns to key groups under `flink-murmur`; see `flink_hashes`."""
    hashes = flink_hashes(types)
    return lambda columns: groups_of_hashes(hashes(columns), max_parallelism)


def flink_hashes(types: Sequence[str]) -> Callable[[Columns], Hashes]:
    """A function from key columns, of these DDL types, to the Java hash code of each key.

    Raises ValueError for a type that keys cannot have.
    """
    codec = KeyCodec(types)
    parsed = parse_type(types[0])
    # Of no Java type that is reproduced here: hashed as the array of its canonical bytes.
    if len(types) > 1:
        return lambda columns: _canonical(codec, columns)
    if parsed.name == "string":
        return lambda columns: _by_valid(columns[0], _strings)
    if parsed.name == "boolean":
        return lambda columns: _by_valid(columns[0], boolean_hashes)
    if parsed.name == "bigint":
        return lambda columns: _by_valid(columns[0], long_hashes)
    if parsed.bits is not None:
        return lambda columns: _by_valid(columns[0], lambda c: np.asarray(c).astype(np.int32))
    return lambda columns: _canonical(codec, columns)


def long_hashes(values: Any) -> Hashes:
    """``Long.hashCode``: both halves, one over the other."""
    bits = np.asarray(values, np.int64).view(np.uint64)
    folded = (bits ^ (bits >> np.uint64(32))).astype(np.uint32)
    made: Hashes = folded.view(np.int32)
    return made


def boolean_hashes(values: Any) -> Hashes:
    """``Boolean.hashCode``."""
    made: Hashes = np.where(np.asarray(values, bool), np.int32(_TRUE), np.int32(_FALSE))
    return made


def bytes_hashes(data: bytes, offsets: NDArray[np.int64]) -> Hashes:
    """``Arrays.hashCode`` of the byte arrays that begin at `offsets`; the last one is an end."""
    units = np.frombuffer(data, np.int8).astype(np.int32).view(np.uint32)
    sums = _polynomials(units, offsets)
    return (sums + _powers(offsets)[np.diff(offsets)]).view(np.int32)


def utf8_hashes(data: bytes, offsets: NDArray[np.int64]) -> Hashes:
    """``String.hashCode`` of the texts that begin at `offsets` of UTF-8; the last one is an end."""
    raw = np.frombuffer(data, np.uint8)
    if raw.size and int(raw.max()) >= _ASCII_END:
        starts = (raw & 0xC0) != _CONTINUES
        per_byte = starts.astype(np.int64) + (raw >= _TWO_UNITS)
        offsets = np.concatenate(([0], np.cumsum(per_byte)))[offsets]
        units = np.frombuffer(data.decode().encode("utf-16-le"), "<u2").astype(np.uint32)
    else:
        units = raw.astype(np.uint32)
    return _polynomials(units, offsets).view(np.int32)


def _polynomials(units: NDArray[np.uint32], offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Of each run of units: the sum of unit times 31 to the power of how many follow it."""
    lengths = np.diff(offsets)
    place = np.repeat(offsets[1:], lengths) - 1 - np.arange(offsets[0], offsets[-1])
    products = units[offsets[0] : offsets[-1]] * _powers(offsets)[place]
    sums = np.concatenate((np.zeros(1, np.uint32), np.cumsum(products, dtype=np.uint32)))
    ends = offsets - offsets[0]
    made: NDArray[np.uint32] = sums[ends[1:]] - sums[ends[:-1]]
    return made


def _powers(offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
    """31 to the power of 0, 1, ... modulo 2 to the 32, for the longest run."""
    longest = int(np.diff(offsets).max(initial=0))
    factors = np.full(longest + 1, 31, np.uint32)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint32)


def _rotated(h: NDArray[np.uint32], by: int) -> NDArray[np.uint32]:
    return (h << np.uint32(by)) | (h >> np.uint32(32 - by))


def _by_valid(column: Any, hashes: Callable[[Any], Hashes]) -> Hashes:
    """The hashes of a column, 0 where it is None."""
    if isinstance(column, np.ndarray):
        return hashes(column)
    values = list(column)
    if None not in values:
        return hashes(values)
    made = np.zeros(len(values), np.int32)
    valid = [i for i, value in enumerate(values) if value is not None]
    made[valid] = hashes([values[i] for i in valid])
    return made


def _strings(values: Sequence[str]) -> Hashes:
    return utf8_hashes(*_joined([value.encode() for value in values]))


def _canonical(codec: KeyCodec, columns: Columns) -> Hashes:
    keys = list(zip(*columns, strict=True))
    made = np.zeros(len(keys), np.int32)
    valid = [i for i, key in enumerate(keys) if None not in key]
    made[valid] = bytes_hashes(*_joined([codec.encode(keys[i]) for i in valid]))
    return made


def _joined(parts: list[bytes]) -> tuple[bytes, NDArray[np.int64]]:
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return b"".join(parts), np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
