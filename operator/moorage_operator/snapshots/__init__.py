"""StatefulSparkSnapshots: from what was seen of one to what is done about it, `decide_snapshot`.

    Pending -> InProgress -> [Verifying] -> Completed
       ^           |             |
       +-----------+-------------+--> Failed, Abandoned
    what a job that sleeps was stopped with is copied: Pending -> Verifying -> Completed
    an object that is being deleted -> Deleting -> gone

Pure: no I/O, no clock but the world's. Must not know the API server, a driver's HTTP or a store:
what is to be done there are effects, and store tasks. The status is kept before an effect is
carried out, and what came of it is seen by the next pass, so that an operator may die anywhere in
between.
What a job asks for by annotations and by its schedule is `triggers`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from moorage_api.snapshot import SnapshotStatus
from moorage_operator.plan import SetFinalizer, SnapshotPlan
from moorage_operator.snapshots.deleting import deleting
from moorage_operator.snapshots.in_progress import in_progress, of_operation
from moorage_operator.snapshots.naming import JOB_LABEL, data_go_too, is_copied, is_follower
from moorage_operator.snapshots.pending import pending
from moorage_operator.snapshots.step import (
    Step,
    changed,
    is_final,
    is_in_order,
    plan_of,
)
from moorage_operator.snapshots.store_work import begin_verifying, copying, verifying
from moorage_operator.world import CLOCKS_APART, SnapshotWorld

_LONGEST_WAIT = timedelta(minutes=5)
"""Between two tries of anything."""

__all__ = ["decide_snapshot", "is_final", "is_in_order"]


def decide_snapshot(world: SnapshotWorld) -> SnapshotPlan:
    """Decide what is next for the snapshot; the same world gives the same plan."""
    status = _by_this_clock(world.snapshot.status, world.now)
    world = replace(world, snapshot=replace(world.snapshot, status=status))
    return plan_of(world, _step(world))


def _by_this_clock(status: SnapshotStatus, now: datetime) -> SnapshotStatus:
    """Without times that a clock wrote which was ahead: what lies ahead has not begun."""
    fields: dict[str, datetime] = {}
    for name in ("started_at", "waiting_since"):
        at = getattr(status, name)
        if at is not None and at > now + CLOCKS_APART:
            fields[name] = now
    retry = status.next_retry_at
    if retry is not None and retry > now + _LONGEST_WAIT:
        fields["next_retry_at"] = now + _LONGEST_WAIT
    return changed(status, **fields) if fields else status


def _step(world: SnapshotWorld) -> Step:
    meta, status = world.snapshot.meta, world.snapshot.status
    if meta.deleted_at is not None:
        return deleting(world)
    to_hold = data_go_too(world.snapshot)
    if to_hold != (world.config.finalizer in meta.finalizers):
        # Before anything is written that would have to be deleted; and an object whose end needs
        # nothing done must not wait for an operator.
        return Step(status, (SetFinalizer(present=to_hold),))
    if meta.labels.get(JOB_LABEL) != world.snapshot.spec.job_ref.name and not world.problems:
        # The label is how its siblings find it.
        return Step(status)
    if status.state in ("Pending", "InProgress") and is_follower(world.snapshot):
        return of_operation(world)
    if is_copied(status):
        return copying(world)
    decision = _DECISIONS.get(status.state)
    return decision(world) if decision is not None else Step(status)


def _revived(world: SnapshotWorld) -> Step:
    """A status that says Deleting on an object that is not: a backup was restored."""
    status = world.snapshot.status
    if not status.path:
        return Step(changed(status, state="Pending", message=""), reason="Pending")
    return begin_verifying(world, status, "it was being deleted in another life")


_DECISIONS: Mapping[str, Callable[[SnapshotWorld], Step]] = {
    "Pending": pending,
    "InProgress": in_progress,
    "Verifying": verifying,
    "Deleting": _revived,
}
"""What is not here is final."""
