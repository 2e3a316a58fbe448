"""Timers in memory: a queue by time, and for each key which times are set.

The truth is a table like that of a state, so a snapshot has the timers as it has everything else.
The queue only finds what is due; a timer that was deleted is passed over when its turn comes.
Called by backends whose timers are kept on the heap.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from moorage_state.backends.hashmap.context import Context
from moorage_state.backends.hashmap.tables import StateTable

__all__ = ["HeapTimers"]

_MIN, _MAX = -(1 << 63), (1 << 63) - 1


class HeapTimers:
    """Timers of one time domain; see `KeyedTimers`.

    Args:
        context: whose key is current.
        table: for each key the times that are set.
        enter: makes the key in this group, with these bytes, the current one and returns it.
        changed: told of every group and key whose timers changed.
    """

    def __init__(
        self,
        context: Context,
        table: StateTable,
        enter: Callable[[int, bytes], Any],
        changed: Callable[[int, bytes], None] = lambda _group, _raw: None,
    ) -> None:
        self._context = context
        self._table = table
        self._enter = enter
        self._changed = changed
        self._queue: list[tuple[int, int, bytes]] = []
        self.rebuild()

    def rebuild(self) -> None:
        """Put what the table has into the queue; after the table was filled."""
        self._queue = [
            (time_ms, group, raw)
            for group, entries in enumerate(self._table.groups)
            for raw, times in entries.items()
            for time_ms in times
        ]
        heapify(self._queue)

    def register(self, time_ms: int) -> None:
        """See `KeyedTimers`."""
        if not _MIN <= time_ms <= _MAX:
            raise ValueError(f"a timer's time does not fit 64 bits: got={time_ms}")
        context = self._context
        group, raw = context.group, context.entry
        times = self._table.groups[group].get(raw)
        if times is not None and time_ms in times:
            return
        self._table.own_map(group, raw)[time_ms] = True
        self._changed(group, raw)
        heappush(self._queue, (time_ms, group, raw))

    def delete(self, time_ms: int) -> None:
        """See `KeyedTimers`."""
        context = self._context
        self._take(context.group, context.entry, time_ms)

    def peek(self) -> int | None:
        """See `KeyedTimers`."""
        while self._queue:
            time_ms, group, raw = self._queue[0]
            if time_ms in self._table.groups[group].get(raw, ()):
                return time_ms
            heappop(self._queue)
        return None

    def fire_due(self, up_to_ms: int, on_timer: Callable[[int, Any], None]) -> int:
        """See `KeyedTimers`."""
        context = self._context
        before = context.group, context.entry
        fired = 0
        try:
            while self._queue and self._queue[0][0] <= up_to_ms:
                time_ms, group, raw = heappop(self._queue)
                if self._take(group, raw, time_ms):
                    on_timer(time_ms, self._enter(group, raw))
                    fired += 1
        finally:
            if isinstance(before[0], int):
                self._enter(*before)
        return fired

    def __len__(self) -> int:
        return sum(len(times) for entries in self._table.groups for times in entries.values())

    def _take(self, group: int, raw: bytes, time_ms: int) -> bool:
        """Take a timer off; whether it was set."""
        times = self._table.groups[group].get(raw)
        if times is None or time_ms not in times:
            return False
        if len(times) == 1:
            self._table.discard(group, raw)
        else:
            del self._table.own_map(group, raw)[time_ms]
        self._changed(group, raw)
        return True
