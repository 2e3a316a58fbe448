"""State as objects, one dictionary for each state and key group, copied when a snapshot needs it.

Decides what a snapshot costs the writer. Taking one notes which dictionaries there are: no entry is
looked at. From then on a dictionary or a list that the snapshot has is never changed again; whoever
writes to it takes a copy of that one first, the dictionary of one key group at most once for each
snapshot. Written by one thread; read through snapshots by any.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["Entries", "Items", "StateTable", "Versions"]


class Versions:
    """Tells which containers snapshots have.

    A container remembers the moment of its making. A snapshot has those that were made before it.

    Attributes:
        current: the moment, for new containers.
        required: containers made up to this moment must not be changed. Read by the writer without
            a lock: it is raised by the writer itself, and a fall that is seen late costs a copy.
    """

    __slots__ = ("_lock", "_taken", "current", "required")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[int, int] = {}
        self.current = 0
        self.required = -1

    def take(self) -> int:
        """Begin a snapshot of what there is now; called by the writer."""
        with self._lock:
            moment = self.current
            self.current += 1
            self._taken[moment] = moment
            self.required = moment
        return moment

    def release(self, moment: int) -> None:
        """End the snapshot; idempotent, from any thread."""
        with self._lock:
            self._taken.pop(moment, None)
            self.required = max(self._taken, default=-1)


class Entries(dict[Any, Any]):
    """A dictionary with the moment of its making: a key group, or the map of a map state."""

    __slots__ = ("born",)
    born: int


class Items(list[Any]):
    """A list with the moment of its making: of a list state."""

    __slots__ = ("born",)
    born: int


class StateTable:
    """One state: for each key group a dictionary from entry to object.

    An entry is the bytes of a key, or a pair of those and the bytes of a namespace.

    Attributes:
        groups: by the place of the key group in the range. The list is the same for ever, what is
            in it changes when a group is copied.
    """

    __slots__ = ("groups", "versions")

    def __init__(self, count: int, versions: Versions) -> None:
        self.versions = versions
        self.groups: list[Entries] = [self._new_entries() for _ in range(count)]

    def own(self, group: int) -> Entries:
        """The dictionary of a key group, to be changed."""
        found = self.groups[group]
        if found.born <= self.versions.required:
            found = self.groups[group] = self._copied(found)
        return found

    def own_items(self, group: int, entry: Any) -> Items:
        """The list of an entry, to be changed; made where there is none."""
        entries = self.own(group)
        found: Items | None = entries.get(entry)
        if found is None or found.born <= self.versions.required:
            found = entries[entry] = self._new_items(found or ())
        return found

    def own_map(self, group: int, entry: Any) -> Entries:
        """The map of an entry, to be changed; made where there is none."""
        entries = self.own(group)
        found: Entries | None = entries.get(entry)
        if found is None:
            found = entries[entry] = self._new_entries()
        elif found.born <= self.versions.required:
            found = entries[entry] = self._copied(found)
        return found

    def discard(self, group: int, entry: Any) -> None:
        """Delete an entry; harmless where there is none."""
        if entry in self.groups[group]:
            del self.own(group)[entry]

    def replace(self, one: Callable[[Any], Any], kind: str) -> None:
        """Put `one(value)` in the place of every value: of all of them, or of none if it raises.

        Args:
            kind: that of the state; of a list or a map the values are within the object.
        """
        made = [self._new_entries() for _ in self.groups]
        for new, entries in zip(made, self.groups, strict=True):
            for entry, found in entries.items():
                if kind == "list":
                    new[entry] = self._new_items(map(one, found))
                elif kind == "map":
                    new[entry] = self._new_entries((k, one(value)) for k, value in found.items())
                else:
                    new[entry] = one(found)
        self.groups[:] = made

    def captured(self) -> tuple[Entries, ...]:
        """The dictionaries that a snapshot taken now has."""
        return tuple(self.groups)

    def clear(self) -> None:
        """Delete everything."""
        for at, entries in enumerate(self.groups):
            if entries:
                self.groups[at] = self._new_entries()

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Key group and entry of all there is now."""
        for at, entries in enumerate(list(self.groups)):
            for entry in list(entries):
                yield at, entry

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    def _new_entries(self, entries: Iterable[tuple[Any, Any]] = ()) -> Entries:
        made = Entries(entries)
        made.born = self.versions.current
        return made

    def _new_items(self, items: Iterable[Any]) -> Items:
        made = Items(items)
        made.born = self.versions.current
        return made

    def _copied(self, found: Entries) -> Entries:
        made = Entries(found)
        made.born = self.versions.current
        return made
