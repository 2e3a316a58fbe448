"""From a database to rows: one pass over key groups, in the order of stored keys.

Decides that a batch of rows never spans two key groups, that memory stays bounded however large a
key group is, and that nothing in the database is passed over in silence: an entry of a state that
nobody declared is damage. Called by export and by readers of native snapshots.
"""

import struct
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from moorage_state.canonical.layout import TIMERS, FileMeta
from moorage_state.canonical.rows import RowBuffer, stored_id
from moorage_state.errors import CorruptState
from moorage_state.keys import EVENT_TIMERS, KEYED_STATE
from moorage_state.rocks import Cursor, Database

__all__ = ["SCAN_BYTES", "scan_rows"]

SCAN_BYTES = 32 << 20
"""What is held of a key group, at most, before a batch is given out."""

_HEAD = struct.Struct(">HBI")
_ID_BYTES = 4
_PAGE_ENTRIES = 10_000
_PAGE_BYTES = 8 << 20
_ADVICE = "restore an older checkpoint, or a savepoint"


def scan_rows(
    database: Database,
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
        yield from scan.run(first, last)


class _Scan:
    def __init__(
        self,
        database: Database,
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
        for meta in metas:
            wanted = states is None or meta.state in states
            self._buffers[stored_id(meta)] = RowBuffer(meta) if wanted else None
        self._wanted = [buffer for buffer in self._buffers.values() if buffer is not None]
        self._packs_timers = any(meta.state == TIMERS for meta in metas)

    def run(self, first: int, last: int) -> Iterator[tuple[FileMeta, pa.RecordBatch]]:
        lower, upper = _start(first), _start(last + 1)
        with self._database.cursor(lower, upper) as cursor:
            found = cursor.seek(lower)
            while found is not None:
                group, kind = int.from_bytes(found[:2], "big"), found[2:3]
                if kind == bytes([KEYED_STATE]):
                    yield from self._group(cursor, group)
                    found = cursor.key()
                elif kind == bytes([EVENT_TIMERS]) and self._packs_timers:
                    # The index by time says what the packed timers say.
                    found = cursor.seek(_start(group) + bytes([EVENT_TIMERS + 1]))
                else:
                    raise self._corrupt(f"an entry of unknown kind {kind.hex()}", group)

    def _group(self, cursor: Cursor, group: int) -> Iterator[tuple[FileMeta, pa.RecordBatch]]:
        end = _start(group) + bytes([KEYED_STATE + 1])
        complete = False
        while not complete:
            keys, values, complete = cursor.take(end, _PAGE_ENTRIES, _PAGE_BYTES)
            self._collect(group, keys, values)
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
