"""Timers of a chunk's keys at once, for vectorized functions.

The same timers as `KeyTimers`, in the same layout (`many_timers`); read for all keys of a chunk in
one request, and written once for each key when its rows are done. Called by the vectorized loop.

Keys share what they have: timers of windows are at a few times, of very many keys. So what a key's
timers are is one object for all keys that have the same ones, and what is made of it (with another
timer, without those that are due, as bytes) is made once.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from moorage.api.vectorized import DueTimers
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.many_timers import (
    are_packed,
    entry_parts,
    stored_timers,
    timer_entries,
    unpack_timers,
)
from moorage_state.keyed.scanning import pages
from moorage_state.keyed.timers import MAX_TIME, TIMERS_STATE, TimeDomain
from moorage_state.keylayout import EVENT_TIMERS, KEY_AT, PROCESSING_TIMERS, timer_entry

_log = logging.getLogger(__name__)

KINDS = (EVENT_TIMERS, PROCESSING_TIMERS)
# Beyond the last time that there is.
_NEVER = MAX_TIME + 1
_MOST_SEEN = 10_000
_FEW = 64
"""What a key with more timers has is its own: so many would not be kept for others."""

_GROUP = 2
"""How many bytes of a stored key say its key group."""


class _Timers:
    """The timers of one or many keys: times by domain, ascending; never changed.

    Attributes:
        firsts: the earliest of each domain.
        few: whether they are few enough to be shared.
        entries: whether they are of one key, which has an entry for each stored, even if packed
            they would fit.
    """

    __slots__ = ("entries", "few", "firsts", "times")

    def __init__(
        self, times: tuple[tuple[int, ...], tuple[int, ...]], *, entries: bool = False
    ) -> None:
        self.times = times
        self.entries = entries
        event, processing = times
        self.few = len(event) + len(processing) <= _FEW
        self.firsts = (event[0] if event else _NEVER, processing[0] if processing else _NEVER)


class _Key(NamedTuple):
    """The timers of one key: as they were stored, as they are, and those of the next epoch."""

    stored: _Timers
    now: _Timers
    held: frozenset[int]


class _Writes(NamedTuple):
    """What is written where a key's timers changed.

    Attributes:
        cells: behind the state's id, and the value.
        by_time: the middle of an entry by time, between key group and key, and the value.
    """

    cells: tuple[tuple[bytes, bytes | None], ...]
    by_time: tuple[tuple[bytes, bytes | None], ...]


_NOTHING = _Timers(((), ()))


class ChunkTimers:
    """Timers of the keys of one chunk after the other.

    Attributes:
        earliest: the earliest processing time that a key, among those changed, was left with.
        earliest_set: the earliest processing time for which rows set a timer.
        changed: whether timers of the chunk, or of its first key in the one before, were set.
        ignored: how many were set anew of which nothing comes, as nothing comes after.
    """

    def __init__(self, store: KeyedStateStore) -> None:
        self._store = store
        self._sid = store.claim_id(TIMERS_STATE)
        self._prefixes: list[bytes] = []
        self._loaded: list[_Timers] | None = None
        self._now: dict[int, _Timers] = {}
        self._held: dict[int, set[int]] = {}
        self._first: _Key | None = None
        self._told: set[tuple[int, int, int]] = set()
        self._shared: dict[tuple[tuple[int, ...], tuple[int, ...]], _Timers] = {}
        self._read: dict[bytes | None, _Timers] = {}
        self._with: dict[tuple[_Timers, int, int], _Timers] = {}
        self._writes: dict[tuple[_Timers, _Timers], _Writes] = {}
        self._waiting: _Key | None = None
        self.earliest = self.earliest_set = MAX_TIME
        self._quiesced = self._holds = False
        self.changed = False
        self.ignored = 0

    def begin(self, prefixes: list[bytes], *, runs_on: bool) -> None:
        """Take the keys of a chunk; what `end` kept back is of the first one if it runs on."""
        self._prefixes = prefixes
        self._now, self._held, self._told = {}, {}, set()
        seen = (self._shared, self._read, self._with, self._writes)
        if max(len(known) for known in seen) > _MOST_SEEN:
            self._shared, self._read, self._with, self._writes = {}, {}, {}, {}
        self._first = self._waiting if runs_on else None
        # What the chunk before left of the first one may be due: no more than its last key waited.
        self.changed = self._first is not None
        if self._first is not None:
            self._now[0] = self._first.now
            self._held[0] = set(self._first.held)
        self._waiting = None
        self._loaded = None

    @property
    def touched(self) -> bool:
        """Whether timers of the chunk's keys, or of the first in the chunk before, were changed."""
        return bool(self._now)

    @property
    def _stored(self) -> list[_Timers]:
        """By position, the timers of each key as the epoch found them."""
        # Read when first asked for: in most epochs nothing is due and no window is new.
        if self._loaded is None:
            cells = [prefix + self._sid for prefix in self._prefixes]
            raws, known = self._store.access.get_many(cells), self._read.get
            self._loaded = [known(raw) or self._parsed(raw, at) for at, raw in enumerate(raws)]
            if self._first is not None:
                self._loaded[0] = self._first.stored
        return self._loaded

    def first_stored(self, position: int) -> tuple[int, int]:
        """A key's earliest event and processing times as the epoch found them."""
        return self._stored[position].firsts

    def pop_due(
        self, span: range, domain: TimeDomain, up_to_ms: int
    ) -> tuple[DueTimers | None, list[int]]:
        """Take due timers of some keys; with them the keys of which some were due as stored.

        Of the latter it tells once in a chunk.
        """
        had: list[int] = []
        if (asked := (span.start, span.stop, int(domain))) not in self._told:
            self._told.add(asked)
            had = self._due_as_stored(span, domain, up_to_ms)
        # Whose timers were changed may have others that are due.
        changed = (position for position in self._now if position in span)
        positions: list[int] = []
        times: list[int] = []
        made: dict[_Timers, tuple[_Timers, tuple[int, ...]]] = {}
        for position in sorted({*had, *changed}):
            mine = self._timers(position)
            if mine.firsts[domain] > up_to_ms:
                continue
            if (found := made.get(mine)) is None:
                found = made[mine] = self._without_due(mine, domain, up_to_ms)
            self._now[position], due = found
            if len(due) == 1:
                positions.append(position)
                times.append(due[0])
            else:
                positions += [position] * len(due)
                times += due
        if not times:
            return None, had
        return DueTimers(domain, np.array(positions, np.int64), np.array(times, np.int64)), had

    def register(
        self, positions: Sequence[int], times: Sequence[int], domain: TimeDomain, now_ms: int
    ) -> None:
        """Set timers."""
        self.changed = True
        if self._quiesced:
            self._ignore(positions, times, domain)
            return
        # Set while timers of this epoch's time fire, it must not fire in the same epoch.
        holds = self._holds and domain is TimeDomain.PROCESSING_TIME
        if domain is TimeDomain.PROCESSING_TIME and not holds:
            self.earliest_set = min(self.earliest_set, min(times, default=MAX_TIME))
        more: dict[int, list[int]] = {}
        now, known, timers = self._now, self._with, self._timers
        kind = int(domain)
        # What waits for the next epoch waits on where rows set it again.
        waiting = self._held if domain is TimeDomain.PROCESSING_TIME else {}
        for position, time_ms in zip(positions, times, strict=True):
            if (holds and time_ms <= now_ms) or (waiting and time_ms in waiting.get(position, ())):
                self._held.setdefault(position, set()).add(time_ms)
                now.setdefault(position, timers(position))
            elif position in now:
                more.setdefault(position, []).append(time_ms)
            else:
                mine = timers(position)
                found = known.get((mine, time_ms, kind))
                if found is None:
                    found = self._changed(mine, domain, {*mine.times[domain], time_ms})
                    if found.few:
                        known[mine, time_ms, kind] = found
                now[position] = found
        for position, added in more.items():
            mine = now[position]
            now[position] = self._changed(mine, domain, {*mine.times[domain], *added})

    def register_first(self, positions: Sequence[int], times: Sequence[int]) -> None:
        """Set an event-time timer of each of these keys that has none until then."""
        event = TimeDomain.EVENT_TIME
        new = [
            (position, time_ms)
            for position, time_ms in zip(positions, times, strict=True)
            if self._timers(position).firsts[event] > time_ms
        ]
        if new:
            self.register([at for at, _ in new], [time_ms for _, time_ms in new], event, 0)

    def _ignore(self, positions: Sequence[int], times: Sequence[int], domain: TimeDomain) -> None:
        pairs = zip(positions, times, strict=True)
        new = [time_ms for at, time_ms in pairs if time_ms not in self._timers(at).times[domain]]
        if new and not self.ignored:
            _log.warning(
                "timers set at the end of their keys are ignored: times=%d first=%d; no epoch "
                "comes after, and this is said once",
                len(new),
                new[0],
            )
        self.ignored += len(new)

    @contextmanager
    def firing(self, *, quiesced: bool) -> Iterator[None]:
        """Within, processing-time timers that are set and due wait for the next epoch.

        Or all that are set are ignored, and counted, where no epoch comes after.
        """
        self._holds, self._quiesced = True, quiesced
        try:
            yield
        finally:
            self._holds = self._quiesced = False

    def delete(self, positions: Sequence[int], times: Sequence[int], domain: TimeDomain) -> None:
        """Delete timers; those that are not set are passed over."""
        gone: dict[int, set[int]] = {}
        for position, time_ms in zip(positions, times, strict=True):
            gone.setdefault(position, set()).add(time_ms)
        for position, deleted in gone.items():
            mine = self._timers(position)
            self._now[position] = self._changed(mine, domain, {*mine.times[domain]} - deleted)
            if domain is TimeDomain.PROCESSING_TIME and position in self._held:
                self._held[position] -= deleted

    def end(self) -> None:
        """Write what changed for all keys but the last, whose rows may run on."""
        last = len(self._prefixes) - 1
        if last in self._now:
            self._waiting = self._key(last)
            del self._now[last]
        self._write((self._prefixes[at], self._key(at)) for at in sorted(self._now))

    def finish(self) -> None:
        """Write what was kept back of the last key."""
        if self._waiting is not None:
            self._write([(self._prefixes[-1], self._waiting)])
            self._waiting = None

    # -- what keys have ------------------------------------------------------------------------

    def _due_as_stored(self, span: range, domain: TimeDomain, up_to_ms: int) -> list[int]:
        stored = self._stored
        return [position for position in span if stored[position].firsts[domain] <= up_to_ms]

    def _timers(self, position: int) -> _Timers:
        return self._now.get(position) or self._stored[position]

    def _parsed(self, raw: bytes | None, position: int) -> _Timers:
        """Timers that are not known from another key."""
        if raw is None:
            return _NOTHING
        if not are_packed(raw):
            return self._entries(self._prefixes[position])
        found = self._of(*unpack_timers(raw))
        if found.few:
            self._read[raw] = found
        return found

    def _entries(self, prefix: bytes) -> _Timers:
        """The timers of a key that has an entry for each."""
        cell = prefix + self._sid
        found: tuple[list[int], list[int]] = ([], [])
        for page in pages(self._store, cell, None):
            for key, _ in page:
                if rest := key[len(cell) :]:
                    domain, time_ms = entry_parts(rest)
                    found[domain].append(time_ms)
        # Never shared: others that have the same ones have them packed.
        return _Timers((tuple(found[0]), tuple(found[1])), entries=True)

    def _of(self, event: Iterable[int], processing: Iterable[int]) -> _Timers:
        times = tuple(event), tuple(processing)
        found = self._shared.get(times)
        if found is None:
            found = _Timers(times)
            if found.few:
                self._shared[times] = found
        return found

    def _changed(self, mine: _Timers, domain: TimeDomain, times: set[int]) -> _Timers:
        event, processing = mine.times
        if domain is TimeDomain.EVENT_TIME:
            return self._of(sorted(times), processing)
        return self._of(event, sorted(times))

    def _without_due(
        self, mine: _Timers, domain: TimeDomain, up_to_ms: int
    ) -> tuple[_Timers, tuple[int, ...]]:
        times = mine.times[domain]
        due = tuple(time_ms for time_ms in times if time_ms <= up_to_ms)
        return self._changed(mine, domain, {*times[len(due) :]}), due

    def _key(self, position: int) -> _Key:
        held = frozenset(self._held.get(position, ()))
        return _Key(self._stored[position], self._timers(position), held)

    # -- writing -------------------------------------------------------------------------------

    def _write(self, changed: Iterable[tuple[bytes, _Key]]) -> None:
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for prefix, (before, now, held) in changed:
            after = now
            if held:
                after = self._changed(
                    now, TimeDomain.PROCESSING_TIME, {*now.times[TimeDomain.PROCESSING_TIME], *held}
                )
            self.earliest = min(self.earliest, after.firsts[TimeDomain.PROCESSING_TIME])
            if after is before:
                continue
            writes = self._writes.get((before, after))
            if writes is None:
                writes = _writes_of(before, after)
                if before.few and after.few:
                    self._writes[before, after] = writes
            cell = prefix + self._sid
            for rest, value in writes.cells:
                keys.append(cell + rest)
                values.append(value)
            group, key = prefix[:_GROUP], prefix[KEY_AT:]
            for middle, value in writes.by_time:
                keys.append(group + middle + key)
                values.append(value)
        self._store.write_many(keys, values)


def _writes_of(before: _Timers, after: _Timers) -> _Writes:
    # In one order in every process: attempts at an epoch stage the same bytes.
    form = timer_entries if before.entries else stored_timers
    old = dict(form(*map(list, before.times))) if any(before.times) else {}
    new = dict(stored_timers(*map(list, after.times))) if any(after.times) else {}
    cells: list[tuple[bytes, bytes | None]] = [(r, None) for r in sorted(old.keys() - new.keys())]
    cells += [(rest, value) for rest, value in new.items() if old.get(rest) != value]
    by_time: list[tuple[bytes, bytes | None]] = []
    for kind, was, now in zip(KINDS, before.times, after.times, strict=True):
        for time_ms in sorted({*was}.symmetric_difference(now)):
            middle = timer_entry(0, time_ms, b"", kind)[_GROUP:]
            by_time.append((middle, b"" if time_ms in now else None))
    return _Writes(tuple(cells), tuple(by_time))
