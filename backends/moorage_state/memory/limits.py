"""How much state a process may keep in memory, and what counts.

One budget for all databases of a process. What an entry costs beyond its bytes was measured on
CPython: two objects, a slot of a dictionary and one of an ordered list.
"""

import threading
from dataclasses import dataclass

from moorage_state.errors import StateTooLarge, UserError

__all__ = ["ENTRY_BYTES", "HeapBudget", "HeapOptions"]

ENTRY_BYTES = 180
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class HeapOptions:
    """How state in memory is kept.

    Raises:
        UserError: for a limit below zero.
    """

    limit_bytes: int = 0
    """What all ranges of the process may hold together; 0 for no limit."""

    def __post_init__(self) -> None:
        if self.limit_bytes < 0:
            raise UserError(
                f"limit of state in memory is below zero: limit_bytes={self.limit_bytes}; use 0 "
                f"for no limit"
            )


class HeapBudget:
    """The bytes of state in this process. Thread-safe."""

    def __init__(self, options: HeapOptions | None = None) -> None:
        self.limit = (options or HeapOptions()).limit_bytes
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
