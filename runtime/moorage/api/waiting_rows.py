"""Rows of a key that wait in state by their event time, in order for as long as it has its turn.

All rows and timers of a key in an epoch come one after the other, so what the first of them has
read and sorted is there for the others. Called by the joins that keep rows.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from moorage_state.codecs import settler
from moorage_state.descriptors import MapStateDescriptor, ValueStateDescriptor
from moorage_state.types import parse_type

INTERVAL_ROWS = "left-rows", "right-rows"
ROWS, VERSIONS, LATEST = "rows", "versions", "latest"
"""Names of states; they are on disk."""


def waiting_rows(name: str, kind: str) -> MapStateDescriptor:
    """A state of rows of this DDL type by their event time; several may have the same."""
    return MapStateDescriptor(name, "bigint", f"array<{kind}>")


def versions(kind: str) -> MapStateDescriptor:
    """The state of versions of this DDL type by the time from which each holds."""
    return MapStateDescriptor(VERSIONS, "bigint", kind)


def latest(kind: str) -> ValueStateDescriptor:
    """The state of the version of this DDL type that came last."""
    return ValueStateDescriptor(LATEST, kind)


def row_settler(kind: str) -> Callable[[Any], Any] | None:
    """What gives rows of this DDL type as they are read from state.

    None where they come so: of those with structs in them these come as dicts, and are read as
    named tuples.
    """
    nested = any(column.children for column in parse_type(kind).children)
    return settler(kind) if nested else None


class _OfOneKey:
    """What is in order for as long as a key has its turn.

    Args:
        state: handle of a map by time.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._key: Any = None
        self._forget()

    def _forget(self) -> None:
        self._times: list[int] | None = None

    def _load(self) -> Iterable[int]:
        """The times that the state has."""
        return self._state.keys()  # type: ignore[no-any-return]  # a handle, of whatever kind

    def _in_order(self) -> list[int]:
        if self._times is None:
            self._times = sorted(self._load())
        return self._times

    def turn_of(self, key: Any) -> None:
        """Which key is the current one."""
        if key != self._key:
            self._key = key
            self._forget()


class WaitingRows(_OfOneKey):
    """Rows by event time; several may have the same.

    Args:
        state: handle of a map of lists of rows by their time.
        kind: the DDL type of a row.
    """

    def __init__(self, state: Any, kind: str) -> None:
        super().__init__(state)
        self._settle = row_settler(kind)

    def _forget(self) -> None:
        super()._forget()
        self._rows: dict[int, list[Any]] = {}

    def _load(self) -> Iterable[int]:
        self._rows = dict(self._state.entries())
        return self._rows

    @property
    def first(self) -> int | None:
        """The earliest time of which a row waits."""
        times = self._in_order()
        return times[0] if times else None

    def add(self, at: int, row: Any) -> Any:
        """Let a row wait; gives it as it is read later."""
        row = row if self._settle is None else self._settle(row)
        known = self._times is not None
        rows = self._rows.get(at) if known else self._state.get(at)
        if rows is None:
            rows = []
            if self._times is not None:
                insort(self._times, at)
                self._rows[at] = rows
        rows.append(row)
        # Not `put`: rows of one time, such as a day, may be many, and each would write all of them.
        self._state.put_when_done(at, rows)
        return row

    def between(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """The rows of these times and all between, with their times, in order."""
        times = self._in_order()
        for at in times[bisect_left(times, first) : bisect_right(times, last)]:
            for row in self._rows[at]:
                yield at, row

    def remove_until(self, last: int) -> None:
        """Forget the rows of this time and of those before it."""
        for at in self.until(last):
            self.remove(at)

    def until(self, last: int) -> list[int]:
        """The times, up to this one, of which rows wait."""
        times = self._in_order()
        return times[: bisect_right(times, last)]

    def take(self, at: int) -> list[Any]:
        """The rows of a time, which are forgotten."""
        rows: list[Any] = self._state.get(at) or []
        self.remove(at)
        return rows

    def remove(self, at: int) -> None:
        """Forget the rows of a time."""
        self._state.remove(at)
        if self._times is not None and self._rows.pop(at, None) is not None:
            del self._times[bisect_left(self._times, at)]


class Versions(_OfOneKey):
    """Versions of something by the time from which each holds; the last one of a time counts.

    Args:
        state: handle of a map of versions by their time.
    """

    def put(self, at: int, version: Any) -> None:
        """Keep a version."""
        self._state.put(at, version)
        times = self._times
        if times is not None and times[(place := bisect_left(times, at)) : place + 1] != [at]:
            times.insert(place, at)

    def get(self, at: int) -> Any:
        """The version that holds at this time, None where there is none yet."""
        times = self._in_order()
        later = bisect_right(times, at)
        return self._state.get(times[later - 1]) if later else None

    def forget_before(self, at: int) -> int | None:
        """Forget those before the version that holds at this time; when the one after it begins."""
        times = self._in_order()
        later = bisect_right(times, at)
        older = max(later - 1, 0)
        for gone in times[:older]:
            self._state.remove(gone)
        following = times[later] if later < len(times) else None
        del times[:older]
        return following
