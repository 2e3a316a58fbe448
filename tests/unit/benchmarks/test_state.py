"""The forms of a record that are compared do the same."""

import struct
from typing import Any

import pytest
from benchmarks import state
from benchmarks.state import KINDS, WAYS, measured, of_backend, of_dict, of_rocksdict

from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keygroups import KeyGroupRange
from moorage_state.state_backends import HashMapStateBackend
from moorage_state.state_backends.api import Environment

GIVEN = [(key, n) for n in range(1, 10) for key in (3, 5, 3)]


class Bytes(dict):
    """What a record of plain rocksdict asks of a database."""

    put = dict.__setitem__


@pytest.fixture
def table():
    """What comes of the records in the plainest form, by kind."""

    def make(kind):
        found: dict[Any, Any] = {}
        record = of_dict(kind, found)
        for key, n in GIVEN:
            record(key, n)
        return found

    return make


def in_backend(kind, tmp_path):
    backend = HashMapStateBackend().create_keyed_state_backend(
        Environment(local_dir=tmp_path), "job", "op", ["bigint"], 8, KeyGroupRange(0, 7)
    )
    record = of_backend(kind, backend)
    for key, n in GIVEN:
        record(key, n)
    read = {
        "value": lambda: backend.get_state(ValueStateDescriptor("value", "long")).value(),
        "struct": lambda: backend.get_state(
            ValueStateDescriptor("pair", "n long, x double")
        ).value(),
        "list": lambda: backend.get_list_state(ListStateDescriptor("items", "long")).get(),
        "map": lambda: dict(
            backend.get_map_state(MapStateDescriptor("entries", "long", "long")).items()
        ),
        "reducing": lambda: backend.get_reducing_state(
            ReducingStateDescriptor("total", "long", "sum")
        ).get(),
        "aggregating": lambda: backend.get_aggregating_state(
            AggregatingStateDescriptor("mean", "sum long, n long", state.Mean())
        ).get(),
    }
    found = {}
    for key in (3, 5):
        backend.set_current_key(key)
        found[key] = read[kind]()
    backend.dispose()
    return found


def in_rocksdict(kind):
    database = Bytes()
    record = of_rocksdict(kind, database)
    for key, n in GIVEN:
        record(key, n)
    found: dict[Any, Any] = {}
    for raw, value in sorted(database.items()):
        (key,) = struct.unpack_from(">q", raw)
        rest = struct.unpack(">q", raw[8:])[0] if raw[8:] else None
        number = struct.unpack(">q", value[:8])[0]
        if kind == "list":
            found.setdefault(key, []).append(number)
        elif kind == "map":
            found.setdefault(key, {})[rest] = number
        elif kind in ("struct", "aggregating"):
            found[key] = struct.unpack(">qd", value)
        else:
            found[key] = number
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_plain_rocksdict_comes_to_what_a_dictionary_comes_to(kind, table):
    assert in_rocksdict(kind) == table(kind)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "aggregating"])
def test_a_backend_comes_to_what_a_dictionary_comes_to(kind, table, tmp_path):
    assert in_backend(kind, tmp_path) == table(kind)


def test_the_aggregate_of_a_backend_is_the_mean_of_what_it_was_given(tmp_path):
    assert in_backend("aggregating", tmp_path) == {3: 5.0, 5: 5.0}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_measured_and_leaves_nothing_behind(way, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert measured(way, "map", keys=5, records=50, seed=1) > 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_backend_holds_back_is_written_before_the_clock_stops(tmp_path):
    opened = state._opened("rocksdb", "value", tmp_path)
    settle: Any = opened.settle
    database = settle.__self__._database
    opened.record(7, 1)
    sizes = [database.properties()["estimate-num-keys"]]
    opened.settle()
    sizes.append(database.properties()["estimate-num-keys"])
    opened.close()
    assert sizes[1] == sizes[0] + 1
