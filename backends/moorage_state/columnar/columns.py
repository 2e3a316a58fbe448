"""Many values' bytes as NumPy columns and back, without Python for each value.

Decides nothing of the layout: it is the MessagePack of `codecs`, one field of all values at a time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Places = NDArray[np.int64]

_NIL, _FALSE, _TRUE = 0xC0, 0xC2, 0xC3
_DOUBLE = 0xCB
_DATE = 0xAA
_DATE_CHARACTERS = 10
_LEFT = 64
_PADDING = 32
_MICROS = 1_000_000
_NANOS_SHIFT, _NANOS_PER_MICRO = 34, 1000
_BAD = 0xFF
_SHORT_STRUCT = 0x10

_SMALL = dict.fromkeys((*range(128), *range(224, 256)), 0)
_Bytes = NDArray[np.uint8]
_MANY_LENGTHS = 48
_UINT32, _UINT34 = 1 << 32, 1 << 34
# Of each class of numbers, between the borders: how many bytes follow the tag, and the tag.
_BORDERS = np.array(
    [-(1 << 31), -(1 << 15), -(1 << 7), -32, 1 << 7, 1 << 8, 1 << 16, 1 << 32], np.int64
)

_WIDTHS = np.array([8, 4, 2, 1, 0, 1, 2, 4, 8], np.int64)
_TAGS = np.array([0xD3, 0xD2, 0xD1, 0xD0, 0, 0xCC, 0xCD, 0xCE, 0xCF], np.uint8)


def _table(entries: dict[int, int]) -> NDArray[np.uint8]:
    table = np.full(256, _BAD, np.uint8)
    for tag, value in entries.items():
        table[tag] = value
    return table


_INT_WIDTH = _table(
    _SMALL | {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, _NIL: 0}
)
_TEXT_HEAD = _table(dict.fromkeys(range(160, 192), 0) | {0xD9: 1, 0xDA: 2, 0xDB: 4, _NIL: 0})
_BINARY_HEAD = _table({0xC4: 1, 0xC5: 2, 0xC6: 4, _NIL: 0})
# Behind a timestamp's tag: 0xff and 4 bytes; 0xff and 8; 12, 0xff and 12.
_TIME_WIDTH = _table({0xD6: 5, 0xD7: 9, 0xC7: 14, _NIL: 0})


@dataclass(frozen=True, slots=True)
class Cells:
    """A column of fixed width: values, and which of them there are."""

    values: NDArray[Any]
    valid: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of strings or bytes: value n is `data[offsets[n]:offsets[n + 1]]`."""

    data: NDArray[np.uint8]
    offsets: _Places
    valid: NDArray[np.bool_]


class Reader:
    """Reads fields of all values, the first of each, then the second, and so on."""

    def __init__(self, all_bytes: _Bytes, at: _Places, ends: _Places) -> None:
        self._bytes = all_bytes
        self._at = at
        self._ends = ends

    @classmethod
    def of(cls, raws: list[bytes]) -> "Reader":
        """From the first field on."""
        lengths = np.fromiter(map(len, raws), np.int64, len(raws))
        ends = np.cumsum(lengths)
        # A window may reach behind the last value.
        all_bytes = np.frombuffer(b"".join([*raws, bytes(_PADDING)]), np.uint8)
        return cls(all_bytes, ends - lengths, ends)

    @property
    def at(self) -> _Places:
        """Where the next field of each value begins."""
        return self._at

    def struct(self, width: int) -> None:
        """Step into values that are structs of `width` fields."""
        if width < 0x10:
            self._require(self._tag() == (0x90 | width), f"a struct of {width} fields")
            self._at = self._at + 1
            return
        head = self._window(3)
        expected = np.frombuffer(b"\xdc" + width.to_bytes(2, "big"), np.uint8)
        self._require((head == expected).all(axis=1), f"a struct of {width} fields")
        self._at = self._at + 3

    def optional_struct(self, width: int) -> tuple["Reader", NDArray[np.bool_]]:
        """Step into a field of structs, of which some may be null.

        Returns:
            What reads the fields of those that are there, to be given back to `rejoin`; and which
            these are.
        """
        valid = self._tag() != _NIL
        inner = Reader(self._bytes, self._at[valid], self._ends[valid])
        inner.struct(width)
        return inner, valid

    def rejoin(self, inner: "Reader", valid: NDArray[np.bool_]) -> None:
        """Go on behind the structs that `optional_struct` stepped into."""
        self._at = self._at + 1
        self._at[valid] = inner.at

    def end(self) -> None:
        """Refuse values that have more bytes than were read."""
        self._require(self._at == self._ends, "the end of the value")

    def integers(self) -> Cells:
        """A field of whole numbers of any width."""
        tags = self._tag()
        widths = _INT_WIDTH[tags]
        self._require(widths != _BAD, "a whole number")
        values = tags.view(np.int8).astype(np.int64)
        if wide := int(widths.max(initial=0)):
            shifts = (_LEFT - 8 * widths.astype(np.int64)).clip(max=_LEFT - 1).astype(np.uint64)
            bits = self._number(1)
            numbers = np.where(
                tags >= 0xD0,
                bits.view(np.int64) >> shifts.view(np.int64),
                (bits >> shifts).view(np.int64),
            )
            values = np.where(widths > 0, numbers, values)
            # Beyond a signed number's: no state type holds it.
            big = (tags == 0xCF) & (numbers < 0) if wide == 8 else None
            if big is not None and big.any():
                self._require(~big, "a number of 64 bits with a sign")
        self._at = self._at + 1 + widths
        return Cells(values, tags != _NIL)

    def doubles(self) -> Cells:
        """A field of floating point numbers."""
        tags = self._tag()
        valid = tags == _DOUBLE
        self._require(valid | (tags == _NIL), "a double")
        values = self._number(1).view(np.float64)
        self._at = self._at + np.where(valid, 9, 1)
        return Cells(values, valid)

    def booleans(self) -> Cells:
        """A field of booleans."""
        tags = self._tag()
        self._require((tags == _TRUE) | (tags == _FALSE) | (tags == _NIL), "a boolean")
        self._at = self._at + 1
        return Cells(tags == _TRUE, tags != _NIL)

    def dates(self) -> Cells:
        """A field of dates, as days since 1970."""
        tags = self._tag()
        valid = tags == _DATE
        self._require(valid | (tags == _NIL), "a date")
        letters = self._window(1 + _DATE_CHARACTERS)[:, 1:]
        letters = np.where(valid[:, None], letters, np.frombuffer(b"1970-01-01", np.uint8))
        texts = np.ascontiguousarray(letters).view(f"S{_DATE_CHARACTERS}").ravel()
        days = texts.astype("datetime64[D]").astype(np.int64)
        self._at = self._at + np.where(valid, 1 + _DATE_CHARACTERS, 1)
        return Cells(days, valid)

    def timestamps(self) -> Cells:
        """A field of points in time, as microseconds since 1970 UTC."""
        tags = self._tag()
        widths = _TIME_WIDTH[tags]
        self._require(widths != _BAD, "a timestamp")
        first = self._number(2)
        micros = (first >> np.uint64(32)).view(np.int64) * _MICROS
        middle = tags == 0xD7
        seconds = first & np.uint64((1 << _NANOS_SHIFT) - 1)
        nanos = first >> np.uint64(_NANOS_SHIFT)
        micros = np.where(middle, _as_micros(seconds, nanos), micros)
        longest = tags == 0xC7
        if longest.any():
            nanos = self._number(3) >> np.uint64(32)
            micros = np.where(longest, _as_micros(self._number(7), nanos), micros)
        self._at = self._at + 1 + widths
        return Cells(micros, tags != _NIL)

    def texts(self, *, binary: bool) -> Texts:
        """A field of strings, or of bytes."""
        tags = self._tag()
        heads = (_BINARY_HEAD if binary else _TEXT_HEAD)[tags].astype(np.int64)
        self._require(heads != _BAD, "bytes" if binary else "a string")
        shifts = (_LEFT - 8 * heads).clip(max=_LEFT - 1).astype(np.uint64)
        lengths = (self._number(1) >> shifts).view(np.int64)
        lengths = np.where(heads > 0, lengths, 0 if binary else tags & 0x1F)
        lengths = np.where(tags == _NIL, 0, lengths)
        starts = self._at + 1 + heads
        self._require(starts + lengths <= self._ends, "all of a string")
        self._at = starts + lengths
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Texts(self._bytes[places], offsets, tags != _NIL)

    def _tag(self) -> NDArray[np.uint8]:
        self._require(self._at < self._ends, "another field")
        return self._bytes[self._at]

    def _window(self, width: int) -> NDArray[np.uint8]:
        """The next `width` bytes of each value, and of what lies behind it where it has fewer."""
        windows = np.lib.stride_tricks.sliding_window_view(self._bytes, width)
        found: NDArray[np.uint8] = windows[self._at]
        return found

    def _number(self, skip: int) -> NDArray[np.uint64]:
        """Eight bytes of each value behind `skip`, as big-endian numbers."""
        windows = np.lib.stride_tricks.sliding_window_view(self._bytes, 8)
        made: NDArray[np.uint64] = windows[self._at + skip].view(">u8").ravel().astype(np.uint64)
        return made

    def _require(self, right: NDArray[np.bool_], what: str) -> None:
        if not right.all():
            raise ValueError(f"value {int(np.argmin(right))} of {len(right)} is not {what} there")


def _as_micros(seconds: NDArray[np.uint64], nanos: NDArray[np.uint64]) -> NDArray[np.int64]:
    made: NDArray[np.int64] = seconds.view(np.int64) * _MICROS
    return made + (nanos // np.uint64(_NANOS_PER_MICRO)).view(np.int64)


@dataclass(frozen=True, slots=True)
class Part:
    """One field of all values.

    Attributes:
        head: its first bytes, as many as `widths` says in each row.
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


def array_head(count: int) -> bytes:
    """What stands before the fields of a struct, and before the items of a list."""
    if count < _SHORT_STRUCT:
        return bytes([0x90 | count])
    wide = count > 0xFFFF
    return b"\xdd" + count.to_bytes(4, "big") if wide else b"\xdc" + count.to_bytes(2, "big")


def struct_part(width: int, valid: NDArray[np.bool_]) -> Part:
    """What stands before the fields of structs; a null one has none, see `only_where`."""
    raw = np.frombuffer(array_head(width), np.uint8)
    head = np.tile(raw, (len(valid), 1))
    head[~valid, 0] = _NIL
    return Part(head, np.where(valid, len(raw), 1))


def only_where(part: Part, valid: NDArray[np.bool_]) -> Part:
    """A field of structs: nothing at all where the struct is null.

    There the field is null, too, so that it has no bytes of a text.
    """
    return Part(part.head, np.where(valid, part.widths, 0), part.data, part.lengths)


def integer_part(values: NDArray[Any], valid: NDArray[np.bool_]) -> Part:
    """A field of whole numbers, each in the shortest form."""
    v = values.astype(np.int64)
    at = np.searchsorted(_BORDERS, v, side="right")
    widths, tags = _WIDTHS[at], _TAGS[at]
    tags = np.where(widths == 0, v.astype(np.uint8), tags)
    shifts = (64 - 8 * widths).clip(max=63).astype(np.uint64)
    bits = v.view(np.uint64) << shifts
    return _tagged(tags, bits[:, None], widths, valid)


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
    # Cutting size by size costs a pass for each.
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
