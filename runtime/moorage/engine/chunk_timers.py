"""Timers of a chunk's keys at once, for vectorized functions.

The same timers as `KeyTimers`, in the same layout (`many_timers`); read for all keys of a chunk in
one request, and written once for each key when its rows are done. Called by the vectorized loop.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from moorage.api.vectorized import DueTimers
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.many_timers import (
    are_packed,
    entry_parts,
    stored_timers,
    unpack_timers,
)
from moorage_state.keyed.scanning import pages
from moorage_state.keyed.timers import MAX_TIME, TIMERS_STATE, TimeDomain
from moorage_state.keylayout import EVENT_TIMERS, KEY_AT, PROCESSING_TIMERS, timer_entry

KINDS = (EVENT_TIMERS, PROCESSING_TIMERS)
# Beyond the last time that there is.
_NEVER = MAX_TIME + 1
_NONE = (_NEVER, _NEVER)
_MOST_SEEN = 10_000


def _firsts(event: list[int], processing: list[int]) -> tuple[int, int]:
    return (event[0] if event else _NEVER, processing[0] if processing else _NEVER)


class _Timers:
    """The timers of one key: as they were stored, as they are, and those of the next epoch."""

    __slots__ = ("held", "now", "stored")

    def __init__(self, event: list[int], processing: list[int]) -> None:
        self.stored = event, processing
        self.now = set(event), set(processing)
        self.held: set[int] = set()


class ChunkTimers:
    """Timers of the keys of one chunk after the other.

    Attributes:
        earliest: the earliest processing time that a key, among those changed, was left with.
        changed: whether timers of the chunk were set.
        ignored: how many were set of which nothing comes, as nothing comes after.
    """

    def __init__(self, store: KeyedStateStore) -> None:
        self._store = store
        self._sid = store.claim_id(TIMERS_STATE)
        self._prefixes: list[bytes] = []
        self._loaded: list[bytes | None] | None = None
        self._known: dict[int, _Timers] = {}
        self._seen: dict[bytes, tuple[int, int]] = {}
        self._waiting: _Timers | None = None
        self.earliest = MAX_TIME
        self._quiesced = self._held = False
        self.changed = False
        self.ignored = 0

    def begin(self, prefixes: list[bytes], *, runs_on: bool) -> None:
        """Take the keys of a chunk; what `end` kept back is of the first one if it runs on."""
        self._prefixes = prefixes
        self._known = {}
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        self.changed = False
        if runs_on and self._waiting is not None:
            self._known[0] = self._waiting
        self._waiting = None
        self._loaded = None

    @property
    def touched(self) -> bool:
        """Whether timers of the chunk's keys, or of the first in the chunk before, were changed."""
        return bool(self._known)

    @property
    def _raws(self) -> list[bytes | None]:
        # Read when first asked for: in most epochs nothing is due and no window is new.
        if self._loaded is None:
            cells = [prefix + self._sid for prefix in self._prefixes]
            self._loaded = self._store.access.get_many(cells)
        return self._loaded

    def first_stored(self, position: int) -> tuple[int, int]:
        """A key's earliest event and processing times as the epoch found them."""
        known = self._known.get(position)
        if known is not None:
            return _firsts(*known.stored)
        raw = self._raws[position]
        if raw is None:
            return _NONE
        # Timers of many keys are at the same times: of windows, say.
        found = self._seen.get(raw)
        if found is None:
            found = _firsts(*self._of(position).stored)
            if are_packed(raw):
                self._seen[raw] = found
        return found

    def pop_due(
        self, span: range, domain: TimeDomain, up_to_ms: int
    ) -> tuple[DueTimers | None, list[int]]:
        """Take due timers of some keys; with them the keys of which some were due as stored."""
        first_stored = self.first_stored
        had = [position for position in span if first_stored(position)[domain] <= up_to_ms]
        # Whose timers were changed may have others that are due.
        others = [position for position in self._known if position in span]
        positions: list[int] = []
        times: list[int] = []
        for position in sorted({*had, *others}):
            mine = self._of(position).now[domain]
            due = sorted(time for time in mine if time <= up_to_ms)
            mine.difference_update(due)
            positions += [position] * len(due)
            times += due
        if not times:
            return None, had
        return DueTimers(domain, np.array(positions, np.int64), np.array(times, np.int64)), had

    def register(
        self, positions: Iterable[int], times: Iterable[int], domain: TimeDomain, now_ms: int
    ) -> None:
        """Set timers."""
        self.changed = True
        for position, time_ms in zip(positions, times, strict=True):
            if self._quiesced:
                self.ignored += 1
                continue
            mine = self._of(position)
            # Set while timers of this epoch's time fire, it must not fire in the same epoch.
            if self._held and domain is TimeDomain.PROCESSING_TIME and time_ms <= now_ms:
                mine.held.add(time_ms)
            else:
                mine.now[domain].add(time_ms)

    @contextmanager
    def firing(self, *, quiesced: bool) -> Iterator[None]:
        """Within, processing-time timers that are set and due wait for the next epoch.

        Or all that are set are ignored, and counted, where no epoch comes after.
        """
        self._held, self._quiesced = True, quiesced
        try:
            yield
        finally:
            self._held = self._quiesced = False

    def delete(self, positions: Iterable[int], times: Iterable[int], domain: TimeDomain) -> None:
        """Delete timers; those that are not set are passed over."""
        for position, time_ms in zip(positions, times, strict=True):
            mine = self._of(position)
            mine.now[domain].discard(time_ms)
            if domain is TimeDomain.PROCESSING_TIME:
                mine.held.discard(time_ms)

    def end(self) -> None:
        """Write what changed for all keys but the last, whose rows may run on."""
        last = len(self._prefixes) - 1
        for position, mine in self._known.items():
            if position == last:
                self._waiting = mine
            else:
                self._write(self._prefixes[position], mine)

    def finish(self) -> None:
        """Write what was kept back of the last key."""
        if self._waiting is not None:
            self._write(self._prefixes[-1], self._waiting)
            self._waiting = None

    def _of(self, position: int) -> _Timers:
        found = self._known.get(position)
        if found is None:
            raw = self._raws[position]
            if raw is None:
                lists: tuple[list[int], list[int]] = ([], [])
            elif are_packed(raw):
                lists = unpack_timers(raw)
            else:
                lists = self._entries(self._prefixes[position])
            found = self._known[position] = _Timers(*lists)
        return found

    def _entries(self, prefix: bytes) -> tuple[list[int], list[int]]:
        """The timers of a key that has an entry for each."""
        cell = prefix + self._sid
        found: tuple[list[int], list[int]] = ([], [])
        for page in pages(self._store, cell, None):
            for key, _ in page:
                if rest := key[len(cell) :]:
                    domain, time_ms = entry_parts(rest)
                    found[domain].append(time_ms)
        return found

    def _write(self, prefix: bytes, mine: _Timers) -> None:
        mine.now[TimeDomain.PROCESSING_TIME].update(mine.held)
        after = sorted(mine.now[0]), sorted(mine.now[1])
        if after[1]:
            self.earliest = min(self.earliest, after[1][0])
        if after == mine.stored:
            return
        store, cell = self._store, prefix + self._sid
        old = dict(stored_timers(*mine.stored)) if any(mine.stored) else {}
        new = dict(stored_timers(*after)) if any(after) else {}
        # In one order in every process: attempts at an epoch stage the same bytes.
        for rest in sorted(old.keys() - new.keys()) if len(old) > 1 or not new else ():
            store.write(cell + rest, None)
        for rest, value in new.items():
            if old.get(rest) != value:
                store.write(cell + rest, value)
        group, key = int.from_bytes(prefix[:2], "big"), prefix[KEY_AT:]
        for kind, before, now in zip(KINDS, mine.stored, mine.now, strict=True):
            for time_ms in sorted(now.symmetric_difference(before)):
                entry = timer_entry(group, time_ms, key, kind)
                store.write(entry, b"" if time_ms in now else None)
