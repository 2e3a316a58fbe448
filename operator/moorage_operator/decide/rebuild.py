"""A status that is empty, wiped, or was written for another object: begin from what is seen. Pure.

Attempts' numbers never come again, so the pods that are there count. A status from a backup keeps
what holds for the lineage (handled annotations, the nonce that was followed, the point to go on
from) and loses what held for the old object's pods.
"""

from moorage_api.status import AttemptStatus, JobStatus, Reconciliation, SnapshotsStatus
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.operations import begin
from moorage_operator.world import PodView

__all__ = ["REBUILT", "rebuild"]

REBUILT = "Rebuilt"
"""Why an attempt is over that a status knows only by number."""


def rebuild(draft: Draft) -> bool:
    """Make the status this object's own; say whether that was needed."""
    status = draft.status
    if status.lineage_owner_uid == draft.meta.uid:
        return False
    pods = [pod for pod in draft.drivers if pod.owned]
    newest = max(pods, key=lambda pod: pod.attempt, default=None)
    highest = max((pod.attempt for pod in draft.drivers), default=0)
    draft.status = _inherited(status) if status.lineage_owner_uid else JobStatus()
    draft.put(lineage_owner_uid=draft.meta.uid, operation_counter=_counter(draft))
    known = max(highest, status.attempt.number)
    if newest is not None and newest.attempt == known > 0:
        _adopt(draft, newest)
    elif known > 0:
        over = AttemptStatus(number=known, outcome="Stopped", outcome_reason=REBUILT)
        draft.put(attempt=over)
    draft.wake(draft.config.busy_resync)
    return True


def _adopt(draft: Draft, pod: PodView) -> None:
    """The newest driver is the current attempt; it shows by itself whether it runs."""
    draft.put(
        attempt=AttemptStatus(
            number=pod.attempt,
            revision=pod.revision,
            driver_pod=pod.name,
            driver_uid=pod.uid,
            started_at=pod.created_at or draft.now,
        )
    )
    spec = draft.world.spec
    old = draft.status.reconciliation
    nonce = spec.restore.nonce if spec is not None else 0
    draft.put_reconciliation(
        current_revision=pod.revision, restore_nonce=max(nonce, old.restore_nonce)
    )
    text = f"found driver {pod.name} of this object, and no status"
    begin(draft, "Deploy", "Verifying", "DriverAdopted", text)
    draft.put_operation(target_revision=pod.revision)
    draft.effects.clear()
    draft.tell("Normal", "DriverAdopted", text, pod.uid)


def _inherited(status: JobStatus) -> JobStatus:
    snapshots = status.snapshots
    return JobStatus(
        reconciliation=Reconciliation(restore_nonce=status.reconciliation.restore_nonce),
        snapshots=SnapshotsStatus(
            lineage_id=snapshots.lineage_id,
            last_checkpoint=snapshots.last_checkpoint,
            last_savepoint=snapshots.last_savepoint,
            last_trigger=snapshots.last_trigger,
            last_scheduled_time=snapshots.last_scheduled_time,
        ),
        next_restore=status.next_restore,
    )


def _counter(draft: Draft) -> int:
    """Operations' numbers never come again either: seconds pass faster than operations."""
    created = draft.meta.created_at
    if created is None:
        return 0
    return max(0, int((draft.now - created).total_seconds()))
