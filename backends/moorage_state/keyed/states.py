"""The state handles a user function holds: ValueState, ListState, MapState.

A handle always speaks of the current key. Reading a state for the first time in a chunk fetches
it for all keys of the chunk that are still to come. What was written is read back as it will be
read in a later epoch, so that a function cannot tell where epochs were cut.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from moorage_state.codecs import checker, decoder, encoder, plain_type, settler
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed.access import Scan
from moorage_state.keys import KeyCodec, encode_time, prefix_end

if TYPE_CHECKING:
    from moorage_state.keyed.store import KeyedStateStore

__all__ = ["ListState", "MapState", "ValueState", "fetch_values"]

_SCAN_ENTRIES = 256
_SCAN_BYTES = 16 << 20
_PAGE = 4096
_ORDINAL_BYTES = 4


def fetch_values(store: "KeyedStateStore", sid: bytes) -> list[bytes | None]:
    """The stored values of one state for the keys of the chunk, from the current key on."""
    found = store.access.get_many([prefix + sid for prefix in store.prefixes[store.index :]])
    skipped: list[bytes | None] = [None] * store.index
    return skipped + found if skipped else found


class ValueState:
    """One value per key; None when there is none."""

    __slots__ = (
        "_as_given",
        "_decode",
        "_dirty",
        "_encode",
        "_loaded",
        "_plain",
        "_raws",
        "_settle",
        "_sid",
        "_store",
        "_value",
    )

    def __init__(
        self, store: "KeyedStateStore", sid: bytes, descriptor: ValueStateDescriptor
    ) -> None:
        self._store = store
        self._sid = sid
        self._encode = encoder(descriptor.type, descriptor.name)
        self._decode = decoder(descriptor.type)
        self._plain = plain_type(descriptor.type)
        self._settle = settler(descriptor.type, descriptor.name)
        self._raws: list[bytes | None] | None = None
        self._loaded = False
        self._dirty = False
        self._as_given = False
        self._value: Any = None

    def value(self) -> Any:
        """The current key's value, or None. Change it with `update`, not in place."""
        if self._loaded:
            if self._as_given:
                self._value = self._settle(self._value)
                self._as_given = False
            return self._value
        store = self._store
        store.touched.append(self)
        raws = self._raws
        if raws is None:
            raws = self._raws = fetch_values(store, self._sid)
        raw = raws[store.index]
        self._value = value = None if raw is None else self._decode(raw)
        self._loaded = True
        return value

    def update(self, value: Any) -> None:
        """Set the current key's value; None clears it.

        Raises:
            StateTypeError: when the value is not of the declared type (at the next `value`, or
                when the key is done).
        """
        if not self._loaded:
            self._store.touched.append(self)
            self._loaded = True
        self._value = value
        self._dirty = True
        self._as_given = value is not None and type(value) is not self._plain

    def clear(self) -> None:
        """Remove the current key's value."""
        self.update(None)

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self._raws = None

    def flush(self) -> None:
        """Write the current key's value if it changed."""
        self._loaded = self._as_given = False
        if self._dirty:
            self._dirty = False
            value, store = self._value, self._store
            raw = None if value is None else self._encode(value)
            store.write(store.prefix + self._sid, raw)


class ListState:
    """A list per key. Adding reads nothing; an empty list is the same as no list."""

    __slots__ = (
        "_added",
        "_cleared",
        "_decode",
        "_encode",
        "_items",
        "_scans",
        "_sid",
        "_store",
        "_touched",
    )

    def __init__(
        self, store: "KeyedStateStore", sid: bytes, descriptor: ListStateDescriptor
    ) -> None:
        self._store = store
        self._sid = sid
        self._encode = encoder(descriptor.type, descriptor.name)
        self._decode = decoder(descriptor.type)
        self._scans: list[Scan | None] | None = None
        self._touched = False
        self._cleared = False
        self._items: list[Any] | None = None
        self._added: list[bytes] = []

    def get(self) -> list[Any]:
        """A new list of the current key's elements, in the order they were added."""
        stored = [] if self._cleared else self._stored()
        return stored + [self._decode(raw) for raw in self._added]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def add(self, value: Any) -> None:
        """Append one element.

        Raises:
            StateTypeError: when it is not of the declared type; None is none.
        """
        self._touch()
        self._added.append(self._encode(value))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements: all of them, or none where one is not of the declared type."""
        encoded = [self._encode(value) for value in values]
        self._touch()
        self._added.extend(encoded)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty one clears it."""
        encoded = [self._encode(value) for value in values]
        self.clear()
        self._added = encoded

    def clear(self) -> None:
        """Remove the current key's list."""
        self._touch()
        self._cleared = True
        self._added = []

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self._scans = None

    def flush(self) -> None:
        """Write what was appended to the current key's list."""
        store = self._store
        prefix = store.prefix + self._sid
        if self._cleared:
            store.delete_range(prefix, prefix_end(prefix))
        for raw in self._added:
            ordinal = store.appended.to_bytes(_ORDINAL_BYTES, "big")
            store.appended += 1
            store.write(prefix + encode_time(store.epoch) + ordinal, raw)
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
            self._scans, entries = _entries(self._store, self._sid, self._scans)
            self._items = [self._decode(raw) for _, raw in entries]
        return self._items


class MapState:
    """A map per key, read whole where it is small and entry by entry where it is large.

    The order of entries is not part of the contract. A value is never None. Change a value with
    `put`, not in place.

    Raises (every method that takes a key): `StateTypeError` when it is not of the declared type.
    """

    __slots__ = (
        "_changes",
        "_check_key",
        "_cleared",
        "_decode",
        "_encode",
        "_keys",
        "_known",
        "_plain",
        "_scans",
        "_settle",
        "_sid",
        "_store",
        "_touched",
        "_whole",
    )

    def __init__(
        self, store: "KeyedStateStore", sid: bytes, descriptor: MapStateDescriptor
    ) -> None:
        self._store = store
        self._sid = sid
        self._keys = KeyCodec([descriptor.key_type])
        self._check_key = checker(descriptor.key_type, descriptor.name)
        self._encode = encoder(descriptor.type, descriptor.name)
        self._decode = decoder(descriptor.type)
        self._plain = plain_type(descriptor.type)
        self._settle = settler(descriptor.type, descriptor.name)
        self._scans: list[Scan | None] | None = None
        self._touched = False
        self._cleared = False
        self._whole = False
        self._known: dict[Any, Any] = {}
        self._changes: dict[Any, bytes | None] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under `key`, or `default`."""
        value = self._lookup(key)
        return default if value is None else value

    def contains(self, key: Any) -> bool:
        """Whether there is a value under `key`."""
        return self._lookup(key) is not None

    def put(self, key: Any, value: Any) -> None:
        """Set the value under `key`.

        Raises:
            StateTypeError: when the value is not of the declared type; None is none.
        """
        key = self._check_key(key)
        raw = self._encode(value)
        self._touch()
        self._known[key] = value if type(value) is self._plain else self._settle(value)
        self._changes[key] = raw

    def put_all(self, entries: dict[Any, Any]) -> None:
        """Set several values."""
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove the value under `key`, if there is one."""
        key = self._check_key(key)
        self._touch()
        self._known[key] = None
        self._changes[key] = None

    def clear(self) -> None:
        """Remove the current key's map."""
        self._touch()
        self._cleared = self._whole = True
        self._known = {}
        self._changes = {}

    def items(self) -> list[tuple[Any, Any]]:
        """All entries, as they are at this moment."""
        self._load_whole()
        return [(k, v) for k, v in self._known.items() if v is not None]

    def keys(self) -> list[Any]:
        """All keys, as they are at this moment."""
        return [k for k, _ in self.items()]

    def values(self) -> list[Any]:
        """All values, as they are at this moment."""
        return [v for _, v in self.items()]

    def is_empty(self) -> bool:
        """Whether the map has no entry."""
        return not self.items()

    __getitem__ = get
    __contains__ = contains
    __setitem__ = put
    __delitem__ = remove

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self._scans = None

    def flush(self) -> None:
        """Write what changed in the current key's map."""
        prefix = self._store.prefix + self._sid
        if self._cleared:
            self._store.delete_range(prefix, prefix_end(prefix))
        for key, raw in self._changes.items():
            self._store.write(prefix + self._keys.encode((key,)), raw)
        self._touched = self._cleared = self._whole = False
        self._known = {}
        self._changes = {}

    def _touch(self) -> None:
        if not self._touched:
            self._store.touched.append(self)
            self._touched = True

    def _lookup(self, key: Any) -> Any:
        key = self._check_key(key)
        if key in self._known:
            return self._known[key]
        if self._whole:
            return None
        self._touch()
        scan = self._scan()
        if scan is not None and scan.complete:
            self._load_whole()
            return self._known.get(key)
        stored = self._store.prefix + self._sid + self._keys.encode((key,))
        raw = self._store.access.get_many([stored])[0]
        value = None if raw is None else self._decode(raw)
        self._known[key] = value
        return value

    def _scan(self) -> Scan | None:
        if self._scans is None:
            self._scans = _scan_chunk(self._store, self._sid)
        return self._scans[self._store.index]

    def _load_whole(self) -> None:
        if self._whole:
            return
        self._touch()
        self._scans, entries = _entries(self._store, self._sid, self._scans)
        at = len(self._store.prefix) + len(self._sid)
        changed = self._known
        self._known = {self._keys.decode(k[at:])[0]: self._decode(raw) for k, raw in entries}
        self._known.update(changed)
        self._whole = True


def _scan_chunk(store: "KeyedStateStore", sid: bytes) -> list[Scan | None]:
    """One bounded scan per key of the chunk, from the current key on."""
    prefixes = [prefix + sid for prefix in store.prefixes[store.index :]]
    skipped: list[Scan | None] = [None] * store.index
    return skipped + list(store.access.scan_many(prefixes, _SCAN_ENTRIES, _SCAN_BYTES))


def _entries(
    store: "KeyedStateStore", sid: bytes, scans: list[Scan | None] | None
) -> tuple[list[Scan | None], list[tuple[bytes, bytes]]]:
    """All stored entries of the current key, paging on where the chunk's scan was cut off."""
    if scans is None:
        scans = _scan_chunk(store, sid)
    scan = scans[store.index] or Scan([], [], complete=False)
    prefix = store.prefix + sid
    entries = list(zip(scan.keys, scan.values, strict=True))
    while not scan.complete:
        after = entries[-1][0] if entries else b""
        scan = store.access.scan_from(prefix, after, _PAGE)
        entries.extend(zip(scan.keys, scan.values, strict=True))
    return scans, entries
