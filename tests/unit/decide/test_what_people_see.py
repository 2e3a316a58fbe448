"""What status and events say where somebody looks because nothing happens."""

import pytest
from moorage_testing.worlds import Stage

from moorage_operator.world import PodView

NO_ROOM = "0/3 nodes are available: 3 Insufficient cpu."


@pytest.fixture
def running():
    stage = Stage()
    stage.run()
    return stage


def executor(stage, name="clicks-1-exec-1", **changes):
    pod = PodView(name, f"{name}-uid", "executor", attempt=1, phase="Pending")
    given = {"unschedulable": NO_ROOM, "created_at": stage.now, **changes}
    for field, value in given.items():
        object.__setattr__(pod, field, value)
    stage.executors[name] = pod


def said(stage, kind):
    return stage.status.condition(kind).message


# -- paused ------------------------------------------------------------------------------------


def test_that_a_job_is_paused_is_said_beside_what_waits_for_it(running):
    running.annotate(paused="true")
    running.settle()
    assert running.condition("Reconciled") == "True/UpToDate"
    assert running.condition("Progressing") == "False/Paused"
    assert "moorage.dev/paused" in running.status.message
    running.edit(image="registry.example/clicks:2")
    running.settle()
    assert running.condition("Reconciled") == "False/Paused"
    assert "take it off" in said(running, "Reconciled")
    assert running.condition("Ready") == "True/Running"
    running.annotate(paused="false")
    running.settle()
    assert "paused" not in running.status.message
    assert running.condition("Progressing") == "True/Upgrade"


def test_of_a_paused_job_whose_driver_failed_nobody_says_that_it_is_healthy(running):
    running.annotate(paused="true")
    running.end("Failed", "user_function", message="it broke")
    running.settle()
    assert running.condition("Ready") == "False/Paused"
    assert running.condition("Degraded") == "True/UserCodeFailed"
    assert "it broke" in said(running, "Degraded")


def test_an_operation_that_is_paused_half_way_is_told_once(running):
    running.edit(image="registry.example/clicks:2")
    running.settle()
    running.annotate(paused="true")
    for _ in range(3):
        running.wait(30)
    assert len(running.told("Paused")) == 1


# -- executors ---------------------------------------------------------------------------------


def test_a_start_that_waits_for_executors_says_what_they_wait_for():
    stage = Stage()
    stage.settle()
    stage.say_running(running_since=None, phase="starting")
    executor(stage, "clicks-1-exec-2")
    executor(stage, "clicks-1-exec-1", waiting="ErrImagePull", waiting_message="no such image")
    for _ in range(3):
        stage.wait(5)
    assert stage.condition("Ready") == "False/ErrImagePull"
    assert stage.condition("Progressing") == "False/ErrImagePull"
    assert stage.status.message == "clicks-1-exec-1: no such image"
    assert len(stage.told("ErrImagePull")) == 1


def test_an_executor_without_a_node_is_told_once_while_the_stream_runs(running):
    running.say(executors_desired=2, executors_ready=1)
    running.settle()
    assert running.condition("Degraded") == "True/ExecutorsMissing"
    assert not running.told("ExecutorsMissing"), "one that is only late needs nobody"
    executor(running)
    for _ in range(3):
        running.wait(5)
    assert NO_ROOM in said(running, "Degraded")
    assert NO_ROOM in running.status.message
    [told] = running.told("ExecutorsMissing")
    assert "clicks-1-exec-1: 0/3 nodes" in told.message
    assert running.condition("Ready") == "True/Running"
    assert running.condition("Progressing") == "False/Idle"


def test_an_executor_that_goes_is_nobodys_concern(running):
    executor(running, deleted_at=running.now)
    running.settle()
    assert running.status.message == ""


def test_a_pod_that_has_a_node_and_does_not_run_for_long_is_named():
    stage = Stage()
    stage.settle()
    stage.change_driver(node="node-1")
    stage.wait(170)
    assert stage.status.message == "the first start"
    stage.wait(20)
    assert "kubectl describe pod clicks-1-driver" in stage.status.message
    assert stage.condition("Ready") == "False/Starting"
    assert stage.condition("Progressing") == "True/Deploy"
    stage.wait(600)
    assert "kubectl describe pod clicks-1-driver" in said(stage, "Degraded")


def test_what_a_driver_says_of_its_start_stands_beside_ready():
    stage = Stage()
    stage.settle()
    stage.say_running(running_since=None, phase="starting", message="waits for executors: 0 of 2")
    stage.wait(5)
    assert said(stage, "Ready") == "waits for executors: 0 of 2"
    stage.wait(700)
    assert said(stage, "Degraded").endswith("waits for executors: 0 of 2")


# -- slips of the pen --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("savepiont", "x", "moorage.dev/savepiont is not known"),
        ("paused", "True", "moorage.dev/paused is 'True' and does nothing; write true or false"),
        ("skip_final_savepoint", "yes", "skip-final-savepoint is 'yes' and does nothing"),
    ],
)
def test_an_annotation_that_does_nothing_is_told_once(running, name, value, told):
    running.annotate(**{name: value})
    for _ in range(3):
        running.wait(5)
    [event] = {event.key: event for event in running.told("AnnotationIgnored")}.values()
    assert told in event.message


def test_annotations_that_mean_something_are_not_slips(running):
    running.annotations |= {"paused": "false", "restart": "1", "adopt-lineage": "", "savepoint": ""}
    running.annotations |= {"stored-as": "v1beta1"}
    running.settle()
    assert not running.told("AnnotationIgnored")


@pytest.mark.parametrize("when", ["suspended", "suspending", "finishing"])
def test_a_restart_of_what_does_not_run_is_told_and_not_made_up_for_later(running, when):
    if when == "finishing":
        running.annotate(restart="1")
        running.end("Finished")
    else:
        running.edit(desiredState="Suspended")
        running.settle()
        if when == "suspended":
            running.stop_as_asked()
            running.settle()
        running.annotate(restart="1")
        running.settle()
        if when == "suspending":
            running.stop_as_asked()
    running.settle()
    [event] = {event.key: event for event in running.told("AnnotationIgnored")}.values()
    assert "restart is '1' and restarts nothing" in event.message
    assert running.status.snapshots.last_trigger.restart == "1"
    running.wait(60)
    assert running.started() == [1]
