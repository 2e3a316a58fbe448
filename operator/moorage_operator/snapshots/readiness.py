"""Whether a job can take a snapshot now, and if not, why. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from moorage_api.driver import DriverState
from moorage_operator.snapshots.naming import (
    is_copied,
    is_follower,
    is_imported,
    is_periodic,
    order,
)
from moorage_operator.world import JobFacts, SnapshotView, SnapshotWorld, Unreadable

__all__ = ["Obstacle", "driver_is_gone", "is_under_way", "obstacle", "successor"]

_HOLDING = ("Upgrade", "Rescale", "Rollback", "Redeploy")
_RUNNING = ("running", "checkpointing")


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why nothing is asked of the driver now.

    Attributes:
        patient: it passes by itself, so that the time does not count towards startDeadline.
    """

    reason: str
    message: str
    patient: bool = False


def obstacle(world: SnapshotWorld) -> Obstacle | None:
    """Why the snapshot cannot be asked for; None if it can."""
    job = world.job
    if job is None:
        name = world.snapshot.spec.job_ref.name
        return Obstacle("JobMissing", f"there is no StatefulSparkJob {name} in the namespace")
    return _of_job(job) or _of_driver(world, job) or _of_siblings(world)


def driver_is_gone(world: SnapshotWorld) -> bool:
    """Whether the driver that was asked has ended, whatever it did before."""
    job, status = world.job, world.snapshot.status
    if job is None:
        return True
    attempt = job.status.attempt
    return attempt.number != status.attempt or bool(attempt.outcome)


def is_under_way(snapshot: SnapshotView) -> bool:
    """Whether a driver may be at work on it."""
    status = snapshot.status
    if is_imported(snapshot) or is_copied(status):
        return False
    return status.state in ("InProgress", "Verifying") and not status.completed_at


def successor(world: SnapshotWorld) -> SnapshotView | None:
    """The newer periodic snapshot that waits as well, and makes this periodic one needless."""
    if not is_periodic(world.snapshot) or isinstance(world.siblings, Unreadable):
        return None
    mine = order(world.snapshot)
    newer = (s for s in _waiting(world.siblings) if is_periodic(s) and order(s) > mine)
    return next(newer, None)


def _of_job(job: JobFacts) -> Obstacle | None:
    status, name = job.status, job.meta.name
    if job.meta.annotation("paused") == "true":
        return Obstacle("JobPaused", f"{name} is paused by an annotation", patient=True)
    operation = status.operation
    if operation is not None and operation.type in _HOLDING and not status.blocked_reason:
        text = f"waits until {operation.type} of {name} is done"
        return Obstacle("JobChanging", text, patient=True)
    attempt = status.attempt
    running = attempt.number > 0 and not attempt.outcome and attempt.running_since is not None
    if operation is not None or not running or status.blocked_reason:
        return Obstacle("JobNotRunning", _why_not(job))
    return None


def _why_not(job: JobFacts) -> str:
    """Why nobody can take it; of a job that sleeps, that it has nothing to copy."""
    status, name = job.status, job.meta.name
    if status.phase != "Suspended":
        return f"{name} is not running: phase={status.phase}"
    return (
        f"{name} is suspended and has no state that could be copied: set spec.desiredState to "
        "Running"
    )


def _of_driver(world: SnapshotWorld, job: JobFacts) -> Obstacle | None:
    report = world.report
    if isinstance(report, Unreadable):
        return Obstacle("DriverUnreachable", f"the driver does not answer: {report.message}")
    if isinstance(report, DriverState):
        if report.attempt != job.status.attempt.number:
            return Obstacle("DriverUnreachable", "an older driver answers; waits for the new one")
        if report.phase not in _RUNNING:
            return Obstacle("JobNotRunning", f"the driver does not run the stream: {report.phase}")
    return None


def _of_siblings(world: SnapshotWorld) -> Obstacle | None:
    if isinstance(world.siblings, Unreadable):
        text = f"the job's other snapshots cannot be read: {world.siblings.message}"
        return Obstacle("SnapshotsUnreadable", text, patient=True)
    busy = next((s for s in world.siblings if is_under_way(s)), None)
    mine = order(world.snapshot)
    first = busy or next((s for s in _waiting(world.siblings) if order(s) < mine), None)
    if first is None:
        return None
    return Obstacle("Queued", f"waits for {first.meta.name}: one at a time", patient=True)


def _waiting(siblings: Iterable[SnapshotView]) -> list[SnapshotView]:
    """Those that will ask the driver themselves."""
    return [
        s
        for s in siblings
        if s.status.state == "Pending"
        and s.meta.deleted_at is None
        and not is_imported(s)
        and not is_follower(s)
    ]
