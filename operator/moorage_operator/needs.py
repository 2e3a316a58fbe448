"""Which of the dear readings a decision about a job depends on. Pure.

Reading a store takes a request to it, or a pod of the job's; so it is done while something is
decided that rests on it, and not once a job runs and answers, sleeps, is over, or is blocked by
what no store can mend.
"""

from datetime import datetime
from enum import Enum

from moorage_api.driver import DriverState
from moorage_api.status import JobStatus
from moorage_operator.world import JobWorld, PodView, Unreadable

__all__ = ["Need", "current_driver", "needs"]

_STOPPING = ("Snapshotting", "Stopping")
_BEFORE_A_START = ("Fencing", "Starting")
_LIFTED_BY_STORE = ("AdoptRequired", "CheckpointDirConflict")


class Need(Enum):
    """Something to read beyond the object, its pods and its driver's report."""

    STORE = "store"
    FACTS = "facts"
    NAMESPACE = "namespace"


def needs(world: JobWorld) -> frozenset[Need]:
    """What to read for this world, of which everything else is read already."""
    if world.operator_too_old:
        return frozenset()
    wanted = set()
    operation = world.status.operation
    starts = operation is not None and operation.step in _BEFORE_A_START
    if world.meta.deleted_at is not None or starts:
        wanted.add(Need.NAMESPACE)
    if world.meta.annotation("paused") == "true":
        return frozenset(wanted)
    if world.spec is not None and _facts(world):
        wanted.add(Need.FACTS)
    if _store(world):
        wanted.add(Need.STORE)
    return frozenset(wanted)


def current_driver(world: JobWorld) -> PodView | None:
    """The pod of the attempt that the status names; of a status that names none, the newest."""
    if isinstance(world.drivers, Unreadable):
        return None
    own = [pod for pod in world.drivers if pod.owned]
    number = world.status.attempt.number
    if number == 0 or _foreign(world.meta.uid, world.status):
        return max(own, key=lambda pod: pod.attempt, default=None)
    return next((pod for pod in own if pod.attempt == number), None)


def _facts(world: JobWorld) -> bool:
    """Secrets and accounts matter to a spec that is not running yet, and to a start."""
    status = world.status
    current = world.revisions.get(status.reconciliation.current_revision)
    return (
        current is None
        or current.spec_hash != world.spec_hash
        or status.operation is not None
        or bool(status.blocked_reason)
    )


def _store(world: JobWorld) -> bool:
    """While a start, an end or a claim is being decided; not while the pods cannot be read."""
    status = world.status
    if isinstance(world.drivers, Unreadable):
        return False
    if _foreign(world.meta.uid, status):
        return True
    lives = _lives(current_driver(world))
    if status.operation is not None:
        driver_decides = status.operation.step in (*_STOPPING, "Rescaling", "Verifying")
        return not (driver_decides and lives) or _is_overdue(world)
    if world.meta.deleted_at is not None:
        return not lives
    if status.blocked_reason:
        return status.blocked_reason in _LIFTED_BY_STORE
    return _is_overdue(world) if lives else _to_be_started(world)


def _is_overdue(world: JobWorld) -> bool:
    """Whether a driver lives, and nobody has heard of it for so long that the store must tell."""
    status, pod = world.status, current_driver(world)
    if isinstance(world.report, DriverState) or pod is None or pod.ready:
        return False
    if status.attempt.running_since is None:
        operation = status.operation
        late = operation.deadline if operation is not None else None
        return operation is not None and operation.step == "Verifying" and _is_past(world, late)
    current = world.revisions.get(status.reconciliation.current_revision)
    spec = world.spec if world.spec is not None and not world.problems else None
    spec = spec or (current.spec if current is not None else None)
    if spec is None or status.operation is not None:
        return False
    seen = (status.attempt.running_since, status.job.last_progress_time)
    newest = max(at for at in seen if at is not None)
    return _is_past(world, newest + spec.failure_policy.health.no_progress_for.timedelta)


def _is_past(world: JobWorld, moment: datetime | None) -> bool:
    return moment is not None and world.now >= moment


def _to_be_started(world: JobWorld) -> bool:
    """Nothing runs, and nothing says that this is how it ended."""
    wanted = world.spec is not None and world.spec.desired_state == "Running"
    return not world.status.attempt.outcome and (wanted or world.status.attempt.number > 0)


def _lives(pod: PodView | None) -> bool:
    return pod is not None and not pod.terminal


def _foreign(uid: str, status: JobStatus) -> bool:
    """The status was written for another object: a backup was restored."""
    return bool(status.lineage_owner_uid) and status.lineage_owner_uid != uid
