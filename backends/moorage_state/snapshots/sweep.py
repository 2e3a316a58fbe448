"""Mark and sweep: the objects that no checkpoint needs, and their deletion.

Retirement deletes what a retired manifest named; this finds all the rest, which aborted uploads,
fenced writers and crashed deletions left. Marked is what a retained manifest or a checkpoint under
way references. Everything else that lies where only checkpoints write, and is older than an age
floor, goes, each object by its full key. Called by the driver; the finding alone by tools too.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage_state import failpoints
from moorage_state.snapshots.checkpoints import CheckpointStore
from moorage_state.snapshots.entries import Checkpoint, Entry
from moorage_state.snapshots.history import next_checkpoint_id, retained
from moorage_state.snapshots.layout import (
    checkpoint_id_in,
    checkpoint_id_of,
    is_state_key,
    manifest_key,
)
from moorage_state.snapshots.log import LogWriter
from moorage_state.snapshots.manifest import Manifest, RangeHandle, object_keys
from moorage_state.stores import ObjectInfo, ObjectStore

__all__ = ["AGE_FLOOR", "Swept", "UnderWay", "find_garbage", "garbage", "sweep"]

AGE_FLOOR = timedelta(days=1)
"""Longer than any checkpoint may take, and than clocks differ."""

_PREFIXES = ("chk-", "shared/")
_DELETES_PER_LOOK = 100


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Checkpoints that are not complete yet, as their coordinator knows them.

    Attributes:
        checkpoint_ids: their ids; nothing of theirs is garbage.
        handles: what is known of their files.
        pinned: the checkpoints that they build on.
        since: when the oldest of them began. No object younger than that, and than the age floor
            before it, is garbage: a handle that has not arrived may name it.
    """

    checkpoint_ids: Collection[int] = ()
    handles: Sequence[RangeHandle] = ()
    pinned: Collection[int] = ()
    since: datetime | None = None


NOTHING = UnderWay()


@dataclass(frozen=True, slots=True)
class Swept:
    """The garbage that was found, manifests last, and whether it was deleted."""

    objects: tuple[ObjectInfo, ...]
    deleted: bool

    @property
    def bytes(self) -> int:
        """The sizes of the objects together."""
        return sum(info.size for info in self.objects)


def garbage(
    listing: Iterable[ObjectInfo],
    live: Iterable[Manifest],
    under_way: UnderWay,
    now: datetime,
    age_floor: timedelta,
) -> tuple[ObjectInfo, ...]:
    """Return what may be deleted of `listing`, manifests last.

    The listing must be older than the knowledge of what is live: what became live since it was
    made is then marked, and what was written since is not in it.

    Args:
        listing: any objects; those that are not of checkpoints are passed over.
        live: the manifests of all checkpoints that exist, and of those that are built on.
        under_way: what is not in any manifest yet.
        now: the time.
        age_floor: nothing younger goes, by the time that the store has for it.
    """
    marked: set[str] = set(object_keys(under_way.handles))
    for manifest in live:
        marked.add(manifest_key(manifest.checkpoint_id))
        marked.update(manifest.keys)
    newest = min(now, under_way.since or now) - age_floor
    found = [
        info
        for info in listing
        if is_state_key(info.key)
        and info.key not in marked
        and checkpoint_id_in(info.key) not in under_way.checkpoint_ids
        and info.modified <= newest
    ]
    return tuple(sorted(found, key=lambda info: (_is_manifest(info), info.key)))


def find_garbage(
    store: ObjectStore,
    read_entries: Callable[[], Sequence[Entry]],
    *,
    now: datetime,
    age_floor: timedelta = AGE_FLOOR,
    under_way: UnderWay = NOTHING,
) -> tuple[ObjectInfo, ...]:
    """Return the garbage in a checkpoint directory; see `garbage`.

    A manifest that was left under an id above all in the log is not garbage yet: once it is gone,
    a checkpoint could take the id, and lose its manifest to a sweeper that was overtaken between
    finding and deleting.

    Args:
        store: the checkpoint directory.
        read_entries: reads the log; called after the objects were listed.
        now: the time.
        age_floor: who does not know what is under way must not make it shorter than a checkpoint
            may take.
        under_way: what the coordinator knows.

    Raises:
        CorruptState, UserError: a manifest that exists cannot be read. What it references is
            unknown, so nothing is garbage until it is retired.
        StoreUnavailable: the store does not answer.
    """
    listing = [info for prefix in _PREFIXES for info in store.list(prefix)]
    entries = read_entries()
    wanted = {c.checkpoint_id for c in retained(entries)}.union(under_way.pinned)
    checkpoints = CheckpointStore(store)
    live = [
        checkpoints.load(entry)
        for entry in entries
        if isinstance(entry, Checkpoint) and entry.checkpoint_id in wanted
    ]
    found = garbage(listing, live, under_way, now, age_floor)
    free = next_checkpoint_id(entries)
    return tuple(info for info in found if (checkpoint_id_of(info.key) or 0) < free)


def sweep(
    store: ObjectStore,
    writer: LogWriter,
    *,
    now: datetime,
    age_floor: timedelta = AGE_FLOOR,
    under_way: UnderWay = NOTHING,
    dry_run: bool = False,
) -> Swept:
    """Delete the garbage in a checkpoint directory, or with `dry_run` only tell it.

    A checkpoint that begins while this runs need not be in `under_way`.

    Raises:
        Fenced: another writer took over; nothing more is deleted.
        StoreUnavailable: some garbage may be deleted; the next sweep finds the rest.
        CorruptState, UserError: see `find_garbage`; nothing was deleted.
    """

    def settled_entries() -> list[Entry]:
        # An entry in doubt may be the one that makes a checkpoint exist.
        writer.settle()
        writer.refresh()
        return writer.entries

    found = find_garbage(store, settled_entries, now=now, age_floor=age_floor, under_way=under_way)
    if dry_run:
        return Swept(found, deleted=False)
    for number, info in enumerate(found):
        if number % _DELETES_PER_LOOK == 0:
            writer.refresh()
        failpoints.hit("sweep.before_delete")
        store.delete(info.key)
        failpoints.hit("sweep.after_delete")
    return Swept(found, deleted=True)


def _is_manifest(info: ObjectInfo) -> bool:
    return checkpoint_id_of(info.key) is not None
