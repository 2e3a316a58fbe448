"""Which checkpoints may go, and which objects with them. Pure functions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from moorage_state.snapshots.entries import Entry
from moorage_state.snapshots.history import restore_points, retained
from moorage_state.snapshots.layout import manifest_key
from moorage_state.snapshots.manifest import Manifest, RangeHandle, object_keys

__all__ = ["Retirement", "victims"]


@dataclass(frozen=True, slots=True)
class Retirement:
    """What a retirement does, in this order.

    Attributes:
        checkpoint_ids: what to retire in the log, oldest first.
        keys: the objects to delete afterwards. Manifests come last, so that an interrupted
            deletion can be taken up again.
    """

    checkpoint_ids: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()


def victims(
    entries: Sequence[Entry],
    manifests: Mapping[int, Manifest],
    keep: int | None,
    *,
    pinned: Collection[int] = (),
    pending: Iterable[RangeHandle] = (),
) -> Retirement:
    """Return what can go when `keep` checkpoints are to stay.

    What stays: the newest `keep` checkpoints, the newest `keep` on the present timeline (see
    `restore_points`; its newest is the restore point), and the pinned ones. No object that one of
    them or a pending handle references is ever deleted, even if only a slice of it is referenced.

    While the manifest of one that stays is not at hand nothing goes at all: what it references is
    unknown, and an older checkpoint may have to take its place.

    Args:
        entries: the log.
        manifests: by checkpoint id, those that could be read: of all retained checkpoints, and of
            retired ones whose objects are still to be deleted. A victim without its manifest is
            retired and its objects are left for a sweep.
        keep: at least 1; None for none but the pinned ones, which is for the end of a job.
        pinned: checkpoints that a running checkpoint builds on.
        pending: handles of checkpoints that are not complete yet.
    """
    kept = _kept(entries, keep, pinned)
    if any(checkpoint_id not in manifests for checkpoint_id in kept):
        return Retirement()
    ids = tuple(c.checkpoint_id for c in reversed(retained(entries)) if c.checkpoint_id not in kept)
    live = object_keys(pending).union(*(manifests[checkpoint_id].keys for checkpoint_id in kept))
    going = [checkpoint_id for checkpoint_id in sorted(manifests) if checkpoint_id not in kept]
    files: set[str] = set().union(*(manifests[checkpoint_id].keys for checkpoint_id in going))
    last = tuple(manifest_key(checkpoint_id) for checkpoint_id in going)
    return Retirement(ids, (*sorted(files - live), *last))


def _kept(entries: Sequence[Entry], keep: int | None, pinned: Collection[int]) -> frozenset[int]:
    existing = [checkpoint.checkpoint_id for checkpoint in retained(entries)]
    if keep is None:
        return frozenset(pinned).intersection(existing)
    keep = max(keep, 1)
    timeline = [
        point.checkpoint.checkpoint_id
        for point in restore_points(entries)
        if point.checkpoint is not None
    ]
    wanted = {*existing[:keep], *timeline[:keep], *pinned}
    return frozenset(wanted.intersection(existing))
