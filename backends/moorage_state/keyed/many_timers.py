"""How a key's timers are stored, and those of a key that has very many.

A key with few timers has one value under the id of its timers, the packed times of both domains::

    <id>                        msgpack [[event time, ...], [processing time, ...]], ascending

A key with many has an entry for each, sorted by domain and time, and a short value before them::

    <id>                        msgpack [1, first event time, first processing time], null for none
    <id> | domain (1) | time (8, as in the index)     empty

so that setting, firing or deleting a timer writes its entry and at most that value. `KeyTimers`
decides which of both a key has; whoever writes whole state asks `stored_timers`.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from moorage_state.keylayout import (
    EVENT_TIMERS,
    KEY_AT,
    PROCESSING_TIMERS,
    decode_time,
    encode_time,
    timer_entry,
)

if TYPE_CHECKING:
    from moorage_state.keyed.state_store import KeyedStateStore

_NEVER = 1 << 63
"""Beyond the last time that a timer can have."""

_MANY = 512
"""A key with more timers than this has an entry for each."""

_FEW = 64
"""A key that is seen to have no more than this has them packed again."""

_PAGE, _LARGEST_PAGE = _FEW + 1, 4096
_RELIEF = 1024
_TIME_BYTES = 8
_LAYOUT = 1
_PAIR = b"\x92"
_KINDS = (EVENT_TIMERS, PROCESSING_TIMERS)


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """A key's timers as stored: times in milliseconds, ascending."""

    event: list[int]
    processing: list[int]


class _Firsts(msgspec.Struct, frozen=True, array_like=True):
    """The earliest timers of a key that has an entry for each."""

    layout: Literal[1]
    event: int | None
    processing: int | None


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_Packed).decode
_unpack_firsts = msgspec.msgpack.Decoder(_Firsts).decode


def pack_timers(event: list[int], processing: list[int]) -> bytes:
    """The stored value of a key's few timers, of which there is one; each list ascends."""
    return _pack((event, processing))


def are_packed(raw: bytes) -> bool:
    """Whether a stored value has all timers of its key in it, or they are entries behind it."""
    return raw[:1] == _PAIR


def unpack_timers(raw: bytes) -> tuple[list[int], list[int]]:
    """Event and processing times of a key's timers. Raises `msgspec.MsgspecError` for no such."""
    packed = _unpack(raw)
    return packed.event, packed.processing


def too_many(event: Sequence[int], processing: Sequence[int]) -> bool:
    """Whether these timers of a key are stored as an entry each."""
    return len(event) + len(processing) > _MANY


def stored_timers(event: list[int], processing: list[int]) -> Iterator[tuple[bytes, bytes]]:
    """What is stored for a key's timers: pairs of what follows the state's id, and value."""
    if not too_many(event, processing):
        yield b"", pack_timers(event, processing)
        return
    yield from timer_entries(event, processing)


def timer_entries(event: list[int], processing: list[int]) -> Iterator[tuple[bytes, bytes]]:
    """The same of a key that has an entry for each, and keeps that form until few are left."""
    yield b"", _head(_first(event), _first(processing))
    for domain, times in enumerate((event, processing)):
        for time_ms in times:
            yield _rest(domain, time_ms), b""


def entry_parts(rest: bytes) -> tuple[int, int]:
    """Domain and time of an entry, of what follows the state's id. ValueError for no such."""
    if len(rest) != 1 + _TIME_BYTES or rest[0] >= len(_KINDS):
        raise ValueError(f"an entry of a timer ends with {rest.hex()[:32]}")
    return rest[0], decode_time(rest[1:])


def write_index(
    store: "KeyedStateStore", kind: int, times: Iterable[int], value: bytes | None
) -> None:
    """Write the index entries of timers of the current key, or delete them."""
    group, key = int.from_bytes(store.prefix[:2], "big"), store.prefix[KEY_AT:]
    for n, time_ms in enumerate(times, 1):
        store.write(timer_entry(group, time_ms, key, kind), value)
        if not n % _RELIEF:
            store.relieve()


class ManyTimers:
    """The timers of one key that has an entry for each, during one visit to the key.

    Attributes:
        found: the earliest event and processing times as they were stored.
    """

    def __init__(self, store: "KeyedStateStore", sid: bytes, raw: bytes) -> None:
        firsts = _unpack_firsts(raw)
        self.found: tuple[int, int] = (
            _NEVER if firsts.event is None else firsts.event,
            _NEVER if firsts.processing is None else firsts.processing,
        )
        self._store = store
        self._cell = store.prefix + sid
        self._domains = [_Times(store, self._cell, d, first) for d, first in enumerate(self.found)]
        # Set in this epoch, of the next one.
        self._held: set[int] = set()

    @staticmethod
    def begin(
        store: "KeyedStateStore", sid: bytes, event: list[int], processing: list[int]
    ) -> None:
        """Write an entry for each timer of the current key; the index is the caller's."""
        cell = store.prefix + sid
        for n, (rest, value) in enumerate(stored_timers(event, processing), 1):
            store.write(cell + rest, value)
            if not n % _RELIEF:
                store.relieve()

    def register(self, time_ms: int, domain: int, held_to: int) -> bool:
        """See `KeyTimers.register`; whether it is stored is not looked up."""
        times = self._domains[domain]
        if domain and (time_ms <= held_to or time_ms in self._held):
            if times.has(time_ms):
                return False
            self._held.add(time_ms)
            return True
        return times.add(time_ms)

    def delete(self, time_ms: int, domain: int) -> bool:
        """See `KeyTimers.delete`."""
        times = self._domains[domain]
        if times.has(time_ms):
            times.remove(time_ms)
            return True
        if domain:
            self._held.discard(time_ms)
        return False

    def pop_due(self, up_to_ms: int, domain: int) -> int | None:
        """See `KeyTimers.pop_due`."""
        times = self._domains[domain]
        first = times.first()
        if first > up_to_ms:
            return None
        times.remove(first)
        return first

    def has_due(self, watermark: int, now_ms: int) -> bool:
        """See `KeyTimers.has_due`."""
        event, processing = self._domains
        return event.first() <= watermark or processing.first() <= now_ms

    def flush(self) -> int:
        """Write what changed; returns the earliest processing time that is left."""
        event, processing = self._domains
        for time_ms in sorted(self._held):
            processing.add(time_ms)
        if not (event.changed or processing.changed):
            return processing.first()
        left = [times.few_left() for times in self._domains]
        packed = [times for times in left if times is not None]
        if len(packed) == len(left) and sum(map(len, packed)) <= _FEW:
            self._pack(packed)
            return _first(packed[1])
        for times in self._domains:
            times.write()
        firsts = event.first(), processing.first()
        if firsts != self.found:
            self._store.write(self._cell, _head(*firsts))
        return firsts[1]

    def _pack(self, left: list[list[int]]) -> None:
        """Store the few timers that are left as one value, or nothing where there is none."""
        for times, kept in zip(self._domains, left, strict=True):
            times.write(drop=kept)
        self._store.write(self._cell, pack_timers(*left) if any(left) else None)


class _Times:
    """The timers of one domain: what is stored of them, read from the earliest on, and changes."""

    __slots__ = (
        "_added",
        "_at",
        "_complete",
        "_domain",
        "_page",
        "_prefix",
        "_removed",
        "_size",
        "_start",
        "_store",
    )

    def __init__(self, store: "KeyedStateStore", cell: bytes, domain: int, first: int) -> None:
        self._store = store
        self._domain = domain
        self._prefix = cell + bytes([domain])
        # The first is known before anything is read.
        self._page = [first] if first != _NEVER else []
        self._at = 0
        self._complete = not self._page
        self._start = first
        self._size = _PAGE
        self._added: list[int] = []
        self._removed: set[int] = set()

    @property
    def changed(self) -> bool:
        """Whether anything was set or taken."""
        return bool(self._added or self._removed)

    def first(self) -> int:
        """The earliest time, beyond the last there is where there is none."""
        added, stored = self._added, self._first_stored()
        return min(added[0], stored) if added else stored

    def add(self, time_ms: int) -> bool:
        """Set a timer; False where that is known to be so."""
        read = time_ms not in self._removed and _holds(self._page, time_ms)
        if read or _holds(self._added, time_ms):
            return False
        insort(self._added, time_ms)
        return True

    def has(self, time_ms: int) -> bool:
        """Whether a timer is set; one that was not read is looked up."""
        if _holds(self._added, time_ms):
            return True
        if time_ms in self._removed or time_ms < self._start:
            return False
        return self._store.read(self._prefix + encode_time(time_ms)) is not None

    def remove(self, time_ms: int) -> None:
        """Take a timer that is set."""
        if _holds(self._added, time_ms):
            del self._added[bisect_left(self._added, time_ms)]
        self._removed.add(time_ms)

    def few_left(self) -> list[int] | None:
        """All timers that are left, where they are few and were read: not for this alone."""
        self._first_stored()
        if not self._complete:
            return None
        stored = (t for t in self._page[self._at :] if t not in self._removed)
        left = sorted({*stored, *self._added})
        return left if len(left) <= _FEW else None

    def write(self, drop: Sequence[int] | None = None) -> None:
        """Write entries and index; with `drop`, all entries go, and these timers stay set."""
        store, kind = self._store, _KINDS[self._domain]
        gone = sorted(self._removed.difference(self._added))
        kept = self._added if drop is None else []
        dropped = gone if drop is None else sorted({*gone, *drop})
        for value, times in ((None, dropped), (b"", kept)):
            for n, time_ms in enumerate(times, 1):
                store.write(self._prefix + encode_time(time_ms), value)
                if not n % _RELIEF:
                    store.relieve()
        write_index(store, kind, gone, None)
        write_index(store, kind, self._added, b"")

    def _first_stored(self) -> int:
        """The earliest stored timer that was not taken; those before it are passed for good."""
        while True:
            while self._at < len(self._page):
                if self._page[self._at] not in self._removed:
                    return self._page[self._at]
                self._at += 1
            if self._complete:
                return _NEVER
            # From the last one on: before it lie all that have fired, which RocksDB keeps a while.
            after = self._prefix + encode_time(self._page[-1])
            scan = self._store.access.scan_from(self._prefix, after, self._size)
            self._page = [decode_time(key[-_TIME_BYTES:]) for key in scan.keys]
            self._at, self._complete = 0, scan.complete
            self._size = min(2 * self._size, _LARGEST_PAGE)


def _head(event: int, processing: int) -> bytes:
    firsts = (None if first == _NEVER else first for first in (event, processing))
    return _pack((_LAYOUT, *firsts))


def _holds(times: list[int], time_ms: int) -> bool:
    at = bisect_left(times, time_ms)
    return at < len(times) and times[at] == time_ms


def _first(times: Sequence[int]) -> int:
    return times[0] if times else _NEVER


def _rest(domain: int, time_ms: int) -> bytes:
    return bytes([domain]) + encode_time(time_ms)
