"""What the keyed store asks of a range, refuses, and sends."""

import datetime
import decimal
from datetime import UTC
from typing import Any, cast

import pytest

from moorage_state.checks import StateTypeError
from moorage_state.deltas import decode_frame
from moorage_state.descriptors import (
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed import KeyedStateStore, KeyTimers, scanning
from moorage_state.keyed import state_store as store_module
from moorage_state.keyed.schema import StateSchema, schema_of
from moorage_state.keylayout import key_prefix, state_id

D = decimal.Decimal
COUNT = ValueStateDescriptor("count", "long")
ITEMS = ListStateDescriptor("items", "string")
SEEN = MapStateDescriptor("seen", "string", "long")


@pytest.fixture
def store(fake_range):
    return KeyedStateStore(fake_range, 1)


def prefixes(*keys):
    return [key_prefix(7, key) for key in keys]


@pytest.mark.parametrize("between", ["nothing", "a read of all", "a look before", "another put"])
def test_a_value_that_is_put_when_its_key_is_done_is_made_bytes_once(
    fake_range, store, at_key, between
):
    made = []
    words: Any = store.map_state(MapStateDescriptor("words", "bigint", "array<string>"))
    encode = words._encode

    def counting(value):
        made.append(value)
        return encode(value)

    words._encode = counting
    at_key(store)
    if between == "a look before":
        assert words.get(1) is None
    mine = []
    for n in range(100):
        mine.append(str(n))
        words.put_when_done(1, mine)
    assert (words.get(1), words.contains(1), words.is_empty()) == (mine, True, False)
    if between == "a read of all":
        assert words.keys() == [1]
    if between == "another put":
        words.put(1, ["other"])
    store.finish()
    fake_range.commit()
    assert len(made) == 1
    after: Any = KeyedStateStore(fake_range, 2, store.schemas).map_state(
        MapStateDescriptor("words", "bigint", "array<string>")
    )
    at_key(after.cell._store)
    assert after.items() == [(1, ["other"] if between == "another put" else mine)]


@pytest.mark.parametrize("how", ["remove", "clear"])
def test_a_value_that_waits_for_its_key_to_be_done_can_be_taken_back(
    fake_range, store, at_key, how
):
    words: Any = store.map_state(MapStateDescriptor("words", "bigint", "array<string>"))
    at_key(store)
    words.put_when_done(1, ["a"])
    words.remove(1) if how == "remove" else words.clear()
    assert words.is_empty()
    store.finish()
    fake_range.commit()
    assert fake_range.entries == {}


# -- how often a range is asked ---------------------------------------------------------------


def test_a_value_costs_one_request_for_all_keys_of_a_chunk(fake_range, store):
    count = store.value_state(COUNT)
    store.begin_chunk(prefixes(b"b", b"a", b"c"))
    for i in range(3):
        store.switch_to(i)
        count.update((count.value() or 0) + 1)
        assert count.value() == 1
    assert fake_range.requests == 1


@pytest.mark.parametrize(
    ("size", "requests"), [(10, 2), (24, 2), (200, 10)], ids=["small", "fitting", "large"]
)
def test_values_of_many_keys_are_held_so_many_bytes_at_a_time(
    fake_range, monkeypatch, size, requests
):
    monkeypatch.setattr(scanning, "_FIRST_VALUES", 4)
    monkeypatch.setattr(scanning, "_VALUE_BYTES", 1000)
    held, get_many = [], fake_range.get_many

    def holding(keys):
        held.append(get_many(keys))
        return held[-1]

    monkeypatch.setattr(fake_range, "get_many", holding)
    keys = prefixes(*[b"%02d" % n for n in range(40)])
    for epoch, expected in ((1, None), (2, "x" * size)):
        store = KeyedStateStore(fake_range, epoch)
        text = store.value_state(ValueStateDescriptor("text", "string"))
        store.begin_chunk(keys)
        held.clear()
        for i in range(1, 40):
            store.switch_to(i)
            assert text.value() == expected
            text.update("x" * size)
        store.finish()
        fake_range.commit()
    assert len(held) == requests
    assert max(sum(map(len, filter(None, found))) for found in held) <= 1010
    store = KeyedStateStore(fake_range, 3)
    text = store.value_state(ValueStateDescriptor("text", "string"))
    store.begin_chunk(keys)
    for i in (30, 39, 38):
        store.switch_to(i)
        assert text.value() == "x" * size


def test_adding_to_a_list_and_putting_into_a_map_read_nothing(fake_range, store, at_key):
    items, seen = store.list_state(ITEMS), store.map_state(SEEN)
    at_key(store)
    items.add("x")
    items.update(["y"])
    seen.put("a", 1)
    seen.remove("b")
    assert seen.get("a") == 1
    assert fake_range.requests == 0


def test_a_small_map_costs_one_request_for_all_keys_of_a_chunk(fake_range, store, at_key):
    seen = store.map_state(SEEN)
    for key in (b"a", b"b"):
        at_key(store, key)
        seen.put_all({"x": 1, "y": 2})
    store.finish()
    fake_range.commit()
    again = KeyedStateStore(fake_range, 2)
    seen = again.map_state(SEEN)
    again.begin_chunk(prefixes(b"a", b"b"))
    for i in range(2):
        again.switch_to(i)
        assert [seen.get(k) for k in "xyz"] == [1, 2, None]
        assert sorted(seen) == ["x", "y"]
    assert fake_range.requests == 1


def test_a_large_map_is_read_entry_by_entry(fake_range, store, at_key, monkeypatch):
    monkeypatch.setattr(scanning, "_SCAN_ENTRIES", 2)
    seen = store.map_state(SEEN)
    at_key(store)
    seen.put_all({str(i): i for i in range(9)})
    store.finish()
    fake_range.commit()
    again = KeyedStateStore(fake_range, 2)
    seen = again.map_state(SEEN)
    at_key(again)
    assert [seen.get("5"), seen.get("5"), seen.get("no"), "no" in seen] == [5, 5, None, False]
    assert fake_range.requests == 3
    assert dict(seen.items()) == {str(i): i for i in range(9)}


@pytest.mark.parametrize("scan_bytes", [0, 1])
def test_a_map_entry_under_the_empty_key_is_found_behind_a_scan_that_was_cut_off(
    fake_range, store, at_key, monkeypatch, scan_bytes
):
    seen = store.map_state(SEEN)
    at_key(store)
    seen.put("", 1)
    seen.put("x", 2)
    store.finish()
    fake_range.commit()
    monkeypatch.setattr(scanning, "_SCAN_BYTES", scan_bytes)
    again = KeyedStateStore(fake_range, 2)
    seen = again.map_state(SEEN)
    at_key(again)
    assert dict(seen.items()) == {"": 1, "x": 2}


def test_a_key_that_runs_over_the_border_of_a_chunk_is_written_once(fake_range, store):
    count = store.value_state(COUNT)
    store.begin_chunk(prefixes(b"a"))
    store.switch_to(0)
    count.update(1)
    store.begin_chunk(prefixes(b"a", b"b"))
    assert count.value() == 1
    count.update(2)
    store.switch_to(1)
    assert count.value() is None
    store.finish()
    (frame,) = map(decode_frame, fake_range.staged)
    assert frame.keys == [prefixes(b"a")[0] + state_id("count")]


# -- what is sent -----------------------------------------------------------------------------


def test_an_epoch_that_changes_nothing_sends_no_frame(fake_range, store, at_key):
    count, items, seen = store.value_state(COUNT), store.list_state(ITEMS), store.map_state(SEEN)
    timers = KeyTimers(store)
    at_key(store)
    assert (count.value(), items.get(), seen.items()) == (None, [], [])
    timers.register(5)
    timers.delete(5)
    assert store.finish() == 0
    assert fake_range.staged == []


@pytest.mark.parametrize("limit", ["_FRAME_ENTRIES", "_FRAME_BYTES"])
def test_large_epochs_are_sent_in_several_frames(fake_range, store, at_key, monkeypatch, limit):
    monkeypatch.setattr(store_module, limit, 1)
    count = store.value_state(COUNT)
    for key in (b"a", b"b", b"c"):
        at_key(store, key)
        count.update(1)
    assert store.finish() == 3
    fake_range.commit()
    assert len(fake_range.entries) == 3


def test_clearing_alone_fills_frames_too(store, at_key, monkeypatch):
    monkeypatch.setattr(store_module, "_FRAME_BYTES", 1)
    items = store.list_state(ITEMS)
    for key in (b"a", b"b", b"c"):
        at_key(store, key)
        items.clear()
    assert store.finish() == 3


def test_what_a_key_writes_after_a_clear_stays_in_the_frame_of_the_clear(
    fake_range, store, at_key, monkeypatch
):
    monkeypatch.setattr(store_module, "_FRAME_ENTRIES", 1)
    items, seen = store.list_state(ITEMS), store.map_state(SEEN)
    at_key(store)
    items.add("lost")
    items.update(["a", "b"])
    seen.put("lost", 1)
    seen.clear()
    seen.put("kept", 2)
    assert store.finish() == 1
    frame = decode_frame(fake_range.staged[0])
    assert (len(frame.ranges), len(frame.keys)) == (2, 3)


def test_lists_keep_the_order_of_epochs_and_within_them(fake_range, at_key):
    for epoch in (1, 2, 300):
        store = KeyedStateStore(fake_range, epoch)
        items = store.list_state(ITEMS)
        for key in (b"a", b"b"):
            at_key(store, key)
            items.add_all([f"{epoch}", f"{epoch}+"])
        store.finish()
        fake_range.commit()
    store = KeyedStateStore(fake_range, 301)
    items = store.list_state(ITEMS)
    at_key(store, b"b")
    assert list(items) == ["1", "1+", "2", "2+", "300", "300+"]


def test_the_same_operations_give_the_same_bytes(new_range, at_key):
    staged = []
    for _ in range(2):
        fake = new_range()
        store = KeyedStateStore(fake, 3)
        count, seen, timers = (
            store.value_state(COUNT),
            store.map_state(SEEN),
            KeyTimers(store),
        )
        for key in (b"a", b"b"):
            at_key(store, key)
            count.update(1)
            seen.put_all({"x": 1, "y": 2})
            timers.register(9)
            timers.register(-9)
        store.finish()
        staged.append(fake.staged)
    assert staged[0] == staged[1]


# -- what handles give back -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "given", "read"),
    [
        ("n long, x double", {"n": 1}, (1, None)),
        ("n long, x double", (1, 2), (1, 2.0)),
        ("double", 3, 3.0),
        ("decimal(5,2)", D("1.5"), D("1.50")),
        ("array<long>", (1, 2), [1, 2]),
    ],
)
def test_a_value_reads_back_within_its_epoch_as_it_does_later(fake_range, at_key, ddl, given, read):
    descriptor = ValueStateDescriptor("v", ddl)
    mapped = MapStateDescriptor("m", "long", ddl)
    store = KeyedStateStore(fake_range, 1)
    value, entries = store.value_state(descriptor), store.map_state(mapped)
    at_key(store)
    value.update(given)
    entries.put(1, given)
    now = [value.value(), entries.get(1), *entries.values()]
    store.finish()
    fake_range.commit()
    store = KeyedStateStore(fake_range, 2)
    value, entries = store.value_state(descriptor), store.map_state(mapped)
    at_key(store)
    later = [value.value(), entries.get(1), *entries.values()]
    assert now == later == [read] * 3
    assert [type(v) for v in now] == [type(v) for v in later]
    assert repr(now) == repr(later)


def test_a_timestamp_reads_back_in_utc_at_once(store, at_key):
    zone = datetime.timezone(datetime.timedelta(hours=2))
    value = store.value_state(ValueStateDescriptor("at", "timestamp"))
    at_key(store)
    value.update(datetime.datetime(2013, 7, 1, 2, tzinfo=zone))
    assert value.value() == datetime.datetime(2013, 7, 1, tzinfo=UTC)
    assert value.value().hour == 0


def test_lists_that_handles_give_are_the_callers_own(store, at_key):
    items, seen = store.list_state(ITEMS), store.map_state(SEEN)
    at_key(store)
    items.add("a")
    items.get().append("b")
    assert items.get() == ["a"]
    seen.put("a", 1)
    for key in seen:
        seen.remove(key)
    assert seen.is_empty()


def test_a_map_can_be_used_like_a_dict(store, at_key):
    seen = store.map_state(SEEN)
    at_key(store)
    seen["a"] = 1
    assert "a" in seen
    assert seen["a"] == 1
    assert seen["b"] is None
    assert seen.get("b", 7) == 7
    del seen["a"]
    del seen["a"]
    assert list(seen) == []


@pytest.mark.parametrize(
    ("key_type", "one", "same"),
    [
        ("decimal(5,2)", D("1.5"), D("1.500")),
        ("decimal(5,2)", D("-0"), D(0)),
        (
            "timestamp",
            datetime.datetime(2013, 7, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            datetime.datetime(2013, 7, 1, tzinfo=UTC),
        ),
    ],
)
def test_equal_map_keys_are_one_key(fake_range, store, at_key, key_type, one, same):
    descriptor = MapStateDescriptor("m", key_type, "long")
    entries = store.map_state(descriptor)
    at_key(store)
    entries.put(one, 1)
    entries.put(same, 2)
    store.finish()
    fake_range.commit()
    again = KeyedStateStore(fake_range, 2)
    entries = again.map_state(descriptor)
    at_key(again)
    assert (entries.get(one), entries.get(same), len(entries.items())) == (2, 2, 1)


# -- what is refused --------------------------------------------------------------------------


def test_a_wrong_value_is_refused_when_the_key_is_done_with_the_states_name(store, at_key):
    count = store.value_state(COUNT)
    at_key(store)
    count.update("one")
    with pytest.raises(StateTypeError, match="state=count declared=long: bigint cannot hold 'one'"):
        store.flush_key()


def test_a_wrong_value_is_refused_when_it_is_read_back(store, at_key):
    count = store.value_state(COUNT)
    at_key(store)
    count.update(1.5)
    with pytest.raises(StateTypeError, match="state=count"):
        count.value()


def test_lists_and_maps_refuse_at_once_and_stay_as_they_were(store, at_key):
    items, seen = store.list_state(ITEMS), store.map_state(SEEN)
    at_key(store)
    items.add("a")
    seen.put("a", 1)
    for refused in (
        lambda: items.add(None),
        lambda: items.add_all(["b", 5]),
        lambda: items.update(["b", 5]),
        lambda: seen.put("a", None),
        lambda: seen.put("a", "x"),
        lambda: seen.put(5, 1),
        lambda: seen.get(5),
        lambda: seen.remove(b"a"),
        lambda: seen.contains(None),
    ):
        with pytest.raises(StateTypeError, match=r"state=(items|seen)"):
            refused()
    assert items.get() == ["a"]
    assert seen.items() == [("a", 1)]


@pytest.mark.parametrize("key_type", ["binary", "int", "boolean", "date", "timestamp"])
def test_map_keys_that_python_would_convert_are_refused(store, at_key, key_type):
    entries = store.map_state(MapStateDescriptor("m", key_type, "long"))
    wrong = {
        "binary": 5,
        "int": 1 << 40,
        "boolean": 5,
        "date": datetime.datetime(2013, 1, 1, tzinfo=UTC),
        "timestamp": datetime.datetime(2013, 1, 1),  # noqa: DTZ001
    }
    at_key(store)
    with pytest.raises(StateTypeError, match=f"{key_type} cannot hold"):
        entries.put(wrong[key_type], 1)


def test_state_outside_a_key_is_refused(store, at_key):
    count, items, seen = store.value_state(COUNT), store.list_state(ITEMS), store.map_state(SEEN)
    timers = KeyTimers(store)
    uses = [
        count.value,
        lambda: count.update(1),
        lambda: items.add("x"),
        items.clear,
        lambda: seen.put("x", 1),
        lambda: seen.get("x"),
        lambda: timers.register(1),
    ]
    for use in uses * 2:
        with pytest.raises(RuntimeError, match=r"in process and on_timer, not in open or close"):
            use()
    at_key(store)
    for use in uses:
        use()
    store.finish()
    for use in uses:
        with pytest.raises(RuntimeError, match="not in open or close"):
            use()


def test_a_state_can_be_asked_for_twice_and_is_the_same(store):
    assert store.value_state(COUNT) is store.value_state(ValueStateDescriptor("count", "bigint"))


@pytest.mark.parametrize(
    "other",
    [
        ValueStateDescriptor("count", "int"),
        ListStateDescriptor("count", "long"),
        MapStateDescriptor("count", "string", "long"),
    ],
)
def test_a_name_cannot_stand_for_two_states(fake_range, store, other):
    store.value_state(COUNT)
    with pytest.raises(UserError, match=r"'count' was registered as value<bigint> and is now"):
        store.state(other)
    later = KeyedStateStore(fake_range, 2, store.schemas)
    with pytest.raises(UserError, match=r"count.* written.*bigint.* another name"):
        later.state(other)


def test_the_key_type_of_a_map_cannot_change(fake_range):
    known = [StateSchema("seen", "map", "bigint", "string")]
    with pytest.raises(UserError, match="map<string, bigint> and is now declared as map<bigint, "):
        KeyedStateStore(fake_range, 2, known).map_state(MapStateDescriptor("seen", "long", "long"))


def test_schemas_of_states_that_are_no_longer_used_are_kept(fake_range):
    known = [StateSchema("old", "value", "string")]
    store = KeyedStateStore(fake_range, 2, known)
    store.map_state(SEEN)
    assert store.schemas == [*known, StateSchema("seen", "map", "bigint", "string")]


@pytest.mark.parametrize("known", [[], [StateSchema("old", "value", "string")]])
def test_two_names_with_one_stored_id_are_refused(fake_range, monkeypatch, known):
    monkeypatch.setattr(store_module, "state_id", lambda _: b"same")
    store = KeyedStateStore(fake_range, 2, known)
    if not known:
        store.value_state(COUNT)
    with pytest.raises(UserError, match=r"the same stored id: '.*' and 'seen'; rename one"):
        store.map_state(SEEN)


# -- descriptors ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "-a", "a b", "a" * 64, "\u00e9", "a\n", None, 5])
def test_a_state_needs_a_legal_name(name):
    for make in (
        lambda: ValueStateDescriptor(name, "long"),
        lambda: ListStateDescriptor(name, "long"),
        lambda: MapStateDescriptor(name, "long", "long"),
    ):
        with pytest.raises(ValueError, match="a state name starts with a letter or digit"):
            make()


def test_a_descriptor_refuses_types_when_it_is_made():
    with pytest.raises(ValueError, match="unknown type 'lng'"):
        ValueStateDescriptor("a", "lng")
    with pytest.raises(ValueError, match="a map state key cannot be of this type: name=a"):
        MapStateDescriptor("a", "double", "long")
    with pytest.raises(ValueError, match="Spark DDL string"):
        ListStateDescriptor("a", cast("str", int))


def test_a_default_must_be_of_the_declared_type_and_the_same_wherever_it_is_declared(store):
    with pytest.raises(StateTypeError, match=r"hits.*bigint"):
        ValueStateDescriptor("hits", "long", default="ten")
    store.value_state(ValueStateDescriptor("hits", "long", default=10))
    store.value_state(ValueStateDescriptor("hits", "bigint", default=10))
    with pytest.raises(UserError, match="'hits' was registered with default=10 and now default=11"):
        store.value_state(ValueStateDescriptor("hits", "long", default=11))


def test_another_default_may_be_declared_over_what_is_stored(fake_range, at_key):
    for default in (1, 2, None):
        store = KeyedStateStore(fake_range, 1)
        hits = store.value_state(ValueStateDescriptor("hits", "long", default=default))
        at_key(store)
        assert hits.value() == default
        store.finish()


def test_a_schema_has_the_canonical_types():
    assert schema_of(MapStateDescriptor("a", "integer", "x long")) == StateSchema(
        "a", "map", "struct<x:bigint>", "int"
    )
    assert (ListStateDescriptor("a", "long").kind, COUNT.kind, SEEN.kind) == (
        "list",
        "value",
        "map",
    )


@pytest.mark.filterwarnings("ignore:FoldingStateDescriptor is deprecated")
@pytest.mark.parametrize("as_class", [lambda c: c, lambda c: type("Own", (c,), {})])
@pytest.mark.parametrize(("ddl", "value"), [("long", 1), ("array<long>", [1])])
def test_a_subclass_of_a_descriptor_declares_what_its_base_does(
    store, at_key, as_class, ddl, value
):
    one = store.value_state(as_class(ValueStateDescriptor)("one", ddl))
    many = store.list_state(as_class(ListStateDescriptor)("many", ddl))
    named = store.map_state(as_class(MapStateDescriptor)("named", "string", ddl))
    total = store.reducing_state(
        as_class(ReducingStateDescriptor)("total", ddl, lambda a, b: a + b)
    )
    folded = store.folding_state(
        as_class(FoldingStateDescriptor)("folded", ddl, value, lambda a, b: a + b)
    )
    at_key(store)
    one.update(value)
    many.add_all([value, value])
    named.put("a", value)
    for state in (total, folded):
        state.add(value)
        state.add(value)
    assert (one.value(), many.get(), named.get("a")) == (value, [value, value], value)
    assert (total.get(), folded.get()) == (value + value, value + value + value)
