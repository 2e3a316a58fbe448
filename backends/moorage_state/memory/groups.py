"""The entries of one key group: a dictionary, and their order where somebody asked for it.

Decides when keys are sorted: not before the first scan, and later only what came since. The order
is in runs of some thousand keys, so that a scan after few changes copies the runs that they are in
and no others. Called by `database` and its views.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter

# A frozen group is put in order by whoever scans it first, in any thread; that takes moments.
_ORDER = threading.Lock()

# Up to one changed key in so many is brought to its place one by one.
_FEW = 8

_RUN = 1024
"""Keys of a run; there may be up to twice as many, and fewer."""

_PASSED_OVER = 64
"""Keys that are gone stay in the order until they are more than this: a walk passes them over."""

Order = Sequence[list[bytes]]
"""Runs of keys, none of them empty."""


class Group:
    """Entries by key, which only `put` and `discard` write.

    Views from the moment `born` on see this object; older ones have a copy of their own. What
    `ordered` gave never changes: it may hold keys that are gone, but lacks none that is there.
    """

    __slots__ = ("_fresh", "_gone", "_order", "born", "entries")

    def __init__(self, born: int, entries: dict[bytes, bytes]) -> None:
        self.born = born
        self.entries = entries
        self._order: Order | None = None
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

    def ordered(self) -> Order:
        """All keys in order, and some that are gone."""
        with _ORDER:
            order, gone = self._order, self._gone
            changes = len(self._fresh) + len(gone)
            if not order:
                order = _runs(sorted(self.entries))
            elif not self._fresh and len(gone) <= _PASSED_OVER:
                return order
            elif changes * _FEW > len(self.entries):
                # Two orders, which this sort finds and merges.
                kept = (key for key in chain.from_iterable(order) if key not in gone)
                order = _runs(sorted(chain(kept, sorted(self._new()))))
            else:
                order = _changed(order, sorted(self._new()), sorted(gone))
            self._order, self._fresh, self._gone = order, [], set()
            return order

    def _new(self) -> Iterable[bytes]:
        return (key for key in self._fresh if key not in self._gone)


def run_of(order: Order, key: bytes) -> int:
    """The run in which a key is, or would be."""
    return max(0, bisect_right(order, key, key=itemgetter(0)) - 1)


def _runs(keys: list[bytes]) -> Order:
    return [keys[at : at + _RUN] for at in range(0, len(keys), _RUN)]


def _changed(order: Order, fresh: list[bytes], gone: list[bytes]) -> Order:
    """The order with other keys; runs that stay as they are stay the same objects."""
    changes: dict[int, tuple[list[bytes], set[bytes]]] = {}
    for key in fresh:
        changes.setdefault(run_of(order, key), ([], set()))[0].append(key)
    for key in gone:
        changes.setdefault(run_of(order, key), ([], set()))[1].add(key)
    runs = list(order)
    for at in sorted(changes, reverse=True):
        new, old = changes[at]
        keys = [key for key in runs[at] if key not in old] if old else runs[at]
        keys = sorted(keys + new)
        after = at + 1
        # Small neighbours become one, or there would be ever more of them.
        if len(keys) < _RUN // 4 and after < len(runs):
            keys, after = keys + runs[after], after + 1
        runs[at:after] = _runs(keys) if len(keys) > 2 * _RUN else [keys] if keys else []
    return runs
