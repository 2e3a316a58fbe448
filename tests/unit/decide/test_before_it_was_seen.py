"""What people asked for before a pass saw the driver's end; and ends that are not the last word."""

from dataclasses import replace
from datetime import timedelta

import pytest
from moorage_testing.worlds import Stage, checkpoint, job_spec, store_of

from moorage_operator.observe import Need, needs
from moorage_operator.plan import DeletePod
from moorage_operator.world import PodView, StoreTaskView, StoreView, Unreadable

TWO = "registry.example/clicks:2"
DEAF = ("EndpointUnreachable", "no answer")


def _running(**spec):
    stage = Stage(spec=job_spec(**spec))
    stage.run()
    return stage


def test_an_edit_is_tried_instead_of_a_block():
    stage = _running()
    stage.end("Failed", "user_error")
    stage.edit(image=TWO)
    stage.settle()
    assert stage.started() == [1, 2]
    assert stage.revisions[stage.status.attempt.revision].spec.image == TWO


def test_a_restart_is_tried_once_instead_of_a_block():
    stage = _running()
    stage.end("Failed", "user_error")
    stage.annotate(restart="now")
    stage.settle()
    assert stage.started() == [1, 2]
    stage.end("Failed", "user_error")
    stage.wait(600)
    assert stage.started() == [1, 2]
    assert stage.status.blocked_reason == "InvalidJob"


def test_a_third_version_is_tried_where_the_second_was_refused_unseen():
    stage = _running()
    stage.edit(image=TWO)
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    stage.end("Failed", "user_error")
    stage.edit(image="registry.example/clicks:3")
    stage.settle()
    assert stage.started() == [1, 2, 3]


def test_an_edit_is_tried_instead_of_giving_up():
    stage = _running(failurePolicy={"maxRestarts": 0})
    stage.end("Failed", "user_function")
    stage.edit(image=TWO)
    stage.settle()
    assert stage.started() == [1, 2]


def test_a_suspension_is_followed_instead_of_a_block():
    stage = _running()
    stage.end("Failed", "user_error")
    stage.edit(desiredState="Suspended")
    stage.settle()
    assert stage.status.phase == "Suspended"


def test_a_lineage_that_may_be_adopted_by_now_is_adopted_once():
    stage = Stage()
    stage.settle()
    stage.end("Failed", "adopt_required")
    stage.annotate(adopt_lineage="lineage-1")
    stage.settle()
    assert [order.adopt_lineage for order in stage.orders] == ["", "lineage-1"]
    stage.end("Failed", "adopt_required")
    stage.wait(600)
    assert stage.status.blocked_reason == "AdoptRequired"


# -- fenced ------------------------------------------------------------------------------------


def test_a_fenced_driver_is_started_again_once_where_the_lineage_is_its_own():
    stage = _running()
    stage.end("Failed", "fenced")
    stage.settle()
    assert stage.status.phase == "BackOff"
    stage.wait(60)
    assert stage.started() == [1, 2]
    stage.say_running()
    stage.settle()
    stage.end("Failed", "fenced")
    stage.settle()
    assert stage.status.blocked_reason == "Fenced"


def test_a_driver_that_another_object_fenced_is_not_started_again():
    stage = _running()
    stage.end("Failed", "fenced")
    stage.store = store_of("another-object", newest=7)
    stage.settle()
    assert stage.status.blocked_reason == "Fenced"


def test_a_late_pod_of_a_blocked_job_is_removed():
    stage = _running()
    stage.end("Failed", "user_error")
    stage.settle()
    stage.drivers["late"] = PodView("late", "u9", "driver", 0, "Running")
    stage.settle()
    assert stage.drivers["late"].deleted_at is not None


# -- given up, blocked -------------------------------------------------------------------------


def test_a_job_that_is_given_up_leaves_no_living_driver():
    stage = _running(failurePolicy={"maxRestarts": 0})
    stage.wait(40 * 60)
    assert stage.status.phase == "Failed"
    assert stage.driver.deleted_at is not None
    stage.wait(3600)
    assert any(isinstance(e, DeletePod) and e.grace_seconds == 0 for e in stage.effects)


def test_a_blocked_job_reads_no_store_that_cannot_lift_the_block():
    stage = _running()
    stage.end("Failed", "user_error")
    stage.settle()
    assert Need.STORE not in needs(stage.world())


@pytest.mark.parametrize("reason", ["AdoptRequired", "CheckpointDirConflict"])
def test_a_block_that_the_store_lifts_is_read_for(reason):
    stage = Stage()
    stage.store = store_of("another", newest=7)
    if reason == "CheckpointDirConflict":
        stage.store = replace(stage.store, owner=("test", "default", "other", "another"))
    stage.settle()
    assert stage.status.blocked_reason == reason
    assert Need.STORE in needs(stage.world())


def test_who_holds_the_lineage_is_not_stopped_by_what_an_elder_writes():
    stage = _running()
    stage.rival = "elsewhere/elder"
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(60)
    assert stage.started() == [1, 2]


def test_a_move_to_the_directory_of_another_job_is_refused_while_the_job_runs():
    stage = _running()
    stage.rival = "elsewhere/elder"
    state = {"checkpointDir": "s3://state/elder", "savepointDir": "s3://savepoints/clicks"}
    restore = {"nonce": 1, "acknowledgeStateLoss": True}
    stage.edit(state=state, restore=restore)
    stage.settle()
    assert stage.status.operation is None
    assert "elsewhere/elder" in stage.status.message


# -- deletion ----------------------------------------------------------------------------------


def _answer(stage, **view):
    for key, known in list(stage.store_tasks.items()):
        if known.state == "Pending":
            stage.store_tasks[key] = StoreTaskView(**view)


def test_a_blocked_deletion_goes_on_when_the_store_is_back():
    rules = {"policy": "Delete", "onTimeout": "Block", "finalSnapshot": "None", "timeout": "1m"}
    stage = _running(deletion=rules)
    stage.delete()
    stage.settle()
    stage.end("Stopped")
    for _ in range(30):
        stage.wait(20)
        _answer(stage, state="Failed", message="down", retryable=True)
    assert stage.status.blocked_reason == "StateNotDeleted"
    assert len(stage.store_tasks) < 15
    for _ in range(20):
        stage.wait(60)
        _answer(stage, state="Completed", result={"deleted": 3, "left": ""})
    assert stage.gone


# -- a driver that does not answer, an epoch that does not end --------------------------------


def _deaf(stage, **pod):
    stage.change_driver(**pod)
    stage.report = Unreadable(*DEAF, stage.now)


def test_a_ready_driver_that_cannot_be_reached_is_never_stopped():
    stage = _running()
    _deaf(stage)
    stage.wait(86_400)
    assert stage.status.operation is None
    assert stage.condition("Degraded") == "True/DriverUnreachable"
    assert Need.STORE not in needs(stage.world())


def test_an_unready_one_is_stopped_only_where_the_store_shows_no_progress():
    stage = _running()
    _deaf(stage, ready=False)
    for number in range(10):
        stage.now += timedelta(minutes=10)
        stage.store = store_of(newest=200 + number)
        point = replace(stage.store.newest, completed_at=stage.now)
        stage.store = replace(stage.store, newest=point)
        stage.settle()
    assert stage.status.operation is None
    stage.store = Unreadable("StoreUnavailable", "timeout")
    stage.wait(3600)
    assert stage.status.operation is None
    assert Need.STORE in needs(stage.world())
    stage.store = StoreView(exists=False)
    stage.settle()
    assert stage.driver.deleted_at is not None


@pytest.mark.parametrize("followed", [True, False])
def test_what_was_known_before_a_choice_is_not_asked_of_the_directory_it_was_made_for(followed):
    """A person goes on in a directory that was set back, and nobody hears of its checkpoints."""
    stage = _running()
    known = stage.status.snapshots.last_checkpoint.id
    stage.end("Failed", "restore_point_not_found")
    stage.settle()
    stage.edit(restore={"mode": "Path", "path": "s3://elsewhere/copy", "nonce": 1})
    stage.settle()
    stage.say_running(checkpoints=0)
    stage.settle()
    order = stage.status.attempt.restore_point.order_id
    ids = frozenset({order} if followed else ())
    stage.store = store_of(newest=6, order_ids=ids)
    stage.end_pod(137)
    stage.settle()
    stage.wait(600)
    assert stage.started() == [1, 2, 3], stage.status
    assert stage.orders[-1].restore.path.endswith(f"chk-{6 if followed else known}")


def _in_epoch(stage: Stage, minutes: int, *, moves: bool, tasks: int) -> None:
    """Minutes of one epoch, begun now, in which Spark's tasks run and end, or do not."""
    began = moved = stage.now
    for _ in range(minutes):
        stage.now += timedelta(minutes=1)
        moved = stage.now if moves else moved
        stage.say(
            epoch_since=began,
            last_move_time=moved,
            answered_at=stage.now,
            tasks_running=tasks,
            busy_ratio=1.0,
        )
        stage.settle()
        if stage.driver.deleted_at is not None:
            return


def test_a_slow_epoch_in_which_tasks_end_is_never_begun_anew():
    stage = _running(failurePolicy={"health": {"noCheckpointFor": "5m"}})
    _in_epoch(stage, 180, moves=True, tasks=2)
    assert stage.started() == [1]
    assert stage.status.operation is None
    assert stage.condition("Ready") == "True/Running"
    assert stage.condition("Degraded") == "True/NoCheckpoint"
    assert "is under way since 2026-01-01 12:" in stage.status.message


def test_an_epoch_whose_tasks_run_and_do_not_end_is_shown_and_in_the_end_begun_anew():
    stage = _running()
    _in_epoch(stage, 59, moves=False, tasks=2)
    assert stage.driver.deleted_at is None
    assert stage.condition("Ready") == "True/Running"
    assert stage.condition("Degraded") == "True/NoProgress"
    assert "is under way since" in stage.status.message
    _in_epoch(stage, 2, moves=False, tasks=2)
    stage.say(last_move_time=stage.now - timedelta(hours=1))
    stage.settle()
    assert stage.driver.deleted_at is not None


def test_a_driver_that_goes_back_again_and_again_is_shown_with_what_it_says_of_it():
    stage = _running()
    told = (
        "executors were lost 7 times without a checkpoint in between: the next run begins in 40 s"
    )
    stage.now += timedelta(minutes=16)
    stage.say(phase="rewinding", message=told, answered_at=stage.now)
    stage.settle()
    assert stage.driver.deleted_at is None
    assert stage.condition("Degraded") == "True/NoProgress"
    assert f"it is rewinding ({told})" in stage.status.message


def test_an_epoch_in_which_nothing_runs_is_begun_anew_after_the_usual_time():
    stage = _running()
    _in_epoch(stage, 14, moves=False, tasks=0)
    assert stage.driver.deleted_at is None
    stage.say(answered_at=stage.now + timedelta(minutes=1))
    stage.now += timedelta(minutes=1)
    stage.settle()
    assert stage.driver.deleted_at is not None
    assert len(stage.told("NoProgress")) == 1


def test_a_stream_that_finds_nothing_to_do_is_no_trouble_whatever_its_checkpoints():
    stage = _running(checkpoint={"interval": "24h"})
    for _ in range(600):
        stage.now += timedelta(minutes=1)
        stage.say(last_move_time=stage.now, answered_at=stage.now)
        stage.settle()
    assert stage.started() == [1]
    assert stage.condition("Ready") == "True/Running"


def test_epochs_of_twenty_minutes_one_after_the_other_may_have_late_checkpoints():
    stage = _running()
    for _ in range(6):
        began = stage.now
        for _ in range(20):
            stage.now += timedelta(minutes=1)
            stage.say(epoch_since=began, last_move_time=stage.now, answered_at=stage.now)
            stage.settle()
        stage.say(epoch_seconds=1200.0, last_progress_time=stage.now)
        stage.go_on(1)
    assert stage.started() == [1]
    assert not stage.told("NoCheckpoint")


@pytest.mark.parametrize("skew", [timedelta(hours=-2), timedelta(hours=2)])
def test_a_driver_whose_clock_is_wrong_is_judged_by_its_own_time(skew: timedelta):
    stage = _running(checkpoint={"interval": "24h"})
    for _ in range(30):
        stage.now += timedelta(minutes=1)
        stage.say(last_move_time=stage.now + skew, answered_at=stage.now + skew)
        stage.settle()
    assert stage.status.operation is None
    for _ in range(16):
        stage.now += timedelta(minutes=1)
        stage.say(answered_at=stage.now + skew)
        stage.settle()
    assert len(stage.told("NoProgress")) == 1


@pytest.mark.parametrize("skew", [timedelta(hours=-2), timedelta(hours=2)])
def test_checkpoints_of_a_driver_whose_clock_is_wrong_are_in_time_or_not(skew: timedelta):
    stage = Stage(spec=job_spec(failurePolicy={"health": {"noCheckpointFor": "10m"}}))
    stage.settle()
    stage.say_running(checkpoints=0, running_since=stage.now + skew, answered_at=stage.now + skew)
    stage.settle()
    for number in range(1, 60):
        stage.now += timedelta(minutes=1)
        there = stage.now + skew
        last = checkpoint(number, there)
        stage.say(last_checkpoint=last, last_move_time=there, answered_at=there)
        stage.say(completed_checkpoints=number)
        stage.settle()
    assert stage.started() == [1]
    assert stage.condition("Checkpointing") == "True/InTime"
    for _ in range(61):
        stage.now += timedelta(minutes=1)
        stage.say(last_move_time=stage.now + skew, answered_at=stage.now + skew)
        stage.settle()
    assert len(stage.told("NoCheckpoint")) == 1


def test_as_many_restarts_as_are_counted_can_be_allowed():
    with pytest.raises(ValueError, match="64"):
        job_spec(failurePolicy={"maxRestarts": 65})
    stage = _running(failurePolicy={"maxRestarts": 64, "window": "1000h"})
    for _ in range(64):
        stage.end("Failed", "user_function")
        stage.settle()
        stage.wait(400)
        stage.say_running()
        stage.settle()
    stage.end("Failed", "user_function")
    stage.settle()
    assert stage.status.phase == "Failed"
