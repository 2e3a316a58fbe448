"""Which database a range opens: RocksDB's files, or memory.

Decides it by the options that a server was started with; and by what lies in a directory where a
copy of any backend is only read. Called by restore, exports and offline readers.
"""

from pathlib import Path
from typing import Literal

import msgspec

from moorage_state.database import RangeDatabase
from moorage_state.errors import UserError
from moorage_state.memory import SNAPSHOT_FILE, HeapBudget, HeapOptions, MemoryDatabase
from moorage_state.rocks import Database, ProcessMemory, RocksOptions
from moorage_state.server.heap_timers import HeapTimers
from moorage_state.snapshots import RangeHandle

__all__ = [
    "DatabaseOptions",
    "Databases",
    "Kind",
    "backend_flags",
    "kind_of",
    "open_copy",
    "options_from",
]

DatabaseOptions = RocksOptions | HeapOptions
"""How databases are kept; the type says by which backend."""

Kind = Literal["rocksdb", "hashmap"]


def backend_flags(options: DatabaseOptions) -> list[str]:
    """What a server's process is told of them; `options_from` reads it."""
    backend = "hashmap" if isinstance(options, HeapOptions) else "rocksdb"
    return ["--backend", backend, "--options", msgspec.json.encode(options).decode()]


def options_from(backend: str, text: str) -> DatabaseOptions:
    """The options that `backend_flags` wrote.

    Raises:
        UserError: they are not options of this backend.
    """
    try:
        if backend == "hashmap":
            return msgspec.json.decode(text, type=HeapOptions)
        return msgspec.json.decode(text, type=RocksOptions)
    except msgspec.MsgspecError as error:
        raise UserError(f"{backend} options are not understood: error={error}") from error


def kind_of(handle: RangeHandle) -> Kind:
    """Which backend wrote the files of a native handle."""
    return "hashmap" if any(ref.name == SNAPSHOT_FILE for ref in handle.files) else "rocksdb"


class Databases:
    """The databases of one process, and what they share."""

    def __init__(self, options: DatabaseOptions) -> None:
        self.options = options
        heap = isinstance(options, HeapOptions)
        self.kind: Kind = "hashmap" if heap else "rocksdb"
        self.rocks = RocksOptions() if isinstance(options, HeapOptions) else options
        # Made when it is needed: memory has no use for a block cache.
        self._memory: ProcessMemory | None = None
        self._budget = HeapBudget(options if isinstance(options, HeapOptions) else None)

    def open(self, path: Path, within: tuple[int, int] | None = None) -> RangeDatabase:
        """The working database at `path`, of this server's backend; empty if nothing lies there.

        Args:
            within: key groups, (first, last), that are needed; others may be left out.
        """
        if self.kind == "hashmap":
            return MemoryDatabase(path, self._budget, within, consume=True)
        database = Database(path, self.rocks, self.memory)
        if not self.rocks.heap_timers:
            return database
        try:
            return HeapTimers(database)
        except BaseException:
            database.close()
            raise

    def open_copy(
        self, path: Path, within: tuple[int, int] | None = None, *, read_only: bool = False
    ) -> RangeDatabase:
        """A copy of either backend, to be read and closed soon; it counts to no limit."""
        if (path / SNAPSHOT_FILE).exists():
            return MemoryDatabase(path, HeapBudget(), within)
        return Database(path, self.rocks, self.memory, read_only=read_only)

    @property
    def memory(self) -> ProcessMemory:
        """What RocksDB's databases share."""
        if self._memory is None:
            self._memory = ProcessMemory(self.rocks)
        return self._memory


def open_copy(path: Path, options: RocksOptions) -> RangeDatabase:
    """A copy of a range in the directory `path`, of either backend, to be read."""
    return Databases(options).open_copy(path, read_only=True)
