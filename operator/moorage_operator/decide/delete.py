"""The object is being deleted: a last snapshot, the end of all pods, the lineage given up. Pure.

Everything here has the time that spec.deletion.timeout gives, and then goes on without what could
not be done, so that the finalizer always goes; unless onTimeout is Block, which waits for a person.
The operation's reason is the deletion policy; its step Verifying is the work in the store.
"""

from datetime import datetime, timedelta

from moorage_api import Deletion
from moorage_api.driver import RequestView
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.fencing import cleared, remove
from moorage_operator.decide.leaving import release_rest
from moorage_operator.decide.operations import begin
from moorage_operator.decide.specs import deletion, lost_patience, running_spec
from moorage_operator.decide.stop import (
    StopMode,
    age_of_checkpoint,
    aim,
    ask,
    completed,
    keep_snapshot,
    request_view,
    retry,
)
from moorage_operator.plan import RunStoreTask, SetFinalizer, StoreTask
from moorage_operator.snapshots.naming import data_go_too
from moorage_operator.world import StoreView, Unreadable
from moorage_state.stores.addresses import same_place

_SAVEPOINT_TRIES = 2
_FIRST_RETRY = 5.0
_FINAL_FAILED = "FinalSnapshotFailed"
_STATE_STAYS = "StateNotDeleted"
_NO_SAVEPOINT = "it was stopped without a savepoint"
_STORE_TIME = timedelta(minutes=1)


def delete(draft: Draft) -> None:
    """Do what is left before the object may go."""
    if draft.config.finalizer not in draft.meta.finalizers:
        return
    draft.wake(draft.config.busy_resync)
    if draft.world.namespace_terminating:
        draft.do(SetFinalizer(present=False))
        return
    rules = deletion(draft)
    operation = draft.status.operation
    if operation is None or operation.type != "Delete":
        _begin(draft, rules)
    step = draft.operation.step
    if step == "Snapshotting":
        _snapshot(draft, rules)
    elif step == "Stopping":
        _stop(draft)
    elif step == "Fencing":
        _fence(draft, rules)
    else:
        _give_up_lineage(draft, rules)


def _begin(draft: Draft, rules: Deletion) -> None:
    """Begin, and go on with a snapshot that the driver is taking already."""
    old = draft.status.operation
    under_way = request_view(draft) if old is not None else None
    mode = _mode(draft, rules)
    skip, lost = _skipped(draft), _ended_without(draft, rules)
    # Where it ended before, a person is waited for as where it does so now.
    looks = mode != "None" or (lost and rules.on_timeout == "Block")
    step = "Snapshotting" if looks and not skip else "Fencing"
    draft.put(blocked_reason="", message="")
    begin(draft, "Delete", step, rules.policy, "the object is deleted")  # type: ignore[arg-type]  # one of the two steps
    if under_way is not None and (under_way.kind != "Stop" or under_way.state == "Failed"):
        under_way = None
    if old is not None and under_way is not None:
        draft.put_operation(
            step="Snapshotting",
            snapshot_request_id=old.snapshot_request_id,
            snapshot_name=old.snapshot_name,
            stop_mode=old.stop_mode,
            deadline=_deadline(draft, rules),
        )
    elif step == "Snapshotting":
        draft.put_operation(deadline=_deadline(draft, rules))
        aim(draft, mode)
    elif skip or lost or _lost_something(draft, rules):
        _tell_skipped(draft, "asked to skip it" if skip else "the job does not run")


def _mode(draft: Draft, rules: Deletion) -> StopMode:
    """What can be taken at the end: nothing of a job that does not run."""
    if not draft.is_active or draft.attempt.running_since is None:
        return "None"
    return _wanted(draft, rules)


def _wanted(draft: Draft, rules: Deletion) -> StopMode:
    """What the rules ask for, as far as the job has a place for it."""
    spec = running_spec(draft)
    if rules.final_snapshot == "Savepoint" and spec is not None and not spec.state.savepoint_dir:
        return "Checkpoint"
    return rules.final_snapshot


def _lost_something(draft: Draft, rules: Deletion) -> bool:
    """Whether a person who expects a last snapshot gets none."""
    attempt = draft.attempt
    cleanly = attempt.outcome in ("Finished", "Stopped")
    return rules.final_snapshot != "None" and attempt.number > 0 and not cleanly


def _ended_without(draft: Draft, rules: Deletion) -> bool:
    """Whether the job had ended before without the savepoint, and has state that goes."""
    return draft.status.snapshots.last_checkpoint is not None and _is_lost(draft, rules, None)


# -- the last snapshot -------------------------------------------------------------------------


def _snapshot(draft: Draft, rules: Deletion) -> None:
    operation, view = draft.operation, request_view(draft)
    lost = _is_lost(draft, rules, view)
    if draft.is_unmade:
        draft.move("Fencing")
    elif lost and rules.on_timeout == "Block" and not _skipped(draft):
        what = "the job was stopped without a last savepoint, and its state is to be deleted"
        _wait_for_person(draft, _FINAL_FAILED, what)
    elif draft.attempt.outcome:
        _ended(draft, lost=lost)
    elif _skipped(draft):
        _tell_skipped(draft, "asked to skip it")
        draft.move("Fencing")
    elif view is not None and view.state == "Completed":
        _taken(draft, view, lost=lost)
    elif draft.reached(_deadline(draft, rules)) and rules.on_timeout == "Proceed":
        _tell_skipped(draft, f"it was not done within {rules.timeout}")
        draft.move("Fencing")
    elif view is not None and view.state == "Failed":
        _again(draft, rules, view.error.message if view.error is not None else "nobody said why")
    elif operation.not_before is not None and not draft.reached(operation.not_before):
        draft.wake_at(operation.not_before)
    else:
        if draft.reached(_deadline(draft, rules)):
            _wait_for_person(draft, _FINAL_FAILED, "the last snapshot cannot be taken")
        ask(draft)


def _ended(draft: Draft, *, lost: bool) -> None:
    if draft.attempt.outcome == "Failed" and draft.status.next_restore is None:
        _tell_skipped(draft, draft.attempt.outcome_message)
    elif lost:
        _tell_skipped(draft, _NO_SAVEPOINT)
    draft.move("Fencing")


def _taken(draft: Draft, view: RequestView, *, lost: bool) -> None:
    if lost:
        _tell_skipped(draft, _NO_SAVEPOINT)
    completed(draft, view)


def _is_lost(draft: Draft, rules: Deletion, view: RequestView | None) -> bool:
    """Whether the job ended without the savepoint that was to outlive its lineage.

    A checkpoint is no stead for it: that goes with the lineage.
    """
    if rules.policy != "Delete" or _wanted(draft, rules) != "Savepoint":
        return False
    if view is not None and view.state == "Completed":
        return view.savepoint is None
    outcome = draft.attempt.outcome
    return bool(outcome) and outcome != "Finished" and draft.status.next_restore is None


def _again(draft: Draft, rules: Deletion, why: str) -> None:
    """After some tries a checkpoint must do, unless it would be deleted and nobody agreed."""
    operation = draft.operation
    text = f"{operation.stop_mode} before the end failed: {why}"
    draft.tell("Warning", "SavepointFailed", text, operation.snapshot_request_id)
    retry(draft, text, timedelta(seconds=_FIRST_RETRY * 2 ** min(operation.retries, 4)))
    if rules.policy == "Delete" and rules.on_timeout == "Block":
        # What was taken over may have been asked for less.
        draft.put_operation(stop_mode=_wanted(draft, rules))
    elif operation.stop_mode == "Savepoint" and operation.retries + 1 >= _SAVEPOINT_TRIES:
        draft.put_operation(stop_mode="Checkpoint", snapshot_name="")


def _stop(draft: Draft) -> None:
    keep_snapshot(draft)
    deadline, pod = draft.operation.deadline, draft.pod
    if draft.attempt.outcome or draft.is_unmade:
        draft.move("Fencing")
    elif pod is not None and (deadline is None or draft.reached(deadline)):
        remove(draft, pod)


def _tell_skipped(draft: Draft, why: str) -> None:
    text = f"The job ends without a last snapshot: {why}; {age_of_checkpoint(draft)}"
    draft.tell("Warning", "FinalSnapshotSkipped", text, draft.meta.uid)


# -- pods, and the store -----------------------------------------------------------------------


def _fence(draft: Draft, rules: Deletion) -> None:
    if not draft.operation.snapshot_name:
        draft.put_operation(snapshot_name=_stopped_with(draft))
    # An object that goes with its data is waited for: with the job goes who would mend it.
    stays = keep_snapshot(draft) or _skipped(draft)
    if (cleared(draft) and stays) or draft.reached(_patience_ends(draft, rules)):
        draft.move("Verifying")


def _stopped_with(draft: Draft) -> str:
    """The savepoint with which the job was stopped before, if its object goes with its data."""
    point, known = draft.status.next_restore, draft.world.snapshots
    if point is None or point.mode != "Path" or isinstance(known, Unreadable):
        return ""
    own = (one for one in known if data_go_too(one) and one.meta.deleted_at is None)
    return next((one.directory for one in own if same_place(one.status.path, point.path)), "")


def _give_up_lineage(draft: Draft, rules: Deletion) -> None:
    """Release or delete the lineage, release those left before, then let the object go."""
    if not _store_is_settled(draft, rules):
        return
    if _skipped(draft) or release_rest(draft, _store_deadline(draft, rules)):
        draft.put(blocked_reason="", message="")
        draft.do(SetFinalizer(present=False))


def _store_is_settled(draft: Draft, rules: Deletion) -> bool:
    operation = draft.operation
    if not _is_ours(draft) or _released(draft, rules):
        return True
    task_id = f"{draft.meta.uid}-{rules.policy.lower()}-{operation.retries}"
    found = draft.world.store_tasks.get(task_id)
    if found is not None and found.state == "Completed":
        return True
    if _skipped(draft):
        return True
    if found is not None and found.state == "Failed":
        return _store_task_failed(draft, rules, found.message, retryable=found.retryable)
    if found is not None and found.message:
        draft.put_operation(message=found.message)
    waits = draft.status.blocked_reason == _STATE_STAYS
    late = draft.reached(_store_deadline(draft, rules)) and not waits
    if late and _store_task_late(draft, rules, "it is not done in time"):
        return True
    if operation.not_before is None or draft.reached(operation.not_before):
        retain = rules.policy == "Retain"
        draft.do(RunStoreTask(StoreTask(task_id, "Release" if retain else "DeleteLineage")))
    return False


def _store_task_failed(draft: Draft, rules: Deletion, why: str, *, retryable: bool) -> bool:
    operation = draft.operation
    hopeless = not retryable or draft.reached(_store_deadline(draft, rules))
    if hopeless and _store_task_late(draft, rules, why):
        return True
    # A person is waited for, who may have mended the store by then.
    wait = timedelta(seconds=_FIRST_RETRY * 2 ** min(operation.retries, 5))
    draft.put_operation(retries=operation.retries + 1, not_before=draft.now + wait, message=why)
    return False


def _store_task_late(draft: Draft, rules: Deletion, why: str) -> bool:
    """What cannot be done in the store does not hold the object, unless a person wants that."""
    if rules.policy == "Delete" and rules.on_timeout == "Block":
        _wait_for_person(draft, _STATE_STAYS, f"state cannot be deleted: {why}")
        return False
    if rules.policy == "Retain":
        reason, what = "LineageNotReleased", "its checkpoint directory stays as it is"
    else:
        reason, what = _STATE_STAYS, "what is not deleted of its checkpoint directory by now stays"
    text = f"The object goes, and {what}: {why}"
    if draft.operation.message != text:
        draft.put_operation(message=text)
        draft.tell("Warning", reason, text, draft.meta.uid)
    return True


def _is_ours(draft: Draft) -> bool:
    """Whether a driver of this object ever held the lineage: only then is it touched."""
    store = draft.world.store
    if isinstance(store, StoreView) and store.owner is not None:
        return store.owner[3] == draft.meta.uid
    return draft.attempt.number > 0 and bool(draft.status.snapshots.lineage_id)


def _released(draft: Draft, rules: Deletion) -> bool:
    if rules.policy != "Retain":
        return False
    store, pod = draft.world.store, draft.pod
    if isinstance(store, StoreView) and (store.released or not store.exists):
        return True
    return pod is not None and pod.end is not None and pod.end.released


def _wait_for_person(draft: Draft, reason: str, what: str) -> None:
    text = f"{what}; set the annotation moorage.dev/skip-final-savepoint=true to delete without it"
    if draft.status.blocked_reason != reason:
        draft.tell("Warning", "ManualActionRequired", text, draft.meta.uid)
    draft.put(blocked_reason=reason, message=text)


def _skipped(draft: Draft) -> bool:
    return draft.meta.annotation("skip-final-savepoint") == "true"


def _deadline(draft: Draft, rules: Deletion) -> datetime:
    # From when somebody acted: the operator may have been away, or the API server's clock behind.
    begun = max(draft.meta.deleted_at or draft.now, draft.operation.started_at)
    return begun + rules.timeout.timedelta


def _store_deadline(draft: Draft, rules: Deletion) -> datetime:
    """When the store does not hold the object any more: it is asked, however late it is by then."""
    return max(_deadline(draft, rules), draft.operation.step_started_at + _STORE_TIME)


def _patience_ends(draft: Draft, rules: Deletion) -> datetime:
    """When even pods that will not go do not hold the object any more."""
    grace = max((pod.grace_seconds for pod in draft.drivers), default=0)
    rest = timedelta(seconds=grace + draft.config.stop_timeout) + 2 * lost_patience(draft)
    return max(_deadline(draft, rules), draft.operation.step_started_at) + rest
