"""The factory of state whose files lie in the object store."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from moorage_state.database import RangeDatabase, StoredFiles
from moorage_state.errors import IllegalConfigurationError
from moorage_state.state_backends.state_backend import StateBackend
from moorage_state.tuning import FORST, ROCKSDB, RocksOptions, parse_options

if TYPE_CHECKING:
    from moorage_state.forst import FileCache
    from moorage_state.rocks import ProcessMemory

_FILE_BYTES = 4 << 20
"""What is fetched at once, evicted at once, and an object of its own; no other size was tried."""


class Shared(NamedTuple):
    """What the databases of one process share: memory, and the local volume."""

    memory: "ProcessMemory"
    cache: "FileCache"


@dataclass(frozen=True, slots=True)
class ForStStateBackend(StateBackend):
    """State in a RocksDB database for each subtask, whose files lie in the checkpoint directory.

    The local volume is a cache of those that the last completed checkpoint has. A start fetches
    what is read, and nothing before that.

    Attributes:
        cache_limit: bytes of files that are kept on the local volume, 0 for what it holds; None to
            take `state.backend.forst.cache.size-based-limit`. Of all servers of a machine together.
        cache_reserve: bytes of the volume that stay free; None to take
            `state.backend.forst.cache.reserve-size`.
        options: settings `state.backend.forst.*`, as configurations name them.
        tuned: how databases are tuned, in place of `options`.
    """

    identifier: ClassVar[str] = "forst"
    stored: ClassVar[bool] = True

    cache_limit: int | None = None
    cache_reserve: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    tuned: RocksOptions | None = None

    def __post_init__(self) -> None:
        for name in ("cache_limit", "cache_reserve"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise IllegalConfigurationError(
                    f"setting has a value that it cannot have: {name}={value}; use 0 or more bytes"
                )
        parse_options(self.options)

    def configure(self, configuration: Mapping[str, str]) -> "ForStStateBackend":
        """See `ConfigurableStateBackend`."""
        own = {key: text for key, text in configuration.items() if key.startswith(FORST)}
        return replace(self, options={**own, **self.options})

    def for_servers(self, servers: int, memory: int | None) -> "ForStStateBackend":
        """See `StateBackend`: memory is divided, and what is kept on the volume, too."""
        asked = parse_options(self.options)
        limit = asked.forst_limit if self.cache_limit is None else self.cache_limit
        tuned = self.tuned or self._tuned(servers, memory)
        # Not to 0, which is no limit.
        return replace(self, cache_limit=limit and max(1, limit // servers), tuned=tuned)

    def process_memory(self) -> Shared:
        """Block cache, write-buffer budget, and the cache of files."""
        from moorage_state.forst import CacheLimits, FileCache
        from moorage_state.rocks import ProcessMemory

        asked = parse_options(self.options)
        limits = CacheLimits(
            size=asked.forst_limit if self.cache_limit is None else self.cache_limit,
            reserve=asked.forst_reserve if self.cache_reserve is None else self.cache_reserve,
            access_before_promote=asked.forst_accesses,
            promote_limit=asked.forst_promotions,
        )
        return Shared(ProcessMemory(self._rocks_options()), FileCache(limits))

    def open_database(
        self,
        path: Path,
        memory: Any,
        groups: tuple[int, int] | None = None,  # noqa: ARG002  what is not needed costs nothing
        *,
        read_only: bool = False,
        stored: StoredFiles | None = None,
    ) -> RangeDatabase:
        """See `StateBackend`; files without bytes are fetched when they are read."""
        from moorage_state.forst import ForStDatabase, detach
        from moorage_state.rocks.sliced import SlicedDatabase

        if read_only and stored:
            detach(path, stored)
        database = SlicedDatabase(path, self._rocks_options(), memory.memory, read_only=read_only)
        try:
            return ForStDatabase(database, memory.cache, stored or {}, copy=read_only)
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
        return replace(self.tuned or self._tuned(1, None), slices=True)

    def _tuned(self, servers: int, memory: int | None) -> RocksOptions:
        """Of `state.backend.forst.x`, what `state.backend.rocksdb.x` means there."""
        shared = {
            ROCKSDB + key.removeprefix(FORST): text
            for key, text in self.options.items()
            if not key.startswith(f"{FORST}cache.")
        }
        asked = parse_options(shared)
        tuned = asked.rocks_options(servers, memory)
        if "target_file_bytes" not in asked.rocks:
            tuned = replace(tuned, target_file_bytes=_FILE_BYTES)
        return tuned
