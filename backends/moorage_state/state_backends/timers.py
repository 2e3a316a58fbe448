"""Timers over all keys of a subtask: when they fire, and in which order.

Decides the order in which due timers of many key groups fire. What a key has is `KeyTimers`, as in
jobs: one packed value, and an index by time; where the index is looked for, in memory or in files,
is the database's choice. Called by the keyed backend.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from moorage_state.keyed.timers import (
    MAX_TIME,
    MIN_TIME,
    NOTHING_HELD,
    KeyTimers,
    TimeDomain,
    timer_time,
)
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import EVENT_TIMERS, PROCESSING_TIMERS, timer_entry, timer_parts
from moorage_state.server import scans
from moorage_state.server.operations import RangeSpec
from moorage_state.state_backends.keying import KeyLocator, Located
from moorage_state.state_backends.record_store import RecordStore

_INDEX = {TimeDomain.EVENT_TIME: EVENT_TIMERS, TimeDomain.PROCESSING_TIME: PROCESSING_TIMERS}
_PAGE = 256
_ALL = 10_000
# A key that nearly all others come before.
_LATE = b"\xff" * 16


@dataclass(slots=True, eq=False)
class _Round:
    """One call of `fire_due`: what is due, as far as it was read."""

    up_to_ms: int
    queue: list[tuple[int, int, bytes]] = field(default_factory=list)


class KeyedTimers:
    """Timers of one time domain, one for each key and time; found in the order of time.

    Times are milliseconds since 1970 UTC, any 64-bit integer.

    Attributes:
        ignored: where it is set, no timer is set anew any more: it is told of their times.

    Args:
        of_key: those of the current key, of both domains.
        current: None before the first key.
        settle: brings all writes into the database.
    """

    def __init__(
        self,
        domain: TimeDomain,
        of_key: KeyTimers,
        store: RecordStore,
        groups: KeyGroupRange,
        locator: KeyLocator,
        enter: Callable[[Located], None],
        current: Callable[[], Located | None],
        settle: Callable[[], None],
    ) -> None:
        self.ignored: Callable[[int], None] | None = None
        self._domain = domain
        self._of_key = of_key
        self._store = store
        self._groups = range(groups.start, groups.end + 1)
        self._locator = locator
        self._enter = enter
        self._current = current
        self._settle = settle
        # By key group. A search that began with the first entry would pass over all that ever
        # fired, which RocksDB goes on keeping for a while.
        self._nothing_before: dict[int, int] = {}
        # More than one where a handler fires timers itself.
        self._rounds: list[_Round] = []
        self._held_to = NOTHING_HELD

    def register(self, time_ms: int) -> None:
        """Set a timer of the current key; setting one that is set changes nothing."""
        time_ms, located = timer_time(time_ms), self._required()
        if not self._of_key.register(time_ms, self._domain):
            return
        if self.ignored is not None:
            self._of_key.delete(time_ms, self._domain)
            self.ignored(time_ms)
            return
        group = self._groups[located.group]
        if time_ms < self._nothing_before.get(group, MIN_TIME):
            self._nothing_before[group] = time_ms
        if time_ms > self._held_to:
            for one in self._rounds:
                if time_ms <= one.up_to_ms:
                    heappush(one.queue, (time_ms, group, located.raw))

    def delete(self, time_ms: int) -> None:
        """Delete a timer of the current key, if it is set."""
        self._required()
        self._of_key.delete(timer_time(time_ms), self._domain)

    def peek(self) -> int | None:
        """The earliest time of any key, None where no timer is set."""
        self._settle()
        firsts = [self._first(group) for group in self._groups]
        return min((first for first in firsts if first is not None), default=None)

    def fire_due(self, up_to_ms: int, on_timer: Callable[[int, Any], None]) -> int:
        """Take every timer that is due at `up_to_ms`, by time, and call `on_timer(time, key)`.

        The timer's key is the current one then. What is set meanwhile and is due fires too, but for
        a timer of processing time that is not later than the one that fires: it waits for the next
        call. The key that was current before is current again afterwards. Returns how many fired.
        """
        before, held_before = self._current(), self._held_to
        self._settle()
        firing = _Round(up_to_ms)
        self._rounds.append(firing)
        fired = 0
        try:
            last = {group: self._queue_due(firing, group) for group in self._groups}
            while firing.queue:
                time_ms, group, raw = heappop(firing.queue)
                entry = timer_entry(group, time_ms, raw, _INDEX[self._domain])
                if entry == last[group]:
                    self._settle()
                    last[group] = self._queue_page(firing, group, entry)
                located = self._locator.at(group - self._groups.start, raw)
                self._enter(located)
                if self._of_key.delete(time_ms, self._domain):
                    if self._domain is TimeDomain.PROCESSING_TIME:
                        self._held_to = max(self._held_to, time_ms)
                    on_timer(time_ms, located.key)
                    fired += 1
        finally:
            self._rounds.remove(firing)
            self._held_to = held_before
            if before is not None:
                self._enter(before)
        return fired

    def __len__(self) -> int:
        self._settle()
        count = 0
        for group in self._groups:
            found = self._found(group, MAX_TIME, _ALL, b"")
            count += len(found)
            while len(found) == _ALL:
                found = self._found(group, MAX_TIME, _ALL, found[-1])
                count += len(found)
        return count

    def _queue_due(self, firing: _Round, group: int) -> bytes:
        """Queue the first due timers of a key group; the last of them if there may be more."""
        if self._nothing_before.get(group, MIN_TIME) > firing.up_to_ms:
            return b""
        first = self._first(group)
        if first is None or first > firing.up_to_ms:
            return b""
        return self._queue_page(firing, group, self._before(group, first))

    def _queue_page(self, firing: _Round, group: int, after: bytes) -> bytes:
        """As `_queue_due`, of those behind `after`."""
        found = self._found(group, firing.up_to_ms, _PAGE, after)
        for entry in found:
            _, time_ms, raw = timer_parts(entry)
            heappush(firing.queue, (time_ms, group, raw))
        return found[-1] if len(found) == _PAGE else b""

    def _first(self, group: int) -> int | None:
        """The earliest time in one key group."""
        known = self._nothing_before.get(group, MIN_TIME)
        if known > MAX_TIME:
            return None
        found = self._found(group, MAX_TIME, 1, self._before(group, known))
        first = timer_parts(found[0])[1] if found else None
        self._nothing_before[group] = MAX_TIME + 1 if first is None else first
        return first

    def _found(self, group: int, up_to_ms: int, limit: int, after: bytes) -> list[bytes]:
        index, kind = self._store.writes.database.timers, _INDEX[self._domain]
        return scans.due_timers(index, RangeSpec("", group, group), kind, up_to_ms, limit, after)

    def _before(self, group: int, time_ms: int) -> bytes:
        """A place in the index behind all that is earlier than `time_ms`, which has been fired."""
        if time_ms == MIN_TIME:
            return b""
        return timer_entry(group, time_ms - 1, _LATE, _INDEX[self._domain])

    def _required(self) -> Located:
        located = self._current()
        if located is None:
            raise RuntimeError(
                "timers belong to a key and there is none at this point: set the current key first"
            )
        return located
