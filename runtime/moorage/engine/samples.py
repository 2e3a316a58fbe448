"""A sample of the rows that go to sinks, told by their hashes: what two versions are compared by.

Decides which rows are in it: those whose hash is low, so that whoever gives the same rows, in any
order and in any number of epochs, has the same ones in its sample. What there is of a sink is
bounded: where it would be more, the limit is halved. Values stay where they are. Called by the
output of subtasks; the driver puts together what these say. Two versions may have two releases of
Moorage: with other hashes in the newer one every row would differ.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

_Words = NDArray[np.uint64]

MOST_ROWS = 512
"""Different rows of a sink that one attempt of a subtask tells of."""

_ALL = (1 << 64) - 1
_NULL = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_TOLD_APART = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_decimal,
)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a sample is made of.

    Attributes:
        percent: of all different rows.
        except_columns: these do not count; names that a sink has not are passed over.
        limits: by sink, to what the highest hash in it was lowered.
    """

    percent: int = 100
    except_columns: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)

    def limit(self, sink: str) -> int:
        """The highest hash that is in it."""
        return self.limits.get(sink, _ALL * self.percent // 100)


class SampledRows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Those of one sink: how often each hash came that is no higher than the limit."""

    limit: int
    rows: dict[int, int]


class Sampler:
    """The sample of one attempt of one subtask."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._found: dict[str, SampledRows] = {}

    def add(self, sinks: Iterable[str], batch: pa.RecordBatch) -> None:
        """Rows went to sinks of these uids."""
        hashes = row_hashes(batch, self._sampling.except_columns)
        for uid in sinks:
            before = self._found.get(uid) or SampledRows(self._sampling.limit(uid), {})
            mine = hashes[hashes <= np.uint64(before.limit)]
            found, counts = np.unique(mine, return_counts=True)
            rows = dict(zip(found.tolist(), counts.tolist(), strict=True))
            self._found[uid] = together([before, SampledRows(before.limit, rows)], MOST_ROWS)

    def taken(self) -> dict[str, SampledRows]:
        """By sink: the same for the same rows, in whichever order they came."""
        return {
            uid: SampledRows(one.limit, dict(sorted(one.rows.items())))
            for uid, one in sorted(self._found.items())
        }


def together(parts: Sequence[SampledRows], most: int) -> SampledRows:
    """Several of one sink as one of no more than so many different rows."""
    limit = min(part.limit for part in parts)
    rows: dict[int, int] = {}
    for part in parts:
        for row, count in part.rows.items():
            rows[row] = rows.get(row, 0) + count
    while (rows := below(rows, limit)) and len(rows) > most:
        limit //= 2
    return SampledRows(limit, rows)


def below(rows: Mapping[int, int], limit: int) -> dict[int, int]:
    """What of these is in a sample of this limit."""
    return {row: count for row, count in rows.items() if row <= limit}


def row_hashes(batch: pa.RecordBatch, except_columns: Iterable[str] = ()) -> _Words:
    """A hash of each row: of its values in the order of its columns, whatever these are called.

    Whole numbers are told by their value, whatever their width; numbers with a fraction by their
    first 24 bits, as `float`. Maps are told whatever the order of their entries.
    """
    left_out = frozenset(except_columns)
    named = zip(batch.schema.names, batch.columns, strict=True)
    return _of_columns((one for name, one in named if name not in left_out), batch.num_rows)


def _hashes(column: pa.Array) -> _Words:
    """A hash of each value."""
    kind = column.type
    if pa.types.is_struct(kind):
        found = _of_columns(column.flatten(), len(column))
    elif pa.types.is_map(kind):
        entries = _of_columns([column.keys, column.items], len(column.keys))
        found = _of_parts(column, entries)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        found = _of_parts(column, _hashes(column.values), ordered=True)
    elif pa.types.is_floating(kind):
        found = _mixed(_fractions(column))
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        found = _mixed(_whole(column))
    elif pa.types.is_temporal(kind) and pa.types.is_primitive(kind):
        plain = pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()
        found = _mixed(_whole(column.view(plain)))
    else:
        found = _of_texts(column)
    told: _Words = np.where(np.asarray(column.is_null()), _NULL, found)
    return told


def _of_columns(columns: Iterable[pa.Array], rows: int) -> _Words:
    """A hash of what stands side by side in several columns."""
    # Not zero, which is the hash of zero: one more column of these would change nothing.
    found = np.full(rows, _FACTORS[0])
    for column in columns:
        found = _mixed(found * _FACTORS[1] + _hashes(column))
    return found


def _of_parts(column: pa.Array, parts: _Words, *, ordered: bool = False) -> _Words:
    """A hash of each list, by those of all that lies in lists; or of each map, without an order."""
    offsets = column.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    owners = np.repeat(np.arange(len(column)), lengths)
    mine = parts[offsets[0] : offsets[-1]]
    if ordered:
        places = np.arange(len(mine)) - (offsets[:-1] - offsets[0])[owners]
        # From 1 on: [0] is not [].
        mine = _mixed(mine * _FACTORS[1] + (places + 1).astype(np.uint64))
    found = np.zeros(len(column), np.uint64)
    np.add.at(found, owners, mine)
    return _mixed(found)


def _whole(column: pa.Array) -> _Words:
    kind = pa.uint64() if column.type == pa.uint64() else pa.int64()
    wide = pc.fill_null(column.cast(kind), 0)
    found: _Words = wide.to_numpy(zero_copy_only=False).view(np.uint64)
    return found


def _fractions(column: pa.Array) -> _Words:
    plain = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        short = plain.astype(np.float32) + np.float32(0)  # no negative zero
    short[np.isnan(short)] = np.float32("nan")  # of many, one
    found: _Words = short.view(np.uint32).astype(np.uint64)
    return found


def _of_texts(column: pa.Array) -> _Words:
    """Of texts, bytes and decimals: each different one once."""
    if not any(applies(column.type) for applies in _TOLD_APART):
        return _of_bytes([repr(value).encode() for value in column.to_pylist()])
    coded = column.dictionary_encode()
    indices = pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False)
    values = [
        value if isinstance(value, bytes) else str(value).encode()
        for value in coded.dictionary.to_pylist()
    ]
    found: _Words = _of_bytes(values or [b""])[indices]
    return found


def _of_bytes(values: list[bytes]) -> _Words:
    return np.fromiter(map(xxhash.xxh3_64_intdigest, values), np.uint64, len(values))


def _mixed(words: _Words) -> _Words:
    """Words spread over all there are (splitmix64); they wrap around."""
    words = (words ^ (words >> _SHIFTS[0])) * _FACTORS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _FACTORS[1]
    found: _Words = words ^ (words >> _SHIFTS[2])
    return found
