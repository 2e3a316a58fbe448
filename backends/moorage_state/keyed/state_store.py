"""The keyed state of one operator in one subtask during one epoch.

Decides which class is the handle of a descriptor, when state is fetched and when changes leave for
the state server. Called by the subtask (`begin_chunk`, `switch_to`, `finish`) and, through the
state handles, by user functions. It must not know what a record is.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from moorage_state.codecs import changes_in_place
from moorage_state.deltas import encode_frame
from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
    require_descriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed.access import RangeAccess
from moorage_state.keyed.detached import (
    DetachedListState,
    DetachedMapState,
    DetachedValueState,
)
from moorage_state.keyed.expiry import Expiry, lacks_entries, mark_all, sweep
from moorage_state.keyed.interfaces import (
    AggregatingState,
    FoldingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from moorage_state.keyed.kv_states import TaskKvStateRegistry
from moorage_state.keyed.lists import ExpiringListState, StoredListState
from moorage_state.keyed.maps import ExpiringMapState, StoredMapState
from moorage_state.keyed.namespaces import NamespacedState, keys_of, namespace_codec
from moorage_state.keyed.scanning import Values, fetch_values
from moorage_state.keyed.schema import (
    RAW,
    StateCodec,
    StateSchema,
    Unstored,
    codec_of,
    continued,
    require_same,
    require_same_unstored,
    schema_of,
    unstored_of,
)
from moorage_state.keyed.value_states import (
    DefaultedValueState,
    ExpiringValueState,
    StoredAggregatingState,
    StoredFoldingState,
    StoredReducingState,
    StoredValueState,
    folding_function,
    reducer,
)
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import state_id

# A server decodes and sorts a frame without a break: a millisecond each for so many.
_FRAME_ENTRIES = 10_000
_FRAME_BYTES = 8 << 20
_SWEEP_LIMIT = 100_000


class StateHandleBase(Protocol):
    """What the store asks of a state handle."""

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""

    def flush(self) -> None:
        """Write what the current key changed, and forget the key."""


class NoKey(list[StateHandleBase]):
    """Stands for the touched handles where there is no current key."""

    def append(self, _: StateHandleBase) -> None:
        """Raises RuntimeError."""
        raise RuntimeError(
            "state belongs to a key and there is none at this point: use states and timers "
            "in process and on_timer, not in open or close"
        )


class KeyedStateStore:
    """Keyed state of one subtask for one epoch; not thread-safe, not reusable.

    Attributes:
        now_ms: the epoch's processing time, the same in every attempt of it.
        looks_ahead: whether small lists and maps are read for a whole chunk of keys at once, and
            written when a key is done; else what is written reads back at once.

    Args:
        access: the range at the version this epoch reads.
        epoch: the epoch, part of the position of what is appended to lists.
        known: schemas that the restored state or earlier epochs recorded.
        groups: the key groups of the range; `keys_of` and a first sweep of older state need them.
        kv_states: told of states that may be looked up from outside; one of its own if None.
    """

    looks_ahead = True

    def __init__(
        self,
        access: RangeAccess,
        epoch: int,
        known: Iterable[StateSchema] = (),
        *,
        now_ms: int = 0,
        groups: KeyGroupRange | None = None,
        kv_states: TaskKvStateRegistry | None = None,
    ) -> None:
        self.kv_states = TaskKvStateRegistry() if kv_states is None else kv_states
        self.access = access
        self.epoch = epoch
        self.now_ms = now_ms
        self.groups = groups
        self.prefixes: list[bytes] = []
        self.index = 0
        self.prefix = b""
        self.appended = 0
        # Handles add themselves at their first use of the current key. A list and not a method,
        # because it is done for every key.
        self.touched: list[StateHandleBase] = NoKey()
        self._of_key: list[StateHandleBase] = []
        self._known = {s.name: s for s in known}
        self._schemas: dict[str, StateSchema] = {}
        self._declared: dict[str, StateSchema] = {}
        self._handles: dict[str, Any] = {}
        self._unstored: dict[str, Unstored] = {}
        self._expiring: dict[str, StateDescriptor] = {}
        self._attached: list[StateHandleBase] = []
        self._ids: dict[bytes, str] = {}
        self._ranges: list[tuple[bytes, bytes]] = []
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._bytes = 0
        self.frames = 0
        for name in self._known:
            self.claim_id(name)

    @property
    def schemas(self) -> list[StateSchema]:
        """Schemas of all states of the operator: those it registered and those from before."""
        return list({**self._known, **self._schemas}.values())

    def value_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """The handle of a value state. Raises `UserError` when the name is taken otherwise."""
        handle: ValueState = self._register(descriptor, ValueStateDescriptor)
        return handle

    def list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """The handle of a list state. Raises `UserError` when the name is taken otherwise."""
        handle: ListState = self._register(descriptor, ListStateDescriptor)
        return handle

    def map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """The handle of a map state. Raises `UserError` when the name is taken otherwise."""
        handle: MapState = self._register(descriptor, MapStateDescriptor)
        return handle

    def reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """The handle of a reducing state. Raises `UserError` when the name is taken otherwise."""
        handle: ReducingState = self._register(descriptor, ReducingStateDescriptor)
        return handle

    def aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """The handle of an aggregating state. Raises `UserError` when the name is taken."""
        handle: AggregatingState = self._register(descriptor, AggregatingStateDescriptor)
        return handle

    def folding_state(self, descriptor: FoldingStateDescriptor) -> FoldingState:
        """The handle of a folding state. Raises `UserError` when the name is taken otherwise."""
        handle: FoldingState = self._register(descriptor, FoldingStateDescriptor)
        return handle

    def state(self, descriptor: StateDescriptor) -> Any:
        """The handle of a state of any kind, for those who do not know what is declared."""
        return self._register(descriptor)

    def namespaced_state(
        self, descriptor: StateDescriptor, namespace_types: Sequence[str]
    ) -> NamespacedState:
        """A state that a key has once for each namespace, whose types are Spark DDL.

        Raises `UserError` when the name is taken otherwise, ValueError for a type that no namespace
        has.
        """
        types = tuple(namespace_codec(namespace_types).ddl)
        handle: NamespacedState = self._register(descriptor, None, types)
        return handle

    def get_partitioned_state(
        self, namespace: Any, namespace_types: Sequence[str], descriptor: StateDescriptor
    ) -> Any:
        """The handle of a state for the current key and `namespace`, until the key changes."""
        return self.namespaced_state(descriptor, namespace_types).set_current_namespace(namespace)

    def keys_of(self, name: str, namespace: Any = None) -> Iterator[bytes]:
        """What the stored keys begin with, of all keys that have something in a state.

        As it was when the epoch began; what has expired counts until it is cleaned up. Reads all
        keyed state of the range, page by page. A state that has namespaces needs one.
        """
        schema = self._schemas.get(name) or self._known.get(name)
        if schema is None:
            return iter(())
        return keys_of(self, state_id(name), schema.namespace_types, name, namespace)

    def sweep_expired(self, at_most: int | None = None) -> int:
        """Remove state that has expired, within bounds; returns how much was looked at.

        Called once in an epoch, after the states are registered and before the first key.
        """
        states = {state_id(s.name): s for s in self.schemas if s.ttl_ms is not None}
        if not states:
            return 0
        if self.groups is not None and any(map(lacks_entries, self._known.values())):
            self._record(mark_all(self, self.groups, self._known))
        limits = [d.ttl.sweep_limit for d in self._expiring.values() if d.ttl is not None]
        limit = max(limits, default=_SWEEP_LIMIT)
        return sweep(self, states, limit if at_most is None else min(limit, at_most))

    def _record(self, schemas: dict[str, StateSchema]) -> None:
        """Let this be known of stored state."""
        self._known |= schemas
        for name in schemas.keys() & self._declared.keys():
            self._schemas[name] = continued(self._declared[name], self._known[name])

    def _register(
        self,
        descriptor: Any,
        expected: type | None = None,
        namespace_types: tuple[str, ...] = (),
    ) -> Any:
        require_descriptor(descriptor, expected)
        schema = schema_of(descriptor, namespace_types)
        seen = self._declared.get(schema.name)
        if seen is not None:
            require_same(schema, seen, "was registered")
            require_same_unstored(unstored_of(descriptor), self._unstored[schema.name])
            return self._handles[schema.name]
        self._schemas[schema.name] = continued(schema, self._known.get(schema.name))
        handle = self._handle(descriptor, namespace_types)
        if descriptor.queryable_name:
            self.kv_states.register_kv_state(self.groups, descriptor.queryable_name, schema.name)
        self._declared[schema.name] = schema
        self._unstored[schema.name] = unstored_of(descriptor)
        self._handles[schema.name] = handle
        self.attach(handle)
        return handle

    def _handle(self, descriptor: StateDescriptor, namespace_types: tuple[str, ...]) -> Any:
        sid, codec = self.claim_id(descriptor.name), self.codec_of(descriptor)
        expiry: Expiry | None = None
        if self._schemas[descriptor.name].ttl_ms is not None:
            expiry = self.new_expiry(descriptor)
            self._expiring[descriptor.name] = descriptor
        if not namespace_types:
            return _make_handle(self, sid, descriptor, codec, expiry)
        return NamespacedState(
            self,
            sid,
            namespace_types,
            descriptor.name,
            lambda s: _make_handle(self, s, descriptor, codec, expiry),
        )

    def new_expiry(self, descriptor: StateDescriptor) -> Expiry:
        """The time to live of a stamped state; a store that outlives an epoch has its own."""
        return Expiry(self, descriptor.ttl)

    def plain_value(self, handle: Any) -> tuple[StateSchema, str] | None:
        """Schema and declared type of a value state that is stored as it is; None for others."""
        found = self._recorded(handle)
        return found if _is_plain_value(handle) else None

    def plain_namespaced(
        self, handle: Any, *, lists: bool = False
    ) -> tuple[StateSchema, str] | None:
        """The same of a state that has one value, unstamped, for each namespace; or a list."""
        found = self._recorded(handle)
        if found is None or not found[0].namespace_types or found[0].ttl_ms is not None:
            return None
        kind = found[0].kind
        return found if (kind == "list" if lists else kind not in {"list", "map"}) else None

    def plain_map(self, handle: Any) -> tuple[StateSchema, str] | None:
        """The same of a map, unstamped, whose keys are long numbers."""
        found = self._recorded(handle)
        if found is None or found[0].namespace_types or found[0].ttl_ms is not None:
            return None
        return found if found[0].key_type == "bigint" else None

    def _recorded(self, handle: Any) -> tuple[StateSchema, str] | None:
        """Schema and declared type of the state that a handle is of; None where it is of none."""
        names = (name for name, known in self._handles.items() if known is handle)
        name = next(names, None)
        return None if name is None else (self._schemas[name], self._declared[name].type)

    def codec_of(self, descriptor: StateDescriptor) -> StateCodec:
        """How values of a registered state are written, and read also where it had other types."""
        schema = self._schemas[descriptor.name]
        return codec_of(descriptor.name, descriptor.type, schema.earlier, schema.type)

    def attach(self, handle: StateHandleBase) -> None:
        """Have `handle` told of every new chunk."""
        self._attached.append(handle)

    def claim_id(self, name: str) -> bytes:
        """Reserve the stored id of a state name; raises `UserError` when two names collide."""
        sid = state_id(name)
        other = self._ids.setdefault(sid, name)
        if other != name:
            raise UserError(
                f"two state names of one operator have the same stored id: {other!r} and {name!r}; "
                f"rename one of them"
            )
        return sid

    def begin_chunk(self, prefixes: list[bytes]) -> None:
        """Say which keys come next, fastest in the order of their bytes; see `switch_to`.

        When the chunk starts with the key that is current (its records run on), its pending changes
        stay in place, so the caller does not call `switch_to` for it again.
        """
        self.prefixes = prefixes
        self.index = 0
        for handle in self._attached:
            handle.new_chunk()

    def switch_to(self, index: int) -> None:
        """Make the key at `index` of the chunk the current one."""
        if self.touched:
            self.flush_key()
        self.index = index
        self.prefix = self.prefixes[index]
        self.touched = self._of_key

    def flush_key(self) -> None:
        """Encode what the current key changed."""
        for handle in self.touched:
            handle.flush()
        self.touched.clear()
        if len(self._keys) >= _FRAME_ENTRIES or self._bytes >= _FRAME_BYTES:
            self._send()

    def relieve(self) -> None:
        """Send what is staged if it fills a frame; for a key that writes very much."""
        if len(self._keys) >= _FRAME_ENTRIES or self._bytes >= _FRAME_BYTES:
            self._send()

    def settle(self) -> None:
        """Have what is written so far come before all that follows, also what deletes ranges."""
        if self._keys or self._ranges:
            self._send()

    def write(self, key: bytes, value: bytes | None) -> None:
        """Add a put, or a delete where `value` is None, to what is staged."""
        self._keys.append(key)
        self._values.append(value)
        self._bytes += len(key) + (len(value) if value is not None else 0)

    # As `write`, of cells, which no range has in it that a handle deletes: a store that keeps
    # writes by key need not look for them there.
    write_cell = write

    def read(self, key: bytes) -> bytes | None:
        """What is stored under one key: an entry of the current key's map."""
        return self.access.get_many([key])[0]

    def fetch(self, sid: bytes) -> Values:
        """See `fetch_values`."""
        return fetch_values(self, sid)

    def write_many(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Add many puts and deletes, in this order."""
        self._keys += keys
        self._values += values
        self._bytes += sum(map(len, keys)) + sum(map(len, filter(None, values)))

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Add the deletion of [start, end), which comes before this key's own writes."""
        self._ranges.append((start, end))
        self._bytes += len(start) + len(end)

    def finish(self) -> int:
        """Flush the last key and send what is left; returns the number of frames sent in all."""
        self.flush_key()
        self.prefix = b""
        self.touched = NoKey()
        if self._keys or self._ranges:
            self._send()
        return self.frames

    def _send(self) -> None:
        self.access.stage(encode_frame(self._ranges, self._keys, self._values))
        self.frames += 1
        self._ranges, self._keys, self._values = [], [], []
        self._bytes = 0


def _make_handle(
    store: KeyedStateStore,
    sid: bytes,
    descriptor: StateDescriptor,
    codec: StateCodec,
    expiry: Expiry | None,
) -> Any:
    """The handle of a state that is stored under `sid`; stamped where there is an `expiry`."""
    if changes_in_place(descriptor.type):
        # The cell keeps bytes, so that what a user has is never what the state has.
        cell = _detached(descriptor)(_cell(store, sid, descriptor, RAW, expiry), codec)
    else:
        cell = _cell(store, sid, descriptor, codec, expiry)
    if isinstance(descriptor, ReducingStateDescriptor):
        return StoredReducingState(cell, reducer(descriptor), descriptor.name)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return StoredAggregatingState(cell, descriptor.function, descriptor.name)
    if isinstance(descriptor, FoldingStateDescriptor):
        function = folding_function(descriptor, codec.settle)
        return StoredFoldingState(cell, function, descriptor.name)
    if isinstance(descriptor, ValueStateDescriptor) and descriptor.default is not None:
        return DefaultedValueState(cell, codec.encode(descriptor.default), codec.decode)
    return cell


def _detached(descriptor: StateDescriptor) -> Any:
    """The class that stands before the bytes of a list, a map, or one value."""
    if isinstance(descriptor, ListStateDescriptor):
        return DetachedListState
    return DetachedMapState if isinstance(descriptor, MapStateDescriptor) else DetachedValueState


def _is_plain_value(handle: Any) -> bool:
    """Whether it is that of a value state whose values are stored as they are, unstamped."""
    while type(handle) in (DefaultedValueState, DetachedValueState):
        handle = handle.cell
    return type(handle) is StoredValueState


def _cell(
    store: KeyedStateStore,
    sid: bytes,
    descriptor: StateDescriptor,
    codec: StateCodec,
    expiry: Expiry | None,
) -> Any:
    """The handle of what is stored for a key: a list, a map, or one value."""
    expiring: tuple[Any, ...] = () if expiry is None else (expiry,)
    if isinstance(descriptor, ListStateDescriptor):
        list_class: Any = ExpiringListState if expiring else StoredListState
        return list_class(store, sid, codec, *expiring)
    if isinstance(descriptor, MapStateDescriptor):
        map_class: Any = ExpiringMapState if expiring else StoredMapState
        return map_class(store, sid, codec, descriptor, *expiring)
    value_class: Any = ExpiringValueState if expiring else StoredValueState
    return value_class(store, sid, codec, *expiring)
