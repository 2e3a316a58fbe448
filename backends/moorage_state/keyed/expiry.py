"""Time to live of one state: stamps, what has expired, and the index that a sweep follows.

Decides when a stamped value, list element or map entry is over, and where the index by time has it.
Layouts::

    c1 00 | when it was last used, in milliseconds (8) | value     a stamped value

    key group (2) | 0x04 | time (8) | what follows 0x01 in the stored key     the index

No value begins with `c1 00` by itself, so one that was written before its state had a time to live,
or after, tells that it has no stamp. The index has a value or a map entry by its stored key, and a
list by its prefix; an entry may be stale, for the stamps decide. Entries at the time `NEVER` are
marks: up to where state that was not in the index has been brought into it, a bounded part in every
epoch (`mark_all`). What has expired and is read by nobody is removed in the same way (`sweep`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from moorage_state.database import Scan
from moorage_state.descriptors import StateKind
from moorage_state.keyed.scanning import pages
from moorage_state.keyed.schema import StateSchema
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import (
    EXPIRIES,
    KEYED_STATE,
    decode_time,
    encode_time,
    expiry_entry,
    expiry_parts,
    prefix_of,
)

if TYPE_CHECKING:
    from moorage_state.keyed.schema import StateSchema
    from moorage_state.keyed.state_store import KeyedStateStore
    from moorage_state.timetolive import StateTtlConfig


NEVER = -(1 << 63)
"""When a value without a stamp was last used: its time begins when it is read."""

_MARK = b"\xc1\x00"
_STAMP_BYTES = len(_MARK) + 8

_SPANS = 16

_INDEX_PAGE = 512
_PAGES = 256
_NEVER = encode_time(NEVER)
_CELL_AT = 11
_ID_BYTES = 4
_POSITION_BYTES = 12
_SWEEP_PAGE = 4096
_NOTHING_YET = Scan([], [], complete=False)


def stamp_bytes(stamp_ms: int) -> bytes:
    """What stands before a value that was last used at this time; nothing for `NEVER`."""
    return _MARK + encode_time(stamp_ms) if stamp_ms != NEVER else b""


def split_stamp(raw: bytes) -> tuple[int, bytes]:
    """When a stored value was last used, and the value."""
    if raw.startswith(_MARK):
        return decode_time(raw[len(_MARK) : _STAMP_BYTES]), raw[_STAMP_BYTES:]
    return NEVER, raw


def due_time(stamp_ms: int, ttl_ms: int) -> int:
    """When the index says that what was last used at `stamp_ms` is over: never too early."""
    # Rounded up to a sixteenth of the time to live: what is written in every epoch has at most
    # seventeen entries in the index and mostly keeps the one it has.
    grain = max(1, ttl_ms // _SPANS)
    return -(-(stamp_ms + ttl_ms) // grain) * grain


def has_expired(stamp_ms: int, ttl_ms: int, now_ms: int) -> bool:
    """Whether the time of what was last used at `stamp_ms` is over; `ttl_ms` of 0 is no limit."""
    return ttl_ms > 0 and stamp_ms != NEVER and stamp_ms + ttl_ms <= now_ms


class Expiry:
    """The time to live of one state in one epoch.

    Attributes:
        now_ms: when that is; `NEVER` where the state has no time to live any more (`ttl_ms` is 0).
        stamp: what is put before values that are written in this epoch.
        returns_expired: whether what is over may be read until it is cleaned up.
    """

    __slots__ = (
        "_indexed",
        "_store",
        "_updates_on_read",
        "now_ms",
        "returns_expired",
        "stamp",
        "ttl_ms",
    )

    def __init__(self, store: "KeyedStateStore", config: "StateTtlConfig | None") -> None:
        self._store = store
        self.ttl_ms = config.ttl_ms if config is not None else 0
        self.now_ms = store.now_ms if config is not None else NEVER
        self._indexed = config is not None and config.cleanup_in_background
        self.stamp = stamp_bytes(self.now_ms)
        self._updates_on_read = config is not None and config.updates_on_read
        self.returns_expired = config is not None and config.returns_expired

    def expired(self, stamp_ms: int) -> bool:
        """Whether what bears this stamp is over."""
        return has_expired(stamp_ms, self.ttl_ms, self.now_ms)

    def renews(self, stamp_ms: int | None) -> bool:
        """Whether reading what bears this stamp gives it another."""
        if stamp_ms is None or stamp_ms == self.now_ms:
            return False
        return self._updates_on_read or (stamp_ms == NEVER and self.ttl_ms > 0)

    def note(self, cell: bytes, before: int | None, stamp_ms: int | None = None) -> None:
        """Have the sweep look at `cell` (a stored key, or the prefix of a list), which is written.

        `before` is the stamp that it bore, if that is known; `stamp_ms` the one it bears now, None
        for that of this epoch.
        """
        if not self._indexed:
            return
        due = due_time(self.now_ms if stamp_ms is None else stamp_ms, self.ttl_ms)
        if before is not None and before != NEVER:
            was = due_time(before, self.ttl_ms)
            if was == due:
                return
            self._store.write(expiry_entry(cell, was), None)
        self._store.write(expiry_entry(cell, due), b"")

    def forget(self, cell: bytes, before: int | None) -> None:
        """Spare the sweep a look at `cell`, which is removed; `before` as for `note`."""
        if self._indexed and before is not None and before != NEVER:
            self._store.write(expiry_entry(cell, due_time(before, self.ttl_ms)), None)


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
            page = _page(store, after, min(_INDEX_PAGE, limit - seen))
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
    at = len(prefix_of(cell))
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


def sweep(store: "KeyedStateStore", states: Mapping[bytes, "StateSchema"], limit: int) -> int:
    """Remove at most about `limit` values, elements and entries; returns how many were looked at.

    As many again are looked at while there are marks. `states` are those with stamps, by stored id.
    """
    seen, after = 0, b""
    marks: list[bytes] = []
    while seen < limit:
        asked = min(_SWEEP_PAGE, limit - seen)
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
    """The elements at the front of a list: later ones were written later and expire later."""
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
