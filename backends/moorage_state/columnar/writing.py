"""NumPy columns to many values' bytes: the counterpart of `reading`, byte for byte the codec's.

Decides which of the forms that MessagePack has for a value is written: the one that msgspec
writes, so that a value has the same bytes whether it was written alone or in a column. Called by
the columnar codec.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Part",
    "boolean_part",
    "date_part",
    "double_part",
    "integer_part",
    "joined",
    "text_part",
]
__all__ += ["timestamp_part"]

_Bytes = NDArray[np.uint8]

_NIL = 0xC0
_MANY_LENGTHS = 48
_MICROS = 1_000_000
_UINT32, _UINT34 = 1 << 32, 1 << 34


@dataclass(frozen=True, slots=True)
class Part:
    """One field of all values.

    Attributes:
        head: its first bytes, as many as `widths` says in each row.
        widths: how many bytes of the row count.
        data: of strings, all their bytes one after the other; they follow the head.
        lengths: of strings, how many bytes each one has.
    """

    head: _Bytes
    widths: NDArray[np.int64]
    data: _Bytes | None = None
    lengths: NDArray[np.int64] | None = None

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many bytes the field has in each value."""
        return self.widths if self.lengths is None else self.widths + self.lengths


def integer_part(values: NDArray[Any], valid: NDArray[np.bool_]) -> Part:
    """A field of whole numbers, each in the shortest form."""
    v = values.astype(np.int64)
    at = np.searchsorted(_BORDERS, v, side="right")
    widths, tags = _WIDTHS[at], _TAGS[at]
    tags = np.where(widths == 0, v.astype(np.uint8), tags)
    shifts = (64 - 8 * widths).clip(max=63).astype(np.uint64)
    bits = v.view(np.uint64) << shifts
    return _tagged(tags, bits[:, None], widths, valid)


# Of each class of numbers, between the borders: how many bytes follow the tag, and the tag.
_BORDERS = np.array(
    [-(1 << 31), -(1 << 15), -(1 << 7), -32, 1 << 7, 1 << 8, 1 << 16, 1 << 32], np.int64
)
_WIDTHS = np.array([8, 4, 2, 1, 0, 1, 2, 4, 8], np.int64)
_TAGS = np.array([0xD3, 0xD2, 0xD1, 0xD0, 0, 0xCC, 0xCD, 0xCE, 0xCF], np.uint8)


def double_part(values: NDArray[Any], valid: NDArray[np.bool_]) -> Part:
    """A field of floating point numbers."""
    bits = values.astype(np.float64).view(np.uint64)
    tags = np.full(len(values), 0xCB, np.uint8)
    return _tagged(tags, bits[:, None], np.full(len(values), 8), valid)


def boolean_part(values: NDArray[Any], valid: NDArray[np.bool_]) -> Part:
    """A field of booleans."""
    tags = np.where(valid, np.where(values, 0xC3, 0xC2), _NIL).astype(np.uint8)
    return Part(tags[:, None], np.ones(len(values), np.int64))


def date_part(days: NDArray[Any], valid: NDArray[np.bool_]) -> Part:
    """A field of dates, given as days since 1970."""
    texts = np.datetime_as_string(np.where(valid, days, 0).astype("datetime64[D]"))
    letters = np.ascontiguousarray(texts.astype("S10")).view(np.uint8).reshape(-1, 10)
    head = np.concatenate((np.full((len(days), 1), 0xAA, np.uint8), letters), axis=1)
    head[~valid, 0] = _NIL
    return Part(head, np.where(valid, 11, 1))


def timestamp_part(micros: NDArray[Any], valid: NDArray[np.bool_]) -> Part:
    """A field of points in time, given as microseconds since 1970 UTC, in the shortest form."""
    seconds, rest = np.divmod(np.where(valid, micros, 0).astype(np.int64), _MICROS)
    nanos = (rest * 1000).view(np.uint64)
    positive = seconds >= 0
    short = positive & (seconds < _UINT32) & (rest == 0)
    middle = positive & (seconds < _UINT34) & ~short
    unsigned = seconds.view(np.uint64)
    words = np.zeros((len(micros), 2), np.uint64)
    words[:, 0] = np.where(short, unsigned << np.uint64(32), (nanos << np.uint64(34)) | unsigned)
    head = np.zeros((len(micros), 17), np.uint8)
    head[:, 0] = np.where(short, 0xD6, np.where(middle, 0xD7, 0xC7))
    head[:, 1] = 0xFF
    head[:, 2:10] = _big_endian(words[:, :1])
    longest = ~short & ~middle
    if longest.any():
        head[longest, 1] = 12
        head[longest, 2] = 0xFF
        head[longest, 3:7] = _big_endian(nanos[longest, None])[:, 4:]
        head[longest, 7:15] = _big_endian(unsigned[longest, None])
    head[~valid, 0] = _NIL
    widths = np.where(short, 6, np.where(middle, 10, 15))
    return Part(head, np.where(valid, widths, 1))


def text_part(
    data: _Bytes, lengths: NDArray[np.int64], valid: NDArray[np.bool_], *, binary: bool
) -> Part:
    """A field of strings or bytes, whose bytes lie one after the other in `data`."""
    lengths = lengths.astype(np.int64)
    borders = [1 << 8, 1 << 16] if binary else [32, 1 << 8, 1 << 16]
    at = np.searchsorted(np.array(borders), lengths, side="right") + (1 if binary else 0)
    widths = np.array([0, 1, 2, 4], np.int64)[at]
    tags = np.array([0xA0, 0xC4, 0xC5, 0xC6] if binary else [0xA0, 0xD9, 0xDA, 0xDB])[at]
    tags = np.where(widths == 0, tags | lengths, tags).astype(np.uint8)
    bits = lengths.view(np.uint64) << (64 - 8 * widths).clip(max=63).astype(np.uint64)
    made = _tagged(tags, bits[:, None], widths, valid)
    return Part(made.head, made.widths, data, np.where(valid, lengths, 0))


def joined(parts: list[Part], prefix: bytes) -> list[bytes]:
    """The bytes of each value: `prefix`, then its fields one after the other."""
    count = len(parts[0].widths)
    sizes = len(prefix) + sum((part.sizes for part in parts), np.zeros(count, np.int64))
    ends = np.cumsum(sizes)
    at = ends - sizes
    out = np.empty(int(ends[-1]) if count else 0, np.uint8)
    for n, byte in enumerate(prefix):
        out[at + n] = byte
    place = at + len(prefix)
    for part in parts:
        _put(out, place, part)
        place = place + part.sizes
    return _split(out, at, sizes)


def _put(out: _Bytes, place: NDArray[np.int64], part: Part) -> None:
    most = int(part.widths.max(initial=0))
    columns = np.arange(most)
    inside = columns < part.widths[:, None]
    out[(place[:, None] + columns)[inside]] = part.head[:, :most][inside]
    if part.data is not None and part.lengths is not None:
        ends = np.cumsum(part.lengths)
        begin = place + part.widths - (ends - part.lengths)
        out[np.repeat(begin, part.lengths) + np.arange(len(part.data))] = part.data


def _split(out: _Bytes, at: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[bytes]:
    """The values one by one; those of one size together, as long as there are few sizes."""
    found = np.unique(sizes)
    if len(found) > _MANY_LENGTHS:
        whole = out.tobytes()
        return [whole[a : a + n] for a, n in zip(at.tolist(), sizes.tolist(), strict=True)]
    if len(found) == 1:
        return _cut(out.reshape(-1, int(found[0])))
    values = np.empty(len(at), object)
    for size in found.tolist():
        mine = np.flatnonzero(sizes == size)
        values[mine] = _cut(out[at[mine][:, None] + np.arange(size)])
    made: list[bytes] = values.tolist()
    return made


def _cut(rows: _Bytes) -> list[bytes]:
    raw: Any = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1]))).ravel()
    made: list[bytes] = raw.tolist()
    return made


def _tagged(
    tags: _Bytes, words: NDArray[np.uint64], widths: NDArray[np.int64], valid: NDArray[np.bool_]
) -> Part:
    head = np.concatenate((tags[:, None], _big_endian(words)), axis=1)
    head[~valid, 0] = _NIL
    return Part(head, np.where(valid, widths + 1, 1))


def _big_endian(words: NDArray[np.uint64]) -> _Bytes:
    return np.ascontiguousarray(words.astype(">u8")).view(np.uint8).reshape(len(words), 8)
