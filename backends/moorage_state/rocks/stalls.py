"""Room for writes: the binding's `write` holds Python's lock also while RocksDB makes it wait.

Decides how long to wait before a write, with the lock free: until RocksDB would not stop it, and
what it asks for where it only slows writes down. Called by the adapter before each batch. Asks
RocksDB as seldom as it can: a property takes the database's mutex, which is held while RocksDB
writes its log.
"""

import time
from collections.abc import Callable
from typing import Protocol

from moorage_state.rocks.options import ProcessMemory
from moorage_state.tuning import RocksOptions

_LOOK_SECONDS = 0.01
# After which it has everything flushed instead: that waits without Python's lock.
_LOOKS = 50
# Times its size, what a batch may take of a write buffer.
_OVERHEAD = 3


class Buffered(Protocol):
    """What it needs of the binding's database."""

    def property_int_value(self, name: str) -> int | None:
        """A property."""
        ...

    def flush(self) -> None:
        """Write out all buffers, and wait for that with Python's lock free."""
        ...


class WriteRoom:
    """When one database takes a write without making it wait.

    Args:
        sleep: waits for seconds, with Python's lock free.
    """

    def __init__(
        self,
        options: RocksOptions,
        memory: ProcessMemory,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self._buffer = options.write_buffer_bytes
        self._most_full = options.max_write_buffers - 1
        self._budget = memory.write_buffers if options.shared_memory else None
        self._room = 0

    def wait(self, database: Buffered, size: int) -> None:
        """Wait until `database`, always the same one, takes a batch of `size` bytes at once.

        It is not kept, as that would keep its file lock. Raises what a flush raises, when the
        database cannot write any more.
        """
        if size > self._room or self._is_short_of_memory():
            self._make_room(database, size)
        self._room -= size

    def _make_room(self, database: Buffered, size: int) -> None:
        for _ in range(_LOOKS):
            if self._has_room(database, size):
                break
            self._sleep(_LOOK_SECONDS)
        else:
            database.flush()
            self._room = 0
        if rate := _of(database, "actual-delayed-write-rate"):
            # RocksDB counts the time that has passed, so the write itself does not wait any more;
            # and what comes next is to wait again.
            self._sleep(size / rate)
            self._room = 0

    def _has_room(self, database: Buffered, size: int) -> bool:
        """Whether no buffer gets full that would stop writes; notes how much fits until then."""
        if _of(database, "is-write-stopped"):
            return False
        full = _of(database, "num-immutable-mem-table")
        active = _of(database, "cur-size-active-mem-table")
        left = (self._most_full - full) * self._buffer + self._buffer - self._buffer // 8 - active
        self._room = max(0, left // _OVERHEAD)
        # Buffers of a process that has used up much of its budget are full earlier.
        return full < self._most_full or (size <= self._room and not self._is_short_of_memory())

    def _is_short_of_memory(self) -> bool:
        budget = self._budget
        return budget is not None and 2 * budget.get_usage() > budget.get_buffer_size()


def _of(database: Buffered, name: str) -> int:
    return database.property_int_value(f"rocksdb.{name}") or 0
