"""Operator state in savepoints: listed, read, exported, kept by who writes another one."""

import pytest
from moorage_testing.manifests import checkpoint_manifest
from msgspec.structs import replace

from moorage.offline.difference import diff
from moorage.offline.export import export
from moorage.offline.state_queries import count, get, list_states
from moorage.state import OperatorTables, read, write_savepoint
from moorage.state import list_states as states_of
from moorage.state.snapshot_path import Found, locate
from moorage_state.canonical import CanonicalSpec, export_range, handle_of, upload_files
from moorage_state.deltas import decode_frame
from moorage_state.descriptors import ListStateDescriptor, MapStateDescriptor
from moorage_state.errors import Bug, UserError
from moorage_state.rocks import Database, ProcessMemory, RocksOptions
from moorage_state.snapshots import (
    OperatorState,
    OperatorStateMeta,
    SavepointStore,
    encode_manifest,
)
from moorage_state.stores import open_store

_MIB = 1 << 20
SMALL = RocksOptions(
    block_cache_bytes=16 * _MIB, write_buffers_bytes=16 * _MIB, write_buffer_bytes=4 * _MIB
)
SEEN = ListStateDescriptor("seen", "string")
RULES = MapStateDescriptor("rules", "string", "bigint")


def work(subtask, number):
    subtask.states.get_list_state(SEEN).add_all([f"{number}{letter}" for letter in "abc"])
    subtask.states.get_broadcast_state(RULES).put("factor", 5)
    out = subtask.raw.keyed_output()
    out.start_new_key_group(out.get_key_group_list()[0])
    out.write(b"raw")


@pytest.fixture
def savepoint(world, tmp_path):
    """A canonical savepoint of two subtasks; its address."""
    world.run(work)
    database = Database(tmp_path / "db", SMALL, ProcessMemory(SMALL))
    database.apply([decode_frame(frame) for frame in world.frames])
    url = f"file://{tmp_path}/first"
    target = SavepointStore(url, create=True)
    target.begin("attempt")
    metas = [
        OperatorStateMeta(name=s.name, mode=s.mode, type=s.type, key_type=s.key_type or None)
        for s in world.schemas
    ]
    handles = []
    for groups in world.ranges:
        spec = CanonicalSpec(
            uid="op",
            start=groups.start,
            end=groups.end,
            epoch=1,
            max_parallelism=12,
            key_types=("string",),
            states=(),
            operator_states=tuple(metas),
        )
        folder = tmp_path / f"files-{groups.start}"
        folder.mkdir()
        made = export_range(database, spec, folder)
        handles.append(handle_of(spec, upload_files(made, spec, target.store)))
    database.close()
    operator = OperatorState(
        parallelism=2, key_types=["string"], states=[], subtasks=handles, operator_states=metas
    )
    target.create(
        checkpoint_manifest(
            "l", 1, kind="savepoint", name="first", max_parallelism=12, operators={"op": operator}
        )
    )
    return url


def seen_in(path):
    rows = read(path, "op", "_operator.seen").to_pylist()
    return [(row["key_group"], row["value"]) for row in rows]


ALL_SEEN = [(0, "0a"), (0, "0b"), (0, "0c"), (6, "1a"), (6, "1b"), (6, "1c")]


def found_at(path):
    return Found(locate(path), open_store(path))


def test_operator_states_are_listed_beside_keyed_ones_and_read_as_tables(savepoint):
    listed = [(s.state, s.kind, s.type, s.key_type, s.key_types) for s in states_of(savepoint)]
    assert listed == [
        ("_raw_keyed", "raw_keyed", "binary", None, ()),
        ("_operator.rules", "broadcast", "bigint", "string", ()),
        ("_operator.seen", "split", "string", None, ()),
        ("_timers", "timers", "bigint", None, ("string",)),
    ]
    assert seen_in(savepoint) == ALL_SEEN
    rules = read(savepoint, "op", "_operator.rules").to_pylist()
    assert [(r["key_group"], r["map_key"], r["value"]) for r in rules] == [
        (0, "factor", 5),
        (6, "factor", 5),
    ]
    raw = read(savepoint, "op", "_raw_keyed").to_pylist()
    assert [(r["key_group"], r["value"]) for r in raw] == [(0, b"raw"), (6, b"raw")]


def test_a_key_of_operator_state_is_asked_for_in_vain(savepoint):
    with pytest.raises(UserError, match="belongs to subtasks and to no key"):
        read(savepoint, "op", "_operator.seen", keys=["a"])


@pytest.mark.parametrize(
    ("parallelism", "owners", "starts"),
    [(None, [], [0, 6]), (2, [], [0, 6]), (3, [0, 6], [0, 4, 8]), (1, [0, 6], [0])],
)
def test_who_writes_a_savepoint_keeps_it_and_says_whose_it_was(
    savepoint, tmp_path, parallelism, owners, starts
):
    written = write_savepoint(
        tmp_path / "second", {"op": OperatorTables()}, base=savepoint, parallelism=parallelism
    )
    operator = locate(written).manifest.operators["op"]
    assert [handle.start for handle in operator.subtasks] == starts
    assert operator.owners == owners
    assert operator.operator_state_owners == [0, 6]
    assert seen_in(written) == ALL_SEEN


def test_operator_state_can_be_dropped_by_its_name(savepoint, tmp_path):
    tables = OperatorTables(drop=["_operator.seen"])
    written = write_savepoint(tmp_path / "second", {"op": tables}, base=savepoint)
    names = [state.state for state in states_of(written)]
    assert names == ["_raw_keyed", "_operator.rules", "_timers"]
    tables = OperatorTables(drop=["_operator.nothing"])
    with pytest.raises(UserError, match="cannot drop these states"):
        write_savepoint(tmp_path / "third", {"op": tables}, base=savepoint)


def test_the_command_lines_functions_know_it(savepoint, tmp_path):
    found = found_at(savepoint)
    rows = {row.state: (row.kind, row.bytes is not None) for row in list_states(found)}
    assert rows["_operator.seen"] == ("split", True)
    (counted,) = count(found, "op/_operator.seen")
    assert counted.rows == 6
    with pytest.raises(UserError, match="export it instead"):
        get(found, "op/_operator.seen", "a")
    done = export(found, "op/_operator.seen", tmp_path / "seen.csv")
    assert done.rows == 6
    assert (tmp_path / "seen.csv").read_text().splitlines()[1] == "0,1,0,0a"
    for state in ("_operator.rules", "_raw_keyed"):
        assert export(found, f"op/{state}", tmp_path / f"{state}.jsonl").rows == 2


def test_a_difference_between_savepoints_names_it(savepoint, tmp_path):
    tables = OperatorTables(drop=["_operator.rules"])
    written = write_savepoint(tmp_path / "second", {"op": tables}, base=savepoint)
    changes = str(diff(found_at(savepoint), found_at(written)))
    assert "_operator.rules" in changes
    assert "broadcast string -> bigint" in changes


def test_owners_must_be_key_groups_in_order(savepoint):
    manifest = locate(savepoint).manifest
    for owners in ([6, 0], [0, 0], [0, 12]):
        operator = replace(manifest.operators["op"], owners=owners)
        with pytest.raises(Bug, match="owners out of place"):
            encode_manifest(replace(manifest, operators={"op": operator}))
