"""A snapshot that nobody was asked for yet, or that is to be tried again. Pure."""

from datetime import datetime

from moorage_api import JobSpec
from moorage_api.driver import (
    CHECKPOINTS_PATH,
    SAVEPOINTS_PATH,
    CheckpointBody,
    SavepointBody,
)
from moorage_operator.plan import AskDriver, Event
from moorage_operator.snapshots.access import access_of
from moorage_operator.snapshots.copying import copied
from moorage_operator.snapshots.naming import (
    attempt_of,
    is_directory_name,
    is_follower,
    is_imported,
    order,
    reach,
    request_id,
    savepoint_path,
)
from moorage_operator.snapshots.readiness import Obstacle, is_under_way, obstacle, successor
from moorage_operator.snapshots.record import of_checkpoint
from moorage_operator.snapshots.step import (
    Step,
    changed,
    event_name,
    failed,
    finished,
    no_place,
)
from moorage_operator.snapshots.verifying import begin_verifying
from moorage_operator.world import JobFacts, SnapshotView, SnapshotWorld, Unreadable

__all__ = ["asking", "pending"]


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
    return _promoted(world) or copied(world) or _asked(world)


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
        reason = obstacle(world) or Obstacle("JobNotReadable", "the job's spec cannot be read")
        return _wait(world, reason)
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
        return _wait(world, Obstacle("NameBusy", text))
    text = f"the name is taken: name={name} by={rival.meta.name}; choose another name"
    return failed(world, "SavepointNameConflict", text, event="SavepointNameConflict")


def _is_rival(other: SnapshotView, mine: SnapshotView) -> bool:
    if other.spec.type != "Savepoint" or is_imported(other) or other.directory != mine.directory:
        return False
    if other.status.state in ("Failed", "Abandoned"):
        return False
    earlier = is_under_way(other) or other.status.state in ("Completed", "Deleting")
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
    status = of_checkpoint(changed(snapshot.status, started_at=world.now), last)
    text = f"the job is not running; its last checkpoint is {last.path}"
    return finished(world, "DriverReported", status, text)


def _asked(world: SnapshotWorld) -> Step:
    job = world.job
    if job is not None and job.meta.deleted_at is not None:
        text = f"{job.meta.name} is being deleted"
        return failed(world, "JobDeleted", text, state="Abandoned")
    reason = obstacle(world)
    if reason is not None or job is None or job.spec is None:
        return _wait(world, reason or Obstacle("JobNotReadable", "the job's spec cannot be read"))
    if world.snapshot.spec.type == "Savepoint" and job.spec.state.savepoint_dir is None:
        return no_place(world, job.meta.name)
    return _ask(world, job, job.spec)


def _wait(world: SnapshotWorld, reason: Obstacle) -> Step:
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
    """From when startDeadline counts.

    From the object's making, the last try, or the end of a wait that passes by itself: what went
    before that one does not count.
    """
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
        request_id=_request(snapshot),
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
    effect = asking(snapshot, status.attempt, status.request_id)
    return Step(status, (effect,), (told,), "InProgress", again_after=world.config.busy_resync)


def asking(snapshot: SnapshotView, attempt: int, request: str) -> AskDriver:
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


def _request(snapshot: SnapshotView) -> str:
    """The id of the first try, or the one that was kept for the next; never another object's."""
    mine, kept = request_id(snapshot.meta.uid), snapshot.status.request_id
    return kept if attempt_of(kept) == mine else mine
