"""Keyed state against plain dicts and lists, over epochs cut in every way.

An epoch is a sequence of keys, each with operations on its value, list, map and timers. It is fed
to the store in chunks whose borders fall between keys or inside one, under limits so small that
scans are cut off and frames are many. Some epochs are aborted. What a read returns, and what is
stored in the end, is what the model says.
"""

from collections import defaultdict
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed import KeyedStateStore, KeyTimers, many_timers, scanning
from moorage_state.keyed import state_store as store_module
from moorage_state.keyed.many_timers import pack_timers
from moorage_state.keyed.timers import TIMERS_STATE
from moorage_state.keylayout import EVENT_TIMERS, encode_time, key_prefix, state_id, timer_entry
from moorage_state.keys import KeyCodec

KEYS = ["", "a", "ab", "b", "\u00e9", "key-with-a-longer-name"]
CODEC = KeyCodec(["string"])
VALUE = ValueStateDescriptor("value", "n long, x double")
ITEMS = ListStateDescriptor("items", "struct<n:long>")
NAMES = MapStateDescriptor("names", "string", "a long")
NUMBERS = MapStateDescriptor("numbers", "long", "string")

TIMERS_ID = state_id(TIMERS_STATE)

numbers = st.integers(-(1 << 63), (1 << 63) - 1)
small = st.integers(0, 5)
names = st.sampled_from(["", "x", "xy", "y", "z", "\u00fc"])
texts = st.text("ab", max_size=3)
times = st.integers(-3, 12)

operations = st.one_of(
    st.tuples(st.just("value.value")),
    st.tuples(st.just("value.update"), st.none() | st.tuples(numbers, st.floats(0, 1) | small)),
    st.tuples(st.just("value.clear")),
    st.tuples(st.just("items.get")),
    st.tuples(st.just("items.add"), small),
    st.tuples(st.just("items.add_all"), st.lists(small, max_size=3)),
    st.tuples(st.just("items.update"), st.lists(small, max_size=3)),
    st.tuples(st.just("items.clear")),
    st.tuples(st.just("names.get"), names),
    st.tuples(st.just("names.contains"), names),
    st.tuples(st.just("names.put"), names, numbers),
    st.tuples(st.just("names.remove"), names),
    st.tuples(st.just("names.clear")),
    st.tuples(st.just("names.items")),
    st.tuples(st.just("names.is_empty")),
    st.tuples(st.just("numbers.get"), small),
    st.tuples(st.just("numbers.put"), small, texts),
    st.tuples(st.just("numbers.put_all"), st.dictionaries(small, texts, max_size=6)),
    st.tuples(st.just("numbers.remove"), small),
    st.tuples(st.just("numbers.items")),
    st.tuples(st.just("numbers.clear")),
    st.tuples(st.just("timers.register"), times),
    st.tuples(st.just("timers.delete"), times),
    st.tuples(st.just("timers.pop_due"), times),
)
epochs = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.lists(st.tuples(operations, st.integers(0, 5)), min_size=4, max_size=16),
    ),
    unique_by=lambda entry: entry[0],
    min_size=1,
    max_size=len(KEYS),
)
"""Keys with their operations; the number says whether a chunk ends before the operation."""


class Model:
    """One key's state."""

    def __init__(self):
        self.value = None
        self.items = []
        self.names = {}
        self.numbers = {}
        self.timers = set()

    def copy(self):
        other = Model()
        other.value, other.items = self.value, list(self.items)
        other.names, other.numbers = dict(self.names), dict(self.numbers)
        other.timers = set(self.timers)
        return other

    def expect(self, operation, *arguments):
        """Carry out an operation; the result a handle should give, None for those without."""
        return getattr(self, operation.replace(".", "_"))(*arguments)

    def value_value(self):
        return self.value

    def value_update(self, value):
        self.value = value

    def value_clear(self):
        self.value = None

    def items_get(self):
        return [(n,) for n in self.items]

    def items_add(self, n):
        self.items.append(n)

    def items_add_all(self, ns):
        self.items += ns

    def items_update(self, ns):
        self.items = list(ns)

    def items_clear(self):
        self.items = []

    def names_get(self, name):
        return (self.names[name],) if name in self.names else None

    def names_contains(self, name):
        return name in self.names

    def names_put(self, name, n):
        self.names[name] = n

    def names_remove(self, name):
        self.names.pop(name, None)

    def names_clear(self):
        self.names = {}

    def names_items(self):
        return {k: (n,) for k, n in self.names.items()}

    def names_is_empty(self):
        return not self.names

    def numbers_get(self, n):
        return self.numbers.get(n)

    def numbers_put(self, n, text):
        self.numbers[n] = text

    def numbers_put_all(self, entries):
        self.numbers |= entries

    def numbers_remove(self, n):
        self.numbers.pop(n, None)

    def numbers_clear(self):
        self.numbers = {}

    def numbers_items(self):
        return dict(self.numbers)

    def timers_register(self, time_ms):
        new = time_ms not in self.timers
        self.timers.add(time_ms)
        return new

    def timers_delete(self, time_ms):
        there = time_ms in self.timers
        self.timers.discard(time_ms)
        return there

    def timers_pop_due(self, up_to_ms):
        first = min(self.timers, default=up_to_ms + 1)
        if first > up_to_ms:
            return None
        self.timers.remove(first)
        return first


class Handles:
    """The handles of one epoch, by the names that operations use."""

    def __init__(self, store):
        self.value = store.value_state(VALUE)
        self.items = store.list_state(ITEMS)
        self.names = store.map_state(NAMES)
        self.numbers = store.map_state(NUMBERS)
        self.timers = KeyTimers(store)

    def do(self, operation, *arguments):
        state, method = operation.split(".")
        if operation == "items.add":
            arguments = ({"n": arguments[0]},)
        if operation in {"items.add_all", "items.update"}:
            arguments = ([{"n": n} for n in arguments[0]],)
        if operation == "names.put":
            arguments = (arguments[0], {"a": arguments[1]})
        found = getattr(getattr(self, state), method)(*arguments)
        if method == "items":
            assert len(dict(found)) == len(found)
            return dict(found)
        if state == "value" and found is not None:
            assert isinstance(found.x, float)
        return found


def prefix_of(key):
    return key_prefix(sum(key.encode()) % 128, CODEC.encode((key,)))


class KeyedState(RuleBasedStateMachine):
    new_range: Any = None

    def __init__(self):
        super().__init__()
        self.range = self.new_range()
        self.models = defaultdict(Model)
        self.epoch = 0
        self.schemas = []
        self.patch = pytest.MonkeyPatch()

    def teardown(self):
        self.patch.undo()

    @initialize(
        scan=st.integers(1, 4),
        size=st.integers(1, 120),
        page=st.integers(1, 3),
        frame=st.integers(1, 6),
        many=st.sampled_from([(512, 64), (0, 0), (2, 1), (1, 1)]),
    )
    def limits(self, scan, size, page, frame, many):
        self.patch.setattr(many_timers, "_MANY", many[0])
        self.patch.setattr(many_timers, "_FEW", many[1])
        self.patch.setattr(many_timers, "_PAGE", page)
        self.patch.setattr(scanning, "_SCAN_ENTRIES", scan)
        self.patch.setattr(scanning, "_SCAN_BYTES", size)
        self.patch.setattr(scanning, "_PAGE", page)
        self.patch.setattr(scanning, "_FIRST_VALUES", page)
        self.patch.setattr(scanning, "_VALUE_BYTES", size)
        self.patch.setattr(store_module, "_FRAME_ENTRIES", frame)
        self.patch.setattr(store_module, "_FRAME_BYTES", 40 * frame)

    @rule(epoch=epochs, aborted=st.integers(0, 5))
    def run_epoch(self, epoch, aborted):
        models = {key: self.models[key].copy() for key in KEYS}
        store = KeyedStateStore(self.range, self.epoch + 1, self.schemas)
        handles = Handles(store)
        current = None
        for chunk in in_chunks(epoch):
            runs_on = chunk[0][0] == current
            if not runs_on:
                store.flush_key()
            store.begin_chunk([prefix_of(key) for key, _ in chunk])
            for i, (key, todo) in enumerate(chunk):
                if i > 0 or not runs_on:
                    store.switch_to(i)
                current = key
                for operation in todo:
                    expected = models[key].expect(*operation)
                    found = handles.do(*operation)
                    # Of very many timers it is not looked up whether one is set.
                    unread = operation[0] == "timers.register" and handles.timers._many is not None
                    assert found == expected or (unread and found), (key, operation)
        assert store.finish() == len(self.range.staged)
        if aborted == 0:
            self.range.abort()
            return
        self.range.commit()
        self.models.update(models)
        self.epoch += 1
        self.schemas = store.schemas

    @invariant()
    def a_new_store_reads_what_the_model_holds(self):
        store = KeyedStateStore(self.range, self.epoch + 1, self.schemas)
        handles = Handles(store)
        store.begin_chunk([prefix_of(key) for key in KEYS])
        for i, key in enumerate(KEYS):
            store.switch_to(i)
            model = self.models[key]
            assert handles.value.value() == model.value
            assert handles.items.get() == model.items_get()
            assert dict(handles.names.items()) == model.names_items()
            assert dict(handles.numbers.items()) == model.numbers
            for time_ms in sorted(model.timers):
                assert handles.timers.pop_due(100) == time_ms
            assert handles.timers.pop_due(100) is None
        self.range.abort()

    @invariant()
    def the_index_holds_the_timers_and_nothing_else(self):
        found = {entry for entry in self.range.entries if entry[2] == EVENT_TIMERS}
        assert found == {
            timer_entry(sum(key.encode()) % 128, time_ms, CODEC.encode((key,)))
            for key, model in self.models.items()
            for time_ms in model.timers
        }

    @invariant()
    def nothing_is_stored_for_what_is_empty(self):
        models = self.models.values()
        entries = sum(len(m.items) + len(m.names) + len(m.numbers) for m in models)
        entries += sum(m.value is not None for m in models)
        entries += sum(len(m.timers) for m in models)
        own = [entry for entry in self.range.entries if TIMERS_ID in entry]
        assert len(self.range.entries) - len(own) == entries
        for key, model in self.models.items():
            cell = prefix_of(key) + TIMERS_ID
            mine = {e[len(cell) :]: self.range.entries[e] for e in own if e.startswith(cell)}
            if len(mine) == 1:
                assert mine == {b"": pack_timers(sorted(model.timers), [])}
                assert model.timers
            else:
                # With an entry each only the earliest is known by the value before them.
                firsts = [1, min(model.timers), None] if model.timers else []
                times = {b"\0" + encode_time(t): b"" for t in model.timers}
                assert mine == (times | {b"": msgspec.msgpack.encode(firsts)} if times else {})


def in_chunks(epoch):
    """The epoch's keys in chunks; a key whose operations are cut appears in both chunks."""
    chunks: list[list[tuple[str, list[Any]]]] = [[]]
    for key, todo in epoch:
        for at, (operation, cut) in enumerate(todo):
            if cut == 0:
                chunks.append([])
            if at == 0 or not chunks[-1]:
                chunks[-1].append((key, []))
            chunks[-1][-1][1].append(operation)
    return [chunk for chunk in chunks if chunk]


def test_keyed_state_is_a_dict_per_key_however_epochs_are_cut(new_range):
    machine = type("Machine", (KeyedState,), {"new_range": staticmethod(new_range)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=5, deadline=None)
    )
