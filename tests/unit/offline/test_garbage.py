import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moorage.offline.garbage import collect
from moorage.offline.verification import verify
from moorage_state.errors import CorruptState, UserError
from moorage_state.snapshots import LockHolder, LogWriter, Owner
from moorage_state.snapshots.run_lock import DirectoryLock
from moorage_state.stores import LocalStore, MemoryStore

NONE = timedelta(0)
OWNER = Owner("here", "default", "flights", "uid-1")


NOW = datetime(2026, 1, 3, tzinfo=UTC)
"""Of the machine that collects: it is off by months, and no age is by its clock."""


@pytest.fixture
def littered(directory: Path) -> Path:
    """A directory with what an aborted upload, a crashed deletion and a person left."""
    for key in ("chk-1/f1r0/pack-a-0-3", "chk-9/f1r0/pack-b-0-3", "shared/pack-c-1-3"):
        (directory / key).parent.mkdir(parents=True, exist_ok=True)
        (directory / key).write_bytes(b"abc")
    (directory / "notes.txt").write_text("mine")
    return directory


def contents(directory: Path) -> set[str]:
    return {info.key for info in LocalStore(directory).list("")}


def test_garbage_is_shown_with_its_reasons_and_nothing_is_deleted(littered):
    before = contents(littered)
    found = collect(LocalStore(littered), NOW, age=NONE)
    assert {one.key: one.reason for one in found.objects} == {
        "chk-1/f1r0/pack-a-0-3": "of chk-1, which is retired",
        "chk-9/f1r0/pack-b-0-3": "of chk-9, which was never completed",
        "shared/pack-c-1-3": "shared, and no retained checkpoint names it",
    }
    assert (found.dry_run, found.deleted, found.bytes) == (True, 0, 9)
    assert contents(littered) == before
    assert not (littered / ".lock").exists(), "a dry run takes no lock"


def test_exactly_the_garbage_is_deleted(littered):
    before = contents(littered)
    found = collect(LocalStore(littered), NOW, age=NONE, delete=True)
    assert found.deleted == 3
    assert before - contents(littered) == {one.key for one in found.objects}
    assert verify(str(littered), full=True).damage == ()
    assert collect(LocalStore(littered), NOW, age=NONE).objects == []


def test_what_is_younger_than_the_age_stays(littered):
    assert collect(LocalStore(littered), NOW, delete=True).deleted == 0
    yesterday = (datetime.now(UTC) - timedelta(days=1, minutes=1)).timestamp()
    os.utime(littered / "shared/pack-c-1-3", (yesterday, yesterday))
    found = collect(LocalStore(littered), NOW, delete=True)
    assert [one.key for one in found.objects] == ["shared/pack-c-1-3"]
    assert found.objects[0].age_seconds >= 24 * 3600


def test_nothing_is_deleted_while_a_run_holds_the_directory(littered):
    before = contents(littered)
    with (
        DirectoryLock.acquire(littered, LockHolder(7, "host", "flights", "noon")),
        pytest.raises(UserError, match=r"in use by another run.*job=flights.*cleans up by itself"),
    ):
        collect(LocalStore(littered), NOW, age=NONE, delete=True)
    assert contents(littered) == before
    assert collect(LocalStore(littered), NOW, age=NONE, delete=True).deleted == 3


def test_a_running_job_is_not_fenced_off(littered):
    writer = LogWriter.claim(LocalStore(littered), OWNER, "me")
    collect(LocalStore(littered), NOW, age=NONE, delete=True)
    writer.refresh()


def test_without_a_kernels_lock_nothing_young_can_be_asked_for():
    present = [datetime.now(UTC)]
    store = MemoryStore("offline", clock=lambda: present[0])
    LogWriter.claim(store, OWNER, "me")
    store.put("shared/pack-c-1-3", b"abc")
    with pytest.raises(UserError, match=r"younger than 24h.*leave --age out"):
        collect(store, NOW, age=timedelta(hours=23), delete=True)
    assert collect(store, NOW, age=NONE).bytes == 3
    present[0] += timedelta(days=2)
    assert collect(store, NOW, age=timedelta(hours=24), delete=True).deleted == 1


def test_while_a_manifest_is_damaged_nothing_is_garbage(littered):
    (littered / "chk-2" / "MANIFEST").write_bytes(b"broken")
    before = contents(littered)
    with pytest.raises(CorruptState, match="chk-2/MANIFEST"):
        collect(LocalStore(littered), NOW, age=NONE, delete=True)
    assert contents(littered) == before


def test_a_damaged_log_makes_nothing_garbage(littered):
    shutil.rmtree(littered / "log")
    before = contents(littered)
    with pytest.raises(CorruptState, match="the log is missing"):
        collect(LocalStore(littered), NOW, age=NONE, delete=True)
    assert contents(littered) == before


def test_a_checkpoint_that_appears_meanwhile_keeps_its_objects(littered, monkeypatch):
    """Somebody who took the lock over completes a checkpoint between looking and deleting."""
    from moorage_testing.lineages import SmallJob

    from moorage.offline import garbage

    monkeypatch.setattr(garbage, "_DELETES_PER_LOOK", 1)
    original, names = LocalStore.delete, []

    def delete(self, key):
        original(self, key)
        names.append(key)
        if len(names) == 1:
            shutil.copytree(littered.parent / "other", littered, dirs_exist_ok=True)

    shutil.rmtree(littered)
    scratch = littered.parent / "scratch"
    with SmallJob(littered, scratch) as job:
        job.visit(range(9))
        job.checkpoint()
        (littered / "shared" / "pack-a-1-3").write_bytes(b"abc")
        shutil.copytree(littered, littered.parent / "before")
        job.visit([9])
        new = job.checkpoint().keys
    shutil.move(littered, littered.parent / "other")
    shutil.move(littered.parent / "before", littered)
    for key in new - contents(littered):
        (littered / key).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(littered.parent / "other" / key, littered / key)
    first = LocalStore(littered.parent / "other")
    first.delete("shared/pack-a-1-3")
    monkeypatch.setattr(LocalStore, "delete", delete)
    found = collect(LocalStore(littered), NOW, age=NONE, delete=True)
    assert found.deleted < len(found.objects)
    assert new <= contents(littered) | set(names[:1])


def test_a_place_without_a_log_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a checkpoint directory, it has no log"):
        collect(LocalStore(tmp_path), NOW)
