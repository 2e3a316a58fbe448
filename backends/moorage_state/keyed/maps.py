"""Map state: entries of a key, each stored by itself, fetched whole where they are few.

An entry's place is its canonical key behind the state's id. Called by user functions.
"""
# ruff: noqa: D102  `interfaces` documents the methods

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from moorage_state.checks import entries_of
from moorage_state.codecs import checker, plain_type
from moorage_state.database import Scan
from moorage_state.keyed import interfaces
from moorage_state.keyed.expiry import split_stamp
from moorage_state.keyed.scanning import Entry, pages, scan_chunk
from moorage_state.keylayout import prefix_end
from moorage_state.keys import KeyCodec, column_encoder

if TYPE_CHECKING:
    from moorage_state.descriptors import MapStateDescriptor
    from moorage_state.keyed.expiry import Expiry
    from moorage_state.keyed.schema import StateCodec
    from moorage_state.keyed.state_store import KeyedStateStore

_KNOWN = 10_000
"""How many entries that were looked up one by one are kept."""

_RELIEF = 1024

_RESTS = 1024
"""How many keys' bytes are kept, if they are no longer than `_REST_BYTES`."""

_REST_BYTES = 64


class StoredMapState(interfaces.MapState):
    """A map as entries of the range, read whole where it is small and else one by one."""

    __slots__ = (
        "_changes",
        "_check_key",
        "_cleared",
        "_decode",
        "_direct",
        "_encode",
        "_encode_key",
        "_keys",
        "_known",
        "_looked_up",
        "_plain",
        "_plain_key",
        "_rests",
        "_scans",
        "_settle",
        "_sid",
        "_store",
        "_touched",
        "_whole",
    )

    def __init__(
        self,
        store: "KeyedStateStore",
        sid: bytes,
        codec: "StateCodec",
        descriptor: "MapStateDescriptor",
    ) -> None:
        self._store = store
        self._sid = sid
        self._keys = KeyCodec([descriptor.key_type])
        self._check_key = checker(descriptor.key_type, descriptor.name)
        self._encode_key = column_encoder(descriptor.key_type)
        self._plain_key = plain_type(descriptor.key_type)
        self._encode, self._decode, self._plain, self._settle = codec
        self._direct = not store.looks_ahead
        self._scans: list[Scan | None] | None = None
        self._touched = False
        self._cleared = False
        self._whole = False
        self._looked_up = 0
        self._known: dict[Any, Any] = {}
        self._rests: dict[Any, bytes] = {}
        self._changes: dict[Any, bytes | None] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        value = self._lookup(key)
        return default if value is None else value

    def contains(self, key: Any) -> bool:
        return self._lookup(key) is not None

    def put(self, key: Any, value: Any) -> None:
        if type(key) is not self._plain_key:
            key = self._check_key(key)
        known = self._known
        rest = b"" if key in known else self._rests.get(key) or self._rest(key)
        raw, store = self._encode(value), self._store
        if self._direct and not self._touched and (prefix := store.prefix):
            store.write(prefix + self._sid + rest, raw)
            return
        if not self._touched:
            self._touch()
        known[key] = value if type(value) is self._plain else self._settle(value)
        self._changes[key] = raw

    def put_all(self, entries: dict[Any, Any]) -> None:
        for key, value in entries_of(entries):
            self.put(key, value)

    def remove(self, key: Any) -> None:
        key = self._check_key(key)
        store = self._store
        if self._direct and not self._touched and (prefix := store.prefix):
            store.write(prefix + self._sid + self._rest(key), None)
            return
        self._touch()
        self._known[key] = None
        self._changes[key] = None

    def clear(self) -> None:
        self._touch()
        self._cleared = self._whole = True
        self._known = {}
        self._changes = {}

    def items(self) -> list[tuple[Any, Any]]:
        self._load_whole()
        return [(k, v) for k, v in self._known.items() if v is not None]

    def keys(self) -> list[Any]:
        return [k for k, _ in self.items()]

    def values(self) -> list[Any]:
        return [v for _, v in self.items()]

    def entries(self) -> Iterator[tuple[Any, Any]]:
        if self._whole or self._scan_is_complete():
            return iter(self.items())
        at = len(self._store.prefix) + len(self._sid)
        return self._walk(self._pages(), at, dict(self._changes))

    def is_empty(self) -> bool:
        return next(self.entries(), None) is None

    __getitem__ = get
    __contains__ = contains
    __setitem__ = put
    __delitem__ = remove

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.entries())

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self._scans = None

    def flush_with(self, handle: Any) -> None:
        """Have `handle` flushed when the current key is done; it may put entries here then."""
        # Whoever is touched while the handles of a key are flushed is flushed after them.
        self._store.touched.append(handle)

    def flush(self) -> None:
        """Write what changed in the current key's map."""
        store, rests, encode = self._store, self._rests, self._encode_key
        prefix = store.prefix + self._sid
        if self._cleared:
            store.delete_range(prefix, prefix_end(prefix))
        for n, (key, raw) in enumerate(self._changes.items(), 1):
            store.write(prefix + (rests.get(key) or encode(key)), raw)
            if not n % _RELIEF:
                store.relieve()
        self._forget()

    def _forget(self) -> None:
        self._looked_up = 0
        self._touched = self._cleared = self._whole = False
        self._known = {}
        self._changes = {}

    def _touch(self) -> None:
        if not self._touched:
            self._store.touched.append(self)
            self._touched = True

    def _lookup(self, key: Any) -> Any:
        if type(key) is not self._plain_key:
            key = self._check_key(key)
        if self._direct and not self._touched and (prefix := self._store.prefix):
            rest = self._rests.get(key) or self._rest(key)
            raw = self._store.read(prefix + self._sid + rest)
            return None if raw is None else self._decode(raw)
        known = self._known
        return known[key] if key in known else self._find(key)

    def _find(self, key: Any) -> Any:
        """The value under a key of which nothing is known."""
        rest = self._rest(key)
        if self._whole:
            return None
        if not self._touched:
            self._touch()
        if self._store.looks_ahead and self._scan_is_complete():
            self._load_whole()
            return self._known.get(key)
        raw = self._fetch(rest)
        value = self._known[key] = None if raw is None else self._decode(raw)
        return value

    def _rest(self, key: Any) -> bytes:
        """What a key is behind the state's id. Raises `StateTypeError`."""
        rest = self._rests.get(key)
        if rest is None:
            rest = self._encode_key(self._check_key(key))
            # The keys of other keys' maps are much the same; where they are not, it begins anew.
            if len(self._rests) >= _RESTS:
                self._rests.clear()
            if len(rest) <= _REST_BYTES:
                self._rests[key] = rest
        return rest

    def _fetch(self, rest: bytes) -> bytes | None:
        """What is stored under a key."""
        self._looked_up += 1
        if self._looked_up > _KNOWN:
            self._looked_up = 0
            # A key that looks up very many entries must not hold all of them.
            self._known = {k: v for k, v in self._known.items() if k in self._changes}
        store = self._store
        return store.read(store.prefix + self._sid + rest)

    def _scan_is_complete(self) -> bool:
        self._touch()
        if self._scans is None:
            self._scans = scan_chunk(self._store, self._sid)
        scan = self._scans[self._store.index]
        return scan is not None and scan.complete

    def _pages(self) -> Iterator[list[Entry]]:
        """What is stored of the current key's map."""
        store = self._store
        self._touch()
        if self._scans is None:
            self._scans = scan_chunk(store, self._sid)
        return pages(store, store.prefix + self._sid, self._scans[store.index])

    def _load_whole(self) -> None:
        if self._whole:
            return
        changed = self._known
        at = len(self._store.prefix) + len(self._sid)
        decode_key, decode = self._keys.decode, self._decode
        self._known = {
            decode_key(place[at:])[0]: decode(raw) for page in self._pages() for place, raw in page
        }
        # What was written or looked up in this epoch wins over what is stored.
        self._known.update(changed)
        self._whole = True

    def _walk(
        self, stored: Iterator[list[Entry]], at: int, changes: dict[Any, bytes | None]
    ) -> Iterator[tuple[Any, Any]]:
        for page in stored:
            for place, raw in page:
                key = self._keys.decode(place[at:])[0]
                if key not in changes:
                    yield key, self._decode(raw)
        for key, change in changes.items():
            if change is not None:
                yield key, self._decode(change)


class ExpiringMapState(StoredMapState):
    """A map whose entries each have a time to live."""

    __slots__ = ("_expired", "_expiry", "_stamps")

    def __init__(
        self,
        store: "KeyedStateStore",
        sid: bytes,
        codec: "StateCodec",
        descriptor: "MapStateDescriptor",
        expiry: "Expiry",
    ) -> None:
        super().__init__(store, sid, codec, descriptor)
        self._direct = False
        self._expiry = expiry
        self._stamps: dict[Any, int] = {}
        self._expired: dict[Any, bytes] = {}

    def put(self, key: Any, value: Any) -> None:
        super().put(key, value)
        self._expired.pop(self._check_key(key), None)

    def remove(self, key: Any) -> None:
        super().remove(key)
        self._expired.pop(self._check_key(key), None)

    def clear(self) -> None:
        super().clear()
        self._expired = {}

    def items(self) -> list[tuple[Any, Any]]:
        self._load_whole()
        expired = [(key, self._decode(raw)) for key, raw in self._expired.items()]
        self._expired = {}
        living = super().items()
        for key, value in living:
            self._renew(key, value)
        return living + expired

    def entries(self) -> Iterator[tuple[Any, Any]]:
        return iter(self.items())

    def is_empty(self) -> bool:
        self._load_whole()
        return not self._expired and all(value is None for value in self._known.values())

    __setitem__ = put
    __delitem__ = remove

    def flush(self) -> None:
        """Write what changed, with stamps, and where the sweep looks."""
        store, expiry, prefix = self._store, self._expiry, self._store.prefix + self._sid
        if self._cleared:
            store.delete_range(prefix, prefix_end(prefix))
        for n, (key, raw) in enumerate(self._changes.items(), 1):
            cell, before = prefix + self._encode_key(key), self._stamps.get(key)
            if raw is None:
                store.write(cell, None)
                expiry.forget(cell, before)
            else:
                store.write(cell, expiry.stamp + raw)
                expiry.note(cell, before)
            if not n % _RELIEF:
                store.relieve()
        self._stamps, self._expired = {}, {}
        self._forget()

    def _lookup(self, key: Any) -> Any:
        key = self._check_key(key)
        if key not in self._known and not self._whole:
            self._touch()
            if self._scan_is_complete():
                self._load_whole()
            else:
                self._take(key, self._fetch(self._rest(key)))
        if (expired := self._expired.pop(key, None)) is not None:
            return self._decode(expired)
        value = self._known.get(key)
        if value is not None:
            self._renew(key, value)
        return value

    def _take(self, key: Any, raw: bytes | None) -> None:
        """Know what is stored under a key that was neither read nor written yet."""
        self._known[key] = None
        if raw is None:
            return
        stamp, payload = split_stamp(raw)
        self._stamps[key] = stamp
        if not self._expiry.expired(stamp):
            self._known[key] = self._decode(payload)
            return
        self._changes[key] = None
        if self._expiry.returns_expired:
            self._expired[key] = payload

    def _renew(self, key: Any, value: Any) -> None:
        if key not in self._changes and self._expiry.renews(self._stamps.get(key)):
            self._changes[key] = self._encode(value)

    def _load_whole(self) -> None:
        if self._whole:
            return
        at = len(self._store.prefix) + len(self._sid)
        for place, raw in (entry for page in self._pages() for entry in page):
            key = self._keys.decode(place[at:])[0]
            if key not in self._known:
                self._take(key, raw)
        self._whole = True
