"""Scenarios of the operator's own death, of edits, and of statuses that are not what they were."""

from dataclasses import replace

import pytest
from moorage_testing.world_parts import SAVEPOINTS
from moorage_testing.worlds import START, Stage, job_spec, restore_point, store_of

from moorage_api import Problem
from moorage_api.driver import DriverState, StopBody
from moorage_api.lifecycle import Ui
from moorage_api.status import JobStatus
from moorage_operator.plan import (
    AskDriver,
    SaveRevision,
    SetDisruptionBudget,
    SetFinalizer,
    SetIngress,
    SetPodMonitor,
    StartDriver,
)
from moorage_operator.world import Unreadable


def test_a_new_job_gets_its_finalizer_and_revision_before_its_driver():
    stage = Stage()
    stage.settle()
    kinds = [type(effect) for effect in stage.effects]
    assert kinds.index(SetFinalizer) < kinds.index(SaveRevision) < kinds.index(StartDriver)
    assert stage.status.attempt.number == 1
    assert stage.status.phase == "Deploying"


@pytest.mark.parametrize("crash", ["status", "first"])
@pytest.mark.parametrize("after", range(4))
def test_scenario_03_an_operator_that_dies_anywhere_in_a_deploy_starts_one_driver(after, crash):
    stage = Stage()
    for _ in range(after):
        stage.pass_()
    stage.pass_(crash=crash)
    stage.run()
    assert stage.started() == [1]
    assert stage.status.attempt.number == 1


@pytest.mark.parametrize("crash", ["status", "first"])
@pytest.mark.parametrize("after", range(3))
def test_scenario_01_an_operator_that_dies_in_mid_savepoint_asks_with_the_same_id(after, crash):
    stage = Stage()
    stage.run()
    stage.edit(image="registry.example/clicks:2")
    for _ in range(after):
        stage.pass_()
    stage.pass_(crash=crash)
    stage.settle()
    assert len(stage.asked) == 1
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]
    assert stage.orders[-1].restore.path.startswith(SAVEPOINTS)


def test_scenario_02_a_savepoint_whose_driver_ended_without_a_word_is_found_in_the_store():
    stage = Stage()
    stage.run()
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    saved = stage.savepoint()
    point = replace(restore_point(101), path=saved.path, checkpoint_id=999)
    stage.store = store_of(newest=101, savepoints={saved.path: point})
    stage.end_pod(137)
    stage.run()
    assert stage.orders[-1].restore.mode == "Path"
    assert stage.orders[-1].restore.path == saved.path
    assert not stage.told("UpgradeModeFallback")


def test_scenario_05_pods_that_cannot_be_listed_are_not_gone():
    stage = Stage()
    stage.run()
    before = stage.status
    stage.drivers_unreadable = Unreadable("ApiUnavailable", "no answer")
    stage.now = stage.now.replace(hour=18)
    plan = stage.decide()
    assert plan.status == before
    assert not plan.effects
    assert plan.again_after <= stage.config.busy_resync


def test_scenario_05_executors_that_cannot_be_listed_hold_the_next_start():
    stage = Stage()
    stage.run()
    stage.end("Failed", "user_function")
    stage.executors_unreadable = Unreadable("ApiUnavailable", "no answer")
    stage.settle()
    stage.wait(60)
    assert stage.started() == [1]
    stage.executors_unreadable = None
    stage.settle()
    assert stage.started() == [1, 2]


def test_scenario_07_an_edit_during_an_upgrade_is_what_starts_and_costs_no_second_restart():
    stage = Stage()
    stage.run()
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    stage.edit(image="registry.example/clicks:3")
    stage.settle()
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]
    running = stage.revisions[stage.status.attempt.revision].spec
    assert running.image == "registry.example/clicks:3"


def test_scenario_07_an_edit_before_the_stream_runs_begins_again_from_the_same_point():
    stage = Stage()
    stage.run()
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    first = stage.orders[-1]
    stage.edit(image="registry.example/clicks:3")
    stage.run()
    assert stage.started() == [1, 2, 3]
    assert stage.orders[-1].restore == first.restore


def test_scenario_08_a_wrong_edit_leaves_the_job_running_and_recovering():
    stage = Stage()
    stage.run()
    stage.edit_badly(Problem("spec.driver.memory", "is below 450Mi", "write more"))
    stage.settle()
    assert stage.status.phase == "Running"
    assert stage.condition("SpecValid") == "False/Invalid"
    assert stage.condition("Reconciled") == "False/SpecInvalid"
    assert "spec.driver.memory" in stage.status.message
    assert len(stage.told("ValidationFailed")) == 1
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(30)
    assert stage.started() == [1, 2]


def test_scenario_08_a_wrong_edit_during_an_upgrade_does_not_freeze_it():
    stage = Stage()
    stage.run()
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    stage.edit_badly()
    stage.stop_as_asked()
    stage.run()
    running = stage.revisions[stage.status.attempt.revision].spec
    assert running.image == "registry.example/clicks:2"


def test_scenario_08_a_suspended_job_stays_suspended_under_a_wrong_edit():
    stage = Stage()
    stage.run()
    stage.edit(desiredState="Suspended")
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    stage.edit_badly()
    stage.wait(60)
    assert stage.status.phase == "Suspended"
    assert stage.started() == [1]


def test_a_first_spec_that_is_wrong_blocks_until_it_is_right():
    stage = Stage()
    stage.edit_badly(Problem("spec.image", "is missing", "name an image"))
    stage.settle()
    assert (stage.status.phase, stage.status.blocked_reason) == ("Blocked", "InvalidSpec")
    assert "spec.image" in stage.status.message
    stage.edit(image="registry.example/clicks:2")
    stage.run()
    assert stage.started() == [1]


def test_scenario_09_an_edit_that_is_reverted_before_the_driver_heard_of_it_stops_nothing():
    stage = Stage(deaf=True)
    stage.run()
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    assert stage.status.phase == "Upgrading"
    stage.edit(image="registry.example/clicks:1")
    stage.settle()
    assert stage.status.phase == "Running"
    assert stage.started() == [1]
    assert stage.told("OperationCancelled")


def test_scenario_09_an_edit_that_is_reverted_too_late_restarts_what_ran():
    stage = Stage()
    stage.run()
    first = stage.status.attempt.revision
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    stage.edit(image="registry.example/clicks:1")
    stage.settle()
    stage.stop_as_asked()
    stage.run()
    assert stage.status.attempt.revision == first
    assert stage.started() == [1, 2]


def test_scenario_10_a_wiped_status_is_rebuilt_around_the_living_driver():
    stage = Stage()
    stage.run()
    revision = stage.status.attempt.revision
    stage.status = JobStatus()
    stage.settle()
    assert stage.status.phase == "Running"
    assert stage.status.attempt.number == 1
    assert stage.status.attempt.revision == revision
    assert stage.started() == [1]


def test_scenario_10_a_wiped_status_of_a_redeployed_job_is_no_new_redeploy():
    stage = Stage(spec=job_spec(restore={"mode": "Path", "path": "s3://a/b", "nonce": 3}))
    stage.run()
    stage.status = JobStatus()
    stage.settle()
    assert stage.status.phase == "Running"
    assert stage.status.reconciliation.restore_nonce == 3


def test_scenario_10_a_restored_backup_goes_on_from_the_store_and_never_reuses_a_number():
    stage = Stage()
    stage.run()
    stage.drivers.clear()
    stage.uid, stage.report, stage.finalizers = "another-uid-0001", None, ()
    stage.settle()
    assert stage.status.blocked_reason == "AdoptRequired"
    assert "moorage.dev/adopt-lineage=lineage-1" in stage.status.message
    stage.annotate(adopt_lineage="lineage-1")
    stage.settle()
    assert stage.orders[-1].attempt == 2
    assert stage.orders[-1].adopt_lineage == "lineage-1"
    assert stage.orders[-1].restore.mode == "Latest"


def test_scenario_12_13_a_restart_annotation_counts_by_its_value():
    stage = Stage(annotations={"restart": "1"})
    stage.run()
    assert not stage.asked, "the value that was there from the start asks for nothing"
    stage.annotate(restart="2")
    stage.settle()
    assert len(stage.asked) == 1
    stage.stop_as_asked()
    stage.run()
    stage.settle()
    assert stage.started() == [1, 2]
    assert stage.status.snapshots.last_trigger.restart == "2"


def without_a_spec(stage):
    """The revisions are deleted by hand, and the newest spec is wrong."""
    stage.revisions.clear()
    stage.edit_badly()
    stage.settle()


def test_a_restart_waits_for_a_spec_to_go_by_and_that_is_told():
    stage = Stage()
    stage.run()
    without_a_spec(stage)
    stage.annotate(restart="2")
    for _ in range(3):
        stage.wait(5)
    assert not stage.asked
    [event] = {event.key: event for event in stage.told("AnnotationIgnored")}.values()
    assert "restart is '2' and waits" in event.message
    assert stage.status.snapshots.last_trigger.restart == ""
    stage.edit()
    stage.settle()
    assert len(stage.asked) == 1
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]
    assert stage.status.snapshots.last_trigger.restart == "2"


def test_a_start_that_nobody_can_read_a_spec_for_is_begun_anew_by_no_restart():
    stage = Stage()
    stage.settle()
    assert stage.started() == [1]
    without_a_spec(stage)
    stage.annotate(restart="2")
    stage.settle()
    assert stage.status.blocked_reason == ""
    stage.run()
    assert stage.started() == [1]
    assert stage.status.snapshots.last_trigger.restart == ""


def test_a_rescale_that_nobody_can_read_a_spec_for_is_begun_anew_by_no_restart():
    stage = Stage()
    stage.run()
    stage.edit(scaling={"parallelism": 4, "maxParallelism": 16})
    stage.settle()
    operation = stage.status.operation
    assert operation is not None
    assert operation.step == "Rescaling"
    without_a_spec(stage)
    stage.annotate(restart="2")
    stage.settle()
    begun = stage.status.operation_counter
    stage.wait(5)
    assert stage.status.operation_counter == begun
    assert stage.status.snapshots.last_trigger.restart == ""


def test_a_paused_job_is_only_observed():
    stage = Stage()
    stage.run()
    stage.annotate(paused="true")
    done = len(stage.effects)
    stage.edit(image="registry.example/clicks:2")
    stage.end("Failed", "user_function")
    stage.wait(3600)
    assert len(stage.effects) == done
    assert stage.status.attempt.outcome == "Failed"
    stage.annotate(paused="false")
    stage.settle()
    stage.wait(60)
    assert stage.started() == [1, 2]
    assert stage.status.restarts.total == 1


def test_scenario_65_a_newer_operators_object_is_left_alone():
    stage = Stage()
    stage.run()
    stage.too_old = "status format 3 is newer than 0"
    stage.end("Failed", "user_function")
    plan = stage.decide()
    assert plan.status is stage.status
    assert not plan.effects
    assert [event.reason for event in plan.events] == ["OperatorTooOld"]
    assert plan.held is not None
    assert (plan.held.type, plan.held.reason) == ("Blocked", "OperatorTooOld")
    assert "status format 3 is newer than 0; upgrade the operator" in plan.held.message


def test_a_crd_default_or_a_policy_is_no_restart():
    stage = Stage()
    stage.run()
    stage.edit(failurePolicy={"maxRestarts": 3}, ttlAfterFinished="1h")
    stage.settle()
    assert stage.status.phase == "Running"
    assert stage.status.observed_generation == 2
    assert stage.condition("Reconciled") == "True/UpToDate"
    assert "Live" in stage.told("SpecChanged")[-1].message


def test_an_unchanged_world_is_never_written_again():
    stage = Stage()
    stage.run()
    stage.now += (START.replace(hour=13) - START) / 60
    plan = stage.decide()
    assert plan.status == stage.status
    assert not plan.effects
    assert not plan.events


def test_figures_that_run_are_written_every_five_minutes_and_not_more():
    stage = Stage()
    stage.run()
    writes = 0
    for _ in range(60):
        stage.now += (START.replace(minute=5) - START) / 60
        assert isinstance(stage.report, DriverState)
        stage.say(epoch=stage.report.epoch + 1, last_progress_time=stage.now, busy_ratio=0.4)
        plan = stage.decide()
        writes += plan.status != stage.status
        stage.status = plan.status
    assert writes == 1


def test_asking_twice_is_the_same_request():
    stage = Stage(deaf=True)
    stage.run()
    stage.edit(image="registry.example/clicks:2")
    for _ in range(5):
        stage.pass_()
    asked = [effect.body for effect in stage.effects if isinstance(effect, AskDriver)]
    stops = [body for body in asked if isinstance(body, StopBody)]
    assert stops == asked
    assert len({body.request_id for body in stops}) == 1
    assert len({body.name for body in stops}) == 1


@pytest.mark.parametrize(
    ("health", "told"),
    [
        ({"action": "Alert"}, "write actions: {noProgress: Alert, noCheckpoint: Alert}"),
        ({"action": "Alert", "actions": {"noProgress": "Alert"}}, ""),
        # Its default stands in all objects of then, and is what happens.
        ({"action": "Restart"}, ""),
    ],
)
def test_who_still_says_health_action_is_told_what_to_write(health, told):
    stage = Stage()
    stage.run()
    stage.edit(failurePolicy={"health": health})
    stage.settle()
    assert stage.started() == [1]
    assert stage.condition("SpecValid") == ("True/FieldsWithoutEffect" if told else "True/Valid")
    assert [told in one.message for one in stage.told("FieldsWithoutEffect")] == (
        [True] if told else []
    )


def test_an_ingress_is_asked_for_while_it_is_wanted_and_removed_after():
    stage = Stage()
    stage.run()
    assert not [e for e in stage.effects if isinstance(e, SetIngress)]
    for template in ("example.com/{{name}}", "{{name}}.example.com"):
        stage.edit(observability={"ui": {"ingressTemplate": template}})
        stage.settle()
        assert stage.started() == [1]
        assert stage.decide().effects[-1] == SetIngress(Ui(ingress_template=template))
    before = len([e for e in stage.effects if isinstance(e, SetIngress)])
    stage.edit_badly()
    stage.settle()
    assert stage.condition("SpecValid") == "False/Invalid"
    assert len([e for e in stage.effects if isinstance(e, SetIngress)]) == before
    stage.edit(observability={"ui": {"className": "nginx"}})
    stage.settle()
    assert stage.decide().effects[-1] == SetIngress(None)
    assert stage.started() == [1]


def test_a_pod_monitor_is_asked_for_while_it_is_wanted_and_removed_after():
    stage = Stage()
    stage.run()
    assert not [e for e in stage.effects if isinstance(e, SetPodMonitor)]
    stage.edit(observability={"metrics": {"podMonitor": True}})
    stage.settle()
    assert stage.started() == [1]
    assert stage.decide().effects[-1] == SetPodMonitor(present=True)
    stage.edit(observability={"metrics": {"podMonitor": False}})
    stage.settle()
    assert stage.decide().effects[-1] == SetPodMonitor(present=False)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (
            {
                "scaling": {
                    "parallelism": 2,
                    "maxParallelism": 16,
                    "autoscaler": {"enabled": True, "dryRun": False, "max": 8},
                    wrong: value,
                }
            },
            f"spec.scaling.{wrong}",
        )
        for wrong, value in (("floor", 2), ("cooldown", "1m"))
    ],
)
def test_what_a_spec_asks_for_in_vain_is_said_once_and_stops_nothing(asked, field):
    stage = Stage()
    stage.run()
    assert stage.condition("SpecValid") == "True/Valid"
    stage.edit(**asked)
    stage.settle()
    stage.wait(30)
    assert stage.condition("SpecValid") == "True/FieldsWithoutEffect"
    said = stage.status.condition("SpecValid")
    assert said is not None
    assert field in said.message
    [told] = stage.told("FieldsWithoutEffect")
    assert (told.kind, field in told.message) == ("Warning", True)
    assert stage.started() == [1]
    stage.edit(scaling={"parallelism": 2, "maxParallelism": 16}, upgrade={})
    stage.settle()
    assert stage.condition("SpecValid") == "True/Valid"


def budgets(stage):
    found = [e for e in stage.decide().effects if isinstance(e, SetDisruptionBudget)]
    assert {one.attempt for one in found} <= {stage.status.attempt.number}
    return {one.role: one.least for one in found}


def test_evictions_are_held_up_as_far_as_the_job_wants_it_and_not_any_more_after():
    stage = Stage()
    stage.run()
    assert budgets(stage) == {}
    stage.say(executors_desired=5, executors_ready=5)
    stage.edit(failurePolicy={"disruptionBudget": {"driver": True, "executorsAtOnce": 2}})
    stage.settle()
    assert budgets(stage) == {"driver": 1, "executor": 3}
    stage.say(executors_desired=2)
    stage.settle()
    assert budgets(stage) == {"driver": 1, "executor": 0}
    stage.edit(failurePolicy={})
    stage.settle()
    assert budgets(stage) == {"driver": 0, "executor": 0}


def _why_invalid(stage):
    found = stage.status.condition("SpecValid")
    assert found is not None
    return found.message


def test_a_spec_that_another_release_does_not_take_any_more_says_so_and_what_runs_goes_on():
    stage = Stage()
    stage.run()
    stage.spec = None
    stage.problems = (Problem("spec.scaling.floor", "is 3", "write 2 at most"),)
    for _ in range(2):
        stage.go_on(60)
        assert stage.condition("SpecValid") == "False/Invalid"
        told = _why_invalid(stage)
        assert told.startswith("nobody has edited the job, and by the rules of this release")
        assert told.endswith("spec.scaling.floor: is 3; write 2 at most")
    assert stage.condition("Ready") == "True/Running"
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(20)
    stage.run()
    assert stage.started() == [1, 2]
    stage.edit_badly()
    stage.settle()
    assert _why_invalid(stage).startswith("spec.image: is missing")
