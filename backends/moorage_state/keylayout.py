"""The layout of everything a range stores, by the bytes that stand for its keys.

Called by whoever stores state, by the state server and by offline readers. Knows no types and no
NumPy, without which a server starts in a third of the time. A stored key is::

    key group (2, big-endian) | 0x01 | key length (4, big-endian) | key | state id (4) | rest
    key group (2, big-endian) | 0x02 | time (8, big-endian, sign bit flipped) | key
    key group (2, big-endian) | 0x03 | time (8, big-endian, sign bit flipped) | key
    key group (2, big-endian) | 0x04 | time (8, likewise) | key length (4) | key | state id | rest

The first holds state; the others index timers of event time, timers of processing time, and state
that expires, by time. Times are eight bytes with the sign bit flipped, so that bytes sort as the
numbers do.
"""

import struct

import xxhash

KEYED_STATE = 0x01
EVENT_TIMERS = 0x02
PROCESSING_TIMERS = 0x03
EXPIRIES = 0x04

METADATA = b"\xff\xff"
"""The least key of the server's own entries: no key group has this number, so all keys are less."""

_EXPIRIES = bytes([EXPIRIES])
_KEYED_STATE = bytes([KEYED_STATE])
_SIGN = 1 << 63
_HEAD = struct.Struct(">HBI")
_TIMER_HEAD = struct.Struct(">HBQ")
_U64 = struct.Struct(">Q")

KEY_AT = _HEAD.size
"""Where the key begins in what every stored state of it starts with."""


def state_id(name: str) -> bytes:
    """Four bytes that stand for a state's name; two states of an operator must not share them."""
    return xxhash.xxh32(name.encode(), seed=0).digest()


def key_prefix(key_group: int, key: bytes) -> bytes:
    """What every stored state of `key` starts with."""
    return _HEAD.pack(key_group, KEYED_STATE, len(key)) + key


def prefix_of(entry: bytes) -> bytes:
    """What every stored state of a key starts with, of one of them; the key begins at `KEY_AT`."""
    return entry[: KEY_AT + int.from_bytes(entry[3:KEY_AT], "big")]


def prefix_end(prefix: bytes) -> bytes:
    """The first byte string after all that start with `prefix`; ValueError if all are 0xff."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        raise ValueError("a prefix of 0xff bytes has no end")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def encode_time(milliseconds: int) -> bytes:
    """Eight bytes that sort as the times do; also any other signed 64-bit number."""
    return _U64.pack(milliseconds + _SIGN)


def decode_time(raw: bytes) -> int:
    """The number that `encode_time` was given."""
    number: int = _U64.unpack(raw)[0]
    return number - _SIGN


def timer_entry(key_group: int, time_ms: int, key: bytes, kind: int = EVENT_TIMERS) -> bytes:
    """The stored key of a timer; `kind` is EVENT_TIMERS or PROCESSING_TIMERS."""
    return _TIMER_HEAD.pack(key_group, kind, time_ms + _SIGN) + key


def timer_parts(entry: bytes) -> tuple[int, int, bytes]:
    """Key group, time in milliseconds and key of a stored timer."""
    key_group, _kind, shifted = _TIMER_HEAD.unpack_from(entry)
    return key_group, shifted - _SIGN, entry[_TIMER_HEAD.size :]


def expiry_entry(cell: bytes, time_ms: int) -> bytes:
    """Where the index of what expires has the stored key (or the list's prefix) `cell`."""
    return cell[:2] + _EXPIRIES + encode_time(time_ms) + cell[3:]


def expiry_parts(entry: bytes) -> tuple[int, bytes]:
    """The time in milliseconds, and the stored key or list's prefix, of an entry of that index."""
    return decode_time(entry[3:11]), entry[:2] + _KEYED_STATE + entry[11:]
