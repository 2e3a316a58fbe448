"""Why a checkpoint of a job fails: the reason that is told, and whether it counts."""

import re
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.jobs import wait_until

from moorage.driver.manifests import Boundary
from moorage.driver.requests import CheckpointRequest
from moorage_state.coordinator import CheckpointFailureReason
from moorage_state.errors import (
    LocalDiskError,
    ServerGone,
    StaleLease,
    StoreUnavailable,
    UserError,
)
from moorage_state.snapshots import (
    CheckpointStore,
)

GONE = ServerGone("state server does not answer: address=unix:/0.sock")


@pytest.mark.parametrize(
    ("where", "error", "reason", "counted"),
    [
        ("boundary", UserError("no log of spark's"), "TRIGGER_CHECKPOINT_FAILURE", 0),
        ("snapshot", LocalDiskError("full"), "TASK_CHECKPOINT_FAILURE", 0),
        ("snapshot", GONE, "TASK_FAILURE", 0),
        ("upload", StaleLease("not here"), "UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE", 0),
        ("upload", GONE, "TASK_FAILURE", 0),
        ("upload", StoreUnavailable("down"), "CHECKPOINT_ASYNC_EXCEPTION", 1),
        ("upload", LocalDiskError("full"), "CHECKPOINT_ASYNC_EXCEPTION", 1),
    ],
)
def test_what_failed_of_a_checkpoint_is_its_reason(make_job, where, error, reason, counted):
    job = make_job()
    job.commit("a")
    request = CheckpointRequest()
    if where == "snapshot":
        job.fleet.snapshot_error = error
    elif where == "upload":
        job.fleet.errors[1] = error

    def at() -> Boundary:
        if where == "boundary":
            raise error
        return job.boundary()

    job.checkpointer.checkpoint(request, at)
    job.settle()
    with pytest.raises(type(error), match=str(error)):
        request.wait(0)
    told = job.reporter.progress
    assert told.last_failure is not None
    assert (told.last_failure.code, told.failed_in_a_row) == (reason, counted)


def test_lost_servers_do_not_end_a_job_that_tolerates_no_failed_checkpoint(make_job):
    job = make_job(fail_on_tolerance=True, tolerable_failures=0)
    job.commit("a")
    job.fleet.errors[1] = GONE
    job.due()
    assert job.settle() == []
    job.due()
    assert job.settle() == [2]
    assert job.files == ["a"]


def test_an_old_and_a_slow_checkpoint_and_one_that_the_log_refuses_say_so(make_job, monkeypatch):
    job = make_job(max_concurrent=2, tolerable_failures=9)
    job.fleet.gated = True
    job.commit("a")
    job.due()
    job.commit("b")
    job.due()
    job.fleet.gates[2].set()
    wait_until(lambda: 2 in job.poll(), 20, "checkpoint 2")
    job.fleet.gates[1].set()
    job.commit("c")
    job.due()
    job.fleet.gated = False

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise StoreUnavailable("down")

    monkeypatch.setattr(CheckpointStore, "complete", refuse)
    job.now += 61.0
    job.poll()
    job.fleet.gates[3].set()
    job.settle()
    failures = {
        r.checkpoint_id: r.failure and r.failure.code for r in job.reporter.progress.checkpoints
    }
    assert failures == {
        1: "CHECKPOINT_SUBSUMED",
        2: None,
        3: "CHECKPOINT_EXPIRED",
        4: "FINALIZE_CHECKPOINT_FAILURE",
    }


def test_the_documentation_says_which_reasons_a_job_meets():
    text = (Path(__file__).parents[3] / "docs" / "coordinator.md").read_text()
    section = text.partition("### Which of them a job meets")[2].partition("## ")[0]
    said, _, table = section.partition("The others are")
    never = re.findall(r"`([A-Z_]+)`[,| ]", "".join(re.findall(r"(?m)^(\|[^|]*\|)", table)))
    shown = {
        "CHECKPOINT_ASYNC_EXCEPTION",
        "CHECKPOINT_COORDINATOR_SUSPEND",
        "CHECKPOINT_EXPIRED",
        "CHECKPOINT_SUBSUMED",
        "FINALIZE_CHECKPOINT_FAILURE",
        "TASK_CHECKPOINT_FAILURE",
        "TASK_FAILURE",
        "TRIGGER_CHECKPOINT_FAILURE",
        "UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE",
    }
    assert set(re.findall(r"`([A-Z_]+)`", said)) == shown
    assert sorted([*shown, *never]) == sorted(reason.name for reason in CheckpointFailureReason)
