"""The states of one backend: their tables, what was declared of them, and their handles.

Decides what a declaration may change of state that is there already: the type within the rules of
schema evolution, a time to live at any time, nothing else. Called by the backend.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import msgspec

from moorage_state.backends.hashmap.context import Context
from moorage_state.backends.hashmap.expiring import (
    ExpiringListState,
    ExpiringMapState,
    ExpiringValueState,
)
from moorage_state.backends.hashmap.format import HeapMeta
from moorage_state.backends.hashmap.states import (
    HeapListState,
    HeapMapState,
    HeapState,
    HeapValueState,
)
from moorage_state.backends.hashmap.tables import Entries, Items, StateTable, Versions
from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.evolution import declared_over, migration
from moorage_state.keyed.combining import (
    AggregatingState,
    FoldingState,
    ReducingState,
    folding_function,
    reducer,
)
from moorage_state.keys import KeyCodec, state_id
from moorage_state.types import parse_type

__all__ = ["Handle", "HeapStates", "KeptState", "meta_of"]


class Handle(NamedTuple):
    """A state as the user has it, and the part of it that knows the namespace."""

    state: Any
    cell: HeapState


@dataclass(slots=True)
class KeptState:
    """One state: what is known of it, its objects, and its handle once it was declared."""

    meta: HeapMeta
    table: StateTable
    ttl_ms: int = 0
    handle: Handle | None = None
    namespace_codec: KeyCodec | None = None

    def namespace_bytes(self, namespace: Any) -> bytes | None:
        """The bytes of a namespace of this state.

        Raises:
            UserError: the state has none and one is given, or the other way round.
        """
        if (namespace is None) != (self.namespace_codec is None):
            raise UserError(
                f"state was declared {'without' if self.namespace_codec is None else 'with'} "
                f"namespaces: state={self.meta.name} namespace={namespace!r:.80}; declare another "
                f"state for the other use"
            )
        if self.namespace_codec is None:
            return None
        return self.namespace_codec.encode((namespace,))


class HeapStates:
    """All states of one subtask by name, those that were restored and not declared included."""

    def __init__(self, context: Context, count: int) -> None:
        self.versions = Versions()
        self._context = context
        self._count = count
        self._kept: dict[str, KeptState] = {}
        self._ids: dict[bytes, str] = {}

    def __iter__(self) -> Iterator[KeptState]:
        return iter(list(self._kept.values()))

    def now_ms(self) -> int:
        """Processing time."""
        return self._context.clock_ms()

    def __getitem__(self, name: str) -> KeptState:
        found = self._kept.get(name)
        if found is None:
            raise UserError(
                f"no such state: name={name} known={','.join(sorted(self._kept)) or '(none)'}; "
                f"ask for it with its descriptor first"
            )
        return found

    def table(self, meta: HeapMeta, ttl_ms: int = 0) -> StateTable:
        """The table of a state, made empty where there is none; `ttl_ms` as it was stored."""
        found = self._kept.get(meta.name)
        if found is None:
            found = self._keep(meta)
            found.ttl_ms = ttl_ms
        return found.table

    def declare(self, descriptor: Any, namespace_type: str | None) -> KeptState:
        """The state of a descriptor.

        Raises:
            UserError: the name is taken by another kind or type.
        """
        meta = meta_of(descriptor, namespace_type)
        found = self._kept.get(meta.name)
        if found is None:
            found = self._keep(meta)
        elif found.handle is not None:
            same = msgspec.structs.replace(meta, sweeps=found.meta.sweeps)
            _require_same(same, found.meta, "was registered")
            return found
        else:
            self._take_over(found, meta)
        found.ttl_ms = descriptor.ttl.ttl_ms if descriptor.ttl is not None else 0
        found.handle = self.new_handle(found, descriptor)
        return found

    def new_handle(self, kept: KeptState, descriptor: Any) -> Handle:
        """Another handle of a declared state."""
        cell = _cell(self._context, kept.table, descriptor)
        if isinstance(descriptor, ReducingStateDescriptor):
            return Handle(ReducingState(cast("Any", cell), reducer(descriptor)), cell)
        if isinstance(descriptor, AggregatingStateDescriptor):
            return Handle(AggregatingState(cast("Any", cell), descriptor.function), cell)
        if isinstance(descriptor, FoldingStateDescriptor):
            function = folding_function(descriptor, cell.settle)
            return Handle(FoldingState(cast("Any", cell), function), cell)
        return Handle(cell, cell)

    def _keep(self, meta: HeapMeta) -> KeptState:
        # Everywhere else a state is stored under these four bytes.
        other = self._ids.setdefault(state_id(meta.name), meta.name)
        if other != meta.name:
            raise UserError(
                f"two state names of one operator have the same stored id: {other!r} and "
                f"{meta.name!r}; rename one of them"
            )
        codec = KeyCodec([meta.namespace_type]) if meta.namespace_type is not None else None
        kept = KeptState(meta, StateTable(self._count, self.versions), namespace_codec=codec)
        self._kept[meta.name] = kept
        return kept

    def _take_over(self, kept: KeptState, meta: HeapMeta) -> None:
        """Make restored objects those of what is declared now."""
        old = kept.meta
        _require_same(_as(meta, old), old, "was written")
        if meta.type != old.type:
            declared_over(meta.name, old.type, (), meta.type)
            migrate = migration(old.type, meta.type)
            _rewrite(kept, migrate, old.stamped)
        if meta.stamped and not old.stamped:
            now = self._context.clock_ms()
            _rewrite(kept, lambda value: (now, value), stamped=False)
        elif old.stamped and not meta.stamped:
            _rewrite_pairs(kept)
        kept.meta = meta


def meta_of(descriptor: Any, namespace_type: str | None) -> HeapMeta:
    """What is kept of a declaration, with types in canonical spelling."""
    key_type = namespace = None
    if isinstance(descriptor, MapStateDescriptor):
        key_type = parse_type(descriptor.key_type).ddl
    if namespace_type is not None:
        namespace = parse_type(namespace_type).ddl
    return HeapMeta(
        descriptor.name,
        cast("Literal['value']", descriptor.kind),
        parse_type(descriptor.type).ddl,
        key_type,
        namespace,
        descriptor.ttl is not None,
        descriptor.ttl is not None and descriptor.ttl.cleanup_in_background,
    )


def _cell(context: Context, table: StateTable, descriptor: Any) -> Any:
    stamped = descriptor.ttl is not None
    if isinstance(descriptor, ListStateDescriptor):
        return (ExpiringListState if stamped else HeapListState)(context, table, descriptor)
    if isinstance(descriptor, MapStateDescriptor):
        return (ExpiringMapState if stamped else HeapMapState)(context, table, descriptor)
    return (ExpiringValueState if stamped else HeapValueState)(context, table, descriptor)


def _as(meta: HeapMeta, old: HeapMeta) -> HeapMeta:
    """`meta` with what may be another than it was."""
    return msgspec.structs.replace(meta, type=old.type, stamped=old.stamped, sweeps=old.sweeps)


def _require_same(new: HeapMeta, old: HeapMeta, verb: str) -> None:
    if new != old:
        raise UserError(
            f"state {new.name!r} {verb} as {_spell(old)} and is now declared as {_spell(new)}; "
            f"give the new state another name, or keep the declared type"
        )


def _spell(meta: HeapMeta) -> str:
    inner = f"{meta.key_type}, {meta.type}" if meta.key_type else meta.type
    namespace = f" by namespace {meta.namespace_type}" if meta.namespace_type else ""
    ttl = " with a time to live" if meta.stamped else ""
    return f"{meta.kind}<{inner}>{namespace}{ttl}"


def _rewrite(kept: KeptState, change: Callable[[Any], Any], stamped: bool) -> None:  # noqa: FBT001
    """Put something else in the place of every value, within its stamp where it has one."""

    def one(value: Any) -> Any:
        return (value[0], change(value[1])) if stamped else change(value)

    _each(kept, one)


def _rewrite_pairs(kept: KeptState) -> None:
    _each(kept, lambda pair: pair[1])


def _each(kept: KeptState, one: Callable[[Any], Any]) -> None:
    table = kept.table
    for group, entry in list(table):
        found = table.groups[group][entry]
        if kept.meta.kind == "list":
            items: Items = table.own_items(group, entry)
            items[:] = [one(value) for value in items]
        elif kept.meta.kind == "map":
            entries: Entries = table.own_map(group, entry)
            for key, value in list(entries.items()):
                entries[key] = one(value)
        else:
            table.own(group)[entry] = one(found)
