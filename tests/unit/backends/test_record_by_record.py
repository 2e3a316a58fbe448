"""RocksDB in process, a record at a time: what is written at once, and what is held back."""

import pytest

from moorage_state.descriptors import ListStateDescriptor, MapStateDescriptor
from moorage_state.keygroups import KeyGroupRange
from moorage_state.state_backends import EmbeddedRocksDBStateBackend, Environment

LIST = ListStateDescriptor("items", "long")
MAP = MapStateDescriptor("entries", "string", "binary")
MIB = 1 << 20


@pytest.fixture
def backend(tmp_path):
    made = EmbeddedRocksDBStateBackend(timer_service="ROCKSDB").create_keyed_state_backend(
        Environment(local_dir=tmp_path), "job", "op", ["string"], 4, KeyGroupRange(0, 3)
    )
    made.set_current_key("a")
    yield made
    made.dispose()


def come_back(backend):
    """Let another key be the current one for a moment."""
    backend.set_current_key("elsewhere")
    backend.set_current_key("a")


def test_a_key_that_stays_the_current_one_may_write_more_than_is_held_back(backend):
    entries = backend.get_map_state(MAP)
    for n in range(200):
        backend.set_current_key("a")
        entries.put(f"{n}", bytes(MIB // 10))
    assert backend._writes.held < 9 * MIB
    assert len(entries.keys()) == 200


def test_what_was_added_before_a_list_was_cleared_is_gone(backend):
    items = backend.get_list_state(LIST)
    items.add(1)
    come_back(backend)
    items.add(2)
    items.clear()
    items.add(3)
    assert items.get() == [3]
    come_back(backend)
    items.add(4)
    assert items.get() == [3, 4]


def test_a_list_that_is_read_between_two_additions_keeps_their_order(backend):
    items = backend.get_list_state(LIST)
    for n in range(3):
        items.add(n)
        assert items.get() == list(range(n + 1))
    come_back(backend)
    items.add(3)
    assert items.get() == [0, 1, 2, 3]


def test_a_walk_over_a_list_does_not_meet_what_is_added_meanwhile(backend):
    items = backend.get_list_state(LIST)
    items.add_all([1, 2])
    items.add(3)
    walk = iter(items)
    items.add(4)
    assert list(walk) == [1, 2, 3]
    assert items.get() == [1, 2, 3, 4]


def test_entries_put_removed_and_cleared_read_back_as_of_the_last(backend):
    entries = backend.get_map_state(MAP)
    entries.put("x", b"1")
    entries.put("y", b"1")
    entries.remove("x")
    assert (entries.get("x"), entries.get("y")) == (None, b"1")
    come_back(backend)
    entries.put("x", b"2")
    entries.clear()
    entries.put("z", b"3")
    come_back(backend)
    assert dict(entries.items()) == {"z": b"3"}
    entries.remove("z")
    assert entries.is_empty()


def test_a_state_without_a_current_key_still_says_so(tmp_path):
    made = EmbeddedRocksDBStateBackend().create_keyed_state_backend(
        Environment(local_dir=tmp_path), "job", "op", ["string"], 4, KeyGroupRange(0, 3)
    )
    for call in (
        lambda: made.get_list_state(LIST).add(1),
        lambda: made.get_map_state(MAP).put("x", b""),
        lambda: made.get_map_state(MAP).get("x"),
        lambda: made.get_map_state(MAP).remove("x"),
    ):
        with pytest.raises(RuntimeError, match="there is none at this point"):
            call()
    made.dispose()


def test_a_timer_that_is_set_behind_those_that_fired_fires(backend):
    fired = []
    timers = backend.timers()
    for time_ms in (10, 20, 30):
        timers.register(time_ms)
    take = lambda time_ms, _key: fired.append(time_ms)  # noqa: E731
    assert timers.fire_due(20, take) == 2
    assert timers.fire_due(20, take) == 0
    timers.register(5)
    assert timers.peek() == 5
    assert timers.fire_due(20, take) == 1
    assert timers.fire_due(100, take) == 1
    assert fired == [10, 20, 5, 30]
    assert timers.peek() is None
    timers.register(-7)
    assert timers.fire_due(0, take) == 1


def test_firing_does_not_pass_over_what_has_fired(backend, monkeypatch):
    """Neither while something is due nor while nothing is."""
    timers = backend.timers()
    for time_ms in range(100):
        timers.register(time_ms)
    places = []
    found = timers._found

    def noted(*args):
        places.append(args[-1])
        return found(*args)

    monkeypatch.setattr(timers, "_found", noted)
    assert timers.fire_due(98, lambda *_: None) == 99
    timers.fire_due(98, lambda *_: None)
    places.clear()
    assert timers.fire_due(98, lambda *_: None) == 0
    assert places == []
