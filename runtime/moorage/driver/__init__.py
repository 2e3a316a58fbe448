"""The driver: runs one job from its manifest to its end, on whatever Spark it is given.

It owns the fence, the query, the epoch loop and the checkpoints. The command line and, on a
cluster, the driver pod's entry point call it. It must not know terminals, exit codes or Kubernetes.
`run_job` is imported when it is first asked for: it brings Spark.
"""

from typing import TYPE_CHECKING, Any

from moorage.driver.refusals import StoreRefused as StoreRefused

if TYPE_CHECKING:
    from moorage.driver.runner import run_job as run_job


def __getattr__(name: str) -> Any:
    if name == "run_job":
        from moorage.driver.runner import run_job

        return run_job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
