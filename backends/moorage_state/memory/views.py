"""State at one moment, and walks through it in the order of keys. Reads only."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from moorage_state.memory.groups import Group, Order, run_of

PREFIX = 2
"""Bytes of a key that say its group."""


class HeapView:
    """The groups as they are, for as long as nobody changes them."""

    __slots__ = ("_groups", "_names", "path")

    def __init__(self, path: Path, groups: Mapping[bytes, Group], names: list[bytes]) -> None:
        self.path = path
        self._groups = groups
        self._names = names

    def get(self, key: bytes) -> bytes | None:
        """See `RangeView.get`."""
        group = self._groups.get(key[:PREFIX])
        return None if group is None else group.entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `RangeView.get_many`."""
        groups = self._groups.get
        return [
            None if (group := groups(key[:PREFIX])) is None else group.entries.get(key)
            for key in keys
        ]

    @contextmanager
    def cursor(self, lower: bytes, upper: bytes) -> Iterator["HeapCursor"]:
        """See `RangeView.cursor`."""
        yield HeapCursor(self._groups, self._names, lower, upper)

    def groups(self) -> Iterator[tuple[bytes, Group]]:
        """The groups that have entries, in order."""
        for name in self._names:
            group = self._groups[name]
            if group.entries:
                yield name, group


class HeapCursor:
    """See `RangeCursor`. Groups are sorted when the cursor comes to them."""

    __slots__ = (
        "_at",
        "_entries",
        "_group",
        "_groups",
        "_keys",
        "_lower",
        "_names",
        "_order",
        "_run",
        "_upper",
    )

    def __init__(
        self, groups: Mapping[bytes, Group], names: list[bytes], lower: bytes, upper: bytes
    ) -> None:
        self._groups = groups
        self._names = names
        self._lower = lower
        self._upper = upper
        self._order: Order = []
        self._run = 0
        self._keys: list[bytes] = []
        self._entries: Mapping[bytes, bytes] = {}
        self._enter(0)

    def seek(self, key: bytes) -> bytes | None:
        """See `RangeCursor.seek`."""
        key = max(key, self._lower)
        name = key[:PREFIX]
        self._enter(bisect_left(self._names, name))
        if self._keys and self._names[self._group] == name:
            self._enter_run(run_of(self._order, key))
            self._at = bisect_left(self._keys, key)
        return self.key()

    def key(self) -> bytes | None:
        """See `RangeCursor.key`."""
        while self._group < len(self._names):
            keys, entries = self._keys, self._entries
            while self._at < len(keys):
                key = keys[self._at]
                if key in entries:
                    return key if key < self._upper else None
                self._at += 1
            if self._run + 1 < len(self._order):
                self._enter_run(self._run + 1)
            else:
                self._enter(self._group + 1)
        return None

    def take(self, end: bytes, entries: int, size: int) -> tuple[list[bytes], list[bytes], bool]:
        """See `RangeCursor.take`."""
        end = min(end, self._upper)
        keys: list[bytes] = []
        values: list[bytes] = []
        total = 0
        while (key := self.key()) is not None and key < end:
            if len(keys) >= entries or total >= size:
                return keys, values, False
            found = self._page(end, entries - len(keys))
            got = list(map(self._entries.__getitem__, found))
            used = sum(map(len, found)) + sum(map(len, got))
            if total + used > size:
                most = _fitting(found, got, size - total)
                # Back to the first that did not fit.
                self._at = bisect_left(self._keys, found[most - 1]) + 1
                del found[most:], got[most:]
                used = sum(map(len, found)) + sum(map(len, got))
            keys += found
            values += got
            total += used
        return keys, values, True

    def take_keys(self, end: bytes, entries: int) -> list[bytes]:
        """See `RangeCursor.take_keys`."""
        end = min(end, self._upper)
        keys: list[bytes] = []
        while len(keys) < entries and (key := self.key()) is not None and key < end:
            keys += self._page(end, entries - len(keys))
        return keys

    def _page(self, end: bytes, most: int) -> list[bytes]:
        """Keys of this run that are there, from the one at the cursor on, and step behind."""
        stop = min(bisect_left(self._keys, end, self._at), self._at + most)
        page, self._at = self._keys[self._at : stop], stop
        entries = self._entries
        return [key for key in page if key in entries]

    def _enter(self, group: int) -> None:
        self._group, self._order = group, []
        if group < len(self._names):
            found = self._groups[self._names[group]]
            self._order, self._entries = found.ordered(), found.entries
        self._enter_run(0)

    def _enter_run(self, run: int) -> None:
        self._run, self._at = run, 0
        self._keys = self._order[run] if run < len(self._order) else []


def _fitting(keys: list[bytes], values: list[bytes], size: int) -> int:
    """How many entries come before their bytes reach `size`, with the one that does."""
    total = 0
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        if total >= size:
            return number
        total += len(key) + len(value)
    return len(keys)
