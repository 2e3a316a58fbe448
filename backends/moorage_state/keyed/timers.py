"""Event-time timers of one subtask: set and deleted by key, found by time.

A key's own timers are one packed value beside its state (the truth); an index ordered by time
finds the keys whose timers are due although they got no record. One timer per key and time.
"""

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import msgspec

from moorage_state.keyed.states import fetch_values
from moorage_state.keys import timer_entry

if TYPE_CHECKING:
    from moorage_state.keyed.store import KeyedStateStore

__all__ = ["TIMERS_STATE", "EventTimeTimers"]

TIMERS_STATE = "\0event-timers"
"""The name whose stored id a key's packed timers have; no user's state can be named so."""

_KEY_AT = 7
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[int]).decode


class EventTimeTimers:
    """The current key's event-time timers; times are milliseconds since 1970 in UTC."""

    __slots__ = ("_before", "_loaded", "_raws", "_sid", "_store", "_times")

    def __init__(self, store: "KeyedStateStore") -> None:
        self._store = store
        self._sid = store.claim_id(TIMERS_STATE)
        self._raws: list[bytes | None] | None = None
        self._loaded = False
        self._before: list[int] = []
        self._times: list[int] = []
        store.attach(self)

    def register(self, time_ms: int) -> None:
        """Set a timer of the current key; setting one that is set changes nothing."""
        self._load()
        at = bisect_left(self._times, time_ms)
        if at == len(self._times) or self._times[at] != time_ms:
            insort(self._times, time_ms)

    def delete(self, time_ms: int) -> None:
        """Delete a timer of the current key, if it is set."""
        self._load()
        at = bisect_left(self._times, time_ms)
        if at < len(self._times) and self._times[at] == time_ms:
            del self._times[at]

    def pop_due(self, up_to_ms: int) -> int | None:
        """Take the current key's earliest timer that is due at `up_to_ms`, or None."""
        self._load()
        if self._times and self._times[0] <= up_to_ms:
            return self._times.pop(0)
        return None

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self._raws = None

    def flush(self) -> None:
        """Write what changed for the current key: its packed timers and the index by time."""
        self._loaded = False
        if self._times == self._before:
            return
        store = self._store
        store.write(store.prefix + self._sid, _pack(self._times) if self._times else None)
        group, key = int.from_bytes(store.prefix[:2], "big"), store.prefix[_KEY_AT:]
        before, after = set(self._before), set(self._times)
        for time_ms in sorted(before - after):
            store.write(timer_entry(group, time_ms, key), None)
        for time_ms in sorted(after - before):
            store.write(timer_entry(group, time_ms, key), b"")

    def _load(self) -> None:
        if self._loaded:
            return
        store = self._store
        store.touched.append(self)
        if self._raws is None:
            self._raws = fetch_values(store, self._sid)
        raw = self._raws[store.index]
        self._before = _unpack(raw) if raw is not None else []
        self._times = list(self._before)
        self._loaded = True
