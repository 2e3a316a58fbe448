"""A store that is slow costs checkpoints their time, and epochs nothing.

Nothing is timed here: a call that the epochs' thread makes is counted, and a call that hangs goes
on only when that thread has done what it wants to.
"""

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.jobs import wait_until

from moorage.driver.requests import SavepointRequest
from moorage_state.errors import MoorageError, StoreDenied, StoreUnavailable
from moorage_state.snapshots import Checkpoint, LogWriter, Retire
from moorage_state.snapshots.lineage_log import LineageLog
from moorage_state.stores import MemoryStore, ObjectInfo

WAITS = 20.0


class WatchedStore(MemoryStore):
    """Counts what the epochs' thread asks for, and lets the calls of others hang on demand."""

    def __init__(self) -> None:
        super().__init__("driver")
        self.epochs_thread: int | None = None
        self.asked_under_the_lock: list[str] = []
        self.hangs: Callable[[str, str], bool] = lambda _operation, _key: False
        self.hung, self.go_on = threading.Event(), threading.Event()

    def _ask(self, operation: str, key: str) -> None:
        if threading.get_ident() == self.epochs_thread:
            self.asked_under_the_lock.append(f"{operation} {key}")
        elif self.hangs(operation, key):
            self.hung.set()
            assert self.go_on.wait(WAITS), "the epochs waited for the store"

    def get(self, key: str, **slice_: Any) -> bytes:
        self._ask("get", key)
        return super().get(key, **slice_)

    def put(self, key: str, data: bytes) -> None:
        self._ask("put", key)
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._ask("put_if_absent", key)
        super().put_if_absent(key, data)

    def put_file(self, key: str, path: Path) -> None:
        self._ask("put_file", key)
        super().put_file(key, path)

    def head(self, key: str) -> ObjectInfo | None:
        self._ask("head", key)
        return super().head(key)

    def delete(self, key: str) -> None:
        self._ask("delete", key)
        super().delete(key)

    def list(self, prefix: str, start_after: str = "") -> Any:
        self._ask("list", prefix)
        return super().list(prefix, start_after)

    def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
        self._ask("delete_many", next(iter(keys)))
        return super().delete_many(keys)


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


@pytest.fixture
def job(make_job, store):
    made = make_job(objects=store, retain=1, max_concurrent=2)
    store.epochs_thread = threading.get_ident()
    yield made
    store.go_on.set()


def in_log(store: WatchedStore, kind: type[Checkpoint] | type[Retire]) -> list[int]:
    twin = MemoryStore("look")
    twin._objects = store._objects
    return [e.checkpoint_id for _, e in LineageLog.open(twin).read() if isinstance(e, kind)]


def an_epoch(job: Any) -> None:
    """What a run does between two batches, and what people may ask of it meanwhile."""
    job.commit("x")
    job.poll()
    assert job.writer.lineage
    assert job.checkpointer.next_id


def test_no_epoch_asks_the_store_for_anything(job, store):
    for n in range(3):
        job.commit(f"item {n}")
        job.due()
        assert job.settle() == [n + 1]
    job.savepoint(SavepointRequest("before"))
    job.settle()
    job.commit("last")
    job.checkpointer.finish(job.epoch, job.boundary)
    job.checkpointer.finish_chores(job_finished=False)
    assert in_log(store, Checkpoint) == [1, 2, 3, 5]
    assert in_log(store, Retire) == [1, 2, 3]
    assert store.asked_under_the_lock == []


HANGING: list[tuple[str, Callable[[str, str], bool]]] = [
    ("the manifest", lambda operation, key: operation.startswith("put") and "chk-1" in key),
    ("the log's entry", lambda operation, key: operation == "put_if_absent" and "log/" in key),
    ("the look for another driver", lambda operation, key: operation == "list" and "log/" in key),
]


@pytest.mark.parametrize("hangs", [h for _, h in HANGING], ids=[name for name, _ in HANGING])
def test_epochs_go_on_while_a_checkpoint_hangs_in_the_store(job, store, hangs):
    store.hangs = hangs
    job.commit("a")
    job.due()
    wait_until(lambda: (job.poll(), store.hung.is_set())[1], WAITS, "the store to hang")
    for _ in range(3):
        an_epoch(job)
    store.go_on.set()
    assert job.settle() == [1]
    assert job.output.published[1] == [{"file": "a"}]


def test_epochs_go_on_while_old_checkpoints_are_being_deleted(job, store):
    store.hangs = lambda operation, _key: operation == "delete_many"
    for _ in range(2):
        job.commit("a")
        job.due()
        job.settle()
    assert store.hung.wait(WAITS)
    for n in (3, 4):
        an_epoch(job)
        job.due()
        assert job.settle() == [n], "nor do checkpoints wait for it"
    assert in_log(store, Retire) == [1]
    store.go_on.set()
    wait_until(lambda: (job.poll(), in_log(store, Retire) == [1, 2, 3])[1], WAITS, "the rest")


@pytest.mark.parametrize("refusal", [StoreUnavailable("down"), StoreDenied("no s3:DeleteObject")])
def test_what_cannot_be_deleted_is_left_for_the_next_time_and_the_job_goes_on(
    job, store, monkeypatch, refusal
):
    def refuse(keys: Collection[str]) -> dict[str, MoorageError]:
        return dict.fromkeys(keys, refusal)

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete_many", refuse)
        for n in (1, 2):
            job.commit("a")
            job.due()
            assert job.settle() == [n]
        wait_until(
            lambda: (job.poll(), not job.checkpointer._housekeeper.busy)[1], WAITS, "the deletions"
        )
    assert "chk-1/MANIFEST" in {info.key for info in store.list("chk-")}
    job.commit("b")
    job.checkpointer.finish(job.epoch, job.boundary)
    job.checkpointer.finish_chores(job_finished=False)
    assert {info.key for info in store.list("chk-")} == {"chk-3/MANIFEST", "chk-3/f1r0/part-u"}


class TestPublishing:
    """Output is published beside the epochs, one checkpoint after the other."""

    @pytest.fixture
    def publishing(self, job):
        """Where publications stop until they are let go, in the order in which they came."""
        publish, entered, gate = job.output.publish, threading.Event(), threading.Event()

        def slowly(checkpoint_id: int, committables: Any) -> None:
            entered.set()
            assert gate.wait(WAITS), "the epochs waited for the sink"
            publish(checkpoint_id, committables)

        job.output.publish = slowly
        yield entered, gate
        gate.set()

    def test_epochs_go_on_meanwhile(self, job, publishing):
        entered, gate = publishing
        job.commit("a")
        job.due()
        wait_until(lambda: (job.poll(), entered.is_set())[1], WAITS, "the publication")
        for _ in range(3):
            an_epoch(job)
        gate.set()
        assert job.settle() == [1]

    def test_the_next_checkpoint_does_not_exist_before_all_is_published_that_it_leaves_out(
        self, job, store, publishing
    ):
        entered, gate = publishing
        job.fleet.gated = True
        for item in ("a", "b"):
            job.commit(item)
            job.due()
        job.fleet.gates[1].set()
        wait_until(lambda: (job.poll(), entered.is_set())[1], WAITS, "the publication")
        job.fleet.gates[2].set()
        second = job.checkpointer._works[2]
        wait_until(lambda: (job.poll(), second.uploaded)[1], WAITS, "the second upload")
        job.poll()
        assert in_log(store, Checkpoint) == [1]
        gate.set()
        assert job.settle() == [1, 2]
        assert job.output.published == {1: [{"file": "a"}], 2: [{"file": "b"}]}

    def test_the_last_checkpoint_is_over_when_its_output_is_published(self, job, publishing):
        _, gate = publishing
        job.commit("a")
        threading.Timer(0.05, gate.set).start()
        (report,) = job.checkpointer.finish(1, job.boundary)
        assert report.checkpoint_id == 1
        assert job.files == ["a"]

    def test_a_driver_that_another_took_over_from_publishes_nothing(self, job, store):
        """The other one claims between the log's entry and the publication."""
        refresh = LogWriter.refresh

        def overtaken(writer: LogWriter) -> None:
            if writer is job.writer:
                LogWriter.claim(store, job.writer.owner, "the next")
            refresh(writer)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogWriter, "refresh", overtaken)
            job.commit("a")
            job.due()
            with pytest.raises(MoorageError, match="another writer took over"):
                job.settle()
        assert job.output.published == {}
        assert job.checkpointer.broken
