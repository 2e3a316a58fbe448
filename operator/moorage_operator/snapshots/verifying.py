"""A snapshot of which only the store can tell what became of it. Pure."""

from moorage_api.snapshot import SnapshotStatus
from moorage_operator.plan import Errand, RunErrand
from moorage_operator.snapshots.access import errand_refs
from moorage_operator.snapshots.naming import (
    attempt_of,
    is_follower,
    is_imported,
    next_errand,
    number_of,
)
from moorage_operator.snapshots.record import of_verified
from moorage_operator.snapshots.retrying import pause, void
from moorage_operator.snapshots.step import Step, changed, failed, finished
from moorage_operator.world import ErrandView, SnapshotWorld

__all__ = ["begin_verifying", "verifying"]

KIND = "verify"
_LONGEST_PAUSE = 300.0
_WAIT_FOR_A_PERSON = ("store_denied", "credentials_missing")


def begin_verifying(world: SnapshotWorld, status: SnapshotStatus, message: str) -> Step:
    """Send somebody to look: an errand of an id of its own, since what earlier ones saw is old."""
    errand = next_errand(world.snapshot.meta.uid, KIND, status.errand)
    looking = changed(status, state="Verifying", errand=errand, next_retry_at=None, message=message)
    return Step(looking, _errand(looking), reason="Verifying", again_after=world.config.busy_resync)


def verifying(world: SnapshotWorld) -> Step:
    """Judge what the errand found."""
    status = world.snapshot.status
    if status.next_retry_at is not None:
        left = (status.next_retry_at - world.now).total_seconds()
        if left > 0:
            return Step(status, again_after=left)
        return begin_verifying(world, status, status.message)
    if errand_refs(world) is None:
        text = "nobody knows how to reach the store: the job is gone"
        return failed(world, "JobMissing", text, state="Abandoned")
    view = world.errands.get(status.errand)
    if view is not None and view.state == "Completed":
        return _found(world, view)
    if view is not None and view.state == "Failed":
        return _not_seen(world, view)
    held = view.message if view is not None else ""
    effects = _errand(status) if view is None or held else ()
    shown = changed(status, message=held) if held and is_imported(world.snapshot) else status
    return Step(shown, effects, again_after=world.config.busy_resync)


def _errand(status: SnapshotStatus) -> tuple[RunErrand, ...]:
    return (RunErrand(Errand(status.errand, "Verify", status.path)),)


def _found(world: SnapshotWorld, view: ErrandView) -> Step:
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


def _not_seen(world: SnapshotWorld, view: ErrandView) -> Step:
    """The errand could not tell: that the store is down or closed says nothing about the data."""
    status = world.snapshot.status
    tries = number_of(status.errand)
    person = view.code in _WAIT_FOR_A_PERSON
    given_up = is_imported(world.snapshot) and tries > world.snapshot.spec.backoff_limit
    if view.retryable or (person and not given_up):
        wait = pause(tries, _LONGEST_PAUSE)
        later = changed(status, next_retry_at=world.now + wait, message=view.message)
        reason = "StoreDenied" if person else "StoreUnavailable"
        return Step(later, reason=reason, again_after=wait.total_seconds())
    return failed(world, "VerificationFailed", f"{view.message}: path={status.path}")
