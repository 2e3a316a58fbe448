"""Store tasks by pods under the jobs' own service accounts: where the operator has no credentials.

A pod's name follows from the store task's id, so that a crash leads to no second one: it is found
again. Pods that have answered are removed after a while. What is kept in memory is when this
process saw a pod, by its own clock: those of nodes and of the API server may be minutes off.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from moorage_api.sizing import driver_memory
from moorage_operator.children import job_document
from moorage_operator.children.names import (
    ROLE_LABEL,
    STORE_TASK_ANNOTATION,
    STORE_TASK_ROLE,
    labels,
    owner_reference,
)
from moorage_operator.children.pod_template import merged_pod
from moorage_operator.children.pods import container_security, environment, pod_security
from moorage_operator.lineages.requests import (
    INSPECT,
    PENDING,
    request_of,
    store_task_view,
    store_view,
)
from moorage_operator.plan import StoreTask
from moorage_operator.podviews import moment, pod_view
from moorage_operator.ports import (
    Cluster,
    ClusterError,
    Conflict,
    Invalid,
    JobRefs,
    NameTaken,
    Object,
    WallClock,
)
from moorage_operator.world import StoreTaskView, StoreView, Unreadable
from moorage_state.snapshots.store_tasks import (
    Answer,
    StoreTaskRequest,
    decode_answer,
    encode_request,
)

STORE_TASK_ENV = "MOORAGE_ERRAND"
_DIRECTORY = "moorage.dev/errand-directory"
_CONTAINER = "errand"
PREFLIGHT_JOB_ENV = "MOORAGE_PREFLIGHT_JOB"
PREFLIGHT_PACKED_ENV = "MOORAGE_PREFLIGHT_JOB_GZ"
_LONGEST_VARIABLE = 120_000
"""Bytes: Linux starts no process with a variable of more than 128 KiB."""
_COMMAND = ("tini", "-s", "--", "python", "-m")
_MEMORY = "512Mi"


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """A store task's pod."""

    uid: str  # of the pod
    ours: bool  # it is the pod of this store task of this object, and not another's of its name
    directory: str  # the checkpoint directory that it was sent to
    created: datetime | None
    deleted: datetime | None
    ended: datetime | None  # when, for one that has ended
    answer: Answer | None  # of one that has ended
    held: str = ""  # why it does not start, as the kubelet or the scheduler says; empty if it does
    image: str = ""  # that it was made with


def pod_name(job: str, task_id: str) -> str:
    """The name of the store task's pod."""
    return f"{job}-errand-{hashlib.sha256(task_id.encode()).hexdigest()[:10]}"


def store_task_pod(job: JobRefs, request: StoreTaskRequest, seconds: int) -> Object:
    """The pod that runs the store task, under the job's account, where its drivers run too.

    Args:
        seconds: after which the kubelet ends it.
    """
    meta, spec = job.meta, job.spec
    metadata: Object = {
        "name": pod_name(meta.name, request.id),
        "namespace": meta.namespace,
        "labels": labels(meta, STORE_TASK_ROLE),
        "annotations": {STORE_TASK_ANNOTATION: request.id, _DIRECTORY: request.checkpoint_dir},
    }
    if meta.uid:
        metadata["ownerReferences"] = [owner_reference(meta)]
    tried = request.kind == "Preflight"
    ours: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": spec.service_account_name,
            # A store task asks nothing of the API server; a preflight may run what a driver runs.
            "automountServiceAccountToken": tried,
            "enableServiceLinks": False,
            "activeDeadlineSeconds": seconds,
            "terminationGracePeriodSeconds": 5,
            "securityContext": pod_security(),
            "containers": [_container(job, request)],
        },
    }
    return merged_pod(ours, _template(spec.driver.pod_template, prepared=tried))


def _container(job: JobRefs, request: StoreTaskRequest) -> Object:
    spec = job.spec
    env = [*environment(spec), {"name": STORE_TASK_ENV, "value": encode_request(request)}]
    module, memory = "moorage.errand", _MEMORY
    if request.kind == "Preflight":
        # What a driver has: it imports the job's program, and starts a Spark.
        module, memory = "moorage.preflight", f"{driver_memory(spec.driver).total}Mi"
        env.append(_manifest_variable(json.dumps(job_document(job.meta, spec))))
    return {
        "name": _CONTAINER,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": [*_COMMAND, module],
        "env": env,
        "resources": {
            "requests": {"cpu": "100m", "memory": memory},
            "limits": {"memory": memory},
        },
        "securityContext": container_security(),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }


def _manifest_variable(document: str) -> Object:
    """The manifest, packed where it is longer than a variable may be.

    Raises:
        Invalid: it is too long all the same.
    """
    # The kubelet puts variables in place of $(NAME), and one $ in place of two.
    plain = document.replace("$", "$$")
    if len(plain.encode()) <= _LONGEST_VARIABLE:
        return {"name": PREFLIGHT_JOB_ENV, "value": plain}
    packed = base64.b64encode(gzip.compress(document.encode(), mtime=0)).decode()
    if len(packed) > _LONGEST_VARIABLE:
        raise Invalid(
            f"the spec is too long to be tried in a pod: bytes={len(document.encode())} "
            f"packed={len(packed)} most={_LONGEST_VARIABLE}; move what is long in it into a "
            "ConfigMap of your own or into the image, or set spec.upgrade.preflight to false"
        )
    return {"name": PREFLIGHT_PACKED_ENV, "value": packed}


def _template(driver: Mapping[str, Any], *, prepared: bool) -> Object:
    """What a store task takes from the driver's template: where it may run, what it can reach.

    Args:
        prepared: whether containers that bring the job's program run before it.
    """
    # Other containers stay away: a pod with one that goes on never ends.
    spec = dict(driver.get("spec") or {})
    if not prepared:
        spec.pop("initContainers", None)
    spec.pop("terminationGracePeriodSeconds", None)
    containers = [c for c in spec.pop("containers", None) or () if c.get("name") == "driver"]
    kept = ("env", "envFrom", "volumeMounts", "securityContext")
    spec["containers"] = [
        {"name": _CONTAINER, **{field: c[field] for field in kept if field in c}}
        for c in containers
    ]
    return {**driver, "spec": spec}


def pod_answer(body: Object, job: JobRefs, task_id: str) -> PodAnswer:
    """What a pod of this name says."""
    meta, status = body.get("metadata") or {}, body.get("status") or {}
    uid_label = (meta.get("labels") or {}).get("moorage.dev/job-uid", "")
    ours = (meta.get("annotations") or {}).get(STORE_TASK_ANNOTATION) == task_id
    # A container that somebody put beside ours, such as a proxy of a mesh, may go on for ever.
    over = status.get("phase") in ("Succeeded", "Failed") or bool(_terminated(status))
    return PodAnswer(
        uid=str(meta.get("uid", "")),
        ours=ours and uid_label == job.meta.uid,
        directory=(meta.get("annotations") or {}).get(_DIRECTORY, ""),
        created=moment(meta.get("creationTimestamp")),
        deleted=moment(meta.get("deletionTimestamp")),
        ended=_ended(body) if over else None,
        answer=_answer(status, task_id) if over else None,
        held=_held(body, job),
        image=_image(body),
    )


def _held(body: Object, job: JobRefs) -> str:
    pod = pod_view(body, job.meta.uid)
    why = pod.waiting_message or pod.waiting or pod.unschedulable
    if pod.phase != "Pending" or not why:
        return ""
    return f"store task's pod does not start: {pod.name}: {why}"


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


def _answer(status: Mapping[str, Any], task_id: str) -> Answer:
    """The answer in the termination message; a pod that ended without one may go well later."""
    terminated = _terminated(status)
    found = decode_answer(str(terminated.get("message") or "").strip())
    if found is not None and found.id in (task_id, ""):
        return found
    reason = status.get("reason") or terminated.get("reason") or "no reason is known"
    detail = status.get("message") or f"exit code {terminated.get('exitCode', 'unknown')}"
    text = f"store task's pod ended without an answer: reason={reason} detail={str(detail)[:300]!r}"
    return Answer(id=task_id, state="Failed", code="errand_failed", message=text, retryable=True)


_KEPT = timedelta(minutes=10)
_AGAIN = timedelta(seconds=10)
_FRESH = timedelta(seconds=60)
_LOST = timedelta(seconds=120)
"""How long after its deadline a pod that has not ended is given up: its node is gone."""


@dataclass(slots=True)
class _Watched:
    """What this process saw of a store task's pod, by its own clock."""

    uid: str
    open: datetime  # when it was last seen without an answer
    made: datetime | None = None  # when this process made it; None if it only found it
    failure: str = ""  # how the one before it ended, which may go well later


class PodLineages:
    """See `moorage_operator.ports.Lineages`.

    Args:
        cluster_id: names the cluster in lineages.
        seconds: how long a store task may take, with the start of its pod.
    """

    def __init__(
        self, cluster: Cluster, clock: WallClock, cluster_id: str, *, seconds: int = 600
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._cluster_id = cluster_id
        self._seconds = seconds
        self._watched: dict[tuple[str, str, str], _Watched] = {}

    async def inspect(
        self, job: JobRefs, since: datetime | None = None
    ) -> StoreView | Unreadable | None:
        """See `Lineages.inspect`.

        An answer is used for a minute, and only if its pod was made after `since`; then another pod
        is sent.
        """
        try:
            return await self._inspect(job, since)
        except ClusterError as error:
            return Unreadable("ErrandFailed", f"no pod can be sent to the store: {error}")

    async def run(self, job: JobRefs, store_task: StoreTask) -> StoreTaskView:
        """See `Lineages.run`."""
        if not job.spec.image:
            text = "spec.image: is missing, so that no pod can be sent to the store; name the image"
            return StoreTaskView("Failed", {}, "errand_failed", text, retryable=True)
        found = await self._find(job, store_task.id)
        if found is None:
            await self.tidy(job.meta.namespace)
            await self._create(job, store_task)
            return self._pending(job, store_task.id)
        again = self._is_lost(found) or self._may_begin_again(found)
        if not found.ours or again or _is_corrected(found, job):
            await self._remove(job, store_task.id, found)
            return self._pending(job, store_task.id)
        return self._view(job, store_task.id, found)

    async def look(self, job: JobRefs, task_id: str) -> StoreTaskView | None:
        """See `Lineages.look`."""
        found = await self._find(job, task_id)
        if found is None or not found.ours or self._is_lost(found):
            # One that failed and is to be tried again is none that nobody knows of.
            return self._pending(job, task_id) if self._failure(job, task_id) else None
        return self._view(job, task_id, found)

    async def tidy(self, namespace: str | None) -> None:
        """Remove pods that answered long ago; of all namespaces if None."""
        now = self._clock.now()
        for body in await self._cluster.list("Pod", namespace, {ROLE_LABEL: STORE_TASK_ROLE}):
            meta, phase = body["metadata"], (body.get("status") or {}).get("phase")
            made = moment(meta.get("creationTimestamp")) or now
            if phase in ("Succeeded", "Failed") and now - made > _KEPT + self._deadline:
                await self._delete(meta["namespace"], meta["name"], meta["uid"])

    async def _inspect(self, job: JobRefs, since: datetime | None) -> StoreView | Unreadable | None:
        if not job.spec.image:
            text = "spec.image: is missing, so that no pod can be sent to the store; name the image"
            return Unreadable("ErrandFailed", text)
        found = await self._find(job, INSPECT.id)
        if found is None:
            await self._create(job, INSPECT)
            return None
        elsewhere = found.directory != request_of(job, INSPECT, self._cluster_id).checkpoint_dir
        old = self._is_lost(found) or self._is_stale(found, since) or _is_corrected(found, job)
        if not found.ours or elsewhere or old:
            await self._remove(job, INSPECT.id, found)
            return None
        if found.answer is None:
            return Unreadable("ErrandStuck", found.held) if found.held else None
        return store_view(found.answer)

    def _is_stale(self, found: PodAnswer, since: datetime | None) -> bool:
        """Whether the answer of an ended inspection says too little about now."""
        if found.ended is None or found.answer is None:
            return False
        before = since is not None and (found.created is None or found.created < since)
        return before or self._clock.now() - found.ended > _FRESH

    def _is_lost(self, found: PodAnswer) -> bool:
        if found.answer is not None or found.created is None:
            return False
        return self._clock.now() - found.created > self._deadline + _LOST

    def _may_begin_again(self, found: PodAnswer) -> bool:
        answer, ended = found.answer, found.ended
        if answer is None or answer.state != "Failed" or not answer.retryable or ended is None:
            return False
        return self._clock.now() - ended > _AGAIN

    @property
    def _deadline(self) -> timedelta:
        return timedelta(seconds=self._seconds)

    async def _find(self, job: JobRefs, task_id: str) -> PodAnswer | None:
        name = pod_name(job.meta.name, task_id)
        body = await self._cluster.get("Pod", job.meta.namespace, name)
        if body is None:
            return None
        return self._by_this_clock(_key(job, task_id), pod_answer(body, job, task_id))

    def _by_this_clock(self, key: tuple[str, str, str], found: PodAnswer) -> PodAnswer:
        """With the times that this process saw itself, where it did."""
        known = self._watched.get(key)
        if known is None or known.uid != found.uid:
            if found.answer is not None:
                return found
            failure = known.failure if known is not None else ""
            known = self._watched[key] = _Watched(found.uid, self._clock.now(), failure=failure)
        if found.answer is None:
            known.open = self._clock.now()
        elif found.answer.state == "Completed":
            known.failure = ""
        # It may have ended right after it was last seen at work: that is the safe side.
        ended = known.open if found.answer is not None else None
        return replace(found, created=known.made or found.created, ended=ended)

    def _failure(self, job: JobRefs, task_id: str) -> str:
        known = self._watched.get(_key(job, task_id))
        return known.failure if known is not None else ""

    def _pending(self, job: JobRefs, task_id: str) -> StoreTaskView:
        """It is under way; and how it ended before, if it is not the first time."""
        failure = self._failure(job, task_id)
        return StoreTaskView("Pending", message=failure) if failure else PENDING

    def _view(self, job: JobRefs, task_id: str, found: PodAnswer) -> StoreTaskView:
        if found.answer is not None:
            return store_task_view(found.answer)
        if found.held:
            return StoreTaskView("Pending", message=found.held)
        return self._pending(job, task_id)

    async def _create(self, job: JobRefs, store_task: StoreTask) -> None:
        body: Object = store_task_pod(
            job, request_of(job, store_task, self._cluster_id), self._seconds
        )
        now, key = self._clock.now(), _key(job, store_task.id)
        try:
            made = await self._cluster.create(body)
        except NameTaken:
            # Of another process, or the one before it is still going: the next look tells.
            return
        failure = self._failure(job, store_task.id)
        self._watched[key] = _Watched(made["metadata"]["uid"], now, now, failure)
        self._forget_old(now)

    def _forget_old(self, now: datetime) -> None:
        longest = _KEPT + self._deadline + _LOST
        for key in [key for key, one in self._watched.items() if now - one.open > longest]:
            del self._watched[key]

    async def _remove(self, job: JobRefs, task_id: str, found: PodAnswer) -> None:
        answer, ended = found.answer, found.ended
        if found.ours and ended is not None and answer is not None and answer.state == "Failed":
            seen = _Watched(found.uid, ended)
            self._watched.setdefault(_key(job, task_id), seen).failure = answer.message
        grace = 0 if self._is_lost(found) else None
        name = pod_name(job.meta.name, task_id)
        await self._delete(job.meta.namespace, name, found.uid, grace)

    async def _delete(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        try:
            await self._cluster.delete("Pod", namespace, name, uid=uid, grace_seconds=grace)
        except Conflict:
            # Another pod has the name by now.
            return


def _key(job: JobRefs, task_id: str) -> tuple[str, str, str]:
    return job.meta.namespace, pod_name(job.meta.name, task_id), job.meta.uid


def _is_corrected(found: PodAnswer, job: JobRefs) -> bool:
    """Whether it does not start, and the job names another image by now."""
    return bool(found.held) and found.image != (job.spec.image or "")
