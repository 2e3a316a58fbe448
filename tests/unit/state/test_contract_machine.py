"""Every kind of keyed state on the store itself, over whatever may happen to a job.

Against plain dicts, see the words of `contract_machine`; and with types that change, whose values
everybody who reads state has to see alike.
"""

import copy
from collections import namedtuple
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from moorage_testing.changing_types import HOW, Record, plain
from moorage_testing.contract_machine import KEYS, machine_over
from moorage_testing.keyed_harness import KeyedStoreHarness

from moorage_state.columnar import ColumnCodec
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed import scanning
from moorage_state.keyed import state_store as store_module
from moorage_state.keyed.expiry import split_stamp
from moorage_state.keylayout import state_id


@pytest.fixture(autouse=True)
def tight_limits(monkeypatch):
    """Scans and frames of a few entries, so that all of them are cut off."""
    monkeypatch.setattr(scanning, "_SCAN_ENTRIES", 2)
    monkeypatch.setattr(scanning, "_PAGE", 2)
    monkeypatch.setattr(store_module, "_FRAME_ENTRIES", 3)


def test_every_kind_of_state_is_a_plain_object_per_key_whatever_happens():
    run_state_machine_as_test(
        machine_over(KeyedStoreHarness),
        settings=settings(max_examples=60, stateful_step_count=25, deadline=None),
    )


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_kind_of_state_is_a_plain_object_per_key_over_thousands_of_steps():
    run_state_machine_as_test(
        machine_over(KeyedStoreHarness),
        settings=settings(max_examples=40, stateful_step_count=1000, deadline=None),
    )


NAMES = ["value", "items", "nested", "chain"]
# What takes two of them to be seen comes more often.
change = st.tuples(st.sampled_from([*HOW, "add", "default", "default"]), st.integers(0, 9))


class ChangingTypes(RuleBasedStateMachine):
    """States of four kinds over types of their own; each key has what it should, of any age.

    Values are given as dicts, as named tuples in another order or as plain tuples, and changed by
    whoever gave them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.harness = KeyedStoreHarness()
        self.records = {name: Record() for name in NAMES}
        self.values: dict[str, dict[str, list[Any]]] = {name: {} for name in NAMES}
        self.taken: list[Any] = []

    @initialize(parallelism=st.integers(1, 3))
    def open(self, parallelism: int) -> None:
        self.harness.open()
        self.harness.rescale(parallelism)
        for n, key in enumerate(KEYS):
            self.a_key_writes(key, n, n % 3)

    def teardown(self) -> None:
        try:
            self.every_reader_sees_what_was_written()
        finally:
            self.harness.close()

    def states(self, key: str) -> dict[str, Any]:
        """The handles of all states, for a key."""
        self.harness.with_key(key)
        value, items, nested, chain = self.records.values()
        declared = [
            ValueStateDescriptor("value", value.ddl(), value.ttl),
            ListStateDescriptor("items", items.ddl(), items.ttl),
            MapStateDescriptor("nested", "string", f"array<{nested.ddl()}>", nested.ttl),
            ReducingStateDescriptor(
                "chain", f"array<{chain.ddl()}>", lambda a, b: a + b, chain.ttl
            ),
        ]
        return dict(zip(self.records, map(self.harness.state, declared), strict=True))

    @rule(key=st.sampled_from(KEYS), n=st.integers(0, 9), form=st.integers(0, 2))
    def a_key_writes(self, key: str, n: int, form: int) -> None:
        states = self.states(key)
        value, item, *lists = (record.new_value(n) for record in self.records.values())
        nested, chain = (
            [self.given(name, one, form)] for name, one in zip(NAMES[2:], lists, strict=True)
        )
        states["value"].update(self.given("value", value, form))
        states["items"].add(self.given("items", item, form))
        states["nested"].put("x", nested)
        states["chain"].add(chain)
        nested.clear()
        chain.append(chain[0])
        self.values["value"][key] = [value]
        self.values["items"].setdefault(key, []).append(item)
        self.values["nested"][key] = [lists[0]]
        self.values["chain"].setdefault(key, []).append(lists[1])

    def given(self, name: str, value: dict[str, Any], form: int) -> Any:
        """A value as a user may give it."""
        if form == 0:
            return dict(value)
        if form == 1:
            names = sorted(value, reverse=True)
            return namedtuple("Turned", names)(*(value[each] for each in names))  # noqa: PYI024
        return tuple(value[field] for field, *_ in self.records[name].fields)

    @rule(
        changes=st.lists(st.tuples(change, change, change, change), min_size=2, max_size=4),
        key=st.sampled_from(KEYS),
    )
    def types_change(self, changes: Any, key: str) -> None:
        """One after the other, at once for one subtask, and for the others when they declare it."""
        for changed in changes:
            self.harness.new_epoch()
            for (how, n), name in zip(changed, NAMES, strict=True):
                after = self.records[name].change(how, n)
                for kept in self.values[name].values():
                    kept[:] = map(after, kept)
            self.states(key)

    @rule()
    def a_snapshot_is_taken(self) -> None:
        snapshot = self.harness.snapshot()
        self.taken.append((snapshot, copy.deepcopy((self.records, self.values))))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def the_job_goes_back_to_a_snapshot_and_its_types(self, data: st.DataObject) -> None:
        snapshot, model = data.draw(st.sampled_from(self.taken[-3:]))
        self.harness.restore(snapshot)
        self.records, self.values = copy.deepcopy(model)

    @rule(parallelism=st.integers(1, 8))
    def the_parallelism_changes(self, parallelism: int) -> None:
        self.harness.rescale(parallelism)

    @rule()
    def every_reader_sees_what_was_written(self) -> None:
        self.harness.new_epoch()
        for key in KEYS:
            states = self.states(key)
            found = {
                "value": [one for one in [states["value"].value()] if one is not None],
                "items": states["items"].get(),
                "nested": [one for ones in states["nested"].values() for one in ones],
                "chain": states["chain"].get() or [],
            }
            for name, record in self.records.items():
                expected = [record.ordered(one) for one in self.values[name].get(key, [])]
                assert repr([plain(one) for one in found[name]]) == repr(expected), (key, name)
            assert repr(self.column(key)) == repr(
                [self.records["value"].ordered(one) for one in self.values["value"].get(key, [])]
            )

    def column(self, key: str) -> list[Any]:
        """The stored value of a key as those see it who read whole columns."""
        self.harness.with_key(key)
        store = self.harness.store
        (raw,) = store.access.get_many([store.prefix + state_id("value")])
        if raw is None:
            return []
        (schema,) = (one for one in store.schemas if one.name == "value")
        payload = raw if schema.ttl_ms is None else split_stamp(raw)[1]
        rows: list[Any] = ColumnCodec(schema.type, schema.earlier).decode([payload]).to_pylist()
        return rows


def test_every_reader_sees_all_values_alike_whatever_types_wrote_them():
    run_state_machine_as_test(
        ChangingTypes, settings=settings(max_examples=25, stateful_step_count=15, deadline=None)
    )


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_reader_sees_all_values_alike_over_thousands_of_changes():
    run_state_machine_as_test(
        ChangingTypes, settings=settings(max_examples=200, stateful_step_count=200, deadline=None)
    )
