"""What a manifest asks for in vain: of this release, and of a run on one machine.

Pure functions over a valid job. The models themselves allow what either place allows, so that one
manifest serves `moorage run` on a laptop and `kubectl apply`; what a cluster asks of it is in
`cluster`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from moorage_api.job import JobSpec, StatefulSparkJob
from moorage_api.model import Model
from moorage_api.problems import Problem

_Rule = tuple[str, Callable[[StatefulSparkJob], bool], str, str]

_NOT_YET: tuple[_Rule, ...] = (
    (
        "spec.state.changelog",
        lambda job: job.spec.state.has_changelog and job.spec.state.backend == "batch",
        "is true, and spec.state.backend is batch, which keeps nothing",
        "leave it out, or use rocksdb",
    ),
    (
        "spec.state.changelog",
        lambda job: job.spec.state.has_changelog and job.spec.state.keeps_checkpoints_with_driver,
        "is true, and checkpoints are kept with the driver (state.checkpoint-storage)",
        "leave it out, or set the option state.checkpoint-storage to filesystem",
    ),
    (
        "spec.sinks.publishWith",
        lambda job: job.spec.sinks.publish_with == "commit" and not job.spec.state.has_changelog,
        "is commit, and each checkpoint would be a copy of all state",
        "set spec.state.changelog to true, or leave it out",
    ),
    (
        "spec.bounded",
        lambda job: job.spec.state.backend == "batch" and not job.spec.bounded,
        "is false, and spec.state.backend is batch, which keeps a key's state until its last row",
        "set it to true, or use rocksdb",
    ),
    (
        "spec.scaling.repartition",
        lambda job: job.spec.scaling.repartition == "Offline",
        "is Offline, and this release does not rewrite state for another maxParallelism",
        "leave it out; moorage.state.write_savepoint makes a savepoint of any maxParallelism",
    ),
)


def unsupported_anywhere(job: StatefulSparkJob) -> Iterator[Problem]:
    """Yield what this release cannot do; the run must not start."""
    for field, applies, reason, fix in _NOT_YET:
        if applies(job):
            yield Problem(field, reason, fix)


def without_effect(spec: JobSpec) -> Iterator[Problem]:
    """Yield what the spec sets and this release passes over; the job runs, and is told of it.

    What was a default once stands in objects that were stored then, whoever wrote them: leaving it
    out of a manifest does not take it away.
    """
    scaling = spec.scaling
    if scaling.autoscaler.enabled and not scaling.autoscaler.dry_run:
        reason = "is set, and is for others than the autoscaler, which decides"
        if scaling.floor > 1:
            yield Problem("spec.scaling.floor", reason, "use autoscaler.min")
        if scaling.cooldown.seconds:
            fix = "use autoscaler.stabilizationInterval"
            yield Problem("spec.scaling.cooldown", reason, fix)
    health = spec.failure_policy.health
    cures = (health.actions.no_progress, health.actions.no_checkpoint)
    # Restart was its default, stands in all objects of then, and is what happens.
    if health.action == "Alert" and cures == ("Restart", "Restart"):
        reason = "is Alert, and says nothing any more: a job that gets nowhere is restarted"
        fix = "write actions: {noProgress: Alert, noCheckpoint: Alert} beside it, and leave it out"
        yield Problem("spec.failurePolicy.health.action", reason, fix)
    ui = spec.observability.ui
    if not ui.ingress_template and (ui.class_name or ui.annotations or ui.labels or ui.tls):
        reason = "says what the Ingress is to be like, and no ingressTemplate asks for one"
        yield Problem("spec.observability.ui", reason, "set ingressTemplate, or leave it out")


@dataclass(frozen=True, slots=True)
class LocalRunReport:
    """What becomes of a manifest on one machine."""

    # Fields that were set and have no meaning without a cluster; the run goes ahead
    ignored: tuple[str, ...]
    # Fields that ask for what this release cannot do; the run must not start
    unsupported: tuple[Problem, ...]


# Set in a manifest, these change nothing on one machine.
_CLUSTER_ONLY = (
    "spec.image",
    "spec.image_pull_policy",
    "spec.profile",
    "spec.desired_state",
    "spec.scaling.autoscaler",
    "spec.scaling.floor",
    "spec.scaling.cooldown",
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
    "spec.security",
    "spec.state.credentials_secret_ref",
    "spec.state.local",
    "spec.savepoint.retain",
    "spec.savepoint.timeout",
    "spec.upgrade",
    "spec.failure_policy",
    "spec.operator",
    "spec.deletion",
    "spec.ttl_after_finished",
    "spec.observability",
)


_NOT_HERE: tuple[_Rule, ...] = (
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
    here = [Problem(f, reason, fix) for f, applies, reason, fix in _NOT_HERE if applies(job)]
    return LocalRunReport(tuple(ignored), (*unsupported_anywhere(job), *here))


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
    model: Any = StatefulSparkJob
    names = []
    for name in path.split("."):
        field = model.model_fields[name]
        names.append(field.alias or name)
        model = field.annotation
    return ".".join(names)
