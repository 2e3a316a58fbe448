"""The handles of states that are kept as objects; those with a time to live are in `expiring`.

Every method finds the object of the current key and namespace in its state's table. Nothing is
cached in a handle, so nothing has to be flushed.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from moorage_state.backends.hashmap.context import Context
from moorage_state.backends.hashmap.tables import Entries, StateTable
from moorage_state.backends.hashmap.values import copier, settler
from moorage_state.codecs import checker
from moorage_state.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from moorage_state.keyed import api
from moorage_state.keys import KeyCodec

__all__ = ["HeapListState", "HeapMapState", "HeapState", "HeapValueState", "map_key_settler"]


class HeapState:
    """What all handles share: where the current key's object is."""

    __slots__ = ("_context", "_copy", "_groups", "_namespace", "_settle", "_table")

    def __init__(self, context: Context, table: StateTable, ddl: str, name: str) -> None:
        self._context = context
        self._table = table
        self._groups = table.groups
        self._namespace: bytes | None = None
        self._settle = settler(ddl, name)
        self._copy = copier(ddl, name)

    @property
    def settle(self) -> Callable[[Any], Any]:
        """Makes of a value the object that is kept for it."""
        return self._settle

    def use_namespace(self, namespace: bytes | None) -> None:
        """Speak of this namespace from now on; None for states without."""
        self._namespace = namespace

    def clear(self) -> None:
        """Remove what the current key has."""
        self._table.discard(self._context.group, self._entry())

    def _entry(self) -> Any:
        entry = self._context.entry
        return entry if self._namespace is None else (entry, self._namespace)

    def _found(self) -> Any:
        """What is kept for the current key; None if there is nothing."""
        return self._groups[self._context.group].get(self._entry())

    def _out(self, value: Any) -> Any:
        return value if self._copy is None else self._copy(value)


class HeapValueState(HeapState, api.ValueState):
    """See `moorage_state.keyed.api.ValueState`; also the cell of states in which values combine."""

    __slots__ = ()

    def __init__(self, context: Context, table: StateTable, descriptor: StateDescriptor) -> None:
        super().__init__(context, table, descriptor.type, descriptor.name)

    def value(self) -> Any:
        """See the class."""
        context = self._context
        entry = context.entry if self._namespace is None else (context.entry, self._namespace)
        value = self._groups[context.group].get(entry)
        return value if self._copy is None or value is None else self._copy(value)

    def live(self) -> Any:
        """The value as further values are added to it: never one that has expired."""
        return self.value()

    def take_over(self, other: "HeapValueState") -> None:
        """Make the value of `other` this one's."""
        self.update(other.live())

    def update(self, value: Any) -> None:
        """See the class; a value of another type is refused at once."""
        if value is None:
            self.clear()
            return
        context = self._context
        entry = context.entry if self._namespace is None else (context.entry, self._namespace)
        self._table.own(context.group)[entry] = self._settle(value)


class HeapListState(HeapState, api.ListState):
    """See `moorage_state.keyed.api.ListState`."""

    __slots__ = ()

    def __init__(
        self, context: Context, table: StateTable, descriptor: ListStateDescriptor
    ) -> None:
        super().__init__(context, table, descriptor.type, descriptor.name)

    def get(self) -> list[Any]:
        """See the class."""
        found = self._found()
        if found is None:
            return []
        return list(found) if self._copy is None else [self._copy(value) for value in found]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def add(self, value: Any) -> None:
        """See the class."""
        settled = self._settle(value)
        self._table.own_items(self._context.group, self._entry()).append(settled)

    def add_all(self, values: Iterable[Any]) -> None:
        """See the class."""
        settled = [self._settle(value) for value in values]
        if settled:
            self._table.own_items(self._context.group, self._entry()).extend(settled)

    def update(self, values: Iterable[Any]) -> None:
        """See the class."""
        settled = [self._settle(value) for value in values]
        self.clear()
        if settled:
            self._table.own_items(self._context.group, self._entry()).extend(settled)

    def absorb(self, other: "HeapListState") -> None:
        """Take over what the same state has in another namespace, which is cleared."""
        self.add_all(other.get())
        other.clear()


class HeapMapState(HeapState, api.MapState):
    """See `moorage_state.keyed.api.MapState`."""

    __slots__ = ("_check_key",)

    def __init__(self, context: Context, table: StateTable, descriptor: MapStateDescriptor) -> None:
        super().__init__(context, table, descriptor.type, descriptor.name)
        self._check_key = map_key_settler(descriptor.key_type, descriptor.name)

    def get(self, key: Any, default: Any = None) -> Any:
        """See the class."""
        value = self._lookup(self._check_key(key))
        return default if value is None else value

    def contains(self, key: Any) -> bool:
        """See the class."""
        return self._lookup(self._check_key(key)) is not None

    def put(self, key: Any, value: Any) -> None:
        """See the class."""
        settled_key, settled = self._check_key(key), self._settle(value)
        self._table.own_map(self._context.group, self._entry())[settled_key] = settled

    def put_all(self, entries: dict[Any, Any]) -> None:
        """See the class."""
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """See the class."""
        settled = self._check_key(key)
        found: Entries | None = self._found()
        if found is None or settled not in found:
            return
        if len(found) == 1:
            self.clear()
        else:
            del self._table.own_map(self._context.group, self._entry())[settled]

    def items(self) -> list[tuple[Any, Any]]:
        """See the class."""
        found: Entries | None = self._found()
        if not found:
            return []
        if self._copy is None:
            return list(found.items())
        return [(key, self._copy(value)) for key, value in found.items()]

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """See the class."""
        return iter(self.items())

    def keys(self) -> list[Any]:
        """See the class."""
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        """See the class."""
        return [value for _, value in self.items()]

    def is_empty(self) -> bool:
        """See the class."""
        return not self.items()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def _lookup(self, key: Any) -> Any:
        found: Entries | None = self._found()
        value = None if found is None else found.get(key)
        return value if self._copy is None or value is None else self._copy(value)


def map_key_settler(ddl: str, name: str) -> Callable[[Any], Any]:
    """A function from the key of a map to how it is kept; refuses what cannot be one."""
    check, codec = checker(ddl, name), KeyCodec([ddl])

    def settle(key: Any) -> Any:
        settled = check(key)
        if type(settled) is str and not settled.isascii():
            codec.encode((settled,))
        return settled

    return settle
