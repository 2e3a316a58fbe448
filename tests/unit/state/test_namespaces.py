"""Namespaces: one key, one state, several contents; merged, listed, expired each by itself."""

from datetime import timedelta

import pytest
from moorage_testing.contract_combining import Mean
from moorage_testing.keyed_harness import KeyedStoreHarness

from moorage_state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.schema import schema_of
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import key_prefix, state_id
from moorage_state.timetolive import StateTtlConfig

WINDOW = ["bigint", "bigint"]
COUNT = ValueStateDescriptor("count", "long")
ITEMS = ListStateDescriptor("items", "string")
SEEN = MapStateDescriptor("seen", "string", "long")
SUM = ReducingStateDescriptor("sum", "long", "sum")
MEAN = AggregatingStateDescriptor("mean", "sum long, n long", Mean())


@pytest.fixture
def harness():
    made = KeyedStoreHarness(2)
    made.open()
    made.with_key("k")
    return made


@pytest.fixture
def at(harness):
    """The handle of a state for the current key in a namespace."""
    return lambda descriptor, namespace: harness.namespaced(
        descriptor, WINDOW
    ).set_current_namespace(namespace)


@pytest.mark.parametrize("commit", [False, True])
def test_every_namespace_has_its_own_content(harness, at, commit):
    for n in range(3):
        at(COUNT, (n, n + 1)).update(n)
        at(ITEMS, (n, n + 1)).add_all(["x"] * n)
        at(SEEN, (n, n + 1)).put("n", n)
        at(SUM, (n, n + 1)).add_all([n, n])
    if commit:
        harness.new_epoch()
        harness.with_key("k")
    for n in (2, 0, 1):
        assert at(COUNT, (n, n + 1)).value() == n
        assert at(ITEMS, (n, n + 1)).get() == ["x"] * n
        assert dict(at(SEEN, (n, n + 1)).items()) == {"n": n}
        assert at(SUM, (n, n + 1)).get() == 2 * n
    assert at(COUNT, (9, 9)).value() is None


def test_going_back_to_a_namespace_finds_what_was_written_in_it_before(harness, at):
    at(COUNT, (0, 1)).update(1)
    at(COUNT, (1, 2)).update(2)
    assert at(COUNT, (0, 1)).value() == 1
    at(COUNT, (0, 1)).update(3)
    harness.new_epoch()
    harness.with_key("k")
    assert (at(COUNT, (0, 1)).value(), at(COUNT, (1, 2)).value()) == (3, 2)


def test_keys_and_namespaces_do_not_mix(harness, at):
    for key in ("a", "b"):
        harness.with_key(key)
        at(COUNT, (0, 1)).update(ord(key))
    harness.new_epoch()
    for key in ("b", "a"):
        harness.with_key(key)
        assert at(COUNT, (0, 1)).value() == ord(key)
        at(COUNT, (0, 1)).update(None)
    harness.new_epoch()
    assert harness.stored_entries() == 0


def test_a_namespace_that_begins_as_another_is_another(harness):
    state = harness.namespaced(ITEMS, ["string"])
    for name in ("", "a", "ab"):
        state.set_current_namespace(name).add(name)
    harness.new_epoch()
    harness.with_key("k")
    state = harness.namespaced(ITEMS, ["string"])
    assert state.set_current_namespace("a").get() == ["a"]
    state.set_current_namespace("a").clear()
    assert [state.set_current_namespace(n).get() for n in ("", "a", "ab")] == [[""], [], ["ab"]]


@pytest.mark.parametrize("commit", [False, True])
def test_merging_moves_everything_to_the_target_and_clears_the_sources(harness, at, commit):
    for n in range(3):
        at(ITEMS, (n, 9)).add(str(n))
        at(SUM, (n, 9)).add(10**n)
        at(MEAN, (n, 9)).add(n)
    if commit:
        harness.new_epoch()
        harness.with_key("k")
    for descriptor in (ITEMS, SUM, MEAN):
        harness.namespaced(descriptor, WINDOW).merge_namespaces((1, 9), [(0, 9), (1, 9), (2, 9)])
    for _ in range(2):
        assert at(ITEMS, (1, 9)).get() == ["1", "0", "2"]
        assert at(SUM, (1, 9)).get() == 111
        assert at(MEAN, (1, 9)).get() == 1.0
        for n in (0, 2):
            assert at(ITEMS, (n, 9)).get() == []
            assert at(SUM, (n, 9)).get() is None
            assert at(MEAN, (n, 9)).get() is None
        harness.new_epoch()
        harness.with_key("k")


def test_merging_nothing_leaves_nothing(harness):
    for descriptor in (ITEMS, SUM, MEAN):
        harness.namespaced(descriptor, WINDOW).merge_namespaces((1, 9), [(0, 9), (2, 9)])
    harness.new_epoch()
    assert harness.stored_entries() == 0


def test_values_and_maps_cannot_be_merged(harness):
    for descriptor in (COUNT, SEEN):
        with pytest.raises(TypeError, match="only list, reducing and aggregating states"):
            harness.namespaced(descriptor, WINDOW).merge_namespaces((1, 9), [(0, 9)])


def test_an_aggregate_function_without_merge_says_so(harness):
    class Count(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, _value, accumulator):
            return accumulator + 1

        def get_result(self, accumulator):
            return accumulator

    counts = harness.namespaced(AggregatingStateDescriptor("n", "long", Count()), WINDOW)
    for n in range(2):
        counts.set_current_namespace((n, 9)).add(1)
    with pytest.raises(NotImplementedError, match="Count does not define merge"):
        counts.merge_namespaces((0, 9), [(1, 9)])


def test_a_state_cannot_change_its_namespaces(harness):
    harness.state(COUNT)
    with pytest.raises(UserError, match=r"value<bigint> by namespace \(bigint, bigint\)"):
        harness.namespaced(COUNT, WINDOW)
    harness.namespaced(SUM, WINDOW)
    with pytest.raises(UserError, match="'sum' was registered as"):
        harness.namespaced(SUM, ["string"])
    harness.new_epoch()
    harness.with_key("k")
    with pytest.raises(UserError, match="'sum' was written as"):
        harness.state(SUM)


@pytest.mark.parametrize("types", [[], "string", ["double"]])
def test_a_namespace_needs_types_that_keys_may_have(harness, types):
    with pytest.raises(ValueError, match=r"namespace needs|a key column cannot be"):
        harness.namespaced(COUNT, types)


def test_a_state_without_namespaces_has_nothing_of_them_in_its_stored_key(fake_range, at_key):
    store = KeyedStateStore(fake_range, 1)
    count = store.value_state(COUNT)
    prefix = at_key(store)
    count.update(1)
    store.finish()
    fake_range.commit()
    assert list(fake_range.entries) == [prefix + state_id("count")]


def test_values_of_many_namespaces_can_be_fetched_in_one_request(fake_range):
    prefixes = [key_prefix(3, bytes([n])) for n in range(4)]
    for epoch in (1, 2):
        store = KeyedStateStore(fake_range, epoch)
        state = store.namespaced_state(SUM, WINDOW)
        store.begin_chunk(prefixes)
        state.prefetch([(n, (n % 2, 9)) for n in range(4)])
        for n in range(4):
            store.switch_to(n)
            state.set_current_namespace((n % 2, 9)).add(n)
        store.finish()
        fake_range.commit()
    assert fake_range.requests == 2
    store = KeyedStateStore(fake_range, 3)
    state = store.namespaced_state(SUM, WINDOW)
    store.begin_chunk(prefixes)
    for n in range(4):
        store.switch_to(n)
        assert state.set_current_namespace((n % 2, 9)).get() == 2 * n


def test_a_namespace_that_many_keys_have_is_read_for_many_at_once(fake_range):
    prefixes = [key_prefix(3, bytes([n])) for n in range(100)]
    for epoch in (1, 2):
        store = KeyedStateStore(fake_range, epoch)
        state = store.namespaced_state(SUM, WINDOW)
        store.begin_chunk(prefixes)
        fake_range.requests = 0
        for n in range(100):
            store.switch_to(n)
            for window in ((0, 9), (9, 18), (n, 1000)):
                handle = state.set_current_namespace(window)
                assert handle.get() == (n if epoch > 1 else None)
                handle.add(n if epoch == 1 else 1)
        # Of windows that all have, not one for each key; of one that is a key's own, no more.
        assert fake_range.requests <= 2 * 8 + 100
        store.finish()
        fake_range.commit()
    store = KeyedStateStore(fake_range, 3)
    state = store.namespaced_state(SUM, WINDOW)
    store.begin_chunk(prefixes)
    for n in range(100):
        store.switch_to(n)
        assert [state.set_current_namespace(w).get() for w in ((0, 9), (n, 1000))] == [n + 1] * 2


def test_very_many_namespaces_of_very_many_keys_stay_right(fake_range, monkeypatch):
    monkeypatch.setattr("moorage_state.keyed.namespaces._HANDLES", 3)
    prefixes = [key_prefix(3, bytes([n])) for n in range(5)]
    for epoch in range(1, 4):
        store = KeyedStateStore(fake_range, epoch)
        state = store.namespaced_state(COUNT, ["long"])
        store.begin_chunk(prefixes)
        for n in range(5):
            store.switch_to(n)
            for namespace in range(7):
                handle = state.set_current_namespace(namespace)
                assert (handle.value() or 0) == (epoch - 1) * n
                handle.update(epoch * n)
        store.finish()
        fake_range.commit()


def test_handles_go_with_their_keys_where_another_state_is_read_first(fake_range, monkeypatch):
    monkeypatch.setattr("moorage_state.keyed.namespaces._HANDLES", 5)
    prefixes = [key_prefix(3, bytes([n])) for n in range(20)]
    for epoch in (1, 2):
        store = KeyedStateStore(fake_range, epoch)
        count, state = store.value_state(COUNT), store.namespaced_state(SUM, WINDOW)
        store.begin_chunk(prefixes)
        for n in range(20):
            store.switch_to(n)
            # As windows do: first what windows the key has, and each is a namespace of its own.
            count.update((count.value() or 0) + 1)
            handles = [state.set_current_namespace((n, at)) for at in range(3)]
            for handle in handles:
                handle.add(n)
            state.merge_namespaces((n, 0), [(n, 1)])
            assert len(state._handles) < 5 + 3
        store.finish()
        fake_range.commit()
    store = KeyedStateStore(fake_range, 3)
    count, state = store.value_state(COUNT), store.namespaced_state(SUM, WINDOW)
    store.begin_chunk(prefixes)
    for n in range(20):
        store.switch_to(n)
        sums = [state.set_current_namespace((n, at)).get() for at in range(3)]
        assert (count.value(), sums) == (2, [4 * n, None, 2 * n])


def test_keys_can_be_listed_by_state_and_namespace(fake_range, monkeypatch):
    monkeypatch.setattr("moorage_state.keyed.namespaces._PAGE", 2)
    prefixes = {n: key_prefix(n, bytes([n])) for n in range(1, 6)}
    store = KeyedStateStore(fake_range, 1)
    count, items = store.value_state(COUNT), store.namespaced_state(ITEMS, WINDOW)
    store.begin_chunk(list(prefixes.values()))
    for index, n in enumerate(prefixes):
        store.switch_to(index)
        if n % 2:
            count.update(n)
        items.set_current_namespace((n % 2, 9)).add_all(["x", "y"])
    store.finish()
    fake_range.commit()
    store = KeyedStateStore(fake_range, 2, store.schemas, groups=KeyGroupRange(1, 4))
    assert list(store.keys_of("count")) == [prefixes[1], prefixes[3]]
    assert list(store.keys_of("items")) == [prefixes[n] for n in (1, 2, 3, 4)]
    assert list(store.keys_of("items", (0, 9))) == [prefixes[2], prefixes[4]]
    assert list(store.keys_of("nothing")) == []


def test_pages_for_the_list_of_keys_shrink_where_values_are_large(fake_range, monkeypatch):
    monkeypatch.setattr("moorage_state.keyed.namespaces._PAGE_BYTES", 1000)
    prefixes = [key_prefix(1, n.to_bytes(2, "big")) for n in range(400)]
    large = bytes(100)
    for n, prefix in enumerate(prefixes):
        fake_range.entries[prefix + state_id("count")] = large if n < 300 else b""
    sizes, scan_from = [], fake_range.scan_from

    def scanning(*place):
        page = scan_from(*place)
        sizes.append((len(page.keys), sum(map(len, page.values))))
        return page

    monkeypatch.setattr(fake_range, "scan_from", scanning)
    store = KeyedStateStore(fake_range, 2, [schema_of(COUNT)], groups=KeyGroupRange(1, 1))
    assert list(store.keys_of("count")) == prefixes
    assert sizes[0] == (64, 6400)
    assert max(size for _, size in sizes[1:]) <= 1000
    assert max(count for count, _ in sizes[1:]) > 9, "they grow again behind"


def test_what_is_in_a_namespace_expires_by_itself(harness):
    ttl = StateTtlConfig(timedelta(seconds=10))
    values = ValueStateDescriptor("v", "long", ttl), ListStateDescriptor("l", "long", ttl)
    for namespace in (1, 2):
        for descriptor in values:
            handle = harness.namespaced(descriptor, ["int"]).set_current_namespace(namespace)
            (handle.update if descriptor.kind == "value" else handle.add)(namespace)
        harness.now_ms += 6000
        harness.new_epoch()
        harness.with_key("k")
    value, items = (harness.namespaced(d, ["int"]) for d in values)
    assert [value.set_current_namespace(n).value() for n in (1, 2)] == [None, 2]
    assert [items.set_current_namespace(n).get() for n in (1, 2)] == [[], [2]]
    for _ in range(3):
        harness.now_ms += 6000
        harness.new_epoch()
    assert harness.stored_entries() == 0
