"""A snapshot's way from its object to its data, scenario by scenario."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from moorage_testing.snapshot_worlds import (
    DIGEST,
    NOW,
    after,
    asked,
    job,
    job_meta,
    job_spec,
    question_of,
    report,
    savepoint_body_of,
    savepoint_info,
    snapshot,
    store_task_of,
    world,
)

from moorage_api import Problem
from moorage_operator.plan import AskDriver, RunStoreTask, SetFinalizer
from moorage_operator.snapshots import decide_snapshot
from moorage_operator.snapshots.naming import trigger_of
from moorage_operator.world import StoreTaskView, Unreadable

FOUND = {
    "found": True,
    "kind": "savepoint",
    "path": "s3://savepoints/clicks/a",
    "attempt": "ssnap-uid-clicks-a",
    "digest": DIGEST,
    "checkpoint_id": 12,
    "epoch": 99,
    "max_parallelism": 128,
    "size_bytes": 1000,
    "completed_at": NOW.isoformat(),
}


def condition(plan, kind):
    return plan.status.condition(kind)


def kinds(plan):
    return [type(effect) for effect in plan.effects]


def reasons(plan):
    return [event.reason for event in plan.events]


def lost_driver(before):
    """The driver that was asked has ended, and another one runs."""
    other = job(attempt={"number": 4, "runningSince": NOW, "startedAt": NOW})
    return replace(before, job=other, report=report(attempt=4))


def with_store_task(before, view):
    return replace(before, store_tasks={before.snapshot.status.store_task: view})


# -- asking ------------------------------------------------------------------------------------


def test_the_finalizer_is_there_before_anything_that_would_have_to_be_deleted():
    fresh = snapshot(deletionPolicy="Delete")
    bare = replace(fresh, meta=replace(fresh.meta, finalizers=()))
    plan = decide_snapshot(world(bare))
    assert plan.effects == (SetFinalizer(present=True),)
    assert plan.status.state == "Pending"


@pytest.mark.parametrize(
    "data_stay",
    [
        {"deletionPolicy": "Retain"},
        {"deletionPolicy": "Delete", "type": "Checkpoint", "name": None},
        {"deletionPolicy": "Delete", "existingPath": "s3://savepoints/clicks/a"},
    ],
)
@pytest.mark.parametrize("state", ["Pending", "InProgress", "Completed", "Failed"])
def test_an_object_whose_data_stay_is_held_by_nothing_and_one_that_was_is_let_go(data_stay, state):
    """Nobody is needed to delete it, or the namespace that it is in."""
    view = snapshot(status={"state": state}, **data_stay)
    assert SetFinalizer(present=True) not in decide_snapshot(world(view)).effects
    held = replace(view, meta=replace(view.meta, finalizers=("moorage.dev/operator",)))
    plan = decide_snapshot(world(held))
    assert plan.effects == (SetFinalizer(present=False),)
    assert plan.status.state == state


def test_nothing_is_asked_before_siblings_can_find_it_by_its_label():
    fresh = snapshot()
    plan = decide_snapshot(world(replace(fresh, meta=replace(fresh.meta, labels={}))))
    assert not plan.effects
    assert plan.labels == {
        "moorage.dev/job": "clicks",
        "moorage.dev/type": "Savepoint",
        "moorage.dev/trigger": "Manual",
        "moorage.dev/state": "Pending",
    }


def test_a_running_job_is_asked_and_the_request_is_in_the_status_before():
    plan = decide_snapshot(world())
    ask, body = question_of(plan), savepoint_body_of(plan)
    assert (plan.status.state, plan.status.request_id) == ("InProgress", "ssnap-uid-clicks-a")
    assert (ask.attempt, ask.path, body.request_id) == (3, "/savepoints", "ssnap-uid-clicks-a")
    assert (body.name, body.attempt) == ("a", None)
    assert plan.status.path == "s3://savepoints/clicks/a"
    assert plan.status.access is not None
    assert plan.status.access.image == "clicks:1"
    assert reasons(plan) == ["SavepointStarted"]


def test_scenario_01_an_operator_that_died_asks_again_with_the_same_id():
    first = decide_snapshot(world())
    again = decide_snapshot(asked())
    assert again.effects == first.effects
    assert not again.events


def test_scenario_01_a_driver_that_is_at_work_is_only_waited_for():
    request = {"requestId": "ssnap-uid-clicks-a", "kind": "Savepoint", "state": "Running"}
    plan = decide_snapshot(asked(report=report(request)))
    assert not plan.effects
    assert plan.status.state == "InProgress"


def test_a_completed_request_completes_the_snapshot():
    request = {
        "requestId": "ssnap-uid-clicks-a",
        "kind": "Savepoint",
        "state": "Completed",
        "savepoint": {**savepoint_info(), "sparkVersion": "4.2.0"},
    }
    plan = decide_snapshot(asked(report=report(request)))
    status = plan.status
    assert (status.state, status.manifest_digest) == ("Completed", DIGEST)
    assert (status.checkpoint_id, status.epoch) == (12, 99)
    assert status.spark_version == "4.2.0"
    assert status.completed_at == NOW
    assert condition(plan, "Complete").status == "True"
    assert condition(plan, "Verified").status == "True"
    assert condition(plan, "Failed").status == "False"
    assert reasons(plan) == ["SavepointCompleted"]
    assert plan.labels is not None
    assert plan.labels["moorage.dev/state"] == "Completed"


def test_a_checkpoint_is_asked_for_and_completed_in_the_same_way():
    view = snapshot(type="Checkpoint", name=None)
    first = decide_snapshot(world(view))
    assert question_of(first).path == "/checkpoints"
    done = {"id": 31, "path": "s3://state/clicks/chk-31", "completedAt": NOW}
    request = {
        "requestId": "ssnap-uid-clicks-a",
        "kind": "Checkpoint",
        "state": "Completed",
        "checkpoint": done,
    }
    plan = decide_snapshot(asked(view, report=report(request)))
    assert (plan.status.state, plan.status.checkpoint_id) == ("Completed", 31)
    assert reasons(plan) == ["CheckpointCompleted"]


def test_a_final_snapshot_is_left_as_it_is():
    done = after(
        asked(
            report=report(
                {
                    "requestId": "ssnap-uid-clicks-a",
                    "kind": "Savepoint",
                    "state": "Completed",
                    "savepoint": savepoint_info(),
                }
            )
        )
    )
    plan = decide_snapshot(replace(done, report=None, now=NOW + timedelta(days=1)))
    assert plan.status == done.snapshot.status
    assert not plan.effects
    assert not plan.events


# -- a job that is not ready -------------------------------------------------------------------

RECOVERY = {
    "id": "1-1",
    "type": "Recover",
    "step": "Starting",
    "startedAt": NOW,
    "stepStartedAt": NOW,
}


@pytest.mark.parametrize(
    "status",
    [
        {"attempt": {"number": 0}},
        {"attempt": {"number": 3, "outcome": "Stopped"}, "phase": "Suspended"},
        {"attempt": {"number": 3}},
        {"blockedReason": "RestorePointNotFound"},
        {"operation": RECOVERY},
    ],
)
def test_scenario_15_a_job_that_does_not_run_is_waited_for_and_then_given_up(status):
    early = decide_snapshot(world(job=job(**status), report=None))
    assert (early.status.state, early.effects) == ("Pending", ())
    assert condition(early, "Complete").reason == "JobNotRunning"
    late = decide_snapshot(
        world(snapshot(age=601), job=job(**status), report=None),
    )
    assert late.status.state == "Abandoned"
    assert "startDeadline=10m" in late.status.message
    assert condition(late, "Failed").reason == "JobNotRunning"


LAST = {"id": 9, "path": "s3://cp/chk-9", "completedAt": "2026-01-01T00:00:00Z"}


ASLEEP: dict[str, Any] = {"attempt": {"number": 3, "outcome": "Stopped"}, "phase": "Suspended"}
STOPPED_WITH = {"nextRestore": {"mode": "Path", "path": "s3://sp/final"}}


def asleep(**kept):
    """A suspended job, and what is kept of it."""
    return job(**ASLEEP, **kept)


def copying(**changes):
    """A world in which a copy was begun."""
    before = world(job=asleep(**STOPPED_WITH), report=None)
    return replace(after(before), **changes)


@pytest.mark.parametrize(
    ("kept", "source"),
    [
        (STOPPED_WITH, "s3://sp/final"),
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


def test_a_job_that_is_gone_or_going_is_not_waited_for_for_ever():
    assert decide_snapshot(world(snapshot(age=10), job=None)).status.state == "Pending"
    assert decide_snapshot(world(snapshot(age=700), job=None)).status.state == "Abandoned"
    going = replace(job(), meta=job_meta(deleted_at=NOW))
    assert decide_snapshot(world(job=going)).status.state == "Abandoned"


def test_scenario_28_a_snapshot_is_held_while_the_job_is_rescaled_however_long():
    operation = {
        "id": "2-1",
        "type": "Rescale",
        "step": "Stopping",
        "startedAt": NOW,
        "stepStartedAt": NOW,
    }
    plan = decide_snapshot(world(snapshot(age=3600), job=job(operation=operation)))
    assert (plan.status.state, plan.effects) == ("Pending", ())
    assert condition(plan, "Complete").reason == "JobChanging"


def test_scenario_28_a_request_that_did_not_arrive_before_a_rescale_is_held_again():
    operation = {
        "id": "2-1",
        "type": "Rescale",
        "step": "Stopping",
        "startedAt": NOW,
        "stepStartedAt": NOW,
    }
    plan = decide_snapshot(asked(job=job(operation=operation)))
    assert (plan.status.state, plan.status.failures, plan.effects) == ("Pending", 0, ())


def test_a_paused_job_is_not_asked():
    paused = replace(job(), meta=job_meta(annotations={"moorage.dev/paused": "true"}))
    plan = decide_snapshot(world(snapshot(age=3600), job=paused))
    assert (plan.status.state, plan.effects) == ("Pending", ())


def test_a_driver_that_does_not_answer_is_not_asked():
    silent = Unreadable("EndpointUnreachable", "timed out")
    assert decide_snapshot(world(report=silent)).effects == ()
    waiting = decide_snapshot(asked(report=silent))
    assert (waiting.status.state, waiting.effects) == ("InProgress", ())


def test_a_job_without_a_place_for_savepoints_says_so():
    spec = job_spec(
        state={"checkpointDir": "s3://state/clicks"}, upgrade={"mode": "LastCheckpoint"}
    )
    plan = decide_snapshot(world(job=job(spec)))
    assert plan.status.state == "Failed"
    assert "savepointDir of clicks: is missing" in plan.status.message


def test_a_spec_that_is_wrong_fails_with_the_problem():
    problem = Problem("spec.type", "is not a type: 'Save'", "use Savepoint or Checkpoint")
    plan = decide_snapshot(world(problems=(problem,)))
    assert plan.status.state == "Failed"
    assert "spec.type: is not a type: 'Save'; use Savepoint or Checkpoint" in plan.status.message
    assert condition(plan, "Failed").reason == "InvalidSpec"


def test_an_object_whose_name_no_directory_can_have_says_so():
    view = snapshot("a" * 80, name=None)
    plan = decide_snapshot(world(view))
    assert plan.status.state == "Failed"
    assert plan.status.message.startswith("spec.name: is missing")


# -- one at a time -----------------------------------------------------------------------------


def test_scenario_16_the_oldest_goes_first_and_the_others_wait():
    older, newer = snapshot("clicks-a", age=90), snapshot("clicks-b", age=60)
    first = decide_snapshot(world(older, siblings=(newer,)))
    second = decide_snapshot(world(newer, siblings=(older,)))
    assert kinds(first) == [AskDriver]
    assert second.effects == ()
    assert condition(second, "Complete").reason == "Queued"


def test_scenario_16_one_that_is_under_way_holds_even_an_older_one():
    busy = snapshot("clicks-b", age=30, status={"state": "InProgress", "requestId": "x"})
    assert decide_snapshot(world(snapshot(age=90), siblings=(busy,))).effects == ()


def test_scenario_16_a_periodic_one_gives_way_to_a_newer_periodic_one():
    newer = snapshot("clicks-p2", age=10, trigger="Periodic")
    older = snapshot("clicks-p1", age=90, trigger="Periodic")
    plan = decide_snapshot(world(older, siblings=(newer,)))
    assert (plan.status.state, condition(plan, "Failed").reason) == ("Abandoned", "Superseded")


def test_siblings_that_cannot_be_read_may_be_under_way():
    plan = decide_snapshot(world(siblings=Unreadable("ApiUnavailable", "429")))
    assert (plan.status.state, plan.effects) == ("Pending", ())


# -- names -------------------------------------------------------------------------------------


def test_scenario_14_a_name_that_another_object_has_is_refused():
    taken = snapshot("clicks-old", name="a", age=900, status={"state": "Completed"})
    plan = decide_snapshot(world(siblings=(taken,)))
    assert (plan.status.state, plan.effects) == ("Failed", ())
    assert reasons(plan) == ["SavepointNameConflict"]
    assert "name=a by=clicks-old" in plan.status.message


def test_scenario_14_a_name_that_is_taken_in_the_store_is_refused_without_another_try():
    request = {
        "requestId": "ssnap-uid-clicks-a",
        "kind": "Savepoint",
        "state": "Failed",
        "error": {"code": "savepoint_name_conflict", "message": "directory is not empty"},
    }
    plan = decide_snapshot(asked(report=report(request)))
    assert (plan.status.state, reasons(plan)) == ("Failed", ["SavepointNameConflict"])


def test_scenario_14_a_savepoint_of_another_request_is_never_taken_for_ours():
    looking = after(lost_driver(asked()))
    other = StoreTaskView("Completed", {**FOUND, "attempt": "ssnap-another"})
    plan = decide_snapshot(with_store_task(looking, other))
    assert (plan.status.state, reasons(plan)) == ("Failed", ["SavepointNameConflict"])


# -- drivers that vanish, and failures ---------------------------------------------------------


def test_scenario_18_a_driver_that_died_does_not_mean_a_lost_savepoint():
    plan = decide_snapshot(lost_driver(asked()))
    assert plan.status.state == "Verifying"
    store_task = store_task_of(plan)
    assert (store_task.kind, store_task.path) == ("Verify", "s3://savepoints/clicks/a")
    looking = after(lost_driver(asked()))
    done = decide_snapshot(with_store_task(looking, StoreTaskView("Completed", FOUND)))
    assert (done.status.state, done.status.manifest_digest) == ("Completed", DIGEST)
    assert condition(done, "Verified").reason == "ManifestRead"


def test_scenario_18_without_a_manifest_the_next_driver_is_asked_under_the_same_id():
    looking = after(lost_driver(asked()))
    begun = StoreTaskView("Completed", {"found": False, "attempt": "ssnap-uid-clicks-a"})
    failed = after(with_store_task(looking, begun))
    status = failed.snapshot.status
    assert (status.state, status.failures) == ("Pending", 1)
    assert status.next_retry_at == NOW + timedelta(seconds=10)
    assert decide_snapshot(failed).effects == ()
    retried = decide_snapshot(replace(failed, now=NOW + timedelta(seconds=10)))
    assert question_of(retried).body.request_id == "ssnap-uid-clicks-a"
    assert question_of(retried).attempt == 4


def test_scenario_19_a_savepoint_of_a_driver_that_ended_otherwise_is_complete():
    ended = replace(asked(), job=job(attempt={"number": 3, "outcome": "Failed"}), report=None)
    looking = after(ended)
    done = decide_snapshot(with_store_task(looking, StoreTaskView("Completed", FOUND)))
    assert done.status.state == "Completed"


def failing(before):
    request = {
        "requestId": before.snapshot.status.request_id,
        "kind": "Savepoint",
        "state": "Failed",
        "error": {"code": "io_exception", "message": "disk full"},
    }
    return after(replace(before, report=report(request)))


def test_scenario_27_a_failed_try_is_tried_again_after_10_20_and_40_seconds_and_then_fails():
    now, seen, current = NOW, [], world()
    while current.snapshot.status.state == "Pending":
        current = after(replace(current, now=now, report=report()))
        assert current.snapshot.status.state == "InProgress"
        seen.append(current.snapshot.status.request_id)
        current = failing(current)
        if current.snapshot.status.next_retry_at:
            seen.append((current.snapshot.status.next_retry_at - now).total_seconds())
            now = current.snapshot.status.next_retry_at
    base = "ssnap-uid-clicks-a"
    assert seen == [base, 10, f"{base}.1", 20, f"{base}.2", 40, f"{base}.3"]
    assert current.snapshot.status.state == "Failed"
    assert "io_exception: disk full; given up after 4 tries" in current.snapshot.status.message


def test_a_later_try_carries_on_in_the_directory_that_the_first_one_began():
    failed = failing(asked())
    plan = decide_snapshot(replace(failed, now=NOW + timedelta(minutes=1), report=report()))
    body = savepoint_body_of(plan)
    assert (body.request_id, body.attempt) == ("ssnap-uid-clicks-a.1", "ssnap-uid-clicks-a")


def test_a_driver_that_takes_too_long_is_not_believed_in_for_ever():
    request = {"requestId": "ssnap-uid-clicks-a", "kind": "Savepoint", "state": "Running"}
    late = asked(report=report(request), now=NOW + timedelta(minutes=31, seconds=1))
    plan = decide_snapshot(late)
    assert (plan.status.state, kinds(plan)) == ("Verifying", [RunStoreTask])


def test_scenario_24_a_store_that_is_down_says_nothing_about_the_savepoint():
    looking = after(lost_driver(asked()))
    down = StoreTaskView("Failed", {}, "store_unavailable", "no answer", retryable=True)
    waiting = after(with_store_task(looking, down))
    status = waiting.snapshot.status
    assert (status.state, status.failures, status.message) == ("Verifying", 0, "no answer")
    again = decide_snapshot(replace(waiting, now=NOW + timedelta(seconds=10), store_tasks={}))
    assert store_task_of(again).id == "uid-clicks-a-verify-2"


def test_scenario_25_a_closed_store_says_nothing_either():
    looking = after(lost_driver(asked()))
    denied = StoreTaskView("Failed", {}, "store_denied", "403", retryable=False)
    assert after(with_store_task(looking, denied)).snapshot.status.state == "Verifying"


def test_a_savepoint_that_is_damaged_is_no_savepoint():
    looking = after(lost_driver(asked()))
    damaged = StoreTaskView("Failed", {}, "corrupt_state", "file is missing", retryable=False)
    plan = decide_snapshot(with_store_task(looking, damaged))
    assert (plan.status.state, condition(plan, "Failed").reason) == ("Failed", "VerificationFailed")


# -- imports and followers ---------------------------------------------------------------------


def test_an_existing_snapshot_is_verified_and_registered_without_a_driver():
    view = snapshot(existingPath="s3://elsewhere/old")
    looking = world(view, job=job(attempt={"number": 0}), report=None)
    plan = decide_snapshot(looking)
    assert store_task_of(plan).path == "s3://elsewhere/old"
    stuck = with_store_task(after(looking), StoreTaskView("Pending", message="no such image"))
    assert decide_snapshot(stuck).status.message == "no such image"
    found = StoreTaskView(
        "Completed", {**FOUND, "attempt": "who knows", "path": "s3://elsewhere/old"}
    )
    done = decide_snapshot(with_store_task(after(looking), found))
    assert (done.status.state, done.status.path) == ("Completed", "s3://elsewhere/old")


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (StoreTaskView("Completed", {"found": False, "attempt": ""}), "there is no savepoint"),
        (StoreTaskView("Completed", {**FOUND, "kind": "checkpoint"}), "moorage snapshots copy"),
        (StoreTaskView("Failed", {}, "newer_format", "format=7"), "format=7"),
    ],
)
def test_scenario_29_an_existing_path_without_a_savepoint_fails_and_says_why(view, words):
    looking = after(world(snapshot(existingPath="s3://elsewhere/old")))
    plan = decide_snapshot(with_store_task(looking, view))
    assert plan.status.state == "Failed"
    assert words in plan.status.message


OPERATION = {
    "id": "2-1",
    "type": "Upgrade",
    "step": "Snapshotting",
    "snapshotRequestId": "2-1-stop",
    "snapshotName": "upgrade-2-1",
    "startedAt": NOW,
    "stepStartedAt": NOW,
}


def follower(**changes):
    return snapshot("clicks-upgrade-2-1", trigger="Upgrade", **changes)


def test_the_savepoint_of_an_upgrade_is_followed_and_never_asked_for():
    view = follower()
    assert trigger_of(view) == "Upgrade"
    under_way = world(view, job=job(operation=OPERATION))
    plan = decide_snapshot(under_way)
    assert (plan.status.state, plan.status.request_id) == ("InProgress", "2-1-stop")
    assert plan.effects == ()
    last = savepoint_info("upgrade-2-1")
    over = job(snapshots={"lastSavepoint": last}, attempt={"number": 3, "outcome": "Stopped"})
    done = decide_snapshot(after(under_way, job=over))
    assert (done.status.state, done.status.manifest_digest) == ("Completed", DIGEST)


def test_the_savepoint_of_an_upgrade_that_fell_back_is_looked_for_once():
    looking = after(after(world(follower(), job=job(operation=OPERATION)), job=job()))
    assert looking.snapshot.status.state == "Verifying"
    missing = StoreTaskView("Completed", {"found": False, "attempt": ""})
    plan = decide_snapshot(with_store_task(looking, missing))
    assert (plan.status.state, condition(plan, "Failed").reason) == ("Failed", "NotTaken")
    there = {**FOUND, "attempt": "2-1-stop", "path": "s3://savepoints/clicks/upgrade-2-1"}
    done = decide_snapshot(with_store_task(looking, StoreTaskView("Completed", there)))
    assert done.status.state == "Completed"
