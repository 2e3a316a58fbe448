"""Visits: one function called for all keys of a range that have something in a state.

Decides that visited keys are read page by page, and that what a visit changes is there for the
visits and the rows that follow in the same epoch. Called through the context of broadcast rows,
while there is no current key.

What a visit reads again before the commit it sees through an `Overlay`: the range as this attempt
has changed it so far.
"""
# ruff: noqa: D102  `RangeAccess` documents the methods

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from moorage_state.database import Scan
from moorage_state.deltas import Frame, decode_frame
from moorage_state.descriptors import StateDescriptor
from moorage_state.errors import LocalDiskError
from moorage_state.keyed.access import RangeAccess
from moorage_state.keyed.state_store import KeyedStateStore
from moorage_state.keylayout import EVENT_TIMERS, KEY_AT, prefix_end

# The transaction never ends: a commit would write to the file what still fits into the cache.
_SETUP = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA cache_size = -16384;
    BEGIN;
    CREATE TABLE changed (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID;
    CREATE TABLE cleared (start BLOB PRIMARY KEY, past BLOB) WITHOUT ROWID;
"""
_PUT = "INSERT OR REPLACE INTO changed VALUES (?, ?)"
_DROP = "DELETE FROM changed WHERE key >= ? AND key < ?"
_CLEAR = (
    "INSERT INTO cleared VALUES (?, ?) "
    "ON CONFLICT (start) DO UPDATE SET past = max(past, excluded.past)"
)
_GET = "SELECT value FROM changed WHERE key = ?"
_PAGE = "SELECT key, value FROM changed WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
_CLEARED_TO = "SELECT past FROM cleared WHERE start <= ? ORDER BY start DESC LIMIT 1"
_TOUCHED = (
    "SELECT EXISTS (SELECT 1 FROM changed WHERE key >= ?1 AND key < ?2) "
    "OR EXISTS (SELECT 1 FROM cleared WHERE start >= ?1 AND start < ?2)"
)

_PAGE_BYTES = 8 << 20
_NOT_YET = Scan([], [], complete=False)

_KEYS = 1024


class Overlay:
    """A `RangeAccess` that passes on what is staged and reads as if it were committed.

    Indexes by time are read as they were. What is staged is kept while `recording`, in a temporary
    database in the first of `directories` that can be written.

    Raises (every method): `LocalDiskError` where there is no room for it; and ever after, since
    what
        could not be kept cannot be read either.
    """

    def __init__(self, base: RangeAccess, directories: Sequence[str]) -> None:
        self._base = base
        self._directories = directories
        self._database: sqlite3.Connection | None = None
        self._failed: LocalDiskError | None = None
        self.recording = False

    def stage(self, frame: bytes) -> None:
        with self._making_room():
            if self.recording:
                self._take(decode_frame(frame))
        self._base.stage(frame)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        found = self._base.get_many(keys)
        with self._making_room():
            if self._database is None:
                return found
            return [self._value(key, raw) for key, raw in zip(keys, found, strict=True)]

    def scan_many(self, prefixes: list[bytes], limit_entries: int, limit_bytes: int) -> list[Scan]:
        scans = self._base.scan_many(prefixes, limit_entries, limit_bytes)
        with self._making_room():
            if self._database is None:
                return scans
            touched = [bool(self._rows(_TOUCHED, p, prefix_end(p))[0][0]) for p in prefixes]
        # What was changed has as many bytes again.
        left = limit_bytes
        for n in [n for n, changed in enumerate(touched) if changed]:
            scans[n] = _NOT_YET if left <= 0 else self.scan_from(prefixes[n], b"", limit_entries)
            left -= sum(map(len, scans[n].keys)) + sum(map(len, scans[n].values))
        return scans

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        if self._database is None and self._failed is None:
            return self._base.scan_from(prefix, after, limit)
        while True:
            scan, last = self._merged(prefix, after, limit)
            if scan.keys or scan.complete:
                return scan
            after = last

    def due_timers(
        self, up_to_ms: int, limit: int, after: bytes, kind: int = EVENT_TIMERS
    ) -> list[bytes]:
        return self._base.due_timers(up_to_ms, limit, after, kind)

    def close(self) -> None:
        """Drop the temporary database; idempotent."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _merged(self, prefix: bytes, after: bytes, limit: int) -> tuple[Scan, bytes]:
        """A page of what there is now, and the last key that was looked at for it."""
        stored = self._base.scan_from(prefix, after, limit)
        start = max(prefix, after + b"\0") if after else prefix
        past = prefix_end(prefix) if stored.complete else stored.keys[-1] + b"\0"
        with self._making_room():
            changed, cut = self._changed(start, past, limit)
            complete = stored.complete and not cut
            if cut:
                past = changed[-1][0] + b"\0"
            entries: dict[bytes, bytes | None] = {
                key: raw
                for key, raw in zip(stored.keys, stored.values, strict=True)
                if key < past and not self._cleared(key)
            }
        entries.update(changed)
        left = sorted((key, raw) for key, raw in entries.items() if raw is not None)
        page = left[:limit]
        keys, values = [key for key, _ in page], [raw for _, raw in page]
        return Scan(keys, values, complete and len(left) <= limit), past[:-1]

    def _changed(
        self, start: bytes, past: bytes, limit: int
    ) -> tuple[list[tuple[bytes, bytes | None]], bool]:
        """What was written from a key on, and whether a limit may have cut it off."""
        assert self._database is not None  # noqa: S101 - asked for by the caller
        found: list[tuple[bytes, bytes | None]] = []
        size = 0
        for key, raw in self._database.execute(_PAGE, (start, past, limit)):
            found.append((key, raw))
            size += len(key) + len(raw or b"")
            if size >= _PAGE_BYTES:
                return found, True
        return found, len(found) == limit

    def _value(self, key: bytes, stored: bytes | None) -> bytes | None:
        """What is under a key now."""
        if changed := self._rows(_GET, key):
            value: bytes | None = changed[0][0]
            return value
        return None if stored is None or self._cleared(key) else stored

    def _cleared(self, key: bytes) -> bool:
        # What is deleted as a range is all of one state of one key, or its beginning: two such
        # ranges have one start, or lie apart.
        found = self._rows(_CLEARED_TO, key)
        return bool(found) and key < found[0][0]

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        assert self._database is not None  # noqa: S101 - asked for by the callers
        return self._database.execute(query, values).fetchall()

    def _take(self, frame: Frame) -> None:
        if self._database is None:
            self._database = _opened(self._directories)
        database = self._database
        database.executemany(_DROP, frame.ranges)
        database.executemany(_CLEAR, frame.ranges)
        database.executemany(_PUT, zip(frame.keys, frame.values, strict=True))

    @contextmanager
    def _making_room(self) -> Iterator[None]:
        if self._failed is not None:
            raise self._failed
        try:
            yield
        except sqlite3.OperationalError as error:
            self._failed = LocalDiskError(
                f"no room for the keyed state that broadcast rows change: error={error} "
                f"directories={','.join(self._directories)}; it waits in the first of them that "
                f"can be written until the epoch ends: give it more space"
            )
            raise self._failed from error
        except LocalDiskError as error:
            self._failed = error
            raise


def _opened(directories: Sequence[str]) -> sqlite3.Connection:
    """An empty database in a file without a name, in the first directory that takes it."""
    refused = []
    for directory in directories:
        try:
            descriptor, path = mkstemp(prefix="moorage-visits-", dir=directory)
        except OSError as error:
            refused.append(f"{directory} ({error.strerror})")
            continue
        os.close(descriptor)
        try:
            # Its thread may be another in the end: who drops a generator closes what it holds.
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            database.executescript(_SETUP)
        finally:
            Path(path).unlink()
        return database
    raise LocalDiskError(
        f"no directory for the keyed state that broadcast rows change can be written: "
        f"directories={', '.join(refused) or 'none'}; mount a volume for Spark's local directories "
        f"(spark.local.dir) or set TMPDIR to a directory that can be written"
    )


class KeyVisits:
    """The visits of one attempt of one subtask; `directories` as for `Overlay`."""

    def __init__(
        self,
        store: KeyedStateStore,
        decode: Callable[[bytes], Any],
        directories: Sequence[str],
    ) -> None:
        self._store = store
        self._decode = decode
        self._directories = directories
        self._overlay: Overlay | None = None
        self._visiting = False
        self._over = False

    def visit(self, descriptor: StateDescriptor, function: Callable[[Any, Any], object]) -> None:
        """Call `function(key, state)` for each key that has something in the state.

        The function may change what its key has, and nothing else. Keys come in the order in which
        they are stored. If it raises, what it did until then is done.

        Raises RuntimeError where it is called by such a function or after `end`, and what
        `KeyedStateStore.state` does.
        """
        self._refuse(descriptor)
        store = self._store
        handle = store.state(descriptor)
        if self._overlay is None:
            self._overlay = store.access = Overlay(store.access, self._directories)
        self._visiting = self._overlay.recording = True
        try:
            # What was swept before the first key is not to be visited.
            store.finish()
            for prefixes in _pages(store.keys_of(descriptor.name)):
                self._visit_page(prefixes, handle, function)
        finally:
            # Also for who catches what a function raised, and goes on.
            self._visiting = False
            store.finish()
            self._overlay.recording = False

    def end(self) -> None:
        """Take no more visits: rows with keys come now, whose changes a visit would not find."""
        self._over = True

    def close(self) -> None:
        """Let go of what was kept; idempotent."""
        if self._overlay is not None:
            self._overlay.close()

    def _refuse(self, descriptor: Any) -> None:
        if self._over:
            raise RuntimeError(
                "a function can be applied to all keys only while broadcast rows are processed: "
                "call apply_to_keyed_state within process_broadcast_element"
            )
        if self._visiting:
            raise RuntimeError(
                "a function that is applied to all keys cannot apply another one to all keys: "
                "return first"
            )
        if not isinstance(descriptor, StateDescriptor):
            raise TypeError(
                f"the state of all keys is named by its descriptor, such as a "
                f"ValueStateDescriptor: got={descriptor!r:.200}"
            )

    def _visit_page(
        self, prefixes: list[bytes], handle: Any, function: Callable[[Any, Any], object]
    ) -> None:
        store = self._store
        store.begin_chunk(prefixes)
        for i, prefix in enumerate(prefixes):
            store.switch_to(i)
            key = self._decode(prefix[KEY_AT:])
            try:
                function(key, handle)
                store.flush_key()
            except Exception as error:
                error.add_note(f"it was applied to the state of key={key!r:.100}")
                raise


def _pages(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    while page := list(islice(keys, _KEYS)):
        yield page
