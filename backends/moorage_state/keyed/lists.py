"""List state: elements appended under positions that grow, so that adding reads nothing.

An element's place is `epoch (8) | ordinal (4)` behind the state's id. Called by user functions.
"""
# ruff: noqa: D102  `interfaces` documents the methods

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from moorage_state.checks import each_of
from moorage_state.database import Scan
from moorage_state.keyed import interfaces
from moorage_state.keyed.expiry import NEVER, split_stamp, stamp_bytes
from moorage_state.keyed.scanning import Entry, pages, scan_chunk
from moorage_state.keylayout import encode_time, prefix_end

if TYPE_CHECKING:
    from moorage_state.keyed.expiry import Expiry
    from moorage_state.keyed.schema import StateCodec
    from moorage_state.keyed.state_store import KeyedStateStore

_ORDINAL_BYTES = 4
_RELIEF = 1024


def element_places(store: "KeyedStateStore", cell: bytes, count: int) -> list[bytes]:
    """Where so many elements are stored that an epoch adds to the list of a cell, in their order.

    They are counted over all keys and lists of the attempt: cheaper than a counter for each.
    """
    first = store.appended
    store.appended = first + count
    place = cell + encode_time(store.epoch)
    ordinals = range(first, first + count)
    return [place + ordinal.to_bytes(_ORDINAL_BYTES, "big") for ordinal in ordinals]


class StoredListState(interfaces.ListState):
    """A list as entries of the range."""

    __slots__ = (
        "_added",
        "_cleared",
        "_decode",
        "_direct",
        "_encode",
        "_epoch",
        "_items",
        "_place",
        "_scans",
        "_sid",
        "_store",
        "_touched",
    )

    def __init__(self, store: "KeyedStateStore", sid: bytes, codec: "StateCodec") -> None:
        self._store = store
        self._sid = sid
        self._encode = codec.encode
        self._decode = codec.decode
        self._scans: list[Scan | None] | None = None
        self._direct = not store.looks_ahead
        self._epoch: int | None = None
        self._place = b""
        self._touched = False
        self._cleared = False
        self._items: list[Any] | None = None
        self._added: list[bytes] = []

    def get(self) -> list[Any]:
        stored = [] if self._cleared else self._stored()
        return stored + [self._decode(raw) for raw in self._added]

    def __iter__(self) -> Iterator[Any]:
        added = list(self._added)
        if self._cleared:
            return map(self._decode, added)
        if self._items is not None:
            return iter(self.get())
        return self._walk(self._pages(), added)

    def add(self, value: Any) -> None:
        raw, store = self._encode(value), self._store
        if self._direct and not self._touched and (prefix := store.prefix):
            if store.epoch != self._epoch:
                self._move_on()
            ordinal = store.appended
            store.appended = ordinal + 1
            store.write(prefix + self._place + ordinal.to_bytes(_ORDINAL_BYTES, "big"), raw)
            return
        if not self._touched:
            self._touch()
        self._added.append(raw)

    def add_all(self, values: Iterable[Any]) -> None:
        encoded = [self._encode(value) for value in each_of(values)]
        self._touch()
        self._added.extend(encoded)

    def update(self, values: Iterable[Any]) -> None:
        encoded = [self._encode(value) for value in each_of(values)]
        self.clear()
        self._added = encoded

    def clear(self) -> None:
        self._touch()
        self._cleared = True
        self._added = []

    def absorb(self, other: "StoredListState") -> None:
        """Take over what the same state has in another namespace, which is cleared."""
        self.add_all(other.get())
        other.clear()

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self._scans = None

    def flush(self) -> None:
        """Write what was appended to the current key's list."""
        if self._cleared:
            prefix = self._store.prefix + self._sid
            # Ranges come before a frame's puts, so what was appended after the clearing stays.
            self._store.delete_range(prefix, prefix_end(prefix))
        self._append(self._added)
        self._forget()

    def _append(self, stored: list[bytes]) -> None:
        store = self._store
        if store.epoch != self._epoch:
            self._move_on()
        place = store.prefix + self._place
        for raw in stored:
            # Counted over all keys and lists of the attempt: cheaper than a counter for each.
            ordinal = store.appended.to_bytes(_ORDINAL_BYTES, "big")
            store.appended += 1
            store.write(place + ordinal, raw)
            if not store.appended % _RELIEF:
                store.relieve()

    def _move_on(self) -> None:
        """Take note of the epoch, behind whose number its elements stand."""
        self._epoch = self._store.epoch
        self._place = self._sid + encode_time(self._epoch)

    def _forget(self) -> None:
        self._touched = self._cleared = False
        self._items = None
        self._added = []

    def _touch(self) -> None:
        if not self._touched:
            self._store.touched.append(self)
            self._touched = True

    def _stored(self) -> list[Any]:
        if self._items is None:
            self._touch()
            self._items = [self._decode(raw) for page in self._pages() for _, raw in page]
        return self._items

    def _pages(self) -> Iterator[list[Entry]]:
        """What is stored of the current key's list."""
        store = self._store
        self._touch()
        if self._scans is None:
            self._scans = scan_chunk(store, self._sid)
        return pages(store, store.prefix + self._sid, self._scans[store.index])

    def _walk(self, stored: Iterator[list[Entry]], added: list[bytes]) -> Iterator[Any]:
        for page in stored:
            for _, raw in page:
                yield self._decode(raw)
        yield from map(self._decode, added)


class ExpiringListState(StoredListState):
    """A list whose elements each have a time to live."""

    __slots__ = ("_expired_to", "_expiry", "_rewritten", "_stamps")

    def __init__(
        self, store: "KeyedStateStore", sid: bytes, codec: "StateCodec", expiry: "Expiry"
    ) -> None:
        super().__init__(store, sid, codec)
        self._direct = False
        self._expiry = expiry
        self._expired_to = b""
        self._rewritten: dict[bytes, bytes | None] = {}
        self._stamps: dict[int, int] = {}

    def get(self) -> list[Any]:
        # What another namespace had keeps its time only until it is read here, if reading renews
        # it.
        if self._stamps:
            expiry = self._expiry
            self._stamps = {
                n: stamp_ms
                for n, stamp_ms in self._stamps.items()
                if expiry.expired(stamp_ms) or not expiry.renews(stamp_ms)
            }
        return super().get()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def clear(self) -> None:
        super().clear()
        self._rewritten, self._stamps = {}, {}

    def absorb(self, other: Any) -> None:
        """Take over what the same state has in another namespace, each element with its time.

        What has expired is left behind, unless it may be read.
        """
        self._touch()
        for stamp_ms, payload in other.with_stamps():
            self._stamps[len(self._added)] = stamp_ms
            self._added.append(payload)
        other.clear()

    def flush(self) -> None:
        """Write what was appended, what was read where that counts, and where the sweep looks."""
        store, prefix = self._store, self._store.prefix + self._sid
        if self._cleared:
            store.delete_range(prefix, prefix_end(prefix))
        elif self._expired_to:
            store.delete_range(prefix, self._expired_to)
        written = bool(self._added)
        for place, payload in self._rewritten.items():
            store.write(place, None if payload is None else self._expiry.stamp + payload)
            written = written or payload is not None
        stamp, absorbed = self._expiry.stamp, self._stamps
        stamps = {n: stamp_bytes(stamp_ms) for n, stamp_ms in absorbed.items()}
        self._append([stamps.get(n, stamp) + raw for n, raw in enumerate(self._added)])
        if written:
            self._expiry.note(prefix, None, min(absorbed.values(), default=None))
        self._expired_to, self._rewritten, self._stamps = b"", {}, {}
        self._forget()

    def with_stamps(self) -> Iterator[tuple[int, bytes]]:
        """What may be seen of the list now, as it is stored, and when each was last used."""
        expiry = self._expiry
        stored = () if self._cleared else (entry for page in self._pages() for entry in page)
        for place, raw in stored:
            stamp, payload = split_stamp(raw)
            if place < self._expired_to or self._rewritten.get(place, raw) is None:
                continue
            if place in self._rewritten or stamp == NEVER:
                yield expiry.now_ms, payload
            elif expiry.returns_expired or not expiry.expired(stamp):
                yield stamp, payload
        for n, payload in enumerate(self._added):
            yield self._stamps.get(n, expiry.now_ms), payload

    def _stored(self) -> list[Any]:
        """What may be seen of what is stored."""
        if self._items is not None:
            return self._items
        expiry = self._expiry
        shown: list[bytes] = []
        expired: list[bytes] = []
        lives = False
        for place, raw in (entry for page in self._pages() for entry in page):
            stamp, payload = split_stamp(raw)
            if expiry.expired(stamp):
                expired.append(place)
                if expiry.returns_expired:
                    shown.append(payload)
                continue
            lives = True
            shown.append(payload)
            if expiry.renews(stamp):
                self._rewritten[place] = payload
        # All of it has expired: reading cleans up, by one range instead of an entry for each.
        if expired and not lives:
            self._expired_to = expired[-1] + b"\0"
        elif self._rewritten:
            # It is written again anyway, so what has expired goes in the same turn.
            self._rewritten |= dict.fromkeys(expired)
        self._items = [self._decode(payload) for payload in shown]
        return self._items
