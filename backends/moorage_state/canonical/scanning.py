"""From a database to rows: one pass over key groups, in the order of stored keys.

Decides that a batch of rows never spans two key groups, that memory stays bounded however large a
key group is, and that nothing in the database is passed over in silence: an entry of a state that
nobody declared is damage. Called by export and by readers of native snapshots.
"""

import struct
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from moorage_state.canonical.rows import RowBuffer, stored_id
from moorage_state.canonical.sides import SIDE_ENTRIES, side_parts, side_place
from moorage_state.canonicalspec import SIDE_KINDS, TIMERS, FileMeta
from moorage_state.database import RangeCursor, RangeView
from moorage_state.errors import CorruptState
from moorage_state.keylayout import EVENT_TIMERS, EXPIRIES, KEYED_STATE, PROCESSING_TIMERS

__all__ = ["SCAN_BYTES", "scan_rows"]

SCAN_BYTES = 32 << 20
"""What is held of a key group, at most, before a batch is given out."""

_HEAD = struct.Struct(">HBI")
_ID_BYTES = 4
_PAGE_ENTRIES = 10_000
_PAGE_BYTES = 8 << 20
_ADVICE = "restore an older checkpoint, or a savepoint"


def scan_rows(
    database: RangeView,
    metas: Sequence[FileMeta],
    ranges: Sequence[tuple[int, int]],
    *,
    states: Collection[str] | None = None,
    keys: Collection[bytes] | None = None,
    budget: int = SCAN_BYTES,
) -> Iterator[tuple[FileMeta, pa.RecordBatch]]:
    """Rows of each state, by key group; within one in the order of stored keys.

    A batch holds rows of one key group. A key group gives one batch of each state that has data in
    it, and more where all that is held would take more than `budget` bytes.

    Args:
        metas: all states of the operator, the timers included.
        ranges: the key groups to scan, as (first, last), in order.
        states: the states to give; None for all.
        keys: the canonical bytes of the keys to give; None for all.

    Raises:
        CorruptState: the database holds what the operator did not declare, or is damaged.
        LocalDiskError: the volume cannot be read.
    """
    scan = _Scan(database, metas, states, keys, budget)
    for first, last in ranges:
        for meta, batch in scan.run(first, last):
            if batch.num_rows:
                yield meta, batch


class _Scan:
    def __init__(
        self,
        database: RangeView,
        metas: Sequence[FileMeta],
        states: Collection[str] | None,
        keys: Collection[bytes] | None,
        budget: int,
    ) -> None:
        self._path = str(database.path)
        self._database = database
        self._keys = keys
        self._budget = budget
        self._buffers: dict[bytes, RowBuffer | None] = {}
        self._sides: dict[bytes, RowBuffer | None] = {}
        for meta in metas:
            buffer = RowBuffer(meta) if states is None or meta.state in states else None
            if meta.kind in SIDE_KINDS:
                self._sides[side_place(meta, stored_id(meta))] = buffer
            else:
                self._buffers[stored_id(meta)] = buffer
        everything = (*self._buffers.values(), *self._sides.values())
        self._wanted = [buffer for buffer in everything if buffer is not None]
        self._expires = any(meta.ttl_ms is not None for meta in metas)
        self._packs_timers = any(meta.state == TIMERS for meta in metas)

    def run(self, first: int, last: int) -> Iterator[tuple[FileMeta, pa.RecordBatch]]:
        lower, upper = _start(first), _start(last + 1)
        with self._database.cursor(lower, upper) as cursor:
            found = cursor.seek(lower)
            while found is not None:
                group, kind = int.from_bytes(found[:2], "big"), found[2:3]
                if kind == bytes([KEYED_STATE]) or (kind[0] in SIDE_ENTRIES and self._sides):
                    yield from self._group(cursor, group, kind[0])
                    found = cursor.key()
                elif kind[0] in {EVENT_TIMERS, PROCESSING_TIMERS} and self._packs_timers:
                    # The indexes by time say what the packed timers say.
                    found = cursor.seek(_start(group) + bytes([kind[0] + 1]))
                elif kind[0] == EXPIRIES and self._expires:
                    # This index says what the stamps say.
                    found = cursor.seek(_start(group) + bytes([EXPIRIES + 1]))
                else:
                    raise self._corrupt(f"an entry of unknown kind {kind.hex()}", group)

    def _group(
        self, cursor: RangeCursor, group: int, kind: int
    ) -> Iterator[tuple[FileMeta, pa.RecordBatch]]:
        end = _start(group) + bytes([kind + 1])
        collect = self._collect if kind == KEYED_STATE else self._collect_sides
        complete = False
        while not complete:
            keys, values, complete = cursor.take(end, _PAGE_ENTRIES, _PAGE_BYTES)
            collect(group, keys, values)
            while sum(buffer.bytes for buffer in self._wanted) > self._budget:
                yield self._taken(max(self._wanted, key=lambda b: b.bytes), group)
        for buffer in self._wanted:
            if buffer:
                yield self._taken(buffer, group)

    def _collect(self, group: int, keys: list[bytes], values: list[bytes]) -> None:
        buffers, only = self._buffers, self._keys
        try:
            for entry, value in zip(keys, values, strict=True):
                at = _HEAD.size + _HEAD.unpack_from(entry)[2]
                key = entry[_HEAD.size : at]
                buffer = buffers[entry[at : at + _ID_BYTES]]
                if buffer is not None and (only is None or key in only):
                    buffer.add(key, entry[at + _ID_BYTES :], value)
        except KeyError as error:
            raise self._corrupt("an entry of a state that was not declared", group) from error
        except struct.error as error:
            raise self._corrupt(f"an entry with a torn key ({error})", group) from error

    def _collect_sides(self, group: int, keys: list[bytes], values: list[bytes]) -> None:
        try:
            for entry, value in zip(keys, values, strict=True):
                place, rest = side_parts(entry)
                buffer = self._sides[place]
                if buffer is not None:
                    buffer.add(b"", rest, value)
        except KeyError as error:
            raise self._corrupt("an entry of an operator state not declared", group) from error

    def _taken(self, buffer: RowBuffer, group: int) -> tuple[FileMeta, pa.RecordBatch]:
        try:
            return buffer.meta, buffer.take(group)
        except ValueError as error:
            what = f"a value that is not of its state's type ({error})"
            raise self._corrupt(f"{what}: state={buffer.meta.state}", group) from error

    def _corrupt(self, what: str, group: int) -> CorruptState:
        return CorruptState(f"database holds {what}: key_group={group}", self._path, _ADVICE)


def _start(group: int) -> bytes:
    """The least key of a key group."""
    return group.to_bytes(2, "big")
