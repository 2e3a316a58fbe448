import shutil

import pytest
from moorage_testing.lineages import SmallJob
from msgspec.structs import replace

from moorage.offline.difference import diff
from moorage.offline.lookup import find
from moorage.offline.savepoint_copy import copy
from moorage.offline.state_difference import compare
from moorage.state import OperatorTables, Snapshot, write_savepoint
from moorage.state.snapshot_path import Found
from moorage_state.errors import UserError
from moorage_state.server.operations import SnapshotWay
from moorage_state.snapshots import (
    CheckpointStore,
    LineageLog,
    LogWriter,
    Manifest,
    Owner,
    StateMeta,
)
from moorage_state.stores import open_store


def changed(found: Found, **changes: object) -> Found:
    """The snapshot with another manifest."""
    manifest: Manifest = replace(found.snapshot.manifest, **changes)
    return Found(Snapshot(found.snapshot.path, found.snapshot.store_url, manifest), found.store)


def facts(before: Found, after: Found) -> dict[str, tuple[object, object]]:
    return {c.what: (c.before, c.after) for c in diff(before, after).changes}


def test_a_snapshot_does_not_differ_from_itself(directory):
    one = find(str(directory))
    found = diff(one, one)
    assert found.changes == []
    assert (found.files.both, found.files.only_before, found.files.only_after) == (14, 0, 0)
    assert found.files.both_bytes == sum(f.size for f in one.snapshot.manifest.files)


def test_checkpoints_differ_in_their_offsets_and_new_files(directory):
    one, other = find(str(directory), "chk-2"), find(str(directory), "chk-3")
    found = facts(one, other)
    assert found["checkpoint"] == (2, 3)
    assert found["source files.in"] == ("offset 2", "offset 3")
    shared = diff(one, other).files
    assert shared.both > 0
    assert shared.both + shared.only_after == len(other.snapshot.manifest.files)
    assert diff(one, other).same_lineage


def test_operators_and_states_that_come_go_and_change_are_named(directory):
    one = find(str(directory))
    operator = one.snapshot.manifest.operators["visits"]
    states = [
        replace(operator.states[0], type="bigint"),
        StateMeta(name="extra", kind="map", type="int", key_type="string"),
        *operator.states[2:],
    ]
    other = changed(
        one,
        operators={"visits": replace(operator, states=states), "clicks": operator},
        watermarks={"in": None},
        sinks={},
    )
    found = facts(one, other)
    assert found["operator clicks"] == (None, "parallelism 2, states: visit, pages, by_day")
    visit = "value struct<n:bigint,at:timestamp,note:string>"
    assert found["operator visits state visit"] == (visit, "value bigint")
    assert found["operator visits state extra"] == (None, "map string -> int")
    assert found["operator visits state pages"] == ("list string", None)
    assert found["staged output out"] == (1, None)
    assert "watermark in" in found


def test_a_copy_differs_in_its_kind_alone(directory, tmp_path):
    copy(find(str(directory)), str(tmp_path / "sp"), progress=lambda *_: None)
    found = diff(find(str(directory)), find(str(tmp_path / "sp")))
    assert [c.what for c in found.changes] == ["kind"]
    assert found.files.only_after == 0


@pytest.mark.parametrize("state", ["visit", "pages", "by_day", "_timers"])
def test_no_key_differs_between_native_and_canonical_files(directory, tmp_path, state):
    write_savepoint(tmp_path / "sp", {"visits": OperatorTables()}, base=directory)
    found = compare(find(str(directory)), find(str(tmp_path / "sp")), f"visits/{state}")
    assert (found.added, found.removed, found.changed) == (0, 0, 0)
    assert found.same > 0


def test_keys_that_come_go_and_change_are_counted(directory):
    one, other = find(str(directory), "chk-2"), find(str(directory), "chk-3")
    forth = compare(one, other, "visits/visit")
    assert (forth.added, forth.removed, forth.changed, forth.same) == (1, 0, 0, 40)
    back = compare(other, one, "visits/visit")
    assert (back.added, back.removed) == (0, 1)


@pytest.mark.parametrize(
    ("state", "expected"), [("visit", 2), ("pages", 2), ("by_day", 0), ("_timers", 0)]
)
def test_only_keys_with_other_content_are_changed(tmp_path, state, expected):
    with SmallJob(tmp_path / "dir", tmp_path / "scratch") as job:
        job.visit(range(40))
        job.checkpoint()
        job.visit([1, 3], note="again")
        job.checkpoint()
    one, other = find(str(tmp_path / "dir"), "chk-1"), find(str(tmp_path / "dir"), "chk-2")
    found = compare(one, other, f"visits/{state}")
    assert (found.added, found.removed, found.changed) == (0, 0, expected)


def test_keys_of_a_state_of_another_type_are_not_compared(directory):
    one = find(str(directory))
    operator = one.snapshot.manifest.operators["visits"]
    states = [replace(operator.states[0], type="bigint"), *operator.states[1:]]
    other = changed(one, operators={"visits": replace(operator, states=states)})
    with pytest.raises(UserError, match=r"changed its type.*leave --state out"):
        compare(one, other, "visits/visit")


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Checkpoints 2 and 3 list the copy of the first one, 4 lists that of 3; 5 is whole."""
    home = tmp_path_factory.mktemp("logged")
    with SmallJob(home / "dir", home / "scratch") as job:
        ways: list[SnapshotWay] = ["log", "log", "log and copy", "log", "copy"]
        for number, way in enumerate(ways):
            job.visit(range(5 * number, 40 + number))
            job.way = way
            job.checkpoint()
            if way == "log and copy":
                job.materialize()
    return home / "dir"


def test_checkpoints_that_list_deltas_are_what_their_manifests_say(logged):
    found = [find(str(logged), f"chk-{n}").snapshot.manifest.handles for n in range(1, 6)]
    assert [[len(h.deltas) for h in handles] for handles in found] == [
        [0, 0],
        [1, 1],
        [2, 2],
        [1, 1],
        [0, 0],
    ]


@pytest.mark.parametrize("state", ["visit", "pages", "by_day", "_timers"])
def test_a_checkpoint_that_lists_deltas_is_read_as_one_that_is_whole(logged, tmp_path, state):
    with SmallJob(tmp_path / "dir", tmp_path / "scratch") as job:
        for number in range(4):
            job.visit(range(5 * number, 40 + number))
        job.checkpoint()
    found = compare(find(str(tmp_path / "dir")), find(str(logged), "chk-4"), f"visits/{state}")
    assert (found.added, found.removed, found.changed) == (0, 0, 0)
    assert found.same > 0


def test_a_copy_of_a_checkpoint_that_lists_deltas_is_whole_in_its_own_directory(logged, tmp_path):
    copy(find(str(logged), "chk-3"), str(tmp_path / "sp"), progress=lambda *_: None)
    found = compare(find(str(logged), "chk-3"), find(str(tmp_path / "sp")), "visits/visit")
    assert (found.added, found.removed, found.changed) == (0, 0, 0)


def test_deltas_go_with_the_last_checkpoint_that_lists_them(logged, tmp_path):
    shutil.copytree(logged, tmp_path / "dir")
    store = open_store(f"file://{tmp_path / 'dir'}")
    checkpoints = CheckpointStore(store)
    entries = [entry for _, entry in LineageLog.open(store).read()]
    loaded = {n: checkpoints.load_id(entries, n) for n in range(1, 6)}
    writer = LogWriter.claim(store, Owner("here", "default", "flights", "uid-1"), "pid 8")
    for keep in (4, 3, 2, 1):
        checkpoints.retire(writer, keep)
        needed = set().union(*(loaded[n].keys for n in range(6 - keep, 6)))
        there = {info.key for info in store.list("shared/")}
        assert there == {key for key in needed if key.startswith("shared/")}
