"""The state handles of the keyed store, each with what it was made of.

Decides which class stands for a descriptor. Called by the store when a state is registered, and
for each namespace of one.
"""

from typing import TYPE_CHECKING, Any

from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from moorage_state.keyed.codec import StateCodec
from moorage_state.keyed.combining import (
    AggregatingState,
    FoldingState,
    ReducingState,
    folding_function,
    reducer,
)
from moorage_state.keyed.expiry import Expiry
from moorage_state.keyed.lists import ExpiringListState, ListState
from moorage_state.keyed.maps import ExpiringMapState, MapState
from moorage_state.keyed.scanning import fetch_values
from moorage_state.keyed.values import ExpiringValueState, ValueState

if TYPE_CHECKING:
    from moorage_state.keyed.store import KeyedStateStore

__all__ = [
    "AggregatingState",
    "FoldingState",
    "ListState",
    "MapState",
    "ReducingState",
    "ValueState",
    "fetch_values",
    "make_handle",
]


def make_handle(
    store: "KeyedStateStore",
    sid: bytes,
    descriptor: StateDescriptor,
    codec: StateCodec,
    expiry: Expiry | None,
) -> Any:
    """The handle of a state that is stored under `sid`; stamped where there is an `expiry`."""
    expiring: tuple[Any, ...] = () if expiry is None else (expiry,)
    list_class: Any = ExpiringListState if expiring else ListState
    map_class: Any = ExpiringMapState if expiring else MapState
    value_class: Any = ExpiringValueState if expiring else ValueState
    if isinstance(descriptor, ListStateDescriptor):
        return list_class(store, sid, codec, *expiring)
    if isinstance(descriptor, MapStateDescriptor):
        return map_class(store, sid, codec, descriptor, *expiring)
    cell = value_class(store, sid, codec, *expiring)
    if isinstance(descriptor, ReducingStateDescriptor):
        return ReducingState(cell, reducer(descriptor))
    if isinstance(descriptor, AggregatingStateDescriptor):
        return AggregatingState(cell, descriptor.function)
    if isinstance(descriptor, FoldingStateDescriptor):
        return FoldingState(cell, folding_function(descriptor, codec.settle))
    return cell
