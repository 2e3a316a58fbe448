"""Snapshots that are looked for, or copied, in the store, without a driver. Pure.

Of some only the store can tell what became of them. A savepoint of a job that sleeps is copied from
what the job was stopped with, into a directory of its own: nothing is shared with the job's own
restore point, which goes when its turn comes. An edit that wakes the job ends no copy; one that
came to nothing is followed by asking the driver.
"""

from moorage_api.snapshot import SnapshotStatus
from moorage_operator.plan import Event, RunStoreTask, StoreTask
from moorage_operator.snapshots.naming import (
    COPY,
    attempt_of,
    is_follower,
    is_imported,
    next_store_task,
    number_of,
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
    of_verified,
    pause,
    void,
)
from moorage_operator.store_access import access_of, store_task_refs
from moorage_operator.world import JobFacts, SnapshotWorld, StoreTaskView

_VERIFY = "verify"
_LONGEST_PAUSE = 300.0
_WAIT_FOR_A_PERSON = ("store_denied", "credentials_missing")


def begin_verifying(world: SnapshotWorld, status: SnapshotStatus, message: str) -> Step:
    """Look at the data: a store task of an id of its own, since what earlier ones saw is old."""
    store_task = next_store_task(world.snapshot.meta.uid, _VERIFY, status.store_task)
    looking = changed(
        status, state="Verifying", store_task=store_task, next_retry_at=None, message=message
    )
    return Step(
        looking,
        _verify_store_task(looking),
        reason="Verifying",
        again_after=world.config.busy_resync,
    )


def verifying(world: SnapshotWorld) -> Step:
    """Judge what the store task found."""
    status = world.snapshot.status
    if status.next_retry_at is not None:
        left = (status.next_retry_at - world.now).total_seconds()
        if left > 0:
            return Step(status, again_after=left)
        return begin_verifying(world, status, status.message)
    if store_task_refs(world) is None:
        text = "nobody knows how to reach the store: the job is gone"
        return failed(world, "JobMissing", text, state="Abandoned")
    view = world.store_tasks.get(status.store_task)
    if view is not None and view.state == "Completed":
        return _looked_at(world, view)
    if view is not None and view.state == "Failed":
        return _not_looked_at(world, view)
    held = view.message if view is not None else ""
    effects = _verify_store_task(status) if view is None or held else ()
    shown = changed(status, message=held) if held and is_imported(world.snapshot) else status
    return Step(shown, effects, again_after=world.config.busy_resync)


def _verify_store_task(status: SnapshotStatus) -> tuple[RunStoreTask, ...]:
    return (RunStoreTask(StoreTask(status.store_task, "Verify", status.path)),)


def _looked_at(world: SnapshotWorld, view: StoreTaskView) -> Step:
    snapshot, status = world.snapshot, world.snapshot.status
    result = view.result
    if result.get("found") and result.get("kind") == "checkpoint":
        text = (
            f"spec.existingPath: is a checkpoint, which shares files with others of its lineage: "
            f"{status.path}; copy it first with moorage snapshots copy"
        )
        return failed(world, "NotASavepoint", text)
    owned = is_imported(snapshot) or _is_ours(status, str(result.get("attempt", "")))
    if result.get("found") and owned:
        return finished(world, "ManifestRead", of_verified(status, result, world.now))
    if result.get("attempt") and not owned:
        text = f"another savepoint has the directory: path={status.path}; choose another name"
        return failed(world, "SavepointNameConflict", text, event="SavepointNameConflict")
    if is_imported(snapshot):
        text = f"spec.existingPath: there is no savepoint: {status.path}; name its directory"
        return failed(world, "NotFound", text)
    text = f"{status.message or 'not completed'}; no complete savepoint at {status.path}"
    if is_follower(snapshot):
        return failed(world, "NotTaken", text)
    return void(world, "DriverLost", text, answered=False)


def _is_ours(status: SnapshotStatus, attempt: str) -> bool:
    """Whether our request began it; an operation's whose id was never seen is known by its name."""
    mine = attempt_of(status.request_id)
    return not mine or attempt_of(attempt) == mine


def _not_looked_at(world: SnapshotWorld, view: StoreTaskView) -> Step:
    """The store task cannot tell: a store that is down or closed says nothing about the data."""
    status = world.snapshot.status
    tries = number_of(status.store_task)
    person = view.code in _WAIT_FOR_A_PERSON
    given_up = is_imported(world.snapshot) and tries > world.snapshot.spec.backoff_limit
    if view.retryable or (person and not given_up):
        wait = pause(tries, _LONGEST_PAUSE)
        later = changed(status, next_retry_at=world.now + wait, message=view.message)
        reason = "StoreDenied" if person else "StoreUnavailable"
        return Step(later, reason=reason, again_after=wait.total_seconds())
    return failed(world, "VerificationFailed", f"{view.message}: path={status.path}")


_ASLEEP = ("Suspended", "Finished")
_CONFLICT = "savepoint_name_conflict"


def begin_copying(world: SnapshotWorld) -> Step | None:
    """Begin to copy what the job was stopped with; None where there is nothing of the kind."""
    job, snapshot = world.job, world.snapshot
    if job is None or snapshot.spec.type != "Savepoint" or is_follower(snapshot):
        return None
    spec, source = job.spec or job.newest, _copy_source(job)
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
    return _begin_copy(world, status, (told,))


def copying(world: SnapshotWorld) -> Step:
    """Judge what became of the copy."""
    status = world.snapshot.status
    if status.next_retry_at is not None:
        left = (status.next_retry_at - world.now).total_seconds()
        return Step(status, again_after=left) if left > 0 else _begin_copy(world, status)
    if store_task_refs(world) is None:
        text = "nobody knows how to reach the store: the job is gone"
        return failed(world, "JobMissing", text, state="Abandoned")
    view = world.store_tasks.get(status.store_task)
    if view is None or view.state == "Pending":
        effects = _copy_store_task(status) if view is None or view.message else ()
        shown = changed(status, message=view.message) if view and view.message else status
        return Step(shown, effects, again_after=world.config.busy_resync)
    return _copied(world, view) if view.state == "Completed" else _not_copied(world, view)


def _copy_source(job: JobFacts) -> str:
    """What a start would begin from: what it was given, else the lineage; empty for nothing."""
    status, spec = job.status, job.spec or job.newest
    asleep = status.phase in _ASLEEP and status.operation is None and not status.blocked_reason
    let_be = job.meta.annotation("paused") == "true" or job.meta.deleted_at is not None
    if not asleep or not status.attempt.outcome or let_be:
        return ""
    point = status.given_point
    if point is not None and point.mode != "Latest":
        return point.path
    known = status.snapshots.last_checkpoint is not None and spec is not None
    return reach(spec.state.checkpoint_dir, spec) if known and spec is not None else ""


def _begin_copy(world: SnapshotWorld, status: SnapshotStatus, told: tuple[Event, ...] = ()) -> Step:
    store_task = next_store_task(world.snapshot.meta.uid, COPY, status.store_task)
    text = f"what is kept in {status.source} is copied to {status.path}"
    going = changed(
        status, state="Verifying", store_task=store_task, next_retry_at=None, message=text
    )
    again = world.config.busy_resync
    return Step(going, _copy_store_task(going), told, reason="Copying", again_after=again)


def _copy_store_task(status: SnapshotStatus) -> tuple[RunStoreTask, ...]:
    attempt = attempt_of(status.request_id)
    store_task = StoreTask(
        status.store_task, "Copy", status.path, attempt=attempt, source=status.source
    )
    return (RunStoreTask(store_task),)


def _copied(world: SnapshotWorld, view: StoreTaskView) -> Step:
    status = world.snapshot.status
    if not view.result.get("found"):
        text = f"nothing to copy is in {status.source} any more"
        return void(world, "NotFound", text, answered=False)
    text = f"{status.path} is complete, copied from {status.source}"
    done = changed(of_verified(status, view.result, world.now), path=status.path)
    return finished(world, "ManifestRead", done, text)


def _not_copied(world: SnapshotWorld, view: StoreTaskView) -> Step:
    """A store that is down or closed is waited for; else it is for the driver, if one comes."""
    status = world.snapshot.status
    if view.code == _CONFLICT:
        return failed(world, "SavepointNameConflict", view.message, event="SavepointNameConflict")
    if not view.retryable and view.code != "store_denied":
        return void(world, "CopyFailed", view.message, answered=False)
    wait = pause(number_of(status.store_task), _LONGEST_PAUSE)
    later = changed(status, next_retry_at=world.now + wait, message=view.message)
    reason = "StoreUnavailable" if view.retryable else "StoreDenied"
    return Step(later, reason=reason, again_after=wait.total_seconds())
