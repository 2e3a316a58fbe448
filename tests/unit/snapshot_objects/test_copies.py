"""Snapshots of a job that sleeps: copied in the store, without a driver."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from moorage_testing.snapshot_worlds import (
    DIGEST,
    FOUND,
    NOW,
    RECOVERY,
    after,
    condition,
    job,
    job_spec,
    reasons,
    report,
    savepoint_body_of,
    snapshot,
    store_task_of,
    with_store_task,
    world,
)

from moorage_operator.snapshots import decide_snapshot
from moorage_operator.world import StoreTaskView

LAST = {"id": 9, "path": "s3://cp/chk-9", "completedAt": "2026-01-01T00:00:00Z"}


ASLEEP: dict[str, Any] = {"attempt": {"number": 3, "outcome": "Stopped"}, "phase": "Suspended"}


STOPPED_WITH = {"nextRestore": {"mode": "Path", "path": "s3://sp/final"}}


def asleep(**kept):
    """A suspended job, and what is kept of it."""
    return job(**{**ASLEEP, **kept})


def copying(**changes):
    """A world in which a copy was begun."""
    before = world(job=asleep(**STOPPED_WITH), report=None)
    return replace(after(before), **changes)


def given(mode, path=""):
    """A job that was suspended before its stream ran, and what its start was given."""
    attempt = {"number": 3, "outcome": "Stopped", "restorePoint": {"mode": mode, "path": path}}
    return {"attempt": attempt, "snapshots": {"lastCheckpoint": LAST}}


@pytest.mark.parametrize(
    ("kept", "source"),
    [
        (STOPPED_WITH, "s3://sp/final"),
        (given("Path", "s3://sp/before"), "s3://sp/before"),
        (given("Latest", LAST["path"]), "s3://state/clicks"),
        ({"snapshots": {"lastCheckpoint": LAST}}, "s3://state/clicks"),
        ({**STOPPED_WITH, "snapshots": {"lastCheckpoint": LAST}}, "s3://sp/final"),
    ],
)
def test_scenario_15_what_a_suspended_job_was_stopped_with_is_copied_without_a_driver(kept, source):
    plan = decide_snapshot(world(job=asleep(**kept), report=None))
    store_task = store_task_of(plan)
    assert (store_task.kind, store_task.source, store_task.path) == (
        "Copy",
        source,
        "s3://savepoints/clicks/a",
    )
    assert (plan.status.state, store_task.attempt) == ("Verifying", "ssnap-uid-clicks-a")
    assert condition(plan, "Complete").reason == "Copying"
    assert reasons(plan) == ["SavepointStarted"]


def test_a_copy_whose_pod_does_not_start_says_why_and_is_asked_for_again():
    stuck = with_store_task(copying(), StoreTaskView("Pending", message="no such image"))
    plan = decide_snapshot(stuck)
    assert (plan.status.state, plan.status.message) == ("Verifying", "no such image")
    assert store_task_of(plan).kind == "Copy"
    assert condition(plan, "Complete").message == "no such image"


def test_scenario_15_the_copy_is_a_savepoint_like_any_other():
    before = copying()
    plan = decide_snapshot(with_store_task(before, StoreTaskView("Completed", FOUND)))
    assert (plan.status.state, plan.status.manifest_digest) == ("Completed", DIGEST)
    assert plan.status.path == "s3://savepoints/clicks/a"
    assert reasons(plan) == ["SavepointCompleted"]
    assert "copied from s3://sp/final" in plan.events[0].message


@pytest.mark.parametrize(
    "awake",
    [
        {"attempt": {"number": 3, "outcome": "Stopped"}, "phase": "Suspended"},
        {**ASLEEP, **STOPPED_WITH, "blockedReason": "StoreDenied"},
        {**ASLEEP, **STOPPED_WITH, "operation": RECOVERY},
        {**ASLEEP, **given("Empty")},
        {"attempt": {"number": 3, "outcome": "Failed"}, "phase": "BackOff", **STOPPED_WITH},
    ],
)
def test_scenario_15_only_a_job_that_sleeps_with_its_state_is_copied_from(awake):
    plan = decide_snapshot(world(job=job(**awake), report=None))
    assert (plan.status.state, plan.effects) == ("Pending", ())
    assert condition(plan, "Complete").reason == "JobNotRunning"


def test_scenario_61_nothing_is_copied_of_a_job_that_is_being_deleted():
    going = asleep(**STOPPED_WITH)
    going = replace(going, meta=replace(going.meta, deleted_at=NOW))
    plan = decide_snapshot(world(job=going, report=None))
    assert (plan.status.state, plan.effects) == ("Abandoned", ())
    assert condition(plan, "Failed").reason == "JobDeleted"


def test_scenario_15_a_job_without_a_place_for_savepoints_says_so_at_once():
    lone = {"checkpointDir": "s3://state/clicks"}
    placeless = job_spec(state=lone, upgrade={"mode": "LastCheckpoint"})
    still = replace(asleep(**STOPPED_WITH), spec=placeless, newest=placeless)
    plan = decide_snapshot(world(job=still, report=None))
    assert (plan.status.state, condition(plan, "Failed").reason) == ("Failed", "NoSavepointDir")


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (
            StoreTaskView("Failed", {}, "store_unavailable", "away", retryable=True),
            "StoreUnavailable",
        ),
        (StoreTaskView("Failed", {}, "store_denied", "closed"), "StoreDenied"),
    ],
)
def test_scenario_15_a_store_that_is_away_or_closed_delays_a_copy(view, reason):
    before = copying()
    first = decide_snapshot(with_store_task(before, view))
    assert (first.status.state, condition(first, "Complete").reason) == ("Verifying", reason)
    waited = replace(
        after(with_store_task(before, view)), now=NOW + timedelta(seconds=11), store_tasks={}
    )
    second = decide_snapshot(waited)
    assert store_task_of(second).id != before.snapshot.status.store_task
    assert store_task_of(second).source == "s3://sp/final"


@pytest.mark.parametrize(
    "view",
    [
        StoreTaskView("Completed", {"found": False, "attempt": ""}),
        StoreTaskView("Failed", {}, "corrupt_state", "object is missing"),
    ],
)
def test_scenario_15_what_cannot_be_copied_is_asked_of_the_driver_when_the_job_is_back(view):
    failed = after(with_store_task(copying(), view))
    assert (failed.snapshot.status.state, failed.snapshot.status.failures) == ("Pending", 1)
    back = replace(
        failed, job=job(), report=report(), now=NOW + timedelta(seconds=11), store_tasks={}
    )
    body = savepoint_body_of(decide_snapshot(back))
    assert body.request_id == "ssnap-uid-clicks-a"


def test_scenario_15_a_name_that_another_has_is_not_copied_over():
    view = StoreTaskView("Failed", {}, "savepoint_name_conflict", "the directory is not empty")
    plan = decide_snapshot(with_store_task(copying(), view))
    assert (plan.status.state, reasons(plan)) == ("Failed", ["SavepointNameConflict"])


def test_scenario_15_a_copy_goes_on_when_the_job_is_woken_and_holds_nobody_up():
    before = copying(job=job(), report=report())
    assert decide_snapshot(before).status.state == "Verifying"
    other = snapshot("clicks-b", age=1)
    queued = world(other, siblings=(before.snapshot,))
    assert decide_snapshot(queued).status.state == "InProgress"


def test_scenario_15_a_suspended_job_has_the_checkpoint_that_is_asked_for_already():
    last = {"id": 44, "path": "s3://state/clicks/chk-44", "completedAt": NOW}
    still = job(
        phase="Suspended",
        attempt={"number": 3, "outcome": "Stopped"},
        snapshots={"lastCheckpoint": last},
    )
    plan = decide_snapshot(world(snapshot(type="Checkpoint"), job=still, report=None))
    assert (plan.status.state, plan.status.checkpoint_id) == ("Completed", 44)
    assert not plan.effects


@pytest.mark.parametrize(
    ("checkpoint", "state"),
    [({}, "Completed"), ({"externalizedCheckpointRetention": "RetainOnCancellation"}, "Pending")],
)
def test_no_snapshot_is_made_of_a_checkpoint_that_went_when_the_job_had_finished(checkpoint, state):
    last = {"id": 44, "path": "s3://state/clicks/chk-44", "completedAt": NOW}
    over = job(
        job_spec(checkpoint=checkpoint),
        phase="Finished",
        attempt={"number": 3, "outcome": "Finished"},
        snapshots={"lastCheckpoint": last},
    )
    plan = decide_snapshot(world(snapshot(type="Checkpoint"), job=over, report=None))
    assert plan.status.state == state
