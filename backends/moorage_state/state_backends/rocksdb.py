"""The factory of state in RocksDB."""

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from moorage_state.database import RangeDatabase
from moorage_state.errors import IllegalConfigurationError
from moorage_state.memory import HeapTimers
from moorage_state.state_backends.state_backend import StateBackend
from moorage_state.tuning import RocksOptions, parse_options

if TYPE_CHECKING:
    from moorage_state.rocks import ProcessMemory
    from moorage_state.server.databases import Databases

TimerService = Literal["HEAP", "ROCKSDB"]

_lock = threading.Lock()
_shared: weakref.WeakValueDictionary[RocksOptions, "Databases"] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class EmbeddedRocksDBStateBackend(StateBackend):
    """State in a RocksDB database for each subtask, on the local volume.

    Snapshots are always asynchronous. What is None is taken from the configuration, or has its
    default.

    Attributes:
        local_dir: where working files go; else the environment's, else the system's place for
            temporary files.
        timer_service: where timers are kept: in memory (the default) or in the database.
        incremental: whether a checkpoint uploads only what the last completed one does not have.
        options: how databases are tuned, by the names of configurations. Backends with the same
            ones in one process share block cache and write-buffer budget.
        tuned: how databases are tuned, in place of `options`.
    """

    identifier: ClassVar[str] = "rocksdb"
    reads_in_place: ClassVar[bool] = True

    local_dir: str | None = None
    timer_service: TimerService | None = None
    incremental: bool | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    tuned: RocksOptions | None = None

    def __post_init__(self) -> None:
        if self.timer_service not in (None, "HEAP", "ROCKSDB"):
            raise IllegalConfigurationError(
                f"setting has a value that it cannot have: "
                f"key=state.backend.rocksdb.timer-service.factory value={self.timer_service!r}; "
                f"give one of HEAP, ROCKSDB"
            )
        if self.local_dir is not None:
            given = self.local_dir.removeprefix("file://")
            if not given.startswith("/") or "," in given:
                raise IllegalConfigurationError(
                    f"setting has a value that it cannot have: key=state.backend.rocksdb.localdir "
                    f"value={self.local_dir!r}; give the absolute path of one directory"
                )
        self._rocks_options()

    def configure(self, configuration: Mapping[str, str]) -> "EmbeddedRocksDBStateBackend":
        """See `ConfigurableStateBackend`."""
        from moorage_state.state_backends.configuration import (
            INCREMENTAL,
            ROCKSDB_LOCALDIR,
            ROCKSDB_PREFIX,
            TIMER_SERVICE,
            Configuration,
        )

        config = Configuration(configuration)
        get = config.get_option
        timers: Any = get(TIMER_SERVICE)
        own = {key: text for key, text in config.items() if key.startswith(ROCKSDB_PREFIX)}
        return replace(
            self,
            local_dir=self.local_dir if self.local_dir is not None else get(ROCKSDB_LOCALDIR),
            timer_service=self.timer_service or timers,
            incremental=self.incremental if self.incremental is not None else get(INCREMENTAL),
            options={**own, **self.options},
        )

    def for_servers(self, servers: int, memory: int | None) -> "EmbeddedRocksDBStateBackend":
        """See `StateBackend`: cache and write buffers are divided."""
        if self.tuned is not None:
            return self
        asked = parse_options(self.options)
        return replace(self, tuned=asked.rocks_options(servers, memory))

    @property
    def working_directory(self) -> Path | None:
        """See `StateBackend`."""
        return Path(self.local_dir.removeprefix("file://")) if self.local_dir else None

    def process_memory(self) -> "ProcessMemory":
        """Block cache and write-buffer budget."""
        # Settings are read where RocksDB is not installed.
        from moorage_state.rocks import ProcessMemory

        return ProcessMemory(self._rocks_options())

    def open_database(
        self,
        path: Path,
        memory: Any,
        groups: tuple[int, int] | None = None,  # noqa: ARG002  what is not needed costs nothing
        *,
        read_only: bool = False,
    ) -> RangeDatabase:
        """See `StateBackend`; with the index of timers in memory, if it is asked for."""
        from moorage_state.rocks import Database

        options = self._rocks_options()
        database = Database(path, options, memory, read_only=read_only)
        in_memory = (self.timer_service or options.heap_timers) in ("HEAP", True)
        if read_only or not in_memory:
            return database
        try:
            return HeapTimers(database)
        except BaseException:
            database.close()
            raise

    def leave_out(self, path: Path, groups: tuple[int, int]) -> frozenset[str]:
        """See `StateBackend`: files whose bounds have none of the key groups."""
        from moorage_state.rocks.partial_copy import leave_out

        return leave_out(path, *groups)

    def use_managed_memory(self) -> bool:
        """Cache and write buffers have a budget of their own."""
        return True

    def _rocks_options(self) -> RocksOptions:
        return self.tuned or parse_options(self.options).rocks_options()

    def _process_databases(self) -> "Databases":
        """Those of this process with the same options; timers are in memory unless it is said."""
        from moorage_state.server.databases import Databases

        in_memory = self.timer_service != "ROCKSDB"
        options = replace(self._rocks_options(), heap_timers=in_memory)
        with _lock:
            found = _shared.get(options)
            if found is None:
                found = _shared[options] = Databases(EmbeddedRocksDBStateBackend(tuned=options))
        return found

    def _snapshot_ways(self) -> dict[str, bool]:
        return {"incremental": self.incremental is not False}
