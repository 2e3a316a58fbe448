"""A savepoint that an operation of the job takes: it only records what came of it. Pure.

The operation asks the driver itself, to stop with this savepoint; see the job's own decisions.
"""

from moorage_api.driver import DriverState, SavepointInfo
from moorage_api.snapshot import StoreAccess
from moorage_operator.plan import Event
from moorage_operator.snapshots.access import access_of
from moorage_operator.snapshots.naming import savepoint_path
from moorage_operator.snapshots.record import of_savepoint
from moorage_operator.snapshots.step import Step, changed, failed, finished
from moorage_operator.snapshots.verifying import begin_verifying
from moorage_operator.world import JobFacts, SnapshotWorld

__all__ = ["following"]


def following(world: SnapshotWorld) -> Step:
    """Wait for the operation, and then keep what it made."""
    job, status = world.job, world.snapshot.status
    if job is None:
        if status.access is None:
            return failed(world, "JobMissing", "the job is gone", state="Abandoned")
        return begin_verifying(world, status, "the job is gone")
    done = _made(world, job)
    if done is not None:
        return finished(world, "DriverReported", of_savepoint(status, done, world.now))
    operation = job.status.operation
    if operation is not None and operation.snapshot_name == world.snapshot.directory:
        return _under_way(world, job, operation.snapshot_request_id)
    if not status.path and not _path(world, job):
        return failed(world, "NoSavepointDir", "the job has no place for savepoints")
    placed = changed(status, path=status.path or _path(world, job), access=_access(world, job))
    return begin_verifying(world, placed, "the operation ended and named no savepoint")


def _under_way(world: SnapshotWorld, job: JobFacts, request: str) -> Step:
    status = world.snapshot.status
    started = status.state == "InProgress"
    now = changed(
        status,
        state="InProgress",
        request_id=request or status.request_id,
        attempt=status.attempt or job.status.attempt.number,
        path=status.path or _path(world, job),
        started_at=status.started_at or world.now,
        access=_access(world, job),
        message="",
    )
    told = Event("Normal", "SavepointStarted", f"Savepoint is taken to {now.path}", "started-0")
    events = () if started else (told,)
    return Step(now, (), events, "InProgress", again_after=world.config.busy_resync)


def _made(world: SnapshotWorld, job: JobFacts) -> SavepointInfo | None:
    """The savepoint of this name, as the job's status or its driver reports it."""
    reported = [job.status.snapshots.last_savepoint]
    if isinstance(world.report, DriverState):
        reported += [r.savepoint for r in world.report.requests if r.state == "Completed"]
    name = world.snapshot.directory
    return next((one for one in reported if one is not None and one.name == name), None)


def _path(world: SnapshotWorld, job: JobFacts) -> str:
    spec = job.spec or job.newest
    return savepoint_path(spec, world.snapshot.directory) if spec is not None else ""


def _access(world: SnapshotWorld, job: JobFacts) -> StoreAccess | None:
    spec = job.spec or job.newest
    return access_of(spec) if spec is not None else world.snapshot.status.access
