"""What becomes of a version that is tried when somebody edits meanwhile."""

import pytest
from moorage_testing.worlds import Stage, job_spec

WIDTH = {"parallelism": 2, "maxParallelism": 16, "mode": "InPlaceParallelism"}
OLD, NEW, NEXT = (f"registry.example/clicks:{n}" for n in (1, 2, 3))


def _tried(**scaling):
    """A job whose new version is tried before the old one is stopped."""
    scaling = {**WIDTH, **scaling}
    stage = Stage(spec=job_spec(image=OLD, scaling=scaling, upgrade={"preflight": True}))
    stage.run()
    stage.go_on(200)
    stage.edit(image=NEW)
    stage.settle()
    assert stage.status.operation is not None
    assert stage.status.operation.step == "Preflight"
    return stage


def _scale(stage, parallelism, **more):
    scaling = stage.spec.scaling.model_dump(mode="json", by_alias=True, exclude_none=True)
    stage.edit(scaling={**scaling, "parallelism": parallelism}, **more)
    stage.go_on(20)


def test_another_parallelism_alone_waits_for_the_trial_and_is_told():
    stage = _tried()
    begun = stage.status.operation
    for number in (3, 4, 3):
        _scale(stage, number)
    going_on = stage.status.operation
    assert (going_on.id, going_on.deadline) == (begun.id, begun.deadline)
    assert going_on.target_revision == begun.target_revision
    assert not stage.told("OperationCancelled")
    said = {event.message for event in stage.told("RescaleHeld")}
    assert {text.split(" ")[0] for text in said} == {"3", "4"}
    held = stage.status.condition("Reconciled").message
    assert "3 subtasks are asked for while a version with 2 is tried" in held
    _scale(stage, 2)
    assert "subtasks" not in stage.status.condition("Reconciled").message


def test_it_is_followed_once_the_trial_is_over():
    stage = _tried()
    _scale(stage, 5)
    stage.edit(upgrade={"preflight": False})
    stage.settle()
    assert stage.status.operation.step == "Snapshotting"
    stage.stop_as_asked()
    stage.run()
    found = stage.revisions[stage.status.attempt.revision].spec
    assert (found.image, found.scaling.parallelism) == (NEW, 5)
    assert stage.started() == [1, 2], "one restart for both"


def test_so_does_what_the_cooldown_held_back_before_it():
    stage = Stage(spec=job_spec(image=OLD, scaling={**WIDTH, "cooldown": "5m"}))
    stage.run()
    changed = stage.status.scaling.model_copy(update={"changed_at": stage.now})
    stage.status = stage.status.model_copy(update={"scaling": changed})
    _scale(stage, 4, image=NEW, upgrade={"preflight": True})
    assert stage.status.operation is not None
    begun = stage.status.operation
    assert stage.revisions[begun.target_revision].spec.scaling.parallelism == 2
    for _ in range(20):
        stage.go_on(20)
        assert stage.status.operation == begun


@pytest.mark.parametrize("number", [2, 6])
def test_an_edit_of_the_version_is_tried_in_its_place_and_the_event_says_so(number):
    stage = _tried()
    begun = stage.status.operation
    _scale(stage, number, image=NEXT)
    going_on = stage.status.operation
    assert going_on.id != begun.id
    found = stage.revisions[going_on.target_revision].spec
    assert (found.image, found.scaling.parallelism) == (NEXT, number)
    [told] = stage.told("OperationCancelled")
    both = f"{begun.target_revision} gives way to {going_on.target_revision}"
    assert both in told.message
    assert "taken back" not in told.message


@pytest.mark.parametrize("number", [2, 6])
def test_a_version_that_is_taken_back_is_told_as_that_whatever_parallelism_is_asked_for(number):
    stage = _tried()
    _scale(stage, number, image=OLD)
    [told] = stage.told("OperationCancelled")
    assert "was taken back before anything was stopped" in told.message
    operation = stage.status.operation
    assert (operation.step if operation is not None else "") == ("Rescaling" if number > 2 else "")


def test_a_version_that_is_given_up_meanwhile_leaves_the_parallelism_to_what_runs():
    stage = _tried()
    _scale(stage, 5)
    stage.annotate(rollback=stage.status.attempt.revision)
    stage.settle()
    operation = stage.status.operation
    assert (operation.type, operation.step) == ("Rescale", "Rescaling")
    found = stage.revisions[operation.target_revision].spec
    assert (found.image, found.scaling.parallelism) == (OLD, 5)


def _restoring(ready=2):
    """A job whose driver restores, with so many of two executors."""
    stage = Stage(spec=job_spec(image=OLD, scaling=WIDTH))
    stage.settle()
    there = {"executors_desired": 2, "executors_ready": ready}
    stage.say_running(checkpoints=0, running_since=None, phase="restoring", **there)
    stage.settle()
    assert stage.status.operation is not None
    assert stage.status.operation.step == "Verifying"
    return stage


def test_another_parallelism_alone_begins_no_restore_anew():
    stage = _restoring()
    scaling = {**WIDTH, "parallelism": 4}
    stage.edit(scaling=scaling)
    stage.wait(60)
    assert stage.started() == [1]
    (said,) = {event.message for event in stage.told("RescaleHeld")}
    assert said.startswith("4 subtasks are asked for while a version with 2 restores; ")
    stage.say(phase="running", running_since=stage.now)
    stage.settle()
    assert stage.started() == [1]
    assert stage.status.operation is not None
    assert stage.status.operation.type == "Rescale"


def test_a_start_that_lacks_executors_follows_another_parallelism_at_once():
    stage = _restoring(ready=1)
    stage.edit(scaling={**WIDTH, "parallelism": 1})
    stage.wait(60)
    stage.end("Stopped")
    stage.settle()
    assert stage.started() == [1, 2]
    assert not stage.told("RescaleHeld")


def test_another_version_is_begun_at_once_whatever_restores():
    stage = _restoring()
    stage.edit(image=NEW)
    stage.wait(60)
    stage.end("Stopped")
    stage.settle()
    assert stage.started() == [1, 2]
