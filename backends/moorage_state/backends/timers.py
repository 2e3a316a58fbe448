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
from moorage_state.keyed.timers import NOTHING_HELD, TimeDomain, timer_time

__all__ = ["HeapTimers"]


class HeapTimers:
    """Timers of one time domain; see `KeyedTimers`.

    Args:
        context: whose key is current.
        table: for each key the times that are set.
        enter: makes the key in this group, with these bytes, the current one and returns it.
        changed: told of every group and key whose timers changed.
        domain: the time domain.
    """

    def __init__(
        self,
        context: Context,
        table: StateTable,
        enter: Callable[[int, bytes], Any],
        changed: Callable[[int, bytes], None] = lambda _group, _raw: None,
        domain: TimeDomain = TimeDomain.EVENT_TIME,
    ) -> None:
        self._context = context
        self._table = table
        self._enter = enter
        self._changed = changed
        self._holds = domain is TimeDomain.PROCESSING_TIME
        self._held_to = NOTHING_HELD
        self._held: list[tuple[int, int, bytes]] = []
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
        time_ms, context = timer_time(time_ms), self._context
        group, raw = context.group, context.entry
        times = self._table.groups[group].get(raw)
        if times is not None and time_ms in times:
            return
        self._table.own_map(group, raw)[time_ms] = True
        self._changed(group, raw)
        if time_ms <= self._held_to:
            self._held.append((time_ms, group, raw))
        else:
            heappush(self._queue, (time_ms, group, raw))

    def delete(self, time_ms: int) -> None:
        """See `KeyedTimers`."""
        context = self._context
        self._take(context.group, context.entry, timer_time(time_ms))

    def peek(self) -> int | None:
        """See `KeyedTimers`."""
        self._context.check_open()
        while self._queue:
            time_ms, group, raw = self._queue[0]
            if time_ms in self._table.groups[group].get(raw, ()):
                return time_ms
            heappop(self._queue)
        return None

    def fire_due(self, up_to_ms: int, on_timer: Callable[[int, Any], None]) -> int:
        """See `KeyedTimers`."""
        context = self._context
        context.check_open()
        before = context.group, context.entry
        # A handler may fire timers itself: what is held is held until the outermost is through.
        held_before = self._held_to
        fired = 0
        try:
            while self._queue and self._queue[0][0] <= up_to_ms:
                time_ms, group, raw = heappop(self._queue)
                if self._take(group, raw, time_ms):
                    if self._holds:
                        self._held_to = max(self._held_to, time_ms)
                    on_timer(time_ms, self._enter(group, raw))
                    fired += 1
        finally:
            self._held_to = held_before
            if held_before == NOTHING_HELD:
                while self._held:
                    heappush(self._queue, self._held.pop())
            if isinstance(before[0], int):
                self._enter(*before)
        return fired

    def __len__(self) -> int:
        self._context.check_open()
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
