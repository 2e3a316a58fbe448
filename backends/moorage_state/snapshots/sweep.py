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
from moorage_state.snapshots.checkpoints import CheckpointStore, delete_state
from moorage_state.snapshots.entries import Checkpoint, Entry
from moorage_state.snapshots.history import next_checkpoint_id, retained
from moorage_state.snapshots.log import LogWriter
from moorage_state.snapshots.manifest import Manifest
from moorage_state.snapshots.object_keys import (
    checkpoint_id_in,
    checkpoint_id_of,
    is_shared_key,
    is_state_key,
    manifest_key,
)
from moorage_state.stores import ObjectInfo, ObjectStore, not_deleted

AGE_FLOOR = timedelta(days=1)
"""Longer than any checkpoint may take."""

_PREFIXES = ("chk-", "shared/")


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Checkpoints that are not complete yet, as their coordinator knows them.

    Attributes:
        checkpoint_ids: nothing of theirs is garbage, and while there is one no shared object is: a
            handle that has not arrived may name it, whatever its age seems to be.
        pinned: the checkpoints that they build on, and that the next one would build on.
    """

    checkpoint_ids: Collection[int] = ()
    pinned: Collection[int] = ()


def _nothing() -> UnderWay:
    return UnderWay()


@dataclass(frozen=True, slots=True)
class Swept:
    """The garbage that was found, manifests last, and whether it was deleted.

    `put_off`: shared objects were passed over, because a checkpoint was under way.
    """

    objects: tuple[ObjectInfo, ...]
    deleted: bool
    put_off: bool = False

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

    Args:
        listing: any objects, older than the knowledge of what is live: what became live since is
            then marked, and what was written since is not in it.
        live: the manifests of all checkpoints that exist, and of those that are built on.
        under_way: what is not in any manifest yet.
        now: the time by the store's own clock, before the listing.
    """
    marked: set[str] = set()
    for manifest in live:
        marked.add(manifest_key(manifest.checkpoint_id))
        marked.update(manifest.keys)
    pending = bool(under_way.checkpoint_ids)
    found = [
        info
        for info in listing
        if is_state_key(info.key)
        and info.key not in marked
        and checkpoint_id_in(info.key) not in under_way.checkpoint_ids
        and not (pending and is_shared_key(info.key))
        and now - info.modified >= age_floor
    ]
    return tuple(sorted(found, key=lambda info: (_is_manifest(info), info.key)))


def find_garbage(
    store: ObjectStore,
    read_entries: Callable[[], Sequence[Entry]],
    *,
    age_floor: timedelta = AGE_FLOOR,
    under_way: Callable[[], UnderWay] = _nothing,
) -> tuple[ObjectInfo, ...]:
    """Return the garbage in a checkpoint directory; see `garbage`.

    Args:
        read_entries: reads the log; called last of all.
        age_floor: by the store's clock. Who does not know what is under way must not make it
            shorter than a checkpoint may take.
        under_way: tells what the coordinator knows; called after the objects were listed.

    Raises:
        CorruptState, UserError: a manifest that exists cannot be read. What it references is
            unknown, so nothing is garbage until it is retired.
        StoreUnavailable: the store does not answer.
    """
    now = store.now()
    # First the listing, then what is under way, then the log: whatever a listed object belongs to
    # is then still under way, or in the log, or given up. No clock says so; ages only keep what
    # others than the asker may be writing.
    listing = [info for prefix in _PREFIXES for info in store.list(prefix)]
    known = under_way()
    entries = read_entries()
    wanted = {c.checkpoint_id for c in retained(entries)}.union(known.pinned)
    checkpoints = CheckpointStore(store)
    live = [
        checkpoints.load(entry)
        for entry in entries
        if isinstance(entry, Checkpoint) and entry.checkpoint_id in wanted
    ]
    found = garbage(listing, live, known, now, age_floor)
    # A manifest left under an id above all in the log stays: were it gone, a checkpoint could take
    # the id, and lose its manifest to a sweeper that was overtaken between finding and deleting.
    free = next_checkpoint_id(entries)
    return tuple(info for info in found if (checkpoint_id_of(info.key) or 0) < free)


def sweep(
    store: ObjectStore,
    writer: LogWriter,
    *,
    age_floor: timedelta = AGE_FLOOR,
    under_way: Callable[[], UnderWay] = _nothing,
    dry_run: bool = False,
) -> Swept:
    """Delete the garbage in a checkpoint directory, or with `dry_run` only tell it.

    A checkpoint that begins after `under_way` was called need not be in its answer.

    Raises:
        Fenced: another writer took over; nothing more is deleted.
        Retryable, UserError: some garbage may be deleted; the next sweep finds the rest.
        CorruptState, UserError: see `find_garbage`; nothing was deleted.
    """

    def settled_entries() -> list[Entry]:
        # An entry in doubt may be the one that makes a checkpoint exist.
        writer.settle()
        writer.refresh()
        return writer.entries

    pending = False

    def noted() -> UnderWay:
        nonlocal pending
        known = under_way()
        pending = bool(known.checkpoint_ids)
        return known

    def look() -> None:
        writer.refresh()
        failpoints.hit("sweep.before_delete")

    found = find_garbage(store, settled_entries, age_floor=age_floor, under_way=noted)
    if dry_run:
        return Swept(found, deleted=False, put_off=pending)
    failed = delete_state(store, [info.key for info in found], look)
    failpoints.hit("sweep.after_delete")
    if failed:
        raise not_deleted(store, failed)
    return Swept(found, deleted=True, put_off=pending)


def _is_manifest(info: ObjectInfo) -> bool:
    return checkpoint_id_of(info.key) is not None
