"""A lineage in a directory that the job has moved away from is given up, once the job runs."""

import pytest
from moorage_testing.world_parts import CHECKPOINTS
from moorage_testing.worlds import Stage, store_of

from moorage_operator.plan import RunStoreTask, TidyRevisions
from moorage_operator.world import StoreTaskView

ELSEWHERE = "s3://state/elsewhere"


def moved(to=ELSEWHERE, nonce=1, stage=None):
    """A job that is told to go to another directory with a savepoint, and gets there."""
    if stage is None:
        stage = Stage()
        stage.run()
    state = {"checkpointDir": to, "savepointDir": "s3://savepoints/clicks"}
    stage.edit(
        state=state, restore={"mode": "Path", "path": "s3://savepoints/clicks/a", "nonce": nonce}
    )
    stage.settle()
    stage.stop_as_asked()
    stage.settle()
    return stage


def released(stage):
    found = [
        e for e in stage.effects if isinstance(e, RunStoreTask) and e.store_task.kind == "Release"
    ]
    return list(dict.fromkeys(found))


def run_there(stage):
    stage.run(checkpoints=0)
    stage.go_on(60)


def test_the_old_lineage_is_released_when_a_checkpoint_is_in_the_new_directory():
    stage = moved()
    stage.run(checkpoints=0)
    assert not released(stage)
    stage.go_on(60)
    [asked] = released(stage)
    assert stage.revisions[asked.revision].spec.state.checkpoint_dir == CHECKPOINTS
    assert asked.revision in [e for e in stage.effects if isinstance(e, TidyRevisions)][-1].keep
    stage.store_tasks[asked.store_task.id] = StoreTaskView("Completed", {"released": True})
    stage.settle()
    assert not stage.status.leaving
    [told] = stage.told("LineageReleased")
    assert CHECKPOINTS in told.message


def test_a_job_that_goes_back_keeps_its_lineage():
    stage = moved()
    stage.run(checkpoints=0)
    moved(CHECKPOINTS, 2, stage)
    stage.store = store_of(newest=3)
    run_there(stage)
    [asked] = released(stage)
    assert stage.revisions[asked.revision].spec.state.checkpoint_dir == ELSEWHERE


def test_a_job_that_stays_where_it_is_releases_nothing():
    stage = Stage()
    stage.run()
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    stage.stop_as_asked()
    run_there(stage)
    assert not stage.status.leaving
    assert not released(stage)


def test_two_moves_release_two_lineages():
    stage = moved()
    stage.run(checkpoints=0)
    moved("s3://state/third", 2, stage)
    run_there(stage)
    for _ in range(2):
        asked = released(stage)[-1]
        stage.store_tasks[asked.store_task.id] = StoreTaskView("Completed")
        stage.settle()
    places = [stage.revisions[e.revision].spec.state.checkpoint_dir for e in released(stage)]
    assert places == [CHECKPOINTS, ELSEWHERE]
    assert not stage.status.leaving


def test_a_store_that_is_away_is_tried_again_and_then_told():
    stage = moved()
    run_there(stage)
    for _ in range(20):
        asked = released(stage)[-1]
        failed = StoreTaskView("Failed", {}, "store_unavailable", "no route", retryable=True)
        stage.store_tasks[asked.store_task.id] = failed
        stage.settle()
        if not stage.status.leaving:
            break
        stage.go_on(900)
        stage.go_on(900)
    assert len(released(stage)) == 6
    [told] = stage.told("LineageNotReleased")
    assert "no route" in told.message
    assert stage.started() == [1, 2]


@pytest.mark.parametrize("crash", ["status", "first"])
def test_an_operator_that_dies_in_between_goes_on(crash):
    stage = moved()
    stage.run(checkpoints=0)
    stage.go_on(60)
    for _ in range(3):
        stage.pass_(crash=crash)
    asked = released(stage)[-1]
    stage.store_tasks[asked.store_task.id] = StoreTaskView("Completed")
    stage.pass_(crash=crash)
    stage.settle()
    assert not stage.status.leaving


def test_a_lineage_that_is_left_again_is_released_again():
    stage = moved()
    run_there(stage)
    [first] = released(stage)
    stage.store_tasks[first.store_task.id] = StoreTaskView("Completed")
    stage.settle()
    moved(CHECKPOINTS, 2, stage)
    stage.run(checkpoints=0)
    moved(ELSEWHERE, 3, stage)
    run_there(stage)
    second = released(stage)[-1]
    assert stage.revisions[second.revision].spec.state.checkpoint_dir == CHECKPOINTS
    assert second.store_task.id != first.store_task.id
    assert stage.status.leaving


def test_a_job_that_goes_back_waits_for_a_release_under_way():
    """Else the late claim of the store task would end the new driver, and free its lineage."""
    stage = moved()
    run_there(stage)
    [asked] = released(stage)
    stage.store_tasks[asked.store_task.id] = StoreTaskView("Pending")
    moved(CHECKPOINTS, 2, stage)
    assert stage.started() == [1, 2]
    assert "waits until the release of" in stage.status.operation.message
    stage.store_tasks[asked.store_task.id] = StoreTaskView("Completed")
    stage.settle()
    assert stage.started() == [1, 2, 3]


def deleted(stage):
    stage.delete()
    stage.settle()
    stage.stop_as_asked()
    stage.store = store_of(released=True)
    stage.settle()
    return stage


def test_an_object_that_goes_releases_what_it_had_left():
    stage = moved()
    stage.run(checkpoints=0)
    assert not released(stage)
    deleted(stage)
    [asked] = released(stage)
    assert asked.revision
    assert not stage.gone
    stage.store_tasks[asked.store_task.id] = StoreTaskView("Completed")
    stage.settle()
    assert stage.gone


def test_what_cannot_be_released_does_not_hold_an_object_that_goes():
    stage = moved()
    stage.run(checkpoints=0)
    deleted(stage)
    for _ in range(60):
        if stage.gone:
            break
        stage.store_tasks[released(stage)[-1].store_task.id] = StoreTaskView("Pending")
        stage.wait(60)
    assert stage.gone
    [told] = stage.told("LineageNotReleased")
    assert CHECKPOINTS in told.message


def test_of_many_moves_in_a_row_the_oldest_is_told_and_not_kept():
    stage = Stage()
    stage.run()
    for number in range(5):
        moved(f"s3://state/{number}", number + 1, stage)
        stage.run(checkpoints=0)
    assert len(stage.status.leaving) == 4
    [told] = stage.told("LineageNotReleased")
    assert f"in {CHECKPOINTS}, which" in told.message


def test_that_a_job_leaves_what_nobody_knows_the_place_of_is_told():
    """Somebody deleted the ControllerRevision before the job moved."""
    stage = Stage()
    stage.run()
    first = stage.status.attempt.revision
    del stage.revisions[first]
    moved(stage=stage)
    stage.run(checkpoints=0)
    [told] = stage.told("LineageNotReleased")
    assert f"in the place of {first}, which the job has left" in told.message
    assert not stage.status.leaving


def test_a_job_that_stays_where_it_is_leaves_nothing_though_its_revision_was_deleted():
    stage = Stage()
    stage.run()
    del stage.revisions[stage.status.attempt.revision]
    stage.edit(image="registry.example/clicks:2")
    stage.settle()
    stage.stop_as_asked()
    stage.run()
    assert stage.started() == [1, 2]
    assert not stage.told("LineageNotReleased")


@pytest.mark.parametrize("then", ["checkpoint", "move", "delete"])
def test_what_nobody_knows_the_place_of_any_more_is_told(then):
    """Somebody deleted the ControllerRevision of the version that ran there."""
    stage = moved()
    stage.run(checkpoints=0)
    [left] = stage.status.leaving
    del stage.revisions[left.revision]
    if then == "checkpoint":
        stage.go_on(60)
    elif then == "move":
        moved("s3://state/third", 2, stage)
    else:
        deleted(stage)
    [told] = stage.told("LineageNotReleased")
    assert f"in the place of {left.revision}, which the job has left" in told.message
    assert left not in stage.status.leaving
    assert stage.gone == (then == "delete")
    assert left.revision not in [asked.revision for asked in released(stage)]
