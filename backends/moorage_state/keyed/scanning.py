"""Reading state for a chunk of keys: values in few requests, entries in bounded pages.

Decides how much of a key's list or map comes with the chunk and how the rest of a long one is
read. Called by the state handles; everything here reads the version that the epoch began with.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from moorage_state.database import Scan

if TYPE_CHECKING:
    from moorage_state.keyed.state_store import KeyedStateStore

Entry = tuple[bytes, bytes]
"""A stored key and its value."""

_SCAN_ENTRIES = 256
_SCAN_BYTES = 16 << 20
_PAGE = 4096
_ID_BYTES = 4

_FIRST_VALUES = 1024
_VALUE_BYTES = 16 << 20


class Values(Protocol):
    """Stored values of one state by position in the chunk."""

    def __getitem__(self, index: int, /) -> bytes | None: ...


def fetch_values(store: "KeyedStateStore", sid: bytes) -> Values:
    """The stored values of one state for the keys of the chunk, from the current key on.

    The first ones show how large they are. The others come with one more request, if all may have
    16 MiB or less, or else in turns of about so many bytes when they are asked for.
    """
    cells = [prefix + sid for prefix in _ahead(store, sid)]
    found = store.access.get_many(cells[:_FIRST_VALUES])
    if len(cells) > len(found):
        if _size(found) * len(cells) > _VALUE_BYTES * len(found):
            return _InTurns(store, sid, found)
        found += store.access.get_many(cells[_FIRST_VALUES:])
    skipped: list[bytes | None] = [None] * store.index
    return skipped + found if skipped else found


class _InTurns:
    """Values of a chunk of which some are held at a time; asked for in order."""

    def __init__(self, store: "KeyedStateStore", sid: bytes, found: list[bytes | None]) -> None:
        self._store = store
        self._sid = sid
        self._first = store.index
        self._found = found

    def __getitem__(self, index: int) -> bytes | None:
        if not 0 <= index - self._first < len(self._found):
            self._fetch(index)
        return self._found[index - self._first]

    def _fetch(self, index: int) -> None:
        """The next values from one on: so many as fit if they are as large as those before."""
        before = len(self._found)
        fitting = _VALUE_BYTES * before // (1 + _size(self._found))
        count = max(1, min(2 * before, fitting))
        # Not both at once.
        self._first, self._found = index, []
        prefixes = self._store.prefixes[index : index + count]
        self._found = self._store.access.get_many([prefix + self._sid for prefix in prefixes])


def _size(values: list[bytes | None]) -> int:
    return sum(map(len, filter(None, values)))


def scan_chunk(store: "KeyedStateStore", sid: bytes) -> list[Scan | None]:
    """One bounded scan per key of the chunk, from the current key on."""
    prefixes = [prefix + sid for prefix in _ahead(store, sid)]
    skipped: list[Scan | None] = [None] * store.index
    return skipped + list(store.access.scan_many(prefixes, _SCAN_ENTRIES, _SCAN_BYTES))


def _ahead(store: "KeyedStateStore", sid: bytes) -> list[bytes]:
    at = store.index
    # In a namespace only that of the current key: which others have it is not known.
    return store.prefixes[at : at + 1] if len(sid) > _ID_BYTES else store.prefixes[at:]


def pages(store: "KeyedStateStore", prefix: bytes, first: Scan | None) -> Iterator[list[Entry]]:
    """All entries under `prefix`, in order, going on where the chunk's scan was cut off."""
    scan = first or Scan([], [], complete=False)
    after = b""
    while True:
        if scan.keys:
            after = scan.keys[-1]
            # One page is held at a time: a list may be larger than memory.
            yield list(zip(scan.keys, scan.values, strict=True))
        if scan.complete:
            return
        scan = store.access.scan_from(prefix, after, _PAGE)
