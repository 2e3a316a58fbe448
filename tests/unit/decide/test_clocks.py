"""Clocks of drivers and kubelets that are minutes or hours off: nothing is decided by them."""

from datetime import datetime, timedelta
from typing import get_args

import pytest
from moorage_testing.world_parts import SAVEPOINTS
from moorage_testing.worlds import Stage, checkpoint, job_spec

from moorage_api.driver import DriverState, Report
from moorage_api.status import OperationStatus, StandbyStatus
from moorage_operator.decide.clock import put_clock_right
from moorage_operator.decide.draft import Draft
from moorage_operator.plan import DeletePod, RunStoreTask
from moorage_operator.store_access import last_end
from moorage_operator.world import ContainerEnd, Unreadable

SKEWS = [timedelta(minutes=-40), timedelta(minutes=40)]
SOURCE = f"{SAVEPOINTS}/a"

skewed = pytest.mark.parametrize("skew", SKEWS, ids=["behind", "ahead"])


def running(skew, stage=None, **said):
    """A job whose driver's clock is that much off."""
    stage = stage or Stage()
    stage.settle()
    there = stage.now + skew
    last = checkpoint(stage.status.attempt.number * 100 + 1, there)
    told = {"running_since": there, "answered_at": there, "last_checkpoint": last, **said}
    stage.say_running(**told)
    stage.settle()
    return stage


def pass_time(stage, skew, **step):
    """Time passes, and the driver gets on."""
    stage.now += timedelta(**step)
    there = stage.now + skew
    assert isinstance(stage.report, DriverState)
    known = stage.report.last_checkpoint
    last = checkpoint(known.id + 1 if known is not None else 1, there)
    stage.say(last_move_time=there, last_progress_time=there, answered_at=there)
    stage.say(last_checkpoint=last)
    stage.settle()


@skewed
def test_a_version_is_stable_after_its_time_whatever_its_driver_takes_it_for(skew):
    stage = running(skew)
    pass_time(stage, skew, seconds=110)
    assert stage.status.phase == "Running"
    pass_time(stage, skew, seconds=20)
    assert stage.status.phase == "Stable"


@skewed
def test_the_wait_after_a_failure_is_short_again_after_a_good_run_and_not_before(skew):
    stage = running(skew)
    stage.end_pod(137, reason="OOMKilled")
    stage.settle()
    stage.wait(60)
    running(skew, stage)
    assert stage.status.restarts.backoff_level == 1
    pass_time(stage, skew, minutes=25)
    assert stage.status.restarts.backoff_level == 1
    pass_time(stage, skew, minutes=6)
    assert stage.status.restarts.backoff_level == 0


@skewed
def test_a_run_that_nobody_saw_on_the_way_is_measured_on_one_clock(skew):
    stage = running(skew)
    stage.end_pod(137, reason="OOMKilled")
    stage.settle()
    stage.wait(60)
    running(skew, stage)
    stage.now += timedelta(minutes=10)
    stage.end_pod(137, reason="OOMKilled")
    stage.settle()
    assert stage.status.restarts.backoff_level == 2


@skewed
def test_an_eviction_soon_after_the_start_waits_and_a_later_one_does_not(skew):
    stage = running(skew)
    stage.now += timedelta(seconds=5)
    stage.end_pod(143, disrupted="evicted")
    stage.settle()
    assert stage.status.restarts.next_retry_at is not None
    stage.wait(60)
    running(skew, stage)
    stage.now += timedelta(seconds=30)
    stage.end_pod(143, disrupted="evicted")
    stage.settle()
    assert stage.status.attempt.number == 3
    assert stage.status.restarts.next_retry_at is None


def test_a_driver_whose_clock_is_put_right_began_no_earlier_than_it_was_made():
    stage = Stage()
    stage.settle()
    made = stage.now
    stage.now += timedelta(seconds=30)
    stage.say_running(running_since=stage.now - timedelta(hours=2), answered_at=stage.now)
    stage.settle()
    assert stage.status.attempt.running_since == made


@skewed
@pytest.mark.parametrize("minutes", [1, 10])
def test_an_end_is_when_it_was_seen_and_what_the_store_showed_before_counts_as_before(
    skew, minutes
):
    off = skew / 40 * minutes
    stage = running(timedelta())
    stage.now += timedelta(minutes=5)
    stage.end_pod(1)
    stage.change_driver(ended=ContainerEnd(1, "Error", finished_at=stage.now + off))
    assert last_end(stage.world()) == stage.now
    stage.pass_()
    assert stage.status.attempt.ended_at == stage.now
    assert last_end(stage.world()) == stage.now


def test_of_an_end_that_the_operator_slept_through_the_kubelet_says_when():
    stage = running(timedelta())
    ended = stage.now + timedelta(minutes=1)
    stage.end_pod(1)
    stage.change_driver(ended=ContainerEnd(1, "Error", finished_at=ended))
    stage.now += timedelta(hours=3)
    stage.pass_()
    assert stage.status.attempt.ended_at == ended


def test_a_driver_did_not_end_before_it_was_last_seen_at_work():
    stage = running(timedelta())
    pass_time(stage, timedelta(), minutes=50)
    seen = stage.now
    stage.now += timedelta(seconds=30)
    stage.end_pod(1)
    early = ContainerEnd(1, "Error", finished_at=stage.now - timedelta(minutes=40))
    stage.change_driver(ended=early)
    stage.pass_()
    assert stage.status.attempt.ended_at == seen


def moved(skew):
    """A job that moves to another directory, whose first driver's clock is off."""
    stage = running(skew)
    state = {"checkpointDir": "s3://state/elsewhere", "savepointDir": SAVEPOINTS}
    stage.edit(state=state, restore={"mode": "Path", "path": SOURCE, "nonce": 1})
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    return stage


@skewed
def test_a_lineage_is_given_up_after_the_first_checkpoint_elsewhere_and_not_before(skew):
    stage = moved(skew)
    running(-skew, stage, checkpoints=0, last_checkpoint=checkpoint(101, stage.now + skew))
    released = [
        e for e in stage.effects if isinstance(e, RunStoreTask) and e.store_task.kind == "Release"
    ]
    assert not released
    there = checkpoint(1, stage.now - skew)
    stage.say(last_checkpoint=there, completed_checkpoints=1, answered_at=stage.now - skew)
    stage.settle()
    assert [
        e for e in stage.effects if isinstance(e, RunStoreTask) and e.store_task.kind == "Release"
    ]


@skewed
def test_an_order_to_restore_is_not_forgotten_for_a_checkpoint_of_the_driver_before(skew):
    stage = moved(skew)
    stage.change_driver(started_at=stage.now + timedelta(seconds=1))
    last = stage.status.snapshots.last_checkpoint
    stage.now += timedelta(seconds=20)
    stage.end("Failed", "user_function", last_checkpoint=last)
    stage.settle()
    stage.wait(120)
    assert [order.restore.path for order in stage.orders if order.attempt == 3] == [SOURCE]


@skewed
def test_a_stream_that_nobody_saw_run_is_known_by_a_checkpoint_of_its_own(skew):
    stage = moved(skew)
    stage.change_driver(started_at=stage.now + skew)
    stage.now += timedelta(seconds=90)
    stage.end("Failed", "user_function", last_checkpoint=checkpoint(201, stage.now + skew))
    stage.settle()
    stage.wait(120)
    assert [order.restore.mode for order in stage.orders if order.attempt == 3] == ["Latest"]


@skewed
def test_a_checkpoint_is_as_old_as_it_is(skew):
    stage = Stage(spec=job_spec(upgrade={"mode": "LastCheckpoint", "maxCheckpointAge": "5m"}))
    running(skew, stage)
    for age, mode in ((2, "None"), (7, "Checkpoint")):
        stage.now += timedelta(minutes=10)
        there = stage.now + skew
        last = checkpoint(age, there - timedelta(minutes=age))
        stage.say(last_checkpoint=last, last_move_time=there, answered_at=there)
        stage.settle()
        stage.annotate(restart=mode)
        stage.pass_()
        operation = stage.status.operation
        assert operation is not None
        assert operation.stop_mode == mode
        stage.settle()
        stage.stop_as_asked()
        stage.settle()
        running(skew, stage)
        stage.asked = {}


@skewed
def test_a_driver_that_falls_silent_is_missed_in_time(skew):
    stage = running(skew)
    pass_time(stage, skew, minutes=1)
    stage.report = None
    stage.change_driver(ready=False)
    stage.settle()
    stage.wait(13 * 60)
    assert not stage.told("NoProgress")
    stage.wait(3 * 60)
    assert len(stage.told("NoProgress")) == 1


def test_a_wait_is_never_longer_than_any_wait_though_the_clock_is_put_back():
    stage = running(timedelta())
    stage.end_pod(137, reason="OOMKilled")
    stage.settle()
    assert stage.status.phase == "BackOff"
    stage.now -= timedelta(hours=1)
    stage.settle()
    stage.wait(11)
    assert stage.started() == [1, 2]


@pytest.mark.parametrize("behind", [timedelta(), timedelta(minutes=5)])
def test_grace_is_given_by_this_clock_where_that_of_the_api_server_is_behind(behind):
    stage = running(timedelta())
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    stage.answer("Failed")
    stage.deaf = True
    stage.report = None
    stage.now += timedelta(minutes=40)
    stage.settle()
    stage.change_driver(deleted_at=stage.now - behind, grace_seconds=120)
    stage.settle()
    stage.wait(110)
    assert not [e for e in stage.effects if isinstance(e, DeletePod) and e.grace_seconds == 0]
    stage.wait(140)
    assert [e for e in stage.effects if isinstance(e, DeletePod) and e.grace_seconds == 0]


# -- the operator's own clock, put back by a day ---------------------------------------------------

DAY = timedelta(days=1)


def put_back(stage):
    """The operator began with a clock that was ahead; the driver's was right all the time."""
    stage.now -= DAY
    stage.say(running_since=stage.now, last_progress_time=stage.now, answered_at=stage.now)


def gets_on(stage, **step):
    stage.now += timedelta(**step)
    stage.say(last_move_time=stage.now, last_progress_time=stage.now, answered_at=stage.now)
    stage.settle()


def test_a_version_is_stable_in_its_time_after_the_clock_was_put_back():
    stage = Stage()
    stage.run()
    put_back(stage)
    gets_on(stage, seconds=1)
    gets_on(stage, minutes=3)
    assert stage.status.phase == "Stable"


def test_a_version_that_does_not_get_stable_is_rolled_back_in_its_time_all_the_same():
    spec = job_spec(upgrade={"rollback": {"enabled": True}, "mode": "LastCheckpoint"})
    stage = Stage(spec=spec)
    stage.run()
    stage.go_on(200)
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    put_back_without_driver(stage)
    for _ in range(40):
        stage.wait(60)
        if stage.status.phase == "Running" or stage.told("RollbackStarted"):
            break
        if not stage.driver.terminal:
            stage.end(code="user_function")
            stage.settle()
    assert stage.told("RollbackStarted")


def put_back_without_driver(stage):
    stage.now -= DAY


def test_what_a_person_asks_for_is_done_though_the_last_change_lies_ahead():
    stage = Stage(spec=job_spec(scaling={"parallelism": 2, "maxParallelism": 16, "cooldown": "1h"}))
    stage.run()
    stage.status = stage.status.model_copy(
        update={"scaling": stage.status.scaling.model_copy(update={"changed_at": stage.now})}
    )
    put_back(stage)
    gets_on(stage, seconds=1)
    stage.edit(scaling={"parallelism": 4, "maxParallelism": 16, "cooldown": "1h"})
    stage.settle()
    assert stage.status.operation is None
    gets_on(stage, minutes=61)
    assert stage.status.operation is not None


def test_a_driver_that_hangs_at_its_start_is_given_up_in_its_time():
    stage = Stage()
    stage.settle()
    stage.change_driver(phase="Running", node="node-1", ip="10.0.0.1")
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    stage.store = None
    stage.settle()
    put_back_without_driver(stage)
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    stage.wait(1)
    stage.wait(2 * stage.config.start_timeout + 10)
    assert stage.told("StartTimedOut")


def all_times(value, at):
    """A status with a value in each field that is a time, and in each part one such part."""
    fields = {}
    for name, field in type(value).model_fields.items():
        known, kinds = getattr(value, name, ""), [field.annotation]
        for _ in range(3):  # such as Annotated[tuple[Annotated[datetime, ...], ...], ...]
            kinds += [more for kind in kinds for more in get_args(kind)]
        parts = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Report)]
        found = known
        if parts:
            one = known if isinstance(known, Report) else parts[0].model_construct()
            found = all_times(one, at)
        elif datetime in kinds:
            found = at
        fields[name] = (found,) if isinstance(known, tuple) and found is not known else found
    return value.model_copy(update=fields)


def times_in(value, where=""):
    """Each time in a status, with the path to it."""
    if isinstance(value, datetime):
        yield where, value
    elif isinstance(value, tuple):
        for one in value:
            yield from times_in(one, where)
    elif isinstance(value, Report):
        for name in type(value).model_fields:
            yield from times_in(getattr(value, name, None), f"{where}.{name}".strip("."))


def test_no_time_that_an_operator_wrote_is_left_ahead():
    stage = Stage()
    stage.run()
    world = stage.world()
    draft = Draft(world, all_times(world.status, stage.now + DAY))
    put_clock_right(draft)
    ahead = {where for where, at in times_in(draft.status) if at > stage.now}
    assert ahead == {
        "conditions.last_transition_time",  # for people
        # By a driver's clock:
        "attempt.restore_point.completed_at",
        "attempt.restored_from.completed_at",
        "job.epoch_since",
        "job.watermark",  # of rows, which may be of any time
        "next_restore.completed_at",
        "operation.restore_point.completed_at",
        "reconciliation.trial.restore_point.completed_at",
        "snapshots.last_checkpoint.completed_at",
        "snapshots.last_savepoint.completed_at",
    }
    left = {where for where, at in times_in(draft.status) if at == stage.now}
    assert {"operation.standby.caught_up_since", "operation.deadline", "leaving.retry_at"} <= left


@pytest.mark.parametrize("savepoint", [{}, {"schedule": {"cron": "0 3 * * *"}}])
def test_a_tick_from_ahead_puts_no_wait_off_again_in_each_pass(savepoint):
    stage = Stage(spec=job_spec(savepoint=savepoint))
    stage.run()
    ahead = stage.status.snapshots.model_copy(update={"last_scheduled_time": stage.now + DAY})
    stage.status = stage.status.model_copy(update={"snapshots": ahead})
    stage.settle()
    assert stage.status.snapshots.last_scheduled_time == (stage.now if savepoint else None)
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    stage.wait(5)
    operation = stage.status.operation
    assert operation is not None
    assert operation.deadline is not None
    assert operation.deadline > stage.now


def test_a_version_that_has_kept_up_takes_over_in_its_time_after_the_clock_was_put_back():
    """Nothing but the time since which it keeps up is of the clock that was ahead."""
    world = Stage().world()
    operation = OperationStatus(
        id="1-1",
        type="Upgrade",
        step="Standby",
        started_at=world.now,
        step_started_at=world.now,
        standby=StandbyStatus(attempt=2, caught_up_since=world.now + DAY),
    )
    draft = Draft(world, world.status.model_copy(update={"operation": operation}))
    put_clock_right(draft)
    assert draft.operation.standby is not None
    assert draft.operation.standby.caught_up_since == world.now


def test_nothing_is_written_anew_for_clocks_that_differ_by_seconds():
    stage = Stage()
    stage.run()
    before = stage.status.attempt
    stage.now -= timedelta(seconds=20)
    stage.settle()
    assert stage.status.attempt == before
