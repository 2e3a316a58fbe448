"""The entries of one key group: a dictionary, and their order where somebody asked for it.

Decides when keys are sorted: not before the first scan, and later only what came since. Called by
`database` alone.
"""

import threading
from bisect import bisect_left

# A frozen group is put in order by whoever scans it first, in any thread; that takes moments.
_ORDER = threading.Lock()

# Up to one new key in so many is brought to its place one by one.
_FEW = 8


class Group:
    """Entries by key, which only `put` and `discard` write.

    Views from the moment `born` on see this object; older ones have a copy of their own. A list
    that `ordered` gave never changes: it may hold keys that are gone, but lacks none that is there.
    """

    __slots__ = ("_fresh", "_gone", "_order", "born", "entries")

    def __init__(self, born: int, entries: dict[bytes, bytes]) -> None:
        self.born = born
        self.entries = entries
        self._order: list[bytes] | None = None
        self._fresh: list[bytes] = []
        self._gone: set[bytes] = set()

    def copy(self, born: int) -> "Group":
        """The same entries, to be changed."""
        other = Group(born, self.entries.copy())
        with _ORDER:
            other._order = self._order
            other._fresh = self._fresh.copy()
            other._gone = self._gone.copy()
        return other

    def put(self, key: bytes, value: bytes) -> int:
        """Write an entry; the bytes of the value that it had, -1 if it is new."""
        old = self.entries.get(key)
        self.entries[key] = value
        if old is not None:
            return len(old)
        if self._order is not None:
            if key in self._gone:
                self._gone.discard(key)
            else:
                self._fresh.append(key)
        return -1

    def discard(self, key: bytes) -> int:
        """Delete an entry; the bytes of its value, -1 if there was none."""
        old = self.entries.pop(key, None)
        if old is None:
            return -1
        if self._order is not None:
            self._gone.add(key)
        return len(old)

    def ordered(self) -> list[bytes]:
        """All keys in order, and some that are gone."""
        with _ORDER:
            order = self._order
            if order is None or len(self._gone) > len(self.entries):
                order = sorted(self.entries)
                self._gone = set()
            elif self._fresh:
                order = _merged(order, sorted(self._fresh))
            self._order, self._fresh = order, []
            return order


def _merged(order: list[bytes], fresh: list[bytes]) -> list[bytes]:
    """Both lists as one in order."""
    if len(fresh) * _FEW > len(order):
        # Two runs, which this sort finds and merges.
        return sorted(order + fresh)
    merged: list[bytes] = []
    at = 0
    for key in fresh:
        place = bisect_left(order, key, at)
        merged += order[at:place]
        merged.append(key)
        at = place
    merged += order[at:]
    return merged
