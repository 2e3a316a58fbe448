"""A snapshot that the driver was asked for, by us or by an operation of its job. Pure.

The driver's answer is believed where it says Completed, since it answers after the manifest is in
the store. Where no answer can come any more, the store is asked. An operation asks the driver
itself, to stop with this savepoint: of that only what came of it is recorded.
"""

from datetime import timedelta

from moorage_api.driver import DriverState, RequestView, SavepointInfo
from moorage_api.snapshot import StoreAccess
from moorage_operator.plan import Event
from moorage_operator.snapshots.naming import attempt_of, request_id, savepoint_path
from moorage_operator.snapshots.pending import driver_is_gone, request_to_driver
from moorage_operator.snapshots.step import (
    Step,
    changed,
    failed,
    finished,
    of_checkpoint,
    of_savepoint,
    void,
    waiting,
)
from moorage_operator.snapshots.store_work import begin_verifying
from moorage_operator.store_access import access_of
from moorage_operator.world import JobFacts, SnapshotWorld, Unreadable

_ENDED = ("driver_ending", "fenced")
"""Codes of a driver that gives no more answers; what it had begun may be complete."""

_CONFLICT = "savepoint_name_conflict"
_DEFAULT_TIMEOUT = timedelta(minutes=30)
_LATE = timedelta(seconds=60)
"""What a driver has beyond the timeout that it keeps to itself."""


def in_progress(world: SnapshotWorld) -> Step:
    """Wait for the driver's answer, or look into the store for it."""
    if attempt_of(world.snapshot.status.request_id) != request_id(world.snapshot.meta.uid):
        # Restored from a backup: the request was another object's.
        status = changed(world.snapshot.status, state="Pending", request_id="", attempt=0)
        return Step(status, reason="Pending", again_after=0.0)
    view = answer_of(world)
    if view is not None and view.state in ("Completed", "Failed"):
        return answered(world, view)
    if driver_is_gone(world):
        return _vanished(world, "the driver ended before it answered")
    return _without_answer(world, view)


def _without_answer(world: SnapshotWorld, view: RequestView | None) -> Step:
    """The driver lives, and has not answered yet."""
    if is_overdue(world):
        return _vanished(world, "the driver did not answer in time: see spec.savepoint.timeout")
    if isinstance(world.report, Unreadable):
        text = f"the driver does not answer: {world.report.message}"
        return waiting(world, "DriverUnreachable", text, world.config.busy_resync)
    if view is not None:
        return waiting(world, "InProgress", "", world.config.busy_resync)
    return _ask_again(world)


def answer_of(world: SnapshotWorld) -> RequestView | None:
    """What the driver that was asked says of the request; None if it says nothing."""
    report, status = world.report, world.snapshot.status
    if not isinstance(report, DriverState) or report.attempt != status.attempt:
        return None
    return next((r for r in report.requests if r.request_id == status.request_id), None)


def answered(world: SnapshotWorld, view: RequestView) -> Step:
    """Keep what the driver said at last."""
    status = world.snapshot.status
    if view.state == "Completed":
        if view.savepoint is not None and world.snapshot.spec.type == "Savepoint":
            done = of_savepoint(status, view.savepoint, world.now)
            return finished(world, "DriverReported", done)
        if view.checkpoint is not None and world.snapshot.spec.type == "Checkpoint":
            return finished(world, "DriverReported", of_checkpoint(status, view.checkpoint))
        return _vanished(world, "the driver did not say what it made")
    code = view.error.code if view.error else ""
    message = view.error.message if view.error else "the driver gave no reason"
    if code == _CONFLICT:
        return failed(world, "SavepointNameConflict", message, event="SavepointNameConflict")
    if code in _ENDED:
        return _vanished(world, message)
    return void(world, "DriverFailed", f"{code}: {message}" if code else message, answered=True)


def is_overdue(world: SnapshotWorld) -> bool:
    """Whether the driver should have answered by now, whatever it is doing."""
    job, started = world.job, world.snapshot.status.started_at
    spec = job.spec if job is not None else None
    limit = spec.savepoint.timeout.timedelta if spec is not None else _DEFAULT_TIMEOUT
    return started is not None and world.now > started + limit + _LATE


def _vanished(world: SnapshotWorld, message: str) -> Step:
    """A savepoint may be there all the same; a checkpoint is the lineage's, whoever asked."""
    if world.snapshot.spec.type == "Checkpoint":
        return void(world, "DriverLost", message, answered=False)
    return begin_verifying(world, world.snapshot.status, message)


def _ask_again(world: SnapshotWorld) -> Step:
    """The driver knows of no such request: it did not arrive, or the report is older than it."""
    status, job = world.snapshot.status, world.job
    if job is not None and job.status.operation is not None:
        back = changed(status, state="Pending", message="")
        return Step(back, reason="JobChanging", again_after=world.config.busy_resync)
    again = request_to_driver(world.snapshot, status.attempt, status.request_id)
    return Step(status, (again,), reason="InProgress", again_after=world.config.busy_resync)


def of_operation(world: SnapshotWorld) -> Step:
    """Wait for the operation, and then keep what it made."""
    job, status = world.job, world.snapshot.status
    if job is None:
        if status.access is None:
            return failed(world, "JobMissing", "the job is gone", state="Abandoned")
        return begin_verifying(world, status, "the job is gone")
    done = _made_by_operation(world, job)
    if done is not None:
        return finished(world, "DriverReported", of_savepoint(status, done, world.now))
    operation = job.status.operation
    if operation is not None and operation.snapshot_name == world.snapshot.directory:
        return _operation_under_way(world, job, operation.snapshot_request_id)
    if not status.path and not _operation_path(world, job):
        return failed(world, "NoSavepointDir", "the job has no place for savepoints")
    placed = changed(
        status,
        path=status.path or _operation_path(world, job),
        access=_operation_access(world, job),
    )
    return begin_verifying(world, placed, "the operation ended and named no savepoint")


def _operation_under_way(world: SnapshotWorld, job: JobFacts, request: str) -> Step:
    status = world.snapshot.status
    started = status.state == "InProgress"
    now = changed(
        status,
        state="InProgress",
        request_id=request or status.request_id,
        attempt=status.attempt or job.status.attempt.number,
        path=status.path or _operation_path(world, job),
        started_at=status.started_at or world.now,
        access=_operation_access(world, job),
        message="",
    )
    told = Event("Normal", "SavepointStarted", f"Savepoint is taken to {now.path}", "started-0")
    events = () if started else (told,)
    return Step(now, (), events, "InProgress", again_after=world.config.busy_resync)


def _made_by_operation(world: SnapshotWorld, job: JobFacts) -> SavepointInfo | None:
    """The savepoint of this name, as the job's status or its driver reports it."""
    reported = [job.status.snapshots.last_savepoint]
    if isinstance(world.report, DriverState):
        reported += [r.savepoint for r in world.report.requests if r.state == "Completed"]
    name = world.snapshot.directory
    return next((one for one in reported if one is not None and one.name == name), None)


def _operation_path(world: SnapshotWorld, job: JobFacts) -> str:
    spec = job.spec or job.newest
    return savepoint_path(spec, world.snapshot.directory) if spec is not None else ""


def _operation_access(world: SnapshotWorld, job: JobFacts) -> StoreAccess | None:
    spec = job.spec or job.newest
    return access_of(spec) if spec is not None else world.snapshot.status.access
