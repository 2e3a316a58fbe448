"""Snapshots of which only the store can tell what became: of drivers that vanished, of imports."""

from dataclasses import replace
from datetime import timedelta

import pytest
from moorage_testing.snapshot_worlds import (
    DIGEST,
    FOUND,
    NOW,
    after,
    asked,
    condition,
    job,
    kinds,
    lost_driver,
    question_of,
    report,
    savepoint_body_of,
    savepoint_info,
    snapshot,
    store_task_of,
    with_store_task,
    world,
)

from moorage_operator.plan import RunStoreTask
from moorage_operator.snapshots import decide_snapshot
from moorage_operator.snapshots.naming import trigger_of
from moorage_operator.world import StoreTaskView

# -- drivers that vanish, and failures -------------------------------------------------------------


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


def test_a_clock_that_is_put_back_makes_no_wait_longer_than_any_is():
    looking = after(lost_driver(asked()))
    down = StoreTaskView("Failed", {}, "store_unavailable", "no answer", retryable=True)
    waiting = after(with_store_task(looking, down))
    early = NOW - timedelta(days=1)
    waiting = after(replace(waiting, now=early, store_tasks={}))
    retry = waiting.snapshot.status.next_retry_at
    assert retry is not None
    assert retry <= early + timedelta(minutes=5)
    later = early + timedelta(minutes=5)
    assert decide_snapshot(replace(waiting, now=later)).status.store_task == "uid-clicks-a-verify-2"


def test_a_driver_that_hangs_is_given_up_in_time_though_the_clock_is_put_back():
    request = {"requestId": "ssnap-uid-clicks-a", "kind": "Savepoint", "state": "Running"}
    early = NOW - timedelta(days=1)
    begun = after(asked(report=report(request), now=early))
    late = replace(begun, now=early + timedelta(minutes=31, seconds=1))
    assert decide_snapshot(late).status.state == "Verifying"


def test_scenario_25_a_closed_store_says_nothing_either():
    looking = after(lost_driver(asked()))
    denied = StoreTaskView("Failed", {}, "store_denied", "403", retryable=False)
    assert after(with_store_task(looking, denied)).snapshot.status.state == "Verifying"


def test_a_savepoint_that_is_damaged_is_no_savepoint():
    looking = after(lost_driver(asked()))
    damaged = StoreTaskView("Failed", {}, "corrupt_state", "file is missing", retryable=False)
    plan = decide_snapshot(with_store_task(looking, damaged))
    assert (plan.status.state, condition(plan, "Failed").reason) == ("Failed", "VerificationFailed")


# -- imports and followers -------------------------------------------------------------------------


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
