"""Scenarios of failing for good, health, finishing, and deletion."""

from dataclasses import replace
from datetime import timedelta

import pytest
from moorage_testing.worlds import Stage, job_spec, store_of

from moorage_api.driver import RequestError
from moorage_api.lifecycle import Backoff
from moorage_api.quantities import Duration
from moorage_operator.decide.recover import backoff
from moorage_operator.observe import Need, needs
from moorage_operator.plan import DeletePod, KeepSnapshot, RunStoreTask, StartDriver
from moorage_operator.snapshots.naming import second_name
from moorage_operator.world import StoreTaskView, Unreadable


def _stage(**spec):
    stage = Stage(spec=job_spec(**spec))
    stage.run()
    return stage


def _fail(stage, code="user_function"):
    stage.end("Failed", code, message="it broke")
    stage.settle()


# -- failures ----------------------------------------------------------------------------------


def test_scenario_60_the_wait_doubles_up_to_its_bound_and_jobs_are_spread():
    rules = Backoff(initial=Duration("10s"), max=Duration("5m"))
    waits = [backoff(rules, level, "job-1").total_seconds() for level in range(8)]
    for level, wait in enumerate(waits):
        full = min(10 * 2**level, 300)
        assert 0.8 * full <= wait <= full
    assert backoff(rules, 10_000, "job-1") <= timedelta(minutes=5)
    assert backoff(rules, 3, "job-1") != backoff(rules, 3, "job-2")


def test_scenario_60_every_failure_counts_once_and_waits_longer():
    stage = _stage()
    waits = []
    for _ in range(4):
        _fail(stage)
        assert stage.status.phase == "BackOff"
        waits.append((stage.status.restarts.next_retry_at - stage.now).total_seconds())
        stage.wait(400)
        stage.say_running()
        stage.settle()
    assert waits == sorted(waits)
    assert stage.status.restarts.total == 4
    assert stage.started() == [1, 2, 3, 4, 5]
    assert len(stage.told("RestartScheduled")) == 4


def test_scenario_60_a_good_run_begins_the_wait_anew():
    stage = _stage(failurePolicy={"backoff": {"resetAfter": "30m"}})
    _fail(stage)
    stage.wait(30)
    stage.say_running()
    stage.settle()
    assert stage.status.restarts.backoff_level == 1
    for _ in range(31):
        stage.go_on(60)
    assert stage.status.restarts.backoff_level == 0


def test_scenario_60_after_max_restarts_the_job_fails_keeps_its_pods_and_says_what_to_do():
    stage = _stage(failurePolicy={"maxRestarts": 2})
    for _ in range(2):
        _fail(stage)
        stage.wait(60)
        stage.say_running()
        stage.settle()
    _fail(stage)
    assert stage.status.phase == "Failed"
    assert "failurePolicy.maxRestarts" in stage.status.message
    assert stage.driver.terminal
    stage.wait(86_400)
    assert stage.started() == [1, 2, 3]


@pytest.mark.parametrize("act", ["edit", "restart"])
def test_complaint_03_a_failed_job_starts_again_when_a_person_does_something(act):
    stage = _stage(failurePolicy={"maxRestarts": 0})
    _fail(stage)
    assert stage.status.phase == "Failed"
    if act == "edit":
        stage.edit(image="registry.example/clicks:2")
    else:
        stage.annotate(restart="1")
    stage.run()
    assert stage.started() == [1, 2]
    assert stage.status.restarts.window == ()
    assert stage.orders[-1].restore.mode == "Latest"


def test_restarts_outside_the_window_do_not_count():
    stage = _stage(failurePolicy={"maxRestarts": 1, "window": "10m"})
    for _ in range(3):
        _fail(stage)
        stage.wait(60)
        stage.say_running()
        stage.settle()
        stage.wait(700)
    assert stage.status.phase != "Failed"


@pytest.mark.parametrize("act", ["edit", "policy", "restart"])
def test_a_person_ends_the_wait(act):
    stage = _stage()
    _fail(stage)
    if act == "edit":
        stage.edit(image="registry.example/clicks:2")
    elif act == "policy":
        stage.edit(failurePolicy={"maxRestarts": 7})
    else:
        stage.annotate(restart="1")
    stage.settle()
    assert stage.started() == [1, 2]
    assert len(stage.asked) == 0


def test_scenario_24_a_driver_that_could_not_reach_its_store_is_tried_for_ever():
    stage = _stage(failurePolicy={"maxRestarts": 0})
    for _ in range(3):
        _fail(stage, "store_unavailable")
        assert stage.status.phase == "BackOff"
        assert stage.status.restarts.window == ()
        stage.wait(400)
        stage.say_running()
        stage.settle()


# -- health ------------------------------------------------------------------------------------


def test_a_job_without_progress_is_restarted_after_a_while():
    stage = _stage()
    stage.wait(899)
    assert stage.driver.deleted_at is None
    stage.wait(2)
    assert stage.driver.deleted_at is not None
    assert stage.condition("Degraded") == "True/NoProgress"
    stage.end("Stopped")
    stage.run()
    assert stage.started() == [1, 2]
    assert stage.status.restarts.total == 1


def test_a_job_without_progress_is_only_shown_where_the_policy_says_alert():
    stage = _stage(failurePolicy={"health": {"actions": {"noProgress": "Alert"}}})
    stage.wait(3600)
    assert stage.started() == [1]
    assert stage.condition("Degraded") == "True/NoProgress"
    assert stage.condition("Ready") == "False/NoProgress"


def test_a_job_with_progress_and_no_checkpoint_is_restarted():
    stage = _stage()
    for _ in range(20):
        stage.now += timedelta(seconds=60)
        stage.say(last_progress_time=stage.now)
        stage.settle()
    assert DeletePod("clicks-1-driver", "pod-1-1") in stage.effects
    assert len(stage.told("NoCheckpoint")) == 1


def test_a_long_checkpoint_interval_is_no_trouble():
    stage = _stage(checkpoint={"interval": "2h"})
    for _ in range(30):
        stage.now += timedelta(seconds=60)
        stage.say(last_progress_time=stage.now)
        stage.settle()
    assert stage.driver.deleted_at is None
    assert stage.condition("Checkpointing") == "True/InTime"


def test_scenario_24_a_job_whose_store_is_away_is_not_restarted():
    stage = _stage()
    stage.say(storage_error="no route")
    stage.wait(7200)
    assert stage.started() == [1]
    assert stage.driver.deleted_at is None
    assert stage.condition("StorageReachable") == "False/StoreUnavailable"
    stage.say(storage_error="", last_progress_time=stage.now)
    stage.settle()
    assert stage.condition("StorageReachable") == "True/Reachable"


def test_scenario_27_a_failed_checkpoint_is_told_once():
    stage = _stage()
    why = RequestError(code="no_space", message="volume local is 100 % full")
    for failures in (1, 1, 2):
        stage.say(consecutive_failed_checkpoints=failures, last_checkpoint_failure=why)
        stage.settle()
    first, _ = stage.told("CheckpointFailed")
    assert "volume local is 100 % full" in first.message
    assert stage.condition("Checkpointing") == "False/CheckpointFailed"


def test_scenario_17_a_checkpoint_slower_than_the_interval_is_told_once():
    stage = _stage()
    last = stage.report.last_checkpoint.model_copy(update={"duration_ms": 61_000})
    stage.say(last_checkpoint=last)
    stage.settle()
    stage.settle()
    assert len(stage.told("CheckpointLagging")) == 1


def test_a_version_is_stable_after_its_time_and_its_checkpoints():
    stage = _stage()
    assert stage.status.phase == "Running"
    stage.wait(121)
    assert stage.status.phase == "Stable"
    assert stage.condition("Stable") == "True/Stable"
    assert stage.status.reconciliation.stable_revision == stage.status.attempt.revision


def test_missing_executors_degrade_the_job():
    stage = _stage()
    stage.say(executors_desired=4, executors_ready=3)
    stage.settle()
    assert stage.condition("Degraded") == "True/ExecutorsMissing"
    assert (stage.status.executors.desired, stage.status.executors.ready) == (4, 3)


# -- finishing ---------------------------------------------------------------------------------


def test_scenario_59_a_finished_job_stays_finished_and_its_pods_go_after_their_time():
    stage = _stage(bounded=True, ttlAfterFinished="1h")
    stage.end("Finished")
    stage.settle()
    assert stage.status.phase == "Finished"
    assert stage.condition("Ready") == "False/Finished"
    stage.wait(3599)
    assert stage.drivers
    stage.wait(2)
    assert not stage.drivers
    stage.wait(86_400)
    assert stage.started() == [1]
    assert stage.status.phase == "Finished"


def test_scenario_59_a_policy_edit_starts_no_finished_job_and_a_new_version_does():
    stage = _stage(bounded=True)
    stage.end("Finished")
    stage.settle()
    stage.edit(ttlAfterFinished="2h")
    stage.settle()
    assert stage.status.phase == "Finished"
    stage.edit(image="registry.example/clicks:2")
    stage.run()
    assert stage.orders[-1].restore.mode == "Latest"


# -- deletion ----------------------------------------------------------------------------------


def _answer_store_tasks(stage, **view):
    for name, known in list(stage.store_tasks.items()):
        if known.state == "Pending":
            stage.store_tasks[name] = StoreTaskView(**{"state": "Completed", **view})


def test_deleting_a_running_job_takes_a_last_savepoint_and_releases_the_lineage():
    stage = _stage()
    stage.delete()
    stage.settle()
    (body,) = stage.asked.values()
    assert (body.mode, body.release) == ("Savepoint", True)
    assert not stage.gone
    stage.stop_as_asked()
    stage.settle()
    assert stage.gone
    (left,) = stage.snapshots.values()
    assert left.spec.deletion_policy == "Retain"


def test_scenario_61_a_savepoint_under_way_is_finished_and_used():
    stage = _stage()
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    (first,) = stage.asked.values()
    stage.delete()
    stage.settle()
    assert list(stage.asked.values()) == [first]
    stage.stop_as_asked()
    stage.settle()
    assert isinstance(stage.effects[-1], RunStoreTask)
    assert stage.effects[-1].store_task.kind == "Release"
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone


class _NoPatch(Stage):
    """Snapshots are made, and stay as they are."""

    def add_snapshot(self, name, state="Completed", **status):
        if name not in self.snapshots:
            super().add_snapshot(name, state, **status)


def _deleted_in_an_upgrade(*, second=False):
    """A job whose savepoint, perhaps under the second name that it can have, becomes the last."""
    stage = _NoPatch(spec=job_spec())
    stage.run()
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    ((name, made),) = stage.snapshots.items()
    name = second_name("clicks", name) if second else name
    meta = replace(made.meta, name=name)
    spec = made.spec.model_copy(update={"deletion_policy": "Delete"})
    stage.snapshots = {name: replace(made, meta=meta, spec=spec)}
    stage.settle()
    stage.effects.clear()
    stage.delete()
    stage.settle()
    return stage, name


@pytest.mark.parametrize("second", [False, True])
def test_scenario_61_a_savepoint_that_an_upgrade_began_stays_where_it_is_the_last(second):
    stage, name = _deleted_in_an_upgrade(second=second)
    kept = [e for e in stage.effects if isinstance(e, KeepSnapshot)]
    assert {(e.name, e.trigger, e.spec["deletionPolicy"]) for e in kept} == {
        (name, "Final", "Retain")
    }


def _let_go(stage):
    for _ in range(3):
        stage.settle()
        _answer_store_tasks(stage)
    stage.settle()


def test_the_object_is_held_until_its_last_savepoint_is_made_to_stay():
    stage, name = _deleted_in_an_upgrade()
    stage.stop_as_asked()
    _let_go(stage)
    assert not stage.gone
    made = stage.snapshots[name]
    spec = made.spec.model_copy(update={"deletion_policy": "Retain"})
    stage.snapshots[name] = replace(made, spec=spec)
    _let_go(stage)
    assert stage.gone


@pytest.mark.parametrize("ends", ["time", "person", "snapshot"])
def test_a_last_savepoint_that_cannot_be_made_to_stay_does_not_hold_the_object_for_ever(ends):
    stage, _ = _deleted_in_an_upgrade()
    stage.stop_as_asked()
    stage.settle()
    if ends == "time":
        stage.wait(86_400)
    elif ends == "person":
        stage.annotate(skip_final_savepoint="true")
    else:
        stage.snapshots = {}
    _let_go(stage)
    assert stage.gone


@pytest.mark.parametrize("policy", ["Proceed", "Block"])
def test_scenario_62_a_store_that_is_down_holds_the_object_no_longer_than_the_policy(policy):
    stage = _stage(deletion={"timeout": "10m", "onTimeout": policy})
    stage.delete()
    stage.settle()
    for _ in range(20):
        if not stage.gone and stage.drivers and stage.driver.deleted_at is None:
            stage.fail_request("the store is down")
        stage.settle()
        stage.wait(60)
    if policy == "Block":
        assert not stage.gone
        assert "skip-final-savepoint" in stage.status.message
        assert stage.condition("Blocked") == "True/FinalSnapshotFailed"
        stage.annotate(skip_final_savepoint="true")
        stage.settle()
    assert len(stage.told("FinalSnapshotSkipped")) == 1
    assert "checkpoint 101 is" in stage.told("FinalSnapshotSkipped")[0].message
    if stage.drivers:
        stage.end("Stopped")
    stage.settle()
    _answer_store_tasks(stage, state="Failed", message="down", retryable=True)
    for _ in range(12):
        stage.wait(60)
    assert stage.gone


def test_a_savepoint_that_fails_is_not_replaced_by_a_checkpoint_that_block_would_delete():
    stage = _stage(deletion={"policy": "Delete", "onTimeout": "Block", "timeout": "10m"})
    stage.delete()
    stage.settle()
    for _ in range(12):
        stage.fail_request()
        stage.settle()
        stage.wait(90)
    assert {body.mode for body in stage.asked.values()} == {"Savepoint"}
    assert stage.condition("Blocked") == "True/FinalSnapshotFailed"
    assert not stage.store_tasks
    stage.stop_as_asked()
    stage.settle()
    assert not stage.told("FinalSnapshotSkipped")
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone


def test_it_is_told_that_a_checkpoint_in_place_of_the_savepoint_goes_with_the_lineage():
    stage = _stage(deletion={"policy": "Delete"})
    stage.delete()
    stage.settle()
    for _ in range(2):
        stage.fail_request()
        stage.settle()
        stage.wait(60)
    assert [body.mode for body in stage.asked.values()][-1] == "Checkpoint"
    stage.stop_as_asked()
    stage.settle()
    (told,) = stage.told("FinalSnapshotSkipped")
    assert "without a savepoint" in told.message
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone


@pytest.mark.parametrize("way", ["ends", "completes", "completed"])
@pytest.mark.parametrize("policy", ["Proceed", "Block"])
def test_a_stop_without_a_savepoint_that_was_under_way_is_not_taken_for_one(policy, way):
    stage = _stage(deletion={"policy": "Delete", "onTimeout": policy})
    stage.edit(upgrade={"mode": "LastCheckpoint"}, image="registry.example/clicks:2")
    stage.settle()
    assert [body.mode for body in stage.asked.values()] != ["Savepoint"]
    if way == "completed":
        stage.answer("Completed")
        stage.settle()
    stage.delete()
    stage.settle()
    if way == "completes":
        stage.answer("Completed")
        stage.settle()
    stage.stop_as_asked()
    stage.settle()
    assert len(stage.asked) == 1
    if policy == "Block":
        assert stage.condition("Blocked") == "True/FinalSnapshotFailed"
        assert not stage.store_tasks
        stage.annotate(skip_final_savepoint="true")
        stage.settle()
    assert len(stage.told("FinalSnapshotSkipped")) == 1
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone


@pytest.mark.parametrize("before", ["suspended", "broken"])
@pytest.mark.parametrize("way", ["Proceed", "skips", "keeps"])
def test_nor_is_a_stop_without_a_savepoint_that_came_before(way, before):
    policy = "Proceed" if way == "Proceed" else "Block"
    rules = {"policy": "Delete", "onTimeout": policy}
    stage = _stage(deletion=rules, upgrade={"mode": "LastCheckpoint"})
    if before == "suspended":
        stage.edit(desiredState="Suspended")
        stage.settle()
        stage.stop_as_asked()
    else:
        _fail(stage, "restore_point_corrupt")
    stage.settle()
    asked = len(stage.asked)
    stage.delete()
    stage.settle()
    if policy == "Block":
        assert stage.condition("Blocked") == "True/FinalSnapshotFailed"
        assert not stage.store_tasks
        assert "skip-final-savepoint" in stage.status.message
    if way == "skips":
        stage.annotate(skip_final_savepoint="true")
    elif way == "keeps":
        stage.edit(deletion=rules | {"policy": "Retain"})
    stage.settle()
    assert len(stage.asked) == asked
    assert bool(stage.told("FinalSnapshotSkipped")) == (way != "keeps" or before == "broken")
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone


def test_a_stop_that_was_under_way_and_failed_is_followed_by_the_last_savepoint():
    stage = _stage(deletion={"policy": "Delete", "onTimeout": "Block"})
    stage.edit(upgrade={"mode": "LastCheckpoint"}, image="registry.example/clicks:2")
    stage.settle()
    stage.delete()
    stage.settle()
    stage.fail_request()
    stage.settle()
    stage.wait(60)
    assert [body.mode for body in stage.asked.values()][1:] == ["Savepoint"]


def test_a_deletion_that_nobody_saw_for_long_has_its_time_from_then_on():
    stage = _stage(deletion={"timeout": "10m"})
    stage.delete()
    stage.now += timedelta(minutes=15)  # the operator was away
    stage.settle()
    assert not stage.told("FinalSnapshotSkipped")
    stage.stop_as_asked()
    stage.settle()
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_the_store_is_asked_however_late_it_is_by_then(policy):
    stage = _stage(deletion={"timeout": "10m", "policy": policy})
    stage.delete()
    stage.settle()
    stage.wait(601)  # the driver hangs
    assert stage.told("FinalSnapshotSkipped")
    stage.end_pod(137)
    stage.settle()
    assert not stage.gone
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone
    assert not stage.told("StateNotDeleted")
    assert not stage.told("LineageNotReleased")


def test_a_deletion_that_is_not_done_in_time_does_not_tell_that_all_state_is_left():
    stage = _stage(deletion={"timeout": "10m", "policy": "Delete", "finalSnapshot": "None"})
    stage.delete()
    stage.settle()
    stage.end("Stopped")
    stage.settle()
    assert stage.store_tasks
    stage.wait(601)
    assert stage.gone
    assert stage.status.operation.message == (
        "The object goes, and what is not deleted of its checkpoint directory by now stays: "
        "it is not done in time"
    )


def test_complaint_21_a_broken_job_is_deleted_without_waiting():
    stage = _stage()
    _fail(stage)
    stage.delete()
    stage.settle()
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone
    assert stage.told("FinalSnapshotSkipped")


def test_a_blocked_job_is_deleted():
    stage = _stage()
    _fail(stage, "restore_point_corrupt")
    stage.delete()
    stage.settle()
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone


def test_a_job_that_never_started_is_deleted_without_touching_the_store():
    stage = Stage()
    stage.pass_()
    stage.pass_()
    stage.delete()
    stage.settle()
    assert stage.gone
    assert not stage.store_tasks


def test_a_job_that_was_refused_a_foreign_lineage_never_deletes_it():
    stage = Stage(
        spec=job_spec(deletion={"policy": "Delete"}), store=store_of("another-uid", newest=7)
    )
    stage.settle()
    assert stage.status.blocked_reason == "AdoptRequired"
    stage.delete()
    stage.settle()
    assert stage.gone
    assert not stage.store_tasks


def test_deletion_policy_delete_deletes_the_lineage_after_the_driver_is_gone():
    stage = _stage(deletion={"policy": "Delete", "finalSnapshot": "None"})
    stage.delete()
    stage.settle()
    assert not stage.store_tasks
    stage.end("Stopped")
    stage.settle()
    (store_task,) = stage.store_tasks
    assert (
        next(e.store_task.kind for e in stage.effects if isinstance(e, RunStoreTask))
        == "DeleteLineage"
    )
    assert not stage.gone
    stage.store_tasks[store_task] = StoreTaskView(
        "Pending", message="store task's pod does not start"
    )
    stage.settle()
    assert stage.status.message == "store task's pod does not start"
    stage.store_tasks[store_task] = StoreTaskView("Completed")
    stage.settle()
    assert stage.gone


def test_a_wrong_edit_never_makes_deletion_delete_state_that_was_to_stay():
    stage = _stage(deletion={"policy": "Delete"})
    stage.edit(deletion={"policy": "Retain"})
    stage.settle()
    stage.spec = None
    stage.generation += 1
    stage.settle()
    stage.delete()
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone
    assert not [
        e
        for e in stage.effects
        if isinstance(e, RunStoreTask) and e.store_task.kind == "DeleteLineage"
    ]


def test_scenario_48_in_a_terminating_namespace_the_finalizer_goes_at_once():
    stage = _stage()
    stage.annotate(paused="true")
    stage.namespace_terminating = True
    stage.delete()
    stage.settle()
    assert stage.gone
    assert not stage.asked
    assert not stage.store_tasks


@pytest.mark.parametrize("announced", [False, True])
def test_scenario_48_in_a_terminating_namespace_no_driver_follows_one_that_goes(announced):
    stage = _stage()
    stage.go_on(60)
    stage.end_pod(143, disrupted="DeletionByNamespace")
    while announced and stage.status.attempt.number == 1:
        stage.pass_(crash="status")
    stage.namespace_terminating = True
    stage.settle()
    stage.wait(60)
    assert Need.NAMESPACE in needs(stage.world())
    assert stage.started() == [1]
    assert "is being deleted" in stage.status.operation.message
    stage.delete()
    stage.settle()
    assert stage.gone


def test_the_skip_annotation_deletes_at_once():
    stage = _stage()
    stage.annotate(skip_final_savepoint="true")
    stage.delete()
    stage.settle()
    assert not stage.asked
    assert stage.driver.deleted_at is not None
    stage.end("Stopped")
    stage.settle()
    _answer_store_tasks(stage)
    stage.settle()
    assert stage.gone


def test_a_driver_that_hangs_is_deleted_by_force_in_the_end():
    stage = _stage(deletion={"timeout": "1m"})
    stage.delete()
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    for _ in range(20):
        stage.wait(60)
        _answer_store_tasks(stage)
    assert stage.gone
    assert any(isinstance(e, DeletePod) and e.grace_seconds == 0 for e in stage.effects)


def test_nothing_is_started_while_an_object_is_being_deleted():
    stage = _stage()
    _fail(stage)
    stage.delete()
    done = len(stage.effects)
    stage.wait(600)
    assert not [e for e in stage.effects[done:] if isinstance(e, StartDriver)]
