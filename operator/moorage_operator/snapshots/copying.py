"""A savepoint of a job that sleeps: copied from what the job was stopped with. Pure.

No driver is needed for it. What a start would begin from is copied by an errand into the
savepoint's own directory, and is from then on a savepoint like any other: nothing is shared with
the job's own, which goes when its turn comes. An edit that wakes the job ends no copy; one that
came to nothing is followed by asking the driver.
"""

from moorage_api.snapshot import SnapshotStatus
from moorage_operator.plan import Errand, Event, RunErrand
from moorage_operator.snapshots.access import access_of, errand_refs
from moorage_operator.snapshots.naming import (
    COPY,
    attempt_of,
    is_follower,
    next_errand,
    number_of,
    reach,
    request_id,
    savepoint_path,
)
from moorage_operator.snapshots.record import of_verified
from moorage_operator.snapshots.retrying import pause, void
from moorage_operator.snapshots.step import Step, changed, event_name, failed, finished, no_place
from moorage_operator.world import ErrandView, JobFacts, SnapshotWorld

__all__ = ["copied", "copying"]

_ASLEEP = ("Suspended", "Finished")
_LONGEST_PAUSE = 300.0
_CONFLICT = "savepoint_name_conflict"


def copied(world: SnapshotWorld) -> Step | None:
    """Begin to copy what the job was stopped with; None where there is nothing of the kind."""
    job, snapshot = world.job, world.snapshot
    if job is None or snapshot.spec.type != "Savepoint" or is_follower(snapshot):
        return None
    spec, source = job.spec or job.newest, _source(job)
    if spec is None or not source:
        return None
    if not spec.state.savepoint_dir:
        return no_place(world, job.meta.name)
    status = changed(
        snapshot.status,
        request_id=request_id(snapshot.meta.uid),
        attempt=job.status.attempt.number,
        path=savepoint_path(spec, snapshot.directory),
        source=source,
        started_at=world.now,
        waiting_since=None,
        access=access_of(spec),
    )
    text = f"{job.meta.name} is {job.status.phase.lower()}: what is kept in {source} is copied"
    told = Event("Normal", event_name(world, "Started"), text, f"started-{status.failures}")
    return _begin(world, status, (told,))


def copying(world: SnapshotWorld) -> Step:
    """Judge what became of the copy."""
    status = world.snapshot.status
    if status.next_retry_at is not None:
        left = (status.next_retry_at - world.now).total_seconds()
        return Step(status, again_after=left) if left > 0 else _begin(world, status)
    if errand_refs(world) is None:
        text = "nobody knows how to reach the store: the job is gone"
        return failed(world, "JobMissing", text, state="Abandoned")
    view = world.errands.get(status.errand)
    if view is None or view.state == "Pending":
        effects = _errand(status) if view is None or view.message else ()
        shown = changed(status, message=view.message) if view and view.message else status
        return Step(shown, effects, again_after=world.config.busy_resync)
    return _done(world, view) if view.state == "Completed" else _not_done(world, view)


def _source(job: JobFacts) -> str:
    """What a start would begin from: the savepoint that it was stopped with, else the lineage."""
    status, spec = job.status, job.spec or job.newest
    asleep = status.phase in _ASLEEP and status.operation is None and not status.blocked_reason
    let_be = job.meta.annotation("paused") == "true" or job.meta.deleted_at is not None
    if not asleep or not status.attempt.outcome or let_be:
        return ""
    point = status.next_restore
    if point is not None:
        return point.path
    known = status.snapshots.last_checkpoint is not None and spec is not None
    return reach(spec.state.checkpoint_dir, spec) if known and spec is not None else ""


def _begin(world: SnapshotWorld, status: SnapshotStatus, told: tuple[Event, ...] = ()) -> Step:
    errand = next_errand(world.snapshot.meta.uid, COPY, status.errand)
    text = f"what is kept in {status.source} is copied to {status.path}"
    going = changed(status, state="Verifying", errand=errand, next_retry_at=None, message=text)
    again = world.config.busy_resync
    return Step(going, _errand(going), told, reason="Copying", again_after=again)


def _errand(status: SnapshotStatus) -> tuple[RunErrand, ...]:
    attempt = attempt_of(status.request_id)
    errand = Errand(status.errand, "Copy", status.path, attempt=attempt, source=status.source)
    return (RunErrand(errand),)


def _done(world: SnapshotWorld, view: ErrandView) -> Step:
    status = world.snapshot.status
    if not view.result.get("found"):
        text = f"nothing to copy is in {status.source} any more"
        return void(world, "NotFound", text, answered=False)
    text = f"{status.path} is complete, copied from {status.source}"
    done = changed(of_verified(status, view.result, world.now), path=status.path)
    return finished(world, "ManifestRead", done, text)


def _not_done(world: SnapshotWorld, view: ErrandView) -> Step:
    """A store that is down or closed is waited for; else it is for the driver, if one comes."""
    status = world.snapshot.status
    if view.code == _CONFLICT:
        return failed(world, "SavepointNameConflict", view.message, event="SavepointNameConflict")
    if not view.retryable and view.code != "store_denied":
        return void(world, "CopyFailed", view.message, answered=False)
    wait = pause(number_of(status.errand), _LONGEST_PAUSE)
    later = changed(status, next_retry_at=world.now + wait, message=view.message)
    reason = "StoreUnavailable" if view.retryable else "StoreDenied"
    return Step(later, reason=reason, again_after=wait.total_seconds())
