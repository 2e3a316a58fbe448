"""Timers in the database: a key's own as one packed value, and an index by time.

Decides how both are kept in step, and the order in which due timers of many key groups fire. The
layout is that of `keyed.timers`, so it restores into state servers and back; where the index is
looked for, in memory or in files, is the database's choice. Called by the keyed backend.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from moorage_state.backends.keying import KeyLocator, Located
from moorage_state.backends.record_store import RecordStore
from moorage_state.keyed.timers import (
    MAX_TIME,
    MIN_TIME,
    NOTHING_HELD,
    TIMERS_STATE,
    TimeDomain,
    pack_timers,
    timer_time,
    unpack_timers,
)
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    state_id,
    timer_entry,
    timer_parts,
)
from moorage_state.server import scans
from moorage_state.server.api import RangeSpec

__all__ = ["StoredTimers", "TimerCells"]

_INDEX = {TimeDomain.EVENT_TIME: EVENT_TIMERS, TimeDomain.PROCESSING_TIME: PROCESSING_TIMERS}
_PAGE = 256
_ALL = 10_000
_LATE = b"\xff" * 16
"""A key that nearly all others come before."""


class TimerCells:
    """The packed timers of keys and their indexes.

    Of each key group it remembers a time before which nothing is set. A search that began with the
    first entry would pass over all that ever fired, which the database goes on keeping for a while.
    """

    def __init__(self, store: RecordStore, key_groups: KeyGroupRange) -> None:
        self._store = store
        self._groups = key_groups
        self._sid = state_id(TIMERS_STATE)
        self._nothing_before: dict[tuple[int, int], int] = {}
        store.claim_id(TIMERS_STATE)

    def read(self, prefix: bytes) -> tuple[list[int], list[int]]:
        """Event and processing times of a key, ascending."""
        (raw,) = self._store.writes.get_many([prefix + self._sid])
        return ([], []) if raw is None else unpack_timers(raw)

    def write(
        self, located: Located, before: Iterable[list[int]], after: Iterable[list[int]]
    ) -> None:
        """Replace a key's timers; each is a pair of ascending lists."""
        event, processing = after
        group = int.from_bytes(located.prefix[:2], "big")
        packed = pack_timers(event, processing) if event or processing else None
        put = self._store.writes.put
        put(located.prefix + self._sid, packed)
        for kind, old, new in zip(_INDEX.values(), before, (event, processing), strict=True):
            for time_ms in set(old).difference(new):
                put(timer_entry(group, time_ms, located.raw, kind), None)
            for time_ms in set(new).difference(old):
                put(timer_entry(group, time_ms, located.raw, kind), b"")
                if time_ms < self._nothing_before.get((group, kind), MIN_TIME):
                    self._nothing_before[group, kind] = time_ms

    def due(self, group: int, domain: TimeDomain, up_to_ms: int, after: bytes) -> list[bytes]:
        """A page of due index entries of one key group."""
        if after:
            return self._found(group, _INDEX[domain], up_to_ms, _PAGE, after)
        kind = _INDEX[domain]
        if self._nothing_before.get((group, kind), MIN_TIME) > up_to_ms:
            return []
        first = self._first(group, domain)
        if first is None or first > up_to_ms:
            return []
        return self._found(group, kind, up_to_ms, _PAGE, _before(group, domain, first))

    def _first(self, group: int, domain: TimeDomain) -> int | None:
        """The earliest time in one key group."""
        kind = _INDEX[domain]
        known = self._nothing_before.get((group, kind), MIN_TIME)
        if known > MAX_TIME:
            return None
        found = self._found(group, kind, MAX_TIME, 1, _before(group, domain, known))
        first = timer_parts(found[0])[1] if found else None
        self._nothing_before[group, kind] = MAX_TIME + 1 if first is None else first
        return first

    def _found(self, group: int, kind: int, up_to_ms: int, limit: int, after: bytes) -> list[bytes]:
        spec = RangeSpec("", group, group)
        index = self._store.writes.database.timers
        return scans.due_timers(index, spec, kind, up_to_ms, limit, after)

    def all(self, domain: TimeDomain) -> Iterable[tuple[int, int, bytes]]:
        """Key group, time and key of every timer in the database."""
        spec = RangeSpec("", self._groups.start, self._groups.end)
        after = b""
        while True:
            found = scans.due_timers(
                self._store.writes.database.timers, spec, _INDEX[domain], MAX_TIME, _ALL, after
            )
            yield from map(timer_parts, found)
            if len(found) < _ALL:
                return
            after = found[-1]

    def earliest(self, domain: TimeDomain) -> int | None:
        """The earliest time in the database."""
        firsts = [self._first(group, domain) for group in self.groups]
        return min((first for first in firsts if first is not None), default=None)

    @property
    def groups(self) -> range:
        """The key groups of the range."""
        return range(self._groups.start, self._groups.end + 1)


def _before(group: int, domain: TimeDomain, time_ms: int) -> bytes:
    """A place in the index behind everything earlier than `time_ms`, which has been fired."""
    if time_ms == MIN_TIME:
        return b""
    return timer_entry(group, time_ms - 1, _LATE, _INDEX[domain])


@dataclass(slots=True, eq=False)
class _Round:
    """One call of `fire_due`: what is due, as far as it was read."""

    up_to_ms: int
    queue: list[tuple[int, int, bytes]] = field(default_factory=list)


class StoredTimers:
    """Timers of one domain, in the database; see `KeyedTimers`.

    Attributes:
        ignored: where it is set, timers are not set any more: it is told of their times.

    Args:
        enter: makes a key the current one.
        current: the key that is current, None before the first.
        settle: brings all writes into the database.
    """

    def __init__(
        self,
        domain: TimeDomain,
        cells: TimerCells,
        locator: KeyLocator,
        enter: Callable[[Located], None],
        current: Callable[[], Located | None],
        settle: Callable[[], None],
    ) -> None:
        self._domain = domain
        self._cells = cells
        self._locator = locator
        self._enter = enter
        self._current = current
        self._settle = settle
        self.ignored: Callable[[int], None] | None = None
        # More than one where a handler fires timers itself.
        self._rounds: list[_Round] = []
        self._held_to = NOTHING_HELD

    def register(self, time_ms: int) -> None:
        """See `KeyedTimers`."""
        time_ms, located = timer_time(time_ms), self._required()
        if self.ignored is not None:
            self.ignored(time_ms)
            return
        if self._change(located, time_ms, present=True) and time_ms > self._held_to:
            group = int.from_bytes(located.prefix[:2], "big")
            for one in self._rounds:
                if time_ms <= one.up_to_ms:
                    heappush(one.queue, (time_ms, group, located.raw))

    def delete(self, time_ms: int) -> None:
        """See `KeyedTimers`."""
        self._change(self._required(), timer_time(time_ms), present=False)

    def peek(self) -> int | None:
        """See `KeyedTimers`."""
        self._settle()
        return self._cells.earliest(self._domain)

    def fire_due(self, up_to_ms: int, on_timer: Callable[[int, Any], None]) -> int:
        """See `KeyedTimers`; a page of each key group is held at a time."""
        before, held_before = self._current(), self._held_to
        self._settle()
        firing = _Round(up_to_ms)
        self._rounds.append(firing)
        fired = 0
        try:
            last = {group: self._page(firing, group, b"") for group in self._cells.groups}
            while firing.queue:
                time_ms, group, raw = heappop(firing.queue)
                entry = timer_entry(group, time_ms, raw, _INDEX[self._domain])
                if entry == last[group]:
                    self._settle()
                    last[group] = self._page(firing, group, entry)
                located = self._locator.at(group - self._cells.groups.start, raw)
                self._enter(located)
                if self._change(located, time_ms, present=False):
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
        return sum(1 for _ in self._cells.all(self._domain))

    def _page(self, firing: "_Round", group: int, after: bytes) -> bytes:
        """Queue the next due timers of a key group; the last of them if there may be more."""
        found = self._cells.due(group, self._domain, firing.up_to_ms, after)
        for entry in found:
            _, time_ms, raw = timer_parts(entry)
            heappush(firing.queue, (time_ms, group, raw))
        return found[-1] if len(found) == _PAGE else b""

    def _change(self, located: Located, time_ms: int, *, present: bool) -> bool:
        """Set or delete a timer of the current key; whether that changed anything."""
        before = self._cells.read(located.prefix)
        after = tuple(list(times) for times in before)
        times = after[self._domain]
        at = bisect_left(times, time_ms)
        there = at < len(times) and times[at] == time_ms
        if there == present:
            return False
        if present:
            times.insert(at, time_ms)
        else:
            del times[at]
        self._cells.write(located, before, after)
        return True

    def _required(self) -> Located:
        located = self._current()
        if located is None:
            raise RuntimeError(
                "timers belong to a key and there is none at this point: set the current key first"
            )
        return located
