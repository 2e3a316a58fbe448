"""States that may be looked up from outside are registered by name, as they are asked for."""

import pytest

from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed import KeyedStateStore
from moorage_state.keygroups import KeyGroupRange
from moorage_state.state_backends import (
    Environment,
    HashMapStateBackend,
    KvStateEntry,
    TaskKvStateRegistry,
)

GROUPS = KeyGroupRange(0, 63)


def test_a_keyed_state_backend_registers_what_is_queryable_until_its_end():
    registry = TaskKvStateRegistry()
    backend = HashMapStateBackend().create_keyed_state_backend(
        Environment(), "job", "op", ["long"], 64, GROUPS, registry
    )
    backend.get_state(ValueStateDescriptor("n", "long").queryable("counts"))
    backend.get_map_state(MapStateDescriptor("m", "string", "long"))
    window = ListStateDescriptor("w", "long").queryable("windows")
    backend.get_partitioned_state(1, "long", window)
    assert registry.entries == {
        "counts": KvStateEntry("n", GROUPS),
        "windows": KvStateEntry("w", GROUPS),
    }
    backend.dispose()
    assert registry.entries == {}


def test_a_descriptor_without_a_name_is_not_registered(fake_range):
    store = KeyedStateStore(fake_range, 1)
    store.value_state(ValueStateDescriptor("n", "long"))
    assert store.kv_states.names() == {}


def test_two_states_of_an_operator_cannot_have_one_name(fake_range):
    store = KeyedStateStore(fake_range, 1)
    store.value_state(ValueStateDescriptor("a", "long").queryable("counts"))
    with pytest.raises(UserError, match="queryable=counts state=a and state=b"):
        store.reducing_state(ReducingStateDescriptor("b", "long", "sum").queryable("counts"))


def test_a_state_that_is_asked_for_again_has_the_same_name(fake_range):
    store = KeyedStateStore(fake_range, 1)
    store.value_state(ValueStateDescriptor("a", "long").queryable("counts"))
    store.value_state(ValueStateDescriptor("a", "long", queryable_name="counts"))
    with pytest.raises(UserError, match="queryable='counts' and now queryable=''"):
        store.value_state(ValueStateDescriptor("a", "long"))


@pytest.mark.parametrize("name", ["", "a/b", "_timers", "x" * 64, None, 7])
def test_a_name_is_one_that_a_path_can_have(name):
    with pytest.raises(ValueError, match="a queryable name starts with a letter or digit"):
        ValueStateDescriptor("n", "long").queryable(name)
