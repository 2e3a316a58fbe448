"""Reading state for a chunk of keys: values in one request, entries in bounded pages.

Decides how much of a key's list or map comes with the chunk and how the rest of a long one is
read. Called by the state handles; everything here reads the version that the epoch began with.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from moorage_state.keyed.access import Scan

if TYPE_CHECKING:
    from moorage_state.keyed.store import KeyedStateStore

__all__ = ["Entry", "fetch_values", "pages", "scan_chunk"]

Entry = tuple[bytes, bytes]
"""A stored key and its value."""

_SCAN_ENTRIES = 256
_SCAN_BYTES = 16 << 20
_PAGE = 4096
_ID_BYTES = 4


def fetch_values(store: "KeyedStateStore", sid: bytes) -> list[bytes | None]:
    """The stored values of one state for the keys of the chunk, from the current key on.

    In a namespace only that of the current key: which others have it is not known.
    """
    found = store.access.get_many([prefix + sid for prefix in _ahead(store, sid)])
    skipped: list[bytes | None] = [None] * store.index
    return skipped + found if skipped else found


def scan_chunk(store: "KeyedStateStore", sid: bytes) -> list[Scan | None]:
    """One bounded scan per key of the chunk, from the current key on."""
    prefixes = [prefix + sid for prefix in _ahead(store, sid)]
    skipped: list[Scan | None] = [None] * store.index
    return skipped + list(store.access.scan_many(prefixes, _SCAN_ENTRIES, _SCAN_BYTES))


def _ahead(store: "KeyedStateStore", sid: bytes) -> list[bytes]:
    at = store.index
    return store.prefixes[at : at + 1] if len(sid) > _ID_BYTES else store.prefixes[at:]


def pages(store: "KeyedStateStore", prefix: bytes, first: Scan | None) -> Iterator[list[Entry]]:
    """All entries under `prefix`, in order, going on where the chunk's scan was cut off.

    One page is held at a time.
    """
    scan = first or Scan([], [], complete=False)
    after = b""
    while True:
        if scan.keys:
            after = scan.keys[-1]
            yield list(zip(scan.keys, scan.values, strict=True))
        if scan.complete:
            return
        scan = store.access.scan_from(prefix, after, _PAGE)
