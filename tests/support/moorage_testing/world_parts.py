"""The parts of worlds for decisions about jobs: specs, checkpoints, what a store shows."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from moorage_api import JobSpec
from moorage_api.driver import CheckpointSummary
from moorage_operator.world import LogPoint, StoreView
from moorage_testing.manifests import spec_data

__all__ = [
    "CHECKPOINTS",
    "CLUSTER",
    "SAVEPOINTS",
    "START",
    "UID",
    "checkpoint",
    "job_spec",
    "restore_point",
    "store_of",
]

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLUSTER = "test"
CHECKPOINTS = "s3://state/clicks"
SAVEPOINTS = "s3://savepoints/clicks"
UID = "0a1b2c3d-0000-4000-8000-000000000001"


def job_spec(**spec: Any) -> JobSpec:
    """A spec that is right; keyword arguments replace its parts."""
    return JobSpec.model_validate(spec_data(**{"checkpoint": {"interval": "60s"}, **spec}))


def checkpoint(number: int, at: datetime) -> CheckpointSummary:
    """A completed checkpoint."""
    return CheckpointSummary(
        id=number, path=f"{CHECKPOINTS}/chk-{number}", epoch=number * 10, completed_at=at
    )


def restore_point(number: int) -> LogPoint:
    """A completed checkpoint as the lineage's log names it."""
    return LogPoint(f"{CHECKPOINTS}/chk-{number}", number, number * 10, START)


def store_of(uid: str = UID, newest: int = 0, **changes: Any) -> StoreView:
    """A lineage of this object, with its newest checkpoint (none if 0)."""
    view = StoreView(
        exists=True,
        lineage="lineage-1",
        owner=(CLUSTER, "default", "clicks", uid),
        newest=restore_point(newest) if newest else None,
    )
    return replace(view, **changes)
