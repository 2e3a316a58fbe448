"""What came of a snapshot, as its status keeps it: from a driver's answer or an errand's. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moorage_api.driver import CheckpointInfo, SavepointInfo
from moorage_api.snapshot import SnapshotStatus
from moorage_operator.snapshots.step import changed

__all__ = ["of_checkpoint", "of_savepoint", "of_verified"]


def of_savepoint(status: SnapshotStatus, info: SavepointInfo, now: datetime) -> SnapshotStatus:
    """As a driver reports it."""
    return changed(
        status,
        path=info.path or status.path,
        manifest_digest=info.manifest_digest,
        epoch=info.epoch,
        checkpoint_id=info.checkpoint_id,
        max_parallelism=info.max_parallelism,
        spark_version=info.spark_version,
        size_bytes=info.size_bytes,
        completed_at=info.completed_at or now,
    )


def of_checkpoint(status: SnapshotStatus, info: CheckpointInfo) -> SnapshotStatus:
    """As a driver reports it."""
    return changed(
        status,
        path=info.path,
        epoch=info.epoch,
        checkpoint_id=info.id,
        size_bytes=info.size_bytes,
        completed_at=info.completed_at,
    )


def of_verified(status: SnapshotStatus, result: Mapping[str, Any], now: datetime) -> SnapshotStatus:
    """As an errand found it."""
    return changed(
        status,
        path=str(result.get("path") or status.path),
        manifest_digest=str(result.get("digest", "")),
        epoch=int(result.get("epoch", 0)),
        checkpoint_id=int(result.get("checkpoint_id", 0)),
        max_parallelism=int(result.get("max_parallelism", 0)),
        spark_version=str(result.get("spark_version", "")),
        size_bytes=int(result.get("size_bytes", 0)),
        completed_at=_time(result.get("completed_at")) or now,
    )


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else None
