"""The states of one backend: their tables, what was declared of them, and their handles.

Decides what a declaration may change of state that is there already: the type within the rules of
schema evolution, a time to live at any time, nothing else. Called by the backend.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
from moorage_state.backends.hashmap.tables import StateTable, Versions
from moorage_state.backends.keying import require_namespace
from moorage_state.codecs import decoder, encoder
from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateKind,
    ValueStateDescriptor,
    require_descriptor,
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
from moorage_state.keyed.namespaces import NamespaceCodec
from moorage_state.keyed.schema import (
    StateSchema,
    Unstored,
    require_same,
    require_same_unstored,
    schema_of,
    unstored_of,
)
from moorage_state.keyed.values import DefaultedValueState
from moorage_state.keylayout import state_id
from moorage_state.timetolive import StateTtlConfig
from moorage_state.types import parse_type

__all__ = ["Handle", "HeapStates", "KeptState", "meta_of"]

_HANDLES = 1024


class Handle(NamedTuple):
    """A state as the user has it, and the part of it that knows the namespace."""

    state: Any
    cell: HeapState


@dataclass(slots=True)
class KeptState:
    """One state: what is known of it, its objects, and its handles once it was declared.

    Attributes:
        ttl_ms: the time to live in milliseconds; 0 for none any more, None where there never was.
        earlier: the types that it had before, oldest first; to tell which subtask's is the last.
        packed: whether its values are the bytes that were restored; no longer once it is declared.
        declared: what was declared here.
        unstored: what else was.
        asked: the descriptor, its time to live and the type of namespaces that were asked for last.
        handles: by the bytes of the namespace; None for that of a state without.
    """

    meta: HeapMeta
    table: StateTable
    ttl_ms: int | None = None
    earlier: tuple[str, ...] = ()
    packed: bool = False
    declared: StateSchema | None = None
    unstored: Unstored | None = None
    asked: tuple[Any, StateTtlConfig | None, str | None] = (None, None, None)
    handles: dict[bytes | None, Handle] = field(default_factory=dict)
    namespace_codec: NamespaceCodec | None = None

    def namespace_bytes(self, namespace: Any) -> bytes | None:
        """The bytes of a namespace of this state.

        Raises:
            UserError: the state has none and one is given, or the other way round.
            StateTypeError: it is not of the declared type.
        """
        require_namespace(self.meta.name, namespace, self.meta.namespace_type)
        if self.namespace_codec is None:
            return None
        return self.namespace_codec.encode(namespace)

    @property
    def schema(self) -> StateSchema:
        """The same as the handle of a snapshot has it."""
        meta = self.meta
        ttl_ms = self.ttl_ms or 0
        return StateSchema(
            meta.name,
            cast("StateKind", meta.kind),
            meta.type,
            meta.key_type or "",
            earlier=self.earlier,
            ttl_ms=self.ttl_ms,
            namespace_types=(meta.namespace_type,) if meta.namespace_type else (),
            indexed_ms=ttl_ms if meta.stamped and meta.sweeps else None,
            cleanup_in_full_snapshot=meta.leaves_out_expired,
        )


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
        return self._kept[name]

    def get(self, name: str) -> KeptState | None:
        """The state of this name, None where there is none."""
        return self._kept.get(name)

    def table(self, meta: HeapMeta) -> StateTable:
        """The table of timers, made empty where there is none."""
        found = self._kept.get(meta.name)
        return (found or self._keep(meta)).table

    def restored(self, schema: StateSchema) -> None:
        """Know of a state before its values come, which are bytes of its type.

        Raises:
            UserError: it has namespaces of several types.
        """
        if len(schema.namespace_types) > 1:
            raise UserError(
                f"a state in memory has namespaces of one type: state={schema.name} "
                f"types={','.join(schema.namespace_types)}; restore with the rocksdb backend"
            )
        kept = self._keep(_meta_of_schema(schema))
        kept.ttl_ms, kept.earlier, kept.packed = schema.ttl_ms, schema.earlier, True

    def declare(self, descriptor: Any, namespace_type: str | None) -> KeptState:
        """The state of a descriptor.

        Raises:
            UserError: the name is taken by another kind or type.
        """
        found = self._kept.get(getattr(descriptor, "name", ""))
        if found is not None:
            before, lived_as, by_type = found.asked
            if before is descriptor and by_type == namespace_type and lived_as is descriptor.ttl:
                return found
        require_descriptor(descriptor)
        meta = meta_of(descriptor, namespace_type)
        types = (meta.namespace_type,) if meta.namespace_type is not None else ()
        declared = schema_of(descriptor, types)
        if found is None:
            found = self._keep(meta)
            found.ttl_ms = declared.ttl_ms
        elif found.declared is not None:
            require_same(declared, found.declared, "was registered")
            require_same_unstored(unstored_of(descriptor), cast("Unstored", found.unstored))
        else:
            self._take_over(found, meta)
            # Not None again: other subtasks may have stamps yet, which count for nothing now.
            lived = found.ttl_ms is not None
            found.ttl_ms = 0 if lived and declared.ttl_ms is None else declared.ttl_ms
        found.declared, found.unstored = declared, unstored_of(descriptor)
        found.asked = descriptor, descriptor.ttl, namespace_type
        return found

    def handle_in(self, kept: KeptState, descriptor: Any, namespace: Any) -> Handle:
        """The handle of a declared state for a namespace; None where it has none."""
        raw = kept.namespace_bytes(namespace)
        handle = kept.handles.get(raw)
        if handle is None:
            if len(kept.handles) >= _HANDLES:
                # Those that are in somebody's hands go on: a handle keeps nothing itself.
                kept.handles.clear()
            handle = kept.handles[raw] = self._new_handle(kept, descriptor)
            handle.cell.use_namespace(raw)
        return handle

    def _new_handle(self, kept: KeptState, descriptor: Any) -> Handle:
        cell, name = _cell(self._context, kept.table, descriptor), descriptor.name
        if isinstance(descriptor, ReducingStateDescriptor):
            return Handle(ReducingState(cast("Any", cell), reducer(descriptor), name), cell)
        if isinstance(descriptor, AggregatingStateDescriptor):
            return Handle(AggregatingState(cast("Any", cell), descriptor.function, name), cell)
        if isinstance(descriptor, FoldingStateDescriptor):
            function = folding_function(descriptor, cell.settle)
            return Handle(FoldingState(cast("Any", cell), function, name), cell)
        if isinstance(descriptor, ValueStateDescriptor) and descriptor.default is not None:
            default = encoder(descriptor.type, name)(descriptor.default)
            return Handle(DefaultedValueState(cell, default, decoder(descriptor.type)), cell)
        return Handle(cell, cell)

    def _keep(self, meta: HeapMeta) -> KeptState:
        # Everywhere else a state is stored under these four bytes.
        other = self._ids.setdefault(state_id(meta.name), meta.name)
        if other != meta.name:
            raise UserError(
                f"two state names of one operator have the same stored id: {other!r} and "
                f"{meta.name!r}; rename one of them"
            )
        kept = KeptState(meta, StateTable(self._count, self.versions))
        if meta.namespace_type is not None:
            kept.namespace_codec = NamespaceCodec([meta.namespace_type], meta.name)
        self._kept[meta.name] = kept
        return kept

    def _take_over(self, kept: KeptState, meta: HeapMeta) -> None:
        """Make restored objects those of what is declared now: all of them, or none."""
        old, earlier = kept.meta, kept.earlier
        _require_same(_as(meta, old), old, "was written")
        changes: list[Callable[[Any], Any]] = [decoder(old.type)] if kept.packed else []
        if meta.type != old.type:
            changes.append(migration(old.type, meta.type))
            ddl, earlier = declared_over(meta.name, old.type, earlier, meta.type)
            meta = msgspec.structs.replace(meta, type=ddl)
        now_ms = self._context.clock_ms() if meta.stamped and not old.stamped else None
        if changes or meta.stamped != old.stamped:
            one = _over_values(old.stamped, meta.stamped, changes, now_ms)
            kept.table.replace(one, old.kind)
        kept.meta, kept.earlier, kept.packed = meta, earlier, False


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
        descriptor.ttl is not None and descriptor.ttl.cleanup_in_full_snapshot,
    )


def _meta_of_schema(schema: StateSchema) -> HeapMeta:
    return HeapMeta(
        schema.name,
        schema.kind,
        schema.type,
        schema.key_type or None,
        schema.namespace_types[0] if schema.namespace_types else None,
        bool(schema.ttl_ms),
        schema.indexed_ms is not None,
        schema.cleanup_in_full_snapshot,
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
    return msgspec.structs.replace(_cleaned_as(meta, old), type=old.type, stamped=old.stamped)


def _cleaned_as(meta: HeapMeta, old: HeapMeta) -> HeapMeta:
    """`meta` with what `old` says of when expired state goes."""
    return msgspec.structs.replace(
        meta, sweeps=old.sweeps, leaves_out_expired=old.leaves_out_expired
    )


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


def _over_values(
    was_stamped: bool,  # noqa: FBT001
    stamped: bool,  # noqa: FBT001
    changes: list[Callable[[Any], Any]],
    now_ms: int | None,
) -> Callable[[Any], Any]:
    """A function that makes these changes, within the stamp where there is one.

    Args:
        now_ms: the stamp of what had none.
    """

    def one(value: Any) -> Any:
        stamp, value = value if was_stamped else (now_ms, value)
        for change in changes:
            value = change(value)
        return (stamp, value) if stamped else value

    return one
