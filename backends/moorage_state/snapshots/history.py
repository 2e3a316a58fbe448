"""What a lineage's log says: where to restore from, what is retained, which checkpoints may go.

Pure functions over the entries in the order of the log. The driver, the operator and the command
line all ask these, so they all answer alike.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from moorage_state.errors import UserError
from moorage_state.snapshots.entries import (
    Checkpoint,
    Entry,
    Fence,
    Finished,
    Owner,
    Released,
    Retire,
    Run,
    Savepoint,
)
from moorage_state.snapshots.manifest import Manifest, RangeHandle, object_keys
from moorage_state.snapshots.object_keys import checkpoint_id_of, checkpoint_path, manifest_key


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """What a start begins from.

    Attributes:
        path: `chk-<id>` of this lineage, or what else the run named (a savepoint's address).
        explicit: a person chose it; nothing may be taken in its place.
    """

    path: str
    checkpoint: Checkpoint | None
    explicit: bool


def restore_point(entries: Iterable[Entry]) -> RestorePoint | None:
    """Return the point a start begins from when nothing else is asked for ("latest").

    It is the newest of the checkpoints that are not retired and of the runs with an explicit
    choice. None means that the lineage may start empty: it never had a checkpoint, or a person
    asked for an empty start and no checkpoint was completed since.

    Raises UserError when there were checkpoints and all are retired, or the chosen one is: state
    that existed never becomes empty by itself.
    """
    return next(iter(restore_points(entries)), None)


def restore_points(entries: Iterable[Entry]) -> Sequence[RestorePoint]:
    """Return `restore_point` and then the older points that it descends from, newest first.

    Checkpoints that an explicit restore left behind are not among them: going "back" to one of
    those would bring a rejected history to life. Raises like `restore_point`.
    """
    timeline: list[RestorePoint] = []
    known: dict[int, Checkpoint] = {}
    retired: set[int] = set()
    for entry in entries:
        match entry:
            case Checkpoint():
                known[entry.checkpoint_id] = entry
                path = checkpoint_path(entry.checkpoint_id)
                timeline.append(RestorePoint(path, entry, explicit=False))
            case Run(explicit=True):
                timeline = _rewound(timeline, entry.restored_from, known)
            case Retire():
                retired.add(entry.checkpoint_id)
    return _without_retired(timeline, retired)


def retained(entries: Iterable[Entry]) -> Sequence[Checkpoint]:
    """Return the checkpoints that exist (completed and not retired), newest first."""
    live: dict[int, Checkpoint] = {}
    for entry in entries:
        if isinstance(entry, Checkpoint):
            live[entry.checkpoint_id] = entry
        elif isinstance(entry, Retire):
            live.pop(entry.checkpoint_id, None)
    return list(reversed(live.values()))


def next_checkpoint_id(entries: Iterable[Entry]) -> int:
    """Return one more than the highest checkpoint id in the log; the first id is 1."""
    ids = (e.checkpoint_id for e in entries if isinstance(e, Checkpoint | Savepoint | Retire))
    return max(ids, default=0) + 1


def current_fence(entries: Iterable[Entry]) -> Fence | None:
    """Return the claim that holds: the one with the highest fence."""
    fences = (entry for entry in entries if isinstance(entry, Fence))
    return max(fences, key=lambda entry: entry.fence, default=None)


def current_owner(entries: Iterable[Entry]) -> Owner | None:
    """Return the job that owns the lineage, or None if the log is empty."""
    owner = None
    for entry in entries:
        if isinstance(entry, Owner):
            owner = entry
    return owner


def is_released(entries: Iterable[Entry]) -> bool:
    """Whether the owner gave the lineage up and nobody took it since."""
    released = False
    for entry in entries:
        if isinstance(entry, Owner | Released):
            released = isinstance(entry, Released)
    return released


def finished_with(entries: Iterable[Entry]) -> Checkpoint | None:
    """Return the last checkpoint of a job that has finished, though it may be retired.

    None if the log does not say that it finished: checkpoints that stay say it themselves.
    """
    newest = last = None
    for entry in entries:
        match entry:
            case Checkpoint():
                newest = entry
            case Finished():
                last = newest
            case Run():
                last = None
    return last


def _rewound(
    timeline: list[RestorePoint], target: str | None, known: dict[int, Checkpoint]
) -> list[RestorePoint]:
    """Return the timeline after a person chose `target`: what led to it, and it, newest last."""
    if target is None:
        return []
    checkpoint_id = checkpoint_id_of(target)
    checkpoint = known.get(checkpoint_id) if checkpoint_id is not None else None
    path = target if checkpoint_id is None else checkpoint_path(checkpoint_id)
    chosen = RestorePoint(path, checkpoint, explicit=True)
    for index, point in enumerate(timeline):
        if point.path == path:
            return [*timeline[:index], chosen]
    return [chosen]


def _without_retired(timeline: list[RestorePoint], retired: set[int]) -> Sequence[RestorePoint]:
    def gone(point: RestorePoint) -> bool:
        return point.checkpoint is not None and point.checkpoint.checkpoint_id in retired

    while timeline and gone(timeline[-1]) and not timeline[-1].explicit:
        lost = timeline.pop()
        if not timeline:
            raise UserError(
                f"every checkpoint of this lineage was retired: newest={lost.path}; name a "
                "savepoint to restore, or ask for an empty start explicitly"
            )
    if timeline and gone(timeline[-1]):
        raise UserError(
            f"the chosen restore point was retired: path={timeline[-1].path}; choose another one"
        )
    return [point for point in reversed(timeline) if not gone(point)]


def ancestors(entries: Iterable[Entry], checkpoint_id: int) -> tuple[int, ...]:
    """Return the checkpoints that a checkpoint or savepoint descends from, oldest first, and it.

    Retired ones are among them: what they published is part of the history all the same. So are
    savepoints that the job went on from.
    """
    parents = _parents(entries)
    line: list[int] = []
    at: int | None = checkpoint_id
    while at is not None:
        line.append(at)
        at = parents.get(at)
    return tuple(reversed(line))


def _parents(entries: Iterable[Entry]) -> dict[int, int | None]:
    """What each checkpoint and savepoint follows directly: the one before it in its run."""
    parents: dict[int, int | None] = {}
    # By (fence, run): what it started from, then its checkpoints, each with its epoch.
    runs: dict[tuple[int, int], list[tuple[int, int | None]]] = {}
    tip: int | None = None
    for entry in entries:
        match entry:
            case Run():
                tip = entry.restored_id or checkpoint_id_of(entry.restored_from or "")
                runs[entry.fence, entry.run] = [(-1, tip)]
            case Checkpoint():
                parents[entry.checkpoint_id] = tip
                tip = entry.checkpoint_id
                runs.setdefault((entry.fence, entry.run), []).append((entry.epoch, tip))
            case Savepoint():
                line = runs.get((entry.fence, entry.run), [])
                before = [point for epoch, point in line if epoch <= entry.epoch]
                parents[entry.checkpoint_id] = before[-1] if before else None
    return parents


@dataclass(frozen=True, slots=True)
class Retirement:
    """What a retirement does: ids to retire in the log, oldest first, then objects to delete."""

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

    Args:
        manifests: by checkpoint id, those that could be read: of all retained checkpoints, and of
            retired ones whose objects are still to be deleted. A victim without its manifest is
            retired and its objects are left for a sweep.
        keep: at least 1; None for none but the pinned ones, which is for the end of a job.
        pinned: checkpoints that a running checkpoint builds on.
        pending: handles of checkpoints that are not complete yet.
    """
    kept = _kept(entries, keep, pinned)
    # What it references is unknown, and an older checkpoint may have to take its place.
    if any(checkpoint_id not in manifests for checkpoint_id in kept):
        return Retirement()
    ids = tuple(c.checkpoint_id for c in reversed(retained(entries)) if c.checkpoint_id not in kept)
    live = object_keys(pending).union(*(manifests[checkpoint_id].keys for checkpoint_id in kept))
    going = [checkpoint_id for checkpoint_id in sorted(manifests) if checkpoint_id not in kept]
    files: set[str] = set().union(*(manifests[checkpoint_id].keys for checkpoint_id in going))
    # Manifests come last, so that an interrupted deletion can be taken up again.
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
