"""Scenarios of drivers, nodes and odd pods."""

from dataclasses import replace
from datetime import timedelta

import pytest
from moorage_testing.worlds import START, Stage, job_spec

from moorage_api.driver import DriverEnd
from moorage_operator.decide.recover import FailureKind, judge, kind_of
from moorage_operator.plan import DeletePod
from moorage_operator.world import ContainerEnd, PodView, Unreadable

BY_KUBELET = "TerminationByKubelet"
OWN_LIMITS = (
    "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
    'Container driver exceeded its local ephemeral storage limit "1Gi". ',
    'Usage of EmptyDir volume "tmp" exceeds the limit "512Mi". ',
)
"""As kubelets say it of a pod that they evict, whatever room their node has."""


def _pod(**changes):
    return PodView("clicks-1-driver", "u", "driver", 1, **{"phase": "Failed", **changes})


def _end(outcome="Failed", code="", **said):
    return DriverEnd(attempt=1, outcome=outcome, code=code, message="it broke", **said)


@pytest.mark.parametrize(
    ("pod", "reason", "kind"),
    [
        (_pod(reason="Evicted"), "DriverEvicted", FailureKind.INFRASTRUCTURE),
        (_pod(reason="Preempting"), "DriverPreempted", FailureKind.INFRASTRUCTURE),
        (_pod(reason="Shutdown"), "NodeShutdown", FailureKind.INFRASTRUCTURE),
        (_pod(reason="OutOfcpu"), "DriverRejected", FailureKind.INFRASTRUCTURE),
        (_pod(disrupted="EvictionByEvictionAPI"), "DriverEvicted", FailureKind.INFRASTRUCTURE),
        (
            _pod(disrupted="gc-scheduler: preempting", disrupted_by="PreemptionByScheduler"),
            "DriverPreempted",
            FailureKind.INFRASTRUCTURE,
        ),
        (_pod(ended=ContainerEnd(137, "OOMKilled")), "DriverOOMKilled", FailureKind.APPLICATION),
        (_pod(ended=ContainerEnd(137, "Error")), "DriverKilled", FailureKind.APPLICATION),
        (_pod(ended=ContainerEnd(1, "Error")), "DriverFailed", FailureKind.APPLICATION),
        (_pod(ended=ContainerEnd(6, "Error")), "Fenced", FailureKind.REFUSED),
        (
            _pod(ended=ContainerEnd(128, "StartError")),
            "ContainerCannotRun",
            FailureKind.APPLICATION,
        ),
        (_pod(), "DriverFailed", FailureKind.APPLICATION),
        (_pod(phase="Succeeded"), "NoResultRecord", FailureKind.APPLICATION),
        (_pod(ended=ContainerEnd(0, "Completed")), "NoResultRecord", FailureKind.APPLICATION),
        (_pod(end=_end(code="user_function")), "UserCodeFailed", FailureKind.APPLICATION),
        (_pod(end=_end(code="something_new")), "DriverFailed", FailureKind.APPLICATION),
        (_pod(end=_end(code="store_unavailable")), "StoreUnavailable", FailureKind.STORE),
        (_pod(end=_end(code="store_denied")), "StoreDenied", FailureKind.REFUSED),
        (_pod(end=_end(code="adopt_required")), "AdoptRequired", FailureKind.REFUSED),
        (_pod(end=_end(code="fenced")), "Fenced", FailureKind.REFUSED),
        (_pod(end=_end(code="restore_point_corrupt")), "RestorePointCorrupt", FailureKind.REFUSED),
        (_pod(end=_end("Stopped")), "DriverStopped", FailureKind.INFRASTRUCTURE),
        (_pod(end=_end("Stopped"), disrupted="evict"), "DriverEvicted", FailureKind.INFRASTRUCTURE),
        (
            _pod(deleted_at=START, ended=ContainerEnd(137, "Error", finished_at=START)),
            "DriverDeleted",
            FailureKind.INFRASTRUCTURE,
        ),
        (
            _pod(
                deleted_at=START,
                ended=ContainerEnd(1, "Error", finished_at=START - timedelta(seconds=5)),
            ),
            "DriverFailed",
            FailureKind.APPLICATION,
        ),
    ],
)
def test_scenario_38_39_how_a_driver_ended_is_told_from_its_pod(pod, reason, kind):
    end = judge(pod)
    assert (end.reason, kind_of(end.reason)) == (reason, kind)


@pytest.mark.parametrize("said", OWN_LIMITS)
def test_a_driver_that_is_evicted_for_its_own_limits_is_the_jobs_to_mend(said):
    end = judge(_pod(reason="Evicted", message=said))
    assert (end.reason, kind_of(end.reason)) == ("DriverStorageExceeded", FailureKind.APPLICATION)
    assert said.strip() in end.message
    assert "spec.driver.podTemplate" in end.message
    ended = judge(_pod(reason="Evicted", message=said, end=_end("Stopped")))
    assert ended.reason == "DriverStorageExceeded", "it had the second to say that it was told to"


def test_a_node_that_is_low_on_room_is_not_the_jobs_fault():
    said = "The node was low on resource: ephemeral-storage. Container driver was using 2Gi, "
    end = judge(_pod(reason="Evicted", message=said))
    assert (end.reason, kind_of(end.reason)) == ("DriverEvicted", FailureKind.INFRASTRUCTURE)


def test_a_driver_that_fills_its_own_disk_is_not_restarted_for_ever():
    stage = Stage(spec=job_spec(failurePolicy={"maxRestarts": 2}))
    stage.run()
    for _ in range(3):
        stage.go_on(60)
        stage.change_driver(phase="Failed", reason="Evicted", message=OWN_LIMITS[0])
        stage.report = None
        stage.settle()
        if stage.status.phase != "Failed":
            assert stage.status.phase == "BackOff"
            stage.wait(60)
            stage.say_running()
            stage.settle()
    assert stage.status.phase == "Failed"
    assert stage.started() == [1, 2, 3]


def test_what_a_finished_driver_says_of_its_checkpoints_is_told():
    said = _end("Finished").model_copy(update={"message": "checkpoints could not be deleted"})
    end = judge(_pod(end=said))
    told = "the job's input ended; checkpoints could not be deleted"
    assert (end.outcome, end.message) == ("Finished", told)


def test_scenario_38_an_evicted_driver_is_back_at_once_and_counts_towards_nothing():
    stage = Stage(spec=job_spec(failurePolicy={"maxRestarts": 0}))
    stage.run()
    stage.go_on(60)
    stage.end_pod(143, reason="Error", disrupted="EvictionByEvictionAPI")
    stage.settle()
    assert stage.started() == [1, 2]
    assert stage.status.restarts.window == ()
    assert stage.told("DriverEvicted")


def _disrupted(stage, every=60):
    """How long the job waits, after it ran for so long and its driver was evicted."""
    stage.go_on(every)
    stage.end_pod(143, reason="Error", disrupted="EvictionByEvictionAPI")
    stage.settle()
    at = stage.status.restarts.next_retry_at
    wait = (at - stage.now).total_seconds() if at is not None else 0
    stage.wait(wait)
    stage.say_running()
    stage.settle()
    return wait


def test_scenario_38_what_is_evicted_again_and_again_waits_longer_from_the_third_time_on():
    stage = Stage(spec=job_spec(failurePolicy={"maxRestarts": 0}))
    stage.run()
    waits = [_disrupted(stage) for _ in range(9)]
    assert waits[:2] == [0, 0]
    assert all(8 * 2**n <= one <= 10 * 2**n for n, one in enumerate(waits[2:7]))
    assert all(240 <= one <= 300 for one in waits[7:]), "no longer than backoff.max"
    assert stage.status.restarts.window == ()
    told = stage.told("RestartScheduled")
    assert "at once" in told[1].message
    assert "(3 such ends in 30m)" in told[2].message


def test_scenario_38_disruptions_that_are_far_apart_are_each_mended_at_once():
    stage = Stage()
    stage.run()
    assert [_disrupted(stage, every=16 * 60) for _ in range(6)] == [0] * 6


def test_scenario_38_disruptions_make_no_later_wait_of_the_jobs_own_failures_longer():
    stage = Stage()
    stage.run()
    for _ in range(5):
        _disrupted(stage)
    stage.end("Failed", "user_function")
    stage.settle()
    at = stage.status.restarts.next_retry_at
    assert at is not None
    assert (at - stage.now).total_seconds() <= 10


def test_scenario_38_a_person_ends_the_wait_and_the_count():
    stage = Stage()
    stage.run()
    for _ in range(4):
        _disrupted(stage)
    stage.go_on(60)
    stage.end_pod(143, disrupted="EvictionByEvictionAPI")
    stage.settle()
    assert stage.status.phase == "BackOff"
    stage.edit(desiredState="Suspended")
    stage.settle()
    stage.edit(desiredState="Running")
    stage.run()
    assert _disrupted(stage) == 0


def test_scenario_38_infrastructure_counts_where_the_policy_says_so():
    policy = {"maxRestarts": 0, "infrastructure": {"countAsRestart": True}}
    stage = Stage(spec=job_spec(failurePolicy=policy))
    stage.run()
    stage.go_on(60)
    stage.end_pod(143, disrupted="EvictionByEvictionAPI")
    stage.settle()
    assert stage.status.phase == "Failed"


def test_a_driver_that_is_evicted_again_and_again_before_it_runs_waits():
    stage = Stage()
    stage.settle()
    stage.end_pod(1, reason="Error", disrupted="EvictionByEvictionAPI")
    stage.settle()
    assert stage.status.phase == "BackOff"


def test_scenario_39_an_oom_kill_waits_and_names_the_field():
    stage = Stage()
    stage.run()
    stage.end_pod(137, reason="OOMKilled")
    stage.settle()
    assert stage.status.phase == "BackOff"
    assert "spec.driver.memory" in stage.told("DriverOOMKilled")[0].message
    assert stage.condition("Degraded") == "True/DriverOOMKilled"


def test_a_driver_that_has_ended_beside_a_living_sidecar_is_over():
    stage = Stage()
    stage.run()
    stage.end_pod(1, phase="Running")
    stage.settle()
    stage.wait(30)
    assert DeletePod("clicks-1-driver", stage.drivers["clicks-1-driver"].uid) in stage.effects
    assert stage.started() == [1], "not beside a pod that is not terminal"
    stage.change_driver(phase="Failed")
    stage.settle()
    assert stage.started() == [1, 2]


def test_scenario_48_a_pod_deleted_by_hand_is_replaced_after_a_grace():
    stage = Stage()
    stage.run()
    stage.go_on(60)
    stage.drivers.clear()
    stage.report = None
    stage.settle()
    assert stage.started() == [1], "a list may be stale"
    assert stage.condition("Ready") == "False/DriverLost"
    stage.wait(10)
    assert stage.started() == [1, 2]
    assert stage.told("DriverLost")


def test_a_pod_that_was_missing_for_a_moment_is_not_replaced():
    stage = Stage()
    stage.run()
    kept = dict(stage.drivers)
    stage.drivers.clear()
    stage.settle()
    stage.drivers.update(kept)
    stage.wait(60)
    assert stage.started() == [1]
    assert stage.status.phase == "Running"


def test_scenario_42_a_lost_node_is_waited_for_then_forced_and_the_job_starts_elsewhere():
    stage = Stage()
    stage.run()
    stage.go_on(60)
    stage.change_driver(node_ready=False, phase="Unknown")
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    stage.settle()
    stage.wait(100)
    assert stage.started() == [1]
    stage.wait(30)
    pod = "clicks-1-driver"
    graces = [e.grace_seconds for e in stage.effects if isinstance(e, DeletePod) and e.name == pod]
    assert graces == [None, 0]
    assert stage.started() == [1, 2]
    assert stage.told("NodeLost")


def test_scenario_42_a_driver_that_answers_is_not_lost_whatever_its_node_says():
    stage = Stage()
    stage.run()
    stage.change_driver(node_ready=False)
    for _ in range(10):
        stage.go_on(60)
    assert stage.started() == [1]


def test_scenario_42_a_pod_that_hangs_in_terminating_is_forced_after_grace_and_timeout():
    stage = Stage()
    stage.run()
    stage.change_driver(deleted_at=stage.now, grace_seconds=30)
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    stage.wait(20)
    assert stage.started() == [1]
    stage.wait(20)
    stage.wait(200)
    assert stage.started() == [1, 2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"disrupted": "Eviction API: evicting"}, "DriverEvicted"),
        ({"disrupted": "deleting", "disrupted_by": "DeletionByTaintManager"}, "NodeLost"),
        # Its node's kubelet said so, and the node went before the pod had ended.
        ({"disrupted": "imminent node shutdown.", "disrupted_by": BY_KUBELET}, "NodeShutdown"),
        ({"disrupted": "low on resource: memory", "disrupted_by": BY_KUBELET}, "DriverEvicted"),
        (
            {"disrupted": "Preempted to admit another", "disrupted_by": BY_KUBELET},
            "DriverPreempted",
        ),
        ({}, "DriverDeleted"),
    ],
)
def test_scenario_38_a_driver_that_was_taken_away_is_not_lost_though_nobody_saw_it_end(
    change, reason
):
    stage = Stage()
    stage.run()
    stage.go_on(60)
    stage.change_driver(deleted_at=stage.now, **change)
    stage.settle()
    stage.drivers.clear()
    stage.settle()
    assert stage.started() == [1, 2], "at once: nothing else was to be expected of it"
    assert not stage.told("DriverLost")
    assert stage.status.restarts.last_reason == reason
    assert not stage.status.restarts.window


def test_scenario_05_old_executors_hold_the_next_driver():
    stage = Stage()
    stage.run()
    stage.executors["e1"] = PodView("e1", "u1", "executor", 1, "Running", node="node-2")
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(30)
    assert stage.started() == [1]
    assert stage.executors["e1"].deleted_at is not None
    del stage.executors["e1"]
    stage.settle()
    assert stage.started() == [1, 2]


def test_an_executor_whose_driver_is_gone_has_no_time_of_its_own_left():
    stage = Stage()
    stage.run()
    deleted = PodView(
        "e1", "u1", "executor", 1, "Running", deleted_at=stage.now, grace_seconds=70, node="node-2"
    )
    stage.executors["e1"] = deleted
    stage.settle()
    assert not [e for e in stage.effects if isinstance(e, DeletePod)], "its driver runs"
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(30)
    asked = [e for e in stage.effects if isinstance(e, DeletePod) and e.name == "e1"]
    assert asked == [DeletePod("e1", "u1", grace_seconds=5)], "once, for less than it was given"


def test_an_executor_that_never_goes_is_forced():
    stage = Stage()
    stage.run()
    stage.executors["e1"] = PodView("e1", "u1", "executor", 1, "Running", node="node-2")
    stage.end("Failed", "user_function")
    stage.settle()
    stage.wait(30)
    stage.wait(300)
    assert stage.started() == [1, 2]


def test_several_living_drivers_are_all_ended_before_the_next_start():
    stage = Stage()
    stage.run()
    stage.end("Failed", "user_function")
    stage.drivers["clicks-0-odd"] = PodView("clicks-0-odd", "odd", "driver", 0, "Running")
    stage.settle()
    stage.wait(30)
    assert DeletePod("clicks-0-odd", "odd") in stage.effects
    assert stage.started() == [1]
    del stage.drivers["clicks-0-odd"]
    stage.settle()
    assert stage.started() == [1, 2]


def test_a_living_foreign_pod_of_our_name_blocks_until_it_is_gone():
    stage = Stage()
    name = "clicks-1-driver"
    stage.drivers[name] = PodView(name, "foreign", "driver", 1, "Running", owned=False)
    stage.settle()
    assert stage.status.blocked_reason == "ForeignDriver"
    assert name in stage.status.message
    del stage.drivers[name]
    stage.settle()
    assert stage.orders[0].attempt == 2, "numbers never come again"


def test_an_ended_foreign_pod_of_our_name_is_stepped_over():
    stage = Stage()
    name = "clicks-1-driver"
    stage.drivers[name] = PodView(name, "foreign", "driver", 1, "Failed", owned=False)
    stage.settle()
    assert stage.orders[0].attempt == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"waiting": "ImagePullBackOff", "waiting_message": "no such image"}, "ImagePullBackOff"),
        ({"waiting": "CreateContainerConfigError"}, "CreateContainerConfigError"),
        ({"unschedulable": "0/3 nodes are available"}, "Unschedulable"),
    ],
)
def test_scenario_46_47_a_pod_that_cannot_start_makes_no_storm_and_says_why(change, reason):
    stage = Stage()
    stage.settle()
    stage.change_driver(**change)
    for _ in range(30):
        stage.wait(120)
    assert stage.started() == [1]
    assert stage.condition("Progressing") == f"False/{reason}"
    assert len(stage.told(reason)) == 1
    stage.edit(image="registry.example/clicks:2")
    stage.run()
    assert stage.started() == [1, 2]


def test_a_start_that_hangs_without_a_word_is_tried_again():
    stage = Stage()
    stage.settle()
    stage.change_driver(phase="Running")
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    stage.wait(599)
    assert stage.started() == [1]
    stage.wait(2)
    stage.drivers.clear()
    stage.wait(20)
    assert stage.started() == [1, 2]
    assert stage.told("StartTimedOut")


def test_a_long_restore_is_left_alone_while_its_driver_answers():
    stage = Stage()
    stage.settle()
    stage.say_running(running_since=None, phase="restoring")
    for _ in range(100):
        stage.wait(60)
    assert stage.started() == [1]
    assert stage.status.phase == "Restoring"
    assert stage.condition("Degraded") == "True/StartSlow"


def test_scenario_49_a_driver_that_does_not_answer_is_believed_in_for_a_while():
    stage = Stage()
    stage.run()
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    stage.wait(30)
    assert stage.condition("Ready") == "True/Running"
    stage.wait(60)
    assert stage.condition("Ready") == "False/DriverUnreachable"
    assert stage.started() == [1]


def test_a_pod_that_stays_though_it_was_deleted_by_force_is_named():
    stage = Stage()
    stage.run()
    name = stage.driver.name
    stage.change_driver(node_ready=False, ready=False)
    stage.report = None
    held = replace(stage.driver, deleted_at=stage.now, grace_seconds=0)
    for _ in range(12):
        stage.drivers[name] = held
        stage.pass_()
        stage.now += timedelta(seconds=30)
    operation = stage.status.operation
    assert operation is not None
    assert operation.step == "Fencing"
    assert f"waits for the end of pod {name}" in stage.status.message
    assert "finalizers" in stage.status.message


@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        ("EndpointRefused", "unauthorized: the token is wrong", "moorage.dev/restart"),
        ("EndpointUntrusted", "certificate has expired; renew it", "certificate has expired"),
        ("Forbidden", "secrets clicks-1-tokens is forbidden", "jobs.namespaces"),
    ],
)
def test_a_driver_that_the_operator_is_at_odds_with_is_left_alone_and_the_way_out_is_said(
    reason, message, said
):
    stage = Stage()
    stage.run()
    stage.report = Unreadable(reason, message, stage.now)
    for _ in range(5):
        stage.wait(600)
    assert stage.started() == [1]
    assert stage.condition("Ready") == "False/DriverUnreachable"
    assert said in stage.status.message
    ready = stage.status.condition("Ready")
    assert ready is not None
    assert said in ready.message
