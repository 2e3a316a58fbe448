"""What is wrong with a job that runs, and how often something is done about it."""

import itertools
from datetime import timedelta

import pytest
from moorage_testing.worlds import Stage, checkpoint, job_spec

from moorage_api.driver import DriverState, LoadReport, OperatorLoad, SkewReport, SubtaskLoad
from moorage_operator.plan import DeletePod
from moorage_operator.world import Unreadable

ROLLBACK = {"rollback": {"enabled": True, "readinessTimeout": "10h"}}


def running(**spec):
    stage = Stage(spec=job_spec(**spec))
    stage.run()
    pass_time(stage, seconds=5)
    return stage


def health(**rules):
    return {"failurePolicy": {"health": rules}}


def pass_time(stage, *, clock=timedelta(), move=True, **step):
    """Time passes, and the driver, whose clock is so far ahead, gets on or not."""
    stage.now += timedelta(**step)
    there = stage.now + clock
    said = {"answered_at": there}
    if move:
        said |= {"last_move_time": there, "last_progress_time": there}
    stage.say(**said)
    stage.settle()


def complete(stage):
    known = stage.report.last_checkpoint
    done = stage.report.completed_checkpoints + 1
    last = checkpoint(known.id + 1, stage.now)
    stage.say(last_checkpoint=last, completed_checkpoints=done, last_checkpoint_time=stage.now)
    stage.settle()


def found(stage):
    return {one.check: one.then for one in stage.status.health.findings}


def hang(stage, minutes=16):
    """It hangs, is begun anew if that may be, and runs."""
    pass_time(stage, move=False, minutes=minutes)
    if stage.status.operation is not None:
        stage.end("Stopped")
        stage.settle()
        stage.say_running(answered_at=stage.now, last_move_time=stage.now)
        stage.settle()


def keys(stage, reason):
    """Events of this reason; the same key is the same event."""
    return {one.key for one in stage.told(reason)}


# -- the budget --------------------------------------------------------------------------------


def test_a_job_that_hangs_again_and_again_is_begun_anew_as_often_as_the_budget_allows():
    stage = running(**health(budget={"actions": 2, "window": "6h"}))
    for attempt in (2, 3, 3, 3):
        hang(stage)
        assert stage.status.attempt.number == attempt
    assert found(stage) == {"NoProgress": "Withheld"}
    assert len(keys(stage, "HealthActionWithheld")) == 1
    assert [one.action for one in stage.status.health.actions] == ["Restart"] * 2
    assert stage.condition("Degraded") == "True/NoProgress"
    assert "2 automatic actions in 6h" in stage.told("HealthActionWithheld")[0].message


def test_a_budget_is_full_again_when_its_window_is_over():
    stage = running(**health(budget={"actions": 1, "window": "1h"}))
    hang(stage)
    hang(stage)
    assert (stage.status.attempt.number, found(stage)) == (2, {"NoProgress": "Withheld"})
    hang(stage, minutes=60)
    assert stage.status.attempt.number == 3


def test_a_budget_of_nothing_has_a_person_called():
    stage = running(**health(budget={"actions": 0}))
    hang(stage)
    assert (stage.status.attempt.number, found(stage)) == (1, {"NoProgress": "Withheld"})


def test_what_calls_a_person_is_told_by_an_operator_that_follows_one_that_died_before_it_did():
    stage = running(**health(budget={"actions": 0}))
    hang(stage)
    for reason in ("NoProgress", "HealthActionWithheld"):
        (key,) = keys(stage, reason)
        assert [one.key for one in stage.decide().events if one.reason == reason] == [key]


def test_a_budget_is_no_persons():
    stage = running(**health(budget={"actions": 0}))
    hang(stage)
    stage.annotate(restart="now")
    stage.pass_()
    assert stage.status.operation is not None
    assert stage.status.health.findings == ()


def test_what_was_done_stands_in_the_status_and_an_operator_that_dies_repeats_nothing():
    stage = running()
    stage.now += timedelta(minutes=16)
    stage.say(answered_at=stage.now)
    stage.pass_(crash="status")
    [done] = stage.status.health.actions
    assert (done.check, done.action) == ("NoProgress", "Restart")
    stage.settle()
    assert stage.status.health.actions == (done,)
    assert DeletePod("clicks-1-driver", "pod-1-1") in stage.effects


# -- what is not judged ------------------------------------------------------------------------


def test_a_job_that_waits_for_input_is_not_stuck():
    stage = running()
    for _ in range(40):
        stage.now += timedelta(minutes=1)
        stage.say(answered_at=stage.now, last_move_time=stage.now)
        complete(stage)
    assert stage.status.health.findings == ()
    assert stage.started() == [1]


def test_a_job_under_an_operation_is_not_judged():
    stage = running(upgrade={"mode": "Savepoint"})
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    assert stage.status.operation is not None
    pass_time(stage, move=False, minutes=16)
    assert stage.status.health.findings == ()
    assert not stage.told("NoProgress")


def test_what_was_found_is_gone_when_it_is_over():
    stage = running(**health(actions={"noProgress": "Alert", "noCheckpoint": "Alert"}))
    pass_time(stage, move=False, minutes=16)
    assert found(stage) == {"NoProgress": "Alert"}
    since = stage.status.health.findings[0].since
    pass_time(stage, move=False, minutes=3)
    assert stage.status.health.findings[0].since == since
    pass_time(stage, seconds=1)
    assert found(stage) == {"NoCheckpoint": "Alert"}
    complete(stage)
    assert found(stage) == {}
    assert stage.condition("Degraded") == "False/Healthy"


# -- loops -------------------------------------------------------------------------------------


def test_executors_that_are_lost_again_and_again_are_told_before_the_driver_ends_by_it():
    stage = running(failurePolicy={"executorFailures": {"max": 6, "window": "10m"}})
    for lost in (1, 2):
        stage.say(executors_lost=lost)
        pass_time(stage, minutes=1)
    assert found(stage) == {}
    stage.say(executors_lost=3)
    pass_time(stage, minutes=1)
    assert found(stage) == {"ExecutorLoop": "Alert"}
    assert stage.condition("Degraded") == "True/ExecutorLoop"
    assert stage.condition("Ready") == "True/Running"
    pass_time(stage, minutes=8)
    complete(stage)
    assert found(stage) == {}, "losses count within executorFailures.window"
    assert len(keys(stage, "ExecutorLoop")) == 1


def test_executors_of_a_large_job_are_told_though_few_of_its_losses_are_kept():
    stage = running(failurePolicy={"executorFailures": {"max": 1000, "window": "10m"}})
    stage.say(executors_lost=63)
    pass_time(stage, seconds=10)
    assert found(stage) == {}
    stage.say(executors_lost=80)
    pass_time(stage, seconds=10)
    assert found(stage) == {"ExecutorLoop": "Alert"}


def test_executors_of_another_driver_are_counted_on():
    stage = running(failurePolicy={"executorFailures": {"max": 4, "window": "10m"}})
    stage.say(executors_lost=1)
    stage.settle()
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(15)
    stage.say_running(executors_lost=1, answered_at=stage.now, last_move_time=stage.now)
    stage.settle()
    assert found(stage) == {"ExecutorLoop": "Alert"}


def test_restores_that_come_to_no_checkpoint_are_a_loop():
    stage = running(**health(maxRestores=4))
    for rewinds in (1, 2):
        stage.say(rewinds=rewinds)
        pass_time(stage, seconds=30)
    stage.end("Failed", "user_function", message="division by zero")
    stage.settle()
    stage.wait(15)
    stage.say_running(checkpoints=0, answered_at=stage.now, last_move_time=stage.now)
    stage.settle()
    assert stage.status.health.restores == 3
    assert found(stage) == {}
    stage.say(rewinds=1)
    pass_time(stage, seconds=30)
    assert found(stage) == {"RestoreLoop": "Alert"}
    assert "division by zero" in stage.status.message
    stage.say(last_checkpoint=checkpoint(150, stage.now))
    complete(stage)
    assert (stage.status.health.restores, found(stage)) == (0, {})


def test_upgrades_are_no_restores_in_a_loop():
    stage = running(upgrade={"mode": "LastCheckpoint"})
    for number in range(2, 9):
        stage.edit(image=f"registry.example/clicks:{number}")
        stage.settle()
        stage.stop_as_asked()
        stage.settle()
        stage.say_running(checkpoints=0, answered_at=stage.now, last_move_time=stage.now)
        stage.settle()
    assert stage.status.health.restores == 0


# -- going back --------------------------------------------------------------------------------


def on_trial(rules):
    """A version that has run for a moment, after one that was stable."""
    stage = running(**health(**rules), upgrade={**ROLLBACK, "mode": "LastCheckpoint"})
    stage.wait(130)
    assert stage.status.attempt.stable_since is not None
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    last = stage.status.snapshots.last_checkpoint
    stage.say_running(
        checkpoints=0, last_checkpoint=last, answered_at=stage.now, last_move_time=stage.now
    )
    stage.settle()
    assert stage.status.reconciliation.trial is not None
    return stage


def test_a_version_on_trial_that_hangs_is_rolled_back_where_the_policy_says_so():
    stage = on_trial({"actions": {"noProgress": "Rollback"}})
    pass_time(stage, move=False, minutes=16)
    operation = stage.status.operation
    assert operation is not None
    assert operation.type == "Rollback"
    assert operation.target_revision == stage.status.reconciliation.stable_revision
    assert [one.action for one in stage.status.health.actions] == ["Rollback"]


def test_a_version_that_only_restores_is_rolled_back_where_the_policy_says_so():
    stage = on_trial({"maxRestores": 2, "actions": {"restoreLoop": "Rollback"}})
    stage.say(rewinds=2)
    pass_time(stage, seconds=30)
    assert stage.status.operation is not None
    assert stage.status.operation.type == "Rollback"


def test_where_there_is_no_way_back_a_hung_job_is_begun_anew_and_a_loop_only_told():
    rules = {"noProgress": "Rollback", "restoreLoop": "Rollback"}
    stage = running(**health(maxRestores=2, actions=rules))
    stage.say(rewinds=2)
    pass_time(stage, seconds=30)
    assert found(stage) == {"RestoreLoop": "Alert"}
    pass_time(stage, move=False, minutes=16)
    assert stage.status.operation is not None
    assert stage.status.operation.type == "Recover"


def test_a_job_without_checkpoints_says_the_same_whatever_epoch_it_is_at():
    stage = running(**health(actions={"noCheckpoint": "Alert"}))
    pass_time(stage, minutes=45)
    said = set()
    for epoch in range(3):
        stage.say(epoch=epoch, epoch_since=stage.now)
        pass_time(stage, seconds=30)
        said |= {one.message for one in stage.status.health.findings}
    assert len(said) == 1, said


# -- skew --------------------------------------------------------------------------------------


def load(rows, busy=0.9, seconds=900.0, subtask=3):
    groups = f"{16 * subtask}-{16 * subtask + 15}"
    skew = SkewReport(uid="sums", subtask=subtask, key_groups=groups, rows=rows, mean_rows=1000.0)
    return LoadReport(seconds=seconds, busy_seconds=busy * seconds, skew=skew)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (load(4_000), True),
        (load(3_900), False),
        (load(4_000, busy=0.6), False),
        (load(4_000, seconds=200.0), False),
        (load(0), False),
    ],
)
def test_keys_are_skewed_where_one_subtask_holds_up_a_busy_stream(said, told):
    stage = running()
    stage.say(load=said)
    pass_time(stage, seconds=30)
    assert ("SkewedKeys" in found(stage)) == told
    assert stage.condition("Degraded") == "False/Healthy"


def test_skew_says_where_and_does_not_come_and_go_with_every_look():
    stage = running()
    for rows in (4_500, 3_900, 4_100, 3_500):
        stage.say(load=load(rows))
        pass_time(stage, seconds=30)
        [one] = stage.status.health.findings
        assert "subtask 3 of sums (key groups 48-63) has 4.5 times" in one.message
    stage.say(load=load(3_000))
    pass_time(stage, seconds=30)
    assert found(stage) == {}
    assert len(keys(stage, "SkewedKeys")) == 1


def test_skew_names_who_it_is_now_and_two_that_take_turns_for_a_while_each():
    stage = running()
    texts = []
    for look in range(12):
        stage.say(load=load(4_500, subtask=look % 2))
        pass_time(stage, seconds=30)
        texts.append(stage.status.health.findings[0].message)
    changes = sum(one != other for one, other in itertools.pairwise(texts))
    assert changes == 1
    stage.say(load=load(3_500, subtask=5))
    pass_time(stage, minutes=5)
    [one] = stage.status.health.findings
    assert "subtask 5 of sums (key groups 80-95) has 3.5 times" in one.message
    assert len(keys(stage, "SkewedKeys")) == 1


def worked(most, median=100.0, rows=1_000, subtasks=4, counted=900.0):
    """Of a stream that spends 810 s of 900 in epochs: seconds of its busiest subtask.

    Args:
        counted: seconds over which those of subtasks are.
    """
    one = OperatorLoad(
        uid="sums",
        subtasks=subtasks,
        busiest=3,
        key_groups="48-63",
        most=SubtaskLoad(rows=rows, busy_seconds=most),
        median=SubtaskLoad(rows=rows, busy_seconds=median),
    )
    known = {"seconds": 900.0, "busy_seconds": 810.0, "operator_seconds": counted}
    return LoadReport(operators=(one,), **known)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (worked(729.0), True),
        (worked(729.0, median=200.0), False),
        # Epochs take their time elsewhere.
        (worked(401.0), False),
        # As much, over twice the time
        (worked(802.0, counted=1800.0), False),
        (worked(1458.0, counted=1800.0), True),
        (worked(729.0, median=0.0), True),
        (worked(729.0, median=0.0, subtasks=1), False),
        (worked(729.0, rows=50), False),
    ],
)
def test_a_subtask_with_as_many_rows_and_more_work_is_told(said, told):
    stage = running()
    stage.say(load=said)
    pass_time(stage, seconds=30)
    assert ("SkewedKeys" in found(stage)) == told
    if told:
        [one] = stage.status.health.findings
        assert "was at work for 90% of the epochs' time, at least 4 times the median" in one.message


def test_work_that_is_uneven_does_not_come_and_go_with_every_look():
    stage = running()
    for most in (729.0, 390.0, 410.0, 330.0):
        stage.say(load=worked(most, median=80.0))
        pass_time(stage, seconds=30)
        [one] = stage.status.health.findings
        assert "90% of the epochs' time, at least 4 times the median" in one.message
    stage.say(load=worked(300.0, median=80.0))
    pass_time(stage, seconds=30)
    assert found(stage) == {}


# -- clocks ------------------------------------------------------------------------------------

STEPS = [timedelta(hours=-3), timedelta(hours=3)]


@pytest.mark.parametrize("step", STEPS)
def test_a_drivers_clock_that_is_set_is_told_once_and_nothing_else(step):
    stage = running()
    for _ in range(3):
        there = stage.now + step
        stage.say(
            running_since=there - timedelta(minutes=3),
            last_checkpoint=checkpoint(7, there - step - timedelta(minutes=1)),
            last_checkpoint_time=there - timedelta(minutes=1),
        )
        pass_time(stage, clock=step, seconds=1)
    assert stage.started() == [1]
    assert stage.status.health.findings == ()
    assert len(keys(stage, "ClockStepped")) == 1
    assert stage.status.health.clock_ahead_seconds == step.total_seconds()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_an_operators_clock_that_is_set_is_told_once_and_nothing_else(step, checkpoints):
    stage = Stage(spec=job_spec())
    stage.settle()
    began = stage.now
    stage.say_running(checkpoints=checkpoints, answered_at=began, last_move_time=began)
    if checkpoints:
        stage.say(last_checkpoint_time=began)
    stage.settle()
    stage.now += step
    for second in range(1, 5):
        there = began + timedelta(seconds=second)
        stage.now += timedelta(seconds=1)
        stage.say(answered_at=there, last_move_time=there)
        stage.settle()
    assert stage.started() == [1]
    assert stage.status.health.findings == ()
    assert len(keys(stage, "ClockStepped")) == 1


def test_a_driver_that_has_just_fallen_silent_is_not_taken_for_one_that_hangs_by_a_clock():
    stage = running()
    stage.change_driver(ready=False)
    stage.now += timedelta(hours=3)
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    stage.settle()
    assert stage.status.health.findings == ()
    stage.wait(61)
    assert "NoProgress" in stage.status.restarts.last_reason


@pytest.mark.parametrize("off", [timedelta(seconds=-20), timedelta(seconds=20)])
def test_clocks_that_are_about_right_are_no_news(off):
    stage = running()
    pass_time(stage, clock=off, seconds=1)
    assert not stage.told("ClockStepped")


def test_what_a_driver_counted_before_anybody_listened_did_not_happen_now():
    stage = running()
    stage.status = stage.status.model_copy(update={"health": type(stage.status.health)()})
    stage.say(executors_lost=15, rewinds=7)
    pass_time(stage, seconds=5)
    assert found(stage) == {}
    assert (stage.status.health.executors_lost, stage.status.health.rewinds) == (15, 7)


def test_what_a_driver_tells_of_its_time_as_a_shadow_is_not_the_jobs():
    stage = running()
    complete(stage)
    known = stage.status
    stage.say(standby=True, rewinds=7, executors_lost=12, last_checkpoint=checkpoint(1, stage.now))
    stage.settle()
    assert stage.status.snapshots == known.snapshots
    assert stage.status.attempt == known.attempt
    assert stage.status.health == known.health


def beginning(**spec):
    """A driver that answers, and whose stream has not begun."""
    stage = Stage(spec=job_spec(**spec))
    stage.settle()
    stage.change_driver(phase="Running", node="node-1", ip="10.0.0.1")
    began = stage.now
    said = DriverState(attempt=1, job_uid=stage.uid, phase="restoring")
    stage.report = said.model_copy(update={"answered_at": began, "last_move_time": began})
    stage.settle()
    assert stage.status.operation is not None
    assert stage.status.operation.step == "Verifying"
    return stage


def test_a_start_in_which_nothing_moves_for_very_long_is_begun_anew_and_counted():
    stage = beginning()
    pass_time(stage, move=False, minutes=59)
    assert stage.status.health.findings == ()
    pass_time(stage, move=False, minutes=2)
    assert stage.status.operation.type == "Recover"
    assert [one.check for one in stage.status.health.actions] == ["NoProgress"]
    (told,) = stage.told("NoProgress")
    assert "the stream does not begin to run, and nothing has moved for 4 times 15m" in told.message


def test_a_start_that_takes_long_and_moves_is_left_alone():
    stage = beginning()
    for _ in range(5):
        pass_time(stage, minutes=50)
    pass_time(stage, move=False, minutes=50)
    assert stage.started() == [1]
    assert stage.status.health.findings == ()


@pytest.mark.parametrize(
    "said", [{"executors_desired": 3}, {"storage_error": "it does not answer"}]
)
def test_a_start_that_waits_for_executors_or_the_store_is_left_alone(said):
    stage = beginning()
    stage.say(**said)
    for _ in range(5):
        pass_time(stage, move=False, minutes=50)
    assert stage.started() == [1]
    assert stage.status.health.findings == ()


def test_a_start_that_hangs_is_only_told_where_people_want_that():
    stage = beginning(**health(actions={"noProgress": "Alert"}))
    pass_time(stage, move=False, minutes=61)
    assert stage.started() == [1]
    assert found(stage) == {"NoProgress": "Alert"}
    assert stage.condition("Degraded") == "True/NoProgress"
    pass_time(stage, minutes=1)
    assert stage.status.health.findings == ()


def test_a_driver_that_was_told_to_lead_and_does_not_is_replaced():
    stage = beginning()
    stage.say(phase="running", standby=True)
    pass_time(stage, minutes=9)
    assert stage.told("NoProgress") == []
    pass_time(stage, minutes=2)
    (told,) = stage.told("NoProgress")
    assert "it was told to lead" in told.message
    assert stage.status.operation.type == "Recover"
