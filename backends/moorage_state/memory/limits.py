"""How much state a process may keep in memory, and what counts.

One budget for all databases of a process. What an entry costs beyond its bytes was measured on
CPython: two objects, a slot of a dictionary and one of an ordered list.
"""

import threading

from moorage_state.errors import StateTooLarge

ENTRY_BYTES = 180
_MIB = 1 << 20


class HeapBudget:
    """The bytes of state in this process, at most `limit`; any number for 0. Thread-safe."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes of all databases."""
        return self._used

    def add(self, grown: int) -> None:
        """Count what was written, or let go of when below zero."""
        with self._lock:
            self._used += grown

    def has_room(self, grown: int) -> bool:
        """Whether state may grow by so much; it may always shrink."""
        return not self.limit or grown <= 0 or self._used + grown <= self.limit

    def check(self, grown: int, where: str) -> None:
        """Raise `StateTooLarge` unless there is room."""
        if not self.has_room(grown):
            raise StateTooLarge(
                f"state in memory would be more than its limit: {where} used={_mib(self._used)} "
                f"more={_mib(grown)} limit={_mib(self.limit)}; nothing is lost: raise "
                f"state.backend.hashmap.memory-limit or the memory of the state servers, spread "
                f"the state over more subtasks, or use the backend rocksdb, and start again"
            )


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f}MiB"
