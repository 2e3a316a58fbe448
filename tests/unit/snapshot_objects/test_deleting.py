"""Objects that are being deleted: what holds them, what goes with them."""

from dataclasses import replace
from datetime import timedelta

import pytest
from moorage_testing.snapshot_worlds import (
    DIGEST,
    NOW,
    after,
    job,
    job_spec,
    report,
    savepoint_info,
    snapshot,
    store_task_of,
    with_store_task,
    world,
)

from moorage_api.snapshot import StoreAccess
from moorage_operator.plan import RunStoreTask, SetFinalizer, StoreTask
from moorage_operator.snapshots import decide_snapshot
from moorage_operator.store_access import store_task_refs
from moorage_operator.world import StoreTaskView

COMPLETE = {
    "state": "Completed",
    "requestId": "ssnap-uid-clicks-a",
    "path": "s3://savepoints/clicks/a",
    "manifestDigest": DIGEST,
    "checkpointId": 12,
    "completedAt": NOW - timedelta(hours=2),
    "access": StoreAccess(image="clicks:1", service_account_name="spark").to_json(),
}
LETTING_GO = (SetFinalizer(present=False),)


def deleted(status=None, **spec):
    """One whose data go with it."""
    status = COMPLETE if status is None else status
    return snapshot(deleted=True, status=status, **{"deletionPolicy": "Delete", **spec})


def begun(view=None, **changes):
    return after(world(view or deleted(), **changes))


def test_its_data_go_before_its_finalizer():
    plan = decide_snapshot(world(deleted()))
    store_task = StoreTask(
        "uid-clicks-a-delete-1", "Delete", "s3://savepoints/clicks/a", DIGEST, "ssnap-uid-clicks-a"
    )
    assert plan.status.state == "Deleting"
    assert plan.effects == (RunStoreTask(store_task),)
    waiting = with_store_task(begun(), StoreTaskView("Pending"))
    assert decide_snapshot(waiting).effects == ()
    stuck = with_store_task(begun(), StoreTaskView("Pending", message="no such image"))
    assert decide_snapshot(stuck).status.message == "no such image"
    assert decide_snapshot(stuck).effects == plan.effects
    done = decide_snapshot(with_store_task(begun(), StoreTaskView("Completed", {"deleted": 7})))
    assert done.effects == LETTING_GO
    assert [event.reason for event in done.events] == ["SnapshotDisposed"]
    assert "objects=7" in done.events[0].message


def test_it_works_without_a_running_job_and_without_any():
    still = job(attempt={"number": 3, "outcome": "Failed"}, phase="Failed")
    assert decide_snapshot(world(deleted(), job=still, report=None)).effects
    gone = world(deleted(), job=None, report=None)
    assert isinstance(decide_snapshot(gone).effects[0], RunStoreTask)
    refs = store_task_refs(gone)
    assert refs is not None
    assert (refs.spec.image, refs.spec.service_account_name) == ("clicks:1", "spark")
    assert (refs.meta.name, refs.meta.uid) == ("clicks", "")


def test_beside_the_operator_only_a_job_that_ran_lends_its_name_to_store_tasks():
    ran, new = job(attempt={"number": 3, "outcome": "Failed"}), job(attempt={"number": 0})
    for there, sent in ((ran, True), (new, False), (None, False)):
        found = world(deleted(), job=there, report=None)
        namespace = found.snapshot.meta.namespace
        beside = replace(found, config=replace(found.config, own_namespace=namespace))
        assert (store_task_refs(beside) is not None) == sent
        assert store_task_refs(found) is not None
    assert decide_snapshot(beside).effects == LETTING_GO, "it is not held for ever, and data stay"


def test_what_a_snapshot_remembers_leads_to_the_same_store():
    spec = job_spec(
        state={
            "checkpointDir": "s3://state/clicks",
            "savepointDir": "s3://savepoints/clicks",
            "credentialsSecretRef": {"name": "s3-creds"},
            "s3": {"endpoint": "http://minio:9000", "region": "eu-1", "pathStyle": True},
        }
    )
    asked = after(world(job=job(spec)))
    refs = store_task_refs(replace(asked, job=None))
    assert refs is not None
    assert refs.spec.state.s3 == spec.state.s3
    assert refs.spec.state.credentials_secret_ref == spec.state.credentials_secret_ref


@pytest.mark.parametrize("access", [None, {"endpoint": "http://user:password@minio"}])
def test_data_stay_where_nobody_knows_how_to_reach_them(access):
    status = {**COMPLETE, "access": access}
    plan = decide_snapshot(world(deleted(status), job=None, report=None))
    assert plan.effects == LETTING_GO
    assert "data stay: path=s3://savepoints/clicks/a" in plan.status.message


@pytest.mark.parametrize(
    "view",
    [
        deleted(deletionPolicy="Retain"),
        deleted(existingPath="s3://savepoints/clicks/a"),
        deleted(type="Checkpoint"),
        deleted({"state": "Pending"}),
    ],
)
def test_what_is_not_its_own_stays(view):
    assert decide_snapshot(world(view)).effects == LETTING_GO


@pytest.mark.parametrize("state", ["InProgress", "Verifying", "Deleting"])
def test_an_object_that_an_earlier_operator_held_waits_for_nothing_if_its_data_stay(state):
    status = {**COMPLETE, "state": state, "attempt": 3, "startedAt": NOW}
    view = deleted(status, deletionPolicy="Retain", pinned=True)
    plan = decide_snapshot(world(view))
    assert plan.effects == LETTING_GO
    assert "data stay: path=s3://savepoints/clicks/a" in plan.status.message


def test_scenario_20_a_request_that_is_under_way_is_answered_first():
    status = {**COMPLETE, "state": "InProgress", "manifestDigest": "", "completedAt": None}
    status |= {"attempt": 3, "startedAt": NOW}
    running = {"requestId": "ssnap-uid-clicks-a", "kind": "Savepoint", "state": "Running"}
    plan = decide_snapshot(world(deleted(status), report=report(running)))
    assert (plan.status.state, plan.effects) == ("InProgress", ())
    answered = {**running, "state": "Completed", "savepoint": savepoint_info()}
    done = after(world(deleted(status), report=report(answered)))
    assert store_task_of(decide_snapshot(done)).digest == DIGEST


def test_scenario_20_what_a_driver_left_half_done_goes_too():
    status = {**COMPLETE, "state": "InProgress", "manifestDigest": "", "completedAt": None}
    status |= {"attempt": 2, "startedAt": NOW}
    plan = decide_snapshot(world(deleted(status)))
    store_task = store_task_of(plan)
    assert (store_task.digest, store_task.attempt) == ("", "ssnap-uid-clicks-a")


def test_scenario_20_the_deadline_ends_the_wait_for_a_driver_that_hangs():
    status = {**COMPLETE, "state": "InProgress", "manifestDigest": "", "completedAt": None}
    status |= {"attempt": 3, "startedAt": NOW - timedelta(minutes=32)}
    assert decide_snapshot(world(deleted(status))).effects


RESTORE = {"mode": "Path", "path": "s3://savepoints/clicks/a"}


@pytest.mark.parametrize(
    ("needed_by", "words"),
    [
        ({"view": deleted(pinned=True)}, "spec.pinned"),
        ({"job": job(job_spec(restore=RESTORE))}, "spec.restore of clicks"),
        (
            {"job": job(newest=job_spec(restore={"mode": "Snapshot", "snapshotName": "clicks-a"}))},
            "spec.restore of clicks",
        ),
        (
            {
                "job": job(
                    operation={
                        "id": "2-1",
                        "type": "Rollback",
                        "step": "Starting",
                        "restorePoint": RESTORE,
                        "startedAt": NOW,
                        "stepStartedAt": NOW,
                    }
                )
            },
            "Rollback of clicks",
        ),
        (
            {"job": job(attempt={"number": 3, "restorePoint": RESTORE, "startedAt": NOW})},
            "restore of clicks",
        ),
        ({"job": job(nextRestore=RESTORE)}, "next start of clicks"),
        (
            {
                "job": job(
                    phase="Suspended",
                    attempt={"number": 3, "outcome": "Stopped"},
                    snapshots={"lastSavepoint": savepoint_info()},
                )
            },
            "newest restore point of clicks",
        ),
        (
            {"job": job(attempt={"number": 4}, snapshots={"lastSavepoint": savepoint_info()})},
            "newest restore point of clicks",
        ),
        (
            {
                "job": job(
                    attempt={
                        "number": 4,
                        "restorePoint": {"mode": "Latest", "path": "s3://state/clicks/chk-9"},
                        "restoredFrom": {"path": RESTORE["path"]},
                    }
                )
            },
            "restore of clicks",
        ),
        (
            {
                "job": job(
                    attempt={
                        "number": 3,
                        "restorePoint": RESTORE,
                        "startedAt": NOW - timedelta(hours=1),
                    },
                    snapshots={"lastCheckpoint": {"id": 90, "completedAt": NOW}},
                    reconciliation={
                        "currentRevision": "clicks-b",
                        "stableRevision": "clicks-a",
                        "trial": {"revision": "clicks-b", "since": NOW, "restorePoint": RESTORE},
                    },
                )
            },
            "rollback of clicks",
        ),
    ],
)
def test_scenario_21_what_something_needs_is_held(needed_by, words):
    view = needed_by.pop("view", deleted())
    plan = decide_snapshot(world(view, **needed_by))
    assert plan.effects == ()
    assert words in plan.status.in_use_by
    in_use = plan.status.condition("InUse")
    assert in_use is not None
    assert in_use.status == "True"
    assert words in plan.status.message


def test_scenario_21_a_job_that_went_on_needs_its_restore_point_no_more():
    moved_on = job(
        attempt={
            "number": 3,
            "restorePoint": RESTORE,
            "restoredFrom": {"path": RESTORE["path"]},
            "checkpointed": True,
        },
        snapshots={"lastSavepoint": savepoint_info()},
    )
    assert decide_snapshot(world(deleted(), job=moved_on)).status.state == "Deleting"


@pytest.mark.parametrize(
    ("outcome", "final", "state"),
    [
        ("Stopped", "s3://savepoints/clicks/final", "Deleting"),
        ("Stopped", "", "Completed"),
        ("", "s3://savepoints/clicks/final", "Completed"),
    ],
)
def test_scenario_21_what_a_job_began_from_is_free_once_it_was_stopped_with_a_savepoint(
    outcome, final, state
):
    stopped = job(
        attempt={"number": 3, "restorePoint": RESTORE, "outcome": outcome},
        nextRestore={"mode": "Path", "path": final} if final else None,
    )
    assert decide_snapshot(world(deleted(), job=stopped)).status.state == state


def test_scenario_24_a_store_that_is_down_delays_a_deletion_and_says_the_way_out():
    down = StoreTaskView("Failed", {}, "store_unavailable", "no answer", retryable=True)
    waiting = after(with_store_task(begun(), down))
    status = waiting.snapshot.status
    assert status.state == "Deleting"
    assert "no answer; to let the object go and keep its data" in status.message
    assert decide_snapshot(waiting).effects == ()
    again = decide_snapshot(replace(waiting, now=NOW + timedelta(seconds=10)))
    assert store_task_of(again).id == "uid-clicks-a-delete-2"
    view = waiting.snapshot
    kept = replace(view, spec=view.spec.model_copy(update={"deletion_policy": "Retain"}))
    assert decide_snapshot(replace(waiting, snapshot=kept)).effects == LETTING_GO


def test_what_took_its_place_is_left_alone():
    plan = decide_snapshot(with_store_task(begun(), StoreTaskView("Completed", {"left": "other"})))
    assert plan.effects == LETTING_GO
    assert "not this snapshot's" in plan.events[0].message


def test_scenario_48_a_namespace_that_goes_takes_the_object_and_leaves_the_data():
    pinned = world(deleted(pinned=True), namespace_terminating=True)
    assert decide_snapshot(pinned).effects == LETTING_GO
    bare = deleted()
    gone = replace(bare, meta=replace(bare.meta, finalizers=()))
    assert decide_snapshot(world(gone)).effects == ()


def test_a_copy_that_is_under_way_is_waited_for():
    """Else what it puts after the deletion would stay, and belong to nobody."""
    view = deleted()
    store_task = "uid-clicks-a-copy-1"
    status = view.status.model_copy(update={"state": "Verifying", "store_task": store_task})
    before = world(replace(view, status=status), store_tasks={store_task: StoreTaskView("Pending")})
    assert decide_snapshot(before).status.state == "Verifying"
    ended = replace(before, store_tasks={store_task: StoreTaskView("Completed", {"found": True})})
    assert decide_snapshot(ended).status.state == "Deleting"
