"""Which Spark wrote a restore point, and whether this one goes on from it.

A checkpoint is what one version left for itself: the backend's own files beside Spark's own logs.
What carries a job from one minor version of Spark to another is a canonical savepoint, which
everything reads. Called with each restore; it never looks at files.
"""

import pyspark

from moorage.driver.refusals import RestorePointIncompatible
from moorage_state.snapshots import Manifest

__all__ = ["SPARK_VERSION", "check_spark"]

SPARK_VERSION = "spark_version"
"""In a manifest's extra: the Spark that wrote it."""


def check_spark(manifest: Manifest, version: str = pyspark.__version__) -> None:
    """Refuse native files that another minor version of Spark wrote.

    A manifest that names no version is taken: nothing is known against it.

    Args:
        manifest: of the restore point.
        version: of the Spark that is to go on.

    Raises:
        RestorePointIncompatible: naming both versions and what to do.
    """
    wrote = str(manifest.extra.get(SPARK_VERSION, ""))
    handles = [one for state in manifest.operators.values() for one in state.subtasks]
    native = any(handle.format == "native" for handle in handles)
    if not native or not wrote or _minor(wrote) == _minor(version):
        return
    raise RestorePointIncompatible(
        f"the restore point has native files of another Spark: checkpoint={manifest.checkpoint_id} "
        f"written_by={wrote} this={version}; take a canonical savepoint with the version that "
        "wrote it (an upgrade with upgrade.mode Savepoint does), and restore from that"
    )


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
