"""A snapshot's way from its object to a running job's driver, scenario by scenario."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moorage_testing.snapshot_worlds import (
    DIGEST,
    FOUND,
    NOW,
    RECOVERY,
    after,
    asked,
    condition,
    job,
    job_meta,
    job_spec,
    kinds,
    lost_driver,
    question_of,
    reasons,
    report,
    savepoint_body_of,
    savepoint_info,
    snapshot,
    with_store_task,
    world,
)

from moorage_api import Problem
from moorage_operator.plan import AskDriver, SetFinalizer
from moorage_operator.snapshots import decide_snapshot, is_in_order
from moorage_operator.world import StoreTaskView, Unreadable

# -- asking ----------------------------------------------------------------------------------------


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


# -- a job that is not ready -----------------------------------------------------------------------


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


# -- one at a time ---------------------------------------------------------------------------------


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


def test_one_that_only_the_store_can_tell_of_holds_no_other_up_and_keeps_its_name():
    """A store that is closed for good, such as one that the job has left, ended all snapshots."""
    status = {"state": "Verifying", "requestId": "x", "message": "403"}
    looked_for = snapshot("clicks-b", age=90, status=status)
    assert kinds(decide_snapshot(world(snapshot(age=30), siblings=(looked_for,)))) == [AskDriver]
    rival = snapshot("clicks-b", age=30, name="a", status=status)
    plan = decide_snapshot(world(snapshot(age=90), siblings=(rival,)))
    assert condition(plan, "Failed").reason == "SavepointNameConflict"


def test_scenario_16_a_periodic_one_gives_way_to_a_newer_periodic_one():
    newer = snapshot("clicks-p2", age=10, trigger="Periodic")
    older = snapshot("clicks-p1", age=90, trigger="Periodic")
    plan = decide_snapshot(world(older, siblings=(newer,)))
    assert (plan.status.state, condition(plan, "Failed").reason) == ("Abandoned", "Superseded")


def test_siblings_that_cannot_be_read_may_be_under_way():
    plan = decide_snapshot(world(siblings=Unreadable("ApiUnavailable", "429")))
    assert (plan.status.state, plan.effects) == ("Pending", ())


# -- names -----------------------------------------------------------------------------------------


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


# -- at its end ------------------------------------------------------------------------------------

FINALIZER = "moorage.dev/operator"


@settings(max_examples=50)
@given(data=st.data())
def test_of_what_is_in_order_nothing_is_decided_but_what_it_is_needed_for(data):
    """So that its job's passes can see to it, and it needs none of its own."""
    view = data.draw(ended)
    plan = decide_snapshot(world(view))
    labels = {**view.meta.labels, **(plan.labels or {})}
    held = view.meta.finalizers
    if plan.effects:
        held = (FINALIZER,) if plan.effects == (SetFinalizer(present=True),) else ()
    settled = replace(
        view, meta=replace(view.meta, labels=labels, finalizers=held), status=plan.status
    )
    assert is_in_order(settled, FINALIZER)
    for one in (view, settled):
        decided = decide_snapshot(world(one, job=job(restore={"mode": "Empty"})))
        if is_in_order(one, FINALIZER) and decided.status.in_use_by == one.status.in_use_by:
            assert decided.status == one.status
            assert not decided.effects
            assert not decided.labels
            assert not decided.events


def one_of_ended(state, policy, labels, finalizers, generation, conditions):
    path = "s3://savepoints/clicks/a"
    view = snapshot(status={"state": state, "path": path}, deletionPolicy=policy)
    first = decide_snapshot(world(view)).status.conditions[: len(conditions)]
    status = view.status.model_copy(update={"conditions": first})
    meta = replace(view.meta, labels=labels, finalizers=finalizers, generation=generation)
    return replace(view, meta=meta, status=status)


ended = st.builds(
    one_of_ended,
    st.sampled_from(["Completed", "Failed", "Abandoned"]),
    st.sampled_from(["Retain", "Delete"]),
    st.dictionaries(
        st.sampled_from(["moorage.dev/job", "moorage.dev/type", "moorage.dev/state"]),
        st.sampled_from(["clicks", "Savepoint", "Completed", "Failed"]),
    ).map(lambda more: {"moorage.dev/job": "clicks", "moorage.dev/trigger": "Manual", **more}),
    st.sampled_from([(), (FINALIZER,), ("other", FINALIZER)]),
    st.integers(1, 2),
    st.lists(st.none(), max_size=4),
)


@pytest.mark.parametrize("changes", [{"state": "Pending"}, {"state": "Deleting"}])
def test_what_has_not_come_to_its_end_is_never_in_order(changes):
    assert not is_in_order(snapshot(status=changes), FINALIZER)
