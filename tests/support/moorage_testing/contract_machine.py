"""Keyed state of any backend against plain dicts, over whatever may happen to a job.

`machine_over` gives a hypothesis state machine for a harness: keys come in any order and do
anything to every kind of state, with and without a time to live; epochs end, time passes, snapshots
are taken and restored, subtasks become more and fewer. What a read returns is what the model says.
"""

import copy
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.timetolive import StateTtlConfig, UpdateType
from moorage_testing.contract_combining import Mean
from moorage_testing.state_contract import StateHarness

__all__ = ["machine_over"]

TTL_MS = 1000
FOREVER = 1 << 60
KEYS = ["", "a", "ab", "b", "\u00e9", "key-with-a-longer-name"]

MODES = {
    "plain": None,
    "writes": StateTtlConfig(timedelta(milliseconds=TTL_MS)),
    "reads": StateTtlConfig(timedelta(milliseconds=TTL_MS), UpdateType.OnReadAndWrite),
}
STATES = {
    mode: {
        "value": ValueStateDescriptor(f"{mode}-value", "n long", ttl),
        "items": ListStateDescriptor(f"{mode}-items", "long", ttl),
        "seen": MapStateDescriptor(f"{mode}-seen", "string", "long", ttl),
        "total": ReducingStateDescriptor(f"{mode}-total", "long", "sum", ttl),
        "mean": AggregatingStateDescriptor(f"{mode}-mean", "sum long, n long", Mean(), ttl),
    }
    for mode, ttl in MODES.items()
}

small = st.integers(-9, 9)
names = st.sampled_from(["", "x", "xy", "\u00fc"])
operations = st.tuples(
    st.sampled_from(sorted(MODES)),
    st.one_of(
        st.tuples(st.just("value.value")),
        st.tuples(st.just("value.update"), st.none() | st.tuples(small)),
        st.tuples(st.just("value.clear")),
        st.tuples(st.just("items.get")),
        st.tuples(st.just("items.add"), small),
        st.tuples(st.just("items.add_all"), st.lists(small, max_size=3)),
        st.tuples(st.just("items.update"), st.lists(small, max_size=3)),
        st.tuples(st.just("items.clear")),
        st.tuples(st.just("seen.get"), names),
        st.tuples(st.just("seen.contains"), names),
        st.tuples(st.just("seen.put"), names, small),
        st.tuples(st.just("seen.remove"), names),
        st.tuples(st.just("seen.items")),
        st.tuples(st.just("seen.is_empty")),
        st.tuples(st.just("seen.clear")),
        st.tuples(st.just("total.get")),
        st.tuples(st.just("total.add"), small),
        st.tuples(st.just("total.add_all"), st.lists(small, max_size=3)),
        st.tuples(st.just("total.clear")),
        st.tuples(st.just("mean.get")),
        st.tuples(st.just("mean.add"), small),
        st.tuples(st.just("mean.add_all"), st.lists(small, max_size=3)),
        st.tuples(st.just("mean.clear")),
    ),
)


class Cells:
    """Values with the times of their last use; those whose time is over are not there."""

    def __init__(self, mode):
        self.mode = mode
        self.cells: list[tuple[Any, Any, int]] = []

    def living(self, now):
        ttl = FOREVER if self.mode == "plain" else TTL_MS
        self.cells = [cell for cell in self.cells if cell[2] + ttl > now]
        return self.cells

    def read(self, now, place=None):
        """Places and values; reading renews them where that is declared."""
        found = [(p, v) for p, v, _ in self.living(now) if place is None or p == place]
        if self.mode == "reads":
            self.cells = [
                (p, v, now if place is None or p == place else t) for p, v, t in self.cells
            ]
        return found

    def set(self, place, value, now):
        for at, cell in enumerate(self.living(now)):
            if cell[0] == place:
                self.cells[at] = (place, value, now)
                return
        self.cells.append((place, value, now))

    def drop(self, place):
        self.cells = [cell for cell in self.cells if cell[0] != place]


class Model:
    """One key's state in one mode; every method is named after an operation."""

    def __init__(self, mode):
        self.states = {name: Cells(mode) for name in STATES[mode]}

    def expect(self, operation, arguments, now):
        state, method = operation.split(".")
        cells = self.states[state]
        if method == "clear":
            cells.cells = []
            return None
        return getattr(self, f"{state}_{method}")(cells, now, *arguments)

    def value_value(self, cells, now):
        return next((value for _, value in cells.read(now)), None)

    def value_update(self, cells, now, value):
        cells.drop(None)
        if value is not None:
            cells.set(None, value, now)

    def items_get(self, cells, now):
        return [value for _, value in cells.read(now)]

    def items_add(self, cells, now, value):
        cells.cells.append((object(), value, now))

    def items_add_all(self, cells, now, values):
        cells.cells += [(object(), value, now) for value in values]

    def items_update(self, cells, now, values):
        cells.cells = [(object(), value, now) for value in values]

    def seen_get(self, cells, now, name):
        return next((value for _, value in cells.read(now, name)), None)

    def seen_contains(self, cells, now, name):
        return bool(cells.read(now, name))

    def seen_put(self, cells, now, name, value):
        cells.set(name, value, now)

    def seen_remove(self, cells, _now, name):
        cells.drop(name)

    def seen_items(self, cells, now):
        return dict(cells.read(now))

    def seen_is_empty(self, cells, now):
        return not cells.living(now)

    def total_get(self, cells, now):
        return self.value_value(cells, now)

    def total_add(self, cells, now, value):
        self.total_add_all(cells, now, [value])

    def total_add_all(self, cells, now, values):
        if values:
            before = sum(value for _, value, _ in cells.living(now))
            cells.set(None, before + sum(values), now)

    def mean_get(self, cells, now):
        found = self.value_value(cells, now)
        return None if found is None else found[0] / found[1]

    def mean_add(self, cells, now, value):
        self.mean_add_all(cells, now, [value])

    def mean_add_all(self, cells, now, values):
        if values:
            total, count = next((value for _, value, _ in cells.living(now)), (0, 0))
            cells.set(None, (total + sum(values), count + len(values)), now)


class StateMachine(RuleBasedStateMachine):
    make: Callable[[], StateHarness]

    def __init__(self):
        super().__init__()
        self.harness = self.make()
        self.models: dict[Any, Any] = defaultdict(lambda: {mode: Model(mode) for mode in MODES})
        self.taken = []

    @initialize()
    def open(self):
        self.harness.open()

    def teardown(self):
        self.look_at_every_key()
        self.harness.close()

    @rule(key=st.sampled_from(KEYS), todo=st.lists(operations, min_size=1, max_size=12))
    def a_key_comes(self, key, todo):
        self.harness.with_key(key)
        for mode, (operation, *arguments) in todo:
            name, method = operation.split(".")
            handle = self.harness.state(STATES[mode][name])
            found = getattr(handle, method)(*arguments)
            found = dict(found) if method == "items" else found
            expected = self.models[key][mode].expect(operation, arguments, self.harness.now_ms)
            assert found == expected, (key, mode, operation, arguments)

    @rule()
    def an_epoch_ends(self):
        self.harness.new_epoch()

    @rule(ms=st.integers(1, 700))
    def time_passes(self, ms):
        self.harness.now_ms += ms
        self.harness.new_epoch()

    @rule()
    def a_snapshot_is_taken(self):
        self.taken.append((self.harness.snapshot(), copy.deepcopy(dict(self.models))))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def a_snapshot_is_restored(self, data):
        snapshot, models = data.draw(st.sampled_from(self.taken[-3:]))
        self.harness.restore(snapshot)
        self.models.clear()
        self.models.update(copy.deepcopy(models))

    @rule(parallelism=st.integers(1, 8))
    def the_parallelism_changes(self, parallelism):
        self.harness.rescale(parallelism)

    def look_at_every_key(self):
        for key in KEYS:
            looks = ["value.value", "items.get", "seen.items", "total.get", "mean.get"]
            self.a_key_comes(key, [(mode, (look,)) for mode in MODES for look in looks])
        self.time_is_over_for_all()

    def time_is_over_for_all(self):
        """What has a time to live is gone in the end, read or not; the rest is still there."""
        if self.harness.stored_entries() is None:
            return
        for key in KEYS:
            self.harness.with_key(key)
            for descriptor in STATES["plain"].values():
                self.harness.state(descriptor).clear()
        for _ in range(3):
            self.harness.now_ms += 2 * TTL_MS
            self.harness.new_epoch()
        self.harness.new_epoch()
        assert self.harness.stored_entries() == 0


def machine_over(make: Callable[[], StateHarness]) -> type[RuleBasedStateMachine]:
    """The machine for the harnesses that `make` makes, each with nothing in it."""
    return type("Machine", (StateMachine,), {"make": staticmethod(make)})
