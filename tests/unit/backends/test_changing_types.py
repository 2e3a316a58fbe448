"""Types of state that change from restore to restore, in subtasks that declare when they like."""

import datetime
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from moorage_testing.changing_types import HOW, TTL, Record, plain

from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.evolution.generations import StateMigrationError
from moorage_state.timetolive import StateTtlConfig, StateVisibility, UpdateType

from .conftest import BACKENDS

KEYS = ["a", "b", "c", "d", "e", "f", "g", "h"]
AB, BA = "struct<a:int,b:int>", "struct<b:int,a:int>"


def value(ddl, ttl=None):
    return ValueStateDescriptor("value", ddl, ttl)


def read(op, descriptor, keys=KEYS):
    found = []
    for key in keys:
        op.with_key(key)
        found.append(op.state(descriptor).value())
    return found


def filled(op, ddl, given):
    for key in KEYS:
        op.with_key(key)
        op.state(value(ddl)).update(given)


def declared_by_the_first(op, handles, descriptor, parallelism=2):
    """Restore; only the first subtask declares the state."""
    op.close()
    op.parallelism = parallelism
    op.start(handles)
    op.made[0].get_or_create_keyed_state(descriptor)


# -- one after the other ----------------------------------------------------------------------

CHAINS: dict[str, list[tuple[str, Any]]] = {
    "reordered": [(AB, (1, 2)), (BA, (2, 1))],
    "replaced by one of its type": [
        ("struct<a:int,x:int>", (1, 2)),
        ("struct<a:int,y:int DEFAULT 5>", (1, 5)),
    ],
    "added, dropped, added": [
        ("struct<a:int>", (1,)),
        ("struct<a:int,b:string DEFAULT 'x'>", (1, "x")),
        ("struct<a:int>", (1,)),
        ("struct<a:int,b:int DEFAULT 7>", (1, 7)),
    ],
    "another default": [
        ("struct<a:int>", (1,)),
        ("struct<a:int,b:int DEFAULT 1>", (1, 1)),
        ("struct<a:int,b:int DEFAULT 2>", (1, 1)),
        ("struct<a:bigint,b:int DEFAULT 3,c:int>", (1, 1, None)),
    ],
    "numbers": [("tinyint", 3), ("int", 3), ("double", 3.0)],
}


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
@pytest.mark.parametrize("chain", CHAINS)
def test_values_go_through_every_type_that_was_declared(op, options, kind, chain):
    (first, given), *later = CHAINS[chain]
    filled(op, first, given)
    written = {"old": given}
    for n, (ddl, expected) in enumerate(later):
        op.restore(op.take(options[kind]))
        assert read(op, value(ddl)) == [expected] * len(KEYS)
        op.with_key(f"new-{n}")
        op.state(value(ddl)).update(expected)
        written[f"new-{n}"] = expected
    op.restore(op.take(options[kind]))
    op.restore(op.take(options[kind]))
    assert read(op, value(later[-1][0])) == [later[-1][1]] * len(KEYS)
    op.with_key(f"new-{len(later) - 1}")
    assert op.state(value(later[-1][0])).value() == later[-1][1]


@pytest.mark.parametrize("after", BACKENDS)
def test_a_canonical_savepoint_after_a_change_is_every_backends(backend, subtasks, options, after):
    op = subtasks(backend)
    filled(op, AB, (1, 2))
    op.restore(op.take())
    assert read(op, value(BA)) == [(2, 1)] * len(KEYS)
    handles = op.take(options["savepoint"])
    op.close()
    op.start(handles, BACKENDS[after])
    assert read(op, value(BA)) == [(2, 1)] * len(KEYS)


def test_types_begin_anew_with_a_savepoint_that_all_subtasks_agree_in(op, options):
    filled(op, AB, (1, 2))
    for ddl in (BA, AB, BA):
        op.restore(op.take(options["savepoint"]))
        read(op, value(ddl))
    op.restore(op.take(options["savepoint"]))
    (handle,) = op.take()
    assert [state.earlier for state in handle.states] == [()]


# -- subtasks that differ ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
@pytest.mark.parametrize(
    ("parallelism", "ddl", "expected"),
    [(1, BA, (2, 1)), (3, "struct<a:int,b:int,c:int DEFAULT 3>", (1, 2, 3))],
)
def test_a_type_that_one_subtask_declared_holds_for_all(
    op, options, kind, parallelism, ddl, expected
):
    filled(op, AB, (1, 2))
    declared_by_the_first(op, op.take(options[kind]), value(ddl))
    handles = op.take(options[kind])
    op.close()
    op.parallelism = parallelism
    # Nobody declares it here, and what two types wrote goes on.
    op.start(handles)
    op.restore(op.take(options[kind]))
    assert read(op, value(ddl)) == [expected] * len(KEYS)
    op.restore(op.take(options[kind]))
    assert read(op, value(ddl)) == [expected] * len(KEYS)


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
@pytest.mark.parametrize("before", [None, TTL])
def test_a_time_to_live_that_one_subtask_declared_or_took_away_does_no_harm(
    op, options, kind, before
):
    after = TTL if before is None else None
    for key in KEYS:
        op.with_key(key)
        op.state(value("bigint", before)).update(7)
    declared_by_the_first(op, op.take(options[kind]), value("bigint", after))
    for _ in range(2):
        op.restore(op.take(options[kind]))
    assert read(op, value("bigint", after)) == [7] * len(KEYS)
    op.restore(op.take(options[kind]))
    assert read(op, value("bigint", after)) == [7] * len(KEYS)


def test_a_time_to_live_that_one_subtask_took_away_ends_no_state_of_another(op):
    short = StateTtlConfig(datetime.timedelta(milliseconds=10))
    for key in KEYS:
        op.with_key(key)
        op.state(value("bigint", short)).update(7)
    declared_by_the_first(op, op.take(), value("bigint"))
    op.restore(op.take())
    op.now_ms += 1000
    assert read(op, value("bigint")) == [7] * len(KEYS)


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_subtasks_that_declare_what_excludes_each_other_are_refused(op, options, kind):
    filled(op, AB, (1, 2))
    declared_by_the_first(op, op.take(options[kind]), value(BA))
    op.made[1].get_or_create_keyed_state(value("struct<a:int,b:int,c:int>"))
    handles = op.take(options[kind])
    with pytest.raises(StateMigrationError, match=r"state=value types=.*declare a state in open"):
        op.restore(handles)


def test_what_is_declared_again_otherwise_is_refused(op):
    op.state_of_first = op.made[0].get_or_create_keyed_state(value("bigint", TTL))
    assert op.made[0].get_or_create_keyed_state(value("long", TTL)) is op.state_of_first
    longer = StateTtlConfig(datetime.timedelta(days=2))
    for other in (value("bigint"), value("bigint", longer), value("string", TTL)):
        with pytest.raises(UserError, match="'value' was registered as value<bigint> with a time"):
            op.made[0].get_or_create_keyed_state(other)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"update_type": UpdateType.OnReadAndWrite}, "update_type=OnCreateAndWrite and now"),
        (
            {"visibility": StateVisibility.ReturnExpiredIfNotCleanedUp},
            "visibility=NeverReturnExpired and now visibility=ReturnExpiredIfNotCleanedUp; declare",
        ),
        ({"sweep_limit": 7}, "sweep_limit=100000 and now sweep_limit=7;"),
    ],
)
def test_a_time_to_live_that_is_declared_again_otherwise_is_refused(op, other, words):
    first, second = value("bigint", TTL), value("bigint", replace(TTL, **other))
    declared = op.made[0].get_or_create_keyed_state(first)
    with pytest.raises(UserError, match=f"state 'value' was registered with {words}"):
        op.made[0].get_or_create_keyed_state(second)
    assert op.made[0].get_or_create_keyed_state(value("bigint", replace(TTL))) is declared
    with pytest.raises(UserError, match=words):
        op.made[0].get_or_create_keyed_state(first.enable_time_to_live(second.ttl))


def test_a_reduce_function_that_is_named_again_otherwise_is_refused(op):
    op.with_key("a")
    op.state(ReducingStateDescriptor("total", "long", "sum")).add(3)
    with pytest.raises(UserError, match="'total' was registered with reduce=sum and now reduce=m"):
        op.state(ReducingStateDescriptor("total", "long", "max"))
    assert op.state(ReducingStateDescriptor("total", "long", lambda a, b: a + b)).get() == 3


# -- every change in any order ----------------------------------------------------------------


changes = st.lists(st.tuples(st.sampled_from(HOW), st.integers(0, 9)), max_size=1)


class ChangingTypes(RuleBasedStateMachine):
    """A value, a list and a map of lists over types of their own; each key has what it should."""

    make: Any = None
    formats: Any = ()
    backend = ""

    def __init__(self):
        super().__init__()
        self.op = self.make()
        self.records = {name: Record() for name in ("value", "items", "nested")}
        self.values: dict[str, dict[str, Any]] = {"value": {}, "items": {}, "nested": {}}

    def teardown(self):
        try:
            self.look()
        finally:
            self.op.close()

    def descriptors(self):
        one, items, nested = self.records.values()
        return {
            "value": ValueStateDescriptor("value", one.ddl(), one.ttl),
            "items": ListStateDescriptor("items", items.ddl(), items.ttl),
            "nested": MapStateDescriptor("nested", "string", f"array<{nested.ddl()}>", nested.ttl),
        }

    @initialize(
        parallelism=st.integers(1, 3), ns=st.lists(st.integers(0, 9), min_size=8, max_size=8)
    )
    def begin(self, parallelism, ns):
        self.op.rescale(parallelism)
        for key, n in zip(KEYS, ns, strict=True):
            self.write(key, n)

    @rule(key=st.sampled_from(KEYS), n=st.integers(0, 9))
    def write(self, key, n):
        self.op.with_key(key)
        given = {name: record.new_value(n) for name, record in self.records.items()}
        states = {name: self.op.state(one) for name, one in self.descriptors().items()}
        states["value"].update(given["value"])
        states["items"].add(given["items"])
        states["nested"].put(f"m{n}", [given["nested"], None])
        self.values["value"][key] = [given["value"]]
        self.values["items"].setdefault(key, []).append(given["items"])
        self.values["nested"].setdefault(key, {})[f"m{n}"] = given["nested"]

    @rule(
        kind=st.sampled_from(["checkpoint", "savepoint"]),
        parallelism=st.integers(1, 4),
        changed=st.tuples(changes, changes, changes),
        declaring=st.integers(0, 15),
        after=st.sampled_from(list(BACKENDS)),
    )
    def go_on_with_other_types(self, kind, parallelism, changed, declaring, after):
        handles = self.op.take(self.formats[kind])
        self.op.close()
        self.op.parallelism = parallelism
        if kind == "savepoint":
            self.op.backend = BACKENDS[after]
        for name, steps in zip(self.records, changed, strict=True):
            for how, n in steps:
                self.apply(name, self.records[name].change(how, n))
        self.op.start(handles)
        # Types count once somebody declares them; the others come to it later.
        chosen = [one for n, one in enumerate(self.op.made) if declaring >> n & 1]
        for one in chosen or self.op.made[:1]:
            for descriptor in self.descriptors().values():
                one.get_or_create_keyed_state(descriptor)

    def apply(self, name, change):
        values = self.values[name]
        for key, kept in values.items():
            if name == "nested":
                values[key] = {k: change(one) for k, one in kept.items()}
            else:
                values[key] = [change(one) for one in kept]

    @rule()
    def look(self):
        for key in KEYS:
            self.op.with_key(key)
            states = {name: self.op.state(one) for name, one in self.descriptors().items()}
            found = states["value"].value()
            expected = self.values["value"].get(key, [None])[0]
            assert repr(plain(found)) == repr(self.records["value"].ordered(expected)), key
            items = [plain(one) for one in states["items"].get()]
            listed = self.values["items"].get(key, [])
            assert repr(items) == repr([self.records["items"].ordered(one) for one in listed]), key
            nested = {k: [plain(one), none] for k, (one, none) in states["nested"].items()}
            mapped = self.values["nested"].get(key, {})
            assert repr(sorted(nested.items())) == repr(
                sorted(
                    (k, [self.records["nested"].ordered(one), None]) for k, one in mapped.items()
                )
            ), key


def test_every_backend_reads_all_that_any_type_wrote(run_on_backend):
    run_on_backend(ChangingTypes, 10, 6)


@pytest.mark.soak
def test_every_backend_reads_all_that_any_type_wrote_for_long(run_on_backend):
    run_on_backend(ChangingTypes, 300, 20)
