"""A RocksDB database of three levels, some of whose files may be away.

Called by `moorage_state.forst`, which knows which are. Decides how the database is told to compact
a slice of its last level, and how it is seen that RocksDB could not.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import rocksdict

from moorage_state.errors import LocalDiskError
from moorage_state.rocks.adapter import Database, translated
from moorage_state.rocks.options import ProcessMemory
from moorage_state.tuning import RocksOptions

LAST_LEVEL = 2
_OPEN_FILES = 64
_LOOK_SECONDS = 0.002
_TRIGGER = "4"


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
        if not read_only:
            # Else files that have become old are rewritten, whether they are here or not.
            self._set({"ttl": "0", "periodic_compaction_seconds": "0"})

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
        errors = self._errors()
        if not self._first_level():
            return
        self._set({"level0_file_num_compaction_trigger": "1"})
        try:
            while self._first_level():
                if self._errors() > errors:
                    raise LocalDiskError(
                        f"a compaction failed: path={self.path}; check free space of this volume"
                    )
                time.sleep(_LOOK_SECONDS)
        finally:
            self._set({"level0_file_num_compaction_trigger": _TRIGGER})

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
        with translated(self.path):
            return self._open().property_int_value("rocksdb.cur-size-all-mem-tables") or 0

    def _first_level(self) -> int:
        with translated(self.path):
            return int(self._open().property_value("rocksdb.num-files-at-level0") or 0)

    def _errors(self) -> int:
        with translated(self.path):
            return self._open().property_int_value("rocksdb.background-errors") or 0

    def _set(self, options: dict[str, str]) -> None:
        with translated(self.path):
            self._open().set_options(options)
