"""Removing state that has expired and that nobody reads any more, a bounded part in every epoch.

Decides nothing but what the stamps say: the index only tells where to look. An entry of the index
that is stale goes, or moves to when what it points at is over. What the index does not have yet is
brought into it, see `indexing`. Called by the store before an epoch's first key, so that what the
epoch itself writes comes after these deletions.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from moorage_state.keyed.access import Scan
from moorage_state.keyed.expiry import NEVER, due_time, has_expired, split_stamp
from moorage_state.keyed.indexing import go_on, is_mark, swept_as
from moorage_state.keyed.scanning import pages
from moorage_state.keylayout import EXPIRIES, expiry_entry, expiry_parts

if TYPE_CHECKING:
    from moorage_state.keyed.store import KeyedStateStore, StateSchema

__all__ = ["sweep"]

_PAGE = 4096
_NOTHING_YET = Scan([], [], complete=False)


def sweep(store: "KeyedStateStore", states: Mapping[bytes, "StateSchema"], limit: int) -> int:
    """Remove at most about `limit` values, elements and entries; returns how many were looked at.

    As many again are looked at while there are marks.

    Args:
        states: by stored id, the states whose values are stamped.
    """
    seen, after = 0, b""
    marks: list[bytes] = []
    while seen < limit:
        asked = min(_PAGE, limit - seen)
        found = store.access.due_timers(store.now_ms, asked, after, EXPIRIES)
        marks += filter(is_mark, found)
        entries = [entry for entry in found if not is_mark(entry)] if marks else found
        seen += _sweep_page(store, states, entries, limit - seen)
        store.relieve()
        if len(found) < asked:
            break
        after = found[-1]
    return seen + go_on(store, states, marks, limit)


def _sweep_page(
    store: "KeyedStateStore",
    states: Mapping[bytes, "StateSchema"],
    entries: list[bytes],
    limit: int,
) -> int:
    cells: list[tuple[bytes, bytes, int]] = []
    seen = len(entries)
    for entry in entries:
        _, cell = expiry_parts(entry)
        schema = swept_as(states, cell)
        if schema is None:
            store.write(entry, None)
            continue
        kind, ttl_ms = schema
        if kind == "list":
            seen += _sweep_list(store, entry, cell, ttl_ms, max(1, limit - seen))
        else:
            cells.append((cell, entry, ttl_ms))
    _sweep_cells(store, cells)
    return seen


def _sweep_cells(store: "KeyedStateStore", cells: Iterable[tuple[bytes, bytes, int]]) -> None:
    """Values and map entries."""
    ordered = sorted(cells)
    if not ordered:
        return
    found = store.access.get_many([cell for cell, _, _ in ordered])
    for (cell, entry, ttl_ms), raw in zip(ordered, found, strict=True):
        store.write(entry, None)
        if raw is None:
            continue
        stamp, _ = split_stamp(raw)
        if has_expired(stamp, ttl_ms, store.now_ms):
            store.write(cell, None)
        elif stamp != NEVER:
            store.write(expiry_entry(cell, due_time(stamp, ttl_ms)), b"")


def _sweep_list(
    store: "KeyedStateStore", entry: bytes, prefix: bytes, ttl_ms: int, limit: int
) -> int:
    """The elements at the front of a list; later ones were written later and expire later."""
    seen = 0
    for page in pages(store, prefix, _NOTHING_YET):
        for place, raw in page:
            stamp, _ = split_stamp(raw)
            if has_expired(stamp, ttl_ms, store.now_ms):
                store.write(place, None)
                seen += 1
            elif stamp != NEVER:
                store.write(entry, None)
                store.write(expiry_entry(prefix, due_time(stamp, ttl_ms)), b"")
                return seen
        if seen >= limit:
            return seen
    store.write(entry, None)
    return seen
