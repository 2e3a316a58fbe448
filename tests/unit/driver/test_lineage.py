"""Which directories are made, so that an unmounted volume is no empty store; the fence's watch."""

import os
import tempfile
from pathlib import Path

import pytest
from moorage_testing.jobs import wait_until

from moorage.driver.lineage import FenceWatch, make_directory
from moorage.driver.refusals import StoreRefused
from moorage_state.errors import Bug, StoreUnavailable
from moorage_state.snapshots import LogWriter, Owner
from moorage_state.stores import MemoryStore

VOLUME = Path("/dev/shm")


@pytest.fixture
def folder_of_volume():
    """The name of a folder that is not there, directly below a mount point."""
    if not os.path.ismount(VOLUME):
        pytest.skip(f"{VOLUME} is no mount point here")
    with tempfile.TemporaryDirectory(dir=VOLUME) as name:
        Path(name).rmdir()
        yield Path(name)
        Path(name).mkdir(exist_ok=True)


def test_all_folders_are_made_on_a_volume_that_is_mounted_and_empty(folder_of_volume):
    """The first job on a new claim: nobody has been there to make its folders."""
    for name in ("checkpoints", "savepoints"):
        directory = folder_of_volume / name
        make_directory("state.checkpointDir", f"file://{directory}")
        assert directory.is_dir()


def test_deeper_in_a_volume_a_missing_folder_is_a_mistake(folder_of_volume):
    """Another volume may be missing there, as it may on the machine's own disk."""
    folder_of_volume.mkdir()
    with pytest.raises(StoreRefused, match="mount or make"):
        make_directory("state.checkpointDir", f"file://{folder_of_volume}/nas/checkpoints")
    assert list(folder_of_volume.iterdir()) == []


def test_without_a_volume_the_last_part_is_made_and_nothing_above_it(tmp_path):
    make_directory("state.checkpointDir", f"file://{tmp_path}/checkpoints")
    assert (tmp_path / "checkpoints").is_dir()
    with pytest.raises(StoreRefused, match="unmounted volume") as refused:
        make_directory("state.savepointDir", f"file://{tmp_path}/nas/savepoints")
    assert f"state.savepointDir=file://{tmp_path}/nas/savepoints" in str(refused.value)
    assert not (tmp_path / "nas").exists()


def test_the_root_is_no_volume():
    """A path whose first folder is missing names a mount that is not there."""
    with pytest.raises(StoreRefused, match="mount or make /moorage-nowhere"):
        make_directory("state.checkpointDir", "file:///moorage-nowhere/first/checkpoints")
    assert not Path("/moorage-nowhere").exists()


def test_what_is_no_folder_is_told_with_its_reason(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreRefused, match="cannot use the directory"):
        make_directory("state.checkpointDir", f"file://{tmp_path}/file/checkpoints")


def test_other_stores_are_left_alone():
    make_directory("state.checkpointDir", "s3://bucket/first/checkpoints")


def test_an_idle_job_finds_out_that_it_was_replaced():
    store, said, storage = MemoryStore("fence-watch"), list[str](), list[str]()
    owner = Owner("c", "n", "j", "u")
    writer = LogWriter.claim(store, owner, "first", fenced=said.append)
    watch = FenceWatch(writer, storage.append, seconds=0.01)
    wait_until(lambda: storage, 10, "a look")
    assert said == []
    LogWriter.claim(store, owner, "second")
    wait_until(lambda: said, 10, "the other to be seen")
    assert "second" in said[0]
    watch.close()


def test_an_idle_job_finds_out_that_its_store_is_away(monkeypatch):
    storage: list[str] = []
    writer = LogWriter.claim(MemoryStore("fence-watch-2"), Owner("c", "n", "j", "u"), "first")
    error = [StoreUnavailable("away"), Bug("something else"), KeyError("not even ours")]

    def watch_log() -> None:
        if error:
            raise error.pop(0)

    monkeypatch.setattr(writer, "watch", watch_log)
    watch = FenceWatch(writer, storage.append, seconds=0.01)
    wait_until(lambda: len(storage) >= 2, 10, "two looks")
    watch.close()
    assert storage[:2] == ["away", ""]
