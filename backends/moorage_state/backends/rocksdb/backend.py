"""The factory of state in RocksDB."""

import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from moorage_state.backends.api import (
    Environment,
    KeyedStateBackend,
    StateBackend,
)
from moorage_state.backends.configuration import (
    INCREMENTAL,
    ROCKSDB_LOCALDIR,
    ROCKSDB_PREFIX,
    TIMER_SERVICE,
    Configuration,
)
from moorage_state.backends.handles import KeyedStateHandle
from moorage_state.backends.keyed import DatabaseKeyedStateBackend
from moorage_state.errors import IllegalConfigurationError
from moorage_state.keygroups import KeyGroupRange
from moorage_state.server.databases import Databases
from moorage_state.tuning import RocksOptions, parse_options

__all__ = ["EmbeddedRocksDBStateBackend"]

TimerService = Literal["HEAP", "ROCKSDB"]

_lock = threading.Lock()
_shared: weakref.WeakValueDictionary[RocksOptions, Databases] = weakref.WeakValueDictionary()


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
    """

    identifier: ClassVar[str] = "rocksdb"

    local_dir: str | None = None
    timer_service: TimerService | None = None
    incremental: bool | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.timer_service not in (None, "HEAP", "ROCKSDB"):
            raise IllegalConfigurationError(
                f"setting has a value that it cannot have: key={TIMER_SERVICE.key} "
                f"value={self.timer_service!r}; give one of HEAP, ROCKSDB"
            )
        if self.local_dir is not None:
            given = self.local_dir.removeprefix("file://")
            if not given.startswith("/") or "," in given:
                raise IllegalConfigurationError(
                    f"setting has a value that it cannot have: key={ROCKSDB_LOCALDIR.key} "
                    f"value={self.local_dir!r}; give the absolute path of one directory"
                )
        self._rocks_options()

    def configure(self, configuration: Configuration) -> StateBackend:
        """See `ConfigurableStateBackend`."""
        get = configuration.get_option
        timers: Any = get(TIMER_SERVICE)
        own = {key: text for key, text in configuration.items() if key.startswith(ROCKSDB_PREFIX)}
        return replace(
            self,
            local_dir=self.local_dir if self.local_dir is not None else get(ROCKSDB_LOCALDIR),
            timer_service=self.timer_service or timers,
            incremental=self.incremental if self.incremental is not None else get(INCREMENTAL),
            options={**own, **self.options},
        )

    def create_keyed_state_backend(
        self,
        environment: Environment,
        job_id: str,
        operator_identifier: str,
        key_types: Sequence[str],
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        *,
        restore: Iterable[KeyedStateHandle] = (),
    ) -> KeyedStateBackend:
        """See `StateBackend`.

        Raises:
            LocalDiskError: the local volume refuses.
        """
        return DatabaseKeyedStateBackend(
            environment,
            job_id,
            operator_identifier,
            tuple(key_types),
            number_of_key_groups,
            key_group_range,
            databases=self._databases(),
            directory=self._directory(environment),
            incremental=self.incremental is not False,
            restore=restore,
        )

    def use_managed_memory(self) -> bool:
        """Cache and write buffers have a budget of their own."""
        return True

    def _directory(self, environment: Environment) -> Path:
        if self.local_dir is not None:
            return Path(self.local_dir.removeprefix("file://"))
        return environment.local_dir or Path(tempfile.gettempdir()) / "moorage-rocksdb"

    def _rocks_options(self) -> RocksOptions:
        options = parse_options("rocksdb", self.options).rocks_options()
        return replace(options, heap_timers=self.timer_service != "ROCKSDB")

    def _databases(self) -> Databases:
        """Those of this process with the same options."""
        options = self._rocks_options()
        with _lock:
            found = _shared.get(options)
            if found is None:
                found = _shared[options] = Databases(options)
        return found
