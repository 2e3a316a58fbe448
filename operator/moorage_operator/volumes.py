"""The claims of executors' volumes that are reused: Spark makes them, and the job keeps them.

Spark makes a claim for an executor that finds none to reuse, lets it go with the driver's pod, and
takes again those alone that carry its application's name. So they are made the job's own while
executors use them, and are given to the next attempt by that name before its driver is made. A
volume is only a cache: what lies on it is checked byte by byte, and all else comes from the store.
So nothing waits for a claim, and one that cannot be kept is made anew.
"""

from collections.abc import Iterable

from moorage_api import JobSpec
from moorage_api.sizing import executor_count
from moorage_operator.children.names import (
    JOB_UID_LABEL,
    application_id,
    owner_reference,
)
from moorage_operator.objects import is_controlled_by
from moorage_operator.plan import KeepClaims
from moorage_operator.pod_resources import amount_of
from moorage_operator.ports import Cluster, Conflict, NotFound, Object, Reads
from moorage_operator.world import Meta

SPARK_LABEL = "spark-app-selector"
"""The application that may use a claim, as Spark labels it."""


async def keep(cluster: Cluster, effect: KeepClaims, meta: Meta) -> bool:
    """Make the claims that an attempt's executors use the job's; say whether all were there.

    Those that no executor will take any more are deleted.

    Raises:
        ClusterError: as for any write.
    """
    own = application_id(meta.uid, effect.attempt)
    living = {own, application_id(meta.uid, effect.standby)}
    missing = set(effect.claims)
    for body in await claims_of(cluster, meta):
        name, application = body["metadata"]["name"], _of(body)
        missing.discard(name)
        if goes(body):
            continue
        if name in effect.claims:
            await _give(cluster, body, meta, application)
        elif application not in living or (application == own and effect.whole):
            await _drop(cluster, body)
    # Spark makes the pod first, and its claim then. One that is there and not ours is left alone.
    found = [
        await cluster.get("PersistentVolumeClaim", meta.namespace, name) for name in sorted(missing)
    ]
    return None not in found


async def hand_on(
    cluster: Cluster, claims: Iterable[Object], meta: Meta, spec: JobSpec, attempt: int
) -> None:
    """Give the job's claims to the attempt that is about to start, as many as it has executors.

    Those that its spec does not ask for any more are deleted.

    Args:
        claims: all with the job's label.

    Raises:
        ClusterError: as for any write.
    """
    ours = [one for one in claims if _is_owned(one) and not goes(one)]
    fitting = [one for one in ours if _fits(one, spec)]
    # Of two the newer one: it took the place of one that was not free when it was wanted.
    fitting.sort(key=lambda one: str(one["metadata"]["creationTimestamp"]), reverse=True)
    kept = fitting[: executor_count(spec.executor, spec.scaling.parallelism)]
    for body in ours:
        if body in kept:
            await _give(cluster, body, meta, application_id(meta.uid, attempt))
        else:
            await _drop(cluster, body)


async def give_up(cluster: Cluster, meta: Meta, name: str) -> None:
    """Delete a claim of the job's, whoever still uses it.

    Raises:
        ClusterError: as for any write.
    """
    found = await cluster.get("PersistentVolumeClaim", meta.namespace, name)
    if found is None or goes(found):
        return
    if (found["metadata"].get("labels") or {}).get(JOB_UID_LABEL) == meta.uid:
        await _drop(cluster, found)


async def claims_of(cluster: Reads, meta: Meta) -> list[Object]:
    """The claims that are the job's, or still those of one of its drivers.

    Raises:
        ClusterError: as for any request.
    """
    labels = {JOB_UID_LABEL: meta.uid}
    found = await cluster.list("PersistentVolumeClaim", meta.namespace, labels)
    return [one for one in found if _is_owned(one)]


def _is_owned(claim: Object) -> bool:
    """One without an owner is somebody's copy, labels and all."""
    return bool(claim["metadata"].get("ownerReferences"))


def goes(claim: Object) -> bool:
    """Whether it is deleted as soon as no pod uses it any more."""
    return bool(claim["metadata"].get("deletionTimestamp"))


def _fits(claim: Object, spec: JobSpec) -> bool:
    """Whether Spark would take it for an executor of this spec, and find a volume behind it."""
    local, made = spec.state.local, claim.get("spec") or {}
    size = ((made.get("resources") or {}).get("requests") or {}).get("storage", "")
    return (
        local.type == "ReusedPVC"
        and local.size is not None
        and made.get("storageClassName") == local.storage_class_name
        # One that somebody has made larger is as good, and has what smaller ones would fetch.
        and amount_of(size) >= local.size.value
        and (claim.get("status") or {}).get("phase") != "Lost"
    )


async def _give(cluster: Cluster, claim: Object, meta: Meta, application: str) -> None:
    """Make it the job's, and have the executors of this application find it."""
    changes: Object = {}
    if not is_controlled_by(claim, meta.uid):
        changes["ownerReferences"] = [owner_reference(meta)]
    if _of(claim) != application:
        changes["labels"] = {SPARK_LABEL: application}
    if changes:
        await _patch(cluster, claim, changes)


async def _drop(cluster: Cluster, claim: Object) -> None:
    """It goes when no pod uses it any more; until then Spark, which would take it, finds it not."""
    meta = claim["metadata"]
    if _of(claim):
        await _patch(cluster, claim, {"labels": {SPARK_LABEL: None}})
    try:
        await cluster.delete(
            "PersistentVolumeClaim", meta["namespace"], meta["name"], uid=meta["uid"]
        )
    except (Conflict, NotFound):
        return


async def _patch(cluster: Cluster, claim: Object, changes: Object) -> None:
    """Change it if it is as it was read."""
    meta = claim["metadata"]
    patch = {
        "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], **changes}
    }
    await cluster.patch("PersistentVolumeClaim", meta["namespace"], meta["name"], patch)


def _of(claim: Object) -> str:
    return str((claim["metadata"].get("labels") or {}).get(SPARK_LABEL, ""))
