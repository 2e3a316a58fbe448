"""What an attempt has in the API server: made, brought back where somebody deleted it, cleared up.

A start is a handful of objects with names that follow from the attempt's number, the pod last. An
operator that died half way is followed by one that finds what is there and goes on. Objects of
these names that are not the job's are never taken over.
"""

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from moorage_api import JobSpec
from moorage_api.changes import refreshed
from moorage_api.lifecycle import Ui
from moorage_api.status import read_status
from moorage_operator import volumes
from moorage_operator.children import (
    bodies,
    disruption_budget,
    ingress,
    names,
    pod_monitor,
    service,
)
from moorage_operator.children.names import owner_reference
from moorage_operator.children.secrets import config_owner, token_secret
from moorage_operator.objects import is_controlled_by
from moorage_operator.plan import (
    ActionFailed,
    DeletePod,
    SetDisruptionBudget,
    SetIngress,
    SetPodMonitor,
    StartDriver,
    TidyAttempt,
)
from moorage_operator.podviews import pod_view
from moorage_operator.ports import (
    ApiUnavailable,
    Cluster,
    ClusterError,
    Conflict,
    Kind,
    NameTaken,
    NotFound,
    Object,
    WallClock,
)
from moorage_operator.tokens import Tokens
from moorage_operator.world import JobWorld, Meta, Revision

_log = logging.getLogger("moorage.operator")

_EVERY = timedelta(minutes=1)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Attempts:
    """Pods, ConfigMaps, Secrets and Service of a job's attempts."""

    cluster: Cluster
    tokens: Tokens
    clock: WallClock
    _looked_after: dict[str, datetime] = field(default_factory=dict)

    async def start(
        self, effect: StartDriver, meta: Meta, revision: Revision | None, newest: JobSpec | None
    ) -> bool:
        """Make everything that the attempt needs; say whether the pod is new.

        Args:
            revision: the one that the effect names, if it is known.
            newest: the spec as it is now: what needs no new revision is taken of it.

        Raises:
            ActionFailed: it must not be started (any more), or a name is taken.
            ClusterError: as for any write.
        """
        if revision is None:
            raise ActionFailed(
                f"the spec to start is not there: revision={effect.revision}; "
                "it was deleted or a newer operator wrote it: edit the spec to make a new one"
            )
        spec = refreshed(revision.spec, newest) if newest is not None else revision.spec
        await self._must_still_be_wanted(effect, meta)
        if not effect.order.standby:
            await self._must_be_alone(effect.order.attempt, meta)
        # The ConfigMap owns the Secret, so that one comes first; the pod mounts both, and is last.
        front, config, pod = bodies(meta, spec, effect.revision, effect.order)
        await self._keep(front, meta)
        made = await self._keep(config, meta)
        await self.tokens.ensure(meta, effect.order.attempt, made["metadata"]["uid"])
        await self.tokens.ensure_scrape(meta)
        if not effect.order.standby:
            # Of a driver that runs beside this one they are in use.
            await self._hand_on_volumes(meta, spec, effect.order.attempt)
        return await self._make_pod(pod, meta)

    async def delete_pod(self, effect: DeletePod, meta: Meta) -> bool:
        """Delete the pod of this uid; another one of its name is not meant."""
        return await self._delete("Pod", meta, effect.name, effect.uid, effect.grace_seconds)

    async def tidy(self, effect: TidyAttempt, meta: Meta) -> bool:
        """Delete what ended attempts left, but for the pods of the newest of them.

        Their Secrets go with their ConfigMaps, and these before the pods: who looks whether there
        is something to tidy sees pods.
        """
        tidied = await self._tidy_maps(effect, meta)
        labels = {names.JOB_UID_LABEL: meta.uid}
        found = await self.cluster.list("Pod", meta.namespace, labels)
        pods = [pod for body in found if (pod := pod_view(body, meta.uid)).owned]
        ended = [pod for pod in pods if pod.terminal and 0 < pod.attempt < effect.below]
        kept = sorted({pod.attempt for pod in ended if pod.role == "driver"}, reverse=True)
        doomed = [
            pod
            for pod in ended
            if pod.role in {"driver", "executor"}
            and pod.attempt not in kept[: effect.keep]
            and pod.deleted_at is None
        ]
        deleted = [await self._delete("Pod", meta, pod.name, pod.uid) for pod in doomed]
        return tidied or any(deleted)

    async def set_beside(
        self, effect: SetPodMonitor | SetDisruptionBudget | SetIngress, meta: Meta
    ) -> None:
        """Make, change or delete an object beside the job's pods.

        Raises:
            ActionFailed: the cluster has no such kind, or another object has the name.
            ClusterError: as for any write.
        """
        match effect:
            case SetIngress():
                await self._set(ingress(meta, effect.ui or Ui()), meta, effect.ui is not None)
            case SetDisruptionBudget():
                body = disruption_budget(meta, effect.role, effect.least, effect.attempt)
                await self._set(body, meta, effect.least > 0)
            case SetPodMonitor():
                try:
                    await self._set(pod_monitor(meta, effect.tls_secret), meta, effect.present)
                except NotFound as error:
                    raise ActionFailed(
                        "spec.observability.metrics.podMonitor is true, and this cluster has no "
                        "kind PodMonitor: install the Prometheus operator, or set it to false"
                    ) from error

    async def _set(self, body: Object, meta: Meta, present: bool) -> None:  # noqa: FBT001
        if present:
            await self._keep(body, meta)
            return
        kind, name = body["kind"], body["metadata"]["name"]
        found = await self.cluster.get(kind, meta.namespace, name)
        if found is not None and is_controlled_by(found, meta.uid):
            await self._delete(kind, meta, name, found["metadata"]["uid"])

    async def repair(self, world: JobWorld) -> bool:
        """Make again what a living driver needs besides its pod, and somebody deleted.

        Returns whether it was time to look.

        New executors mount the attempt's Secret, and the operator needs it to speak to the driver;
        metrics need the one for reading; they and people find the driver by the Service.
        """
        meta, now = world.meta, self.clock.now()
        pod = world.current_driver
        if pod is None or pod.terminal or pod.deleted_at is not None:
            return False
        if meta.deleted_at is not None or meta.annotation("paused") == "true":
            return False
        # No watch tells of a deletion, and looking costs three requests: so once a minute, and the
        # first time a minute after the job was first seen, as an operator that starts sees all.
        if now < self._looked_after.setdefault(meta.uid, now) + _EVERY:
            return False
        self._looked_after[meta.uid] = now
        await self._repair_secret(meta, pod.attempt)
        await self._repair_scrape(meta, pod.attempt)
        await self._repair_service(meta)
        return True

    def look_at_once(self, uid: str) -> None:
        """Something is known to be gone: the next pass looks, whenever another one did."""
        self._looked_after[uid] = _LONG_AGO

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._looked_after.pop(uid, None)

    async def _tidy_maps(self, effect: TidyAttempt, meta: Meta) -> bool:
        labels = {names.JOB_UID_LABEL: meta.uid}
        found = [
            body["metadata"]
            for body in await self.cluster.list("ConfigMap", meta.namespace, labels)
            if names.ATTEMPT_LABEL in body["metadata"]["labels"]
        ]
        old = [one for one in found if _attempt(one["labels"]) < effect.below]
        deleted = [
            await self._delete("ConfigMap", meta, one["name"], one["uid"])
            for one in old
            if not one.get("deletionTimestamp")
        ]
        return any(deleted)

    async def _must_still_be_wanted(self, effect: StartDriver, meta: Meta) -> None:
        """The status in the API server, now, still names this attempt."""
        found = await self.cluster.get("StatefulSparkJob", meta.namespace, meta.name)
        if found is None or found["metadata"]["uid"] != meta.uid:
            raise ActionFailed("the job's object is gone: nothing is started")
        status = read_status(found.get("status"))
        number, operation = status.attempt.number, status.operation
        if effect.order.standby:
            beside = operation.standby if operation is not None else None
            number = beside.attempt if beside is not None else 0
        if number != effect.order.attempt:
            raise ActionFailed(
                f"the status names another attempt by now: wanted={effect.order.attempt} "
                f"found={number}"
            )

    async def _must_be_alone(self, attempt: int, meta: Meta) -> None:
        """No driver of a lower attempt lives: a last look right before the start."""
        labels = {names.JOB_LABEL: meta.name, names.ROLE_LABEL: "driver"}
        found = await self.cluster.list("Pod", meta.namespace, labels)
        for pod in (pod_view(body, meta.uid) for body in found):
            if pod.owned and not pod.terminal and pod.attempt < attempt:
                raise ActionFailed(f"an earlier driver is still there: pod={pod.name}")

    async def _hand_on_volumes(self, meta: Meta, spec: JobSpec, attempt: int) -> None:
        """They are caches: what is refused is only logged, and Spark makes what it is not given."""
        labels = {names.JOB_UID_LABEL: meta.uid}
        try:
            claims = await self.cluster.list("PersistentVolumeClaim", meta.namespace, labels)
            if claims:
                await volumes.hand_on(self.cluster, claims, meta, spec, attempt)
        except (ApiUnavailable, Conflict, NotFound):
            raise  # not so the next time
        except ClusterError as error:
            text = "volumes are not handed on: job=%s/%s attempt=%d error=%s"
            _log.warning(text, meta.namespace, meta.name, attempt, error)

    async def _keep(self, body: Object, meta: Meta) -> Object:
        kind, name = body["kind"], body["metadata"]["name"]
        found = await self.cluster.get(kind, meta.namespace, name)
        if found is not None and not is_controlled_by(found, meta.uid):
            raise ActionFailed(_taken(kind, name))
        return await self.cluster.apply(body)

    async def _make_pod(self, body: Object, meta: Meta) -> bool:
        name = body["metadata"]["name"]
        # Created, never applied: of two operators that act for a moment only one makes it, and
        # most of a pod cannot be changed anyway.
        try:
            await self.cluster.create(body)
        except NameTaken as error:
            found = await self.cluster.get("Pod", meta.namespace, name)
            if found is None:
                raise ActionFailed(f"a pod of this name was just deleted: pod={name}") from error
            if not is_controlled_by(found, meta.uid):
                raise ActionFailed(_taken("Pod", name)) from error
            return False
        return True

    async def _delete(
        self, kind: Kind, meta: Meta, name: str, uid: str, grace_seconds: int | None = None
    ) -> bool:
        """Delete it, unless it is gone or going as fast already; say whether that was needed."""
        found = await self.cluster.get(kind, meta.namespace, name)
        if found is None or found["metadata"]["uid"] != uid or _goes(found, grace_seconds):
            return False
        try:
            await self.cluster.delete(
                kind, meta.namespace, name, uid=uid, grace_seconds=grace_seconds
            )
        except (Conflict, NotFound):
            # Between the look and the deletion it went, or another one got its name.
            return False
        return True

    async def _repair_secret(self, meta: Meta, attempt: int) -> None:
        """With what the driver has; tokens that nobody remembers come with a new driver."""
        name = names.token_secret_name(meta.name, attempt)
        tokens = self.tokens.known(meta.uid, attempt)
        if tokens is None or tokens.by_older_operator:
            return
        if await self.cluster.get("Secret", meta.namespace, name) is not None:
            return
        config = names.config_map_name(meta.name, attempt)
        found = await self.cluster.get("ConfigMap", meta.namespace, config)
        owner = owner_reference(meta)
        if found is not None:
            owner = config_owner(meta, attempt, found["metadata"]["uid"])
        await self.cluster.create(token_secret(meta, attempt, tokens.control, owner))
        _log.warning("a Secret was gone: job=%s/%s name=%s", meta.namespace, meta.name, name)

    async def _repair_scrape(self, meta: Meta, attempt: int) -> None:
        """For a driver that an older operator started with the one token that it knows."""
        tokens = self.tokens.known(meta.uid, attempt)
        if tokens is None:
            return  # it was not asked yet: whose it is, is not known
        if await self.tokens.ensure_scrape(
            meta, tokens.control if tokens.by_older_operator else ""
        ):
            name = names.scrape_secret_name(meta.name)
            _log.warning("a Secret was made: job=%s/%s name=%s", meta.namespace, meta.name, name)

    async def _repair_service(self, meta: Meta) -> None:
        name = names.service_name(meta.name)
        if await self.cluster.get("Service", meta.namespace, name) is None:
            await self.cluster.apply(service(meta))
            _log.warning("a Service was gone: job=%s/%s name=%s", meta.namespace, meta.name, name)


def _goes(found: Object, grace_seconds: int | None) -> bool:
    meta = found["metadata"]
    if not meta.get("deletionTimestamp"):
        return False
    return grace_seconds is None or meta.get("deletionGracePeriodSeconds", 0) <= grace_seconds


def _taken(kind: str, name: str) -> str:
    return (
        f"an object that is not this job's has the name: kind={kind} name={name}; "
        "delete or rename it (one of a deleted job goes by itself)"
    )


def _attempt(labels: dict[str, str]) -> int:
    text = labels[names.ATTEMPT_LABEL]
    return int(text) if text.isdecimal() else 0
