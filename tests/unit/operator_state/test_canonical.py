"""Operator state in canonical files: out of a database, into another, byte for byte."""

from decimal import Decimal

import pytest

from moorage_state.canonical import (
    CanonicalFile,
    CanonicalSpec,
    export_range,
    file_name,
    frames_of,
    scan_rows,
)
from moorage_state.deltas import decode_frame
from moorage_state.descriptors import ListStateDescriptor, MapStateDescriptor
from moorage_state.errors import CorruptState
from moorage_state.rocks import Database, ProcessMemory, RocksOptions
from moorage_state.snapshots import OperatorStateMeta, StateMeta

_MIB = 1 << 20
SMALL = RocksOptions(
    block_cache_bytes=16 * _MIB, write_buffers_bytes=16 * _MIB, write_buffer_bytes=4 * _MIB
)
RULES = MapStateDescriptor("rules", "string", "struct<limit:long>")


def work(subtask, number):
    """Some of everything."""
    store = subtask.states
    seen = store.get_list_state(ListStateDescriptor("seen", "decimal(9,2)"))
    seen.add_all([Decimal(number), Decimal("-1.50")])
    store.get_union_list_state(ListStateDescriptor("n", "long")).add(number)
    store.get_broadcast_state(RULES).put_all({"a": (1,), "b": (2,)})
    keyed = subtask.raw.keyed_output()
    keyed.start_new_key_group(keyed.get_key_group_list()[-1])
    keyed.write(b"\0raw\xff")
    subtask.raw.operator_output().write(b"partition")


@pytest.fixture
def new_database(tmp_path):
    made = []

    def make(name):
        made.append(Database(tmp_path / name, SMALL, ProcessMemory(SMALL)))
        return made[-1]

    yield make
    for database in made:
        database.close()


@pytest.fixture
def database(world, new_database):
    world.run(work)
    database = new_database("db")
    database.apply([decode_frame(frame) for frame in world.frames])
    assert stored(database) == world.entries
    return database


def stored(database):
    with database.cursor(b"", b"\xff") as cursor:
        cursor.seek(b"")
        keys, values, _ = cursor.take(b"\xff", 10_000, 1 << 30)
    return dict(zip(keys, values, strict=True))


def spec_of(world, start, end, **changes):
    metas = tuple(
        OperatorStateMeta(name=s.name, mode=s.mode, type=s.type, key_type=s.key_type or None)
        for s in world.schemas
    )
    fields = {
        "uid": "op",
        "start": start,
        "end": end,
        "epoch": 1,
        "max_parallelism": 12,
        "key_types": ("string",),
        "states": (StateMeta(name="seen", kind="value", type="bigint"),),
        "operator_states": metas,
    }
    return CanonicalSpec(**(fields | changes))


def test_a_database_is_the_same_after_an_export_and_an_import(
    world, database, new_database, tmp_path
):
    copy = new_database("copy")
    for start, end in ((0, 5), (6, 11)):
        folder = tmp_path / f"{start}"
        folder.mkdir()
        files = export_range(database, spec_of(world, start, end), folder)
        assert "_operator.seen.parquet" in {file.name for file in files}
        places = [(file.path, file.name) for file in files]
        # A restore may cut a file elsewhere than at its range.
        for first, last in ((start, start), (start + 1, end)):
            for frame in frames_of(places, first, last):
                copy.apply([frame])
    assert stored(copy) == stored(database)
    assert len(stored(copy)) > 12


def test_rows_say_which_subtask_had_them_and_have_no_key(world, database, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    export_range(database, spec_of(world, 0, 11), folder)
    with CanonicalFile(folder / file_name("_operator.n")) as file:
        found = [row for batch in file.batches(0, 11) for row in batch.to_pylist()]
    assert [list(row) for row in found] == [
        ["key_group", "list_epoch", "list_ordinal", "value"]
    ] * 2
    assert [(row["key_group"], row["list_epoch"], row["value"]) for row in found] == [
        (0, 1, 0),
        (6, 1, 1),
    ]
    with CanonicalFile(folder / file_name("_operator.rules")) as file:
        found = [row for batch in file.batches(6, 11) for row in batch.to_pylist()]
    assert [(r["key_group"], r["map_key"], r["value"]["limit"]) for r in found] == [
        (6, "a", 1),
        (6, "b", 2),
    ]


def test_one_state_can_be_read_by_itself(world, database):
    metas = spec_of(world, 0, 11).metas()
    rows = scan_rows(database, metas, [(0, 11)], states={"_raw_keyed"})
    found = [row for _, batch in rows for row in batch.to_pylist()]
    assert [(r["key_group"], r["piece"], r["value"]) for r in found] == [
        (5, 0, b"\0raw\xff"),
        (11, 0, b"\0raw\xff"),
    ]


@pytest.mark.parametrize("missing", ["seen", "_raw_keyed"])
def test_what_was_not_declared_is_damage(world, database, missing):
    kept = tuple(m for m in spec_of(world, 0, 11).operator_states if m.name != missing)
    metas = spec_of(world, 0, 11, operator_states=kept).metas()
    with pytest.raises(CorruptState, match="operator state not declared"):
        list(scan_rows(database, metas, [(0, 11)]))


def test_a_database_of_an_operator_that_declares_none_may_have_none(world, database):
    metas = spec_of(world, 0, 11, operator_states=()).metas()
    with pytest.raises(CorruptState, match="unknown kind"):
        list(scan_rows(database, metas, [(0, 11)]))
