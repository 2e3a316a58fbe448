"""Odd shapes of pods, as kubelets and dead nodes leave them."""

import json
from datetime import UTC, datetime

import pytest

from moorage_operator.podviews import driver_end, moment, pod_view

UID = "u-1"


def pod(status=None, *, meta=None, spec=None, role="driver"):
    labels = {"moorage.dev/role": role, "moorage.dev/attempt": "3", "moorage.dev/job-uid": UID}
    owner = {"uid": UID, "controller": True}
    return {
        "metadata": {
            "name": "p",
            "uid": "pod-uid",
            "labels": labels,
            "ownerReferences": [owner],
            **(meta or {}),
        },
        "spec": {"containers": [{"name": role}], **(spec or {})},
        "status": status or {},
    }


def terminated(message="", *, name="driver", code=1, place="state", **more):
    state = {"terminated": {"exitCode": code, "message": message, **more}}
    return {"containerStatuses": [{"name": name, place: state}]}


END = {"format": 1, "attempt": 3, "outcome": "Stopped"}


@pytest.mark.parametrize(
    "status",
    [
        None,
        {"phase": "Failed", "reason": "Evicted", "message": "disk"},
        {"phase": "Failed", "containerStatuses": []},
        {"phase": "Failed", "containerStatuses": None, "conditions": None},
        {"phase": "Failed", "containerStatuses": [None, {"name": "driver", "state": None}]},
        {"phase": 7, "podIP": ["x"], "conditions": {"type": "Ready"}},
    ],
)
def test_a_status_of_any_shape_is_read(status):
    assert pod_view(pod(status), UID).end is None


def test_a_pod_without_metadata_but_a_name_is_read():
    view = pod_view({"metadata": {"name": "p"}}, UID)
    assert (view.attempt, view.phase, view.owned) == (0, "Pending", False)


def test_an_evicted_pod_without_containers_is_terminal():
    view = pod_view(pod({"phase": "Failed", "reason": "Evicted"}), UID)
    assert view.terminal
    assert (view.reason, view.ended) == ("Evicted", None)


def test_what_the_driver_said_at_its_end_is_read():
    view = pod_view(pod({"phase": "Succeeded", **terminated(json.dumps(END), code=0)}), UID)
    assert view.end is not None
    assert view.end.outcome == "Stopped"
    assert view.ended is not None
    assert view.ended.exit_code == 0


@pytest.mark.parametrize(
    "message",
    [
        json.dumps(END),
        f"Exception in thread\n{json.dumps(END)}\n",
        f"{json.dumps(END)}\nlog line after",
        json.dumps({**END, "aFieldOfTheFuture": 1}),
    ],
)
def test_a_drivers_end_is_found_among_other_lines(message):
    found = driver_end(message)
    assert found is not None
    assert found.outcome == "Stopped"


@pytest.mark.parametrize(
    "message",
    ["", "killed", "{", "{}", "[]", '{"outcome": "Perhaps"}', "null", "{" * 9000, '{"a":' * 2000],
)
def test_anything_else_is_no_drivers_end(message):
    assert driver_end(message) is None


def test_only_a_drivers_message_is_a_drivers_end():
    body = pod(terminated(json.dumps(END), name="errand"), role="errand")
    assert pod_view(body, UID).end is None


def test_a_pod_says_which_store_task_it_is_for():
    meta = {"annotations": {"moorage.dev/errand": "preflight-2-1-abc"}}
    assert pod_view(pod(meta=meta, role="errand"), UID).store_task == "preflight-2-1-abc"
    assert pod_view(pod(), UID).store_task == ""


def test_the_main_container_counts_and_not_a_sidecar():
    status = {
        "containerStatuses": [
            {"name": "mesh", "state": {"terminated": {"exitCode": 9}}},
            {"name": "driver", "state": {"terminated": {"exitCode": 3, "reason": "OOMKilled"}}},
        ]
    }
    view = pod_view(pod(status), UID)
    assert view.ended is not None
    assert (view.ended.exit_code, view.ended.reason) == (3, "OOMKilled")


@pytest.mark.parametrize(
    ("reason", "seen"), [("ImagePullBackOff", True), ("PodInitializing", False)]
)
def test_why_a_container_waits_is_told_apart_from_starting(reason, seen):
    waiting = {"waiting": {"reason": reason, "message": "m"}}
    view = pod_view(pod({"containerStatuses": [{"name": "driver", "state": waiting}]}), UID)
    assert view.waiting == (reason if seen else "")


def test_an_init_container_that_cannot_start_is_told():
    waiting = {"waiting": {"reason": "ErrImagePull"}}
    view = pod_view(pod({"initContainerStatuses": [{"name": "i", "state": waiting}]}), UID)
    assert view.waiting == "ErrImagePull"


def test_a_container_beside_the_driver_that_does_not_start_is_named():
    """Such as one that a webhook puts in: until it runs the pod is Pending."""
    running = {"name": "driver", "state": {"running": {}}}
    beside = {"name": "proxy", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}
    view = pod_view(pod({"phase": "Pending", "containerStatuses": [running, beside]}), UID)
    assert (view.waiting, view.waiting_message) == ("ErrImagePull", "no")


def test_deletion_began_before_the_time_that_it_is_to_be_over():
    meta = {"deletionTimestamp": "2026-03-01T12:02:00Z", "deletionGracePeriodSeconds": 120}
    view = pod_view(pod(meta=meta), UID)
    assert view.deleted_at == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert view.grace_seconds == 120


def test_conditions_that_say_why_are_read():
    status = {
        "conditions": [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "evicting",
            },
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
            {"type": "Ready", "status": "True"},
        ]
    }
    view = pod_view(pod(status), UID)
    assert (view.disrupted, view.unschedulable, view.ready) == ("evicting", "Unschedulable", True)
    assert view.disrupted_by == "EvictionByEvictionAPI"


def test_a_pod_of_a_former_object_of_the_name_is_not_owned():
    assert not pod_view(pod(), "u-2").owned


def test_a_pod_that_only_bears_our_labels_is_not_owned():
    assert not pod_view(pod(meta={"ownerReferences": []}), UID).owned


def test_an_executor_belongs_by_its_label():
    assert pod_view(pod(meta={"ownerReferences": [{"uid": "driver"}]}, role="executor"), UID).owned


@pytest.mark.parametrize("text", [None, "", "soon", "12:00", 5])
def test_a_time_that_is_none_is_none(text):
    assert moment(text) is None
