"""Timers of one subtask: set and deleted by key, found by time.

A key's own timers lie beside its state (the truth); an index ordered by time finds the keys whose
timers are due although they got no record. One timer per key, domain and time.

Few timers of a key are one packed value. Many are an entry each behind it (`many_timers`), so that
setting or firing one costs the same however many there are.
"""

from bisect import bisect_left
from enum import IntEnum
from operator import index
from typing import TYPE_CHECKING, Any

from moorage_state.keyed.many_timers import (
    ManyTimers,
    are_packed,
    pack_timers,
    too_many,
    unpack_timers,
    write_index,
)
from moorage_state.keyed.scanning import fetch_values
from moorage_state.keylayout import EVENT_TIMERS, PROCESSING_TIMERS

if TYPE_CHECKING:
    from moorage_state.keyed.scanning import Values
    from moorage_state.keyed.state_store import KeyedStateStore

TIMERS_STATE = "\0timers"
"""The name whose stored id a key's packed timers have; no user's state can be named so."""

MIN_TIME, MAX_TIME = -(1 << 63), (1 << 63) - 1
"""The first and last millisecond that a timer can have."""

NOTHING_HELD = MIN_TIME - 1
"""As `KeyTimers.held_to`: no timer waits for the next epoch that is due in this one."""

_NONE: tuple[list[int], list[int]] = ([], [])


class TimeDomain(IntEnum):
    """What kind of time a timer waits for."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1


def timer_time(given: Any) -> int:
    """The time of a timer as it is stored; TypeError for no integer, ValueError beyond 64 bits."""
    # A bool is an int to Python, and no time.
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(
            f"a timer's time is an integer of milliseconds since 1970 UTC: got={given!r} of type "
            f"{type(given).__name__}"
        )
    time_ms = int(index(given))
    if not MIN_TIME <= time_ms <= MAX_TIME:
        raise ValueError(f"a timer's time does not fit 64 bits: got={time_ms}")
    return time_ms


class KeyTimers:
    """The current key's timers; times are milliseconds since 1970 in UTC.

    Attributes:
        loaded: whether those of the current key were looked at.
        held_to: processing-time timers that are set for this time or an earlier one wait for the
            next epoch: see `NOTHING_HELD`. For whoever calls `on_timer`.
        earliest: the earliest processing time that a key, among those looked at, was left with.
        quiesced: whether timers that are set anew are ignored (and counted), as nothing comes
            after. For ranges in which nothing is stored.
    """

    __slots__ = (
        "_before",
        "_fired",
        "_held",
        "_many",
        "_raws",
        "_sid",
        "_store",
        "_times",
        "earliest",
        "held_to",
        "ignored",
        "loaded",
        "quiesced",
    )

    def __init__(self, store: "KeyedStateStore") -> None:
        self._store = store
        self._sid = store.claim_id(TIMERS_STATE)
        self._raws: Values | None = None
        self.loaded = False
        self.earliest = MAX_TIME
        self.held_to = NOTHING_HELD
        self.quiesced = False
        self.ignored = 0
        # Set in this epoch, of the next one.
        self._held: set[int] = set()
        self._before: tuple[list[int], list[int]] = ([], [])
        self._times: tuple[list[int], list[int]] = ([], [])
        # So many of the times at the front have fired. Taking them out one by one would cost a
        # key with very many timers the square of their number.
        self._fired = [0, 0]
        # Of a key that has its timers in entries: what holds for it instead of the above.
        self._many: ManyTimers | None = None
        store.attach(self)

    def register(self, time_ms: int, domain: TimeDomain = TimeDomain.EVENT_TIME) -> bool:
        """Set a timer of the current key; False where it is known to be set: nothing is changed."""
        if not self.loaded:
            self._load()
        if self._many is not None:
            return self._many.register(time_ms, domain, self.held_to)
        times, first = self._times[domain], self._fired[domain]
        at = bisect_left(times, time_ms, first)
        if at < len(times) and times[at] == time_ms:
            return False
        if self.quiesced:
            self.ignored += 1
            return False
        # A timer set while timers of this epoch's time fire must not fire in the same epoch: a
        # function that sets one again and again would never let it end.
        if domain and (time_ms <= self.held_to or time_ms in self._held):
            self._held.add(time_ms)
        else:
            times.insert(at, time_ms)
        return True

    def delete(self, time_ms: int, domain: TimeDomain = TimeDomain.EVENT_TIME) -> bool:
        """Delete a timer of the current key; whether it was set, and is not held."""
        if not self.loaded:
            self._load()
        if self._many is not None:
            return self._many.delete(time_ms, domain)
        times, first = self._times[domain], self._fired[domain]
        at = bisect_left(times, time_ms, first)
        if at < len(times) and times[at] == time_ms:
            del times[at]
            return True
        if domain:
            self._held.discard(time_ms)
        return False

    def pop_due(self, up_to_ms: int, domain: TimeDomain = TimeDomain.EVENT_TIME) -> int | None:
        """Take the current key's earliest timer that is due at `up_to_ms`, or None."""
        if not self.loaded:
            self._load()
        if self._many is not None:
            return self._many.pop_due(up_to_ms, domain)
        times, first = self._times[domain], self._fired[domain]
        if first < len(times) and times[first] <= up_to_ms:
            self._fired[domain] = first + 1
            return times[first]
        return None

    def first_stored(self) -> tuple[int, int]:
        """The key's earliest event and processing times as the epoch found them."""
        if not self.loaded:
            self._load()
        if self._many is not None:
            return self._many.found
        event, processing = self._before
        return (  # beyond the last time there is for none
            event[0] if event else MAX_TIME + 1,
            processing[0] if processing else MAX_TIME + 1,
        )

    def has_due(self, watermark: int, now_ms: int) -> bool:
        """Whether the current key has timers that are due at these times, and not held."""
        if not self.loaded:
            self._load()
        if self._many is not None:
            return self._many.has_due(watermark, now_ms)
        (event, processing), (by_event, by_clock) = self._times, self._fired
        return (by_event < len(event) and event[by_event] <= watermark) or (
            by_clock < len(processing) and processing[by_clock] <= now_ms
        )

    def had_due(self, watermark: int, now_ms: int) -> bool:
        """Whether some were due as the epoch found them; of a key that was looked at."""
        if not self.loaded:
            return False
        if self._many is not None:
            event_ms, processing_ms = self._many.found
            return event_ms <= watermark or processing_ms <= now_ms
        event, processing = self._before
        return bool(event and event[0] <= watermark) or bool(processing and processing[0] <= now_ms)

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self._raws = None

    def flush(self) -> None:
        """Write what changed for the current key: its timers and the index by time."""
        self.loaded = False
        if self._many is not None:
            self.earliest = min(self.earliest, self._many.flush())
            self._many = None
            return
        event, processing = self._times
        by_event, by_clock = self._fired
        if by_event:
            del event[:by_event]
        if by_clock:
            del processing[:by_clock]
        if self._held:
            processing[:] = sorted(self._held.union(processing))
            self._held.clear()
        if processing and processing[0] < self.earliest:
            self.earliest = processing[0]
        if self._times == self._before:
            return
        store, before = self._store, self._before
        if too_many(event, processing):
            ManyTimers.begin(store, self._sid, event, processing)
        else:
            raw = pack_timers(event, processing) if event or processing else None
            store.write(store.prefix + self._sid, raw)
        if event != before[0]:
            self._write_index(EVENT_TIMERS, before[0], event)
        if processing != before[1]:
            self._write_index(PROCESSING_TIMERS, before[1], processing)

    def _write_index(self, kind: int, before: list[int], after: list[int]) -> None:
        gone, new = before, after
        if before and after:
            gone, new = sorted(set(before).difference(after)), sorted(set(after).difference(before))
        write_index(self._store, kind, gone, None)
        write_index(self._store, kind, new, b"")

    def _load(self) -> None:
        store = self._store
        store.touched.append(self)
        if self._raws is None:
            self._raws = fetch_values(store, self._sid)
        raw = self._raws[store.index]
        self._fired = [0, 0]
        if raw is None:
            self._before, self._times = _NONE, ([], [])
        elif not are_packed(raw):
            self._many = ManyTimers(store, self._sid, raw)
        else:
            self._before = event, processing = unpack_timers(raw)
            self._times = list(event), list(processing)
        self.loaded = True
