"""A key with very many timers: an entry for each, and what an epoch reads and writes of them."""

import pytest

from moorage_state.keyed import KeyedStateStore, KeyTimers, TimeDomain
from moorage_state.keyed.many_timers import pack_timers, stored_timers
from moorage_state.keyed.timers import NOTHING_HELD, TIMERS_STATE
from moorage_state.keylayout import PROCESSING_TIMERS, key_prefix, state_id, timer_entry

CELL = key_prefix(7, b"k") + state_id(TIMERS_STATE)
EVENT, PROCESSING = TimeDomain


@pytest.fixture
def range_(new_range):
    return new_range()


def put(range_, event, processing=()):
    """What is stored for the key's timers, and the indexes by time."""
    stored = stored_timers(list(event), list(processing))
    range_.entries.update((CELL + rest, value) for rest, value in stored)
    range_.entries.update((timer_entry(7, t, b"k"), b"") for t in event)
    index = (timer_entry(7, t, b"k", PROCESSING_TIMERS) for t in processing)
    range_.entries.update((entry, b"") for entry in index)


class Epoch:
    """One epoch in which the key is visited."""

    def __init__(self, range_, at_key, number=1):
        self._range = range_
        self._store = KeyedStateStore(range_, number)
        self.timers = KeyTimers(self._store)
        at_key(self._store)

    def __enter__(self):
        return self.timers

    def __exit__(self, *_):
        self._store.finish()
        self.bytes = sum(map(len, self._range.staged))
        self._range.commit()


def own(range_):
    return {key[len(CELL) :]: value for key, value in range_.entries.items() if CELL in key[:20]}


def test_setting_and_firing_cost_the_same_however_many_timers_the_key_has(range_, at_key):
    costs = []
    for count in (1_000, 4_000, 16_000):
        range_.entries.clear()
        put(range_, range(count))
        for n in range(3):
            range_.requests, epoch = 0, Epoch(range_, at_key, n)
            with epoch as timers:
                assert timers.register(count + n)
                assert timers.has_due(n, 0)
                assert timers.pop_due(n) == n
                assert timers.pop_due(n) is None
            costs.append((range_.requests, epoch.bytes))
    assert len(set(costs)) == 1
    assert costs[0][0] <= 3
    assert costs[0][1] < 300


def test_a_value_with_all_timers_from_before_is_read_and_becomes_entries(range_, at_key):
    range_.entries[CELL] = pack_timers(list(range(600)), [5])
    with Epoch(range_, at_key) as timers:
        assert timers.register(1000)
    with Epoch(range_, at_key) as timers:
        assert [timers.pop_due(2000) for _ in range(601)] == [*range(600), 1000]
        assert timers.pop_due(2000) is None
        assert timers.pop_due(5, PROCESSING) == 5
    assert own(range_) == {}


def test_the_stored_form_of_many_timers_is_settled(range_):
    put(range_, range(1, 600), [-1])
    stored = own(range_)
    assert stored[b""].hex() == "930101ff"
    assert stored[bytes.fromhex("008000000000000257")] == b""
    assert stored[bytes.fromhex("017fffffffffffffff")] == b""
    assert len(stored) == 1 + 600
    assert pack_timers([1], [-1]).hex() == "92910191ff"


def test_few_timers_that_are_left_are_one_value_again(range_, at_key):
    put(range_, range(600))
    with Epoch(range_, at_key) as timers:
        for n in range(570):
            assert timers.pop_due(1000) == n
    with Epoch(range_, at_key) as timers:
        assert timers.pop_due(1000) == 570
        assert timers.delete(590)
    assert own(range_) == {b"": pack_timers([n for n in range(571, 600) if n != 590], [])}


def test_deleting_tells_whether_a_timer_was_set_and_the_next_one_comes(range_, at_key):
    put(range_, range(0, 2000, 2))
    with Epoch(range_, at_key) as timers:
        assert timers.delete(0)
        assert not timers.delete(0)
        assert not timers.delete(3)
        assert timers.delete(1000)
        assert timers.first_stored()[EVENT] == 0
    with Epoch(range_, at_key) as timers:
        assert timers.first_stored()[EVENT] == 2
        popped = [timers.pop_due(2000) for _ in range(998)]
        assert popped == [t for t in range(2, 2000, 2) if t != 1000]
        assert timers.pop_due(2000) is None
    assert range_.entries == {}


def test_a_timer_that_is_set_twice_or_again_fires_once(range_, at_key):
    put(range_, range(1000))
    with Epoch(range_, at_key) as timers:
        timers.register(700)
        assert timers.pop_due(10) == 0
        assert timers.register(0)
        assert not timers.register(0)
        assert timers.delete(1)
        assert timers.register(1)
        assert [timers.pop_due(3) for _ in range(5)] == [0, 1, 2, 3, None]
        assert timers.register(2)
    with Epoch(range_, at_key) as timers:
        assert [timers.pop_due(1000) for _ in range(998)] == [2, *range(4, 1000), None]


def test_timers_of_processing_time_that_are_held_wait_for_the_next_epoch(range_, at_key):
    put(range_, [], range(1000))
    with Epoch(range_, at_key) as timers:
        assert timers.pop_due(1, PROCESSING) == 0
        timers.held_to = 1
        assert timers.register(0, PROCESSING)
        assert not timers.register(1, PROCESSING)
        timers.held_to = NOTHING_HELD
        assert timers.pop_due(1, PROCESSING) == 1
        assert timers.pop_due(1, PROCESSING) is None
    assert timers.earliest == 0
    with Epoch(range_, at_key) as timers:
        assert timers.pop_due(1, PROCESSING) == 0
        assert timers.pop_due(1, PROCESSING) is None
    assert timers.earliest == 2
