"""What a lineage's log says to somebody who decides about its job. Reads only."""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from moorage_state.errors import CorruptState, UserError
from moorage_state.snapshots.entries import Checkpoint, Record, Run, Savepoint
from moorage_state.snapshots.history import (
    RestorePoint,
    current_fence,
    current_owner,
    is_released,
    restore_points,
)
from moorage_state.snapshots.log import LineageLog
from moorage_state.snapshots.manifest import decode_manifest, manifest_digest
from moorage_state.snapshots.savepoints import MANIFEST_KEY
from moorage_state.snapshots.store_tasks.places import Opener, bytes_of, opened
from moorage_state.stores.addresses import child

__all__ = ["NoRestorePoint", "inspect"]

_MOST_SAVEPOINTS = 8
"""Manifests are read of so many; a decision asks for the one that was announced last."""

_log = logging.getLogger(__name__)


class NoRestorePoint(UserError):
    """There was state and nothing of it may be restored any more."""

    code = "restore_point_retired"


def inspect(open_: Opener, checkpoint_dir: str, now: datetime) -> dict[str, Any]:
    """Return what the checkpoint directory says, newest first in every list.

    Of the savepoints those are told that the newest writer announced and that are complete.

    Raises:
        NoRestorePoint: every checkpoint was retired, or the chosen one: not an empty lineage.
        CorruptState, UserError, StoreUnavailable: it cannot be read.
    """
    store = opened(open_, checkpoint_dir)
    records = LineageLog.open(store).read_records() if store is not None else []
    if store is None or not records:
        return {"exists": False, "read_at": now.isoformat()}
    entries = [record.entry for record in records]
    owner, fence = current_owner(entries), current_fence(entries)
    return {
        "exists": True,
        "lineage": owner.lineage if owner else "",
        "owner": [owner.cluster, owner.namespace, owner.name, owner.uid] if owner else None,
        "released": is_released(entries),
        "fence": fence.fence if fence else 0,
        **_points(records, store.url),
        "order_ids": _order_ids(records),
        "savepoints": _savepoints(open_, records, fence.fence if fence else 0),
        "read_at": now.isoformat(),
    }


def _points(records: Sequence[Record], url: str) -> dict[str, Any]:
    """The restore point and the one before it, None where there is none."""
    try:
        points = restore_points([record.entry for record in records])
    except UserError as error:
        raise NoRestorePoint(str(error)) from error
    told = [_told_point(point, records, url) for point in points[:2]]
    return dict(zip(("newest", "previous"), [*told, None, None], strict=False))


def _told_point(point: RestorePoint, records: Sequence[Record], url: str) -> dict[str, Any]:
    if point.checkpoint is not None:
        return _checkpoint_point(point, point.checkpoint, url)
    for record in reversed(records):
        run = record.entry
        if isinstance(run, Run) and run.explicit and run.restored_from == point.path:
            return _point(point.path, run.restored_id, 0, record.at, "", explicit=True)
    raise NoRestorePoint(f"restore point is not in the log: path={point.path}")


def _checkpoint_point(point: RestorePoint, checkpoint: Checkpoint, url: str) -> dict[str, Any]:
    return _point(
        child(url, point.path),
        checkpoint.checkpoint_id,
        checkpoint.epoch,
        checkpoint.completed_at,
        checkpoint.manifest_digest,
        explicit=point.explicit,
    )


def _point(
    path: str, checkpoint_id: int, epoch: int, at: datetime, digest: str, *, explicit: bool
) -> dict[str, Any]:
    return {
        "path": path,
        "checkpoint_id": checkpoint_id,
        "epoch": epoch,
        "completed_at": at.isoformat(),
        "manifest_digest": digest,
        "explicit": explicit,
    }


def _order_ids(records: Sequence[Record]) -> list[str]:
    ids = [r.entry.order_id for r in reversed(records) if isinstance(r.entry, Run)]
    return list(dict.fromkeys(one for one in ids if one))


def _savepoints(open_: Opener, records: Sequence[Record], fence: int) -> dict[str, Any]:
    announced: dict[str, Savepoint] = {}
    for record in reversed(records):
        entry = record.entry
        if isinstance(entry, Savepoint) and entry.fence == fence:
            announced.setdefault(entry.url, entry)
    newest = list(announced.values())[:_MOST_SAVEPOINTS]
    return dict(_told(entry) for entry in _complete(open_, newest))


def _told(entry: Savepoint) -> tuple[str, dict[str, Any]]:
    point = _point(
        entry.url,
        entry.checkpoint_id,
        entry.epoch,
        entry.completed_at,
        entry.manifest_digest,
        explicit=False,
    )
    return entry.url, point


def _complete(open_: Opener, announced: Iterable[Savepoint]) -> Iterable[Savepoint]:
    """Those whose very manifest lies there; a store that does not answer ends the inspection."""
    for entry in announced:
        try:
            store = opened(open_, entry.url)
            data = bytes_of(store, MANIFEST_KEY) if store is not None else None
            if data is None or manifest_digest(data) != entry.manifest_digest:
                continue
            decode_manifest(data, f"{entry.url}/{MANIFEST_KEY}")
        except (UserError, CorruptState) as error:
            _log.info("announced savepoint cannot be used: path=%s: %s", entry.url, error)
            continue
        yield entry
