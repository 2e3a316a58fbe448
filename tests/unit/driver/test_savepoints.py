"""What the driver knows of savepoints, and which it deletes."""

import datetime
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from moorage_testing.manifests import checkpoint_manifest
from msgspec.structs import replace

from moorage.driver.savepoints import ClaimedSavepoints, KnownSavepoints
from moorage_state.errors import NewerFormat, StoreDenied, StoreUnavailable
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
from moorage_state.stores import MemoryStore, NoSuchBucket, S3Store

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


def savepoint(writer: LogWriter, checkpoint_id: int = 3, **more: Any) -> str:
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
            **more,
        )
    )


def checkpoint(writer: LogWriter, checkpoint_id: int, epoch: int = 10, run: int = 0) -> None:
    key = f"chk-{checkpoint_id}/MANIFEST"
    writer.append(Checkpoint(writer.fence, run, checkpoint_id, key, f"sha256:{SHA}", epoch, NOW))


def announce(writer: LogWriter, digest: str, at: datetime.datetime = NOW, epoch: int = 9) -> None:
    writer.append(Savepoint(writer.fence, 0, 3, URL, digest, epoch, at))


def run(writer: LogWriter, number: int, path: str | None = None, **more: Any) -> None:
    writer.append(Run(writer.fence, number, path, **more))


def twenty(writer: LogWriter, seconds: list[float]) -> KnownSavepoints:
    """What is known where so many savepoints are; by a clock of the test's."""
    digest = savepoint(writer)
    for number in range(3, 23):
        writer.append(Savepoint(writer.fence, 0, number, URL, digest, 9, NOW))
    known = KnownSavepoints(writer, lambda: seconds[0])
    assert len(known()) == 20
    return known


def looked(known: KnownSavepoints) -> Sequence[Manifest]:
    """What is known after a look."""
    known.look_again()
    return known()


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


@pytest.mark.parametrize("error", [StoreDenied("403"), NewerFormat("9")], ids=["denied", "newer"])
def test_one_that_cannot_be_read_here_is_neither_known_nor_gone(writer, error, monkeypatch):
    announce(writer, savepoint(writer))
    seconds = [1000.0]
    known = KnownSavepoints(writer, lambda: seconds[0])

    def refused(*_: object) -> Manifest:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(SavepointStore, "load", refused)
        with pytest.raises(type(error)):
            known()
        with pytest.raises(StoreUnavailable):
            known()  # and is not asked again and again
        seconds[0] += 7200
        with pytest.raises(type(error)):
            known()
    seconds[0] += 7200
    assert [manifest.name for manifest in known()] == ["claimed"]
    assert not [e for e in writer.entries if isinstance(e, Forgotten)]


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


def test_of_a_known_one_only_that_is_kept_which_sinks_and_their_history_need(writer):
    digest = savepoint(writer, sinks={"out": [{"rows": 3}]}, source={"log": "x"}, extra={"a": 1})
    announce(writer, digest)
    (kept,) = KnownSavepoints(writer)()
    whole = SavepointStore(URL).load(digest)
    assert whole.operators
    assert kept == replace(whole, operators={}, source={}, extra={})
    assert kept.sinks == {"out": [{"rows": 3}]}


def test_a_known_one_that_is_deleted_is_forgotten(writer):
    announce(writer, savepoint(writer))
    seconds = [1000.0]
    known = KnownSavepoints(writer, lambda: seconds[0])
    assert len(known()) == len(looked(known)) == 1
    MemoryStore.named("claimed").delete("MANIFEST")
    assert len(looked(known)) == 1  # it was there a moment ago
    seconds[0] += 301
    assert len(known()) == 1  # nobody looked
    assert looked(known) == known() == []
    assert [e for e in writer.entries if isinstance(e, Forgotten)] == [Forgotten(1, 3)]


@pytest.mark.parametrize("error", [StoreDenied("403"), StoreUnavailable("away")])
def test_a_known_one_whose_store_cannot_be_asked_stays_known(writer, error, monkeypatch):
    announce(writer, savepoint(writer))
    seconds = [1000.0]
    known = KnownSavepoints(writer, lambda: seconds[0])
    known()

    def refused(*_: object) -> bool:
        raise error

    monkeypatch.setattr(SavepointStore, "exists", refused)
    for _ in range(3):
        seconds[0] += 7200
        assert len(looked(known)) == 1
    assert not [e for e in writer.entries if isinstance(e, Forgotten)]


def test_a_look_asks_for_some_of_the_known_ones_and_all_have_their_turn(writer, monkeypatch):
    seconds = [1000.0]
    known = twenty(writer, seconds)
    asked: list[str] = []
    exists = SavepointStore.exists

    def seen(store: SavepointStore) -> bool:
        asked.append(store.url)
        return exists(store)

    monkeypatch.setattr(SavepointStore, "exists", seen)
    for looks in (1, 2):
        seconds[0] += 301
        assert len(looked(known)) == len(looked(known)) == 20
        assert len(asked) == 8 * looks
    MemoryStore.named("claimed").delete("MANIFEST")
    for left in (12, 4, 0):
        seconds[0] += 301
        assert len(looked(known)) == left


def test_a_look_at_a_store_that_does_not_answer_is_over_soon_and_nobody_waits_for_it(
    writer, monkeypatch
):
    seconds = [1000.0]
    known = twenty(writer, seconds)
    asked: list[str] = []
    begun, let_go = threading.Event(), threading.Event()

    def away(store: SavepointStore) -> bool:
        asked.append(store.url)
        begun.set()
        assert let_go.wait(30)
        raise StoreUnavailable("away")

    monkeypatch.setattr(SavepointStore, "exists", away)
    seconds[0] += 301
    look = threading.Thread(target=known.look_again)
    look.start()
    assert begun.wait(30)
    assert len(known()) == 20
    known.look_again()  # of a run that begins meanwhile
    let_go.set()
    look.join()
    assert len(asked) <= 4
    assert len(known()) == 20


def test_of_a_known_one_it_is_asked_with_few_attempts(writer, monkeypatch):
    writer.append(Savepoint(writer.fence, 0, 3, "s3://bucket/one", f"sha256:{SHA}", 9, NOW))
    made = checkpoint_manifest(writer.lineage, 3)
    monkeypatch.setattr(SavepointStore, "load", lambda *_: made)
    seconds = [1000.0]
    known = KnownSavepoints(writer, lambda: seconds[0])
    asked: list[float] = []
    monkeypatch.setattr(S3Store, "head", lambda store, _: asked.append(store.retries.deadline))
    known()
    assert looked(known) == []
    assert asked == [10.0]


@pytest.mark.parametrize("mounted", [True, False])
def test_a_known_one_whose_directory_is_deleted_is_forgotten_after_an_hour(
    writer, mounted, tmp_path
):
    """Where not even the folder is there, its volume may not be mounted."""
    folder = tmp_path / "saves" / "one"
    digest = savepoint(writer)
    store = SavepointStore(f"file://{folder}", create=True).store
    store.put("MANIFEST", MemoryStore.named("claimed").get("MANIFEST"))
    writer.append(Savepoint(writer.fence, 0, 3, store.url, digest, 9, NOW))
    seconds = [1000.0]
    known = KnownSavepoints(writer, lambda: seconds[0])
    known()
    shutil.rmtree(folder if mounted else folder.parent)
    for _ in range(12):
        seconds[0] += 300.1
        assert len(looked(known)) == 1
    seconds[0] += 301
    assert len(looked(known)) == (0 if mounted else 1)
    told = [e for e in writer.entries if isinstance(e, Forgotten)]
    assert told == ([Forgotten(1, 3)] if mounted else [])


class Buckets:
    """Savepoints, some of whose buckets are missing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.missing = True
        for name in ("load", "exists"):
            monkeypatch.setattr(SavepointStore, name, self.unless(getattr(SavepointStore, name)))

    def unless(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(store: SavepointStore, *arguments: str) -> Any:
            if self.missing and store.url == URL:
                raise NoSuchBucket("code=NoSuchBucket")
            return call(store, *arguments)

        return called


def test_one_whose_bucket_is_missing_is_taken_for_gone_after_an_hour(writer, monkeypatch):
    announce(writer, savepoint(writer))
    Buckets(monkeypatch)
    seconds = [1000.0]
    known = KnownSavepoints(writer, lambda: seconds[0])
    for _ in range(2):
        with pytest.raises(StoreDenied, match=f"path={URL}: code=NoSuchBucket; it counts as del"):
            known()
        seconds[0] += 1800
    assert not [e for e in writer.entries if isinstance(e, Forgotten)]
    seconds[0] += 1
    assert known() == []
    assert [e for e in writer.entries if isinstance(e, Forgotten)] == [Forgotten(1, 3)]


def test_one_that_is_known_and_whose_bucket_comes_back_within_the_hour_stays(writer, monkeypatch):
    announce(writer, savepoint(writer))
    seconds = [1000.0]
    known = KnownSavepoints(writer, lambda: seconds[0])
    known()
    buckets = Buckets(monkeypatch)
    for missing in (True, True, False, True, True):
        seconds[0] += 1801
        buckets.missing = missing
        assert len(looked(known)) == 1
    seconds[0] += 1801
    assert looked(known) == []
    assert [e for e in writer.entries if isinstance(e, Forgotten)] == [Forgotten(1, 3)]


def test_the_others_are_read_beside_one_that_is_refused(writer, monkeypatch):
    writer.append(Savepoint(writer.fence, 0, 4, "memory://claimed", savepoint(writer), 9, NOW))
    announce(writer, "sha256:0")
    reads: list[str] = []

    def load(_: SavepointStore, digest: str) -> Manifest | None:
        reads.append(digest)
        if digest == "sha256:0":
            raise StoreDenied("403")
        return checkpoint_manifest(writer.lineage, 4)

    monkeypatch.setattr(SavepointStore, "load", load)
    seconds = [1000.0]
    known = KnownSavepoints(writer, lambda: seconds[0])
    with pytest.raises(StoreDenied, match="path=memory://claimed: 403; let the job read it; or"):
        known()
    with pytest.raises(StoreUnavailable, match="403; let the job read it"):
        known()
    seconds[0] += 301
    with pytest.raises(StoreDenied):
        known()
    assert len(reads) == 3


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


def test_one_that_was_claimed_stays_when_it_is_chosen_again_without_a_claim(writer):
    run(writer, 0, URL, explicit=True, claimed=savepoint(writer))
    run(writer, 1, URL, explicit=True)
    checkpoint(writer, 4)
    checkpoint(writer, 5)
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
