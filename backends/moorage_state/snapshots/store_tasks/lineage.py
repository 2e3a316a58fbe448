"""Giving a lineage up, and deleting all of it: only by its owner, and only under a claimed fence.

The caller knows that no driver is alive. Should it be wrong, the claim ends that driver: it is then
not deleted under its feet, but stops writing first.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from moorage_state.snapshots.entries import Entry, Owner, Released, Retire
from moorage_state.snapshots.heartbeat import LOCK_KEY
from moorage_state.snapshots.history import current_owner, is_released, retained
from moorage_state.snapshots.layout import LOG_PREFIX, is_state_key, log_seq
from moorage_state.snapshots.log import LineageLog, LogWriter
from moorage_state.snapshots.store_tasks.places import Opener, opened
from moorage_state.stores import ObjectStore

__all__ = ["delete_lineage", "release"]

_DELETES_PER_LOOK = 100


def release(open_: Opener, checkpoint_dir: str, owner: Owner, holder: str) -> dict[str, Any]:
    """Write in the lineage's log that its owner gives it up; once.

    Returns:
        `released`, whether it is; and `left`, why not: missing (there is no lineage), foreign (it
        is another job's, or another object's).

    Raises:
        Fenced: a driver claimed the lineage meanwhile.
        UserError, CorruptState, StoreUnavailable: see `LogWriter.claim`.
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
    """Delete all objects of the lineage in a checkpoint directory, the log last.

    All checkpoints are retired first, and the log goes from its end: a deletion that was cut off is
    never taken for a new lineage, nor for one that can be restored, and can be taken up again.
    What is not the lineage's stays.

    Returns:
        `deleted`, the number of objects; and `left`, why nothing was: missing, foreign.

    Raises: as `release`.
    """
    store = opened(open_, checkpoint_dir)
    entries = _entries(store)
    if store is None or not entries:
        return {"deleted": 0, "left": "missing"}
    if not _is_owner(entries, owner):
        return {"deleted": 0, "left": "foreign"}
    writer = LogWriter.claim(store, owner, holder)
    for checkpoint in reversed(retained(writer.entries)):
        writer.append(Retire(writer.fence, checkpoint.checkpoint_id))
    deleted = 0
    for key in _keys(store, writer.lineage):
        if deleted % _DELETES_PER_LOOK == 0:
            writer.refresh()
        _delete(store, key)
        deleted += 1
    writer.refresh()
    for key in _log_keys(store):
        _delete(store, key)
        deleted += 1
    return {"deleted": deleted, "left": ""}


def _entries(store: ObjectStore | None) -> list[Entry]:
    return [entry for _, entry in LineageLog.open(store).read()] if store is not None else []


def _is_owner(entries: Sequence[Entry], owner: Owner) -> bool:
    present = current_owner(entries)
    return present is not None and present.same_job(owner) and present.uid == owner.uid


def _keys(store: ObjectStore, lineage: str) -> Iterator[str]:
    """What checkpoints, sinks and locks of the lineage put there, listed before anything goes."""
    sinks = re.compile(rf"sinks/[^/]+/(staged|handed)/{re.escape(lineage)}/.+")
    for prefix in ("chk-", "shared/", "sinks/"):
        found = [info.key for info in store.list(prefix)]
        yield from (key for key in found if is_state_key(key) or sinks.fullmatch(key))
    yield LOCK_KEY


def _log_keys(store: ObjectStore) -> list[str]:
    """The entries, newest first: a number missing below a higher one would be damage."""
    found = [info.key for info in store.list(LOG_PREFIX)]
    return sorted((key for key in found if log_seq(key) is not None), reverse=True)


def _delete(store: ObjectStore, key: str) -> None:
    store.delete(key)
