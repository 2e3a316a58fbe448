"""Everything that a job's manifest can get wrong on a cluster and that no schema can see.

Pure functions over a valid job: what a cluster needs, what pods of ours cannot be merged with, what
is too small to start. The operator calls it at every new generation, `moorage` before anything is
sent. Facts about other objects (a missing Secret, another job's directory) are the operator's.
"""

import re
from collections.abc import Iterator

from moorage_api.ingress import ingress_problems
from moorage_api.job import StatefulSparkJob
from moorage_api.names import CLUSTER_PY_FILE
from moorage_api.problems import Problem, field_name
from moorage_api.quantities import Quantity
from moorage_api.reserved import (
    CLUSTER_SPARK_CONF,
    CLUSTER_SPARK_PREFIXES,
    CREDENTIAL_ENV,
    OWNED_ENV,
    OWNED_ENV_PREFIXES,
)
from moorage_api.sizing import least_driver_memory, least_executor_memory, least_sidecar_memory
from moorage_api.templates import template_problems
from moorage_api.unsupported import unsupported_anywhere

# A HostPath that is one of these, or lies in one, would let a job write into its node.
_SYSTEM_DIRECTORIES = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib/containerd",
    "/var/lib/etcd",
    "/var/lib/kubelet",
    "/var/run",
)


_LOCAL_DIR = "state.backend.rocksdb.localdir"


def cluster_problems(job: StatefulSparkJob) -> list[Problem]:
    """Return what a cluster needs and this manifest lacks or has wrong, in the order of fields."""
    checks = (
        _code,
        _environment,
        _spark_conf,
        _memory,
        _directories,
        _local_volume,
        _backend,
        _status_page,
        template_problems,
        unsupported_anywhere,
    )
    return [problem for check in checks for problem in check(job)]


def env_problem(field: str, name: str, *, credentials: bool) -> Problem | None:
    """Say why a variable of this name cannot be set.

    Args:
        credentials: whether state.credentialsSecretRef is given.
    """
    if name in OWNED_ENV or name.startswith(OWNED_ENV_PREFIXES):
        reason = f"{name} is set by Moorage or Spark itself"
        return Problem(field, reason, "choose another name, or leave it out")
    if credentials and name in CREDENTIAL_ENV:
        reason = f"{name} is given beside state.credentialsSecretRef, which sets it"
        return Problem(field, reason, "keep one of them")
    return None


def _backend(job: StatefulSparkJob) -> Iterator[Problem]:
    state = job.spec.state
    if _LOCAL_DIR in state.options:
        field = field_name(("spec", "state", "options", _LOCAL_DIR))
        reason = "has no meaning on a cluster, where working state lies on the volume state.local"
        yield Problem(field, reason, "leave it out; for HostPath name the path in state.local")


def _status_page(job: StatefulSparkJob) -> Iterator[Problem]:
    ui, meta = job.spec.observability.ui, job.metadata
    yield from ingress_problems(ui, meta.namespace or "default", meta.name or "job")


def _code(job: StatefulSparkJob) -> Iterator[Problem]:
    if job.spec.image is None:
        yield Problem("spec.image", "is missing", "name the image with the job file")
    for field, path in _code_paths(job):
        if not re.fullmatch(CLUSTER_PY_FILE, path):
            reason = "is relative to the manifest, which a cluster does not have"
            yield Problem(field, reason, "write local:///path/in/the/image")


def _code_paths(job: StatefulSparkJob) -> Iterator[tuple[str, str]]:
    yield "spec.application.mainFile", job.spec.application.main_file
    for index, path in enumerate(job.spec.application.py_files):
        yield f"spec.application.pyFiles[{index}]", path


def _environment(job: StatefulSparkJob) -> Iterator[Problem]:
    credentials = job.spec.state.credentials_secret_ref is not None
    for index, variable in enumerate(job.spec.application.env):
        field = f"spec.application.env[{index}]"
        problem = env_problem(f"{field}.name", variable.name, credentials=credentials)
        if problem:
            yield problem
        if variable.value_from is not None and not _is_source(variable.value_from):
            known = "secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef"
            yield Problem(f"{field}.valueFrom", "names no source", f"write one of {known}")


def _is_source(value_from: object) -> bool:
    known = {"secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef", "fileKeyRef"}
    return isinstance(value_from, dict) and len(value_from) == 1 and set(value_from) <= known


def _spark_conf(job: StatefulSparkJob) -> Iterator[Problem]:
    for key in sorted(job.spec.spark_conf):
        fix = CLUSTER_SPARK_CONF.get(key)
        for prefix, advice in CLUSTER_SPARK_PREFIXES.items():
            fix = advice if key.startswith(prefix) else fix
        if fix:
            field = field_name(("spec", "sparkConf", key))
            yield Problem(field, "is not the job's to set on a cluster", fix)


def _memory(job: StatefulSparkJob) -> Iterator[Problem]:
    driver, executor = job.spec.driver, job.spec.executor
    if driver.memory < least_driver_memory():
        yield _too_small("spec.driver.memory", driver.memory, least_driver_memory(), "a driver")
    whom = f"an executor with {executor.cores} cores"
    if executor.memory < least_executor_memory(executor):
        least = least_executor_memory(executor)
        yield _too_small("spec.executor.memory", executor.memory, least, whom)
    resources = executor.sidecar.resources
    for name in ("limits", "requests"):
        given = getattr(resources, name).get("memory")
        if given is not None and given < least_sidecar_memory(executor):
            field = f"spec.executor.sidecar.resources.{name}.memory"
            servers = f"{executor.cores} state servers, one for each core"
            yield _too_small(field, given, least_sidecar_memory(executor), servers)
            break


def _too_small(field: str, given: Quantity, least: Quantity, whom: str) -> Problem:
    return Problem(field, f"{given} is too small for {whom}", f"write {least} or more")


def _directories(job: StatefulSparkJob) -> Iterator[Problem]:
    state = job.spec.state
    for field, url in (
        ("spec.state.checkpointDir", state.checkpoint_dir),
        ("spec.state.savepointDir", state.savepoint_dir or ""),
    ):
        if url.startswith("memory://"):
            yield Problem(field, "is in the memory of one process", "use s3://")
        if url.startswith("file://."):
            reason = "is relative to the manifest, which a cluster does not have"
            yield Problem(field, reason, "use s3:// or file:///absolute/path")
    if job.spec.upgrade.mode == "Savepoint" and state.savepoint_dir is None:
        fix = "add it, or choose upgrade.mode LastCheckpoint"
        reason = "is missing, and upgrade.mode is Savepoint"
        yield Problem("spec.state.savepointDir", reason, fix)


def _local_volume(job: StatefulSparkJob) -> Iterator[Problem]:
    local = job.spec.state.local
    if local.type == "ReusedPVC" and not local.storage_class_name:
        # Spark makes no claim without one, and the pods would wait for it for ever.
        reason = "is missing, and type is ReusedPVC"
        yield Problem("spec.state.local.storageClassName", reason, "name a storage class")
    if local.type != "HostPath" or local.path is None:
        return
    steps = local.path.split("/")
    inside = [d for d in _SYSTEM_DIRECTORIES if f"{local.path}/".startswith(f"{d}/")]
    if ".." in steps or "." in steps or not any(steps):
        reason = f"{local.path} is not a plain directory"
        yield Problem("spec.state.local.path", reason, "write it without '.' and '..', below /")
    elif inside:
        reason = f"{local.path} belongs to the node itself ({inside[0]})"
        yield Problem("spec.state.local.path", reason, "use a directory or disk for jobs")
