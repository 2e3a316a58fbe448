"""The handles of states with a time to live that are kept as objects.

What is kept is a pair: when it was last used, in milliseconds, and the object; of a list or a map
each element or entry. What has expired goes when it is read; elsewhere as its state is swept.
"""

from collections.abc import Iterable
from typing import Any

from moorage_state.backends.hashmap.context import Context
from moorage_state.backends.hashmap.states import (
    HeapListState,
    HeapMapState,
    HeapValueState,
)
from moorage_state.backends.hashmap.tables import Entries, Items, StateTable
from moorage_state.timetolive import StateTtlConfig

__all__ = [
    "ExpiringListState",
    "ExpiringMapState",
    "ExpiringValueState",
    "is_expired",
]


def is_expired(stamp_ms: int, ttl_ms: int, now_ms: int) -> bool:
    """Whether the time of what was last used at `stamp_ms` is over."""
    return stamp_ms + ttl_ms <= now_ms


class _Clock:
    """Reads the time for a state."""

    __slots__ = ("_now", "on_read", "returns_expired", "ttl_ms")

    def __init__(self, context: Context, config: StateTtlConfig) -> None:
        self._now = context.clock_ms
        self.ttl_ms = config.ttl_ms
        self.on_read = config.updates_on_read
        self.returns_expired = config.returns_expired

    def now(self) -> int:
        return self._now()

    def is_over(self, stamp_ms: int, now_ms: int) -> bool:
        return is_expired(stamp_ms, self.ttl_ms, now_ms)


class ExpiringValueState(HeapValueState):
    """A value with a time to live."""

    __slots__ = ("_clock",)

    def __init__(self, context: Context, table: StateTable, descriptor: Any) -> None:
        super().__init__(context, table, descriptor)
        self._clock = _Clock(context, descriptor.ttl)

    def value(self) -> Any:
        """See `HeapValueState`; begins its time anew if reading does."""
        found = self._found()
        if found is None:
            return None
        stamp, value = found
        clock = self._clock
        now = clock.now()
        if clock.is_over(stamp, now):
            self.clear()
            return self._out(value) if clock.returns_expired else None
        if clock.on_read and stamp != now:
            self._table.own(self._context.group)[self._entry()] = (now, value)
        return self._out(value)

    def live(self) -> Any:
        """See `HeapValueState`."""
        found = self._found()
        if found is None:
            return None
        if self._clock.is_over(found[0], self._clock.now()):
            self.clear()
            return None
        return self._out(found[1])

    def update(self, value: Any) -> None:
        """See `HeapValueState`."""
        if value is None:
            self.clear()
            return
        pair = (self._clock.now(), self._settle(value))
        self._table.own(self._context.group)[self._entry()] = pair

    def take_over(self, other: Any) -> None:
        """See `HeapValueState`; as old as it is."""
        self._table.own(self._context.group)[self._entry()] = other.stamped()

    def stamped(self) -> tuple[int, Any]:
        """The value, which there is, and when it was last used."""
        found: tuple[int, Any] = self._found()
        return found


class ExpiringListState(HeapListState):
    """A list whose elements have each a time to live."""

    __slots__ = ("_clock",)

    def __init__(self, context: Context, table: StateTable, descriptor: Any) -> None:
        super().__init__(context, table, descriptor)
        self._clock = _Clock(context, descriptor.ttl)

    def get(self) -> list[Any]:
        """See `HeapListState`."""
        found: Items | None = self._found()
        if not found:
            return []
        clock = self._clock
        now = clock.now()
        alive = [pair for pair in found if not clock.is_over(pair[0], now)]
        shown = found if clock.returns_expired else alive
        values = [self._out(value) for _, value in shown]
        if clock.on_read:
            self._keep([(now, value) for _, value in alive])
        elif len(alive) < len(found):
            self._keep(alive)
        return values

    def add(self, value: Any) -> None:
        """See `HeapListState`."""
        pair = (self._clock.now(), self._settle(value))
        self._table.own_items(self._context.group, self._entry()).append(pair)

    def add_all(self, values: Iterable[Any]) -> None:
        """See `HeapListState`."""
        settled = [self._settle(value) for value in values]
        if settled:
            now = self._clock.now()
            items = self._table.own_items(self._context.group, self._entry())
            items.extend((now, value) for value in settled)

    def update(self, values: Iterable[Any]) -> None:
        """See `HeapListState`."""
        settled = [self._settle(value) for value in values]
        now = self._clock.now()
        self._keep([(now, value) for value in settled])

    def absorb(self, other: Any) -> None:
        """See `HeapListState`; each element as old as it is.

        What has expired is left behind, unless it may be read.
        """
        pairs = other.stamped()
        if pairs:
            self._table.own_items(self._context.group, self._entry()).extend(pairs)
        other.clear()

    def stamped(self) -> list[tuple[int, Any]]:
        """What may be seen of the list, and when each was last used."""
        clock = self._clock
        now = clock.now()
        return [
            pair
            for pair in self._found() or ()
            if clock.returns_expired or not clock.is_over(pair[0], now)
        ]

    def _keep(self, pairs: list[tuple[int, Any]]) -> None:
        self.clear()
        if pairs:
            self._table.own_items(self._context.group, self._entry()).extend(pairs)


class ExpiringMapState(HeapMapState):
    """A map whose entries have each a time to live."""

    __slots__ = ("_clock",)

    def __init__(self, context: Context, table: StateTable, descriptor: Any) -> None:
        super().__init__(context, table, descriptor)
        self._clock = _Clock(context, descriptor.ttl)

    def put(self, key: Any, value: Any) -> None:
        """See `HeapMapState`."""
        settled_key, settled = self._check_key(key), self._settle(value)
        entries = self._table.own_map(self._context.group, self._entry())
        entries[settled_key] = (self._clock.now(), settled)

    def items(self) -> list[tuple[Any, Any]]:
        """See `HeapMapState`."""
        found: Entries | None = self._found()
        if not found:
            return []
        clock = self._clock
        now = clock.now()
        over = {key for key, (stamp, _) in found.items() if clock.is_over(stamp, now)}
        shown = [
            (key, self._out(value))
            for key, (stamp, value) in found.items()
            if clock.returns_expired or not clock.is_over(stamp, now)
        ]
        if clock.on_read:
            self._touch([key for key in found if key not in over], now)
        for key in over:
            self.remove(key)
        return shown

    def is_empty(self) -> bool:
        """See `HeapMapState`; cleans nothing up."""
        found: Entries | None = self._found()
        if not found:
            return True
        clock = self._clock
        now = clock.now()
        return not clock.returns_expired and all(
            clock.is_over(stamp, now) for stamp, _ in found.values()
        )

    def _lookup(self, key: Any) -> Any:
        found: Entries | None = self._found()
        pair = None if found is None else found.get(key)
        if pair is None:
            return None
        stamp, value = pair
        clock = self._clock
        now = clock.now()
        if clock.is_over(stamp, now):
            self.remove(key)
            if not clock.returns_expired:
                return None
        elif clock.on_read:
            self._touch([key], now)
        return self._out(value)

    def _touch(self, keys: list[Any], now: int) -> None:
        if not keys:
            return
        entries = self._table.own_map(self._context.group, self._entry())
        for key in keys:
            entries[key] = (now, entries[key][1])
