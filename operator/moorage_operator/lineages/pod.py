"""The pod of an errand: its body, and what it says. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from moorage_api import JobSpec
from moorage_operator.children.merge import merged_pod
from moorage_operator.children.names import labels, owner_reference
from moorage_operator.children.parts import container_security, environment, pod_security
from moorage_operator.podviews import moment, pod_view
from moorage_operator.ports import JobRefs, Object
from moorage_state.snapshots.errands import Answer, Request, decode_answer, encode_request

__all__ = ["ERRAND_ENV", "ERRAND_ROLE", "PodAnswer", "errand_pod", "pod_answer", "pod_name"]

ERRAND_ROLE = "errand"
ERRAND_ENV = "MOORAGE_ERRAND"
ID_ANNOTATION = "moorage.dev/errand"
_DIRECTORY = "moorage.dev/errand-directory"
_CONTAINER = "errand"
_COMMAND = ("tini", "-s", "--", "python", "-m", "moorage.errand")
_MEMORY = "512Mi"


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """An errand's pod.

    Attributes:
        uid: of the pod.
        ours: it is the pod of this errand of this object, and not another's of its name.
        directory: the checkpoint directory that it was sent to.
        ended: when, for one that has ended.
        answer: of one that has ended.
        held: why it does not start, as the kubelet or the scheduler says; empty if it does.
        image: that it was made with.
    """

    uid: str
    ours: bool
    directory: str
    created: datetime | None
    deleted: datetime | None
    ended: datetime | None
    answer: Answer | None
    held: str = ""
    image: str = ""


def pod_name(job: str, errand_id: str) -> str:
    """The name of the errand's pod."""
    return f"{job}-errand-{hashlib.sha256(errand_id.encode()).hexdigest()[:10]}"


def errand_pod(job: JobRefs, request: Request, seconds: int) -> Object:
    """The pod that runs the errand, under the job's account, where its drivers run too.

    Args:
        seconds: after which the kubelet ends it.
    """
    meta, spec = job.meta, job.spec
    metadata: Object = {
        "name": pod_name(meta.name, request.id),
        "namespace": meta.namespace,
        "labels": labels(meta, ERRAND_ROLE),
        "annotations": {ID_ANNOTATION: request.id, _DIRECTORY: request.checkpoint_dir},
    }
    if meta.uid:
        metadata["ownerReferences"] = [owner_reference(meta)]
    ours: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": spec.service_account_name,
            "enableServiceLinks": False,
            "activeDeadlineSeconds": seconds,
            "terminationGracePeriodSeconds": 5,
            "securityContext": pod_security(),
            "containers": [_container(spec, request)],
        },
    }
    return merged_pod(ours, _template(spec.driver.pod_template))


def _container(spec: JobSpec, request: Request) -> Object:
    order = {"name": ERRAND_ENV, "value": encode_request(request)}
    return {
        "name": _CONTAINER,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": list(_COMMAND),
        "env": [*environment(spec), order],
        "resources": {
            "requests": {"cpu": "100m", "memory": _MEMORY},
            "limits": {"memory": _MEMORY},
        },
        "securityContext": container_security(),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }


def _template(driver: Mapping[str, Any]) -> Object:
    """What an errand takes from the driver's template: where it may run, and what it can reach.

    Other containers stay away: a pod with one that goes on never ends.
    """
    spec = dict(driver.get("spec") or {})
    spec.pop("initContainers", None)
    spec.pop("terminationGracePeriodSeconds", None)
    containers = [c for c in spec.pop("containers", None) or () if c.get("name") == "driver"]
    kept = ("env", "envFrom", "volumeMounts", "securityContext")
    spec["containers"] = [
        {"name": _CONTAINER, **{field: c[field] for field in kept if field in c}}
        for c in containers
    ]
    return {**driver, "spec": spec}


def pod_answer(body: Object, job: JobRefs, errand_id: str) -> PodAnswer:
    """What a pod of this name says."""
    meta, status = body.get("metadata") or {}, body.get("status") or {}
    uid_label = (meta.get("labels") or {}).get("moorage.dev/job-uid", "")
    ours = (meta.get("annotations") or {}).get(ID_ANNOTATION) == errand_id
    over = status.get("phase") in ("Succeeded", "Failed")
    return PodAnswer(
        uid=str(meta.get("uid", "")),
        ours=ours and uid_label == job.meta.uid,
        directory=(meta.get("annotations") or {}).get(_DIRECTORY, ""),
        created=moment(meta.get("creationTimestamp")),
        deleted=moment(meta.get("deletionTimestamp")),
        ended=_ended(body) if over else None,
        answer=_answer(status, errand_id) if over else None,
        held=_held(body, job),
        image=_image(body),
    )


def _held(body: Object, job: JobRefs) -> str:
    pod = pod_view(body, job.meta.uid)
    why = pod.waiting_message or pod.waiting or pod.unschedulable
    if pod.phase != "Pending" or not why:
        return ""
    return f"errand's pod does not start: {pod.name}: {why}"


def _image(body: Object) -> str:
    containers = (body.get("spec") or {}).get("containers") or ()
    found = (one.get("image") for one in containers if one.get("name") == _CONTAINER)
    return str(next(found, ""))


def _ended(body: Object) -> datetime | None:
    """When; where nobody knows, when the pod was made, which is the safe side."""
    finished = moment(_terminated(body.get("status") or {}).get("finishedAt"))
    return finished or moment((body.get("metadata") or {}).get("creationTimestamp"))


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in status.get("containerStatuses") or ():
        if container.get("name") == _CONTAINER:
            found: Mapping[str, Any] = (container.get("state") or {}).get("terminated") or {}
            return found
    return {}


def _answer(status: Mapping[str, Any], errand_id: str) -> Answer:
    """The answer in the termination message; a pod that ended without one may go well later."""
    terminated = _terminated(status)
    found = decode_answer(str(terminated.get("message") or "").strip())
    if found is not None and found.id in (errand_id, ""):
        return found
    reason = status.get("reason") or terminated.get("reason") or "no reason is known"
    detail = status.get("message") or f"exit code {terminated.get('exitCode', 'unknown')}"
    text = f"errand's pod ended without an answer: reason={reason} detail={str(detail)[:300]!r}"
    return Answer(id=errand_id, state="Failed", code="errand_failed", message=text, retryable=True)
