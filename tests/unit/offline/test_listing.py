import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from moorage.cli.snapshots import show_listing
from moorage.offline.listing import list_snapshots
from moorage.offline.lookup import directories_of, find
from moorage.offline.savepoint_copy import copy
from moorage_state.errors import CorruptState, UserError
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    LineageLog,
    LogWriter,
    Owner,
    Retire,
    log,
)
from moorage_state.stores import open_store

OWNER = Owner("here", "default", "flights", "uid-1")


def ls(path, now, **options):
    return list_snapshots(directories_of(str(path)), now, **options)


def test_every_checkpoint_is_listed_with_what_it_costs(directory, now):
    found = ls(directory, now)
    assert [(row.path, row.standing) for row in found.checkpoints] == [
        ("chk-2", "retained"),
        ("chk-3", "restore point"),
    ]
    older, newer = found.checkpoints
    assert older.new_bytes is None, "its predecessor is gone, so nothing is known of it"
    manifest = find(str(directory / "chk-3")).snapshot.manifest
    assert newer.bytes == sum(file.size for file in manifest.files)
    old_keys = find(str(directory / "chk-2")).snapshot.manifest.keys
    assert newer.new_bytes == sum(f.size for f in manifest.files if f.key not in old_keys)
    assert newer.age_seconds == (now - newer.completed_at).total_seconds()
    assert not found.warnings


def test_unfinished_and_not_deleted_checkpoints_are_told_apart(directory, now):
    (directory / "chk-1" / "f1r0").mkdir(parents=True)
    (directory / "chk-1" / "f1r0" / "pack-a-0-3").write_bytes(b"abc")
    shutil.copytree(directory / "chk-3", directory / "chk-9")
    standings = {row.path: row.standing for row in ls(directory, now).checkpoints}
    assert standings == {
        "chk-1": "retired",
        "chk-2": "retained",
        "chk-3": "restore point",
        "chk-9": "unfinished",
    }
    assert ls(directory, now).checkpoints[0].own_bytes == 3


def test_the_whole_history_is_shown_on_request(directory, now):
    found = ls(directory, now, history=True)
    assert [row.kind for row in found.history or ()] == [
        "owner",
        "fence",
        "run",
        "checkpoint",
        "checkpoint",
        "checkpoint",
        "retire",
    ]
    assert found.checkpoints[0].standing == "gone"
    assert ls(directory, now).history is None


def test_the_history_is_shown_where_the_log_was_put_together(directory, now, monkeypatch):
    monkeypatch.setattr(log, "COMPACT_EVERY", 1)
    writer = LogWriter.claim(open_store(f"file://{directory}"), OWNER, "me")
    writer.compact()
    found = ls(directory, now, history=True)
    rows = {row.kind: row for row in found.history or ()}
    assert {"owner", "checkpoint", "compacted"} <= set(rows)
    assert rows["compacted"].fields == {"fence": writer.fence, "base": 0, "cleared": 0}
    show_listing(found)


def test_a_damaged_manifest_is_a_row_with_its_problem(directory, now):
    (directory / "chk-2" / "MANIFEST").write_bytes(b"MOORAGE-MANIFEST?")
    damaged, whole = ls(directory, now).checkpoints
    assert "does not match its checksum" in damaged.problem
    assert damaged.bytes is None
    assert whole.problem == ""


def test_what_a_running_job_retires_meanwhile_is_listed_as_retired(directory, now, monkeypatch):
    load = CheckpointStore.load

    def loaded(store, entry):
        path = directory / entry.manifest_key
        if entry.checkpoint_id == 2 and path.exists():
            writer = LogWriter.claim(store.objects, OWNER, "me")
            writer.append(Retire(writer.fence, 2))
            path.unlink()
        return load(store, entry)

    monkeypatch.setattr(CheckpointStore, "load", loaded)
    rows = ls(directory, now).checkpoints
    assert [(row.path, row.standing, row.problem) for row in rows] == [
        ("chk-2", "retired", ""),
        ("chk-3", "restore point", ""),
    ]


def test_a_damaged_log_is_an_error(directory, now):
    (directory / "log" / f"{3:020d}.json").unlink()
    with pytest.raises(CorruptState, match="log entry is missing"):
        ls(directory, now)


def test_savepoints_are_listed_among_other_things(directory, tmp_path, now):
    saves = tmp_path / "saves"
    for name in ("sp-1", "sp-10", "sp-1.x"):
        copy(find(str(directory)), str(saves / name), progress=lambda *_: None)
    Path(saves, "begun").mkdir()
    Path(saves, "begun", "ATTEMPT").write_text("a")
    Path(saves, "other").mkdir()
    Path(saves, "other", "file").write_text("a")
    Path(saves, "notes.txt").write_text("a")
    Path(saves, "sp-10", "MANIFEST").write_text("broken")
    found = ls(saves, now)
    assert [(row.name, row.standing) for row in found.savepoints] == [
        ("begun", "unfinished"),
        ("sp-1.x", "completed"),
        ("sp-1", "completed"),
        ("sp-10", "damaged"),
    ]
    assert found.savepoints[2].format == "native"
    assert found.savepoints[2].epoch == 3


def test_an_empty_place_is_told_from_a_foreign_and_a_missing_one(tmp_path, now):
    found = ls(tmp_path, now)
    assert "nothing is stored here yet" in found.warnings[0]
    assert found.codes == ["nothing_stored"]
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"neither.*found=notes.txt.*name the checkpointDir"):
        ls(tmp_path, now)
    with pytest.raises(UserError, match="does not exist"):
        ls(tmp_path / "gone", now)


def test_one_snapshot_is_no_directory_of_them(directory, tmp_path, now):
    copy(find(str(directory)), str(tmp_path / "sp"), progress=lambda *_: None)
    for path in (tmp_path / "sp", directory / "chk-3"):
        with pytest.raises(UserError, match="list the directory above it"):
            ls(path, now)


def test_a_missing_savepoint_directory_does_not_hide_the_checkpoints(directory, now):
    directories = directories_of(str(directory))
    both = type(directories)(directories.checkpoints, f"file://{directory}-saves")
    found = list_snapshots(both, now)
    assert len(found.checkpoints) == 2
    assert found.notes == [f"no savepoints yet: savepointDir={both.savepoints}"]
    assert found.warnings == []
    gone = type(directories)(directories.checkpoints, f"file://{directory}/nas/saves")
    found = list_snapshots(gone, now)
    assert "no savepoints listed: " in found.warnings[0]
    assert found.codes == ["savepoints_not_listed"]


def test_a_lineage_whose_checkpoints_are_all_retired_is_listed_with_a_warning(directory, now):
    store = open_store(f"file://{directory}")
    writer = LogWriter.claim(store, OWNER, "me")
    for number in (2, 3):
        writer.append(Retire(writer.fence, number))
    found = ls(directory, now)
    assert {row.standing for row in found.checkpoints} == {"retired"}
    assert "every checkpoint of this lineage was retired" in found.warnings[0]
    assert found.codes == ["restore_point_retired"]


def test_the_rows_are_those_that_the_log_names(directory, now):
    store = open_store(f"file://{directory}")
    entries = [entry for _, entry in LineageLog.open(store).read()]
    named = [e for e in entries if isinstance(e, Checkpoint)][1:]
    rows = ls(directory, now).checkpoints
    assert [(r.epoch, r.completed_at, r.fence) for r in rows] == [
        (e.epoch, e.completed_at, e.fence) for e in named
    ]
    assert rows[0].files == len(CheckpointStore(store).load(named[0]).files)


def test_what_the_driver_says_of_a_checkpoint_is_read_in_one_way(directory, now, monkeypatch):
    server = {"place": "host:1", "seconds": 0.25, "objects": 3, "bytes_written": 2048}
    said = {"pause_seconds": 0.5, "upload_seconds": 1.5, "servers": [server, server]}
    plain, load = ls(directory, now).checkpoints, CheckpointStore.load

    def rows(times):
        def loaded(store, entry):
            return replace(load(store, entry), extra={"times": times})

        monkeypatch.setattr(CheckpointStore, "load", loaded)
        return ls(directory, now).checkpoints

    newer = rows(said)[1]
    assert (newer.new_bytes, newer.times.upload_seconds) == (4096, 1.5)
    for other in (None, {}, said | {"upload_seconds": "long"}, said | {"servers": [{}]}):
        assert rows(other) == plain, "as of a release that does not say it so"
