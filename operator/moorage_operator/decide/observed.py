"""What a pass has seen of the current attempt, taken into the status. Pure.

Nothing is decided here but what is a fact: the driver's pod is there, the stream runs, the driver
has ended and why. An outcome, once written, stays. A status that is empty, wiped, or was written
for another object begins from what is seen.
"""

from datetime import datetime, timedelta

from moorage_api.driver import CheckpointSummary, DriverEnd, SavepointInfo
from moorage_api.status import (
    AttemptStatus,
    JobStatus,
    Reconciliation,
    RestorePointStatus,
    SnapshotsStatus,
)
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.operations import begin
from moorage_operator.decide.recover import End, judge, taken_by
from moorage_operator.decide.specs import lost_patience
from moorage_operator.decide.view import show_report
from moorage_operator.world import LogPoint, PodView, StoreView, newest_driver

_CLOCKS_APART = timedelta(minutes=15)
"""More than nodes' clocks differ by."""


def observe_attempt(draft: Draft) -> None:
    """Take what was seen of the current attempt into the status."""
    if not draft.is_active:
        return
    pod = draft.pod
    if pod is None:
        _missing(draft)
    elif pod.terminal or pod.ended is not None:
        adopt_pod(draft, pod)
        _ended(draft, judge(pod), pod.end, pod.ended.finished_at if pod.ended else None)
    else:
        adopt_pod(draft, pod)
        draft.put_attempt(taken_by=taken_by(pod))
        _node(draft, pod)
    if draft.report is not None:
        show_report(draft, draft.report)
    elif draft.is_active:
        _look_at_store(draft)


def note_unread(draft: Draft) -> None:
    """What a version on trial has published is known once its driver, or the store, has said it."""
    trial, attempt, pod = draft.status.reconciliation.trial, draft.attempt, draft.pod
    if trial is None:
        return
    unread, before = trial.unread, draft.world.status.attempt
    ended = attempt.outcome and not before.outcome and attempt.number == before.number
    if isinstance(draft.world.store, StoreView):
        if unread:
            _look_at_store(draft)
        unread = 0
    elif ended and attempt.driver_uid and (pod is None or pod.end is None):
        unread = attempt.number
    elif attempt.number > unread and attempt.restored_from is not None:
        unread = 0  # with the newest checkpoint there is, which it has told
    if unread != trial.unread:
        draft.put_reconciliation(trial=trial.model_copy(update={"unread": unread}))


def adopt_pod(draft: Draft, pod: PodView) -> None:
    """This pod is the current attempt's driver."""
    draft.put_attempt(driver_pod=pod.name, driver_uid=pod.uid, missing_since=None)


def note_savepoint(draft: Draft, savepoint: SavepointInfo, order_id: str) -> None:
    """The stream was stopped with this savepoint: the next start goes on from it."""
    point = RestorePointStatus(
        mode="Path",
        path=savepoint.path,
        digest=savepoint.manifest_digest,
        order_id=f"{order_id}-{draft.tag}",
        checkpoint_id=savepoint.checkpoint_id,
        completed_at=savepoint.completed_at,
    )
    draft.put(next_restore=point)
    draft.put_snapshots(last_savepoint=savepoint)


def _missing(draft: Draft) -> None:
    """Its pod is not there. One that was never seen is still to be made."""
    attempt = draft.attempt
    if not attempt.driver_uid:
        return
    since = attempt.missing_since or draft.now
    # A list may be stale; of a pod that was being taken away nothing else was to be expected.
    patience = 0 if attempt.taken_by else draft.config.missing_patience
    gone = since + timedelta(seconds=patience)
    if not draft.reached(gone):
        draft.put_attempt(missing_since=since)
        draft.wake_at(gone)
        return
    # A busy kubelet takes a pod away faster than anybody looks.
    reason = attempt.taken_by or "DriverLost"
    text = f"the driver's pod {attempt.driver_pod} is gone without a word"
    _ended(draft, End("Failed", reason, text), None, draft.now)


def _node(draft: Draft, pod: PodView) -> None:
    """A pod whose node is silent is given up after a while; one whose driver answers is not."""
    if not _is_silent(draft, pod):
        if draft.attempt.node_lost_since is not None:
            draft.put_attempt(node_lost_since=None)
        return
    since = draft.attempt.node_lost_since or draft.now
    over = since + lost_patience(draft)
    draft.put_attempt(node_lost_since=since)
    if not draft.reached(over):
        draft.wake_at(over)
        return
    text = f"node {pod.node or 'of the driver'} is silent since {since:%H:%M:%S} UTC"
    _ended(draft, End("Failed", "NodeLost", text), None, draft.now)


def _is_silent(draft: Draft, pod: PodView) -> bool:
    if draft.report is not None:
        return False
    if pod.node_ready is False or pod.phase == "Unknown":
        return True
    if pod.deleted_at is None:
        return False
    return draft.reached(pod.deleted_at + timedelta(seconds=pod.grace_seconds))


def _look_at_store(draft: Draft) -> None:
    """Of a driver that does not answer, the store shows the checkpoints."""
    store, last = draft.world.store, draft.status.snapshots.last_checkpoint
    if not isinstance(store, StoreView) or store.newest is None or store.newest.explicit:
        return
    if store.owner is None or store.owner[3] != draft.meta.uid:
        return
    newest = store.newest
    if last is None or _is_newer(newest, last) or _began_anew(draft, store):
        _note_progress(draft, newest.completed_at - last.completed_at if last else None)
        known = CheckpointSummary(
            id=newest.checkpoint_id,
            path=newest.path,
            epoch=newest.epoch,
            completed_at=newest.completed_at,
        )
        draft.put_snapshots(last_checkpoint=known)


def _is_newer(found: LogPoint, known: CheckpointSummary) -> bool:
    """By number, which only grows within a directory, and not by the times of two drivers."""
    here, there = (path.partition("?")[0].rpartition("/")[0] for path in (found.path, known.path))
    return here != there or found.checkpoint_id > known.id


def _began_anew(draft: Draft, store: StoreView) -> bool:
    """Whether the attempt began where it was told to, and what is known is of before that.

    In a directory that was set back numbers are lower then.
    """
    point = draft.attempt.restore_point
    told = point is not None and point.mode != "Latest" and point.order_id in store.order_ids
    return told and not draft.attempt.checkpointed


def _note_progress(draft: Draft, passed: timedelta | None) -> None:
    """The stream got on, so much after it did last: of a clock of its own only differences hold."""
    known = draft.status.job.last_progress_time
    at = draft.now
    if known is not None and passed is not None:
        at = min(max(known + passed, known), draft.now)
    draft.put(job=draft.status.job.model_copy(update={"last_progress_time": at}))


def _ended(draft: Draft, end: End, said: DriverEnd | None, at: datetime | None) -> None:
    before = draft.status.snapshots.last_checkpoint
    if said is not None:
        _take_last_words(draft, said)
    if said is None or said.last_checkpoint is None:
        # The status may be a minute old, and a snapshot of type Checkpoint is made of it.
        _look_at_store(draft)
    attempt = draft.attempt
    draft.put_attempt(
        outcome=end.outcome,
        outcome_reason=end.reason,
        outcome_message=end.message,
        ended_at=_when(draft, at),
        missing_since=None,
    )
    if _has_checkpointed(draft, said, before):
        since = attempt.running_since or attempt.started_at or draft.now
        draft.put_attempt(checkpointed=True, running_since=since)
    draft.wake(draft.config.busy_resync)


def _when(draft: Draft, at: datetime | None) -> datetime:
    """When it ended: as it is seen now, or as the kubelet says where that is long ago."""
    # Clocks of nodes are minutes apart; an operator that was away for longer has only their word.
    # It did not end before it was last seen at work.
    if at is None or not draft.reached(at + _CLOCKS_APART):
        return draft.now
    attempt, moved = draft.attempt, draft.status.job.last_progress_time
    seen = [one for one in (attempt.started_at, attempt.running_since, moved) if one is not None]
    return min(max([at, *seen]), draft.now)


def _take_last_words(draft: Draft, said: DriverEnd) -> None:
    attempt, status = draft.attempt, draft.status
    draft.put_attempt(
        fence=said.fence or attempt.fence,
        restored_from=said.restored_from or attempt.restored_from,
    )
    if said.lineage:
        draft.put_snapshots(lineage_id=said.lineage)
    if said.last_checkpoint is not None:
        draft.put_snapshots(last_checkpoint=said.last_checkpoint)
    operation, savepoint = status.operation, said.savepoint
    back = operation is not None and operation.type == "Rollback"
    if savepoint is None or back:
        return  # one that was asked for before is not what a way back begins from
    asked = operation is not None and savepoint.name == operation.snapshot_name
    if asked or said.outcome == "Stopped":
        order = operation.id if operation is not None else f"attempt-{attempt.number}"
        note_savepoint(draft, savepoint, order)


def _has_checkpointed(
    draft: Draft, said: DriverEnd | None, before: CheckpointSummary | None
) -> bool:
    """Whether last words show a checkpoint of the driver's own that nobody saw it take."""
    # One that is not `before`, the last one that was known; and by the clock of the driver's node,
    # which is that of its pod's start, it was not there when the pod began.
    last, pod = said.last_checkpoint if said is not None else None, draft.pod
    if last is None or (before is not None and last.id == before.id):
        return False
    began = pod.started_at if pod is not None and pod.started_at else draft.attempt.started_at
    return began is not None and last.completed_at > began


REBUILT = "Rebuilt"
"""Why an attempt is over that a status knows only by number."""


def rebuild(draft: Draft) -> bool:
    """Make the status this object's own; say whether that was needed."""
    status = draft.status
    if status.lineage_owner_uid == draft.meta.uid:
        return False
    pods = [pod for pod in draft.drivers if pod.owned]
    newest = newest_driver(pods)
    beside = [p for p in pods if p.standby and p is not newest]
    highest = max((pod.attempt for pod in draft.drivers if pod not in beside), default=0)
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
    snapshots, done = status.snapshots, status.reconciliation
    return JobStatus(
        reconciliation=Reconciliation(
            restore_nonce=done.restore_nonce, state_backend=done.state_backend
        ),
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
