"""From the body of a pod to what decisions look at. Pure, and never surprised by an odd shape.

A kubelet may leave out any part of a status: an evicted pod has no container statuses, a pod of a
lost node keeps its last ones. So the phase is taken as it is, and everything else only if there.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from moorage_api.driver import DriverEnd
from moorage_api.reserved import LOCAL_VOLUME, TLS_VOLUME
from moorage_operator.children import names
from moorage_operator.ports import Object
from moorage_operator.world import ContainerEnd, PodView, Unreadable

_STARTING = ("ContainerCreating", "PodInitializing", "")
# A kubelet keeps 4,096 bytes of a message; what is twice as long was never a driver's.
_LONGEST = 8192


def moment(text: object) -> datetime | None:
    """A timestamp of the API server; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def driver_end(message: str) -> DriverEnd | None:
    """What a driver said when it ended; None if the message is something else.

    A message may have other lines around it: what a library printed, or the end of the log.
    """
    for line in reversed([message, *message.splitlines()]):
        text = line.strip()
        if text.startswith("{") and len(text) <= _LONGEST:
            try:
                return DriverEnd.model_validate_json(text)
            except ValidationError:
                continue
    return None


def pod_view(body: Object, job_uid: str) -> PodView:
    """The pod as decisions see it.

    Args:
        job_uid: of the object whose pod it is, or claims to be.
    """
    meta, spec = _at(body, "metadata"), _at(body, "spec")
    status, labels = _at(body, "status"), _at(_at(body, "metadata"), "labels")
    role = _text(labels, names.ROLE_LABEL)
    main = _main(status, spec, role)
    ended = _ended(main)
    grace = _grace(meta, spec)
    deleted = moment(meta.get("deletionTimestamp"))
    waiting, waiting_message = _waiting(status, main)
    disrupted = _said(status, "DisruptionTarget", "True")
    return PodView(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        role=role,
        attempt=_number(labels.get(names.ATTEMPT_LABEL)),
        phase=_text(status, "phase") or "Pending",
        owned=_owned(meta, labels, role, job_uid),
        reason=_text(status, "reason"),
        message=_text(status, "message"),
        node=_text(spec, "nodeName"),
        ip=_text(status, "podIP"),
        ready=_condition(status, "Ready").get("status") == "True",
        waiting=waiting,
        waiting_message=waiting_message,
        ended=ended,
        end=driver_end(ended.message) if ended and role == "driver" else None,
        disrupted=disrupted,
        disrupted_by=_text(_condition(status, "DisruptionTarget"), "reason") if disrupted else "",
        unschedulable=_said(status, "PodScheduled", "False"),
        revision=_text(_at(meta, "annotations"), names.REVISION_ANNOTATION),
        standby=_text(_at(meta, "annotations"), names.STANDBY_ANNOTATION) == "true",
        store_task=_text(_at(meta, "annotations"), names.STORE_TASK_ANNOTATION),
        tls_secret=_text(_at(_volume(spec, TLS_VOLUME), "secret"), "secretName"),
        claim=_text(_at(_volume(spec, LOCAL_VOLUME), "persistentVolumeClaim"), "claimName"),
        created_at=moment(meta.get("creationTimestamp")),
        started_at=_started(status, main),
        deleted_at=deleted - timedelta(seconds=grace) if deleted else None,
        grace_seconds=grace,
    )


def _owned(meta: Mapping[str, Any], labels: Mapping[str, Any], role: str, uid: str) -> bool:
    """Executors belong to their driver's pod, so for them the label speaks."""
    if role == "executor":
        return labels.get(names.JOB_UID_LABEL) == uid
    return any(owner.get("controller") and owner.get("uid") == uid for owner in _owners(meta))


def _volume(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((one for one in _items(spec, "volumes") if _text(one, "name") == name), {})


def _owners(meta: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return _items(meta, "ownerReferences")


def _main(status: Mapping[str, Any], spec: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    found = {_text(one, "name"): one for one in _items(status, "containerStatuses")}
    first = next((_text(one, "name") for one in _items(spec, "containers")), "")
    return found.get(role) or found.get(first) or {}


def _ended(main: Mapping[str, Any]) -> ContainerEnd | None:
    for place in ("state", "lastState"):
        done = _at(_at(main, place), "terminated")
        if done:
            return ContainerEnd(
                exit_code=_number(done.get("exitCode")),
                reason=_text(done, "reason"),
                message=_text(done, "message"),
                finished_at=moment(done.get("finishedAt")),
            )
    return None


def _started(status: Mapping[str, Any], main: Mapping[str, Any]) -> datetime | None:
    state = _at(main, "state")
    since = _at(state, "running").get("startedAt") or _at(state, "terminated").get("startedAt")
    return moment(since) or moment(status.get("startTime"))


def _waiting(status: Mapping[str, Any], main: Mapping[str, Any]) -> tuple[str, str]:
    """Why it does not start: of the main container, else of one before it or beside it."""
    # While one of them waits the pod is Pending, and none of the others is asked anything.
    before, beside = _items(status, "initContainerStatuses"), _items(status, "containerStatuses")
    for container in (main, *before, *beside):
        waits = _at(_at(container, "state"), "waiting")
        if _text(waits, "reason") not in _STARTING:
            return _text(waits, "reason"), _text(waits, "message")
    return "", ""


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((one for one in _items(status, "conditions") if one.get("type") == kind), {})


def _said(status: Mapping[str, Any], kind: str, value: str) -> str:
    found = _condition(status, kind)
    if found.get("status") != value:
        return ""
    return _text(found, "message") or _text(found, "reason") or kind


def _grace(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> int:
    asked = meta.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"))
    return asked if isinstance(asked, int) else 30


def _at(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = parent.get(name)
    return found if isinstance(found, dict) else {}


def _items(parent: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = parent.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _text(parent: Mapping[str, Any], name: str) -> str:
    found = parent.get(name)
    return found if isinstance(found, str) else ""


def _number(value: object) -> int:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]  # else TypeError
    except (TypeError, ValueError):
        return 0


def are_settled(*pods: tuple[PodView, ...] | Unreadable) -> bool:
    """Whether the pods all do what they are for, or have done it."""
    # What keeps another one from it, such as a Secret that is gone, is looked for live.
    return all(
        not isinstance(some, Unreadable)
        and all(
            one.terminal or (one.phase == "Running" and one.ready and one.deleted_at is None)
            for one in some
        )
        for some in pods
    )
