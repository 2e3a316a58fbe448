"""State of types whose values can be changed in place: arrays, maps, objects, structs of such.

Decides that what a user has is never what the state has: a value is made bytes when it is given,
and each read makes another object of the bytes. The handles here stand before those of the bytes
(`cell`), which know of no type. Called by user functions.
"""
# ruff: noqa: D102  `interfaces` documents the methods

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from moorage_state.checks import each_of, entries_of
from moorage_state.keyed import interfaces
from moorage_state.keyed.value_states import OverCell

if TYPE_CHECKING:
    from moorage_state.keyed.lists import StoredListState
    from moorage_state.keyed.maps import StoredMapState
    from moorage_state.keyed.schema import StateCodec
    from moorage_state.keyed.value_states import StoredValueState


class _Detached(OverCell):
    """What is common to them; `cell` is the handle of the bytes."""

    __slots__ = ("_decode", "_encode")

    def __init__(self, cell: Any, codec: "StateCodec") -> None:
        super().__init__(cell)
        self._encode, self._decode = codec.encode, codec.decode


class DetachedValueState(_Detached, interfaces.ValueState):
    """A value; also the cell of a reducing or aggregating state."""

    __slots__ = ("_late",)

    cell: "StoredValueState"

    def __init__(self, cell: Any, codec: "StateCodec") -> None:
        super().__init__(cell, codec)
        self._late: Callable[[], Any] | None = None

    def value(self) -> Any:
        self.flush()
        raw = self.cell.value()
        return None if raw is None else self._decode(raw)

    def live(self) -> Any:
        """The value as further values are added to it: never one that has expired."""
        self.flush()
        raw = self.cell.live()
        return None if raw is None else self._decode(raw)

    def update(self, value: Any) -> None:
        self._late = None
        self.cell.update(None if value is None else self._encode(value))

    def update_when_done(self, make: Callable[[], Any]) -> None:
        """Update to what `make` gives, which is asked for it once the current key is done.

        For who keeps a long value by itself, and changes it again and again.
        """
        if self._late is None:
            self.cell.flush_with(self)
        self._late = make

    def clear(self) -> None:
        self._late = None
        self.cell.clear()

    def flush(self) -> None:
        """Take what waits for the key to be done; the cell, which that touches, writes it."""
        make, self._late = self._late, None
        if make is not None:
            self.update(make())

    def take_over(self, other: "DetachedValueState") -> None:
        """Make the value of `other` this one's, as old as it is."""
        self.flush()
        other.flush()
        self.cell.take_over(other.cell)

    def give(self, raw: bytes | None) -> None:
        """Take what is stored for the current key, which was fetched with others."""
        self.cell.give(raw)


class DetachedListState(_Detached, interfaces.ListState):
    """A list whose elements are the caller's own."""

    __slots__ = ()

    cell: "StoredListState"

    def get(self) -> list[Any]:
        return list(map(self._decode, self.cell.get()))

    def __iter__(self) -> Iterator[Any]:
        return map(self._decode, iter(self.cell))

    def add(self, value: Any) -> None:
        self.cell.add(self._encode(value))

    def add_all(self, values: Iterable[Any]) -> None:
        self.cell.add_all([self._encode(value) for value in each_of(values)])

    def update(self, values: Iterable[Any]) -> None:
        self.cell.update([self._encode(value) for value in each_of(values)])

    def absorb(self, other: "DetachedListState") -> None:
        """Take over what the same state has in another namespace, which is cleared."""
        self.cell.absorb(other.cell)


class DetachedMapState(_Detached, interfaces.MapState):
    """A map whose values are the caller's own."""

    __slots__ = ("_late",)

    cell: "StoredMapState"

    def __init__(self, cell: Any, codec: "StateCodec") -> None:
        super().__init__(cell, codec)
        self._late: dict[Any, Any] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        if key in self._late:
            return self._late[key]
        raw = self.cell.get(key)
        return default if raw is None else self._decode(raw)

    def contains(self, key: Any) -> bool:
        return key in self._late or self.cell.contains(key)

    def put(self, key: Any, value: Any) -> None:
        self._late.pop(key, None)
        self.cell.put(key, self._encode(value))

    def put_when_done(self, key: Any, value: Any) -> None:
        """Put a value that the caller goes on to change: made bytes once the current key is done.

        For who adds to a long value again and again; until then `get` gives this very object.
        """
        if not self._late:
            self.cell.flush_with(self)
        self._late[key] = value

    def put_all(self, entries: dict[Any, Any]) -> None:
        for key, value in entries_of(entries):
            self.put(key, value)

    def remove(self, key: Any) -> None:
        self._late.pop(key, None)
        self.cell.remove(key)

    def clear(self) -> None:
        self._late.clear()
        self.cell.clear()

    def items(self) -> list[tuple[Any, Any]]:
        self.flush()
        return [(key, self._decode(raw)) for key, raw in self.cell.items()]

    def keys(self) -> list[Any]:
        self.flush()
        return self.cell.keys()

    def values(self) -> list[Any]:
        self.flush()
        return list(map(self._decode, self.cell.values()))

    def entries(self) -> Iterator[tuple[Any, Any]]:
        self.flush()
        return ((key, self._decode(raw)) for key, raw in self.cell.entries())

    def is_empty(self) -> bool:
        return not self._late and self.cell.is_empty()

    def flush(self) -> None:
        """Make bytes of what waits for it; the cell, which they touch, writes them."""
        late, self._late = self._late, {}
        for key, value in late.items():
            self.cell.put(key, self._encode(value))

    def __iter__(self) -> Iterator[Any]:
        self.flush()
        return iter(self.cell)
