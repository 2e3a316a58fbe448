"""What a manifest may ask for and this release cannot do, wherever it runs."""

from collections.abc import Callable, Iterator

from moorage_api.job import StatefulSparkJob
from moorage_api.problems import Problem

__all__ = ["unsupported_anywhere"]

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
)


def unsupported_anywhere(job: StatefulSparkJob) -> Iterator[Problem]:
    """Yield what this release cannot do; the run must not start."""
    for field, applies, reason, fix in _NOT_YET:
        if applies(job):
            yield Problem(field, reason, fix)
