"""What becomes of a job on one machine; what a cluster asks of it is in `cluster`.

Pure functions over a valid job. The models themselves allow what either place allows, so that one
manifest serves `moorage run` on a laptop and `kubectl apply`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from moorage_api.job import StatefulSparkJob
from moorage_api.model import Model
from moorage_api.problems import Problem
from moorage_api.unsupported import unsupported_anywhere

__all__ = ["LocalRunReport", "local_run_report"]


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
    "spec.deletion",
    "spec.ttl_after_finished",
    "spec.observability",
)

_Rule = tuple[str, Callable[[StatefulSparkJob], bool], str, str]

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
