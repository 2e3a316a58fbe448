"""What a snapshot is needed for, and which savepoints that no person asked for may go. Pure.

As long as something needs a snapshot its data must stay. Deleting the object, which is the
caller's, deletes the data first: the object's finalizer stays until they are gone.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from moorage_api import JobSpec
from moorage_api.driver import CheckpointSummary, RestoredFrom, SavepointInfo
from moorage_api.state import SavepointRetention
from moorage_api.status import JobStatus, RestorePointStatus
from moorage_operator.snapshots.naming import is_imported, order, reach, trigger_of
from moorage_operator.world import JobFacts, SnapshotView
from moorage_state.stores.addresses import same_place


def uses(snapshot: SnapshotView, job: JobFacts | None) -> tuple[str, ...]:
    """Say for what the snapshot is needed, in words for people; empty if for nothing.

    A job that does not exist needs nothing; one that ended needs what it would go on from.
    """
    found = list(_pinned(snapshot))
    if job is not None:
        found += _specs(snapshot, job)
        found += _operation(snapshot, job)
        found += _attempt(snapshot, job)
        found += _trial(snapshot, job)
        found += _next(snapshot, job)
        found += _newest_point(snapshot, job)
    return tuple(dict.fromkeys(found))


def _pinned(snapshot: SnapshotView) -> Iterator[str]:
    if snapshot.spec.pinned:
        yield "spec.pinned"


def _specs(snapshot: SnapshotView, job: JobFacts) -> Iterator[str]:
    for spec in (job.spec, job.newest):
        if spec is not None and _names(spec, snapshot):
            yield f"spec.restore of {job.meta.name}"


def _names(spec: JobSpec, snapshot: SnapshotView) -> bool:
    restore = spec.restore
    if restore.mode == "Snapshot":
        return restore.snapshot_name == snapshot.meta.name
    return restore.mode == "Path" and same_place(reach(restore.path, spec), snapshot.status.path)


def _operation(snapshot: SnapshotView, job: JobFacts) -> Iterator[str]:
    operation = job.status.operation
    if operation is None:
        return
    taken = operation.snapshot_name and operation.snapshot_name == snapshot.directory
    if taken or _is(snapshot, operation.restore_point):
        yield f"{operation.type} of {job.meta.name}"


def _attempt(snapshot: SnapshotView, job: JobFacts) -> Iterator[str]:
    attempt = job.status.attempt
    # By the lineage's log it may be another one than it was told, where that was Latest.
    began = (attempt.restore_point, attempt.restored_from)
    if not any(_is(snapshot, point) for point in began):
        return
    if not attempt.checkpointed and not _is_superseded(job.status):
        yield f"restore of {job.meta.name}"


def _trial(snapshot: SnapshotView, job: JobFacts) -> Iterator[str]:
    """What the version on trial began from is what is gone back to."""
    trial = job.status.reconciliation.trial
    if trial is not None and _is(snapshot, trial.restore_point):
        yield f"rollback of {job.meta.name}"


def _is_superseded(status: JobStatus) -> bool:
    """Whether the job was stopped with a savepoint: what it began from is not asked for again."""
    return bool(status.attempt.outcome) and status.next_restore is not None


def _next(snapshot: SnapshotView, job: JobFacts) -> Iterator[str]:
    if _is(snapshot, job.status.next_restore):
        yield f"next start of {job.meta.name}"


def _newest_point(snapshot: SnapshotView, job: JobFacts) -> Iterator[str]:
    status = job.status
    last = status.snapshots.last_savepoint
    if last is None or not same_place(last.path, snapshot.status.path):
        return
    if _is_live(status) and status.attempt.checkpointed:
        return
    if _is_newer(last, status.snapshots.last_checkpoint):
        yield f"newest restore point of {job.meta.name}"


def _is_live(status: JobStatus) -> bool:
    return status.attempt.number > 0 and not status.attempt.outcome


def _is_newer(savepoint: SavepointInfo, checkpoint: CheckpointSummary | None) -> bool:
    return checkpoint is None or savepoint.checkpoint_id >= checkpoint.id


def _is(snapshot: SnapshotView, point: RestorePointStatus | RestoredFrom | None) -> bool:
    return point is not None and same_place(point.path, snapshot.status.path)


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def victims(
    snapshots: Sequence[SnapshotView],
    retain: SavepointRetention,
    now: datetime,
    in_use: Callable[[SnapshotView], object],
) -> tuple[SnapshotView, ...]:
    """Return the snapshots whose objects to delete, oldest first.

    Of the completed savepoints of the schedule, and apart from them of those of upgrades, the
    newest `retain.count` stay that are younger than `retain.max_age`; of those that came to
    nothing, as many. Never returned are those that a person asked for or that a deleted job left,
    that are pinned, in use, still under way or being deleted already, and the newest completed one
    of each sort, however old.

    Args:
        in_use: whether something needs it; asked of those that would go, which are few.
    """
    found: dict[str, SnapshotView] = {}
    for alive in _kept(snapshots):
        found |= {s.meta.name: s for s in _surplus(alive, retain, now)}
    free = (s for s in found.values() if not s.spec.pinned and not in_use(s))
    return tuple(sorted(free, key=order))


def next_victim_at(
    snapshots: Sequence[SnapshotView], retain: SavepointRetention, now: datetime
) -> datetime | None:
    """When the next one gets too old, if any does; until then time alone adds no victim."""
    ends = [
        order(one)[0] + retain.max_age.timedelta
        if one.status.state != "Completed"
        else _completed(one)[0] + retain.max_age.timedelta
        for alive in _kept(snapshots)
        for one in alive
    ]
    return min((end for end in ends if end >= now), default=None)


def _kept(snapshots: Sequence[SnapshotView]) -> Iterator[list[SnapshotView]]:
    """Those that nobody asked for and that are not being deleted, by why they were taken."""
    for trigger in ("Periodic", "Upgrade"):
        same = (s for s in snapshots if trigger_of(s) == trigger and not is_imported(s))
        yield [s for s in same if s.meta.deleted_at is None]


def _surplus(
    snapshots: Sequence[SnapshotView], retain: SavepointRetention, now: datetime
) -> Iterator[SnapshotView]:
    completed = sorted((s for s in snapshots if s.status.state == "Completed"), key=_completed)
    failed = sorted((s for s in snapshots if s.status.state in ("Failed", "Abandoned")), key=order)
    oldest = now - retain.max_age.timedelta
    yield from (s for s in completed[:-1] if _completed(s)[0] < oldest)
    yield from completed[: -retain.count]
    yield from (s for s in failed if order(s)[0] < oldest)
    yield from failed[: -retain.count]


def _completed(snapshot: SnapshotView) -> tuple[datetime, str]:
    at = snapshot.status.completed_at or snapshot.meta.created_at or _LONG_AGO
    return at, snapshot.meta.name
