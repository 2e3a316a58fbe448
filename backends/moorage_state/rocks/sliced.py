"""A RocksDB database of three levels, some of whose files may be away.

Called by `moorage_state.forst`, which knows which are. Decides how the database is told to compact
a slice of its last level, and how it is seen that RocksDB could not.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import rocksdict

from moorage_state.errors import CorruptState, LocalDiskError
from moorage_state.rocks.adapter import Buffered, Database, translated
from moorage_state.rocks.options import ProcessMemory
from moorage_state.tuning import RocksOptions

_log = logging.getLogger(__name__)

LAST_LEVEL = 2
_CLOSE_SECONDS = 5.0
_OPEN_FILES = 64
_LOOK_SECONDS = 0.002
_TRIGGER = "4"
_MOST_ERRORS = 3
"""That RocksDB may have, one a second, before it is not waited for any more."""

_CROWDED = 16
"""Files of the first level from which a flush waits for a compaction."""

_IDLE_SECONDS = 5.0
"""Without a flush that is at work, and without an error, until it is taken to have failed."""


class LevelFile(NamedTuple):
    """An SST file of an open database; least and greatest key include deleted ranges."""

    name: str
    level: int
    size: int
    first: bytes
    last: bytes


class SlicedDatabase(Database):
    """See `Database`. Opens although files are empty: reading one raises, and names it.

    Compactions of the first level begin by themselves only after `compact_by_itself`.
    """

    def __init__(
        self, path: Path, options: RocksOptions, memory: ProcessMemory, *, read_only: bool = False
    ) -> None:
        if read_only:
            # With a limit files are opened when they are read, and not before all others.
            options = replace(options, max_open_files=_OPEN_FILES)
        super().__init__(path, options, memory, read_only=read_only)
        self.by_itself = False
        self._read_only = read_only
        self._buffers_at_most = options.max_write_buffers
        self._make_room: Callable[[int], None] = lambda _: None
        if not read_only:
            # Else files that have become old are rewritten, whether they are here or not.
            self._set({"ttl": "0", "periodic_compaction_seconds": "0"})

    def before_writes(self, make_room: Callable[[int], None]) -> None:
        """Have `make_room` called with the bytes that the volume is about to need."""
        self._make_room = make_room

    def files(self) -> list[LevelFile]:
        """Its files."""
        with translated(self.path):
            return [
                LevelFile(
                    found["name"].removeprefix("/"),
                    found["level"],
                    found["size"],
                    found["start_key"],
                    found["end_key"],
                )
                for found in self._open().live_files()
            ]

    def compact_by_itself(self) -> None:
        """From now on all files of the first two levels are here."""
        if not self.by_itself:
            self._set({"disable_auto_compactions": "false"})
            self.by_itself = True

    def drain(self) -> None:
        """Have nothing in the first level. Other threads run meanwhile.

        Raises LocalDiskError: RocksDB cannot bring it down.
        """
        if not self._first_level():
            return
        self._set({"level0_file_num_compaction_trigger": "1"})
        try:
            self._wait_for_compaction(lambda: not self._first_level())
        finally:
            self._set({"level0_file_num_compaction_trigger": _TRIGGER})

    def flush(self) -> None:
        """See `Database`.

        Raises LocalDiskError: the volume is full, to which RocksDB tries to write for ever.
        """
        if self.by_itself:
            self._wait_for_compaction(lambda: self._first_level() < _CROWDED)
        for _ in range(_MOST_ERRORS):
            errors = self._errors()
            # With as many buffers as there may be it would wait for a flush that nobody does.
            if self._unflushed() + 1 < self._buffers_at_most:
                with translated(self.path):
                    self._open().flush(False)
            if self._is_flushed(errors):
                self._written = 0
                return
        raise self._failing("a flush")

    def property_int_value(self, name: str) -> int | None:
        """A property. See `Buffered`."""
        with translated(self.path):
            return self._open().property_int_value(name)

    def close(self) -> None:
        """See `Database`. RocksDB closes only when it has written its buffers."""
        if self._db is not None and not self._read_only:
            try:
                self.flush()
            except (LocalDiskError, CorruptState):
                self._close_without_room()
                return
        super().close()

    def _close_without_room(self) -> None:
        """Make room by what is to be deleted next; else have it closed when there is some."""
        for path in self.path.glob("*.sst"):
            with suppress(OSError):
                if path.stat().st_nlink == 1:
                    os.truncate(path, 0)
        closing = threading.Thread(target=super().close, name="forst-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            _log.warning("forst.closes-later path=%s cause=the volume is full", self.path)

    def compact(self, first: bytes | None, last: bytes | None, *, anew: bool = False) -> bool:
        """Bring what lies in [first, last] to the last level; whether it was done.

        It was not where a file is away that it needs. Other threads run meanwhile.

        Args:
            anew: the last level has nothing there yet; then both bounds must be None.
        """
        options = rocksdict.CompactOptions()
        if anew:
            options.set_change_level(True)
            options.set_target_level(LAST_LEVEL)
            # Else files that lie side by side are moved as they are, large as they are.
            options.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
        before = self._errors()
        with translated(self.path):
            # It returns as if nothing were wrong.
            self._open().compact_range(first, last, options)
        return self._errors() == before

    def buffered(self) -> int:
        """Bytes that a flush would have to write, about."""
        return self._of("cur-size-all-mem-tables")

    def _buffers(self) -> Buffered:
        return self

    def _wait(self, size: int) -> None:
        self._make_room(self.buffered() + size)
        super()._wait(size)

    def _wait_for_compaction(self, done: Callable[[], bool]) -> None:
        errors = self._errors()
        while not done():
            if self._errors() - errors >= _MOST_ERRORS:
                raise self._failing("a compaction")
            time.sleep(_LOOK_SECONDS)

    def _is_flushed(self, errors: int) -> bool:
        """Wait until everything is written; False where RocksDB has given up.

        Args:
            errors: what there were before it began.
        """
        worked = time.monotonic()
        while self._unflushed():
            now = time.monotonic()
            if self._of("num-running-flushes"):
                worked = now
            elif self._errors() > errors or now - worked > _IDLE_SECONDS:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def _unflushed(self) -> int:
        return self._of("num-immutable-mem-table")

    def _failing(self, what: str) -> LocalDiskError:
        return LocalDiskError(
            f"{what} failed: path={self.path}; check free space and health of this volume"
        )

    def _of(self, name: str) -> int:
        return self.property_int_value(f"rocksdb.{name}") or 0

    def _first_level(self) -> int:
        with translated(self.path):
            return int(self._open().property_value("rocksdb.num-files-at-level0") or 0)

    def _errors(self) -> int:
        return self._of("background-errors")

    def _set(self, options: dict[str, str]) -> None:
        with translated(self.path):
            self._open().set_options(options)
