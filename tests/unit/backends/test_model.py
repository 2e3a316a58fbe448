"""Every kind of state on every backend against plain dicts, over snapshots and changes of subtasks.

Operations on the states of a few keys, with time that goes on, between snapshots of both
formats, restores and other numbers of subtasks. What a read returns is what the model says, at any
moment.
"""

import copy
import datetime
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from moorage_state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.timetolive import StateTtlConfig, UpdateType

KEYS = ["", "a", "ab", "b", "\u00e9", "key-with-a-longer-name"]
LIFE = 10


class Mean(AggregateFunction):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, one, other):
        return (one[0] + other[0], one[1] + other[1])


TTL = StateTtlConfig(datetime.timedelta(milliseconds=LIFE))
ON_READ = StateTtlConfig(datetime.timedelta(milliseconds=LIFE), UpdateType.OnReadAndWrite)
VALUE = ValueStateDescriptor("value", "struct<n:long,tags:array<string>>")
ITEMS = ListStateDescriptor("items", "array<long>")
NAMES = MapStateDescriptor("names", "string", "map<string,long>")
TOTAL = ReducingStateDescriptor("total", "long", "sum")
MEAN = AggregatingStateDescriptor("mean", "struct<sum:long,n:long>", Mean())
WINDOW = ReducingStateDescriptor("window", "long", "max")
SHORT = ValueStateDescriptor("short", "string", ttl=TTL)
READ = ValueStateDescriptor("read", "string", ttl=ON_READ)
SHORT_ITEMS = ListStateDescriptor("short-items", "long", ttl=TTL)
SHORT_NAMES = MapStateDescriptor("short-names", "string", "long", ttl=TTL)

small = st.integers(0, 5)
names = st.sampled_from(["", "x", "y", "\u00fc"])
texts = st.text("a\u00e9", max_size=2)

operations = st.one_of(
    st.tuples(st.just("value"), st.none() | st.tuples(small, st.lists(texts, max_size=2))),
    st.tuples(st.just("add"), st.lists(small, max_size=2)),
    st.tuples(st.just("replace"), st.lists(st.lists(small, max_size=2), max_size=2)),
    st.tuples(st.just("put"), names, st.dictionaries(texts, small, max_size=2)),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("clear")),
    st.tuples(st.just("total"), small),
    st.tuples(st.just("mean"), st.lists(small, max_size=3)),
    st.tuples(st.just("window"), small, small),
    st.tuples(st.just("merge"), small, st.lists(small, max_size=2)),
    st.tuples(st.just("short"), texts),
    st.tuples(st.just("read"), texts),
    st.tuples(st.just("look")),
    st.tuples(st.just("short-add"), small),
    st.tuples(st.just("short-put"), names, small),
    st.tuples(st.just("timer"), small),
)


class Model:
    """One key's state."""

    def __init__(self):
        self.value: Any = None
        self.items: list[Any] = []
        self.names: dict[str, Any] = {}
        self.total: Any = None
        self.mean: list[int] = []
        self.windows: dict[int, int] = {}
        self.short: Any = None
        self.read: Any = None
        self.short_items: list[Any] = []
        self.short_names: dict[str, Any] = {}
        self.timers: set[int] = set()

    def do(self, op, now, *args):
        getattr(self, op.replace("-", "_") + "_")(now, *args)

    def value_(self, _now, value):
        self.value = value

    def add_(self, _now, item):
        self.items.append(item)

    def replace_(self, _now, items):
        self.items = items

    def put_(self, _now, name, value):
        self.names[name] = value

    def remove_(self, _now, name):
        self.names.pop(name, None)

    def clear_(self, _now):
        self.value, self.items, self.names, self.total, self.mean = None, [], {}, None, []

    def total_(self, _now, n):
        self.total = (self.total or 0) + n

    def mean_(self, _now, values):
        self.mean = self.mean + values

    def window_(self, _now, window, n):
        self.windows[window] = max(n, self.windows.get(window, 0))

    def merge_(self, _now, target, sources):
        for source in sources:
            if source != target and source in self.windows:
                self.window_(0, target, self.windows.pop(source))

    def short_(self, now, text):
        self.short = (now, text)

    def read_(self, now, text):
        self.read = (now, text)

    def look_(self, now):
        if self.read is not None and self.read[0] + LIFE > now:
            self.read = (now, self.read[1])

    def short_add_(self, now, n):
        self.short_items.append((now, n))

    def short_put_(self, now, name, n):
        self.short_names[name] = (now, n)

    def timer_(self, _now, time_ms):
        self.timers.add(time_ms)

    def seen(self, now):
        def alive(pair):
            return pair is not None and pair[0] + LIFE > now

        return (
            self.value,
            self.items,
            self.names,
            self.total,
            sum(self.mean) / len(self.mean) if self.mean else None,
            self.windows,
            self.short[1] if alive(self.short) else None,
            [n for stamp, n in self.short_items if alive((stamp, n))],
            {name: pair[1] for name, pair in self.short_names.items() if alive(pair)},
        )


class Machine(RuleBasedStateMachine):
    make: Any = None
    formats: Any = ()

    def __init__(self):
        super().__init__()
        self.op = self.make()
        self.models = {key: Model() for key in KEYS}
        self.kept = None

    def teardown(self):
        self.op.close()

    @initialize(parallelism=st.integers(1, 4))
    def begin(self, parallelism):
        self.op.close()
        self.op.parallelism = parallelism
        self.op.now_ms = 1000
        self.op.open()

    @rule(key=st.sampled_from(KEYS), todo=st.lists(operations, min_size=1, max_size=6))
    def work(self, key, todo):
        self.op.with_key(key)
        for operation, *args in todo:
            self.models[key].do(operation, self.op.now_ms, *copy.deepcopy(args))
            self.carry_out(operation, *args)

    def carry_out(self, operation, *args):  # noqa: C901, PLR0912  one case for each operation
        op, state = self.op, self.op.state
        match operation:
            case "value":
                state(VALUE).update(*args)
            case "add":
                state(ITEMS).add(*args)
            case "replace":
                state(ITEMS).update(*args)
            case "put":
                state(NAMES).put(*args)
            case "remove":
                state(NAMES).remove(*args)
            case "clear":
                for descriptor in (VALUE, ITEMS, NAMES, TOTAL, MEAN):
                    state(descriptor).clear()
            case "total":
                state(TOTAL).add(*args)
            case "mean":
                state(MEAN).add_all(*args)
            case "window":
                op.current.get_partitioned_state(args[0], "long", WINDOW).add(args[1])
            case "merge":
                op.current.merge_namespaces(args[0], args[1], "long", WINDOW)
            case "short":
                state(SHORT).update(*args)
            case "read":
                state(READ).update(*args)
            case "look":
                state(READ).value()
            case "short-add":
                state(SHORT_ITEMS).add(*args)
            case "short-put":
                state(SHORT_NAMES).put(*args)
            case "timer":
                op.current.timers().register(*args)

    @rule(ms=st.integers(1, LIFE))
    def time_goes_on(self, ms):
        self.op.now_ms += ms

    @rule(parallelism=st.integers(1, 8), kind=st.sampled_from(["checkpoint", "savepoint"]))
    def other_subtasks(self, parallelism, kind):
        self.op.options = self.formats[kind]
        self.op.rescale(parallelism)

    @rule(kind=st.sampled_from(["checkpoint", "savepoint"]))
    def keep(self, kind):
        self.op.options = self.formats[kind]
        self.kept = self.op.take(), copy.deepcopy(self.models)

    @rule()
    def go_back(self):
        if self.kept is not None:
            handles, models = self.kept
            self.op.restore(handles)
            self.models = copy.deepcopy(models)

    @invariant()
    def every_key_has_what_the_model_says(self):
        now = self.op.now_ms
        for key, model in self.models.items():
            self.op.with_key(key)
            state = self.op.state
            value = state(VALUE).value()
            windows = {
                n: found
                for n in range(6)
                if (found := self.op.current.get_partitioned_state(n, "long", WINDOW).get())
                is not None
            }
            assert (
                None if value is None else tuple(value),
                state(ITEMS).get(),
                dict(state(NAMES).items()),
                state(TOTAL).get(),
                state(MEAN).get(),
                windows,
                state(SHORT).value(),
                state(SHORT_ITEMS).get(),
                dict(state(SHORT_NAMES).items()),
            ) == model.seen(now), key
        assert sum(len(one.timers()) for one in self.op.made) == sum(
            len(model.timers) for model in self.models.values()
        )


def test_every_backend_is_a_dict_per_key(run_on_backend):
    run_on_backend(Machine, 6, 12)


@pytest.mark.soak
def test_every_backend_is_a_dict_per_key_for_long(run_on_backend):
    run_on_backend(Machine, 200, 50)
