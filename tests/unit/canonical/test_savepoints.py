"""A savepoint's directory: one writer, one manifest, nothing outside of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from moorage_testing.manifests import checkpoint_manifest
from msgspec.structs import replace

from moorage_state.errors import AlreadyExists, Bug, CorruptState, UserError
from moorage_state.snapshots import (
    FileRef,
    Manifest,
    OperatorState,
    RangeHandle,
    SavepointStore,
    savepoint_key,
)

Make = Callable[[SavepointStore], Manifest]


@pytest.fixture
def savepoint(tmp_path: Path) -> SavepointStore:
    return SavepointStore(f"file://{tmp_path}/sp-1", create=True)


@pytest.fixture
def make() -> Make:
    def made(savepoint: SavepointStore) -> Manifest:
        key = savepoint_key("visits", 0, 15, "visit.parquet")
        savepoint.store.put(key, b"bytes")
        digest = "277089d91c0bdf4f2e6862ba7e4a07605119431f5d13f726dd352b06f1b206a9"
        file = FileRef(name="visit.parquet", key=key, size=5, sha256=digest, shared=False)
        handle = RangeHandle(
            uid="visits",
            start=0,
            end=15,
            epoch=7,
            digest="",
            backend_uuid="",
            files=[file],
            bytes_total=5,
            format="canonical",
        )
        operator = OperatorState(parallelism=1, key_types=["string"], states=[], subtasks=[handle])
        return checkpoint_manifest(
            "l",
            1,
            kind="savepoint",
            name="sp-1",
            epoch=7,
            max_parallelism=16,
            operators={"visits": operator},
        )

    return made


def test_what_is_created_is_loaded_and_verified(savepoint: SavepointStore, make: Make) -> None:
    savepoint.begin("a")
    manifest = make(savepoint)
    digest = savepoint.create(manifest)
    assert savepoint.load(digest) == manifest
    assert savepoint.verify(full=True) == manifest


def test_a_repeated_step_after_a_lost_reply_is_harmless(
    savepoint: SavepointStore, make: Make
) -> None:
    savepoint.begin("a")
    savepoint.begin("a")
    manifest = make(savepoint)
    savepoint.begin("a")
    assert savepoint.create(manifest) == savepoint.create(manifest)


def test_a_second_writer_is_refused_before_it_writes(savepoint: SavepointStore) -> None:
    savepoint.begin("a")
    with pytest.raises(UserError, match=r"not empty.*ATTEMPT"):
        SavepointStore(savepoint.url).begin("b")


def test_of_two_writers_that_found_it_empty_one_begins(
    savepoint: SavepointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SavepointStore(savepoint.url)
    monkeypatch.setattr(other, "check_empty", lambda: None)
    savepoint.begin("a")
    with pytest.raises(AlreadyExists):
        other.begin("b")


def test_a_directory_with_other_things_in_it_is_refused(savepoint: SavepointStore) -> None:
    savepoint.store.put("notes.txt", b"mine")
    with pytest.raises(UserError, match=r"notes\.txt.*choose another name"):
        savepoint.begin("a")


def test_another_savepoint_is_never_written_over(savepoint: SavepointStore, make: Make) -> None:
    manifest = make(savepoint)
    savepoint.create(manifest)
    with pytest.raises(UserError, match="a savepoint exists"):
        savepoint.create(replace(manifest, job_name="other"))
    assert savepoint.load() == manifest
    with pytest.raises(UserError, match="found='a savepoint'"):
        savepoint.check_empty()


def test_no_savepoint_and_one_that_was_never_completed_are_told_apart(
    savepoint: SavepointStore,
) -> None:
    with pytest.raises(UserError, match="no savepoint here"):
        savepoint.load()
    savepoint.begin("a")
    with pytest.raises(UserError, match="never completed"):
        savepoint.load()


def test_a_checkpoint_is_no_savepoint(savepoint: SavepointStore, make: Make) -> None:
    manifest = make(savepoint)
    with pytest.raises(Bug, match="not the manifest of a savepoint"):
        savepoint.create(replace(manifest, kind="checkpoint", name=""))


def test_a_file_of_a_lineage_cannot_be_part_of_it(savepoint: SavepointStore, make: Make) -> None:
    manifest = make(savepoint)
    operator = manifest.operators["visits"]
    handle = operator.subtasks[0]
    outside = replace(handle.files[0], key="shared/b-1.sst-0123", shared=True)
    handles = [replace(handle, files=[outside])]
    foreign = replace(manifest, operators={"visits": replace(operator, subtasks=handles)})
    with pytest.raises(Bug, match="references an object of a checkpoint"):
        savepoint.create(foreign)


@pytest.mark.parametrize(
    ("damage", "full"), [(b"", False), (None, False), (b"other", True)], ids=repr
)
def test_a_file_that_is_damaged_is_found(
    savepoint: SavepointStore, make: Make, damage: bytes | None, *, full: bool
) -> None:
    manifest = make(savepoint)
    savepoint.create(manifest)
    key = manifest.files[0].key
    if damage is None:
        savepoint.store.delete(key)
    else:
        savepoint.store.put(key, damage)
    with pytest.raises(CorruptState, match=r"visit\.parquet"):
        savepoint.verify(full=full)


def test_a_damaged_manifest_is_refused(savepoint: SavepointStore, make: Make) -> None:
    digest = savepoint.create(make(savepoint))
    data = savepoint.store.get("MANIFEST")
    savepoint.store.put("MANIFEST", data.replace(b"clicks", b"cl1cks"))
    with pytest.raises(CorruptState, match="checksum"):
        savepoint.load()
    savepoint.store.put("MANIFEST", data)
    with pytest.raises(CorruptState, match="not the one that was written"):
        savepoint.load("sha256:" + "0" * 64)
    savepoint.load(digest)
