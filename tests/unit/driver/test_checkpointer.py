"""What the driver does of what the coordinator decides: nothing is published twice or lost."""

import threading
from contextlib import nullcontext
from typing import Any

import pytest
from moorage_testing.checkpointed_job import OWNER
from moorage_testing.jobs import wait_until
from moorage_testing.manifests import checkpoint_manifest
from moorage_testing.savepoint_dirs import make_savepoint

from moorage.driver.coordination import stopped
from moorage.driver.output import PendingSavepoint
from moorage.driver.refusals import RestorePointNotFound
from moorage.driver.reporter import DETAILED
from moorage.driver.requests import CheckpointRequest, SavepointRequest
from moorage.engine.fleet import FleetUpload
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
    Fence,
    LineageLog,
    LogWriter,
    Run,
    Savepoint,
    SavepointStore,
    retained,
)
from moorage_state.snapshots.object_keys import VIEW_KEY
from moorage_state.stores import MemoryStore
from moorage_state.tuning import ChangelogOptions


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


def test_what_the_log_says_is_put_together_while_checkpoints_are_taken(make_job):
    job = make_job()
    for number in range(1, 7):
        job.commit(str(number))
        job.due()
        assert job.settle() == [number]
        wait_until(lambda: (job.poll(), not job.housekeeper.busy)[1])
    assert job.objects.head(VIEW_KEY) is not None

    def agree():
        """A retirement may come between the two."""
        view = LineageLog.open(job.objects).view().records
        entries = LineageLog.open(job.objects).read_records()
        assert len(view) < len(entries)
        return retained([r.entry for r in view]) == retained([r.entry for r in entries])

    wait_until(agree)


def test_a_record_says_who_wrote_the_latest_and_how_long_each_part_of_it_took(make_job):
    job = make_job()
    for number in range(1, DETAILED + 3):
        job.commit(str(number))
        job.due()
        assert job.settle() == [number]
    records = job.reporter.progress.checkpoints
    assert [bool(record.parts) for record in records] == [True] * DETAILED + [False] * 2
    newest = records[0]
    assert (newest.epoch, newest.pause_seconds) == (DETAILED + 2, 0.01)
    assert sum(part.objects for part in newest.parts) == newest.objects_written


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


def test_a_job_with_nothing_to_do_ends_once_another_one_was_seen_to_go_on(make_job):
    job = make_job()
    job.commit("a")
    job.due()
    assert job.settle() == [1]
    assert job.poll() == []  # its chores are done, which would find out as well
    LogWriter.claim(job.objects, OWNER, "another")
    assert job.poll() == []
    with pytest.raises(Fenced):
        job.writer.watch()
    with pytest.raises(Fenced, match="another"):
        job.poll()


def test_what_is_uploaded_within_an_epoch_is_published_within_it(make_job):
    job = make_job(publishes_commits=True, changelog=ChangelogOptions(True, 60.0, 1))
    job.commit("a")
    assert job.poll() == []
    job.within()
    wait_until(lambda: job.files == ["a"])
    # What follows is for the boundary, which begins the next one at once.
    assert job.fleet.completed == []
    job.checkpointer._background.join(20)
    job.commit("b")
    assert job.poll() == [1]
    assert (job.fleet.completed, job.fleet.snapshots) == ([1], [1, 2])
    assert job.settle() == [2]
    assert job.output.published == {1: [{"file": "a"}], 2: [{"file": "b"}]}


def test_what_fails_within_an_epoch_waits_for_its_end(make_job):
    job = make_job()
    job.commit("a")
    job.fleet.errors[1] = StoreUnavailable("down")
    job.due()
    job.within()
    assert (job.fleet.dropped, job.files) == ([], [])
    assert job.settle() == []
    assert job.fleet.dropped == [1]


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


def test_a_checkpoint_that_ranges_may_still_read_stays_until_they_do_not(make_job):
    job = make_job(retain=1)
    kept = []
    for reads in (1, 1, 3):
        job.fleet.reads_from = frozenset({reads})
        job.commit("a")
        job.due()
        job.settle()
        wait_until(lambda: (job.poll(), not job.housekeeper.busy)[1], 20, "old ones to be let go")
        kept.append([one.checkpoint_id for one in job.completed.checkpoints])
    assert kept == [[1], [1, 2], [3]]


def test_a_claimed_savepoint_that_ranges_may_still_read_stays_until_they_do_not(make_job):
    job, savepoint = make_job(retain=1), MemoryStore.named("before")
    digest = make_savepoint(savepoint)
    job.writer.append(Run(job.writer.fence, 1, savepoint.url, explicit=True, claimed=digest))
    kept = []
    for reads in (True, True, False):
        job.fleet.reads_elsewhere = reads
        job.commit("a")
        job.due()
        job.settle()
        wait_until(lambda: (job.poll(), not job.housekeeper.busy)[1], 20, "old ones to be let go")
        kept.append(len(list(savepoint.list(""))))
    assert kept == [5, 5, 0]


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
    job.savepoint(request)
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
        job.savepoint(request)
        job.settle()
    with pytest.raises(UserError, match="choose another name"):
        request.wait(0)
    assert len(job.entries(Savepoint)) == 1


def test_a_savepoint_that_fails_tells_who_asked_and_the_job_goes_on(make_job):
    job = make_job()
    job.commit("a")
    job.fleet.errors[1] = StoreUnavailable("down")
    request = SavepointRequest("before")
    job.savepoint(request)
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


@pytest.mark.parametrize("finished", [True, False])
def test_who_takes_over_when_all_is_done_makes_no_failure_of_a_finished_job(
    make_job, monkeypatch, finished
):
    job = make_job()

    def overtaken(*_args: Any) -> None:
        LogWriter.claim(job.objects, OWNER, "the next")
        job.writer.refresh()

    monkeypatch.setattr(job.completed, "subsume", overtaken)
    job.commit("a")
    job.checkpointer.finish(job.epoch, job.boundary)
    with nullcontext() if finished else pytest.raises(Fenced):
        job.checkpointer.finish_chores(job_finished=finished)


def test_where_nothing_is_left_to_go_on_from_it_is_said_what_to_do(make_job):
    job = make_job(checkpoint_dir="s3://state/clicks")
    with pytest.raises(RestorePointNotFound) as told:
        job.checkpointer.restore(must_exist=True)
    assert "job=j checkpointDir=s3://state/clicks; see what there is with" in str(told.value)
    assert job.writer.lineage not in str(told.value)


def test_ids_go_on_above_that_of_a_copy_that_a_log_which_was_set_back_does_not_name(make_job):
    job = make_job()
    copy = checkpoint_manifest(job.writer.lineage, 9, kind="savepoint")
    job.completed.begin_from(copy, "file:///copy", own=False)
    assert job.checkpointer.restore(must_exist=True) == copy
    assert job.checkpointer.next_id == 10
    strange = checkpoint_manifest("another", 99, kind="savepoint")
    job.completed.begin_from(strange, "file:///of-another-lineage", own=False)
    job.checkpointer.restore(must_exist=True)
    assert job.checkpointer.next_id == 10


def test_the_last_checkpoint_that_fails_says_why(make_job):
    job = make_job()
    job.commit("a")
    job.fleet.errors[1] = StoreUnavailable("bucket is gone")
    with pytest.raises(MoorageError, match="bucket is gone"):
        job.checkpointer.finish(1, job.boundary)


@pytest.fixture
def overtaken(make_job):
    """A driver that listed ids before the manifest of the first came from the one it replaced."""
    replaced = make_job()
    replaced.commit("late")
    job = make_job(objects=replaced.objects, fail_on_tolerance=True, tolerable_failures=0)
    replaced.due()
    with pytest.raises(Fenced):
        replaced.settle()
    assert job.objects.head("chk-1/MANIFEST") is not None
    job.commit("a")
    return job


def test_a_periodic_checkpoint_whose_id_was_taken_has_the_next(overtaken):
    overtaken.due()
    assert overtaken.settle() == [2]
    assert overtaken.files == ["a"]


@pytest.mark.parametrize("finished", [True, False])
def test_so_has_the_last_of_a_run(overtaken, finished):
    (report,) = overtaken.checkpointer.finish(1, overtaken.boundary, finished=finished)
    assert report.checkpoint_id == 2
    assert overtaken.files == ["a"]


def test_so_has_one_that_is_finalized_when_the_run_is_to_end(overtaken):
    overtaken.due()
    overtaken.within()
    (report,) = overtaken.checkpointer.finish(1, overtaken.boundary)
    assert report.checkpoint_id == 2
    assert overtaken.files == ["a"]


def test_so_has_one_that_was_asked_for(overtaken):
    request = CheckpointRequest()
    overtaken.checkpointer.checkpoint(request, overtaken.boundary)
    overtaken.settle()
    view = request.wait(0)
    assert view is not None
    assert view.checkpoint_id == 2


def test_a_savepoint_lies_elsewhere_and_keeps_its_id(overtaken):
    request = SavepointRequest("apart")
    overtaken.savepoint(request)
    overtaken.settle()
    view = request.wait(0)
    assert view is not None
    assert view.checkpoint_id == 1


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
    job.savepoint(request)
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
    job.savepoint(request)
    job.commit("b")
    job.due()
    job.fleet.gates[2].set()
    wait_until(lambda: 2 in job.poll(), 20, "checkpoint 2")
    job.fleet.gates[1].set()
    wait_until(lambda: (job.poll(), request.wait(0))[1], 20, "the savepoint")
    assert SavepointStore("memory://before").load().sinks == {"out": [{"file": "a"}]}
    assert job.files == ["a", "b"]


def test_sinks_hear_what_a_savepoint_under_way_covers_when_they_may_forget(make_job):
    job = make_job(max_concurrent=2)
    job.fleet.gated = True
    job.commit("a", "b")
    request = SavepointRequest("before")
    job.savepoint(request)
    job.commit("c")
    job.due()
    job.fleet.gates[2].set()
    wait_until(lambda: 2 in job.poll(), 20, "checkpoint 2")
    wait_until(lambda: (job.poll(), job.output.pending)[1], 20, "sinks to hear")
    items = {"out": [{"file": "a"}, {"file": "b"}]}
    assert job.output.pending == [PendingSavepoint(job.writer.fence, 0, 1, 1, items)]
    job.fleet.gates[1].set()
    wait_until(lambda: (job.poll(), request.wait(0))[1], 20, "the savepoint")
    job.fleet.gated = False
    job.commit("d")
    job.due()
    job.settle()
    wait_until(lambda: (job.poll(), not job.output.pending)[1], 20, "sinks to hear")


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
    job.savepoint(request)
    wait_until(lambda: (job.poll(), inside.is_set())[1], 20, "the manifest")
    threading.Timer(0.05, gate.set).start()
    job.checkpointer.abandon()
    assert request.wait(0) is not None


def test_a_savepoint_that_the_end_of_the_run_aborts_is_handed_back(make_job):
    job = make_job()
    job.fleet.gated = True
    job.commit("a")
    request = SavepointRequest("before")
    job.savepoint(request)
    job.fleet.gated = False
    job.checkpointer.finish(job.epoch, job.boundary)
    assert job.checkpointer.take_suspended() == [request]
    assert request.wait(0) is None
    assert "use --stop" in str(stopped(request))


def test_so_is_one_whose_place_is_being_looked_for(make_job, monkeypatch):
    job, gate, asked = make_job(), threading.Event(), SavepointStore.completed_by

    def slowly(self: SavepointStore, attempt: str) -> Any:
        assert gate.wait(20)
        return asked(self, attempt)

    monkeypatch.setattr(SavepointStore, "completed_by", slowly)
    job.commit("a")
    request = SavepointRequest("before")
    job.checkpointer.savepoint(request, job.boundary)
    threading.Timer(0.05, gate.set).start()
    job.checkpointer.finish(job.epoch, job.boundary)
    assert job.checkpointer.last is not None
    job.checkpointer.abandon()
    assert job.checkpointer.take_suspended() == [request]
    assert request.wait(0) is None


@pytest.mark.parametrize("error", [Retryable("upload was stopped"), StoreUnavailable("down")])
def test_an_upload_that_is_stopped_fails_unheard_unless_its_store_is_away(make_job, caplog, error):
    job = make_job()
    job.fleet.gated = True
    job.commit("a")
    job.due()
    job.fleet.gated = False
    job.checkpointer.finish(job.epoch, job.boundary)
    job.fleet.errors[1] = error
    job.fleet.gates[1].set()
    job.checkpointer._background.join(20)
    job.poll()
    is_heard = isinstance(error, StoreUnavailable)
    assert ("checkpoint failed" in caplog.text, bool(job.reporter.progress.storage_error)) == (
        is_heard,
        is_heard,
    )
    assert job.files == ["a"]


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
    job.savepoint(request)
    assert job.settle() == []
    with pytest.raises(MoorageError, match="ZeroDivisionError: in somebody's library"):
        request.wait(0)
    job.commit("a")
    job.due()
    assert job.settle() == [2]


def test_a_volume_full_of_what_no_checkpoint_has_gets_one_before_its_time(make_job):
    job = make_job()
    job.fleet.crowded = True
    job.commit("a")
    job.poll()
    assert job.settle() == [1]
    job.poll()
    assert job.fleet.snapshots == [1], "there is nothing new"
    job.fleet.crowded = False
    job.commit("b")
    job.poll()
    assert job.fleet.snapshots == [1]
