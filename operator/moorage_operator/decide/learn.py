"""What a pass has seen of the current attempt, taken into the status. Pure.

Nothing is decided here but what is a fact: the driver's pod is there, the stream runs, the driver
has ended and why. An outcome, once written, stays.
"""

from datetime import datetime, timedelta

from moorage_api.driver import CheckpointInfo, DriverEnd, SavepointInfo
from moorage_api.status import AttemptStatus, RestorePoint
from moorage_operator.decide.draft import Draft, later
from moorage_operator.decide.failures import End, judge
from moorage_operator.decide.specs import policy
from moorage_operator.decide.view import show_report
from moorage_operator.world import PodView, StoreView

__all__ = ["adopt_pod", "learn", "lost_patience", "note_savepoint"]

_NODE_LOST = timedelta(minutes=2)


def learn(draft: Draft) -> None:
    """Take what was seen of the current attempt into the status."""
    if not draft.lives:
        return
    pod = draft.pod
    if pod is None:
        _missing(draft)
    elif pod.terminal or pod.ended is not None:
        adopt_pod(draft, pod)
        _ended(draft, judge(pod), pod.end, pod.ended.finished_at if pod.ended else None)
    else:
        adopt_pod(draft, pod)
        _node(draft, pod)
    if draft.report is not None:
        show_report(draft, draft.report)
    elif draft.lives:
        _look_at_store(draft)


def adopt_pod(draft: Draft, pod: PodView) -> None:
    """This pod is the current attempt's driver."""
    draft.put_attempt(driver_pod=pod.name, driver_uid=pod.uid, missing_since=None)


def note_savepoint(draft: Draft, savepoint: SavepointInfo, order_id: str) -> None:
    """The stream was stopped with this savepoint: the next start goes on from it."""
    point = RestorePoint(
        mode="Path",
        path=savepoint.path,
        digest=savepoint.manifest_digest,
        order_id=f"{order_id}-{draft.tag}",
        checkpoint_id=savepoint.checkpoint_id,
        completed_at=savepoint.completed_at,
    )
    draft.put(next_restore=point)
    draft.put_snapshots(last_savepoint=savepoint)


def lost_patience(draft: Draft) -> timedelta:
    """How long a node may be silent."""
    spec = policy(draft)
    if spec is None:
        return _NODE_LOST
    return spec.failure_policy.infrastructure.node_lost_timeout.timedelta


def _missing(draft: Draft) -> None:
    """Its pod is not there. One that was never seen is still to be made."""
    attempt = draft.attempt
    if not attempt.driver_uid:
        return
    since = attempt.missing_since or draft.now
    gone = since + timedelta(seconds=draft.config.missing_patience)
    if draft.now < gone:
        draft.put_attempt(missing_since=since)
        draft.wake_at(gone)
        return
    text = f"the driver's pod {attempt.driver_pod} is gone without a word"
    _ended(draft, End("Failed", "DriverLost", text), None, draft.now)


def _node(draft: Draft, pod: PodView) -> None:
    """A pod whose node is silent is given up after a while; one whose driver answers is not."""
    if not _is_silent(draft, pod):
        if draft.attempt.node_lost_since is not None:
            draft.put_attempt(node_lost_since=None)
        return
    since = draft.attempt.node_lost_since or draft.now
    over = since + lost_patience(draft)
    draft.put_attempt(node_lost_since=since)
    if draft.now < over:
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
    return draft.now > pod.deleted_at + timedelta(seconds=pod.grace_seconds)


def _look_at_store(draft: Draft) -> None:
    """Of a driver that does not answer, the store shows the checkpoints."""
    store, last = draft.world.store, draft.status.snapshots.last_checkpoint
    if not isinstance(store, StoreView) or store.newest is None or store.newest.explicit:
        return
    if store.owner is None or store.owner[3] != draft.meta.uid:
        return
    newest = store.newest
    if last is None or newest.completed_at > last.completed_at:
        known = CheckpointInfo(
            id=newest.checkpoint_id,
            path=newest.path,
            epoch=newest.epoch,
            completed_at=newest.completed_at,
        )
        draft.put_snapshots(last_checkpoint=known)


def _ended(draft: Draft, end: End, said: DriverEnd | None, at: datetime | None) -> None:
    if said is not None:
        _take_last_words(draft, said)
    attempt = draft.attempt
    draft.put_attempt(
        outcome=end.outcome,
        outcome_reason=end.reason,
        outcome_message=end.message,
        ended_at=min(at, draft.now) if at else draft.now,
        missing_since=None,
    )
    if attempt.running_since is None and _ran(attempt, said):
        draft.put_attempt(running_since=attempt.started_at)
    draft.wake(draft.config.busy_resync)


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
    if savepoint is None:
        return
    asked = operation is not None and savepoint.name == operation.snapshot_name
    if asked or said.outcome == "Stopped":
        order = operation.id if operation is not None else f"attempt-{attempt.number}"
        note_savepoint(draft, savepoint, order)


def _ran(attempt: AttemptStatus, said: DriverEnd | None) -> bool:
    """Whether the driver's last words show a stream that ran, although nobody saw it run."""
    if said is None or attempt.started_at is None or said.last_checkpoint is None:
        return False
    return later(said.last_checkpoint.completed_at, attempt.started_at) != attempt.started_at
