"""A snapshot that the driver was asked for. Pure.

The driver's answer is believed where it says Completed, since it answers after the manifest is in
the store. Where no answer can come any more, the store is asked.
"""

from datetime import timedelta

from moorage_api.driver import DriverState, RequestView
from moorage_operator.snapshots.naming import attempt_of, request_id
from moorage_operator.snapshots.pending import asking
from moorage_operator.snapshots.readiness import driver_is_gone
from moorage_operator.snapshots.record import of_checkpoint, of_savepoint
from moorage_operator.snapshots.retrying import void
from moorage_operator.snapshots.step import Step, changed, failed, finished, waiting
from moorage_operator.snapshots.verifying import begin_verifying
from moorage_operator.world import SnapshotWorld, Unreadable

__all__ = ["answer_of", "answered", "in_progress", "is_overdue"]

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
    again = asking(world.snapshot, status.attempt, status.request_id)
    return Step(status, (again,), reason="InProgress", again_after=world.config.busy_resync)
