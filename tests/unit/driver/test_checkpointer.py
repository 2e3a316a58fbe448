"""What the driver does of what the coordinator decides: nothing is published twice or lost."""

import hashlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.jobs import wait_until
from msgspec.structs import replace

from moorage.driver.asked import stopped
from moorage.driver.checkpointer import Checkpointer
from moorage.driver.manifests import Boundary
from moorage.driver.reporter import Reporter
from moorage.driver.requests import CheckpointRequest, SavepointRequest
from moorage.engine.fleet import FleetUpload
from moorage.engine.watermarks import Watermarks
from moorage_state.errors import (
    Fenced,
    LocalDiskError,
    MoorageError,
    Retryable,
    StoreUnavailable,
    UserError,
)
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    Fence,
    FileRef,
    LogWriter,
    Owner,
    RangeHandle,
    Run,
    Savepoint,
    SavepointConflict,
    SavepointStore,
    manifest_digest,
)
from moorage_state.stores import MemoryStore, open_store

OWNER = Owner("c", "n", "j", "u")


class Fleet:
    """Ranges that are uploaded when the test says so."""

    def __init__(self) -> None:
        self.gates: dict[int, threading.Event] = {}
        self.errors: dict[int, MoorageError] = {}
        self.snapshots: list[int] = []
        self.dropped: list[int] = []
        self.completed: list[int] = []
        self.bases: dict[int, Any] = {}
        self.recovered = 0
        self.snapshot_error: MoorageError | None = None
        self.gated = False

    def snapshot(self, checkpoint_id: int) -> float:
        if self.snapshot_error is not None:
            raise self.snapshot_error
        self.snapshots.append(checkpoint_id)
        self.gates[checkpoint_id] = threading.Event()
        if not self.gated:
            self.gates[checkpoint_id].set()
        return 0.01

    def upload(self, checkpoint_id: int, base: Any) -> FleetUpload:
        self.bases[checkpoint_id] = base
        assert self.gates[checkpoint_id].wait(20)
        if checkpoint_id in self.errors:
            raise self.errors[checkpoint_id]
        handle = RangeHandle(
            uid="count",
            start=0,
            end=127,
            epoch=1,
            digest="d",
            backend_uuid="b",
            files=[],
            bytes_total=0,
        )
        return FleetUpload({"count": [handle]}, objects=1, bytes_written=10, bytes_inline=0)

    def save(self, checkpoint_id: int, *_args: Any, **_kwargs: Any) -> FleetUpload:
        return self.upload(checkpoint_id, {})

    def aborted(self, checkpoint_id: int) -> None:
        self.dropped.append(checkpoint_id)

    def complete(self, checkpoint_id: int, _epoch: int, _handles: Any) -> None:
        self.completed.append(checkpoint_id)

    def recover(self) -> None:
        self.recovered += 1


class Output:
    """Remembers what was published, by checkpoint."""

    def __init__(self) -> None:
        self.published: dict[int, list[Any]] = {}

    def publish(self, checkpoint_id: int, committables: Any) -> None:
        self.published[checkpoint_id] = [i for items in committables.values() for i in items]

    def retire(self, *_args: Any) -> None:
        pass

    @property
    def all(self) -> list[Any]:
        return [item for items in self.published.values() for item in items]


class Job:
    """A checkpointer with a clock that the test turns."""

    def __init__(self, objects: MemoryStore | None = None, **changes: Any) -> None:
        self.now = 100.0
        self.epoch = 0
        self.objects = objects or MemoryStore("driver")
        self.writer = LogWriter.claim(self.objects, OWNER, "test")
        self.writer.append(Run(self.writer.fence, 0))
        self.fleet, self.output = Fleet(), Output()
        self.said: list[str] = []
        self.reporter = Reporter(lambda _progress: None)
        settings = {
            "name": "j",
            "interval_seconds": 10.0,
            "checkpoint_cron": None,
            "min_pause_seconds": 0.0,
            "timeout_seconds": 60.0,
            "max_concurrent": 1,
            "tolerable_failures": 1,
            "fail_on_tolerance": False,
            "incremental": True,
            "in_one_epoch": False,
            "retain": 2,
            "parallelism": 1,
            "max_parallelism": 128,
            "key_hash": "spark-xxhash64",
            "restore": SimpleNamespace(uid_mapping={}),
            "savepoint_dir": "memory://",
            "savepoint_url": lambda name: f"memory://{name}",
        }
        operator = SimpleNamespace(uid="count", key_types=("bigint",))
        self.checkpointer = Checkpointer(
            SimpleNamespace(**{**settings, **changes}),  # type: ignore[arg-type]
            SimpleNamespace(operators=[operator], sinks=[]),  # type: ignore[arg-type]
            CheckpointStore(self.objects),
            self.writer,
            self.fleet,  # type: ignore[arg-type]
            0,
            None,
            epoch=0,
            output=self.output,  # type: ignore[arg-type]
            tell=self.said.append,
            watch=self.reporter,
            clock=lambda: self.now,
        )

    def boundary(self) -> Boundary:
        return Boundary(self.epoch, {}, Watermarks({}), {})

    def commit(self, *items: str) -> None:
        """An epoch that stages `items`."""
        self.epoch += 1
        self.checkpointer.staged(self.epoch, {"out": [{"file": item} for item in items]})

    def poll(self) -> list[int]:
        reports = self.checkpointer.poll(self.epoch, self.boundary)
        return [report.checkpoint_id for report in reports]

    def settle(self) -> list[int]:
        """Poll until nothing is under way; ids that completed."""
        done: list[int] = []

        def quiet() -> bool:
            done.extend(self.poll())
            return not self.checkpointer.under_way

        wait_until(quiet, 20, "the end of all checkpoints")
        return done

    def due(self) -> None:
        """Let the time of the next periodic checkpoint come."""
        self.now += 25.0
        self.poll()

    @property
    def files(self) -> list[str]:
        return sorted(item["file"] for item in self.output.all)

    def entries(self, kind: type) -> list[Any]:
        return [entry for entry in self.writer.entries if isinstance(entry, kind)]


@pytest.fixture
def make_job():
    jobs: list[Job] = []

    def make(**changes: Any) -> Job:
        jobs.append(Job(**changes))
        return jobs[-1]

    yield make
    for job in jobs:
        for gate in job.fleet.gates.values():
            gate.set()
        job.checkpointer.abandon()
    for name in ("before", "twice"):
        MemoryStore.forget(name)


def test_a_checkpoint_covers_what_epochs_staged_since_the_one_before(make_job):
    job = make_job()
    job.commit("a")
    job.commit("b")
    job.due()
    assert job.settle() == [1]
    job.commit("c")
    job.due()
    assert job.settle() == [2]
    assert job.output.published == {
        1: [{"file": "a"}, {"file": "b"}],
        2: [{"file": "c"}],
    }
    assert job.fleet.completed == [1, 2]


def test_without_a_new_epoch_there_is_no_periodic_checkpoint(make_job):
    job = make_job()
    job.due()
    job.commit("a")
    job.due()
    job.settle()
    for _ in range(3):
        job.due()
    assert job.settle() == []
    assert job.fleet.snapshots == [1]


def test_a_failed_upload_loses_nothing_and_the_next_covers_it(make_job):
    job = make_job()
    job.commit("a")
    job.fleet.errors[1] = StoreUnavailable("down")
    job.due()
    assert job.settle() == []
    assert job.fleet.dropped == [1]
    job.commit("b")
    job.due()
    assert job.settle() == [2]
    assert job.files == ["a", "b"]


def test_more_failures_than_are_tolerated_are_said_and_the_job_goes_on(make_job):
    job = make_job()
    job.commit("a")
    for checkpoint_id in (1, 2):
        job.fleet.errors[checkpoint_id] = StoreUnavailable("down")
        job.due()
        job.settle()
    assert len(job.said) == 1
    assert "more checkpoints failed in a row" in job.said[0]


def test_more_failures_than_are_tolerated_end_a_job_that_wants_that(make_job):
    job = make_job(fail_on_tolerance=True, tolerable_failures=0)
    job.commit("a")
    job.fleet.errors[1] = StoreUnavailable("the store is down")
    job.due()
    with pytest.raises(MoorageError, match="the store is down"):
        job.settle()


def test_a_server_that_cannot_snapshot_is_brought_back_and_costs_a_checkpoint(make_job):
    job = make_job()
    job.commit("a")
    job.fleet.snapshot_error = Retryable("connection lost")
    job.due()
    assert (job.fleet.recovered, job.fleet.dropped) == (1, [1])
    job.fleet.snapshot_error = None
    job.due()
    assert job.settle() == [2]
    assert job.files == ["a"]


@pytest.mark.scenario(27)
@pytest.mark.parametrize("where", ["snapshot", "upload"])
def test_a_full_disk_costs_the_checkpoint_and_the_job_goes_on(make_job, where):
    job = make_job()
    job.commit("a")
    full = LocalDiskError("volume /var/lib/moorage is full: used=100%")
    if where == "snapshot":
        job.fleet.snapshot_error = full
    else:
        job.fleet.errors[1] = full
    job.due()
    assert job.settle() == []
    assert job.reporter.progress.last_failure is not None
    job.fleet.snapshot_error = None
    job.due()
    assert job.settle() == [2]
    assert job.files == ["a"]
    assert job.fleet.recovered == (1 if where == "snapshot" else 0)


def test_a_disk_so_full_that_ranges_cannot_be_opened_again_ends_the_run(make_job, monkeypatch):
    job = make_job()
    job.commit("a")
    job.fleet.snapshot_error = LocalDiskError("full")

    def refuse() -> None:
        raise LocalDiskError("still full")

    monkeypatch.setattr(job.fleet, "recover", refuse)
    with pytest.raises(LocalDiskError, match="still full"):
        job.due()


def test_a_newer_checkpoint_that_completes_first_takes_the_output_of_the_older(make_job):
    job = make_job(max_concurrent=2)
    job.fleet.gated = True
    job.commit("a")
    job.due()
    job.commit("b")
    job.due()
    assert job.fleet.snapshots == [1, 2]
    job.fleet.gates[2].set()
    wait_until(lambda: 2 in job.poll(), 20, "checkpoint 2")
    job.fleet.gates[1].set()
    job.settle()
    assert job.output.published == {2: [{"file": "a"}, {"file": "b"}]}
    assert job.fleet.completed == [2]


def test_of_two_under_way_the_newer_does_not_publish_again_what_the_older_did(make_job):
    job = make_job(max_concurrent=2)
    job.fleet.gated = True
    job.commit("a")
    job.due()
    job.commit("b")
    job.due()
    job.fleet.gates[1].set()
    wait_until(lambda: 1 in job.poll(), 20, "checkpoint 1")
    job.fleet.gates[2].set()
    job.settle()
    assert job.output.published == {1: [{"file": "a"}], 2: [{"file": "b"}]}


def test_one_that_takes_too_long_is_given_up_and_its_files_are_dropped(make_job):
    job = make_job()
    job.fleet.gated = True
    job.commit("a")
    job.due()
    job.fleet.gated = False
    job.now += 61.0
    job.poll()
    assert job.fleet.dropped == [1]
    job.fleet.gates[1].set()
    assert job.settle() == [2]
    assert [e.checkpoint_id for e in job.entries(Checkpoint)] == [2]


def test_a_driver_that_another_took_over_from_ends_and_completes_nothing(make_job):
    job = make_job()
    job.fleet.gated = True
    job.commit("a")
    job.due()
    other = LogWriter.claim(job.objects, OWNER, "other")
    job.fleet.gates[1].set()
    with pytest.raises(Fenced):
        job.settle()
    other.refresh()
    assert not [e for e in other.entries if isinstance(e, Checkpoint)]
    assert [e.fence for e in other.entries if isinstance(e, Fence)] == [1, 2]
    assert job.output.published == {}


def test_a_savepoint_publishes_nothing_and_holds_what_is_not_published(make_job):
    job = make_job()
    job.commit("a")
    request = SavepointRequest("before")
    job.checkpointer.savepoint(request, job.boundary)
    job.settle()
    view = request.wait(0)
    assert view is not None
    assert (view.url, view.epoch) == ("memory://before", 1)
    manifest = SavepointStore("memory://before").load()
    assert (manifest.kind, manifest.name, manifest.checkpoint_id) == ("savepoint", "before", 1)
    assert manifest.sinks == {"out": [{"file": "a"}]}
    assert [e.url for e in job.entries(Savepoint)] == ["memory://before"]
    assert job.output.published == {}
    assert job.fleet.dropped == [1]
    job.due()
    assert job.settle() == [2]
    assert job.files == ["a"]


def test_a_savepoint_of_a_name_that_is_taken_is_refused(make_job):
    job = make_job()
    for name in ("twice", "twice"):
        request = SavepointRequest(name)
        job.checkpointer.savepoint(request, job.boundary)
        job.settle()
    with pytest.raises(UserError, match="choose another name"):
        request.wait(0)
    assert len(job.entries(Savepoint)) == 1


def test_a_savepoint_that_fails_tells_who_asked_and_the_job_goes_on(make_job):
    job = make_job()
    job.commit("a")
    job.fleet.errors[1] = StoreUnavailable("down")
    request = SavepointRequest("before")
    job.checkpointer.savepoint(request, job.boundary)
    assert job.settle() == []
    with pytest.raises(MoorageError, match="down"):
        request.wait(0)
    job.due()
    assert job.settle() == [2]


def test_the_last_checkpoint_is_taken_only_if_something_happened(make_job):
    job = make_job()
    assert job.checkpointer.finish(0, job.boundary) == []
    job.commit("a")
    (report,) = job.checkpointer.finish(1, job.boundary)
    assert report.epoch == 1
    assert job.files == ["a"]
    assert job.checkpointer.finish(1, job.boundary) == []


def test_the_last_checkpoint_that_fails_says_why(make_job):
    job = make_job()
    job.commit("a")
    job.fleet.errors[1] = StoreUnavailable("bucket is gone")
    with pytest.raises(MoorageError, match="bucket is gone"):
        job.checkpointer.finish(1, job.boundary)


def test_what_a_run_leaves_under_way_completes_never_or_before_it_is_left(make_job):
    job = make_job()
    job.fleet.gated = True
    job.commit("a")
    job.due()
    threading.Timer(0.05, job.fleet.gates[1].set).start()
    job.checkpointer.abandon()
    assert job.entries(Checkpoint) == []


def test_a_savepoint_may_overtake_a_checkpoint(make_job):
    job = make_job()
    job.fleet.gated = True
    job.commit("a")
    job.due()
    request = SavepointRequest("before")
    job.checkpointer.savepoint(request, job.boundary)
    job.fleet.gates[2].set()
    wait_until(lambda: (job.poll(), request.wait(0))[1], 20, "the savepoint")
    job.fleet.gates[1].set()
    assert job.settle() == [1]
    assert job.files == ["a"]


def test_a_checkpoint_that_overtakes_a_savepoint_leaves_it_its_output(make_job):
    job = make_job(max_concurrent=2)
    job.fleet.gated = True
    job.commit("a")
    request = SavepointRequest("before")
    job.checkpointer.savepoint(request, job.boundary)
    job.commit("b")
    job.due()
    job.fleet.gates[2].set()
    wait_until(lambda: 2 in job.poll(), 20, "checkpoint 2")
    job.fleet.gates[1].set()
    wait_until(lambda: (job.poll(), request.wait(0))[1], 20, "the savepoint")
    assert SavepointStore("memory://before").load().sinks == {"out": [{"file": "a"}]}
    assert job.files == ["a", "b"]


def test_who_waits_for_a_savepoint_hears_of_it_when_the_run_ends(make_job, monkeypatch):
    job = make_job()
    inside, gate, create = threading.Event(), threading.Event(), SavepointStore.create

    def slowly(self: SavepointStore, manifest: Any) -> str:
        inside.set()
        assert gate.wait(20)
        return create(self, manifest)

    monkeypatch.setattr(SavepointStore, "create", slowly)
    job.commit("a")
    request = SavepointRequest("before")
    job.checkpointer.savepoint(request, job.boundary)
    wait_until(lambda: (job.poll(), inside.is_set())[1], 20, "the manifest")
    threading.Timer(0.05, gate.set).start()
    job.checkpointer.abandon()
    assert request.wait(0) is not None


def test_a_savepoint_that_the_end_of_the_run_aborts_is_handed_back(make_job):
    job = make_job()
    job.fleet.gated = True
    job.commit("a")
    request = SavepointRequest("before")
    job.checkpointer.savepoint(request, job.boundary)
    job.fleet.gated = False
    job.checkpointer.finish(job.epoch, job.boundary)
    assert job.checkpointer.take_suspended() == [request]
    assert request.wait(0) is None
    assert "use --stop" in str(stopped(request))


def test_a_sink_that_fails_ends_the_run_for_good(make_job):
    job = make_job()

    def failing(*_args: Any) -> None:
        raise StoreUnavailable("the sink's store is down")

    job.output.publish = failing
    job.commit("a")
    with pytest.raises(StoreUnavailable):
        job.checkpointer.finish(job.epoch, job.boundary)
    assert job.checkpointer.broken


def test_whatever_goes_wrong_with_a_savepoint_the_job_goes_on(make_job, monkeypatch):
    job = make_job()

    def broken(*_args: Any, **_kwargs: Any) -> FleetUpload:
        raise ZeroDivisionError("in somebody's library")

    monkeypatch.setattr(job.fleet, "save", broken)
    request = SavepointRequest("before")
    job.checkpointer.savepoint(request, job.boundary)
    assert job.settle() == []
    with pytest.raises(MoorageError, match="ZeroDivisionError: in somebody's library"):
        request.wait(0)
    job.commit("a")
    job.due()
    assert job.settle() == [2]


# -- on demand, and what is told -------------------------------------------------------------


def test_a_checkpoint_that_is_asked_for_is_taken_even_if_nothing_happened_since(make_job):
    job = make_job()
    job.commit("a")
    for number in (1, 2):
        request = CheckpointRequest()
        job.checkpointer.checkpoint(request, job.boundary)
        job.settle()
        view = request.wait(0)
        assert view is not None
        assert (view.checkpoint_id, view.epoch) == (number, 1)
    assert [e.checkpoint_id for e in job.entries(Checkpoint)] == [1, 2]
    assert job.files == ["a"]


def test_a_checkpoint_that_is_asked_for_waits_its_turn(make_job):
    job = make_job()
    job.fleet.gated = True
    job.commit("a")
    requests = [CheckpointRequest(), CheckpointRequest()]
    for request in requests:
        job.checkpointer.checkpoint(request, job.boundary)
    assert [request.state for request in requests] == ["Running", "Running"]
    assert job.fleet.snapshots == [1]
    job.fleet.gated = False
    job.fleet.gates[1].set()
    job.settle()
    views = [request.wait(0) for request in requests]
    assert [view and view.checkpoint_id for view in views] == [1, 2]


def test_why_a_requested_checkpoint_failed_is_its_answer(make_job):
    job = make_job()
    job.commit("a")
    job.fleet.errors[1] = StoreUnavailable("down")
    request = CheckpointRequest()
    job.checkpointer.checkpoint(request, job.boundary)
    job.settle()
    with pytest.raises(StoreUnavailable, match="down"):
        request.wait(0)


def test_what_becomes_of_checkpoints_is_told(make_job):
    job = make_job()
    job.commit("a")
    job.fleet.errors[1] = StoreUnavailable("down")
    job.due()
    job.settle()
    told = job.reporter.progress
    assert (told.failed_checkpoints, told.failed_in_a_row) == (1, 1)
    assert told.storage_error == "down"
    assert told.last_failure is not None
    assert told.last_failure.code == "CHECKPOINT_ASYNC_EXCEPTION"
    job.checkpointer.savepoint(SavepointRequest("before"), job.boundary)
    job.settle()
    told = job.reporter.progress
    assert (told.completed_checkpoints, told.failed_in_a_row, told.storage_error) == (0, 1, "")
    assert told.last_savepoint is not None
    assert told.last_savepoint.manifest_digest.startswith("sha256:")
    job.due()
    job.settle()
    told = job.reporter.progress
    assert (told.completed_checkpoints, told.failed_in_a_row) == (1, 0)
    kinds = [(r.checkpoint_id, r.kind, r.state) for r in told.checkpoints]
    assert kinds == [
        (3, "Checkpoint", "Completed"),
        (2, "Savepoint", "Completed"),
        (1, "Checkpoint", "Failed"),
    ]


def test_what_is_given_up_because_the_run_ends_is_no_failure(make_job):
    job = make_job()
    job.fleet.gated = True
    job.commit("a")
    request = CheckpointRequest()
    job.checkpointer.checkpoint(request, job.boundary)
    job.fleet.gates[1].set()
    job.checkpointer.abandon()
    told = job.reporter.progress
    assert (told.failed_checkpoints, told.last_failure) == (0, None)
    assert job.checkpointer.take_suspended() == [request]


def test_the_end_of_the_job_waits_for_no_upload(make_job):
    job = make_job()
    job.fleet.gated = True
    job.commit("a")
    job.checkpointer.savepoint(SavepointRequest("before"), job.boundary)
    job.checkpointer.abandon(job_ends=True)
    assert not job.fleet.gates[1].is_set()
    assert job.entries(Savepoint) == []


# -- savepoints that another driver began --------------------------------------------------------


@pytest.fixture
def make_filed_job(make_job, tmp_path):
    """Jobs whose savepoints are directories, with one file in each range."""

    def make(objects: MemoryStore | None = None) -> Job:
        job = make_job(
            objects=objects,
            savepoint_dir=f"file://{tmp_path}",
            savepoint_url=lambda name: f"file://{tmp_path}/{name}",
        )

        def save(_id: int, _epoch: int, url: str, *_args: Any, **_kwargs: Any) -> FleetUpload:
            open_store(url).put("state/count/0-127/000001.sst", b"files of this run")
            sha = hashlib.sha256(b"files of this run").hexdigest()
            name = "000001.sst"
            file = FileRef(
                name=name, key=f"state/count/0-127/{name}", size=17, sha256=sha, shared=False
            )
            handle = job.fleet.upload(_id, {}).handles["count"][0]
            handle = replace(handle, files=[file], bytes_total=17)
            return FleetUpload({"count": [handle]}, objects=1, bytes_written=17, bytes_inline=0)

        job.fleet.save = save
        return job

    return make


def asked(job: Job, request_id: str = "s-1") -> SavepointRequest:
    request = SavepointRequest("kept", request_id=request_id)
    job.checkpointer.savepoint(request, job.boundary)
    job.settle()
    return request


def test_what_an_ended_driver_began_is_carried_on_beside_its_files(make_filed_job, tmp_path):
    begun = SavepointStore(f"file://{tmp_path}/kept", create=True)
    assert begun.begin("s-1")
    begun.store.put("state/count/0-127/000001.sst", b"files of another")
    job = make_filed_job()
    view = asked(job).wait(0)
    assert view is not None
    manifest = begun.verify(full=True)
    assert [file.key for file in manifest.files] == ["f1r0-1/state/count/0-127/000001.sst"]
    assert begun.store.get("state/count/0-127/000001.sst") == b"files of another"
    assert view.manifest_digest == begun.digest()


def test_a_request_that_follows_a_failed_one_carries_on_under_its_attempt(make_filed_job, tmp_path):
    begun = SavepointStore(f"file://{tmp_path}/kept", create=True)
    assert begun.begin("s-1")
    job = make_filed_job()
    request = SavepointRequest("kept", attempt="s-1", request_id="s-1.1")
    job.checkpointer.savepoint(request, job.boundary)
    job.settle()
    assert request.wait(0) is not None
    assert begun.completed_by("s-1") is not None


def test_a_savepoint_that_is_complete_is_the_answer_to_its_own_request_alone(make_filed_job):
    made = make_filed_job()
    first = asked(made).wait(0)
    assert first is not None
    job = make_filed_job(made.objects)
    again = asked(job).wait(0)
    assert again is not None
    assert (again.url, again.checkpoint_id) == (first.url, first.checkpoint_id)
    assert (again.manifest_digest, again.bytes_total) == (first.manifest_digest, 17)
    assert len(job.entries(Savepoint)) == 1
    assert job.reporter.progress.last_savepoint == again
    for other, request_id in ((job, "s-2"), (make_filed_job(), "s-1")):
        with pytest.raises(SavepointConflict, match="choose another name"):
            asked(other, request_id).wait(0)


def test_of_two_drivers_that_complete_one_savepoint_the_first_has_made_it(make_filed_job, tmp_path):
    stalled = make_filed_job()
    asked(stalled)
    # It had announced the savepoint when it fell asleep, and had not made it exist.
    place = tmp_path / "kept" / "MANIFEST"
    made = place.read_bytes()
    place.unlink()
    job = make_filed_job(stalled.objects)
    ours = job.fleet.save

    def while_it_wakes(*args: Any, **kwargs: Any) -> FleetUpload:
        saved = ours(*args, **kwargs)
        place.write_bytes(made)
        return saved

    job.commit("a")
    job.fleet.save = while_it_wakes
    view = asked(job).wait(0)
    assert view is not None
    assert view.manifest_digest == SavepointStore(view.url).digest() == manifest_digest(made)
    assert (view.checkpoint_id, view.epoch) == (1, 0)
    assert [e.checkpoint_id for e in job.entries(Savepoint)] == [1, 2]


def test_another_lineages_savepoint_is_never_taken_for_ones_own(make_filed_job, tmp_path):
    asked(make_filed_job())
    place = tmp_path / "kept" / "MANIFEST"
    made = place.read_bytes()
    place.unlink()
    job = make_filed_job()
    ours = job.fleet.save
    job.fleet.save = lambda *a, **k: (ours(*a, **k), place.write_bytes(made))[0]
    with pytest.raises(SavepointConflict):
        asked(job).wait(0)
