"""Checkpoints on demand, and what is told of checkpoints."""

import pytest

from moorage.driver.requests import CheckpointRequest, SavepointRequest
from moorage_state.errors import (
    StoreUnavailable,
)
from moorage_state.snapshots import (
    Checkpoint,
    Savepoint,
)


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
    job.savepoint(SavepointRequest("before"))
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
    job.savepoint(SavepointRequest("before"))
    job.checkpointer.abandon(job_ends=True)
    assert not job.fleet.gates[1].is_set()
    assert job.entries(Savepoint) == []
