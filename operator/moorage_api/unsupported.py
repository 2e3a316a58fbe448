"""What a manifest may ask for and this release cannot do, wherever it runs."""

from collections.abc import Callable, Iterator

from moorage_api.compute import Autoscaler
from moorage_api.job import JobSpec, StatefulSparkJob
from moorage_api.lifecycle import Rollback
from moorage_api.problems import Problem

__all__ = ["unsupported_anywhere", "without_effect"]

_Rule = tuple[str, Callable[[StatefulSparkJob], bool], str, str]

_NOT_YET: tuple[_Rule, ...] = (
    (
        "spec.state.backend",
        lambda job: job.spec.state.backend == "forst",
        "is forst, whose files lie in a store and which this release does not have",
        "use rocksdb, whose checkpoints lie there",
    ),
    (
        "spec.state.changelog",
        lambda job: job.spec.state.changelog,
        "is true, and this release has no changelog",
        "leave it out: a failure then rewinds to the last checkpoint",
    ),
    (
        "spec.bounded",
        lambda job: job.spec.state.backend == "batch" and not job.spec.bounded,
        "is false, and spec.state.backend is batch, which keeps a key's state until its last row",
        "set it to true, or use rocksdb",
    ),
    (
        "spec.scaling.autoscaler.enabled",
        lambda job: job.spec.scaling.autoscaler.enabled,
        "is true, and this release has no autoscaler",
        "leave it out",
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
    rollback = spec.upgrade.rollback
    if spec.upgrade.preflight:
        reason = "is true, and this release tries nothing before it stops the old version"
        yield Problem("spec.upgrade.preflight", reason, "set it to false")
    if rollback.enabled:
        reason = (
            "is true, and this release does not roll back: a new version that does not get ready "
            "is tried again until the spec is changed"
        )
        yield Problem("spec.upgrade.rollback.enabled", reason, "set it to false")
    if rollback.readiness_timeout != Rollback().readiness_timeout:
        reason = f"is {rollback.readiness_timeout}, and this release does not roll back"
        yield Problem("spec.upgrade.rollback.readinessTimeout", reason, "leave it out")
    scaler = spec.scaling.autoscaler
    if scaler != Autoscaler() and not scaler.enabled:
        reason = "is set, and this release has no autoscaler"
        yield Problem("spec.scaling.autoscaler", reason, "leave it out")
