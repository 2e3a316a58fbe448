"""The factory of state in memory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from moorage_state.database import FileBytes
from moorage_state.errors import IllegalConfigurationError
from moorage_state.memory import SNAPSHOT_FILE, HeapBudget, MemoryDatabase, write_part
from moorage_state.state_backends.state_backend import StateBackend
from moorage_state.tuning import HEAP_LIMIT, parse_options

_PARTLY_FROM = 1 << 20
"""Smaller files are fetched whole, which is one request and not three."""


@dataclass(frozen=True, slots=True)
class HashMapStateBackend(StateBackend):
    """State as sorted bytes in the memory of the process.

    Attributes:
        asynchronous_snapshots: whether snapshots are written beside the processing of records;
            False only to look for faults. None to take `state.backend.async`.
        memory_limit: bytes of state that one state server may keep, 0 for any; None to take
            `state.backend.hashmap.memory-limit`, or else a server's share of its machine.
    """

    identifier: ClassVar[str] = "hashmap"
    # Written once, read once and deleted: a copy of all state would be made for nothing.
    unchanging: ClassVar[frozenset[str]] = frozenset({Path(SNAPSHOT_FILE).suffix})

    asynchronous_snapshots: bool | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        if self.memory_limit is not None and self.memory_limit < 0:
            raise IllegalConfigurationError(
                f"limit of state in memory is below zero: memory_limit={self.memory_limit}; use 0 "
                f"for no limit"
            )

    def configure(self, configuration: Mapping[str, str]) -> "HashMapStateBackend":
        """See `ConfigurableStateBackend`."""
        from moorage_state.state_backends.configuration import ASYNCHRONOUS, Configuration

        config = Configuration(configuration)
        limits = {key: text for key, text in config.items() if key == HEAP_LIMIT}
        limit = parse_options(limits).heap_limit or None
        mode = self.asynchronous_snapshots
        return replace(
            self,
            asynchronous_snapshots=config.get_option(ASYNCHRONOUS) if mode is None else mode,
            memory_limit=limit if self.memory_limit is None else self.memory_limit,
        )

    def for_servers(self, servers: int, memory: int | None) -> "HashMapStateBackend":
        """See `StateBackend`: where nobody said how much, half of the machine's memory."""
        if self.memory_limit is not None:
            return self
        half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        return replace(self, memory_limit=(memory or half) // servers)

    def process_memory(self) -> HeapBudget:
        """The bytes of state in this process."""
        return HeapBudget(self.memory_limit or 0)

    def open_database(
        self,
        path: Path,
        memory: Any,
        groups: tuple[int, int] | None = None,
        *,
        read_only: bool = False,
    ) -> MemoryDatabase:
        """See `StateBackend`; the file of a working copy goes when it was read."""
        budget = HeapBudget() if read_only else memory
        return MemoryDatabase(path, budget, groups, consume=not read_only)

    def write_part(self, path: Path, source: FileBytes, groups: tuple[int, int]) -> bool:
        """See `StateBackend`: the blocks of the key groups."""
        if path.name != SNAPSHOT_FILE or source.size < _PARTLY_FROM:
            return False
        write_part(path, source, groups)
        return True

    def _snapshot_ways(self) -> dict[str, bool]:
        return {"asynchronous": self.asynchronous_snapshots is not False}
