from pathlib import Path

import pytest

from moorage.offline import verification
from moorage.offline.export import export
from moorage.offline.lookup import find
from moorage.offline.savepoint_copy import copy
from moorage.offline.state_difference import compare
from moorage.offline.state_queries import count, get
from moorage.offline.verification import verify
from moorage_state.errors import CorruptState, UserError
from moorage_state.snapshots import CheckpointStore, LogWriter, Owner, Retire
from moorage_state.stores import open_store

KINDS = ("apart", "packed", "inline")


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def object_of(directory: Path, checkpoint: str) -> Path:
    """A file of state of one checkpoint, the last of its keys."""
    manifest = find(str(directory), checkpoint).snapshot.manifest
    return directory / max(file.key for file in manifest.files)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("full", [False, True])
def test_what_is_whole_is_found_whole(new_directory, kind, full):
    directory = new_directory(kind)
    verdict = verify(str(directory), full=full)
    assert verdict.damage == ()
    assert verdict.snapshots == ("chk-2", "chk-3")
    assert verdict.log_entries == 7


def test_the_progress_ends_at_all_bytes(directory):
    steps: list[tuple[int, int]] = []
    verdict = verify(str(directory), full=True, progress=lambda *step: steps.append(step))
    assert sum(more for more, _ in steps) == verdict.bytes
    assert {total for _, total in steps} == {verdict.bytes}


@pytest.mark.parametrize("kind", ["apart", "packed"])
def test_a_changed_byte_is_found_by_reading_all_of_them(new_directory, kind):
    directory = new_directory(kind)
    flip(object_of(directory, "chk-3"))
    assert verify(str(directory)).damage == ()
    (damage,) = verify(str(directory), full=True).damage
    assert damage.path == f"file://{object_of(directory, 'chk-3')}"
    assert "does not match its checksum" in damage.problem


def test_every_damaged_slice_of_a_pack_is_named(new_directory):
    directory = new_directory("packed")
    manifest = find(str(directory)).snapshot.manifest
    pack = object_of(directory, "chk-3")
    offsets = sorted(f.offset for f in manifest.files if directory / f.key == pack)
    for offset in offsets:
        flip(pack, offset)
    problems = [one.problem for one in verify(str(directory / "chk-3"), full=True).damage]
    assert [f"at offset {offset}," in " ".join(problems) for offset in offsets] == [True] * len(
        offsets
    )


def test_a_large_object_is_read_in_pieces(directory, monkeypatch):
    monkeypatch.setattr(verification, "_CHUNK_BYTES", 100)
    assert verify(str(directory), full=True).damage == ()
    flip(object_of(directory, "chk-3"))
    assert len(verify(str(directory), full=True).damage) == 1


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, not"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes, not"),
    ],
)
def test_missing_and_shortened_objects_are_found_without_reading(directory, damage, problem):
    path = object_of(directory, "chk-2")
    damage(path)
    (found,) = verify(str(directory)).damage
    assert found.path == f"file://{path}"
    assert problem in found.problem
    assert found.needed_by == ("chk-2", "chk-3"), "a shared file"


def test_all_that_is_damaged_is_named_not_only_the_first(directory):
    (directory / "chk-2" / "MANIFEST").unlink()
    object_of(directory, "chk-3").unlink()
    problems = {(one.path, one.needed_by) for one in verify(str(directory)).damage}
    assert (f"file://{directory}/chk-2/MANIFEST", ("chk-2",)) in problems
    assert len(problems) == 2


def test_the_log_is_checked_entry_by_entry(directory):
    entry = directory / "log" / f"{2:020d}.json"
    flip(entry, 40)
    (directory / "log" / f"{5:020d}.json").unlink()
    damage = verify(str(directory)).damage
    assert [(one.path, one.problem) for one in damage] == [
        (f"file://{entry}", "log entry does not match its checksum"),
        (f"file://{directory}/log/{5:020d}.json", "log entry is missing"),
    ]


def test_a_log_that_is_gone_is_damage(directory):
    for path in (directory / "log").iterdir():
        path.unlink()
    (found,) = verify(str(directory)).damage
    assert "the log is missing beside checkpoints" in found.problem


def test_one_checkpoint_is_not_judged_by_another(directory):
    (directory / "chk-2" / "MANIFEST").unlink()
    assert verify(str(directory), "chk-3", full=True).damage == ()


def test_a_savepoint_is_verified_by_itself(directory, tmp_path):
    copy(find(str(directory)), str(tmp_path / "sp"), progress=lambda *_: None)
    assert verify(str(tmp_path / "sp"), full=True).damage == ()
    flip(next((tmp_path / "sp" / "state" / "visits" / "0-7").iterdir()))
    (damage,) = verify(str(tmp_path / "sp"), full=True).damage
    assert damage.needed_by == ("sp",)


def retire(directory: Path) -> None:
    """Retire chk-2 as a job does that runs."""
    store = open_store(f"file://{directory}")
    writer = LogWriter.claim(store, Owner("here", "default", "flights", "uid-1"), "me")
    writer.append(Retire(writer.fence, 2))
    kept = find(str(directory), "chk-3").snapshot.manifest.keys
    for path in (*directory.glob("chk-2/**/*"), *directory.glob("shared/**/*")):
        if path.is_file() and str(path.relative_to(directory)) not in kept:
            path.unlink()


def test_what_a_running_job_retires_meanwhile_is_no_damage(directory, monkeypatch):
    """The retirement happens after the log was read, before the objects are looked at."""
    original = verification._check_objects

    def check(store, objects, progress, *, full):
        retire(directory)
        return original(store, objects, progress, full=full)

    monkeypatch.setattr(verification, "_check_objects", check)
    assert verify(str(directory)).damage == ()
    with pytest.raises(UserError, match="no such checkpoint"):
        verify(str(directory / "chk-2"))


RETIRED = "the job has retired this checkpoint meanwhile: .*/chk-2; choose"


def test_one_checkpoint_that_is_retired_meanwhile_is_told_so(directory, monkeypatch):
    original = verification._check_objects

    def check(store, objects, progress, *, full):
        retire(directory)
        return original(store, objects, progress, full=full)

    monkeypatch.setattr(verification, "_check_objects", check)
    with pytest.raises(UserError, match=RETIRED):
        verify(str(directory), "chk-2")


@pytest.mark.parametrize(
    "read",
    [
        lambda found, path: copy(found, str(path / "sp"), progress=lambda *_: None),
        lambda found, path: export(found, "visits/visit", path / "out.jsonl"),
        lambda found, _: count(found, "visits/visit"),
        lambda found, _: get(found, "visits/visit", "user-3"),
        lambda found, _: compare(found, found, "visits/visit"),
    ],
)
def test_who_reads_a_checkpoint_that_is_retired_meanwhile_is_told_so(directory, tmp_path, read):
    found = find(str(directory), "chk-2")
    retire(directory)
    with pytest.raises(UserError, match=RETIRED):
        read(found, tmp_path)


def test_a_checkpoint_that_is_retired_while_it_is_found_is_told_so(directory, monkeypatch):
    load = CheckpointStore.load

    def loaded(store, entry):
        if entry.checkpoint_id == 2:
            retire(directory)
        return load(store, entry)

    monkeypatch.setattr(CheckpointStore, "load", loaded)
    with pytest.raises(UserError, match=RETIRED):
        find(str(directory), "chk-2")


def test_there_must_be_something_to_verify(tmp_path):
    with pytest.raises(UserError, match="no checkpoint and no savepoint here"):
        verify(str(tmp_path))
    with pytest.raises(UserError, match="does not exist"):
        verify(str(tmp_path / "gone"))


def test_a_savepoint_whose_manifest_is_damaged_is_an_error_that_names_it(tmp_path):
    (tmp_path / "MANIFEST").write_text("broken")
    with pytest.raises(CorruptState, match=r"/MANIFEST; use another savepoint"):
        verify(str(tmp_path))
