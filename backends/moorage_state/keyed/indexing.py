"""Bringing state into the index that the sweep follows, where it was written without being noted.

Decides how far an epoch gets. State is not in the index, or stands there too late, that was written
while it had no time to live, a longer one, or none that is swept. A mark for each key group says
up to which stored key all is in the index: it is an entry of the index at the time `NEVER`, so that
it is due at once and goes wherever its key group goes. What lies beyond it is read page by page:
what has expired goes, what never had a time begins it, and the rest is noted. Called by the sweep.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from moorage_state.descriptors import StateKind
from moorage_state.keyed.access import Scan
from moorage_state.keyed.expiry import NEVER, due_time, has_expired, split_stamp, stamp_bytes
from moorage_state.keyed.schema import StateSchema
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import KEYED_STATE, encode_time, expiry_entry, expiry_parts

if TYPE_CHECKING:
    from moorage_state.keyed.store import KeyedStateStore

__all__ = ["go_on", "is_mark", "lacks_entries", "mark_all", "swept_as"]

_PAGE = 512
_PAGES = 256
_NEVER = encode_time(NEVER)
_CELL_AT = 11
_KEY_AT = 7
_ID_BYTES = 4
_POSITION_BYTES = 12


def is_mark(entry: bytes) -> bool:
    """Whether an entry of the index is a mark."""
    return entry[3:_CELL_AT] == _NEVER


def lacks_entries(schema: StateSchema) -> bool:
    """Whether state is stored that the index does not have, or has too late."""
    if schema.indexed_ms is None or not schema.ttl_ms:
        return False
    return schema.indexed_ms == 0 or schema.indexed_ms > schema.ttl_ms


def mark_all(
    store: "KeyedStateStore", groups: KeyGroupRange, known: Mapping[str, StateSchema]
) -> dict[str, StateSchema]:
    """Have later epochs go through everything that is stored; returns what is to be recorded."""
    for group in range(groups.start, groups.end + 1):
        store.write(expiry_entry(_beginning(group), NEVER), b"")
    return {
        name: msgspec.structs.replace(schema, indexed_ms=schema.ttl_ms)
        for name, schema in known.items()
        if lacks_entries(schema)
    }


def go_on(
    store: "KeyedStateStore",
    states: Mapping[bytes, StateSchema],
    marks: Sequence[bytes],
    limit: int,
) -> int:
    """Go on where `marks` stand, for about `limit` entries; returns how many were looked at."""
    seen = pages = 0
    for mark in marks:
        _, after = expiry_parts(mark)
        store.write(mark, None)
        complete = False
        while not complete and seen < limit and pages < _PAGES:
            page = _page(store, after, min(_PAGE, limit - seen))
            _note(store, states, page)
            seen, pages = seen + len(page.keys), pages + 1
            after, complete = page.keys[-1] if page.keys else after, page.complete
            store.relieve()
        if not complete:
            store.write(expiry_entry(after, NEVER), b"")
        if seen >= limit or pages >= _PAGES:
            break
    if seen:
        # What a key deletes by a range must not come before what was written of it here.
        store.settle()
    return seen


def swept_as(states: Mapping[bytes, StateSchema], cell: bytes) -> tuple[StateKind, int] | None:
    """Kind and time to live of the state of a stored key; None where it is not swept."""
    at = _KEY_AT + int.from_bytes(cell[3:_KEY_AT], "big")
    schema = states.get(cell[at : at + _ID_BYTES])
    if schema is None or not schema.ttl_ms or schema.indexed_ms is None:
        return None
    return schema.kind, schema.ttl_ms


def _beginning(group: int) -> bytes:
    return group.to_bytes(2, "big") + bytes([KEYED_STATE])


def _page(store: "KeyedStateStore", after: bytes, limit: int) -> Scan:
    beginning = after[:3]
    return store.access.scan_from(beginning, after if after != beginning else b"", limit)


def _note(store: "KeyedStateStore", states: Mapping[bytes, StateSchema], page: Scan) -> None:
    """Bring the entries of a page into the index."""
    now_ms = store.now_ms
    noted: dict[bytes, None] = {}
    for cell, raw in zip(page.keys, page.values, strict=True):
        found = swept_as(states, cell)
        if found is None:
            continue
        kind, ttl_ms = found
        stamp_ms, payload = split_stamp(raw)
        if has_expired(stamp_ms, ttl_ms, now_ms):
            store.write(cell, None)
            continue
        if stamp_ms == NEVER:
            stamp_ms = now_ms
            store.write(cell, stamp_bytes(now_ms) + payload)
        place = cell[:-_POSITION_BYTES] if kind == "list" else cell
        noted[expiry_entry(place, due_time(stamp_ms, ttl_ms))] = None
    for entry in noted:
        store.write(entry, b"")
