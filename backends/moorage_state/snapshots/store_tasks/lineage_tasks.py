"""What is done to a whole lineage: it is inspected, released or deleted.

Inspecting only reads. Giving up and deleting are its owner's, and happen under a claimed fence: the
caller knows that no driver is alive, and should it be wrong, the claim ends that driver. It is then
not deleted under its feet, but stops writing first.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from moorage_state.errors import CorruptState, UserError
from moorage_state.snapshots.entries import (
    Checkpoint,
    Compacted,
    Entry,
    Owner,
    Record,
    Released,
    Retire,
    Run,
    Savepoint,
)
from moorage_state.snapshots.history import (
    RestorePoint,
    current_fence,
    current_owner,
    is_released,
    restore_points,
    retained,
)
from moorage_state.snapshots.lineage_log import LineageLog
from moorage_state.snapshots.log import LogWriter
from moorage_state.snapshots.manifest import decode_manifest, manifest_digest
from moorage_state.snapshots.object_keys import (
    LOG_PREFIX,
    VIEW_KEY,
    is_moved_key,
    is_state_key,
    log_key,
    log_seq,
)
from moorage_state.snapshots.run_lock import LOCK_KEY
from moorage_state.snapshots.savepoints import MANIFEST_KEY
from moorage_state.stores import ObjectStore, delete_all
from moorage_state.stores.addresses import Opener, bytes_of, child, opened

_MOST_SAVEPOINTS = 8
"""Manifests are read of so many; a decision asks for the one that was announced last."""

_log = logging.getLogger(__name__)

_DELETES_PER_LOOK = 1000
"""What goes in one request."""

_ONE_BY_ONE = 100
"""So many entries of a log may go in order, each in a request of its own."""


class NoRestorePoint(UserError):
    """There was state and nothing of it may be restored any more."""

    code = "restore_point_retired"


def inspect(open_: Opener, checkpoint_dir: str, now: datetime) -> dict[str, Any]:
    """Return what the checkpoint directory says, newest first in every list.

    Of the savepoints those are told that the newest writer announced and that are complete.

    Raises `NoRestorePoint` where every checkpoint was retired, or the chosen one: not an empty
    lineage; CorruptState, UserError, StoreUnavailable where it cannot be read.
    """
    store = opened(open_, checkpoint_dir)
    records = LineageLog.open(store).view().records if store is not None else ()
    if store is None or not records:
        return {"exists": False, "read_at": now.isoformat()}
    entries = [record.entry for record in records]
    owner, fence = current_owner(entries), current_fence(entries)
    return {
        "exists": True,
        "lineage": _lineage(entries),
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


def release(open_: Opener, checkpoint_dir: str, owner: Owner, holder: str) -> dict[str, Any]:
    """Write in the lineage's log that its owner gives it up; once.

    Returns `released`, whether it is; and `left`, why not: missing (there is no lineage), foreign
    (it is another job's, or another object's). Raises as `LogWriter.claim`, and Fenced where a
    driver claimed the lineage meanwhile.
    """
    store = opened(open_, checkpoint_dir)
    entries = _entries(store)
    if store is None or not entries:
        return {"released": False, "left": "missing"}
    if not _is_owner(entries, owner):
        return {"released": False, "left": "foreign"}
    if not is_released(entries):
        writer = LogWriter.claim(store, owner, holder)
        writer.append(Released(writer.fence, f"given up by the operator: store_task={holder}"))
    return {"released": True, "left": ""}


def delete_lineage(open_: Opener, checkpoint_dir: str, owner: Owner, holder: str) -> dict[str, Any]:
    """Delete all objects of the lineage in a checkpoint directory; what is not the lineage's stays.

    Returns `deleted`, the number of objects; and `left`, why nothing was: missing, foreign. Raises
    as `release`.
    """
    store = opened(open_, checkpoint_dir)
    last = _last_of_deleted(store)
    entries = [r.entry for r in last.entry.records] if last else _entries(store)
    if store is None or not entries:
        return {"deleted": 0, "left": "missing"}
    if not _is_owner(entries, owner):
        return {"deleted": 0, "left": "foreign"}
    # All are retired first, and the log goes last and from its end: a deletion that was cut off is
    # never taken for a new lineage, nor for one that can be restored, and can be taken up again.
    look = _retire_all(store, owner, holder) if last is None else _look_at_nothing
    look()
    # The copy of the log would tell of what is not there; the lock goes when all of that is gone.
    store.delete(VIEW_KEY)
    deleted = _delete_batches(store, _keys(store, _lineage(entries)), look)
    store.delete(LOCK_KEY)
    look()
    first = last.seq if last else max(LineageLog.open(store).begins(), 1)
    deleted += _delete_batches(store, _before(store, first), look)
    log_keys = _log_keys(store, first)
    for key in log_keys:
        store.delete(key)
    return {"deleted": deleted + 2 + len(log_keys), "left": ""}


def _delete_batches(store: ObjectStore, keys: Sequence[str], look: Callable[[], None]) -> int:
    """Delete what may go in any order; returns how many. `look` is called before each request."""
    for start in range(0, len(keys), _DELETES_PER_LOOK):
        look()
        delete_all(store, keys[start : start + _DELETES_PER_LOOK])
    return len(keys)


def _retire_all(store: ObjectStore, owner: Owner, holder: str) -> Callable[[], None]:
    """Claim the lineage and retire its checkpoints; returns what tells if somebody else claims."""
    writer = LogWriter.claim(store, owner, holder)
    for checkpoint in reversed(retained(writer.entries)):
        writer.append(Retire(writer.fence, checkpoint.checkpoint_id))
    # What lies before the beginning of a log may go in any order, and so in few requests.
    writer.compact(_ONE_BY_ONE)
    return writer.refresh


def _look_at_nothing() -> None:
    """Nobody can claim a lineage whose log has lost a mark."""


def _lineage(entries: Sequence[Entry]) -> str:
    owner = current_owner(entries)
    return owner.lineage if owner else ""


def _entries(store: ObjectStore | None) -> list[Entry]:
    if store is None:
        return []
    return [record.entry for record in LineageLog.open(store).view().records]


def _is_owner(entries: Sequence[Entry], owner: Owner) -> bool:
    present = current_owner(entries)
    return present is not None and present.same_job(owner) and present.uid == owner.uid


def _keys(store: ObjectStore, lineage: str) -> list[str]:
    """What checkpoints and sinks of the lineage put there."""
    sinks = re.compile(rf"sinks/[^/]+/(staged|handed)/{re.escape(lineage)}/.+")
    found = (info.key for prefix in ("chk-", "shared/", "sinks/") for info in store.list(prefix))
    return [key for key in found if is_state_key(key) or sinks.fullmatch(key)]


def _before(store: ObjectStore, first: int) -> list[str]:
    """What lies before the beginning of the log, which is nobody's."""
    found = ((info.key, log_seq(info.key)) for info in store.list(LOG_PREFIX))
    return [key for key, seq in found if seq is not None and seq < first]


def _log_keys(store: ObjectStore, first: int) -> list[str]:
    """The log, in the order in which it goes; it begins with entry number `first`.

    The entries, newest first: a number missing below a higher one would be damage. The first one,
    which names the owner, is the last of all: while it lies there without the marks that lead to
    it, nobody can claim the directory.
    """
    found = [info.key for info in store.list(LOG_PREFIX)]
    numbers = sorted((seq for seq in map(log_seq, found) if seq is not None), reverse=True)
    after = [log_key(seq) for seq in numbers if seq > first]
    return [*after, *filter(is_moved_key, found), log_key(first)]


def _last_of_deleted(store: ObjectStore | None) -> "_Last | None":
    """What is left of a log whose deletion was cut off among the marks: its first entry."""
    if store is None:
        return None
    found = [info.key for info in store.list(LOG_PREFIX) if not is_moved_key(info.key)]
    seq = log_seq(found[0]) if len(found) == 1 else None
    log = LineageLog.open(store)
    if seq is None or log.begins() == seq:
        return None
    record = log.read_one(seq)
    if record is None or not isinstance(record.entry, Compacted):
        return None
    return _Last(seq, record.entry)


class _Last(NamedTuple):
    seq: int
    entry: Compacted
