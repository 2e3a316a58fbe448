"""`snapshots gc`: what no retained checkpoint needs, and its deletion.

Decides nothing about what is garbage (`find_garbage` does), only whether it is safe to delete it
without being the lineage's writer.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage.offline.lookup import has_log
from moorage_state.errors import MoorageError, UserError
from moorage_state.snapshots import (
    AGE_FLOOR,
    Checkpoint,
    Entry,
    LineageLog,
    LockHolder,
    Retire,
    RunLock,
    acquire_lock,
    find_garbage,
    retained,
)
from moorage_state.snapshots.object_keys import checkpoint_id_in
from moorage_state.stores import LocalStore, ObjectInfo, ObjectStore, not_deleted

_DELETES_PER_LOOK = 100


@dataclass(frozen=True, slots=True)
class Garbage:
    """One object that may go; `age_seconds` by the store's time, `reason` for people."""

    key: str
    bytes: int
    modified: datetime
    age_seconds: int
    reason: str


@dataclass(frozen=True, slots=True)
class Collected:
    """What was found, and how many objects were deleted: 0 in a dry run."""

    path: str
    dry_run: bool
    age_seconds: int
    objects: Sequence[Garbage]
    bytes: int
    deleted: int


def collect(
    store: ObjectStore,
    now: datetime,
    *,
    age: timedelta = AGE_FLOOR,
    delete: bool = False,
    watching: Callable[[str], None] = lambda _text: None,
) -> Collected:
    """Find the garbage of a checkpoint directory and, with `delete`, delete it.

    Args:
        now: the time, for whoever finds the directory locked by this.
        age: nothing younger goes, by the store's own clock.
        watching: told what is waited for, where it takes a while to see whether a job runs.

    Raises:
        UserError: it is no checkpoint directory; a run holds its lock; `age` is too low for this
            store; or a manifest that exists is of a newer Moorage.
        CorruptState: a manifest that exists is damaged: what it needs is unknown, so nothing goes.
        StoreUnavailable: the store does not answer; what is left is found the next time.
    """
    if not has_log(store):
        raise UserError(f"not a checkpoint directory, it has no log: path={store.url}")
    if delete:
        _check_age(store, age)
    with _kept_out(store, now, watching) if delete else nullcontext():
        collector = _Collector(store, age)
        objects = collector.find()
        deleted = collector.delete(objects) if delete else 0
    total = sum(one.bytes for one in objects)
    seconds = int(age.total_seconds())
    return Collected(store.url, not delete, seconds, objects, total, deleted)


def _check_age(store: ObjectStore, age: timedelta) -> None:
    # Outside of a local directory a lock is no proof, for its holder may only be cut off. There the
    # age stands between a checkpoint under way and the deletion: an upload refers to new objects
    # and to those of a retained base, never to old ones that nothing names.
    if age < AGE_FLOOR and not isinstance(store, LocalStore):
        raise UserError(
            f"only in a local directory objects younger than 24h may be deleted, elsewhere a "
            f"checkpoint may be under way unseen: path={store.url} age={age}; leave --age out, or "
            f"raise it"
        )


def _kept_out(store: ObjectStore, now: datetime, watching: Callable[[str], None]) -> RunLock:
    """Hold the lock of a directory, so that no run is alive in it, nor begins."""
    try:
        # No fence is claimed: that would end a running job.
        return acquire_lock(store, LockHolder.current("moorage-gc", now), watching=watching)
    except UserError as error:
        # The lock's own advice is for runs; nothing must be taken over for a deletion.
        text, found, _ = str(error).partition("; wait until it ends")
        if not found:
            raise
        raise UserError(f"{text}; wait until it ends: a running job cleans up by itself") from error


class _Collector:
    """Finds garbage, and knows how far it has read the log for that."""

    def __init__(self, store: ObjectStore, age: timedelta) -> None:
        self._store = store
        self._now = store.now()
        self._age = age
        self._log = LineageLog.open(store)
        self._entries: Sequence[Entry] = ()
        self._end = 0

    def find(self) -> list[Garbage]:
        infos = find_garbage(self._store, self._read, age_floor=self._age)
        live = {checkpoint.checkpoint_id for checkpoint in retained(self._entries)}
        known = {e.checkpoint_id for e in self._entries if isinstance(e, Checkpoint | Retire)}
        return [
            Garbage(
                info.key,
                info.size,
                info.modified,
                max(0, int((self._now - info.modified).total_seconds())),
                _reason(info, live, known),
            )
            for info in infos
        ]

    def delete(self, objects: Sequence[Garbage]) -> int:
        """Delete what is still garbage; whoever appends to the log meanwhile is heard."""
        deleted, wanted = 0, {one.key for one in objects}
        failed: dict[str, MoorageError] = {}
        for start in range(0, len(objects), _DELETES_PER_LOOK):
            if self._log.view().end != self._end:
                wanted.intersection_update(found.key for found in self.find())
            batch = [one.key for one in objects[start : start + _DELETES_PER_LOOK]]
            going = [key for key in batch if key in wanted]
            failed |= self._store.delete_many(going)
            deleted += len(going)
        if failed:
            raise not_deleted(self._store, failed)
        return deleted

    def _read(self) -> Sequence[Entry]:
        # All there are: they tell for longest which checkpoints were retired.
        records = self._log.read_records()
        self._entries = [record.entry for record in records]
        self._end = records[-1].seq if records else 0
        return self._entries


def _reason(info: ObjectInfo, live: set[int], known: set[int]) -> str:
    checkpoint_id = checkpoint_id_in(info.key)
    if checkpoint_id is None:
        return "shared, and no retained checkpoint names it"
    if checkpoint_id in live:
        return f"of an attempt at chk-{checkpoint_id} that did not count"
    state = "is retired" if checkpoint_id in known else "was never completed"
    return f"of chk-{checkpoint_id}, which {state}"
