"""The key group of a key without Spark, under each key hash that a lineage may have.

Decides nothing of its own: the engine computes `xxhash64` over typed columns in the JVM, and this
must give the same, bit for bit; Flink's hash is the engine's own code. Called by whoever makes
savepoints from tables, and by look-ups of single keys. Every type that a key may have is covered; a
test compares all of them with Spark.
"""

import datetime
import decimal
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Any

import xxhash

from moorage_state.checks import decimal_fitter
from moorage_state.keygroups import FLINK_MURMUR, SPARK_XXHASH64
from moorage_state.keyhashes import check_key_hash, flink_groups
from moorage_state.types import StateType, parse_type

_SEED = 42
_LONG_DECIMAL_DIGITS = 18
_UNIX_DAY = datetime.date(1970, 1, 1).toordinal()
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_hash = xxhash.xxh64_intdigest
_int32, _int64 = Struct("<i").pack, Struct("<q").pack


def key_groups(
    key_types: Sequence[str], max_parallelism: int, key_hash: str = SPARK_XXHASH64
) -> Callable[[Iterable[tuple[Any, ...]]], list[int]]:
    """A function from keys to their key groups. Raises UserError where `key_hash` is not known.

    The types decide the hash: an `int` 1 and a `bigint` 1 have different ones.
    """
    if check_key_hash(key_hash) == FLINK_MURMUR:
        flink = flink_groups(key_types, max_parallelism)
        return lambda keys: flink(_columns(keys, len(key_types))).tolist()
    digest = spark_xxhash64(key_types)

    def groups(keys: Iterable[tuple[Any, ...]]) -> list[int]:
        # Python's modulo of a negative number is Spark's pmod.
        return [digest(key) % max_parallelism for key in keys]

    return groups


def _columns(keys: Iterable[tuple[Any, ...]], width: int) -> list[list[Any]]:
    rows = list(keys)
    return [[key[i] for key in rows] for i in range(width)]


def spark_xxhash64(types: Sequence[str]) -> Callable[[tuple[Any, ...]], int]:
    """A function that gives what `xxhash64(columns)` gives for columns of these types (signed)."""
    encoders = [_bytes_of(parse_type(ddl)) for ddl in types]
    if len(encoders) == 1:
        return _of_one_column(encoders[0])

    def digest(key: tuple[Any, ...]) -> int:
        seed = _SEED
        for encode, value in zip(encoders, key, strict=True):
            if value is not None:  # a null leaves the hash as it is
                seed = _hash(encode(value), seed)
        return seed - (1 << 64) if seed >= 1 << 63 else seed

    return digest


def _of_one_column(encode: Callable[[Any], bytes]) -> Callable[[tuple[Any, ...]], int]:
    def digest(key: tuple[Any, ...]) -> int:
        (value,) = key
        found = _SEED if value is None else _hash(encode(value), _SEED)
        return found - (1 << 64) if found >= 1 << 63 else found

    return digest


def _bytes_of(parsed: StateType) -> Callable[[Any], bytes]:
    """A function from a value to the bytes that Spark hashes for it (on little-endian machines)."""
    if parsed.name == "decimal":
        return _decimal(*parsed.params)
    table: dict[str, Callable[[Any], bytes]] = {
        "boolean": _int32,
        "tinyint": _int32,
        "smallint": _int32,
        "int": _int32,
        "bigint": _int64,
        "string": str.encode,
        "binary": bytes,
        "date": lambda value: _int32(value.toordinal() - _UNIX_DAY),
        "timestamp": lambda value: _int64((value - _EPOCH) // _MICROSECOND),
    }
    encode = table.get(parsed.name)
    if encode is None:
        raise ValueError(f"a key column cannot be {parsed.ddl}")
    return encode


def _decimal(precision: int, scale: int) -> Callable[[decimal.Decimal], bytes]:
    fit = decimal_fitter(precision, scale)

    def encode(value: decimal.Decimal) -> bytes:
        sign, digits, _exponent = fit(value).as_tuple()
        unscaled = int("".join(map(str, digits)))
        unscaled = -unscaled if sign else unscaled
        if precision <= _LONG_DECIMAL_DIGITS:
            return _int64(unscaled)
        # Java's BigInteger.toByteArray: the shortest two's complement, big-endian.
        bits = unscaled.bit_length() if unscaled >= 0 else (unscaled + 1).bit_length()
        return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)

    return encode
