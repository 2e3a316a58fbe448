"""Time to live beside the contract: what is stored, swept within bounds, declared and refused."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from moorage_testing.keyed_harness import KeyedStoreHarness

from moorage_state.deltas import decode_frame
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.expiry import due_time
from moorage_state.keyed.schema import StateSchema, merged_schema
from moorage_state.keylayout import EXPIRIES, expiry_entry, expiry_parts, key_prefix, state_id
from moorage_state.timetolive import StateTtlConfig, UpdateType

TTL_MS = 16_000
TTL = StateTtlConfig(timedelta(milliseconds=TTL_MS))
START = 1_600_000_000_000


def value(ttl=TTL):
    return ValueStateDescriptor("value", "long", ttl)


@pytest.fixture
def run(fake_range, at_key):
    """Run an epoch at a time: what `todo` does with the handle of a state for key k."""
    known: list[Any] = []

    def epoch(now_ms, descriptor, todo=lambda _: None, key=b"k"):
        nonlocal known
        store = KeyedStateStore(fake_range, 1 + now_ms, known, now_ms=now_ms)
        handle = store.state(descriptor)
        looked_at = store.sweep_expired()
        at_key(store, key)
        found = todo(handle)
        store.finish()
        fake_range.commit()
        known = store.schemas
        return looked_at if found is None else found

    return epoch


def index(fake_range):
    return [expiry_parts(entry)[0] for entry in sorted(fake_range.entries) if entry[2] == EXPIRIES]


def test_a_place_in_the_index_leads_back_to_the_stored_key():
    cell = key_prefix(7, b"key") + state_id("value") + b"rest"
    assert expiry_parts(expiry_entry(cell, -5)) == (-5, cell)


@pytest.mark.parametrize("ttl_ms", [1, 15, 16, 17, 1000, 86_400_000])
def test_the_index_never_says_too_early_and_at_most_a_sixteenth_too_late(ttl_ms):
    for stamp in (0, 1, START, START + 1, -7):
        late = due_time(stamp, ttl_ms) - (stamp + ttl_ms)
        assert 0 <= late <= ttl_ms / 16


def test_a_value_that_is_written_in_every_epoch_has_one_entry_in_the_index(fake_range, run):
    for second in range(40):
        run(START + 1000 * second, value(), lambda v: v.update((v.value() or 0) + 1))
        assert len(index(fake_range)) == 1


def test_a_value_that_is_written_blindly_has_few_entries_in_the_index(fake_range, run):
    for second in range(60):
        run(START + 500 * second, value(), lambda v: v.update(1))
    assert len(index(fake_range)) <= 18


def test_a_stale_place_in_the_index_does_not_remove_what_was_written_later(fake_range, run):
    run(START, value(), lambda v: v.update(1))
    run(START + 10_000, value(), lambda v: v.update(2))
    assert len(index(fake_range)) == 2
    run(START + 17_000, value(), key=b"other")
    assert len(index(fake_range)) == 1
    assert run(START + 17_000, value(), lambda v: v.value()) == 2
    run(START + 27_000, value(), key=b"other")
    assert fake_range.entries == {}


def test_a_longer_time_to_live_goes_for_what_is_stored_already(fake_range, run):
    longer = StateTtlConfig(timedelta(milliseconds=3 * TTL_MS))
    run(START, value(), lambda v: v.update(1))
    assert run(START + 2 * TTL_MS, value(longer), lambda v: v.value()) == 1
    assert len(index(fake_range)) == 1
    run(START + 4 * TTL_MS, value(longer), key=b"other")
    assert fake_range.entries == {}


def test_a_shorter_time_to_live_hides_what_is_stored_already(fake_range, run):
    shorter = StateTtlConfig(timedelta(milliseconds=TTL_MS // 4))
    run(START, value(), lambda v: v.update(1))
    assert run(START + TTL_MS // 4, value(shorter), lambda v: v.value() or "gone") == "gone"
    assert [entry for entry in fake_range.entries if entry[2] != EXPIRIES] == []


def test_a_sweep_removes_no_more_than_its_limit_in_an_epoch(fake_range, run):
    bounded = StateTtlConfig(timedelta(milliseconds=TTL_MS), sweep_limit=10)
    for n in range(35):
        run(START, value(bounded), lambda v: v.update(1), key=bytes([n]))
    looks = [run(START + 2 * TTL_MS, value(bounded), key=b"other") for _ in range(5)]
    assert looks == [10, 10, 10, 5, 0]
    assert fake_range.entries == {}


def test_a_long_list_is_swept_in_several_epochs(fake_range, run):
    items = ListStateDescriptor(
        "items", "long", StateTtlConfig(timedelta(milliseconds=TTL_MS), sweep_limit=5_000)
    )
    run(START, items, lambda i: i.add_all(range(20_000)))
    sizes = []
    for _ in range(3):
        run(START + 2 * TTL_MS, items, key=b"other")
        sizes.append(len(fake_range.entries))
    assert sizes[0] > sizes[1] > sizes[2] == 0


def test_sweeping_asks_a_range_by_pages(fake_range, run):
    for n in range(20):
        run(START, value(), lambda v: v.update(1), key=bytes([n]))
    before = fake_range.requests
    run(START + 2 * TTL_MS, value(), key=b"other")
    assert fake_range.requests - before == 2


def test_without_cleanup_in_the_background_there_is_no_index(fake_range, run):
    quiet = StateTtlConfig(timedelta(milliseconds=TTL_MS), cleanup_in_background=False)
    run(START, value(quiet), lambda v: v.update(1))
    assert index(fake_range) == []
    run(START + 2 * TTL_MS, value(quiet), key=b"other")
    assert len(fake_range.entries) == 1
    assert run(START + 2 * TTL_MS, value(quiet), lambda v: v.value() or "gone") == "gone"
    assert fake_range.entries == {}


def test_state_whose_descriptor_is_gone_still_expires(fake_range, run):
    run(START, value(), lambda v: v.update(1))
    other = ValueStateDescriptor("other", "long")
    run(START + 2 * TTL_MS, other, key=b"other")
    assert fake_range.entries == {}


def test_epochs_without_time_to_live_ask_nothing_more_of_a_range(fake_range, run):
    run(START, value(ttl=None), lambda v: v.update(1))
    assert fake_range.requests == 0


def test_two_attempts_of_an_epoch_write_the_same(new_range, at_key):
    frames = []
    for _ in range(2):
        fake = new_range()
        for now_ms in (START, START + 2 * TTL_MS):
            store = KeyedStateStore(fake, now_ms, now_ms=now_ms)
            seen = store.map_state(MapStateDescriptor("seen", "string", "long", TTL))
            store.sweep_expired()
            for key in (b"a", b"b"):
                at_key(store, key)
                seen.put_all({"x": 1, "y": 2})
            store.finish()
            frames.append(list(fake.staged))
            fake.commit()
    assert frames[:2] == frames[2:]


def test_what_an_epoch_writes_comes_after_what_it_sweeps(fake_range, run, at_key):
    run(START, value(), lambda v: v.update(1))
    late = START + 2 * TTL_MS
    store = KeyedStateStore(fake_range, 9, [StateSchema("value", "value", "bigint", ttl_ms=TTL_MS)])
    store.now_ms = late
    handle = store.value_state(value())
    store.sweep_expired()
    prefix = at_key(store)
    handle.update(2)
    store.finish()
    writes = [decode_frame(frame) for frame in fake_range.staged]
    cell = prefix + state_id("value")
    mine = [v for w in writes for k, v in zip(w.keys, w.values, strict=True) if k == cell]
    assert [v is None for v in mine] == [True, False]


# -- declared, and declared otherwise ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_a_time_to_live_that_is_declared_later_begins_when_state_is_read(fake_range, run, kind):
    make = {
        "value": lambda ttl: ValueStateDescriptor("s", "long", ttl),
        "list": lambda ttl: ListStateDescriptor("s", "long", ttl),
        "map": lambda ttl: MapStateDescriptor("s", "string", "long", ttl),
    }[kind]
    write = {"value": lambda s: s.update(1), "list": lambda s: s.add(1)}
    read = {"value": lambda s: s.value() or "gone", "list": lambda s: s.get() or "gone"}
    put = write.get(kind, lambda s: s.put("a", 1))
    look = read.get(kind, lambda s: s.items() or "gone")
    run(START, make(None), put)
    late = START + 9 * TTL_MS
    assert run(late, make(TTL), look) != "gone"
    assert run(late + TTL_MS - 1, make(TTL), look) != "gone"
    assert run(late + TTL_MS, make(TTL), look) == "gone"
    run(late + 2 * TTL_MS, make(TTL), key=b"other")
    assert fake_range.entries == {}


def test_without_its_time_to_live_state_stays_readable_and_stays(fake_range, run):
    run(START, value(), lambda v: v.update(1))
    assert run(START + 1000, value(ttl=None), lambda v: v.value()) == 1
    run(START + 9 * TTL_MS, value(ttl=None), key=b"other")
    assert run(START + 9 * TTL_MS, value(ttl=None), lambda v: v.value()) == 1
    assert index(fake_range) == []


def test_what_was_written_without_its_time_to_live_begins_it_when_it_is_read(run):
    run(START, value(), lambda v: v.update(1))
    run(START + 1000, value(ttl=None), lambda v: v.update(2))
    late = START + 9 * TTL_MS
    assert run(late, value(), lambda v: v.value()) == 2
    assert run(late + TTL_MS - 1, value(), lambda v: v.value()) == 2
    assert run(late + TTL_MS, value(), lambda v: v.value() or "gone") == "gone"


def test_a_state_registered_twice_needs_one_time_to_live(fake_range):
    store = KeyedStateStore(fake_range, 1)
    store.value_state(value())
    with pytest.raises(UserError, match="was registered"):
        store.value_state(value(ttl=None))
    reading = replace(TTL, update_type=UpdateType.OnReadAndWrite)
    with pytest.raises(
        UserError, match="update_type=OnCreateAndWrite and now update_type=OnReadAndWrite; declare"
    ):
        store.value_state(value(ttl=reading))


@pytest.mark.parametrize(
    ("one", "other", "both"), [(5, 9, 9), (5, 0, 0), (7, 7, 7), (None, 5, 5), (0, None, 0)]
)
def test_subtasks_that_differ_in_a_time_to_live_agree_on_the_longer(one, other, both):
    schemas = [StateSchema("s", "value", "bigint", ttl_ms=ms) for ms in (one, other)]
    assert merged_schema(*schemas).ttl_ms == both


def test_enabling_a_time_to_live_changes_the_descriptor_and_gives_it_back():
    descriptor = ListStateDescriptor("items", "long")
    assert descriptor.enable_time_to_live(TTL) is descriptor
    assert descriptor.ttl is TTL


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(microseconds=999), timedelta(days=-1)])
def test_a_time_to_live_is_at_least_a_millisecond(ttl):
    with pytest.raises(ValueError, match="at least a millisecond: ttl="):
        StateTtlConfig(ttl)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "update_type",
            "OnReadAndWrite",
            "of type str; give for example UpdateType.OnReadAndWrite",
        ),
        ("visibility", None, "of type NoneType; give for example StateVisibility.Never"),
        ("cleanup_in_background", "no", "of type str; give for example True"),
        ("cleanup_in_full_snapshot", 1, "of type int; give for example True"),
        ("sweep_limit", "5", "of type str; give for example 100_000"),
        ("sweep_limit", True, "of type bool; give for example 100_000"),
    ],
)
def test_a_time_to_live_takes_values_of_the_right_type_only(field, value, words):
    with pytest.raises(TypeError, match=re.escape(f"{field}={value!r} {words}")):
        StateTtlConfig(timedelta(days=1), **{field: value})


def test_a_time_to_live_is_no_number():
    with pytest.raises(TypeError, match=r"ttl=60 of type int; give for example datetime.timedelta"):
        StateTtlConfig(60)  # type: ignore[arg-type]  # it is what is refused
    with pytest.raises(TypeError, match="declared with a StateTtlConfig"):
        ValueStateDescriptor("v", "long", timedelta(1))  # type: ignore[arg-type]  # it is what is refused
    with pytest.raises(TypeError, match="declared with a StateTtlConfig"):
        ValueStateDescriptor("v", "long").enable_time_to_live(timedelta(1))  # type: ignore[arg-type]  # it is what is refused
    with pytest.raises(ValueError, match="sweep_limit=0; cleanup_in_background=False"):
        StateTtlConfig(timedelta(1), sweep_limit=0)


def test_time_to_live_survives_when_subtasks_register_states_unlike_each_other():
    harness = KeyedStoreHarness(4)
    harness.open()
    harness.with_key("only one subtask registers it")
    harness.state(value()).update(1)
    harness.now_ms += 2 * TTL_MS
    harness.new_epoch()
    harness.new_epoch()
    assert harness.stored_entries() == 0
