"""What a spec names and the cluster lacks: Secrets, service accounts, priority classes, snapshots.

A failed look proves nothing: only what the API server says is not there becomes a `Problem`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moorage_api import JobSpec, Problem
from moorage_operator.children.pods import TLS_KEYS
from moorage_operator.objects import job_name_of
from moorage_operator.pod_resources import mapping
from moorage_operator.ports import Forbidden, Reads
from moorage_operator.world import Meta

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


async def fact_problems(
    cluster: Reads, meta: Meta, spec: JobSpec, own_namespace: str = ""
) -> tuple[Problem, ...]:
    """Everything that the spec names and that is not there, and whether the job may be there.

    What this operator may not read counts as not known: the pod's own refusal says the same.
    """
    return (
        *_place(meta, own_namespace),
        *await _account(cluster, meta.namespace, spec),
        *await _credentials(cluster, meta.namespace, spec),
        *await _certificate(cluster, meta.namespace, spec),
        *await _priorities(cluster, spec),
        *await _snapshot(cluster, meta, spec),
    )


def _place(meta: Meta, own_namespace: str) -> Iterable[Problem]:
    """A driver may make pods, and beside the operator's service account that is all its rights."""
    if not own_namespace or meta.namespace != own_namespace:
        return ()
    reason = f"is the operator's own, whose service account a job must not reach: {own_namespace}"
    fix = "make the job in another namespace, one of the chart's value jobs.namespaces"
    return (Problem("metadata.namespace", reason, fix),)


async def _account(cluster: Reads, namespace: str, spec: JobSpec) -> Iterable[Problem]:
    name = spec.service_account_name
    try:
        if await cluster.get("ServiceAccount", namespace, name) is not None:
            return ()
    except Forbidden:
        return ()
    field = "spec.serviceAccountName"
    reason = f"names a service account that is not there: {name}"
    return (Problem(field, reason, f"create it in namespace {namespace}, or name another one"),)


async def _priorities(cluster: Reads, spec: JobSpec) -> Iterable[Problem]:
    """Without its class no pod is taken, and of executors only Spark's log would say so."""
    problems = []
    for role, template in (
        ("driver", spec.driver.pod_template),
        ("executor", spec.executor.pod_template),
    ):
        name = mapping(template.get("spec")).get("priorityClassName")
        if not name:
            continue
        try:
            found = await cluster.get("PriorityClass", "", str(name))
        except Forbidden:
            continue
        if found is None:
            field = f"spec.{role}.podTemplate.spec.priorityClassName"
            reason = f"names a PriorityClass that is not there: {name}"
            fix = "name one that `kubectl get priorityclasses` shows, or create it"
            problems.append(Problem(field, reason, fix))
    return problems


async def _credentials(cluster: Reads, namespace: str, spec: JobSpec) -> Iterable[Problem]:
    reference = spec.state.credentials_secret_ref
    if reference is None:
        return ()

    def lacks(data: Mapping[str, Any]) -> list[str]:
        return [key for key in _KEYS if key not in data]

    where = ("spec.state.credentialsSecretRef.name", namespace, reference.name)
    return await _secret(cluster, *where, lacks, "add what is missing to the Secret")


async def _certificate(cluster: Reads, namespace: str, spec: JobSpec) -> Iterable[Problem]:
    """Whether it is there; what it says is judged by the driver, which has to show it."""
    if not spec.tls_secret:
        return ()

    def lacks(data: Mapping[str, Any]) -> list[str]:
        return [key for key in TLS_KEYS if not data.get(key)]

    where = ("spec.security.tls.secretName", namespace, spec.tls_secret)
    fix = "take an issuer that gives its ca.crt, such as type CA"
    return await _secret(cluster, *where, lacks, fix)


async def _secret(
    cluster: Reads,
    field: str,
    namespace: str,
    name: str,
    lacks: Callable[[Mapping[str, Any]], list[str]],
    fix: str,
) -> Iterable[Problem]:
    """What is wrong with a Secret that a field names; nothing where it may not be read."""
    try:
        found = await cluster.get("Secret", namespace, name)
    except Forbidden:
        return ()
    if found is None:
        reason = f"names a Secret that is not there: {name}"
        return (Problem(field, reason, f"create it in namespace {namespace}"),)
    missing = lacks(found.get("data") or {})
    if missing:
        reason = f"names a Secret without {' and '.join(missing)}: {name}"
        return (Problem(field, reason, fix),)
    return ()


async def _snapshot(cluster: Reads, meta: Meta, spec: JobSpec) -> Iterable[Problem]:
    name = spec.restore.snapshot_name
    if spec.restore.mode != "Snapshot" or not name:
        return ()
    field = "spec.restore.snapshotName"
    try:
        found = await cluster.get("StatefulSparkSnapshot", meta.namespace, name)
    except Forbidden:
        return ()
    if found is None:
        reason = f"names a StatefulSparkSnapshot that is not there: {name}"
        return (Problem(field, reason, "name one that `kubectl get ssnap` shows for this job"),)
    job = job_name_of(found.get("spec") or {})
    if job != meta.name:
        reason = f"names a snapshot of another job: {name} is of {job}"
        return (Problem(field, reason, "use restore.mode Path with the snapshot's path"),)
    return ()
