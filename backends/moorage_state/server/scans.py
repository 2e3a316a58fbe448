"""Scans of a range: entries under prefixes, and timers that are due. Reads only."""

from moorage_state.database import RangeCursor, RangeView, Scan
from moorage_state.keylayout import METADATA, encode_time, prefix_end, timer_parts
from moorage_state.server.operations import RangeSpec

_KIND_AT = 2

_PAGE_BYTES = 8 << 20
"""At which a page ends, however few entries it has then: values may have any size."""


def scan_many(
    database: RangeView, prefixes: list[bytes], limit_entries: int, limit_bytes: int
) -> list[Scan]:
    """Entries under each prefix of one consistent view; see `StateApi.scan_many`."""
    scans: list[Scan] = []
    left = limit_bytes
    with database.cursor(b"", METADATA) as cursor:
        for prefix in prefixes:
            if left <= 0:
                scans.append(Scan([], [], complete=False))
                continue
            cursor.seek(prefix)
            scan = Scan(*cursor.take(prefix_end(prefix), limit_entries, left))
            left -= sum(map(len, scan.keys)) + sum(map(len, scan.values))
            scans.append(scan)
    return scans


def scan_from(database: RangeView, prefix: bytes, after: bytes, limit: int) -> Scan:
    """At most `limit` entries under `prefix` beyond the key `after`; see `StateApi.scan_from`."""
    with database.cursor(b"", METADATA) as cursor:
        cursor.seek(max(prefix, after + b"\0") if after else prefix)
        return Scan(*cursor.take(prefix_end(prefix), limit, _PAGE_BYTES))


def due_timers(
    database: RangeView, spec: RangeSpec, kind: int, up_to_ms: int, limit: int, after: bytes
) -> list[bytes]:
    """Stored keys of due timers over all key groups of the range; see `StateApi.due_timers`."""
    due: list[bytes] = []
    upper = (spec.end + 1).to_bytes(2, "big")
    lower = _group_start(spec.start, kind)
    with database.cursor(lower, upper) as cursor:
        key = cursor.seek(after + b"\0" if after else lower)
        while key is not None and len(due) < limit:
            group, found = int.from_bytes(key[:_KIND_AT], "big"), key[_KIND_AT : _KIND_AT + 1]
            if found == bytes([kind]):
                end = _first_not_due(group, kind, up_to_ms)
                due += cursor.take_keys(end, limit - len(due))
                key = _skip(cursor, group + 1, kind, spec)
            elif found < bytes([kind]):
                key = cursor.seek(_group_start(group, kind))
            else:
                key = _skip(cursor, group + 1, kind, spec)
    return due


def next_timer(database: RangeView, spec: RangeSpec, kind: int, after_ms: int) -> int | None:
    """The earliest time of a timer later than `after_ms`; see `StateApi.next_timer`."""
    found: int | None = None
    upper = (spec.end + 1).to_bytes(2, "big")
    with database.cursor(_group_start(spec.start, kind), upper) as cursor:
        group = spec.start
        while group <= spec.end:
            key = cursor.seek(_first_not_due(group, kind, after_ms))
            if key is None:
                break
            at = int.from_bytes(key[:_KIND_AT], "big")
            if at == group and key[_KIND_AT] == kind:
                time_ms = timer_parts(key)[1]
                found = time_ms if found is None else min(found, time_ms)
            # Groups without any entry are passed over at once.
            group = max(group + 1, at)
    return found


def _skip(cursor: RangeCursor, group: int, kind: int, spec: RangeSpec) -> bytes | None:
    return cursor.seek(_group_start(group, kind)) if group <= spec.end else None


def _group_start(group: int, kind: int) -> bytes:
    return group.to_bytes(2, "big") + bytes([kind])


def _first_not_due(group: int, kind: int, up_to_ms: int) -> bytes:
    """The least key of this group and kind with a time beyond `up_to_ms`."""
    if up_to_ms >= (1 << 63) - 1:
        return _group_start(group, kind + 1)
    return _group_start(group, kind) + encode_time(max(up_to_ms + 1, -(1 << 63)))
