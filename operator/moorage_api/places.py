"""What a job needs of the place it runs in: rules of a cluster, limits of one machine.

Pure functions over a valid job. The models themselves allow what either place allows, so that one
manifest serves `moorage run` on a laptop and `kubectl apply`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from moorage_api.job import StatefulSparkJob
from moorage_api.model import Model
from moorage_api.problems import Problem

__all__ = ["LocalRunReport", "cluster_problems", "local_run_report"]


@dataclass(frozen=True, slots=True)
class LocalRunReport:
    """What becomes of a manifest on one machine.

    Attributes:
        ignored: fields that were set and have no meaning without a cluster; the run goes ahead.
        unsupported: fields that ask for what this release cannot do; the run must not start.
    """

    ignored: tuple[str, ...]
    unsupported: tuple[Problem, ...]


# Set in a manifest, these change nothing on one machine.
_CLUSTER_ONLY = (
    "spec.image",
    "spec.image_pull_policy",
    "spec.desired_state",
    "spec.scaling.mode",
    "spec.scaling.repartition",
    "spec.driver.cores",
    "spec.driver.cpu_request",
    "spec.driver.pod_template",
    "spec.executor.instances",
    "spec.executor.cores",
    "spec.executor.cpu_request",
    "spec.executor.memory",
    "spec.executor.pod_template",
    "spec.executor.sidecar",
    "spec.service_account_name",
    "spec.state.credentials_secret_ref",
    "spec.state.local",
    "spec.savepoint.retain",
    "spec.savepoint.timeout",
    "spec.upgrade",
    "spec.failure_policy",
    "spec.deletion",
    "spec.ttl_after_finished",
    "spec.observability",
)

_Rule = tuple[str, Callable[[StatefulSparkJob], bool], str, str]

_NOT_YET: tuple[_Rule, ...] = (
    (
        "spec.state.backend",
        lambda job: job.spec.state.backend != "rocksdb",
        "is a backend that this release does not have",
        "use rocksdb",
    ),
    (
        "spec.state.changelog",
        lambda job: job.spec.state.changelog,
        "is true, and this release has no changelog",
        "leave it out: a failure then rewinds to the last checkpoint",
    ),
    (
        "spec.state.options",
        lambda job: bool(job.spec.state.options),
        "tunes the backend, which this release cannot",
        "leave it out",
    ),
    (
        "spec.scaling.keyHash",
        lambda job: job.spec.scaling.key_hash != "spark-xxhash64",
        "is a hash that this release does not have",
        "use spark-xxhash64",
    ),
    (
        "spec.scaling.autoscaler.enabled",
        lambda job: job.spec.scaling.autoscaler.enabled,
        "is true, and this release has no autoscaler",
        "leave it out",
    ),
    (
        "spec.checkpoint.cron",
        lambda job: job.spec.checkpoint.cron is not None,
        "is set, and this release takes checkpoints by interval only",
        "use checkpoint.interval",
    ),
    (
        "spec.savepoint.schedule",
        lambda job: job.spec.savepoint.schedule is not None,
        "is set, and a run on one machine takes savepoints only when it is asked",
        "leave it out, and use: moorage savepoint",
    ),
    (
        "spec.restore.mode",
        lambda job: job.spec.restore.mode == "Snapshot",
        "is Snapshot, which names an object of a cluster",
        "use mode Path",
    ),
)


def local_run_report(job: StatefulSparkJob) -> LocalRunReport:
    """Say which fields one machine ignores and which ask for what this release cannot do."""
    ignored = [_camel(path) for path in _CLUSTER_ONLY if _is_set(job, path.split("."))]
    ignored += _environment_of_cluster(job)
    unsupported = [Problem(f, reason, fix) for f, applies, reason, fix in _NOT_YET if applies(job)]
    return LocalRunReport(tuple(ignored), tuple(unsupported))


def _environment_of_cluster(job: StatefulSparkJob) -> Iterator[str]:
    for index, variable in enumerate(job.spec.application.env):
        if variable.value_from is not None:
            yield f"spec.application.env[{index}].valueFrom"


def _is_set(model: Model, path: list[str]) -> bool:
    """Whether the manifest itself gives the field, whatever its value."""
    name, rest = path[0], path[1:]
    if name not in model.model_fields_set:
        return False
    return not rest or _is_set(getattr(model, name), rest)


def _camel(path: str) -> str:
    model: object = StatefulSparkJob
    names = []
    for name in path.split("."):
        field = model.model_fields[name]  # type: ignore[attr-defined]
        names.append(field.alias or name)
        model = field.annotation
    return ".".join(names)


def cluster_problems(job: StatefulSparkJob) -> list[Problem]:
    """Return what a cluster needs and this manifest lacks."""
    spec, problems = job.spec, []
    if spec.image is None:
        problems.append(Problem("spec.image", "is missing", "name the image with the job file"))
    for field, path in _code_paths(job):
        if not path.startswith("local://"):
            reason = "is relative to the manifest, which a cluster does not have"
            problems.append(Problem(field, reason, "write local:///path/in/the/image"))
    for field, url in (
        ("spec.state.checkpointDir", spec.state.checkpoint_dir),
        ("spec.state.savepointDir", spec.state.savepoint_dir or ""),
    ):
        if url.startswith("memory://"):
            problems.append(Problem(field, "is in the memory of one process", "use s3://"))
        if url.startswith("file://."):
            reason = "is relative to the manifest, which a cluster does not have"
            problems.append(Problem(field, reason, "use s3:// or file:///absolute/path"))
    if spec.upgrade.mode == "Savepoint" and spec.state.savepoint_dir is None:
        fix = "add it, or choose upgrade.mode LastCheckpoint"
        reason = "is missing, and upgrade.mode is Savepoint"
        problems.append(Problem("spec.state.savepointDir", reason, fix))
    return problems


def _code_paths(job: StatefulSparkJob) -> Iterator[tuple[str, str]]:
    yield "spec.application.mainFile", job.spec.application.main_file
    for index, path in enumerate(job.spec.application.py_files):
        yield f"spec.application.pyFiles[{index}]", path
