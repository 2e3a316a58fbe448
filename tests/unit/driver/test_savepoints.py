"""What the driver knows of savepoints, and which it deletes."""

import datetime
from typing import Any

import pytest
from moorage_testing.manifests import checkpoint_manifest

from moorage.driver.savepoints import ClaimedSavepoints, KnownSavepoints
from moorage_state.errors import StoreUnavailable
from moorage_state.snapshots import (
    Checkpoint,
    FileRef,
    Forgotten,
    LogWriter,
    Manifest,
    OperatorState,
    Owner,
    RangeHandle,
    Run,
    Savepoint,
    SavepointStore,
    ancestors,
)
from moorage_state.stores import MemoryStore

NOW = datetime.datetime.now(datetime.UTC)
OLD = NOW - datetime.timedelta(hours=2)
URL = "memory://claimed"
SHA = "0" * 64


@pytest.fixture(autouse=True)
def _stores():
    yield
    MemoryStore.forget("claimed")


@pytest.fixture
def writer():
    return LogWriter.claim(MemoryStore("lineage"), Owner("c", "n", "j", "u"), "test")


def savepoint(writer: LogWriter, checkpoint_id: int = 3) -> str:
    """A savepoint with one file; returns its digest."""
    store = SavepointStore(URL)
    store.begin("attempt")
    store.store.put("state/count/0-127/count.parquet", b"xyz")
    file = FileRef(
        name="count.parquet",
        key="state/count/0-127/count.parquet",
        size=3,
        sha256=SHA,
        shared=False,
    )
    handle = RangeHandle(
        uid="count",
        start=0,
        end=127,
        epoch=9,
        digest="d",
        backend_uuid="b",
        files=[file],
        bytes_total=3,
        format="canonical",
    )
    return store.create(
        checkpoint_manifest(
            writer.lineage,
            checkpoint_id,
            fence=writer.fence,
            kind="savepoint",
            name="claimed",
            epoch=9,
            created_at=NOW,
            operators={
                "count": OperatorState(
                    parallelism=1, key_types=["bigint"], states=[], subtasks=[handle]
                )
            },
        )
    )


def checkpoint(writer: LogWriter, checkpoint_id: int, epoch: int = 10, run: int = 0) -> None:
    key = f"chk-{checkpoint_id}/MANIFEST"
    writer.append(Checkpoint(writer.fence, run, checkpoint_id, key, f"sha256:{SHA}", epoch, NOW))


def announce(writer: LogWriter, digest: str, at: datetime.datetime = NOW, epoch: int = 9) -> None:
    writer.append(Savepoint(writer.fence, 0, 3, URL, digest, epoch, at))


def run(writer: LogWriter, number: int, path: str | None = None, **more: Any) -> None:
    writer.append(Run(writer.fence, number, path, **more))


def test_a_savepoint_that_lies_where_it_was_put_is_known(writer):
    known = KnownSavepoints(writer)
    assert known() == []
    announce(writer, savepoint(writer))
    assert [manifest.name for manifest in known()] == ["claimed"]


@pytest.mark.parametrize(("minutes", "is_known"), [(59, True), (61, False)])
def test_one_that_is_announced_is_looked_for_for_an_hour_whatever_the_clocks_say(
    writer, minutes, is_known
):
    announce(writer, savepoint(writer), OLD)  # by a clock that was days behind
    store = MemoryStore.named("claimed")
    manifest = store.get("MANIFEST")
    store.delete("MANIFEST")
    seconds = [1000.0]
    known = KnownSavepoints(writer, lambda: seconds[0])
    assert known() == []
    seconds[0] += 60 * minutes
    assert known() == []
    store.put("MANIFEST", manifest)
    assert len(known()) == is_known


@pytest.mark.parametrize("damage", [b"", b"MOORAGE-MANIFEST 0 nonsense\n"])
def test_one_that_is_damaged_is_not_known_and_no_error(writer, damage):
    digest = savepoint(writer)
    MemoryStore.named("claimed").put("MANIFEST", damage)
    announce(writer, digest, OLD)
    known = KnownSavepoints(writer)
    assert known() == known() == []


@pytest.mark.parametrize("there", [False, True])
def test_one_that_is_gone_for_good_is_never_looked_for_again(writer, there, monkeypatch):
    announce(writer, savepoint(writer))
    store = MemoryStore.named("claimed")
    store.put("MANIFEST", b"damaged") if there else store.delete("MANIFEST")
    seconds = [1000.0]
    known = KnownSavepoints(writer, lambda: seconds[0])
    known()
    seconds[0] += 3601
    known()
    told = [e for e in writer.entries if isinstance(e, Forgotten)]
    assert told == ([] if there else [Forgotten(1, 3)])

    looked: list[str] = []
    load = SavepointStore.load

    def seen(store: SavepointStore, digest: str) -> Manifest:
        looked.append(digest)
        return load(store, digest)

    monkeypatch.setattr(SavepointStore, "load", seen)
    KnownSavepoints(writer)()
    assert len(looked) == there
    assert ancestors(writer.entries, 3) == (3,)


def objects() -> list[str]:
    return [info.key for info in MemoryStore.named("claimed").list("")]


def test_a_claimed_savepoint_goes_when_as_many_checkpoints_followed_as_are_retained(writer):
    run(writer, 0, URL, explicit=True, claimed=savepoint(writer))
    claimed = ClaimedSavepoints(writer, retain=2)
    claimed.release()
    checkpoint(writer, 4)
    claimed.release()
    assert len(objects()) == 3
    checkpoint(writer, 5)
    claimed.release()
    assert objects() == []
    claimed.release()


def test_a_claimed_savepoint_that_could_not_be_deleted_is_tried_again(writer, monkeypatch):
    run(writer, 0, URL, explicit=True, claimed=savepoint(writer))
    claimed = ClaimedSavepoints(writer, retain=1)
    checkpoint(writer, 4)

    def away(*_arguments):
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "delete_many", away)
        patch.setattr(MemoryStore, "delete", away)
        claimed.release()
    assert len(objects()) == 3
    claimed.release()
    assert objects() == []


def test_an_unclaimed_one_stays_and_so_does_one_that_a_run_began_from_again(writer):
    digest = savepoint(writer)
    run(writer, 0, URL, explicit=True)
    checkpoint(writer, 4)
    ClaimedSavepoints(writer, retain=1).release()
    run(writer, 1, URL, explicit=True, claimed=digest)
    checkpoint(writer, 5)
    run(writer, 2, URL)
    ClaimedSavepoints(writer, retain=1).release()
    assert len(objects()) == 3


def test_a_new_savepoint_in_the_place_of_a_claimed_one_is_a_persons(writer):
    run(writer, 0, URL, explicit=True, claimed=f"sha256:{SHA}")
    savepoint(writer)
    checkpoint(writer, 4)
    ClaimedSavepoints(writer, retain=1).release()
    assert len(objects()) == 3


def test_foreign_objects_in_its_directory_are_left_alone(writer):
    run(writer, 0, URL, explicit=True, claimed=savepoint(writer))
    MemoryStore.named("claimed").put("notes.txt", b"mine")
    checkpoint(writer, 4)
    ClaimedSavepoints(writer, retain=1).release()
    assert objects() == ["notes.txt"]


def test_a_savepoint_descends_from_the_checkpoint_before_it_wherever_its_entry_stands(writer):
    run(writer, 0)
    checkpoint(writer, 1, epoch=5)
    checkpoint(writer, 4, epoch=12)
    announce(writer, f"sha256:{SHA}", epoch=9)
    assert ancestors(writer.entries, 3) == (1, 3)


def test_what_follows_a_run_from_a_savepoint_descends_from_it_wherever_it_lay(writer):
    run(writer, 0)
    checkpoint(writer, 1, epoch=5)
    announce(writer, f"sha256:{SHA}", epoch=9)
    run(writer, 1, "file:///moved/elsewhere", explicit=True, restored_id=3)
    checkpoint(writer, 5, epoch=12, run=1)
    run(writer, 2, "chk-5")
    checkpoint(writer, 6, epoch=15, run=2)
    assert ancestors(writer.entries, 6) == (1, 3, 5, 6)


def test_a_savepoint_of_a_run_that_began_from_one_has_its_history(writer):
    run(writer, 0)
    checkpoint(writer, 1, epoch=5)
    announce(writer, f"sha256:{SHA}", epoch=9)
    run(writer, 1, "file:///moved/elsewhere", explicit=True, restored_id=3)
    writer.append(Savepoint(writer.fence, 1, 4, "memory://next", f"sha256:{SHA}", 9, NOW))
    assert ancestors(writer.entries, 4) == (1, 3, 4)


def test_what_follows_a_savepoint_of_another_lineage_begins_anew(writer):
    run(writer, 0)
    checkpoint(writer, 1, epoch=5)
    run(writer, 1, "file:///other/savepoint", explicit=True)
    checkpoint(writer, 2, epoch=9, run=1)
    assert ancestors(writer.entries, 2) == (2,)
