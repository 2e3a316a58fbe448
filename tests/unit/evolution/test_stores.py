"""A state whose type changes while it holds values: in the store, over several epochs."""

# ruff: noqa: ARG002 - the range has the signatures of RangeAccess

import doctest
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from moorage.engine.acks import Ack, EpochOutcome
from moorage_state.canonical.rows import RowBuffer
from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.codecs import encoder
from moorage_state.columnar import ColumnCodec
from moorage_state.database import Scan
from moorage_state.deltas import decode_frame
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.evolution.generations import StateMigrationError
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.schema import StateSchema, merged_schema
from moorage_state.keylayout import key_prefix, state_id
from moorage_state.snapshots import StateMeta
from moorage_state.timetolive import StateTtlConfig

A, B, C = "n int, page string", "n int, page string, by string default 'web'", "by string, n double"
PREFIXES = [key_prefix(1, b"a"), key_prefix(1, b"b"), key_prefix(2, b"c")]


class Range:
    """Everything that was staged, visible at once."""

    def __init__(self):
        self.entries = {}

    def get_many(self, keys):
        return [self.entries.get(key) for key in keys]

    def scan_many(self, prefixes, limit_entries, limit_bytes):
        return [self.scan_from(prefix, b"", limit_entries) for prefix in prefixes]

    def scan_from(self, prefix, after, limit):
        keys = sorted(key for key in self.entries if key.startswith(prefix) and key > after)
        return Scan(keys, [self.entries[key] for key in keys], complete=True)

    def stage(self, frame):
        found = decode_frame(frame)
        for start, end in found.ranges:
            for key in [key for key in self.entries if start <= key < end]:
                del self.entries[key]
        for key, value in zip(found.keys, found.values, strict=True):
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value


class Job:
    """Epochs of one operator over a range."""

    def __init__(self):
        self.range: Any = Range()
        self.schemas: tuple[StateSchema, ...] = ()
        self.number = 0

    def epoch(self, run):
        self.number += 1
        store = KeyedStateStore(self.range, self.number, self.schemas)
        found = run(store, self.keys(store))
        store.finish()
        self.schemas = tuple(store.schemas)
        return found

    def keys(self, store):
        store.begin_chunk(PREFIXES)
        for index in range(len(PREFIXES)):
            store.switch_to(index)
            yield "abc"[index]


@pytest.fixture
def job():
    return Job()


def visits(ddl, **changes):
    """Reads the value of every key, after setting some."""

    def run(store, keys):
        state = store.value_state(ValueStateDescriptor("visit", ddl))
        found = {}
        for key in keys:
            if key in changes:
                state.update(changes[key])
            found[key] = state.value() and tuple(state.value())
        return found

    return run


def test_values_of_three_types_are_read_side_by_side(job):
    job.epoch(visits(A, a=(1, "x"), b=(2, "y"), c=(3, "z")))
    assert job.epoch(visits(B, b=(5, "p", "app")))["a"] == (1, "x", "web")
    assert job.epoch(visits(C, c=("mail", 0.5))) == {
        "a": ("web", 1.0),
        "b": ("app", 5.0),
        "c": ("mail", 0.5),
    }
    (schema,) = job.schemas
    assert schema.earlier == ("struct<n:int,page:string>", B_DDL)
    marks = sorted(raw[:2].hex() for raw in job.range.entries.values())
    assert marks == ["9201", "c101", "c102"]
    assert job.epoch(visits(C))["a"] == ("web", 1.0)


B_DDL = "struct<n:int,page:string,by:string DEFAULT 'web'>"


def test_another_default_changes_no_value_whoever_reads_it(job):
    first, second = "n int, by string default 'a'", "n int, by string default 'b'"
    job.epoch(visits("n int", a=(1,)))
    assert job.epoch(visits(first))["a"] == (1, "a")
    assert job.epoch(visits(second, b={"n": 2})) == {"a": (1, "a"), "b": (2, "b"), "c": None}
    (schema,) = job.schemas
    column = ColumnCodec(schema.type, schema.earlier).decode(list(job.range.entries.values()))
    assert column.to_pylist() == [{"n": 1, "by": "a"}, {"n": 2, "by": "b"}]
    assert job.epoch(visits(f"{second}, m int"))["a"] == (1, "a", None)


@pytest.mark.parametrize("ttl", [None, StateTtlConfig(timedelta(days=1))])
@pytest.mark.parametrize("kind", ["value", "items", "seen", "total"])
def test_values_that_can_be_changed_in_place_change_with_the_type(job, kind, ttl):
    def run(ddl, value):
        declared = {
            "value": lambda: ValueStateDescriptor("s", ddl, ttl),
            "items": lambda: ListStateDescriptor("s", ddl, ttl),
            "seen": lambda: MapStateDescriptor("s", "string", ddl, ttl),
            "total": lambda: ReducingStateDescriptor("s", ddl, lambda a, b: a + b, ttl),
        }[kind]()

        def changing(store, keys):
            state = store.state(declared)
            found = {}
            for key in keys:
                if key in value:
                    place = ["x"] if kind == "seen" else []
                    method = {"value": "update", "seen": "put"}.get(kind, "add")
                    getattr(state, method)(*place, value[key])
                read = {"value": "value", "seen": "values"}.get(kind, "get")
                found[key] = getattr(state, read)()
            return found

        return changing

    def held(one):
        return [one] if kind in {"items", "seen"} else one

    job.epoch(run("array<int>", {"a": [1], "b": [2]}))
    found = job.epoch(run("array<double>", {"b": [5]} if kind != "items" else {}))
    assert repr(found["a"]) == repr(held([1.0]))
    expected = {"items": [[2.0]], "total": [2.0, 5.0]}.get(kind, held([5.0]))
    assert repr(found["b"]) == repr(expected)
    assert repr(job.epoch(run("array<double>", {}))) == repr(found)


def test_elements_of_lists_and_values_of_maps_change_with_the_type(job):
    def run(kind):
        def changing(store, keys):
            pages = store.list_state(ListStateDescriptor("pages", kind))
            days = store.map_state(MapStateDescriptor("days", "string", f"array<{kind}>"))
            found: list[Any] = []
            for key in keys:
                if key == "a":
                    pages.add(7)
                    days.put(kind, [7])
                    found = [pages.get(), dict(days.items())]
            return found

        return changing

    job.epoch(run("int"))
    job.epoch(run("int"))
    assert job.epoch(run("double")) == [[7, 7, 7.0], {"int": [7], "double": [7.0]}]
    pages, days = job.epoch(run("double"))
    assert [repr(page) for page in pages] == ["7.0"] * 4
    assert repr(days["int"]) == "[7.0]"


def test_an_incompatible_type_is_refused_before_anything_is_written(job):
    job.epoch(visits(A, a=(1, "x")))
    before = dict(job.range.entries)
    with pytest.raises(StateMigrationError, match="field=n written=int declared=string"):
        job.epoch(visits("n string", a=("x",)))
    assert job.range.entries == before
    assert job.epoch(visits(A))["a"] == (1, "x")


def test_another_kind_or_map_key_is_never_migrated(job):
    job.epoch(visits(A))
    with pytest.raises(UserError, match="'visit' was written as value<"):
        job.epoch(lambda store, _: store.list_state(ListStateDescriptor("visit", A)))


def test_an_attempt_that_fails_leaves_the_type_as_it_was(job):
    job.epoch(visits(A, a=(1, "x")))
    elsewhere: Any = Range()
    store = KeyedStateStore(elsewhere, 2, job.schemas)
    visits(B)(store, job.keys(store))
    assert [schema.earlier for schema in job.schemas] == [()]
    assert job.epoch(visits(B))["a"] == (1, "x", "web")


def test_a_refused_declaration_can_be_followed_by_a_right_one(job):
    job.epoch(visits(A, a=(1, "x")))
    store = KeyedStateStore(job.range, 2, job.schemas)
    with pytest.raises(StateMigrationError):
        store.value_state(ValueStateDescriptor("visit", "n string"))
    assert store.value_state(ValueStateDescriptor("visit", A)) is not None


def test_a_canonical_file_holds_values_of_the_last_type_only(job):
    job.epoch(visits(A, a=(1, "x"), b=(2, "y")))
    job.epoch(visits(B, b=(5, "p", "app")))
    job.epoch(visits(C, c=("mail", 0.5)))
    (schema,) = job.schemas
    state = StateMeta(name="visit", kind="value", type=schema.type, earlier=list(schema.earlier))
    spec = CanonicalSpec(
        uid="op",
        start=0,
        end=7,
        epoch=3,
        max_parallelism=8,
        key_types=("binary",),
        states=(state,),
    )
    buffer = RowBuffer(spec.metas()[0])
    for key, raw in sorted(job.range.entries.items()):
        buffer.add(key[7:8], b"", raw)
    column = buffer.take(1).column("value")
    assert column.to_pylist() == [
        {"by": "web", "n": 1.0},
        {"by": "app", "n": 5.0},
        {"by": "mail", "n": 0.5},
    ]


def test_what_is_restored_from_canonical_files_is_of_no_earlier_type():
    range_ = Range()
    range_.entries[PREFIXES[0] + state_id("visit")] = encoder(C)(("web", 1.0))
    job = Job()
    job.range = range_
    job.schemas = (StateSchema("visit", "value", "struct<by:string,n:double>"),)
    assert job.epoch(visits(C))["a"] == ("web", 1.0)
    assert job.schemas[0].earlier == ()


def test_one_subtask_that_knows_the_new_type_is_enough_for_the_epoch():
    old = StateSchema("visit", "value", "struct<n:int>")
    new = StateSchema("visit", "value", "struct<n:double>", "", ("struct<n:int>",))
    for schemas in ([old], [new]), ([new], [old]):
        acks = {
            ("op", n): Ack(uid="op", subtask=n, run="r", epoch=2, schemas=found)
            for n, found in enumerate(schemas)
        }
        assert EpochOutcome(acks).schemas() == {"op": [new]}
    with pytest.raises(UserError, match="different types"):
        merged_schema(new, StateSchema("visit", "value", "struct<m:int>", "", new.earlier))


def test_the_examples_of_the_documentation_are_true():
    path = Path(__file__).parents[3] / "docs" / "schema-evolution.md"
    assert doctest.testfile(str(path), module_relative=False).failed == 0
