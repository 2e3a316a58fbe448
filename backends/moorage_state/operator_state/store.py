"""The operator states of one subtask by name, wherever they are kept.

Decides that a name means one thing only. `OperatorStateStore` is what users are given; the engine's
store (`ranges`) and the in-process one (`backend`) say where content comes from.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from moorage_state.codecs import encoder
from moorage_state.descriptors import ListStateDescriptor, MapStateDescriptor
from moorage_state.errors import UserError
from moorage_state.evolution import declared_over, reader_of
from moorage_state.keylayout import state_id
from moorage_state.operator_state.schemas import (
    OperatorStateSchema,
    list_schema,
    map_schema,
    require_same,
)
from moorage_state.operator_state.states import BroadcastState, OperatorListState


class OperatorStateStore(ABC):
    """Operator states of one subtask.

    Args:
        known: schemas that a snapshot or earlier epochs recorded; several of one name where
            subtasks left a state with different types.
    """

    def __init__(self, known: Iterable[OperatorStateSchema] = ()) -> None:
        self._known: dict[str, OperatorStateSchema] = {}
        self._written: dict[str, list[OperatorStateSchema]] = {}
        for schema in known:
            self._known[schema.name] = schema
            self._written.setdefault(schema.name, []).append(schema)
        self._declared: dict[str, OperatorStateSchema] = {}
        self._schemas: dict[str, OperatorStateSchema] = {}
        self._converters: dict[OperatorStateSchema, Callable[[bytes], bytes]] = {}
        self._lists: dict[str, OperatorListState] = {}
        self._maps: dict[str, BroadcastState] = {}
        self._ids = {state_id(name): name for name in self._known}

    def get_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """A list that is split evenly among subtasks where their number changes.

        Raises:
            UserError: the name is taken by a state of another kind or type.
        """
        return self._list(list_schema(_list_descriptor(descriptor), "split"))

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """A list that every subtask sees whole.

        Raises:
            UserError: see `get_list_state`.
        """
        return self._list(list_schema(_list_descriptor(descriptor), "union"))

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """A map of which every subtask has a copy.

        Raises:
            UserError: see `get_list_state`.
        """
        given: Any = descriptor
        if not isinstance(given, MapStateDescriptor):
            raise UserError(
                f"broadcast state is declared with a MapStateDescriptor: got={descriptor!r}"
            )
        return self._map(map_schema(descriptor))

    def get_registered_state_names(self) -> set[str]:
        """The names of the list states: those that were asked for and those from before."""
        return {s.name for s in self.schemas if s.mode in {"split", "union"}}

    def get_registered_broadcast_state_names(self) -> set[str]:
        """The names of the broadcast states."""
        return {s.name for s in self.schemas if s.mode == "broadcast"}

    @property
    def schemas(self) -> list[OperatorStateSchema]:
        """Schemas of all operator states: those registered here and those from before."""
        merged = {**self._known, **self._schemas}
        return [merged[name] for name in sorted(merged)]

    def register(self, schema: OperatorStateSchema) -> bool:
        """Take a name; returns whether it is taken here for the first time.

        Raises:
            UserError: it means something else already.
        """
        seen = self._declared.get(schema.name)
        if seen is not None:
            require_same(schema, seen, "was registered")
            return False
        self._declared[schema.name] = schema
        for written in self._written.get(schema.name, ()):
            schema = self._continued(schema, written)
        other = self._ids.setdefault(state_id(schema.name), schema.name)
        if other != schema.name:
            raise UserError(
                f"two operator states of one operator have the same stored id: {other!r} and "
                f"{schema.name!r}; rename one of them"
            )
        self._schemas[schema.name] = schema
        return True

    def converter(self, written: OperatorStateSchema) -> Callable[[bytes], bytes] | None:
        """Makes bytes of an older type those of the type declared here; None where equal."""
        return self._converters.get(written)

    def _continued(
        self, schema: OperatorStateSchema, written: OperatorStateSchema
    ) -> OperatorStateSchema:
        """The schema of a state that is declared over what was written before."""
        if written == schema:
            return schema
        require_same(replace(schema, type=written.type), written, "was written")
        ddl, earlier = declared_over(schema.name, written.type, (), schema.type)
        if earlier:
            read, write = reader_of(ddl, earlier), encoder(ddl, schema.name)
            self._converters[written] = lambda raw: write(read(raw))
        return replace(schema, type=ddl)

    def _list(self, schema: OperatorStateSchema) -> OperatorListState:
        if self.register(schema):
            kept = self._schemas[schema.name]
            self._lists[schema.name] = OperatorListState(
                kept, lambda: self._load_list(kept), schema.type
            )
        return self._lists[schema.name]

    def _map(self, schema: OperatorStateSchema) -> BroadcastState:
        if self.register(schema):
            kept = self._schemas[schema.name]
            self._maps[schema.name] = BroadcastState(
                kept, lambda: self._load_map(kept), schema.type
            )
        return self._maps[schema.name]

    @abstractmethod
    def _load_list(self, schema: OperatorStateSchema) -> list[bytes]:
        """The elements that a list had before, encoded in the type of `schema`."""

    @abstractmethod
    def _load_map(self, schema: OperatorStateSchema) -> dict[bytes, bytes]:
        """The entries that a broadcast state had before, by stored key; in that type."""


def _list_descriptor(descriptor: ListStateDescriptor) -> ListStateDescriptor:
    given: Any = descriptor
    if not isinstance(given, ListStateDescriptor):
        raise UserError(
            f"list and union list state are declared with a ListStateDescriptor: got={descriptor!r}"
        )
    return descriptor
