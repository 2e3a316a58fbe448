"""A snapshot that nobody was asked for yet, or that is to be tried again. Pure.

Whether its job can take it now, and if not, why; then the request to the driver.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from moorage_api import JobSpec
from moorage_api.driver import (
    CHECKPOINTS_PATH,
    SAVEPOINTS_PATH,
    CheckpointBody,
    DriverState,
    SavepointBody,
)
from moorage_operator.plan import AskDriver, Event
from moorage_operator.snapshots.naming import (
    attempt_of,
    is_copied,
    is_directory_name,
    is_follower,
    is_imported,
    is_periodic,
    order,
    reach,
    request_id,
    savepoint_path,
)
from moorage_operator.snapshots.step import (
    Step,
    changed,
    event_name,
    failed,
    finished,
    no_place,
    of_checkpoint,
)
from moorage_operator.snapshots.store_work import begin_copying, begin_verifying
from moorage_operator.store_access import access_of
from moorage_operator.world import JobFacts, SnapshotView, SnapshotWorld, Unreadable

_HOLDING = ("Upgrade", "Rescale", "Rollback", "Redeploy")
_RUNNING = ("running", "checkpointing")


@dataclass(frozen=True, slots=True)
class NotReady:
    """Why nothing is asked of the driver now."""

    reason: str
    message: str
    # It passes by itself, so that the time does not count towards startDeadline
    patient: bool = False


def why_not_ready(world: SnapshotWorld) -> NotReady | None:
    """Why the snapshot cannot be asked for; None if it can."""
    job = world.job
    if job is None:
        name = world.snapshot.spec.job_ref.name
        return NotReady("JobMissing", f"there is no StatefulSparkJob {name} in the namespace")
    return _of_job(job) or _of_driver(world, job) or _of_siblings(world)


def driver_is_gone(world: SnapshotWorld) -> bool:
    """Whether the driver that was asked has ended, whatever it did before."""
    job, status = world.job, world.snapshot.status
    if job is None:
        return True
    attempt = job.status.attempt
    return attempt.number != status.attempt or bool(attempt.outcome)


def successor(world: SnapshotWorld) -> SnapshotView | None:
    """The newer periodic snapshot that waits as well, and makes this periodic one needless."""
    if not is_periodic(world.snapshot) or isinstance(world.siblings, Unreadable):
        return None
    mine = order(world.snapshot)
    newer = (s for s in _waiting(world.siblings) if is_periodic(s) and order(s) > mine)
    return next(newer, None)


def _of_job(job: JobFacts) -> NotReady | None:
    status, name = job.status, job.meta.name
    if job.meta.annotation("paused") == "true":
        return NotReady("JobPaused", f"{name} is paused by an annotation", patient=True)
    operation = status.operation
    if operation is not None and operation.type in _HOLDING and not status.blocked_reason:
        text = f"waits until {operation.type} of {name} is done"
        return NotReady("JobChanging", text, patient=True)
    attempt = status.attempt
    running = attempt.number > 0 and not attempt.outcome and attempt.running_since is not None
    if operation is not None or not running or status.blocked_reason:
        return NotReady("JobNotRunning", _why_not(job))
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


def _of_driver(world: SnapshotWorld, job: JobFacts) -> NotReady | None:
    report = world.report
    if isinstance(report, Unreadable):
        return NotReady("DriverUnreachable", f"the driver does not answer: {report.message}")
    if isinstance(report, DriverState):
        if report.attempt != job.status.attempt.number:
            return NotReady("DriverUnreachable", "an older driver answers; waits for the new one")
        if report.phase not in _RUNNING:
            return NotReady("JobNotRunning", f"the driver does not run the stream: {report.phase}")
    return None


def _of_siblings(world: SnapshotWorld) -> NotReady | None:
    if isinstance(world.siblings, Unreadable):
        text = f"the job's other snapshots cannot be read: {world.siblings.message}"
        return NotReady("SnapshotsUnreadable", text, patient=True)
    # One that is looked for in the store is none of the driver's any more; and a store that is
    # closed, such as one that the job has left, may keep it so for good.
    busy = next((s for s in world.siblings if s.status.state == "InProgress"), None)
    mine = order(world.snapshot)
    first = busy or next((s for s in _waiting(world.siblings) if order(s) < mine), None)
    if first is None:
        return None
    return NotReady("Queued", f"waits for {first.meta.name}: one at a time", patient=True)


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


def pending(world: SnapshotWorld) -> Step:
    """Wait, give up, or ask the job's driver."""
    problem = _problem(world)
    if problem:
        return failed(world, "InvalidSpec", problem)
    if is_imported(world.snapshot):
        return _import(world)
    if (conflict := _conflict(world)) is not None:
        return conflict
    if (newer := successor(world)) is not None:
        text = f"{newer.meta.name} takes its place: the job was not ready in between"
        return failed(world, "Superseded", text, state="Abandoned")
    retry = world.snapshot.status.next_retry_at
    if retry is not None and retry > world.now:
        return Step(
            world.snapshot.status,
            reason="RetryWait",
            again_after=(retry - world.now).total_seconds(),
        )
    return _promoted(world) or begin_copying(world) or _asked(world)


def _problem(world: SnapshotWorld) -> str:
    """What a person must change, naming the field and the fix."""
    found = [str(problem) for problem in world.problems]
    snapshot = world.snapshot
    if not found and not is_directory_name(snapshot.directory):
        found.append(
            f"spec.name: is missing, and metadata.name cannot be a directory's: "
            f"{snapshot.meta.name!r}; give a name of at most 63 letters, digits, '.', '_' and '-'"
        )
    return "; ".join(found)


def _import(world: SnapshotWorld) -> Step:
    job = world.job
    spec = (job.spec or job.newest) if job is not None else None
    if spec is None:
        reason = why_not_ready(world) or NotReady("JobNotReadable", "the job's spec cannot be read")
        return _wait_for(world, reason)
    path = reach(world.snapshot.spec.existing_path, spec)
    status = changed(world.snapshot.status, path=path, started_at=world.now, access=access_of(spec))
    return begin_verifying(world, status, "the snapshot is looked at")


def _conflict(world: SnapshotWorld) -> Step | None:
    """Another object has the directory; what is only on disk is found by the driver."""
    if world.snapshot.spec.type != "Savepoint" or isinstance(world.siblings, Unreadable):
        return None
    rivals = [s for s in world.siblings if _is_rival(s, world.snapshot)]
    if not rivals:
        return None
    rival, name = rivals[0], world.snapshot.directory
    if rival.meta.deleted_at is not None:
        text = f"waits until {rival.meta.name} of the same name is deleted: name={name}"
        return _wait_for(world, NotReady("NameBusy", text))
    text = f"the name is taken: name={name} by={rival.meta.name}; choose another name"
    return failed(world, "SavepointNameConflict", text, event="SavepointNameConflict")


def _is_rival(other: SnapshotView, mine: SnapshotView) -> bool:
    if other.spec.type != "Savepoint" or is_imported(other) or other.directory != mine.directory:
        return False
    if other.status.state in ("Failed", "Abandoned"):
        return False
    begun = other.status.state in ("InProgress", "Verifying") and not is_copied(other.status)
    earlier = begun or other.status.state in ("Completed", "Deleting")
    return earlier or order(other) < order(mine)


def _promoted(world: SnapshotWorld) -> Step | None:
    """A job that is suspended has the checkpoint that is asked for already: its last one."""
    job, snapshot = world.job, world.snapshot
    if job is None or snapshot.spec.type != "Checkpoint" or is_follower(snapshot):
        return None
    last = job.status.snapshots.last_checkpoint
    attempt = job.status.attempt
    if last is None or not attempt.outcome or job.status.operation is not None:
        return None
    if attempt.outcome == "Finished" and _discards_when_finished(job):
        return None
    status = of_checkpoint(changed(snapshot.status, started_at=world.now), last)
    text = f"the job is not running; its last checkpoint is {last.path}"
    return finished(world, "DriverReported", status, text)


def _discards_when_finished(job: JobFacts) -> bool:
    """Whether the driver deleted what it had reported: each of these policies says so."""
    return job.spec is None or job.spec.checkpoint.externalized_checkpoint_retention is not None


def _asked(world: SnapshotWorld) -> Step:
    job = world.job
    if job is not None and job.meta.deleted_at is not None:
        text = f"{job.meta.name} is being deleted"
        return failed(world, "JobDeleted", text, state="Abandoned")
    reason = why_not_ready(world)
    if reason is not None or job is None or job.spec is None:
        return _wait_for(
            world, reason or NotReady("JobNotReadable", "the job's spec cannot be read")
        )
    if world.snapshot.spec.type == "Savepoint" and job.spec.state.savepoint_dir is None:
        return no_place(world, job.meta.name)
    return _ask(world, job, job.spec)


def _wait_for(world: SnapshotWorld, reason: NotReady) -> Step:
    """Wait, but not longer than startDeadline for what may never come."""
    if reason.patient:
        status = changed(
            world.snapshot.status, message=reason.message, waiting_since=None, next_retry_at=None
        )
        return Step(status, reason=reason.reason)
    since, waited = _since(world), world.snapshot.spec.start_deadline
    left = (since + waited.timedelta - world.now).total_seconds()
    if left > 0:
        status = changed(world.snapshot.status, message=reason.message, waiting_since=since)
        return Step(status, reason=reason.reason, again_after=min(world.config.resync, left))
    text = f"{reason.message}; given up after startDeadline={waited}"
    return failed(world, reason.reason, text, state="Abandoned")


def _since(world: SnapshotWorld) -> datetime:
    """From when startDeadline counts."""
    # From the object's making, the last try, or the end of a wait that passes by itself: what went
    # before that one does not count.
    status = world.snapshot.status
    if status.waiting_since is not None:
        return status.waiting_since
    if status.next_retry_at is not None:
        return status.next_retry_at
    if status.message:
        return world.now
    return status.started_at or world.snapshot.meta.created_at or world.now


def _ask(world: SnapshotWorld, job: JobFacts, spec: JobSpec) -> Step:
    """Ask the driver; the request's id is in the status before."""
    snapshot = world.snapshot
    savepoint = snapshot.spec.type == "Savepoint"
    status = changed(
        snapshot.status,
        state="InProgress",
        request_id=_request_id(snapshot),
        attempt=job.status.attempt.number,
        path=savepoint_path(spec, snapshot.directory) if savepoint else "",
        started_at=world.now,
        next_retry_at=None,
        waiting_since=None,
        message="",
        access=access_of(spec),
    )
    text = f"{snapshot.spec.type} is taken" + (f" to {status.path}" if savepoint else "")
    told = Event("Normal", event_name(world, "Started"), text, f"started-{status.failures}")
    effect = request_to_driver(snapshot, status.attempt, status.request_id)
    return Step(status, (effect,), (told,), "InProgress", again_after=world.config.busy_resync)


def request_to_driver(snapshot: SnapshotView, attempt: int, request: str) -> AskDriver:
    """The request; the same one for the same id."""
    if snapshot.spec.type == "Checkpoint":
        return AskDriver(attempt, CHECKPOINTS_PATH, CheckpointBody(request_id=request))
    first = attempt_of(request)
    body = SavepointBody(
        request_id=request,
        attempt=None if first == request else first,
        name=snapshot.directory,
        format=snapshot.spec.format,
    )
    return AskDriver(attempt, SAVEPOINTS_PATH, body)


def _request_id(snapshot: SnapshotView) -> str:
    """The id of the first try, or the one that was kept for the next; never another object's."""
    mine, kept = request_id(snapshot.meta.uid), snapshot.status.request_id
    return kept if attempt_of(kept) == mine else mine
