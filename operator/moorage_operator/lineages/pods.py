"""Errands by pods under the jobs' own service accounts: where the operator has no credentials.

A pod's name follows from the errand's id, so that a crash leads to no second one: it is found
again. Nothing is kept in memory. Pods that have answered are removed after a while.
"""

from datetime import datetime, timedelta

from moorage_operator.children.names import ROLE_LABEL
from moorage_operator.lineages.pod import (
    ERRAND_ROLE,
    PodAnswer,
    errand_pod,
    pod_answer,
    pod_name,
)
from moorage_operator.lineages.requests import (
    INSPECT,
    PENDING,
    errand_view,
    request_of,
    store_view,
)
from moorage_operator.plan import Errand
from moorage_operator.podviews import moment
from moorage_operator.ports import (
    AlreadyExists,
    Clock,
    Cluster,
    ClusterError,
    Conflict,
    JobRefs,
    Object,
)
from moorage_operator.world import ErrandView, StoreView, Unreadable

__all__ = ["ErrandLineages"]

_KEPT = timedelta(minutes=10)
_AGAIN = timedelta(seconds=10)
_FRESH = timedelta(seconds=60)
_LOST = timedelta(seconds=120)
"""How long after its deadline a pod that has not ended is given up: its node is gone."""


class ErrandLineages:
    """See `moorage_operator.ports.Lineages`.

    Args:
        cluster: where pods are made.
        clock: the time.
        cluster_id: names the cluster in lineages.
        seconds: how long an errand may take, with the start of its pod.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, cluster_id: str, *, seconds: int = 600
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._cluster_id = cluster_id
        self._seconds = seconds

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

    async def run(self, job: JobRefs, errand: Errand) -> ErrandView:
        """See `Lineages.run`."""
        if not job.spec.image:
            text = "spec.image: is missing, so that no pod can be sent to the store; name the image"
            return ErrandView("Failed", {}, "errand_failed", text, retryable=True)
        found = await self._find(job, errand.id)
        if found is None:
            await self.tidy(job.meta.namespace)
            await self._create(job, errand)
            return PENDING
        again = self._is_lost(found) or self._may_begin_again(found)
        if not found.ours or again or _is_corrected(found, job):
            await self._remove(job, errand.id, found)
            return PENDING
        return _view(found)

    async def look(self, job: JobRefs, errand_id: str) -> ErrandView | None:
        """See `Lineages.look`."""
        found = await self._find(job, errand_id)
        if found is None or not found.ours or self._is_lost(found):
            return None
        return _view(found)

    async def tidy(self, namespace: str | None) -> None:
        """Remove pods that answered long ago; of all namespaces if None."""
        now = self._clock.now()
        for body in await self._cluster.list("Pod", namespace, {ROLE_LABEL: ERRAND_ROLE}):
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

    async def _find(self, job: JobRefs, errand_id: str) -> PodAnswer | None:
        name = pod_name(job.meta.name, errand_id)
        body = await self._cluster.get("Pod", job.meta.namespace, name)
        return pod_answer(body, job, errand_id) if body is not None else None

    async def _create(self, job: JobRefs, errand: Errand) -> None:
        body: Object = errand_pod(job, request_of(job, errand, self._cluster_id), self._seconds)
        try:
            await self._cluster.create(body)
        except AlreadyExists:
            # Of another process, or the one before it is still going: the next look tells.
            return

    async def _remove(self, job: JobRefs, errand_id: str, found: PodAnswer) -> None:
        grace = 0 if self._is_lost(found) else None
        name = pod_name(job.meta.name, errand_id)
        await self._delete(job.meta.namespace, name, found.uid, grace)

    async def _delete(self, namespace: str, name: str, uid: str, grace: int | None = None) -> None:
        try:
            await self._cluster.delete("Pod", namespace, name, uid=uid, grace_seconds=grace)
        except Conflict:
            # Another pod has the name by now.
            return


def _view(found: PodAnswer) -> ErrandView:
    if found.answer is not None:
        return errand_view(found.answer)
    return ErrandView("Pending", message=found.held) if found.held else PENDING


def _is_corrected(found: PodAnswer, job: JobRefs) -> bool:
    """Whether it does not start, and the job names another image by now."""
    return bool(found.held) and found.image != (job.spec.image or "")
