"""What a snapshot is needed for at the moment: as long as it is, its data must stay. Pure."""

from collections.abc import Iterator

from moorage_api import JobSpec
from moorage_api.driver import CheckpointInfo, SavepointInfo
from moorage_api.status import JobStatus, RestorePoint
from moorage_operator.snapshots.naming import reach, same_place
from moorage_operator.world import JobFacts, SnapshotView

__all__ = ["uses"]


def uses(snapshot: SnapshotView, job: JobFacts | None) -> tuple[str, ...]:
    """Say for what the snapshot is needed, in words for people; empty if for nothing.

    A job that does not exist needs nothing; one that ended needs what it would go on from.
    """
    found = list(_pinned(snapshot))
    if job is not None:
        found += _specs(snapshot, job)
        found += _operation(snapshot, job)
        found += _attempt(snapshot, job)
        found += _next(snapshot, job)
        found += _newest(snapshot, job)
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
    attempt, status = job.status.attempt, job.status
    if not _is(snapshot, attempt.restore_point):
        return
    if not attempt.checkpointed and not _is_superseded(job.status):
        yield f"restore of {job.meta.name}"
    done = status.reconciliation
    if done.stable_revision and done.stable_revision != done.current_revision:
        yield f"rollback of {job.meta.name}"


def _is_superseded(status: JobStatus) -> bool:
    """Whether the job was stopped with a savepoint: what it began from is not asked for again."""
    return bool(status.attempt.outcome) and status.next_restore is not None


def _next(snapshot: SnapshotView, job: JobFacts) -> Iterator[str]:
    if _is(snapshot, job.status.next_restore):
        yield f"next start of {job.meta.name}"


def _newest(snapshot: SnapshotView, job: JobFacts) -> Iterator[str]:
    status = job.status
    last = status.snapshots.last_savepoint
    if _is_live(status) or last is None or not same_place(last.path, snapshot.status.path):
        return
    if _is_newer(last, status.snapshots.last_checkpoint):
        yield f"newest restore point of {job.meta.name}"


def _is_live(status: JobStatus) -> bool:
    return status.attempt.number > 0 and not status.attempt.outcome


def _is_newer(savepoint: SavepointInfo, checkpoint: CheckpointInfo | None) -> bool:
    return checkpoint is None or savepoint.checkpoint_id >= checkpoint.id


def _is(snapshot: SnapshotView, point: RestorePoint | None) -> bool:
    return point is not None and same_place(point.path, snapshot.status.path)
