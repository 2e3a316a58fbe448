"""Removing state that has expired and that nobody reads any more, a little at every change of key.

Goes round all entries of states with a time to live for ever, a few at a time. A snapshot is
without what a sweep may remove. Called by the backend; what it removes no read would have given, or
one that may.
"""

from collections.abc import Callable, Iterator
from typing import Any

from moorage_state.backends.hashmap.expiring import is_expired
from moorage_state.backends.hashmap.registered import HeapStates, KeptState

__all__ = ["Sweeper"]

_STEP = 5


class Sweeper:
    """Looks at five entries a step, as Flink's incremental clean-up does."""

    def __init__(self, states: HeapStates, clock_ms: Callable[[], int]) -> None:
        self._states = states
        self._clock_ms = clock_ms
        self._round: Iterator[tuple[KeptState, int, Any]] = iter(())

    def step(self) -> None:
        """Look at the next entries."""
        now = self._clock_ms()
        for _ in range(_STEP):
            found = next(self._round, None)
            if found is None:
                self._round = self._entries()
                return
            _clean(*found, now)

    def _entries(self) -> Iterator[tuple[KeptState, int, Any]]:
        for kept in self._states:
            if kept.meta.sweeps:
                for group, entry in kept.table:
                    yield kept, group, entry


def _clean(kept: KeptState, group: int, entry: Any, now_ms: int) -> None:
    """Remove what of an entry is over; it may be gone already."""
    table, ttl_ms = kept.table, kept.ttl_ms
    found = table.groups[group].get(entry)
    if found is None or not ttl_ms:
        return
    if kept.meta.kind == "list":
        alive = [pair for pair in found if not is_expired(pair[0], ttl_ms, now_ms)]
        if not alive:
            table.discard(group, entry)
        elif len(alive) < len(found):
            table.own_items(group, entry)[:] = alive
    elif kept.meta.kind == "map":
        over = [key for key, pair in found.items() if is_expired(pair[0], ttl_ms, now_ms)]
        if len(over) == len(found):
            table.discard(group, entry)
        elif over:
            entries = table.own_map(group, entry)
            for key in over:
                del entries[key]
    elif is_expired(found[0], ttl_ms, now_ms):
        table.discard(group, entry)
