"""The kinds of keyed state as a function sees them, whatever backend holds them.

Decides what every backend's handles promise; the contract suite in the tests holds all of them to
it. Called by user functions through the handles that a backend gives, which are subclasses. Knows
no storage.

What holds for every kind: a handle speaks of the current key and is used between `open` and
`close` of its function only. A state that was never written, one that was cleared and an empty one
are the same. None is never stored. What is given to a state belongs to the state: it reads back
equal to what was declared (an int given to a `double` as a float, a dict given to a struct as a
named tuple), now as well as after a restore. Change state with its methods, never in place.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any


class State(ABC):
    """Any state of the current key."""

    __slots__ = ()

    @abstractmethod
    def clear(self) -> None:
        """Remove what the current key has; harmless where it has nothing."""


class ValueState(State):
    """One value per key; None when there is none."""

    __slots__ = ()

    @abstractmethod
    def value(self) -> Any:
        """The current key's value, or None. Change it with `update`, not in place."""

    @abstractmethod
    def update(self, value: Any) -> None:
        """Set the current key's value; None clears it.

        Raises:
            StateTypeError: when the value is not of the declared type (at the next `value`, or
                when the key is done).
        """


class AppendingState(State):
    """A state to which values are added and out of which something may come."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> Any:
        """What came of the values that were added to the current key's state."""

    @abstractmethod
    def add(self, value: Any) -> None:
        """Add one value.

        Raises:
            StateTypeError: when it, or what comes of it, is not of the declared type.
        """


class MergingState(AppendingState):
    """An appending state whose contents in several namespaces can become one."""

    __slots__ = ()


class ListState(MergingState):
    """A list per key. Adding reads nothing; an empty list is the same as no list."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> list[Any]:
        """A new list of the current key's elements, in the order they were added."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """The elements that are there now, in order; a long list is read page by page."""

    @abstractmethod
    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements: all of them, or none where one is not of the declared type."""

    @abstractmethod
    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty one clears it."""


class ReducingState(MergingState):
    """One value per key, to which each value that is added is reduced.

    The function must be associative and must not change its arguments.
    """

    __slots__ = ()

    @abstractmethod
    def get(self) -> Any:
        """The reduced value, or None where nothing was added."""

    @abstractmethod
    def add_all(self, values: Iterable[Any]) -> None:
        """Add several values, reduced among themselves first; none where there is none."""


class AggregatingState(MergingState):
    """An accumulator per key, into which values are added and out of which a result is made.

    The values, the accumulator and the result may be of three types; only the accumulator is
    stored, so only its type is declared.
    """

    __slots__ = ()

    @abstractmethod
    def get(self) -> Any:
        """The result for the current key's accumulator, or None where nothing was added."""

    @abstractmethod
    def add_all(self, values: Iterable[Any]) -> None:
        """Add several values, one after the other."""


class FoldingState(AppendingState):
    """Deprecated: an `AggregatingState` with an initial value and a function that folds into it."""

    __slots__ = ()


class MapState(State):
    """A map per key, read whole where it is small and entry by entry where it is large.

    The order of entries is not part of the contract. A value is never None. Change a value with
    `put`, not in place.

    Raises (every method that takes a key): `StateTypeError` when it is not of the declared type.
    """

    __slots__ = ()

    @abstractmethod
    def get(self, key: Any, default: Any = None) -> Any:
        """The value under `key`, or `default`."""

    @abstractmethod
    def contains(self, key: Any) -> bool:
        """Whether there is a value under `key`."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Set the value under `key`.

        Raises:
            StateTypeError: when the value is not of the declared type; None is none.
        """

    @abstractmethod
    def put_all(self, entries: dict[Any, Any]) -> None:
        """Set several values."""

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Remove the value under `key`, if there is one."""

    @abstractmethod
    def items(self) -> list[tuple[Any, Any]]:
        """All entries, as they are at this moment."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[Any, Any]]:
        """The entries that are there now; those of a large map are read page by page."""

    @abstractmethod
    def keys(self) -> list[Any]:
        """All keys, as they are at this moment."""

    @abstractmethod
    def values(self) -> list[Any]:
        """All values, as they are at this moment."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the map has no entry."""

    def __getitem__(self, key: Any) -> Any:
        """The same as `get`: None, and no error, where there is no entry."""
        return self.get(key)

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self.remove(key)

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """The keys that are there now; those of a large map are read page by page."""
