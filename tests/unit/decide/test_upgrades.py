"""Scenarios of upgrades, rescales, suspending, and what is begun from."""

from dataclasses import replace
from datetime import timedelta

import moorage_testing.worlds
import pytest
from moorage_testing.world_parts import CHECKPOINTS
from moorage_testing.worlds import START, Stage, job_spec, restore_point, store_of

from moorage_api.changes import spec_hash
from moorage_api.driver import RestoredFrom, RestoreOrder
from moorage_operator.decide import decide_job
from moorage_operator.decide.restore_point import first_order
from moorage_operator.plan import (
    ASIDE,
    AskDriver,
    DeletePod,
    KeepSnapshot,
    RunStoreTask,
    SaveRevision,
)
from moorage_operator.world import StoreTaskView, StoreView, Unreadable

TWO = "registry.example/clicks:2"


UPGRADE = {"image": TWO}
SUSPEND = {"desiredState": "Suspended"}


def _stage(**spec):
    stage = Stage(spec=job_spec(**spec))
    stage.run()
    return stage


def _edited(edit, **spec):
    """A job that runs, after an edit that was taken up."""
    stage = _stage(**spec)
    stage.edit(**edit)
    stage.settle()
    return stage


def test_an_upgrade_takes_a_savepoint_keeps_it_as_an_object_and_starts_from_it():
    stage = _edited(UPGRADE)
    assert (stage.status.phase, stage.status.operation.step) == ("Upgrading", "Snapshotting")
    (kept,) = [e for e in stage.effects if isinstance(e, KeepSnapshot)]
    assert (kept.trigger, kept.spec["deletionPolicy"]) == ("Upgrade", "Delete")
    stage.stop_as_asked()
    stage.run()
    order = stage.orders[-1].restore
    assert (order.mode, order.digest) == ("Path", "sha256:ab")
    assert order.order_id
    assert stage.status.next_restore is None
    assert stage.condition("Reconciled") == "True/UpToDate"


def test_a_driver_is_told_of_the_newest_checkpoint_that_its_lineage_must_have():
    stage = _stage()
    assert stage.orders[-1].restore.path == ""
    last = stage.status.snapshots.last_checkpoint
    stage.end("Failed", "")
    stage.settle()
    stage.now += timedelta(minutes=10)
    stage.settle()
    assert len(stage.orders) > 1
    assert stage.orders[-1].restore == RestoreOrder(path=last.path)


def test_a_store_that_has_lost_the_newest_checkpoint_blocks_and_says_how_to_go_on():
    stage = _stage()
    stage.end("Failed", "restore_point_not_found")
    stage.settle()
    assert stage.status.blocked_reason == "RestorePointNotFound"
    stage.edit(restore={"mode": "Empty", "nonce": 1, "acknowledgeStateLoss": True})
    stage.settle()
    assert stage.orders[-1].restore.mode == "Empty"


def test_a_preflight_is_told_of_it_as_well():
    stage = _stage()
    stage.edit(**UPGRADE, upgrade={"preflight": True})
    stage.settle()
    plan = decide_job(replace(stage.world(), refused_pods=()))
    (tried,) = [e.store_task for e in plan.effects if isinstance(e, RunStoreTask)]
    assert (tried.kind, tried.source) == ("Preflight", stage.status.snapshots.last_checkpoint.path)


@pytest.mark.parametrize("mode", ["Savepoint", "LastCheckpoint", "Stateless"])
def test_nothing_is_stopped_for_a_version_that_cannot_be_kept(mode):
    """A quota of ControllerRevisions, say: effects go in order, and what fails ends the pass."""
    loses = {"restore": {"acknowledgeStateLoss": True}} if mode == "Stateless" else {}
    stage = _stage(upgrade={"mode": mode})
    stage.edit(**UPGRADE, **loses)
    for _ in range(6):
        stage.say_running()
        plan = stage.decide()
        first = next(one for one in plan.effects if not isinstance(one, ASIDE))
        assert isinstance(first, SaveRevision)
        assert not any(isinstance(one, DeletePod) for one in plan.effects)
        stage.status = plan.status
        assert stage.status.operation.step == "Snapshotting"
        stage.now += timedelta(minutes=20)
    stage.say_running()
    stage.settle()
    assert any(isinstance(one, AskDriver) for one in stage.effects)
    stage.stop_as_asked()
    stage.run()
    assert stage.condition("Reconciled") == "True/UpToDate"


@pytest.mark.parametrize("fallback", ["LastCheckpoint", "Wait"])
def test_what_ran_is_brought_back_while_the_next_version_cannot_be_kept(fallback):
    stage = _stage(upgrade={"fallback": fallback})
    first = stage.status.attempt.revision
    stage.refuses_revisions = True
    stage.edit(**UPGRADE)
    stage.settle()
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(60)
    assert stage.status.attempt.revision == first
    assert stage.orders[-1].restore.mode == "Latest"
    assert stage.started() == [1, 2]
    stage.say_running()
    stage.settle()
    assert stage.status.operation.type == "Upgrade"  # which goes on to be tried
    assert stage.started() == [1, 2]
    # It ends once more, and by then there is room.
    stage.end("Failed", "user_function")
    stage.settle()
    stage.refuses_revisions = False
    stage.wait(60)
    stage.say_running()
    stage.settle()
    stage.stop_as_asked()
    stage.run()
    assert stage.status.attempt.revision != first
    assert stage.condition("Reconciled") == "True/UpToDate"


@pytest.mark.parametrize("fallback", ["LastCheckpoint", "Fail"])
def test_a_savepoint_has_all_of_its_time_from_when_the_next_version_is_kept(fallback):
    stage = _stage(upgrade={"fallback": fallback})
    stage.refuses_revisions = True
    stage.edit(**UPGRADE)
    stage.settle()
    for _ in range(6):
        stage.go_on(600)
    stage.refuses_revisions = False
    stage.go_on(60)
    stage.answer("Running")
    stage.settle()
    stage.go_on(stage.spec.savepoint.timeout.seconds - 60)
    assert not any(isinstance(effect, DeletePod) for effect in stage.effects)
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.mode == "Path"
    assert stage.condition("Reconciled") == "True/UpToDate"


def test_a_savepoint_that_waited_for_its_version_is_late_as_any_other():
    stage = _stage()
    stage.refuses_revisions = True
    stage.edit(**UPGRADE)
    stage.settle()
    before = stage.status
    stage.go_on(600)
    assert stage.status.operation == before.operation  # a write for each look would lead to another
    stage.refuses_revisions = False
    stage.settle()
    stage.answer("Running")
    stage.go_on(stage.spec.savepoint.timeout.seconds + 1)
    assert stage.driver.deleted_at is not None


def test_a_driver_that_hangs_is_begun_anew_while_the_next_version_cannot_be_kept():
    stage = _stage()
    first = stage.status.attempt.revision
    stage.refuses_revisions = True
    stage.edit(**UPGRADE)
    stage.settle()
    stage.wait(899)
    assert stage.driver.deleted_at is None
    stage.wait(2)
    assert stage.driver.deleted_at is not None
    stage.end("Failed")
    stage.settle()
    assert stage.status.attempt.revision == first
    assert stage.started() == [1, 2]
    stage.say_running()
    stage.settle()
    assert stage.status.operation.type == "Upgrade"  # which goes on to be tried


def test_a_version_that_cannot_be_kept_is_waited_for_where_nothing_ran_or_another_state_is_meant():
    for edit in ({"desiredState": "Running"}, {"restore": {"mode": "Latest", "nonce": 1}}):
        stage = _stage()
        stage.edit(desiredState="Suspended")
        stage.settle()
        stage.stop_as_asked()
        stage.settle()
        assert stage.status.phase == "Suspended"
        stage.refuses_revisions = True
        stage.edit(**UPGRADE, **{"desiredState": "Running", **edit})
        stage.settle()
        stage.wait(60)
        assert stage.started() == [1]


def test_after_it_ran_a_failure_goes_on_from_the_newest_checkpoint_and_not_the_savepoint():
    stage = _edited(UPGRADE)
    stage.stop_as_asked()
    stage.run()
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(20)
    assert stage.orders[-1].restore.mode == "Latest"


def test_a_new_version_that_never_ran_goes_on_from_the_same_savepoint():
    stage = _edited(UPGRADE)
    stage.stop_as_asked()
    stage.settle()
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(20)
    first, second = stage.orders[-2:]
    assert first.restore.mode == "Path"
    assert second.restore == first.restore


def test_scenario_19_a_savepoint_is_used_even_if_the_job_then_failed_to_stop():
    stage = _edited(UPGRADE)
    stage.end("Failed", "internal", savepoint=stage.savepoint())
    stage.run()
    assert stage.orders[-1].restore.mode == "Path"


def test_a_driver_that_hangs_after_its_savepoint_is_ended_by_its_pod():
    stage = _edited(UPGRADE)
    stage.answer("Completed", savepoint=stage.savepoint())
    stage.settle()
    assert stage.status.operation.step == "Stopping"
    stage.wait(181)
    assert any(isinstance(effect, DeletePod) for effect in stage.effects)
    stage.end_pod(137)
    stage.run()
    assert stage.orders[-1].restore.mode == "Path"


def test_scenario_10_a_failed_savepoint_is_tried_again_under_another_name_then_given_up():
    stage = _edited(UPGRADE)
    names = []
    for _ in range(3):
        names.append(list(stage.asked.values())[-1].name)
        stage.fail_request()
        stage.settle()
        stage.wait(90)
    assert len(set(names)) == 3
    last = list(stage.asked.values())[-1]
    assert last.mode == "Checkpoint"
    (told,) = stage.told("UpgradeModeFallback")
    assert "checkpoint 101 is" in told.message
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.mode == "Latest"


def _fail_savepoints(stage, times=3):
    for _ in range(times):
        stage.fail_request()
        stage.settle()
        stage.wait(90)


def test_scenario_55_fallback_wait_keeps_the_old_version_running():
    stage = _edited(UPGRADE, upgrade={"fallback": "Wait"})
    _fail_savepoints(stage, 6)
    assert stage.started() == [1]
    assert stage.status.operation.type == "Upgrade"
    assert "Wait" in stage.status.message
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.mode == "Path"


def test_an_edit_is_not_taken_back_while_the_driver_may_still_end_for_it():
    stage = _edited(UPGRADE, upgrade={"fallback": "Wait"})
    stage.wait(3600)  # and it is at it still: the next try has another id
    stage.edit(image=job_spec().image)
    stage.settle()
    assert not stage.told("OperationCancelled")
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]
    assert stage.condition("Reconciled") == "True/UpToDate"


@pytest.mark.parametrize("waits_for", ["the store", "a savepoint"])
def test_a_rollback_to_what_runs_takes_back_an_upgrade_that_waits(waits_for):
    stage = _edited(UPGRADE, upgrade={"fallback": "Wait"})
    if waits_for == "the store":
        stage.say(storage_error="no route to the store")
    _fail_savepoints(stage, 4)
    first = stage.status.attempt.revision
    stage.fail_request()
    stage.annotate(rollback=first)
    stage.settle()
    assert stage.status.operation is None
    assert stage.told("OperationCancelled")
    [told] = stage.told("RolledBack")
    assert told.message.startswith(f"{first} goes on")
    assert stage.status.snapshots.last_trigger.rollback == first
    assert stage.condition("Reconciled") == "False/Rejected"
    stage.go_on(120)
    assert stage.status.operation is None
    stage.annotate(restart="try it again")
    stage.settle()
    assert stage.status.phase == "Upgrading"


@pytest.mark.parametrize("mode", ["Savepoint", "Stateless"])
def test_a_rollback_while_the_driver_ends_already_starts_the_same_version_with_its_state(mode):
    loses = {"restore": {"acknowledgeStateLoss": True}} if mode == "Stateless" else {}
    stage = _edited(UPGRADE | loses, upgrade={"mode": mode})
    first = stage.status.attempt.revision
    stage.annotate(rollback=first)
    stage.settle()
    assert stage.told("RolledBack")
    stage.stop_as_asked()
    stage.run()
    assert stage.status.attempt.revision == first
    assert stage.started() == [1, 2]
    assert stage.orders[-1].restore.mode == ("Latest" if mode == "Stateless" else "Path")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ({}, "no other version waits"),
        ({"restore": {"mode": "Latest", "nonce": 1}}, "spec.restore.nonce was raised"),
    ],
    ids=["nothing waits", "redeploy"],
)
def test_a_rollback_to_what_runs_that_cannot_be_is_told(edit, why):
    stage = _edited(edit)
    stage.say(storage_error="no route to the store")
    first = stage.status.attempt.revision
    stage.annotate(rollback=first)
    stage.settle()
    [told] = stage.told("RollbackRefused")
    assert why in told.message
    assert stage.status.snapshots.last_trigger.rollback == first


def _on_trial(**upgrade):
    """A job with a stable version, and another one that runs; returns it with the stable one."""
    stage = _stage(upgrade={"rollback": {"stableAfter": {"duration": "10m"}}, **upgrade})
    stage.go_on(601)
    assert stage.condition("Stable") == "True/Stable"
    before = stage.status.attempt.revision
    stage.edit(image=TWO)
    stage.settle()
    stage.stop_as_asked()
    stage.run()
    assert stage.status.reconciliation.trial is not None
    return stage, before


def test_that_the_stable_version_was_deleted_by_hand_is_told_and_the_new_one_goes_on():
    rules = {"duration": "10m", "completedCheckpoints": 2}
    stage, before = _on_trial(rollback={"enabled": True, "stableAfter": rules})
    del stage.revisions[before]
    stage.annotate(rollback=before)
    stage.settle()
    [refused] = stage.told("RollbackRefused")
    assert f"{before}, whose ControllerRevision was deleted" in refused.message
    stage.now += timedelta(minutes=30)
    stage.say(last_progress_time=stage.now)
    stage.settle()
    assert stage.condition("Stable") == "False/RollbackBlocked"
    [told] = stage.told("RollbackBlocked")
    assert f"{before} was deleted" in told.message
    assert stage.started() == [1, 2]


def test_a_version_on_trial_that_was_deleted_by_hand_is_rolled_back_like_any_other():
    stage, before = _on_trial()
    del stage.revisions[stage.status.attempt.revision]
    stage.annotate(rollback=before)
    stage.settle()
    assert stage.status.operation.type == "Rollback"
    stage.stop_as_asked()
    stage.run()
    assert stage.status.attempt.revision == before
    assert stage.orders[-1].restore.mode == "Path"


def test_a_rollback_from_a_trial_is_followed_while_the_next_version_waits():
    stage, before = _on_trial(fallback="Wait")
    stage.edit(image="registry.example/clicks:3")
    stage.settle()
    _fail_savepoints(stage, 4)
    stage.fail_request()
    stage.annotate(rollback=before)
    stage.settle()
    assert stage.status.operation.type == "Rollback"
    stage.stop_as_asked()
    stage.run()
    assert stage.status.attempt.revision == before


def test_a_way_back_does_not_begin_from_a_savepoint_of_the_version_that_it_leaves():
    """It was asked for before: the driver may take it all the same."""
    stage, before = _on_trial()
    back = stage.status.reconciliation.trial.restore_point.path
    stage.edit(image="registry.example/clicks:3")
    stage.settle()
    late = stage.savepoint()
    stage.annotate(rollback=before)
    stage.settle()
    stage.end("Stopped", savepoint=late)
    stage.run()
    assert stage.status.attempt.revision == before
    assert stage.orders[-1].restore.path == back != late.path


def test_a_rollback_that_is_under_way_already_is_not_refused():
    stage, before = _on_trial()
    stage.annotate(rollback=before)
    stage.settle()
    stage.annotate(rollback="")
    stage.settle()
    stage.annotate(rollback=before)
    stage.settle()
    stage.stop_as_asked()
    stage.run()
    assert stage.status.attempt.revision == before
    assert not stage.told("RollbackRefused")


def test_scenario_55_fallback_fail_gives_the_edit_up_and_says_so():
    stage = _edited(UPGRADE, upgrade={"fallback": "Fail"})
    _fail_savepoints(stage)
    assert stage.status.operation is None
    assert stage.condition("Reconciled") == "False/Rejected"
    assert stage.told("UpgradeFailed")
    stage.wait(600)
    assert stage.started() == [1]
    stage.annotate(restart="again")
    stage.settle()
    stage.stop_as_asked()
    stage.run()
    assert stage.revisions[stage.status.attempt.revision].spec.image == TWO


@pytest.mark.parametrize("fallback", ["Wait", "Fail"])
def test_scenario_55_a_driver_that_dies_instead_of_a_savepoint_is_brought_back_as_it_was(fallback):
    stage = _stage(upgrade={"fallback": fallback})
    first = stage.status.attempt.revision
    stage.edit(image=TWO)
    stage.settle()
    stage.end_pod(137)
    stage.settle()
    stage.wait(30)
    assert stage.status.attempt.revision == first
    assert stage.started() == [1, 2]
    assert stage.status.restarts.total == 1


def test_scenario_55_a_driver_that_dies_instead_of_a_savepoint_falls_back_to_its_checkpoint():
    stage = _edited(UPGRADE)
    stage.end_pod(137)
    stage.run()
    assert stage.orders[-1].restore.mode == "Latest"
    assert stage.told("UpgradeModeFallback")
    assert stage.status.restarts.total == 0


def test_an_unreadable_store_is_waited_for_before_the_savepoint_is_given_up():
    stage = _edited(UPGRADE)
    stage.store = Unreadable("StoreUnavailable", "timeout")
    stage.end_pod(137)
    stage.wait(10)
    assert stage.started() == [1]
    stage.wait(60)
    assert stage.orders[-1].restore.mode == "Latest"


def test_scenario_24_an_upgrade_waits_for_a_store_that_is_away_and_the_job_runs_on():
    stage = _edited(UPGRADE)
    stage.say(storage_error="no route to the store")
    for _ in range(40):
        stage.fail_request()
        stage.settle()
        stage.wait(120)
    assert stage.started() == [1]
    assert stage.condition("StorageReachable") == "False/StoreUnavailable"
    stage.say(storage_error="")
    stage.wait(120)
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.mode == "Path"


def _waits_for_its_store(edit=UPGRADE, hours=8, **spec):
    """A job with an edit that waits for the store: each savepoint that is asked for fails."""
    stage = _edited(edit, **spec)
    stage.say(storage_error="no route to the store")
    for _ in range(hours * 60):
        stage.fail_request()
        stage.wait(60)
    return stage


def test_scenario_24_an_upgrade_that_waits_for_its_store_makes_no_object_at_every_try():
    stage = _waits_for_its_store()
    tries = len(stage.told("SavepointFailed"))
    assert 3 < tries <= 3 + 8, "each hour one, should the driver be wrong about the store"
    assert len({one.name for one in stage.effects if isinstance(one, KeepSnapshot)}) == tries
    assert "Upgrade waits for the store: no route" in stage.status.message
    assert stage.decide().again_after <= stage.config.busy_resync
    asked = list(stage.asked)
    stage.say(storage_error="", last_progress_time=stage.now)
    stage.settle()
    assert len(stage.asked) == len(asked) + 1, "at once"
    stage.go_on(25 * 60)
    assert stage.driver.deleted_at is None, "it has all of its time"
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.mode == "Path"


def test_an_upgrade_that_waits_for_its_store_can_be_edited_and_taken_back():
    stage = _waits_for_its_store(hours=1)
    stage.edit(image="registry.example/clicks:3")
    stage.wait(60)
    assert "waits for the store" in stage.status.message
    stage.edit(image=job_spec().image)
    stage.settle()
    assert stage.told("OperationCancelled")
    assert stage.status.operation is None


def test_a_job_that_waits_for_its_store_can_be_deleted():
    stage = _waits_for_its_store(hours=1)
    stage.delete()
    stage.settle()
    assert (stage.status.operation.type, stage.status.operation.step) == ("Delete", "Snapshotting")
    assert next(reversed(stage.asked)).startswith(stage.status.operation.id)


def test_a_driver_that_ends_while_its_upgrade_waits_for_the_store_gives_way_to_the_next():
    stage = _waits_for_its_store(hours=1)
    stage.end("Failed", "store_unavailable")
    stage.settle()
    assert stage.told("UpgradeModeFallback")
    assert stage.orders[-1].restore.mode == "Latest"


def test_a_suspension_does_not_wait_for_its_store():
    stage = _waits_for_its_store(SUSPEND, hours=1)
    assert (stage.status.operation, stage.status.phase) == (None, "Suspended")


def test_a_driver_that_does_not_answer_is_stopped_by_its_pod_when_the_time_is_over():
    stage = _stage(savepoint={"timeout": "1m"})
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    stage.edit(image=TWO)
    stage.settle()
    stage.wait(30)
    assert stage.driver.deleted_at is None
    stage.wait(31)
    assert stage.driver.deleted_at is not None
    stage.end("Stopped", last_checkpoint=None)
    stage.run()
    assert stage.orders[-1].restore.mode == "Latest"


def test_a_job_without_a_place_for_savepoints_says_that_a_checkpoint_takes_its_place():
    stage = Stage(spec=job_spec(state={"checkpointDir": CHECKPOINTS}))
    stage.run()
    stage.now += (START.replace(hour=13) - START) / 2
    stage.edit(image=TWO)
    stage.settle()
    assert list(stage.asked.values())[-1].mode == "Checkpoint"
    assert stage.told("UpgradeModeFallback")


@pytest.mark.parametrize(("age", "mode"), [(60, "None"), (600, "Checkpoint")])
def test_upgrade_mode_last_checkpoint_renews_an_old_one_first(age, mode):
    stage = _stage(upgrade={"mode": "LastCheckpoint", "maxCheckpointAge": "5m"})
    stage.wait(age)
    stage.edit(image=TWO)
    stage.settle()
    assert list(stage.asked.values())[-1].mode == mode
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.mode == "Latest"


def test_stateless_without_acknowledgement_is_refused_and_nothing_stops():
    stage = _edited(UPGRADE, upgrade={"mode": "Stateless"})
    assert not stage.asked
    assert stage.status.phase == "Running"
    assert "acknowledgeStateLoss" in stage.status.message


def test_stateless_with_acknowledgement_starts_empty_once():
    stage = _edited(UPGRADE, upgrade={"mode": "Stateless"}, restore={"acknowledgeStateLoss": True})
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.mode == "Empty"
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(20)
    assert stage.orders[-1].restore.mode == "Latest"


def test_the_job_that_finishes_instead_of_stopping_starts_the_new_version_from_its_end():
    stage = _edited(UPGRADE)
    stage.end("Finished")
    stage.run()
    assert stage.started() == [1, 2]


def test_the_job_that_finishes_instead_of_being_suspended_has_finished():
    stage = _edited(SUSPEND)
    stage.end("Finished")
    stage.settle()
    assert stage.status.phase == "Finished"


def test_a_rescale_by_the_scale_subresource_goes_through_a_checkpoint():
    stage = _edited({"scaling": {"parallelism": 4, "maxParallelism": 16, "mode": "InPlace"}})
    assert stage.status.phase == "Rescaling"
    assert list(stage.asked.values())[-1].mode == "Checkpoint"
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]
    assert stage.orders[-1].restore.mode == "Latest"


def test_scenario_52_the_latest_of_two_rescales_wins_and_the_same_value_is_nothing():
    stage = _stage()
    for parallelism in (4, 8):
        scaling = {"parallelism": parallelism, "maxParallelism": 16, "mode": "InPlace"}
        stage.edit(scaling=scaling)
        stage.settle()
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]
    assert stage.revisions[stage.status.attempt.revision].spec.scaling.parallelism == 8
    stage.edit(scaling=scaling)
    stage.settle()
    assert stage.status.phase == "Running"


def test_suspend_and_resume_go_through_a_savepoint():
    stage = _edited(SUSPEND)
    assert stage.status.phase == "Suspending"
    stage.stop_as_asked()
    stage.settle()
    assert stage.status.phase == "Suspended"
    assert stage.condition("Suspended") == "True/Suspended"
    assert stage.condition("Ready") == "False/Suspended"
    stage.wait(3600)
    assert stage.started() == [1]
    stage.edit(desiredState="Running")
    stage.settle()
    stage.say_running()
    stage.settle()
    assert stage.orders[-1].restore.mode == "Path"
    assert stage.told("Resumed")
    assert stage.status.restarts.total == 0


def test_a_suspended_job_takes_an_edit_along_when_it_resumes():
    stage = _edited(SUSPEND)
    stage.stop_as_asked()
    stage.settle()
    stage.edit(image=TWO)
    stage.wait(60)
    assert stage.started() == [1]
    stage.edit(desiredState="Running")
    stage.run()
    assert stage.revisions[stage.status.attempt.revision].spec.image == TWO


def test_a_job_that_is_failing_is_suspended_without_a_driver():
    stage = _stage()
    stage.end("Failed", "user_function")
    stage.settle()
    assert stage.status.phase == "BackOff"
    stage.edit(desiredState="Suspended")
    stage.settle()
    assert stage.status.phase == "Suspended"
    stage.edit(desiredState="Running")
    stage.run()
    assert stage.orders[-1].restore.mode == "Latest"


def test_a_job_that_is_suspended_from_the_start_starts_nothing_until_it_is_to_run():
    stage = Stage(spec=job_spec(desiredState="Suspended"))
    stage.settle()
    assert stage.status.phase == "Suspended"
    assert not stage.orders
    stage.edit(desiredState="Running")
    stage.run()
    assert stage.started() == [1]


def test_a_suspend_that_is_taken_back_too_late_brings_the_job_back():
    stage = _edited(SUSPEND)
    stage.edit(desiredState="Running")
    stage.settle()
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.mode == "Path"


def test_suspending_a_job_that_restores_ends_it_and_keeps_where_it_was_to_begin():
    stage = _edited(UPGRADE)
    stage.stop_as_asked()
    stage.settle()
    stage.edit(desiredState="Suspended")
    stage.settle()
    assert stage.status.phase == "Suspended"
    given = stage.orders[-1].restore
    assert given.mode == "Path"
    assert stage.told("Suspended")[-1].message.endswith(f"it goes on from {given.path}")
    stage.edit(desiredState="Running")
    stage.settle()
    assert (stage.orders[-1].restore.mode, stage.orders[-1].restore.path) == ("Path", given.path)


# -- what is begun from ------------------------------------------------------------------------


def test_scenario_29_a_named_snapshot_that_is_missing_blocks_the_first_start_until_it_is_there():
    stage = Stage(spec=job_spec(restore={"mode": "Snapshot", "snapshotName": "clicks-a"}))
    stage.settle()
    assert stage.status.blocked_reason == "RestorePointNotFound"
    assert "clicks-a" in stage.status.message
    assert not stage.orders
    stage.add_snapshot("clicks-a")
    stage.settle()
    order = stage.orders[-1].restore
    assert (order.mode, order.digest) == ("Path", "sha256:cd")


def test_scenario_29_a_redeploy_from_a_missing_snapshot_leaves_the_job_running():
    stage = _edited({"restore": {"mode": "Snapshot", "snapshotName": "clicks-a", "nonce": 1}})
    assert stage.status.phase == "Running"
    assert "spec.restore.snapshotName" in stage.status.message
    stage.add_snapshot("clicks-a")
    stage.settle()
    assert stage.status.phase == "Upgrading"
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.path.endswith("/clicks-a")


def test_scenario_37_a_nonce_is_followed_once():
    stage = _edited({"restore": {"mode": "Path", "path": "s3://other/point", "nonce": 1}})
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.path == "s3://other/point"
    stage.settle()
    assert stage.started() == [1, 2]
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(20)
    assert stage.orders[-1].restore.mode == "Latest"


def test_a_restore_point_that_cannot_be_looked_for_says_why_while_the_job_runs_on():
    stage = Stage()
    stage.run()
    restore = {"mode": "Path", "path": "s3://other/point", "nonce": 1}
    spec = job_spec(restore=restore)
    why = "the Secret lacks AWS_ACCESS_KEY_ID"
    view = StoreTaskView("Failed", {}, "credentials_missing", why, retryable=True)
    stage.store_tasks[f"{stage.uid}-{first_order(spec)}"] = view
    stage.edit(restore=restore)
    stage.settle()
    assert stage.status.operation is None
    found = stage.status.condition("Reconciled")
    assert found is not None
    assert (found.reason, why in found.message) == ("Waiting", True)


def test_a_corrected_path_is_followed_without_a_new_nonce_if_nothing_ever_ran():
    stage = Stage(spec=job_spec(restore={"mode": "Path", "path": "s3://a/wrong"}))
    stage.settle()
    stage.end("Failed", "restore_point_not_found")
    stage.settle()
    assert stage.status.blocked_reason == "RestorePointNotFound"
    stage.edit(restore={"mode": "Path", "path": "s3://a/right"})
    stage.run()
    first, second = (order.restore for order in stage.orders)
    assert second.path == "s3://a/right"
    assert first.order_id != second.order_id


@pytest.mark.parametrize(
    "store",
    [StoreView(exists=False), store_of(newest=0)],
    ids=["no lineage", "a lineage without state"],
)
def test_scenario_33_empty_needs_no_acknowledgement_where_the_store_proves_it(store):
    stage = Stage(spec=job_spec(restore={"mode": "Empty"}), store=store)
    stage.settle()
    assert stage.orders[-1].restore.mode == "Empty"


@pytest.mark.parametrize("store", [None, Unreadable("StoreUnavailable", "timeout")])
def test_scenario_33_an_unreadable_store_is_no_proof(store):
    stage = Stage(spec=job_spec(restore={"mode": "Empty"}), store=store)
    stage.settle()
    assert not stage.orders
    assert "store" in stage.status.message


def test_scenario_63_empty_beside_state_is_blocked_and_acknowledging_it_is_the_way_out():
    stage = Stage(spec=job_spec(restore={"mode": "Empty"}), store=store_of(newest=7))
    stage.settle()
    assert stage.status.blocked_reason == "StateLossNotAcknowledged"
    stage.edit(restore={"mode": "Empty", "acknowledgeStateLoss": True})
    stage.settle()
    assert stage.orders[-1].restore.mode == "Empty"


def test_scenario_63_a_new_object_of_an_old_name_adopts_only_what_was_released():
    stage = Stage(store=store_of("another-uid", newest=7))
    stage.settle()
    assert stage.status.blocked_reason == "AdoptRequired"
    stage.store = replace(store_of("another-uid", newest=7), released=True)
    stage.settle()
    assert stage.orders[-1].restore.mode == "Latest"


def test_scenario_64_the_younger_of_two_jobs_on_one_directory_waits_for_the_other_to_go():
    stage = Stage(rival="default/elder")
    stage.settle()
    assert stage.status.blocked_reason == "CheckpointDirConflict"
    assert "default/elder" in stage.status.message
    assert not stage.orders
    stage.rival = ""
    stage.run()
    assert stage.started() == [1]


def test_scenario_64_a_directory_of_another_jobs_lineage_is_refused():
    owner = ("test", "default", "other", "u")
    stage = Stage(store=replace(store_of(newest=7), owner=owner))
    stage.settle()
    assert stage.status.blocked_reason == "CheckpointDirConflict"
    assert "test/default/other" in stage.status.message


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("restore_point_corrupt", "RestorePointCorrupt"),
        ("restore_point_incompatible", "RestorePointIncompatible"),
        ("adopt_required", "AdoptRequired"),
        ("checkpoint_dir_conflict", "CheckpointDirConflict"),
        ("output_conflict", "OutputConflict"),
        ("source_offsets_lost", "SourceOffsetsLost"),
        ("store_denied", "StoreDenied"),
        ("manifest_error", "InvalidJob"),
        ("state_size_exceeded", "InvalidJob"),
    ],
)
def test_scenario_25_30_31_32_36_what_the_driver_refuses_blocks_and_is_tried_when_a_person_acts(
    code, reason
):
    stage = Stage()
    stage.run()
    stage.end("Failed", code, message="it says why")
    stage.settle()
    assert (stage.status.phase, stage.status.blocked_reason) == ("Blocked", reason)
    assert stage.status.message.startswith("it says why")
    assert stage.condition("Blocked") == f"True/{reason}"
    assert len(stage.told("ManualActionRequired")) == 1
    stage.wait(86_400)
    assert stage.started() == [1]
    stage.annotate(restart="now")
    stage.run()
    assert stage.started() == [1, 2]


def test_scenario_34_restoring_in_vain_ends_in_one_clear_instruction():
    stage = _stage()
    stage.store = replace(store_of(newest=101), previous=restore_point(90))
    for _ in range(3):
        stage.end("Failed", "corrupt_state", message="a file is damaged")
        stage.settle()
        stage.wait(400)
        if not stage.status.blocked_reason:
            stage.say_running(running_since=None, phase="restoring", checkpoints=0)
            stage.store = replace(store_of(newest=101), previous=restore_point(90))
            stage.settle()
    if not stage.status.blocked_reason:
        stage.end("Failed", "corrupt_state", message="a file is damaged")
        stage.settle()
    assert stage.status.blocked_reason == "RestoreFailing"
    assert f"{CHECKPOINTS}/chk-90" in stage.status.message
    assert stage.status.attempt.outcome == "Failed"


def test_what_it_was_restored_from_and_how_old_that_is_is_told():
    stage = Stage()
    stage.settle()
    old = RestoredFrom(path=f"{CHECKPOINTS}/chk-7", checkpoint_id=7, completed_at=START)
    stage.now += (START.replace(minute=1) - START) / 2
    stage.say_running(restored_from=old)
    stage.settle()
    assert "chk-7, 30 s old" in stage.told("Restored")[0].message


def test_a_redeploy_to_nothing_needs_an_acknowledgement_before_anything_is_stopped():
    stage = Stage()
    stage.run(checkpoints=0)
    stage.edit(restore={"mode": "Empty", "nonce": 1})
    stage.settle()
    assert not stage.asked
    assert "acknowledgeStateLoss" in stage.status.message
    assert stage.status.reconciliation.restore_nonce == 0


def test_a_job_begins_with_nothing_where_every_checkpoint_was_retired():
    stage = Stage(spec=job_spec(restore={"mode": "Empty"}))
    stage.store = Unreadable("RestorePointRetired", "every checkpoint was retired")
    stage.settle()
    assert stage.started() == [1]


def test_a_wrong_edit_during_a_redeploy_does_not_lose_what_was_to_be_restored():
    stage = _edited({"restore": {"mode": "Path", "path": "s3://other/point", "nonce": 1}})
    stage.edit_badly()
    stage.stop_as_asked()
    stage.run()
    assert stage.orders[-1].restore.path == "s3://other/point"


def test_a_driver_that_holds_the_lineage_and_never_runs_ends_blocked():
    stage = Stage()
    stage.settle()
    for _ in range(3):
        stage.end("Failed", "internal", fence=1, message="it cannot be read")
        stage.settle()
        stage.wait(400)
    assert stage.status.blocked_reason == "RestoreFailing"


def test_an_edit_that_was_given_up_stays_given_up_by_whatever_hash_it_is_known(monkeypatch):
    """Another release of the operator hashes otherwise; nobody has edited the object."""
    stage = _edited(UPGRADE, upgrade={"fallback": "Fail"})
    _fail_savepoints(stage)
    assert stage.condition("Reconciled") == "False/Rejected"
    stage.edit(ttlAfterFinished="9h")
    stage.settle()
    monkeypatch.setattr(moorage_testing.worlds, "spec_hash", lambda spec: spec_hash(spec)[::-1])
    for _ in range(3):
        stage.wait(60)
    assert stage.started() == [1]
    assert stage.condition("Reconciled") == "False/Rejected"
    stage.edit(image="registry.example/clicks:3")
    stage.settle()
    assert stage.status.operation.type == "Upgrade"
