"""Captured objects as stored entries, for the canonical format: read in order, one key group held.

Decides that the entries are byte for byte what the keyed state store would have written. Called by
canonical savepoints, beside the writer.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moorage_state.backends.hashmap.format import Captured
from moorage_state.keyed.expiry import stamp_bytes
from moorage_state.keyed.timers import TIMERS_STATE, pack_timers
from moorage_state.keylayout import encode_time, key_prefix, state_id
from moorage_state.keys import KeyCodec

__all__ = ["HeapRangeView"]

_ORDINAL_BYTES = 4
_LENGTH_BYTES = 4


class HeapRangeView:
    """See `moorage_state.database.RangeView`; without the indexes by time, which nobody reads.

    Args:
        states: without timers.
        timers: for event time and for processing time, for each key group the times by key.
        first: the key group that is the first of each state.
        epoch: the place of list elements.
    """

    def __init__(
        self,
        states: Sequence[Captured],
        timers: Sequence[Sequence[dict[Any, Any]]],
        first: int,
        epoch: int,
        now_ms: int,
    ) -> None:
        self.path = Path("(state in memory)")
        self._makers = [_Maker(state, epoch, now_ms) for state in states]
        self._timers = timers
        self._first = first
        self._count = len(timers[0])
        self._at = -1
        self._keys: list[bytes] = []
        self._values: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """The value of one key, None when absent."""
        self.load(int.from_bytes(key[:2], "big"))
        at = bisect_left(self._keys, key)
        return self._values[at] if at < len(self._keys) and self._keys[at] == key else None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys` in their order, None where absent."""
        return [self.get(key) for key in keys]

    @contextmanager
    def cursor(self, lower: bytes, upper: bytes) -> Iterator["_Cursor"]:
        """A cursor within [lower, upper)."""
        yield _Cursor(self, lower, upper)

    def load(self, group: int) -> tuple[list[bytes], list[bytes]]:
        """Keys in order and values of a key group; empty for one that is not here."""
        at = group - self._first
        if at != self._at:
            entries = self._entries(group, at) if 0 <= at < self._count else []
            entries.sort()
            self._keys = [key for key, _ in entries]
            self._values = [value for _, value in entries]
            self._at = at
        return self._keys, self._values

    def last_group(self) -> int:
        """The last key group that is here."""
        return self._first + self._count - 1

    def _entries(self, group: int, at: int) -> list[tuple[bytes, bytes]]:
        entries = [entry for maker in self._makers for entry in maker.entries(group, at)]
        event, processing = (table[at] for table in self._timers)
        sid = state_id(TIMERS_STATE)
        for raw in {**event, **processing}:
            packed = pack_timers(sorted(event.get(raw, ())), sorted(processing.get(raw, ())))
            entries.append((key_prefix(group, raw) + sid, packed))
        return entries


class _Cursor:
    """See `moorage_state.database.RangeCursor`."""

    def __init__(self, view: HeapRangeView, lower: bytes, upper: bytes) -> None:
        self._view = view
        self._lower = lower
        self._upper = upper
        self._group = 0
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._at = 0

    def seek(self, key: bytes) -> bytes | None:
        """Go to the first entry at or after `key` and return its key, None at the end."""
        key = max(key, self._lower)
        self._enter(int.from_bytes(key[:2], "big"))
        self._at = bisect_left(self._keys, key)
        return self.key()

    def key(self) -> bytes | None:
        """The key at the cursor, None at the end."""
        while self._at >= len(self._keys):
            if self._group >= self._view.last_group():
                return None
            self._enter(self._group + 1)
        found = self._keys[self._at]
        return found if found < self._upper else None

    def take(self, end: bytes, entries: int, size: int) -> tuple[list[bytes], list[bytes], bool]:
        """See `RangeCursor`."""
        keys: list[bytes] = []
        values: list[bytes] = []
        total = 0
        while (found := self.key()) is not None and found < end:
            if len(keys) >= entries or total >= size:
                return keys, values, False
            value = self._values[self._at]
            keys.append(found)
            values.append(value)
            total += len(found) + len(value)
            self._at += 1
        return keys, values, True

    def take_keys(self, end: bytes, entries: int) -> list[bytes]:
        """See `RangeCursor`."""
        return self.take(end, entries, 1 << 62)[0]

    def _enter(self, group: int) -> None:
        self._group = group
        self._keys, self._values = self._view.load(group)
        self._at = 0


class _Maker:
    """Makes the entries of one state."""

    def __init__(self, state: Captured, epoch: int, now_ms: int) -> None:
        meta = state.meta
        self._groups = state.groups
        self._kind = meta.kind
        self._stamped = meta.stamped
        self._state = state
        self._now_ms = now_ms
        self._sid = state_id(meta.name)
        self._encode = state.encode
        self._epoch = encode_time(epoch)
        self._map_codec = KeyCodec([meta.key_type]) if meta.key_type is not None else None

    def entries(self, group: int, at: int) -> Iterator[tuple[bytes, bytes]]:
        for entry, kept in self._groups[at].items():
            raw, namespace = entry if isinstance(entry, tuple) else (entry, None)
            prefix = key_prefix(group, raw) + self._sid
            if namespace is not None:
                prefix += len(namespace).to_bytes(_LENGTH_BYTES, "big") + namespace
            for rest, value in self._places(kept):
                packed = self._packed(value)
                if packed is not None:
                    yield prefix + rest, packed

    def _places(self, kept: Any) -> Iterator[tuple[bytes, Any]]:
        if self._kind == "list":
            for ordinal, value in enumerate(kept):
                yield self._epoch + ordinal.to_bytes(_ORDINAL_BYTES, "big"), value
        elif self._map_codec is not None:
            for key, value in kept.items():
                yield self._map_codec.encode((key,)), value
        else:
            yield b"", kept

    def _packed(self, value: Any) -> bytes | None:
        if not self._stamped:
            return self._encode(value)
        stamp, inner = value
        if self._state.leaves_out(stamp, self._now_ms):
            return None
        return stamp_bytes(stamp) + self._encode(inner)
