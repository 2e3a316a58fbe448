"""A snapshot whose object is being deleted: its data first, then the finalizer. Pure.

It works whether the job runs or not, and without the job at all. Nothing is deleted that something
needs, that was there before the object, or of which it is not certain that it is this snapshot's.
"""

from moorage_api.snapshot import SnapshotStatus
from moorage_operator.plan import Event, RunStoreTask, SetFinalizer, StoreTask
from moorage_operator.snapshots.in_progress import answer_of, answered, is_overdue
from moorage_operator.snapshots.naming import (
    attempt_of,
    data_go_too,
    is_copied,
    is_follower,
    next_store_task,
    number_of,
)
from moorage_operator.snapshots.pending import driver_is_gone
from moorage_operator.snapshots.retention import uses
from moorage_operator.snapshots.step import Step, changed, pause, waiting
from moorage_operator.store_access import store_task_refs
from moorage_operator.world import SnapshotWorld, StoreTaskView

KIND = "delete"
_LONGEST_PAUSE = 300.0
_KEEP = "to let the object go and keep its data set spec.deletionPolicy: Retain"


def deleting(world: SnapshotWorld) -> Step:
    """Hold it, delete its data, or let it go."""
    status = world.snapshot.status
    if world.config.finalizer not in world.snapshot.meta.finalizers:
        return Step(status)
    if world.namespace_terminating:
        return _let_go(world, "the namespace is being deleted; data stay", "Retained")
    if not data_go_too(world.snapshot):
        # Made by an operator that held every object, or it was to be deleted until just now.
        where = f": path={status.path}" if status.path else ""
        return _let_go(world, f"data stay{where}", "Retained")
    return _deletion(world) if status.state == "Deleting" else _not_begun(world)


def _not_begun(world: SnapshotWorld) -> Step:
    if world.job is not None and world.job.meta.annotation("paused") == "true":
        return waiting(world, "JobPaused", f"{world.job.meta.name} is paused by an annotation")
    if _driver_works(world):
        return _until_answered(world)
    if _is_being_copied(world):
        text = "deletion waits for the copy that is under way"
        return waiting(world, "Copying", text, world.config.busy_resync)
    if needed := uses(world.snapshot, world.job):
        return _held(world, needed)
    if not _has_data(world):
        return _let_go(world, "it has no data to delete", "NoData")
    return _begin(world, world.snapshot.status)


def _driver_works(world: SnapshotWorld) -> bool:
    """Whether a driver may be writing it at this moment."""
    status = world.snapshot.status
    if status.state != "InProgress" or is_follower(world.snapshot):
        return False
    return not driver_is_gone(world) and not is_overdue(world)


def _is_being_copied(world: SnapshotWorld) -> bool:
    """Whether a store task may be putting its files: what it puts after the deletion would stay."""
    status = world.snapshot.status
    view = world.store_tasks.get(status.store_task) if is_copied(status) else None
    return view is not None and view.state == "Pending"


def _until_answered(world: SnapshotWorld) -> Step:
    """A request cannot be taken back: what it makes is deleted when it is answered."""
    view = answer_of(world)
    if view is not None and view.state in ("Completed", "Failed"):
        return answered(world, view)
    return waiting(
        world,
        "InProgress",
        "deletion waits for the driver, which is at work on it",
        world.config.busy_resync,
    )


def _held(world: SnapshotWorld, needed: tuple[str, ...]) -> Step:
    text = f"deletion waits, it is needed: {', '.join(needed)}"
    told = Event("Warning", "SnapshotInUse", text, "in-use")
    status = changed(world.snapshot.status, message=text)
    return Step(status, (), (told,))


def _has_data(world: SnapshotWorld) -> bool:
    """Whether anything was ever written, or may have been."""
    status = world.snapshot.status
    return bool(status.manifest_digest or status.request_id) and bool(status.path)


def _begin(world: SnapshotWorld, status: SnapshotStatus) -> Step:
    if store_task_refs(world) is None:
        text = f"the job is gone, and how its store is reached; data stay: path={status.path}"
        return _let_go(world, text, "Retained")
    store_task = next_store_task(world.snapshot.meta.uid, KIND, status.store_task)
    going = changed(status, state="Deleting", store_task=store_task, next_retry_at=None)
    return Step(going, _store_task(going), reason="Deleting", again_after=world.config.busy_resync)


def _store_task(status: SnapshotStatus) -> tuple[RunStoreTask, ...]:
    attempt = attempt_of(status.request_id)
    store_task = StoreTask(
        status.store_task, "Delete", status.path, status.manifest_digest, attempt
    )
    return (RunStoreTask(store_task),)


def _deletion(world: SnapshotWorld) -> Step:
    """Store task after store task, until one says that it is done."""
    status = world.snapshot.status
    view = world.store_tasks.get(status.store_task)
    if view is not None and view.state == "Completed":
        return _deleted(world, view)
    if view is not None and view.state == "Pending":
        shown = changed(status, message=view.message) if view.message else status
        effects = _store_task(status) if view.message else ()
        return Step(shown, effects, again_after=world.config.busy_resync)
    if view is not None and status.next_retry_at is None:
        return _again(world, view)
    return _sent_again(world)


def _sent_again(world: SnapshotWorld) -> Step:
    """No store task is under way. What is needed by now may still be whole: it stays."""
    status = world.snapshot.status
    if needed := uses(world.snapshot, world.job):
        return _held(world, needed)
    retry = status.next_retry_at
    if retry is not None and retry > world.now:
        return Step(status, again_after=(retry - world.now).total_seconds())
    if retry is not None or store_task_refs(world) is None:
        return _begin(world, status)
    return Step(status, _store_task(status), again_after=world.config.busy_resync)


def _deleted(world: SnapshotWorld, view: StoreTaskView) -> Step:
    path, left = world.snapshot.status.path, str(view.result.get("left", ""))
    if left in ("other", "foreign", "checkpoint"):
        return _let_go(world, f"what lies there is not this snapshot's: path={path}", "NotOurs")
    if left == "missing":
        return _let_go(world, f"there were no data: path={path}", "NoData")
    count = view.result.get("deleted", 0)
    return _let_go(world, f"deleted its data: path={path} objects={count}", "Deleted")


def _again(world: SnapshotWorld, view: StoreTaskView) -> Step:
    """A store that is down or closed does not end a deletion, nor does it lose it."""
    wait = pause(number_of(world.snapshot.status.store_task), _LONGEST_PAUSE)
    later = changed(
        world.snapshot.status,
        next_retry_at=world.now + wait,
        message=f"its data are not deleted yet: {view.message}; {_KEEP}",
    )
    return Step(later, reason="DeletionFailed", again_after=wait.total_seconds())


def _let_go(world: SnapshotWorld, message: str, reason: str) -> Step:
    status = changed(world.snapshot.status, message=message)
    told = Event("Normal", "SnapshotDisposed", message, "disposed")
    return Step(status, (SetFinalizer(present=False),), (told,), reason, again_after=0.0)
