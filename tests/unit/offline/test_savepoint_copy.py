import shutil
import tempfile
from pathlib import Path

import pytest

import moorage.state
from moorage.offline.lookup import find
from moorage.offline.savepoint_copy import copy
from moorage.offline.verification import verify
from moorage_state.errors import CorruptState, LocalDiskError, StoreUnavailable, UserError
from moorage_state.snapshots import savepoints
from moorage_state.stores import LocalStore, MemoryStore


def quiet(_more: int, _total: int) -> None:
    pass


@pytest.mark.parametrize("kind", ["apart", "packed", "inline"])
def test_a_copy_needs_nothing_of_what_it_was_copied_from(new_directory, tmp_path, kind):
    directory = new_directory(kind)
    before = moorage.state.read(directory, "visits", "visit")
    done = copy(find(str(directory)), str(tmp_path / "sp"), full=True, progress=quiet)
    shutil.rmtree(directory)
    moved = Path(shutil.move(tmp_path / "sp", tmp_path / "elsewhere"))
    assert moorage.state.read(moved, "visits", "visit").equals(before)
    assert verify(str(moved), full=True).damage == ()
    assert (done.name, done.resumed_files) == ("sp", 0)


def test_a_savepoint_keeps_what_the_checkpoint_said_and_has_a_name(directory, tmp_path):
    source = find(str(directory)).snapshot.manifest
    copy(find(str(directory)), str(tmp_path / "sp"), progress=quiet)
    manifest = find(str(tmp_path / "sp")).snapshot.manifest
    assert (manifest.kind, manifest.name) == ("savepoint", "sp")
    for field in ("lineage", "checkpoint_id", "epoch", "source", "watermarks", "sinks", "extra"):
        assert getattr(manifest, field) == getattr(source, field)
    assert not any(file.shared or file.offset for file in manifest.files)


def test_a_copy_goes_to_another_kind_of_store_and_back(directory, tmp_path):
    copy(find(str(directory)), str(tmp_path / "sp"), progress=quiet)
    name = f"offline-{tmp_path.name}"
    store = MemoryStore.named(name)
    try:
        for info in LocalStore(tmp_path / "sp").list(""):
            store.put(info.key, (tmp_path / "sp" / info.key).read_bytes())
        copy(find(f"memory://{name}"), str(tmp_path / "again"), full=True, progress=quiet)
    finally:
        MemoryStore.forget(name)
    both = [moorage.state.read(tmp_path / n, "visits", "pages") for n in ("sp", "again")]
    assert both[0].equals(both[1])


def test_a_target_that_exists_is_refused_and_left_alone(directory, tmp_path):
    copy(find(str(directory)), str(tmp_path / "sp"), progress=quiet)
    before = (tmp_path / "sp" / "MANIFEST").read_bytes()
    with pytest.raises(UserError, match=r"not empty.*found='a savepoint'"):
        copy(find(str(directory)), str(tmp_path / "sp"), progress=quiet)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"notes\.txt"):
        copy(find(str(directory)), str(tmp_path / "full"), progress=quiet)
    assert (tmp_path / "sp" / "MANIFEST").read_bytes() == before


@pytest.mark.parametrize("below", ["", "chk-9", "shared/x", "sp"])
def test_a_copy_never_lies_in_the_directory_that_a_job_cleans_up(directory, below):
    target = str(directory / below)
    with pytest.raises(UserError, match="a copy needs a directory outside of what it copies"):
        copy(find(str(directory)), target, progress=quiet)


def test_a_link_does_not_lead_a_copy_into_that_directory(directory, tmp_path):
    (tmp_path / "link").symlink_to(directory)
    with pytest.raises(UserError, match="outside of what it copies"):
        copy(find(str(directory)), f"file://{tmp_path}/link/sp", progress=quiet)


def test_a_copy_that_was_cut_off_is_no_savepoint_and_goes_on_where_it_stopped(
    directory, tmp_path, monkeypatch
):
    put_file = LocalStore.put_file
    puts: list[str] = []

    def failing(self, key, path):
        if len(puts) == 5:
            raise StoreUnavailable("the network went away")
        puts.append(key)
        put_file(self, key, path)

    monkeypatch.setattr(savepoints, "_THREADS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_file", failing)
        with pytest.raises(StoreUnavailable):
            copy(find(str(directory)), str(tmp_path / "sp"), progress=quiet)
    with pytest.raises(UserError, match="begun and never completed"):
        find(str(tmp_path / "sp"))
    with pytest.raises(UserError, match="not empty"):
        copy(find(str(directory), "chk-2"), str(tmp_path / "sp"), progress=quiet)
    done = copy(find(str(directory)), str(tmp_path / "sp"), progress=quiet)
    assert done.resumed_files == 5
    assert verify(str(tmp_path / "sp"), full=True).damage == ()


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(b"x")])
def test_damage_of_the_source_is_found_and_nothing_is_completed(directory, tmp_path, damage):
    manifest = find(str(directory)).snapshot.manifest
    victim = directory / manifest.files[3].key
    damage(victim)
    with pytest.raises(CorruptState) as caught:
        copy(find(str(directory)), str(tmp_path / "sp"), progress=quiet)
    assert victim.name in str(caught.value)
    assert not (tmp_path / "sp" / "MANIFEST").exists()


def test_a_changed_byte_of_the_source_does_not_get_into_a_copy(directory, tmp_path):
    manifest = find(str(directory)).snapshot.manifest
    victim = directory / manifest.files[3].key
    data = bytearray(victim.read_bytes())
    data[0] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CorruptState, match="does not match its checksum"):
        copy(find(str(directory)), str(tmp_path / "sp"), progress=quiet)


def test_a_copy_that_was_damaged_on_its_way_is_found_when_it_is_read_back(
    directory, tmp_path, monkeypatch
):
    put_file = LocalStore.put_file

    def twisted(self, key, path):
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
        put_file(self, key, path)

    monkeypatch.setattr(LocalStore, "put_file", twisted)
    with pytest.raises(CorruptState, match="does not match its checksum"):
        copy(find(str(directory)), str(tmp_path / "sp"), full=True, progress=quiet)
    assert not (tmp_path / "sp" / "MANIFEST").exists()


def test_the_progress_ends_at_all_bytes(directory, tmp_path):
    steps: list[tuple[int, int]] = []
    found = find(str(directory))
    done = copy(found, str(tmp_path / "sp"), progress=lambda *step: steps.append(step))
    assert sum(more for more, _ in steps) == done.bytes


def test_a_temporary_directory_that_cannot_be_made_is_named(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(LocalDiskError, match="set TMPDIR to a larger volume"):
        copy(find(str(directory)), str(tmp_path / "sp"), progress=quiet)
