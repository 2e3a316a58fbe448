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
from moorage_operator.ports import Cluster, Conflict, NotFound, Object
from moorage_operator.world import Meta

SPARK_LABEL = "spark-app-selector"
"""The application that may use a claim, as Spark labels it."""


async def keep(cluster: Cluster, effect: KeepClaims, meta: Meta) -> None:
    """Make the claims that an attempt's executors use the job's.

    What the job kept for an attempt before, and this one was not given, is deleted: nobody can
    find it any more.

    Raises:
        ClusterError: as for any write.
    """
    application = application_id(meta.uid, effect.attempt)
    labels = {JOB_UID_LABEL: meta.uid}
    for body in await cluster.list("PersistentVolumeClaim", meta.namespace, labels):
        if _goes(body):
            continue
        one = body["metadata"]
        is_ours = is_controlled_by(body, meta.uid)
        if one["name"] in effect.claims and not is_ours:
            await _patch(cluster, body, {"ownerReferences": [owner_reference(meta)]})
        elif is_ours and one["name"] not in effect.claims and _of(body) != application:
            await _delete(cluster, body)


async def hand_on(
    cluster: Cluster, claims: Iterable[Object], meta: Meta, spec: JobSpec, attempt: int
) -> None:
    """Give the job's claims to the attempt that is about to start, as many as it has executors.

    Those that its spec does not ask for any more are deleted.

    Raises:
        ClusterError: as for any write.
    """
    ours = [one for one in claims if is_controlled_by(one, meta.uid) and not _goes(one)]
    fitting = [one for one in ours if _fits(one, spec)]
    # Of two the newer one: it took the place of one that was not free when it was wanted.
    fitting.sort(key=lambda one: str(one["metadata"]["creationTimestamp"]), reverse=True)
    kept = fitting[: executor_count(spec.executor, spec.scaling.parallelism)]
    application = application_id(meta.uid, attempt)
    for body in ours:
        if body not in kept:
            await _delete(cluster, body)
        elif _of(body) != application:
            await _patch(cluster, body, {"labels": {SPARK_LABEL: application}})


async def give_up(cluster: Cluster, meta: Meta, name: str) -> bool:
    """Delete a claim of the job's; Spark does not find it from now on, whoever still uses it.

    Raises:
        ClusterError: as for any write.
    """
    found = await cluster.get("PersistentVolumeClaim", meta.namespace, name)
    if found is None or _goes(found) or not _is_labelled(found, meta):
        return False
    await _patch(cluster, found, {"labels": {SPARK_LABEL: None}})
    await _delete(cluster, found)
    return True


def held(claims: Iterable[Object], meta: Meta, drivers: Iterable[str]) -> int:
    """How many of the claims a start need not ask for: the job's, and those of living drivers.

    Args:
        drivers: the uids of their pods.
    """
    owners = {meta.uid, *drivers}
    return sum(
        not owners.isdisjoint(
            one.get("uid") for one in body["metadata"].get("ownerReferences") or ()
        )
        for body in claims
        if not _goes(body)
    )


def _fits(claim: Object, spec: JobSpec) -> bool:
    """Whether Spark would take it for an executor of this spec, and find a volume behind it."""
    local, made = spec.state.local, claim.get("spec") or {}
    size = ((made.get("resources") or {}).get("requests") or {}).get("storage", "")
    return (
        local.type == "ReusedPVC"
        and local.size is not None
        and made.get("storageClassName") == local.storage_class_name
        and amount_of(size) == local.size.value
        and (claim.get("status") or {}).get("phase") != "Lost"
    )


async def _patch(cluster: Cluster, body: Object, changes: Object) -> None:
    """Change it if it is as it was read."""
    meta = body["metadata"]
    patch = {
        "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], **changes}
    }
    await cluster.patch("PersistentVolumeClaim", meta["namespace"], meta["name"], patch)


async def _delete(cluster: Cluster, body: Object) -> None:
    """It goes when no pod uses it any more."""
    meta = body["metadata"]
    try:
        await cluster.delete(
            "PersistentVolumeClaim", meta["namespace"], meta["name"], uid=meta["uid"]
        )
    except (Conflict, NotFound):
        return


def _of(claim: Object) -> str:
    return str((claim["metadata"].get("labels") or {}).get(SPARK_LABEL, ""))


def _is_labelled(claim: Object, meta: Meta) -> bool:
    return (claim["metadata"].get("labels") or {}).get(JOB_UID_LABEL) == meta.uid


def _goes(claim: Object) -> bool:
    return bool(claim["metadata"].get("deletionTimestamp"))
