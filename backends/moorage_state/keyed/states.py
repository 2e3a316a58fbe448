"""The state handles of the keyed store, each with what it was made of.

Decides which class stands for a descriptor. Called by the store when a state is registered, and
for each namespace of one.
"""

from typing import TYPE_CHECKING, Any

from moorage_state.codecs import changes_in_place
from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed.detached import (
    DetachedListState,
    DetachedMapState,
    DetachedValueState,
)
from moorage_state.keyed.expiry import Expiry
from moorage_state.keyed.lists import ExpiringListState, StoredListState
from moorage_state.keyed.maps import ExpiringMapState, StoredMapState
from moorage_state.keyed.schema import RAW, StateCodec
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

if TYPE_CHECKING:
    from moorage_state.keyed.state_store import KeyedStateStore


def make_handle(
    store: "KeyedStateStore",
    sid: bytes,
    descriptor: StateDescriptor,
    codec: StateCodec,
    expiry: Expiry | None,
) -> Any:
    """The handle of a state that is stored under `sid`; stamped where there is an `expiry`."""
    if not changes_in_place(descriptor.type):
        cell = _cell(store, sid, descriptor, codec, expiry)
    elif isinstance(descriptor, ListStateDescriptor):
        cell = DetachedListState(_cell(store, sid, descriptor, RAW, expiry), codec)
    elif isinstance(descriptor, MapStateDescriptor):
        cell = DetachedMapState(_cell(store, sid, descriptor, RAW, expiry), codec)
    else:
        cell = DetachedValueState(_cell(store, sid, descriptor, RAW, expiry), codec)
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


def is_plain_value(handle: Any) -> bool:
    """Whether it is that of a value state whose values are stored as they are, unstamped."""
    while type(handle) in (DefaultedValueState, DetachedValueState):
        handle = handle.cell
    return type(handle) is StoredValueState


def _cell(
    store: "KeyedStateStore",
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
