"""The autoscaler of one job: what it writes, tells, and leaves to others."""

from datetime import timedelta

import pytest
from moorage_testing.worlds import Stage, job_spec

from moorage_api.driver import LoadReport, OperatorLoad, SubtaskLoad
from moorage_operator.world import PodView, Room

SCALER = {"enabled": True, "dryRun": False, "min": 1, "max": 16}
SCALING = {"parallelism": 2, "maxParallelism": 16, "mode": "InPlaceParallelism"}
TOO_MUCH = LoadReport(
    seconds=900.0, epochs=900, rows=1_800_000, busy_seconds=890.0, lag_rows=9_000, lag_seconds=900.0
)
LITTLE = LoadReport(seconds=900.0, epochs=900, rows=900_000, busy_seconds=540.0)


def stable(load=TOO_MUCH, **changes):
    stage = Stage(
        spec=job_spec(
            scaling={**SCALING, "autoscaler": {**SCALER, **changes}}, executor={"cores": 1}
        )
    )
    stage.run()
    stage.go_on(400)
    assert stage.status.attempt.stable_since is not None
    stage.say(load=load)
    return stage


def scaler(stage):
    found = stage.status.scaling.autoscaler
    assert found is not None
    return found


def test_it_writes_its_number_to_the_status_and_tells_why():
    stage = stable()
    stage.pass_()
    found = scaler(stage)
    assert (found.target, found.reason, found.declared) == (4, "ScaleUp", 2)
    assert stage.spec is not None
    assert stage.spec.scaling.parallelism == 2
    assert stage.effective is not None
    assert stage.effective.scaling.parallelism == 4
    [told] = stage.told("AutoscalerDecided")
    assert told.message == found.message
    assert "2,000 rows/s arrive, utilization 0.99, 9,000 rows wait" in told.message


def test_a_dry_run_leaves_what_was_done_before_it():
    stage = stable()
    restarts = {**SCALING, "mode": "Restart", "autoscaler": SCALER}
    stage.edit(scaling=restarts)
    stage.settle()
    stage.stop_as_asked()
    stage.run()
    assert scaler(stage).target == 4
    stage.edit(scaling={**restarts, "autoscaler": {**SCALER, "dryRun": True}})
    stage.go_on(400)
    stage.say(load=TOO_MUCH.model_copy(update={"rows": 3_600_000}), parallelism=4)
    for _ in range(3):
        stage.go_on(1800)
        assert stage.effective is not None
        assert stage.effective.scaling.parallelism == 4
    assert len({one.key for one in stage.told("AutoscalerAdvised")}) == 1
    assert scaler(stage).message.startswith("4 to ")
    stage.edit(scaling=restarts)
    stage.settle()
    assert scaler(stage).target > 4


def test_nothing_is_decided_before_the_version_is_stable():
    stage = stable()
    stage.status = stage.status.model_copy(
        update={"attempt": stage.status.attempt.model_copy(update={"stable_since": None})}
    )
    stage.say(completed_checkpoints=0)
    stage.settle()
    assert scaler(stage).target == 0


@pytest.mark.parametrize("report", [{"load": None}, {"phase": "rewinding"}, {"parallelism": 3}])
def test_nothing_is_decided_on_what_is_not_measured(report):
    stage = stable()
    stage.say(**report)
    stage.pass_()
    assert scaler(stage).target == 0


def test_nothing_is_decided_while_a_wrong_spec_waits():
    stage = stable()
    stage.edit_badly()
    stage.settle()
    assert scaler(stage).target == 0


def test_its_figures_alone_are_not_written():
    stage = stable(LITTLE)
    stage.settle()
    before = stage.status
    stage.say(load=LITTLE.model_copy(update={"rows": 910_000}))
    stage.settle()
    assert stage.status is before


def test_a_step_that_a_quota_has_no_room_for_is_given_back_and_holds_nothing_up():
    stage = stable()
    stage.room = Room(growth="ResourceQuota compute lacks pods 2")
    stage.settle()
    assert (scaler(stage).target, scaler(stage).reason) == (2, "NoRoom")
    told = stage.told("AutoscalerHindered")
    assert "lacks pods 2" in told[0].message
    assert len({one.key for one in told}) == 1
    assert stage.effective is not None
    assert stage.effective.scaling.parallelism == 2
    stage.wait(600)
    assert scaler(stage).target == 2
    stage.room = Room()
    stage.go_on(7200)
    assert scaler(stage).target == 4


def test_executors_that_find_no_room_are_given_up_and_not_asked_for_again():
    stage = stable()
    stage.settle()
    stage.say(parallelism=4, executors_desired=4, executors_ready=2, load=TOO_MUCH)
    stage.status = stage.status.model_copy(
        update={
            "operation": None,
            "attempt": stage.status.attempt.model_copy(
                update={"revision": stage.status.operation.target_revision}
            ),
        }
    )
    stage.pass_()
    stage.now += timedelta(seconds=400)
    number = stage.status.attempt.number
    stage.executors["e"] = PodView(
        "e",
        "uid-e",
        "executor",
        number,
        "Pending",
        unschedulable="0/3 nodes are available",
        created_at=stage.now - timedelta(seconds=350),
    )
    stage.pass_()
    found = scaler(stage)
    assert (found.target, found.reason) == (2, "NoRoom")
    assert found.no_room_until is not None


def test_what_hinders_it_is_told_once():
    stage = stable(max=2)
    stage.settle()
    stage.wait(30)
    stage.wait(30)
    told, *others = stage.told("AutoscalerHindered")
    assert {one.key for one in others} == {told.key}
    assert told.kind == "Warning"
    assert "2 subtasks stay, 2 are needed: more subtasks are needed than the bounds" in told.message
    assert scaler(stage).reason == "AtLimit"


def test_state_that_would_not_fit_on_fewer_volumes_keeps_subtasks():
    stage = stable(LITTLE)
    assert stage.spec is not None
    state = stage.spec.state.model_copy(
        update={
            "local": stage.spec.state.local.model_copy(update={"type": "EmptyDir", "size": None})
        }
    )
    stage.spec = stage.spec.model_copy(update={"state": state})
    stage.say(state_bytes=25 << 30)
    for _ in range(6):
        stage.pass_()
    assert scaler(stage).target == 4


def hot(key_groups):
    one = OperatorLoad(
        uid="counts",
        subtasks=2,
        busiest=1,
        key_groups=key_groups,
        most=SubtaskLoad(rows=1_700_000, busy_seconds=850.0),
        median=SubtaskLoad(rows=900_000, busy_seconds=90.0),
    )
    return TOO_MUCH.model_copy(update={"operators": (one,)})


WHO = "subtask 1 of counts (key groups {}) was at work for 94% of the time, the median of its 2"


def test_a_decision_says_which_subtask_the_others_wait_for():
    stage = stable(hot("8-15"))
    stage.pass_()
    assert (scaler(stage).target, scaler(stage).reason) == (4, "ScaleUp")
    assert WHO.format("8-15") in scaler(stage).message
    assert scaler(stage).busiest.startswith(WHO.format("8-15"))


def test_of_what_was_counted_over_more_than_the_window_the_share_of_time_is_told():
    load = hot("8-15")
    [one] = load.operators
    twice = {"rows": one.most.rows * 2, "busy_seconds": one.most.busy_seconds * 2}
    most = one.most.model_copy(update=twice)
    longer = {"operators": (one.model_copy(update={"most": most}),), "operator_seconds": 1800.0}
    stage = stable(load.model_copy(update=longer))
    stage.pass_()
    assert WHO.format("8-15") in scaler(stage).message


def test_one_hot_key_group_is_told_and_no_subtasks_are_added_for_it():
    stage = stable(hot("8-8"))
    stage.settle()
    found = scaler(stage)
    assert (found.target, found.reason) == (0, "HotSubtask")
    told = stage.told("AutoscalerHindered")[0]
    assert len({one.key for one in stage.told("AutoscalerHindered")}) == 1
    assert "a single key group, which no number of subtasks splits" in told.message
    assert WHO.format("8-8") in told.message
    assert stage.effective is not None
    assert stage.effective.scaling.parallelism == 2


def test_figures_of_subtasks_alone_are_not_written():
    stage = stable(hot("8-8"))
    stage.settle()
    before = stage.status
    most = SubtaskLoad(rows=1_600_000, busy_seconds=800.0)
    moved = hot("8-8").operators[0].model_copy(update={"most": most})
    stage.say(load=hot("8-8").model_copy(update={"operators": (moved,)}))
    stage.settle()
    assert stage.status is before
