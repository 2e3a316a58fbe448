"""State that is stored and not in the index of what expires: it comes there without being read."""

from datetime import timedelta
from typing import Any

import pytest
from moorage_testing.contract_ttl import described
from moorage_testing.fake_range import FakeRange
from moorage_testing.keyed_harness import KeyedStoreHarness

from moorage_state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from moorage_state.errors import UserError
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.expiry import NEVER
from moorage_state.keyed.schema import StateSchema, merged_schema, schema_of
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import EXPIRIES, expiry_parts, key_prefix
from moorage_state.timetolive import StateTtlConfig, UpdateType

TTL_MS = 16_000
HOUR_MS = 3_600_000
START = 1_600_000_000_000
GROUPS = KeyGroupRange(0, 3)


def ttl(milliseconds=TTL_MS, **options):
    return StateTtlConfig(timedelta(milliseconds=milliseconds), **options)


SWEPT = ttl()
QUIET = ttl(cleanup_in_background=False)
LONG = ttl(HOUR_MS)


def value(config, name="value"):
    return ValueStateDescriptor(name, "long", config)


class Job:
    """Epochs of one subtask, each over what the one before committed and recorded."""

    def __init__(self):
        self.range = FakeRange()
        self.known = []
        self.epoch = 0

    def run(self, now_ms, descriptors, todo=lambda *_: None, keys=(b"other",)):
        """Returns what was looked at."""
        self.epoch += 1
        store = KeyedStateStore(self.range, self.epoch, self.known, now_ms=now_ms, groups=GROUPS)
        states = [store.state(descriptor) for descriptor in descriptors]
        looked_at = store.sweep_expired()
        store.begin_chunk([key_prefix(key[0] % 4, key) for key in sorted(keys)])
        for index, key in enumerate(sorted(keys)):
            store.switch_to(index)
            todo(key, *states)
        store.finish()
        self.range.commit()
        self.known = store.schemas
        return looked_at

    def cells(self):
        return [entry for entry in self.range.entries if entry[2] != EXPIRIES]

    def times(self):
        return [expiry_parts(one)[0] for one in self.range.entries if one[2] == EXPIRIES]


@pytest.fixture
def job():
    return Job()


def write(_key, value, items, seen, total, mean):
    value.update(1)
    items.add_all([1, 2])
    seen.put_all({"a": 1, "b": 2})
    total.add(5)
    mean.add_all([1, 2])


KEYS = [bytes([n]) for n in range(20)]


@pytest.mark.parametrize("before", [None, QUIET], ids=["without a time to live", "unswept"])
def test_what_was_written_before_it_was_swept_goes_without_being_read(job, before):
    job.run(START, described(before), write, KEYS)
    assert job.times() == []
    later = START + 1000
    for _ in range(3):
        job.run(later, described(SWEPT))
    assert len(job.cells()) == len(KEYS) * 7
    for _ in range(2):
        job.run(later + 2 * TTL_MS, described(SWEPT))
    assert job.range.entries == {}


def test_what_never_had_a_time_lives_for_it_from_the_sweep_on(job):
    job.run(START, [value(None)], lambda _, v: v.update(1), KEYS)
    late = START + 9 * TTL_MS
    for _ in range(3):
        job.run(late, [value(SWEPT)])
    found = []
    job.run(late + TTL_MS - 1, [value(SWEPT)], lambda _, v: found.append(v.value()), KEYS)
    assert found == [1] * len(KEYS)
    job.run(late + TTL_MS + 1000, [value(SWEPT)])
    assert job.cells() == []


def test_state_that_nobody_declares_any_more_is_brought_into_the_index_too(job):
    job.run(START, [value(QUIET)], lambda _, v: v.update(1), KEYS)
    job.run(START, [value(SWEPT)])
    for late in (1, 2, 3):
        job.run(START + late * TTL_MS, [value(None, "another")])
    assert job.range.entries == {}


def test_a_shorter_time_to_live_is_swept_when_it_is_over(job):
    job.run(START, described(LONG), write, KEYS)
    for _ in range(3):
        job.run(START + 1000, described(SWEPT))
    assert len(job.cells()) == len(KEYS) * 7
    for _ in range(2):
        job.run(START + TTL_MS + 1000, described(SWEPT))
    assert job.cells() == []
    job.run(START + 2 * HOUR_MS, described(SWEPT))
    assert job.range.entries == {}


def test_a_time_to_live_that_was_given_up_and_declared_again_is_swept(job):
    job.run(START, [value(SWEPT)], lambda _, v: v.update(1), KEYS)
    job.run(START + 2 * TTL_MS, [value(None)])
    assert job.times() == []
    for late in (3, 4, 5):
        job.run(START + late * TTL_MS, [value(SWEPT)])
    assert job.range.entries == {}


def test_an_epoch_looks_at_no_more_than_its_limit_and_the_next_one_goes_on(job):
    bounded = ttl(sweep_limit=30)
    before = [MapStateDescriptor("seen", "long", "long", QUIET), value(None, "untouched")]
    after = [MapStateDescriptor("seen", "long", "long", bounded), value(None, "untouched")]

    def fill(_key, seen, untouched):
        seen.put_all(dict.fromkeys(range(9), 1))
        untouched.update(1)

    job.run(START, before, fill, KEYS)
    assert [job.run(START + 1000, after) for _ in range(9)] == [0, 0, *[30] * 6, 20]
    assert len(job.times()) == 9 * len(KEYS)
    assert NEVER not in job.times()


def test_a_key_group_is_read_by_pages_within_one_epoch(job):
    job.run(START, [MapStateDescriptor("seen", "long", "long", QUIET)], fill_many, [b"k"])
    swept = [MapStateDescriptor("seen", "long", "long", SWEPT)]
    assert [job.run(START + 1000, swept) for _ in range(3)] == [0, 0, 2000]
    assert len(job.times()) == 2000


def fill_many(_key, seen):
    seen.put_all(dict.fromkeys(range(2000), 1))


def test_a_list_is_brought_into_the_index_once_for_all_its_elements(job):
    job.run(START, [ListStateDescriptor("items", "long", QUIET)], lambda _, i: i.add_all([1, 2, 3]))
    for _ in range(3):
        job.run(START + 1000, [ListStateDescriptor("items", "long", SWEPT)])
    assert len(job.times()) == 1


def test_an_index_that_is_whole_costs_no_epoch_anything(job):
    job.run(START, [value(QUIET)], lambda _, v: v.update(1), KEYS)
    for _ in range(3):
        job.run(START, [value(SWEPT)])
    before = job.range.requests
    for _ in range(3):
        job.run(START + 1000, [value(SWEPT)])
    assert job.range.requests - before == 3
    assert [schema.indexed_ms for schema in job.known] == [TTL_MS]


def test_state_that_is_new_is_in_the_index_from_the_beginning(job):
    job.run(START, [value(SWEPT)], lambda _, v: v.update(1), KEYS)
    job.run(START + 1000, [value(SWEPT)])
    assert NEVER not in job.times()


@pytest.mark.parametrize("kind", ["list", "map"])
def test_what_an_epoch_clears_stays_cleared_where_the_sweep_began_its_time(job, kind):
    make = {
        "list": lambda config: ListStateDescriptor("s", "long", config),
        "map": lambda config: MapStateDescriptor("s", "long", "long", config),
    }[kind]

    def fill(_key, state):
        state.add(1) if kind == "list" else state.put(1, 1)

    job.run(START, [make(None)], fill, KEYS)
    job.run(START, [make(SWEPT)])
    job.run(START, [make(SWEPT)])
    assert NEVER in job.times()
    job.run(START, [make(SWEPT)], lambda _, state: state.clear(), KEYS)
    assert job.cells() == []


def test_two_attempts_of_an_epoch_bring_the_same_into_the_index(job):
    job.run(START, described(None), write, KEYS)
    job.run(START, described(SWEPT))
    for _ in range(2):
        frames = []
        for _ in range(2):
            store = KeyedStateStore(job.range, 9, job.known, now_ms=START + 1, groups=GROUPS)
            store.sweep_expired()
            store.finish()
            frames.append(job.range.staged)
            job.range.abort()
        assert frames[0] == frames[1] != []
        job.run(START + 1, described(SWEPT))


def test_what_is_not_swept_any_more_stays_whatever_the_index_says(job):
    job.run(START, [value(SWEPT)], lambda _, v: v.update(1), KEYS)
    job.run(START + 1000, [value(QUIET)])
    job.run(START + 2 * TTL_MS, [value(QUIET)])
    assert len(job.cells()) == len(KEYS)
    assert job.times() == []


@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_other_subtasks_go_on_where_those_before_them_were(parallelism):
    harness = KeyedStoreHarness(2)
    harness.open()
    bounded = ttl(sweep_limit=7)
    for config in (None, bounded):
        for n in range(40):
            harness.with_key(f"key-{n}")
            if config is None:
                harness.state(value(config)).update(n)
            else:
                harness.state(value(config))
        harness.new_epoch()
    harness.new_epoch()
    harness.rescale(parallelism)
    for _ in range(12):
        harness.new_epoch()
    harness.now_ms += 2 * TTL_MS
    for _ in range(12):
        harness.new_epoch()
    assert harness.stored_entries() == 0


def test_subtasks_that_do_not_declare_the_state_bring_theirs_into_the_index():
    harness = KeyedStoreHarness(4)
    harness.open()
    for n in range(40):
        harness.with_key(f"key-{n}")
        harness.state(value(QUIET)).update(n)
    harness.new_epoch()
    harness.state(value(SWEPT))
    for _ in range(4):
        harness.new_epoch()
    harness.now_ms += 2 * TTL_MS
    for _ in range(2):
        harness.new_epoch()
    assert harness.stored_entries() == 0


# -- namespaces that merge -----------------------------------------------------------------------


@pytest.mark.parametrize("config", [SWEPT, ttl(update_type=UpdateType.OnReadAndWrite)])
def test_a_merged_list_is_swept_when_its_oldest_element_is_over(fake_range, at_key, config):
    items = ListStateDescriptor("items", "long", config)
    known: list[Any] = []

    def epoch(now_ms, todo):
        nonlocal known
        store = KeyedStateStore(fake_range, now_ms, known, now_ms=now_ms, groups=GROUPS)
        lists = store.namespaced_state(items, ["int"])
        store.sweep_expired()
        at_key(store)
        todo(lists)
        store.finish()
        fake_range.commit()
        known = store.schemas

    epoch(START, lambda lists: lists.set_current_namespace(2).add_all([1, 2]))
    epoch(START + 9000, lambda lists: lists.set_current_namespace(3).add(3))
    epoch(START + 10_000, lambda lists: lists.merge_namespaces(1, [2, 3]))
    epoch(START + TTL_MS, lambda _: None)
    assert sum(entry[2] != EXPIRIES for entry in fake_range.entries) == 1
    epoch(START + TTL_MS + 10_000, lambda _: None)
    assert sum(entry[2] != EXPIRIES for entry in fake_range.entries) == 0


@pytest.mark.parametrize("cleared", [False, True])
def test_a_list_merges_as_the_epoch_has_left_it(fake_range, at_key, cleared):
    config = ttl(update_type=UpdateType.OnReadAndWrite)
    items = ListStateDescriptor("items", "long", config)

    def lists_at(now_ms):
        store = KeyedStateStore(fake_range, now_ms, now_ms=now_ms)
        lists = store.namespaced_state(items, ["int"])
        at_key(store)
        return store, lists

    for after, element in ((0, 1), (12_000, 2)):
        store, lists = lists_at(START + after)
        lists.set_current_namespace(2).add(element)
        store.finish()
        fake_range.commit()
    store, lists = lists_at(START + TTL_MS)
    source = lists.set_current_namespace(2)
    assert source.get() == [2]
    if cleared:
        source.clear()
    source.add(3)
    lists.merge_namespaces(1, [2])
    store.finish()
    fake_range.commit()
    store, lists = lists_at(START + 2 * TTL_MS - 1)
    assert lists.set_current_namespace(1).get() == ([3] if cleared else [2, 3])
    assert lists.set_current_namespace(2).get() == []


# -- what is recorded ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [(None, None, None), (None, 5, 0), (5, None, 0), (0, 5, 0), (5, 9, 9), (5, 5, 5)],
)
def test_subtasks_that_differ_agree_on_what_the_index_has_of_both(one, other, both):
    schemas = [StateSchema("s", "value", "bigint", ttl_ms=9, indexed_ms=ms) for ms in (one, other)]
    assert merged_schema(*schemas).indexed_ms == both


def test_a_record_says_how_expired_state_is_cleaned_up():
    assert schema_of(value(SWEPT)).indexed_ms == TTL_MS
    assert schema_of(value(QUIET)).indexed_ms is None
    assert schema_of(value(None)).indexed_ms is None
    assert not schema_of(value(SWEPT)).cleanup_in_full_snapshot
    assert schema_of(value(ttl(cleanup_in_full_snapshot=True))).cleanup_in_full_snapshot


def test_a_state_registered_twice_needs_one_way_to_be_cleaned_up(fake_range):
    store = KeyedStateStore(fake_range, 1)
    store.value_state(value(SWEPT))
    with pytest.raises(
        UserError,
        match=r"registered as value<bigint> with a time to live of 16000 ms and is now declared as "
        r"value<bigint> with a time to live of 16000 ms, not cleaned up in the background;",
    ):
        store.value_state(value(QUIET))
