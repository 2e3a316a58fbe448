"""The handles of operator state: lists that are split or joined, and broadcast maps.

A handle belongs to a subtask, not to a key. What it holds is kept as bytes, so that nothing a user
does to an element afterwards gets into a snapshot. Called by user functions; the stores that make
handles say where the content comes from and ask for what changed.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

from moorage_state.checks import each_of, entries_of
from moorage_state.codecs import checker, decoder, encoder
from moorage_state.keys import KeyCodec
from moorage_state.operator_state.schemas import OperatorStateSchema
from moorage_state.types import StateType, parse_type


class ListChange(NamedTuple):
    """What was done to a list: emptied first, if `cleared`; then these elements were added."""

    cleared: bool
    added: list[bytes]


class MapChange(NamedTuple):
    """What was done to a map: emptied first, if `cleared`; then set by stored key, None removes."""

    cleared: bool
    entries: dict[bytes, bytes | None]


class OperatorListState:
    """A list of independent elements; a restore may deal them out to other subtasks.

    The list of a union state reads as that of all subtasks together, as they were at the end of
    the epoch before; what is added or cleared is the subtask's own. Elements are never None.

    Args:
        schema: what is recorded of the state; its type has the defaults of the time when a field
            came.
        load: gives the elements that were there before, encoded; called once, at the first look.
        declared: the type that is declared now, whose defaults what is added has.
    """

    __slots__ = ("_added", "_before", "_cleared", "_decode", "_encode", "_load", "schema")

    def __init__(
        self, schema: OperatorStateSchema, load: Callable[[], list[bytes]], declared: str
    ) -> None:
        self.schema = schema
        self._encode = encoder(declared, schema.name)
        self._decode = decoder(schema.type)
        self._load = load
        self._before: list[bytes] | None = None
        self._cleared = False
        self._added: list[bytes] = []

    def get(self) -> list[Any]:
        """A new list of the elements; the order of a union's is not defined."""
        return [self._decode(raw) for raw in self.encoded()]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def add(self, value: Any) -> None:
        """Append one element.

        Raises:
            StateTypeError: when it is not of the declared type; None is none.
        """
        self._added.append(self._encode(value))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements: all of them, or none where one is not of the declared type."""
        self._added.extend([self._encode(value) for value in each_of(values)])

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty one clears it."""
        encoded = [self._encode(value) for value in each_of(values)]
        self.clear()
        self._added = encoded

    def clear(self) -> None:
        """Remove all elements."""
        self._cleared = True
        self._added = []

    def encoded(self) -> list[bytes]:
        """The elements as bytes; a new list."""
        return ([] if self._cleared else self._loaded()) + self._added

    def change(self) -> ListChange | None:
        """What was done to it, None for nothing."""
        if not (self._cleared or self._added):
            return None
        return ListChange(self._cleared, self._added)

    def _loaded(self) -> list[bytes]:
        if self._before is None:
            self._before = self._load()
        return self._before


class BroadcastState:
    """A map of which every subtask has the same copy, as long as all do the same to it.

    The order of entries is not part of the contract. A value is never None. What is read is the
    reader's own: only `put` changes a value. Values that cannot be changed are decoded once.

    Args as of `OperatorListState`; `load` gives entries by stored key.

    Raises (every method that takes a key): `StateTypeError` when it is not of the declared type.
    """

    __slots__ = (
        "_changes",
        "_check_key",
        "_cleared",
        "_decode",
        "_encode",
        "_fixed",
        "_keys",
        "_load",
        "_raws",
        "_values",
        "schema",
    )

    def __init__(
        self, schema: OperatorStateSchema, load: Callable[[], dict[bytes, bytes]], declared: str
    ) -> None:
        self.schema = schema
        self._keys = KeyCodec([schema.key_type])
        self._check_key = checker(schema.key_type, schema.name)
        self._encode = encoder(declared, schema.name)
        self._decode = decoder(schema.type)
        self._fixed = _cannot_be_changed(parse_type(schema.type))
        self._load = load
        self._raws: dict[Any, bytes] | None = None
        self._values: dict[Any, Any] = {}
        self._cleared = False
        self._changes: dict[bytes, bytes | None] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under `key`, or `default`."""
        key = self._check_key(key)
        found = self._values.get(key)
        if found is not None:
            return found
        raw = self._entries().get(key)
        if raw is None:
            return default
        value = self._decode(raw)
        if self._fixed:
            self._values[key] = value
        return value

    def contains(self, key: Any) -> bool:
        """Whether there is a value under `key`."""
        return self._check_key(key) in self._entries()

    def put(self, key: Any, value: Any) -> None:
        """Set the value under `key`.

        Raises:
            StateTypeError: when the value is not of the declared type; None is none.
        """
        key = self._check_key(key)
        raw = self._encode(value)
        self._entries()[key] = raw
        self._values.pop(key, None)
        self._changes[self._keys.encode((key,))] = raw

    def put_all(self, entries: dict[Any, Any]) -> None:
        """Set several values."""
        for key, value in entries_of(entries):
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove the value under `key`, if there is one."""
        key = self._check_key(key)
        if self._entries().pop(key, None) is not None:
            self._values.pop(key, None)
            self._changes[self._keys.encode((key,))] = None

    def clear(self) -> None:
        """Remove all entries."""
        self._cleared = True
        self._raws, self._values, self._changes = {}, {}, {}

    def items(self) -> list[tuple[Any, Any]]:
        """All entries, as they are at this moment."""
        return [(key, self.get(key)) for key in list(self._entries())]

    def keys(self) -> list[Any]:
        """All keys, as they are at this moment."""
        return list(self._entries())

    def values(self) -> list[Any]:
        """All values, as they are at this moment."""
        return [value for _, value in self.items()]

    def is_empty(self) -> bool:
        """Whether the map has no entry."""
        return not self._entries()

    entries = items
    immutable_entries = items
    __getitem__ = get
    __contains__ = contains
    __setitem__ = put
    __delitem__ = remove

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def encoded(self) -> dict[bytes, bytes]:
        """The entries as bytes, by stored key; a new dict in the order of these."""
        encode = self._keys.encode
        return dict(sorted((encode((key,)), raw) for key, raw in self._entries().items()))

    def change(self) -> MapChange | None:
        """What was done to it, None for nothing."""
        if not (self._cleared or self._changes):
            return None
        return MapChange(self._cleared, self._changes)

    def _entries(self) -> dict[Any, bytes]:
        if self._raws is None:
            decode = self._keys.decode
            self._raws = {decode(stored)[0]: raw for stored, raw in self._load().items()}
        return self._raws


class ReadOnlyBroadcastState:
    """A broadcast state where it may be read only: beside the rows of one key."""

    __slots__ = ("_state", "contains", "entries", "get", "immutable_entries", "is_empty", "items")

    def __init__(self, state: BroadcastState) -> None:
        self._state = state
        # The very methods of the state: a rule is looked up for every row.
        self.get = state.get
        self.contains = state.contains
        self.items = self.entries = self.immutable_entries = state.items
        self.is_empty = state.is_empty

    def keys(self) -> list[Any]:
        """All keys, as they are at this moment."""
        return self._state.keys()

    def values(self) -> list[Any]:
        """All values, as they are at this moment."""
        return self._state.values()

    def __getitem__(self, key: Any) -> Any:
        return self._state.get(key)

    def __contains__(self, key: Any) -> bool:
        return self._state.contains(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state.keys())

    def put(self, *_: Any) -> NoReturn:
        """Not here. Raises RuntimeError."""
        raise RuntimeError(
            f"broadcast state {self._state.schema.name!r} is read-only beside keyed rows and in "
            f"timers, where each subtask would change its own copy only; change it in "
            f"process_broadcast_element"
        )

    put_all = remove = clear = put
    __setitem__ = __delitem__ = put


def _cannot_be_changed(kind: StateType) -> bool:
    """Whether values of this type are the same for ever: scalars, and structs of them."""
    if kind.name == "struct":
        return all(map(_cannot_be_changed, kind.children))
    return kind.name not in {"array", "map", "pickle"}
