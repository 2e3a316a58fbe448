"""Figures of a running stream: written when they say something new, and not whenever they move."""

from datetime import timedelta

import pytest
from moorage_testing.world_parts import CHECKPOINTS, store_of
from moorage_testing.worlds import Stage, checkpoint, job_spec


@pytest.fixture
def running():
    """A job that has run for a while, on a checkpoint a second."""
    stage = Stage()
    stage.run()
    stage.go_on(3600)
    return stage


def written(stage, seconds, each):
    """How many statuses are written while the driver completes a checkpoint every `each` s."""
    count, end = 0, stage.now + timedelta(seconds=seconds)
    while stage.now < end:
        before = stage.status
        stage.go_on(each)
        count += stage.status != before
    return count


@pytest.mark.parametrize(("each", "most"), [(1, 11), (10, 11), (60, 11)])
def test_checkpoints_are_shown_every_five_minutes_however_often_they_come(running, each, most):
    assert 9 <= written(running, 3000, each) <= most


def test_the_first_checkpoint_is_shown_at_once():
    stage = Stage()
    stage.run(checkpoints=0)
    assert stage.status.snapshots.last_checkpoint is None
    stage.go_on(1)
    shown = stage.status.snapshots.last_checkpoint
    assert shown is not None
    assert shown.completed_at == stage.now


@pytest.mark.parametrize(
    "other", [{"path": "s3://state/elsewhere/chk-900", "id": 900}, {"id": 1}], ids=["place", "back"]
)
def test_a_checkpoint_that_does_not_follow_the_last_one_is_shown_at_once(running, other):
    running.now += timedelta(seconds=1)
    running.say(last_checkpoint=checkpoint(7, running.now).model_copy(update=other))
    running.settle()
    assert running.status.snapshots.last_checkpoint.id == other["id"]


def test_what_is_written_for_another_reason_takes_the_newest_figures_along(running):
    before = running.status.snapshots.last_checkpoint
    running.go_on(1)
    assert running.status.snapshots.last_checkpoint == before
    running.say(message="catching up")
    running.settle()
    assert running.status.snapshots.last_checkpoint.completed_at == running.now


def test_decisions_go_by_the_newest_checkpoint_and_not_by_the_one_that_is_shown(running):
    """The one that is shown is too old to upgrade from; the one that the driver has is not."""
    running.edit(upgrade={"mode": "LastCheckpoint", "maxCheckpointAge": "20s"})
    running.settle()
    for _ in range(5):
        running.go_on(10)
    shown = running.status.snapshots.last_checkpoint
    assert running.now - shown.completed_at > timedelta(seconds=20)
    running.edit(image="registry.example/clicks:2")
    running.pass_()
    assert running.status.operation.stop_mode == "None"


def test_of_failures_in_a_row_the_first_few_are_told_and_then_whenever_they_have_doubled(running):
    for count in range(1, 40):
        running.now += timedelta(seconds=1)
        running.say(consecutive_failed_checkpoints=count)
        running.settle()
    told = [event.message.partition(" ")[0] for event in running.told("CheckpointFailed")]
    assert told == ["1", "2", "3", "4", "5", "6", "7", "8", "16", "32"]
    running.say(consecutive_failed_checkpoints=0)
    running.settle()
    assert running.status.snapshots.consecutive_failures == 0


@pytest.mark.parametrize(
    ("local", "gib", "warned"),
    [
        (None, 15, False),
        (None, 17, True),
        ({"type": "EmptyDir", "size": "20Gi"}, 17, False),
        ({"type": "EmptyDir", "size": "4Gi"}, 7, True),
        ({"type": "EphemeralPVC", "size": "4Gi"}, 7, False),
    ],
)
def test_a_job_whose_executors_would_be_evicted_for_their_state_is_told_before(local, gib, warned):
    """An unsized EmptyDir has 10Gi, also where an older operator gave it as much as there was."""
    state = {"checkpointDir": CHECKPOINTS, **({"local": local} if local else {})}
    stage = Stage(spec=job_spec(state=state, upgrade={"mode": "LastCheckpoint"}))
    stage.run()
    stage.say(state_bytes=gib * 2**30, executors_ready=2, executors_desired=2)
    stage.settle()
    assert bool(stage.told("LocalVolumeFull")) == warned
    if warned:
        assert "spec.state.local.size" in stage.told("LocalVolumeFull")[0].message


def test_a_driver_that_ends_without_a_word_leaves_its_newest_checkpoint_in_the_status(running):
    running.go_on(1)
    newest = running.report.last_checkpoint.id
    assert running.status.snapshots.last_checkpoint.id < newest
    running.store = store_of(running.uid, newest)
    running.end_pod(137, "OOMKilled")
    running.pass_()
    assert running.status.attempt.outcome == "Failed"
    assert running.status.snapshots.last_checkpoint.id == newest
