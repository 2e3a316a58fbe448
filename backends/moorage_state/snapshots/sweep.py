"""Mark and sweep: the objects that no checkpoint needs, and their deletion.

Retirement deletes what a retired manifest named; this finds all the rest, which aborted uploads,
fenced writers and crashed deletions left, and what moved between servers. Marked is what a retained
manifest or a checkpoint under way references. Everything else that lies where only checkpoints
write, and is older than an age floor, goes, each object by its full key.

In two steps, neither of which has in memory what is needed. The first lists objects and passes over
what the newest checkpoint seems to need: what is left are candidates, few of which are live. The
second looks at all that is live for exactly these. Called by the driver; the finding by tools too.
"""

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from moorage_state import failpoints
from moorage_state.snapshots.checkpoints import CheckpointStore, delete_state
from moorage_state.snapshots.entries import Checkpoint, Entry
from moorage_state.snapshots.history import next_checkpoint_id, retained
from moorage_state.snapshots.log import LogWriter
from moorage_state.snapshots.manifest import Root
from moorage_state.snapshots.object_keys import (
    checkpoint_id_in,
    checkpoint_id_of,
    is_shared_key,
    is_state_key,
    manifest_key,
)
from moorage_state.snapshots.parts import references_of
from moorage_state.stores import ObjectInfo, ObjectStore, not_deleted

AGE_FLOOR = timedelta(days=1)
"""Longer than any checkpoint may take."""

MOST_LISTED = 250_000
MOST_CANDIDATES = 50_000
"""What one sweep looks at; the next one goes on from there."""

_PREFIXES = ("chk-", "shared/")
_BITS_OF_A_KEY = 16


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Checkpoints that are not complete yet, as their coordinator knows them.

    Attributes:
        checkpoint_ids: nothing of theirs is garbage, and no shared object that was there when one
            of them was under way, until that has ended: a handle that has not arrived may name it,
            whatever its age seems to be.
        pinned: the checkpoints that they build on, and that the next one would build on.
        reads_elsewhere: what the run was restored from may still be read, of another store.
    """

    checkpoint_ids: Collection[int] = ()
    pinned: Collection[int] = ()
    reads_elsewhere: bool = False


def _nothing() -> UnderWay:
    return UnderWay()


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be garbage.

    Attributes:
        objects: old enough, and of checkpoints.
        under_way: the checkpoints that were under way when all of it had been listed. One that
            began later references new objects, and what a base has that is live or pinned.
        after: the last key that was looked at; empty if there is nothing behind it.
    """

    objects: tuple[ObjectInfo, ...]
    under_way: frozenset[int]
    after: str


@dataclass(slots=True)
class SweepProgress:
    """How far the sweeps of one driver have come.

    Attributes:
        after: the key that the next listing begins behind.
        held: candidates that wait for the end of checkpoints that were under way.
    """

    after: str = ""
    held: Candidates | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """The garbage that was found, manifests last, and whether it was deleted.

    `put_off`: shared objects wait for the end of checkpoints that were under way.
    """

    objects: tuple[ObjectInfo, ...]
    deleted: bool
    put_off: bool = False

    @property
    def bytes(self) -> int:
        """The sizes of the objects together."""
        return sum(info.size for info in self.objects)


class _Seen:
    """Keys that were seen: says so of all of them, and by chance of one or two in a hundred others.

    Two bytes a key. A key that is taken for seen by chance is not the next time.
    """

    def __init__(self, keys: int) -> None:
        self._size = _BITS_OF_A_KEY * max(keys, 64)
        self._bits = bytearray(self._size // 8)
        # Nothing that has to be repeated depends on it.
        self._salt = random.getrandbits(64)

    def add(self, keys: Iterable[str]) -> None:
        bits = self._bits
        for key in keys:
            one, other = self._places(key)
            bits[one >> 3] |= 1 << (one & 7)
            bits[other >> 3] |= 1 << (other & 7)

    def __contains__(self, key: str) -> bool:
        return all(self._bits[at >> 3] & 1 << (at & 7) for at in self._places(key))

    def _places(self, key: str) -> tuple[int, int]:
        number = hash((self._salt, key))
        return number % self._size, (number >> 24) % self._size


def find_candidates(
    store: ObjectStore,
    entries: Sequence[Entry],
    under_way: Callable[[], UnderWay],
    age_floor: timedelta,
    *,
    after: str = "",
    most_listed: int | None = None,
    most: int | None = None,
) -> Candidates:
    """List objects; see `find_garbage`.

    Args:
        entries: the log at any time: what it says only spares candidates.
        under_way: called after the objects were listed.
        after: the key to begin behind.
        most_listed: how many objects are looked at.
        most: how many candidates there are at most.
    """
    seen = _seen(store, entries)
    now = store.now()
    found: list[ObjectInfo] = []
    number, last = 0, ""
    for info in (info for prefix in _PREFIXES for info in store.list(prefix, after)):
        if number == most_listed or len(found) == most:
            break
        number, last = number + 1, info.key
        if is_state_key(info.key) and now - info.modified >= age_floor and info.key not in seen:
            found.append(info)
    else:
        last = ""
    return Candidates(tuple(found), frozenset(under_way().checkpoint_ids), last)


def _seen(store: ObjectStore, entries: Sequence[Entry]) -> _Seen:
    """What the newest checkpoint references, which most of what lies there is."""
    newest = next(iter(retained(entries)), None)
    if newest is None:
        return _Seen(0)
    root = CheckpointStore(store).load_root(newest)
    files = sum(part.files for part in root.parts) if isinstance(root, Root) else len(root.files)
    seen = _Seen(files)
    seen.add([newest.manifest_key])
    for keys in references_of(store, root):
        seen.add(keys)
    return seen


def garbage_among(
    store: ObjectStore,
    candidates: Iterable[ObjectInfo],
    entries: Sequence[Entry],
    known: UnderWay,
) -> tuple[ObjectInfo, ...]:
    """Return what may be deleted of candidates, manifests last.

    Args:
        candidates: listed before what is under way was asked for, and the log read after that.

    Raises: see `find_garbage`.
    """
    # A manifest left under an id above all in the log stays: were it gone, a checkpoint could take
    # the id, and lose its manifest to a sweeper that was overtaken between finding and deleting.
    free = next_checkpoint_id(entries)
    left = {
        info.key: info
        for info in candidates
        if checkpoint_id_in(info.key) not in known.checkpoint_ids
        and (checkpoint_id_of(info.key) or 0) < free
    }
    wanted = {c.checkpoint_id for c in retained(entries)}.union(known.pinned)
    live = {e.checkpoint_id: e for e in entries if isinstance(e, Checkpoint)}
    if not live.keys() >= wanted:
        # A base that the log does not tell of any more: what it references is unknown.
        return ()
    checkpoints = CheckpointStore(store)
    for checkpoint_id in wanted if left else ():
        left.pop(manifest_key(checkpoint_id), None)
        for keys in references_of(store, checkpoints.load_root(live[checkpoint_id])):
            for key in keys:
                left.pop(key, None)
    return tuple(sorted(left.values(), key=lambda info: (_is_manifest(info), info.key)))


def find_garbage(
    store: ObjectStore,
    read_entries: Callable[[], Sequence[Entry]],
    *,
    age_floor: timedelta = AGE_FLOOR,
) -> tuple[ObjectInfo, ...]:
    """Return all garbage in a checkpoint directory of which nobody tells what is under way.

    Args:
        read_entries: reads the log; called last of all.
        age_floor: by the store's clock. Must not be shorter than a checkpoint may take.

    Raises:
        CorruptState, UserError: a manifest that exists cannot be read. What it references is
            unknown, so nothing is garbage until it is retired.
        StoreUnavailable: the store does not answer.
    """
    # First the listing, then the log: whatever a listed object belongs to is then in the log, or
    # given up, or younger than the age floor.
    found = find_candidates(store, read_entries(), _nothing, age_floor)
    return garbage_among(store, found.objects, read_entries(), UnderWay())


def sweep(
    store: ObjectStore,
    writer: LogWriter,
    *,
    age_floor: timedelta = AGE_FLOOR,
    under_way: Callable[[], UnderWay] = _nothing,
    dry_run: bool = False,
    progress: SweepProgress | None = None,
) -> Swept:
    """Delete the garbage in a section of a checkpoint directory, or with `dry_run` only tell it.

    A checkpoint that begins after `under_way` was called need not be in its answer.

    Args:
        progress: where the sweep before left off, and this one leaves off.

    Raises:
        Fenced: another writer took over; nothing more is deleted.
        Retryable, UserError: some garbage may be deleted; a later sweep finds the rest.
        CorruptState, UserError: see `find_garbage`; nothing was deleted.
    """
    progress = progress or SweepProgress()

    def settled_entries() -> list[Entry]:
        # An entry in doubt may be the one that makes a checkpoint exist.
        writer.settle()
        writer.refresh()
        return writer.entries

    def look() -> None:
        writer.refresh()
        failpoints.hit("sweep.before_delete")

    if progress.held is None:
        progress.held = find_candidates(
            store,
            settled_entries(),
            under_way,
            age_floor,
            after=progress.after,
            most_listed=MOST_LISTED,
            most=MOST_CANDIDATES,
        )
    held = progress.held
    # First the listing, then what is under way, then the log: whatever a listed object belongs to
    # is then still under way, or in the log, or given up. No clock says so; ages only keep what
    # others than the asker may be writing.
    known = under_way()
    waits = not held.under_way.isdisjoint(known.checkpoint_ids)
    later = [
        info
        for info in held.objects
        if waits and (is_shared_key(info.key) or checkpoint_id_in(info.key) in held.under_way)
    ]
    now = set(held.objects).difference(later)
    found = garbage_among(store, now, settled_entries(), known)
    if later:
        progress.held = Candidates(tuple(later), held.under_way, held.after)
    else:
        progress.held, progress.after = None, held.after
    if dry_run:
        return Swept(found, deleted=False, put_off=bool(later))
    failed = delete_state(store, [info.key for info in found], look)
    failpoints.hit("sweep.after_delete")
    if failed:
        raise not_deleted(store, failed)
    return Swept(found, deleted=True, put_off=bool(later))


def _is_manifest(info: ObjectInfo) -> bool:
    return checkpoint_id_of(info.key) is not None
