"""What a lineage's log says: where to restore from, what is retained, which checkpoints may go.

Pure functions over the entries in the order of the log. The driver, the operator and the command
line all ask these, so they all answer alike. What none of them can tell from its absence is let go
of (`compacted`): who adds a question here keeps there what it asks for.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import overload

from moorage_state.errors import UserError
from moorage_state.snapshots.entries import (
    Checkpoint,
    Compacted,
    Entry,
    Fence,
    Finished,
    Forgotten,
    Owner,
    Past,
    Record,
    Released,
    Rescaled,
    Retire,
    Run,
    Savepoint,
    Unknown,
)
from moorage_state.snapshots.object_keys import checkpoint_id_of, checkpoint_path

_ORDERS_KEPT = 100
"""Of the choices that were made by nonce or order so many are known: one of those before them is
not made again."""

_Ranges = tuple[tuple[int, int], ...]


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
    """Return one more than the highest checkpoint id in the log; the first id is 1.

    A run may have begun from a copy with a higher one: of a log that was set back.
    """
    ids = (
        entry.restored_id if isinstance(entry, Run) else entry.checkpoint_id
        for entry in entries
        if isinstance(entry, Checkpoint | Savepoint | Retire | Run)
    )
    return max(ids, default=0) + 1


def may_have_had(entries: Sequence[Entry], checkpoint_id: int) -> bool:
    """Whether this can be the log of a lineage that completed this checkpoint; ids only grow.

    Where a person chose a point, and nothing was completed since, what was before tells nothing.
    """
    steps = (e for e in reversed(entries) if isinstance(e, Checkpoint | Run))
    last = next((e for e in steps if isinstance(e, Checkpoint) or e.explicit), None)
    return isinstance(last, Run) or checkpoint_id < next_checkpoint_id(entries)


def savepoints(entries: Iterable[Entry]) -> Sequence[Savepoint]:
    """Return the savepoints that may still lie where they were put, oldest first."""
    known: dict[int, Savepoint] = {}
    for entry in entries:
        match entry:
            case Savepoint():
                known[entry.checkpoint_id] = entry
            case Forgotten():
                known.pop(entry.checkpoint_id, None)
    return list(known.values())


def is_known(entries: Iterable[Entry], checkpoint_id: int) -> bool:
    """Whether the log tells what this checkpoint or savepoint descends from, itself retired or not.

    Not of one whose branch was left when nothing leads to it any more, or that was never logged.
    """
    return _is_told(checkpoint_id, _parents(entries))


def _is_told(checkpoint_id: int, parents: Mapping[int, tuple[int | None, _Ranges]]) -> bool:
    return checkpoint_id in parents or _within(checkpoint_id, parents) is not None


def is_followed(entries: Sequence[Entry], checkpoint_id: int) -> bool:
    """Whether a checkpoint that exists descends from this one, which was let go.

    Then what it covered was published: before the next one of its line could be completed.
    """
    kept = [checkpoint.checkpoint_id for checkpoint in retained(entries)]
    return checkpoint_id not in kept and any(checkpoint_id in ancestors(entries, i) for i in kept)


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


def rescaled(entries: Iterable[Entry]) -> Rescaled | None:
    """Return what was last decided of the number of subtasks; None if the log says nothing."""
    return next((e for e in reversed([*entries]) if isinstance(e, Rescaled)), None)


def parallelism_of(entries: Iterable[Entry], declared: int) -> int:
    """Return how many subtasks a start has whose manifest says `declared`.

    What was decided while the job ran counts for as long as its manifest says what it said then.
    """
    last = rescaled(entries)
    return last.parallelism if last is not None and last.declared == declared else declared


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

    newest = ""
    while timeline and gone(timeline[-1]) and not timeline[-1].explicit:
        newest = newest or timeline[-1].path
        timeline.pop()
        if not timeline:
            raise UserError(
                f"every checkpoint of this lineage was retired: newest={newest}; name a "
                "savepoint to restore, or ask for an empty start explicitly"
            )
    if timeline and gone(timeline[-1]):
        raise UserError(
            f"the chosen restore point was retired: path={timeline[-1].path}; choose another one"
        )
    return [point for point in reversed(timeline) if not gone(point)]


class Line(Sequence[int]):
    """Ids of checkpoints that follow one another, ascending; kept as ranges without gaps.

    Asking for one, for the last or whether one is there costs the same however many there are.
    """

    __slots__ = ("_firsts", "_lasts", "_places")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        joined = _joined(ranges)
        self._firsts = [first for first, _ in joined]
        self._lasts = [last for _, last in joined]
        sizes = (last - first + 1 for first, last in joined)
        self._places = list(accumulate(sizes, initial=0))

    def then(self, checkpoint_id: int) -> "Line":
        """The line with one id more at its end."""
        return Line((*zip(self._firsts, self._lasts, strict=True), (checkpoint_id, checkpoint_id)))

    def __len__(self) -> int:
        return self._places[-1]

    def __contains__(self, checkpoint_id: object) -> bool:
        if not isinstance(checkpoint_id, int):
            return False
        at = bisect_right(self._firsts, checkpoint_id) - 1
        return at >= 0 and checkpoint_id <= self._lasts[at]

    def __iter__(self) -> Iterator[int]:
        for first, last in zip(self._firsts, self._lasts, strict=True):
            yield from range(first, last + 1)

    def __reversed__(self) -> Iterator[int]:
        for first, last in zip(reversed(self._firsts), reversed(self._lasts), strict=True):
            yield from range(last, first - 1, -1)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[int, ...]: ...

    def __getitem__(self, place: int | slice) -> int | tuple[int, ...]:
        if isinstance(place, slice):
            return tuple(self[at] for at in range(*place.indices(len(self))))
        at = range(len(self))[place]
        within = bisect_right(self._places, at) - 1
        return self._firsts[within] + at - self._places[within]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Line):
            return (self._firsts, self._lasts) == (other._firsts, other._lasts)
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash((*self._firsts, *self._lasts))

    def __repr__(self) -> str:
        return f"Line({list(zip(self._firsts, self._lasts, strict=True))})"


def ancestors(entries: Iterable[Entry], checkpoint_id: int) -> Line:
    """Return the checkpoints that a checkpoint or savepoint descends from, oldest first, and it.

    Retired ones are among them: what they published is part of the history all the same. So are
    savepoints that the job went on from.
    """
    return _line(checkpoint_id, _parents(entries))


def lines_of(entries: Iterable[Entry], checkpoint_ids: Iterable[int]) -> dict[int, Line]:
    """Return the `ancestors` of each of these that `is_known`; the log is gone through once."""
    parents = _parents(entries)
    return {i: _line(i, parents) for i in checkpoint_ids if _is_told(i, parents)}


def _line(checkpoint_id: int, parents: Mapping[int, tuple[int | None, _Ranges]]) -> Line:
    ranges: list[tuple[int, int]] = []
    at: int | None = checkpoint_id
    while at is not None:
        ranges.append((at, at))
        at, between = parents.get(at) or _within(at, parents) or (None, ())
        ranges.extend(reversed(between))
    return Line(reversed(ranges))


def _parents(entries: Iterable[Entry]) -> dict[int, tuple[int | None, _Ranges]]:
    """What each checkpoint and savepoint follows: the one before it, and what was between them.

    Between two there is what was compacted away.
    """
    entries = tuple(entries)
    parents: dict[int, tuple[int | None, _Ranges]] = {}
    for entry in entries:
        if isinstance(entry, Compacted):
            parents |= {link[0]: (link[1] or None, link[2]) for link in entry.past.links}
    # By (fence, run): what it started from, then its checkpoints, each with its epoch.
    runs: dict[tuple[int, int], list[tuple[int, int | None]]] = {}
    tip: int | None = None
    for entry in entries:
        match entry:
            case Run():
                end, tip = tip, entry.restored_id or checkpoint_id_of(entry.restored_from or "")
                runs[entry.fence, entry.run] = [(-1, tip)]
                # A copy of a checkpoint may be restored after that was retired and compacted away.
                if tip and tip not in parents and (found := _within(tip, parents)):
                    parents[tip] = found
                elif tip and entry.restored_id > max(end or 0, max(parents, default=0)):
                    # The log was set back: what the copy is of came after its end.
                    parents[tip] = (end, ())
            case Checkpoint():
                parents.setdefault(entry.checkpoint_id, (tip, ()))
                tip = entry.checkpoint_id
                runs.setdefault((entry.fence, entry.run), []).append((entry.epoch, tip))
            case Savepoint() if entry.checkpoint_id not in parents:
                line = runs.get((entry.fence, entry.run), [])
                parents[entry.checkpoint_id] = _before(entry, line, parents)
    return parents


def _before(
    savepoint: Savepoint,
    line: Sequence[tuple[int, int | None]],
    parents: Mapping[int, tuple[int | None, _Ranges]],
) -> tuple[int | None, _Ranges]:
    """What a savepoint follows in the line of its run: the newest that its epoch covers."""
    own, later = savepoint.checkpoint_id, None
    # From the end, near which it is: with each savepoint from the begin, many would cost a square.
    for epoch, point in reversed(line):
        if epoch > savepoint.epoch:
            later = point
        # Ids are given in the order of epochs, and a point follows none with a higher one.
        elif point is None or point < own:
            break
    else:
        point = None
    if later is None or parents[later][0] != point:
        return point, ()
    # Some of what was compacted away is before it.
    return point, _below(own, parents[later][1])


def _within(
    checkpoint_id: int, parents: Mapping[int, tuple[int | None, _Ranges]]
) -> tuple[int | None, _Ranges] | None:
    """What a checkpoint follows that was compacted away; None if nothing that is there leads to it.

    All that lead to it agree on what is before it.
    """
    for parent, between in parents.values():
        inside = any(first <= checkpoint_id <= last for first, last in between)
        if inside and (parent is None or parent < checkpoint_id):
            return parent, _below(checkpoint_id, between)
    return None


def _below(checkpoint_id: int, between: _Ranges) -> _Ranges:
    last_id = checkpoint_id - 1
    return tuple((first, min(last, last_id)) for first, last in between if first <= last_id)


def compacted(records: Sequence[Record]) -> tuple[list[Record], Past]:
    """Return the records that still say something, in order, and what descends from the others.

    With what is appended later, every function here answers of them as of all; only of retired
    checkpoints that nothing leads to any more less is known. As many stay as there are checkpoints,
    savepoints and choices of people.
    """
    entries = [record.entry for record in records]
    kept = _said(entries)
    points = [
        entry.checkpoint_id
        for index, entry in enumerate(entries)
        if index in kept and isinstance(entry, Checkpoint | Savepoint)
    ]
    return [record for index, record in enumerate(records) if index in kept], _past(entries, points)


def _past(entries: Sequence[Entry], points: Collection[int]) -> Past:
    """The links of these points, which may lead to others that no entry tells of any more."""
    parents = _parents(entries)
    begun = {
        point
        for entry in entries
        if isinstance(entry, Run)
        and (point := entry.restored_id or checkpoint_id_of(entry.restored_from or ""))
        and point in parents
    }
    forgotten = _forgotten(entries).intersection(parents)
    stay = begun.union(points, forgotten)
    links = []
    for point in sorted(stay):
        parent, between = parents[point]
        ids = list(reversed(between))
        while parent is not None and parent not in stay and parent in parents:
            ids.append((parent, parent))
            parent, further = parents[parent]
            ids.extend(reversed(further))
        links.append((point, parent or 0, _joined(reversed(ids))))
    return Past(tuple(links), tuple(sorted(forgotten.difference(points))))


def _forgotten(entries: Iterable[Entry]) -> set[int]:
    found: set[int] = set()
    for entry in entries:
        if isinstance(entry, Compacted):
            found.update(entry.past.forgotten)
        elif isinstance(entry, Forgotten):
            found.add(entry.checkpoint_id)
    return found


def _joined(ranges: Iterable[tuple[int, int]]) -> _Ranges:
    """Ranges in ascending order, those that follow each other without a gap as one."""
    # Never over a gap: its ids may be those of savepoints that are still on their way.
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)


def _said(entries: Sequence[Entry]) -> set[int]:
    """The indices of the entries that some function here could miss."""
    newest = {(type(entry), _subject(entry)): index for index, entry in enumerate(entries)}

    def by_subject(kind: type) -> dict[object, int]:
        return {subject: index for (of, subject), index in newest.items() if of is kind}

    checkpoints, retired, fences = by_subject(Checkpoint), by_subject(Retire), by_subject(Fence)
    runs = sorted(by_subject(Run).values())
    kept = {index for (kind, _), index in newest.items() if kind in _LAST_KEPT}
    # What an entry of a later release is about, only that one knows.
    kept.update(index for index, entry in enumerate(entries) if isinstance(entry, Unknown))
    taken, forgotten = by_subject(Savepoint), by_subject(Forgotten)
    # The last one's id is never given again, whether it is forgotten or not.
    last = max(taken.values(), default=-1)
    told = {one: i for one, i in taken.items() if one not in forgotten or i == last}
    kept.update(told.values(), (i for one, i in forgotten.items() if one in told))
    live = [index for one, index in checkpoints.items() if one not in retired]
    kept.update(live, _runs_said(entries, runs, min(live, default=len(entries))))
    # What was completed last is told of though it is retired: before the end, and in either of the
    # last two runs. So is what a run began from.
    for before in (len(entries), newest.get((Finished, None), 0), *runs[-1:]):
        kept.update(sorted(i for i in checkpoints.values() if i < before)[-1:])
    targets = {_target(entries[index]) for index in kept.intersection(runs)}
    kept.update(index for one, index in checkpoints.items() if one in targets)
    completed = [e for i in kept if isinstance(e := entries[i], Checkpoint)]
    kept.update(fences[one] for one in {e.fence for e in completed}.intersection(fences))
    # A log that was set back may have the highest id only where a run began.
    highest = next_checkpoint_id(entries) - 1
    begun = [i for i in runs if isinstance(e := entries[i], Run) and e.restored_id == highest]
    kept.update(begun[-1:])
    # The numbers of fences and checkpoints grow: the last ones are the highest.
    kept.update(sorted(fences.values())[-1:], sorted(retired.values())[-1:])
    return kept.union(retired[e.checkpoint_id] for e in completed if e.checkpoint_id in retired)


_LAST_KEPT = (Owner, Released, Finished, Rescaled)


def _subject(entry: Entry) -> object:
    """What an entry is about: of two entries of one kind about the same the last one counts."""
    match entry:
        case Fence():
            return entry.fence
        case Run():
            return entry.fence, entry.run
        case Checkpoint() | Savepoint() | Retire() | Forgotten():
            return entry.checkpoint_id
        case _:
            return None


def _target(entry: Entry) -> int:
    """The checkpoint of the lineage that a run began from; 0 for anything else."""
    path = entry.restored_from if isinstance(entry, Run) else None
    return checkpoint_id_of(path or "") or 0


def _runs_said(entries: Sequence[Entry], runs: Sequence[int], oldest: int) -> set[int]:
    """The runs that still say something; `oldest` is the index of the oldest checkpoint there is.

    The last two say where the job is and was; explicit ones since the oldest checkpoint, and the
    one before it, what belongs together; and orders are followed once, savepoints claimed.
    """
    kept = set(runs[-2:])
    explicit = [(i, e) for i in runs if isinstance(e := entries[i], Run) and e.explicit]
    before = [index for index, _ in explicit if index < oldest]
    kept.update(before[-1:], (index for index, _ in explicit if index > oldest))
    ordered = {(run.order_id, run.restore_nonce): index for index, run in explicit}
    ordered.pop(("", 0), None)
    kept.update(sorted(ordered.values())[-_ORDERS_KEPT:])
    claimed: dict[str | None, int] = {}
    for index in runs:
        run = entries[index]
        if isinstance(run, Run) and (run.claimed or run.restored_from in claimed):
            kept.add(index)
            claimed[run.restored_from] = index
    return kept


@dataclass(frozen=True, slots=True)
class Retirement:
    """What a retirement does: ids to retire in the log, oldest first, then objects to delete."""

    checkpoint_ids: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()


def kept_of(entries: Sequence[Entry], keep: int | None, pinned: Collection[int]) -> frozenset[int]:
    """Return the checkpoints that stay when `keep` are to.

    They are the newest `keep` checkpoints, the newest `keep` on the present timeline (see
    `restore_points`; its newest is the restore point), and the pinned ones.

    Args:
        keep: at least 1; None for none but the pinned ones, which is for the end of a job.
        pinned: checkpoints that a running checkpoint builds on.
    """
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
