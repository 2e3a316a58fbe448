"""What a decision needs to see of the world beyond what each pass looks at anyway.

A store, a node, a namespace or a quota costs a request. A pure function of what was seen already;
`observe` reads what it names.
"""

from datetime import datetime
from enum import Enum

from moorage_api.driver import DriverState
from moorage_operator.world import JobWorld, PodView, Unreadable

_STOPPING = ("Snapshotting", "Stopping")
_DRIVERS_DECIDE = ("Standby", "Rescaling", "Verifying")
_BEFORE_A_START = ("Fencing", "Starting")
_LIFTED_BY_STORE = ("AdoptRequired", "CheckpointDirConflict")


class Need(Enum):
    """Something to read beyond the object, its pods and its driver's report."""

    STORE = "store"
    FACTS = "facts"
    NAMESPACE = "namespace"
    QUOTA = "quota"
    ADMISSION = "admission"


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
    if world.spec is not None and _needs_facts(world):
        wanted.add(Need.FACTS)
        if operation is None or _makes_pods(world):
            wanted.add(Need.QUOTA)
    if _needs_store(world):
        wanted.add(Need.STORE)
    if operation is not None and operation.step == "Preflight" and world.meta.deleted_at is None:
        wanted.add(Need.ADMISSION)
    return frozenset(wanted)


def _makes_pods(world: JobWorld) -> bool:
    """Whether the operation under way is about to make pods, or sees them come."""
    operation = world.status.operation
    if operation is None:
        return False
    beside = operation.step == "Standby" and world.standby_driver is None
    return beside or operation.step in ("Preflight", "Fencing", "Verifying")


def _needs_facts(world: JobWorld) -> bool:
    """Secrets and accounts matter to a spec that is not running yet, and to a start."""
    status = world.status
    current = world.revisions.get(status.reconciliation.current_revision)
    return (
        current is None
        or current.spec_hash != world.spec_hash
        or status.operation is not None
        or bool(status.blocked_reason)
    )


def _needs_store(world: JobWorld) -> bool:
    """While a start, an end or a claim is being decided; not while the pods cannot be read."""
    status = world.status
    if isinstance(world.drivers, Unreadable):
        return False
    if world.is_foreign:
        return True
    lives = _lives(world.current_driver)
    if status.operation is not None:
        driver_decides = status.operation.step in (*_STOPPING, *_DRIVERS_DECIDE)
        return not (driver_decides and lives) or _is_overdue(world)
    if world.meta.deleted_at is not None:
        return not lives
    if status.blocked_reason:
        return status.blocked_reason in _LIFTED_BY_STORE
    return _is_overdue(world) if lives else _to_be_started(world)


def _is_overdue(world: JobWorld) -> bool:
    """Whether a driver lives, and nobody has heard of it for so long that the store must tell."""
    status, pod = world.status, world.current_driver
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
