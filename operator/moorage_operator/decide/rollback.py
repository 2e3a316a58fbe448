"""Going back to the last version that was stable, from one that never gets so. Pure.

By itself only where that changes nothing that anybody has read: output is published with completed
checkpoints, so before the new version has completed one, its start can be made undone. After that
a person decides, by the annotation `moorage.dev/rollback`.
"""

from moorage_api.status import RestorePointStatus, Trial
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.operations import begin
from moorage_operator.decide.restore_point import moved
from moorage_operator.decide.specs import give_up, policy, target

ANNOTATION = "rollback"


def note_start(draft: Draft, revision: str, point: RestorePointStatus) -> None:
    """An attempt of this revision begins: where another one was stable, this one is on trial."""
    done = draft.status.reconciliation
    if revision == done.stable_revision:
        draft.put_reconciliation(trial=None)
    elif done.trial is None or done.trial.revision != revision:
        last = draft.status.snapshots.last_checkpoint
        number = last.id if last is not None else 0
        if point.mode != "Path" and last is not None:
            point = RestorePointStatus(mode="Path", path=last.path, checkpoint_id=last.id)
        trial = Trial(revision=revision, since=draft.now, checkpoint_id=number, restore_point=point)
        draft.put_reconciliation(trial=trial)


def roll_back_if_late(draft: Draft) -> bool:
    """Begin to go back if the new version has had its time; say whether that was begun."""
    trial, spec = _trial(draft), policy(draft)
    if trial is None or spec is None or draft.attempt.stable_since is not None:
        return False
    late = trial.since + spec.upgrade.rollback.readiness_timeout.timedelta
    if not draft.reached(late):
        draft.wake_at(late)
        return False
    limit, last = spec.upgrade.rollback.readiness_timeout, draft.status.restarts
    failed = last.last_time is not None and last.last_time >= trial.since
    why = f"; {last.last_reason}: {last.last_message}" if failed else ""
    return roll_back(draft, f"it did not become stable within {limit}{why}")


def roll_back(draft: Draft, why: str) -> bool:
    """Begin to go back, if that may be without a person; say whether that was begun."""
    trial = _trial(draft)
    if trial is None or hindrance(draft):
        return False
    _begin(draft, trial, "NotStable", why)
    return True


def follow_rollback(draft: Draft) -> bool:
    """Begin what a new value of the annotation asks for; say whether that was begun."""
    asked = draft.meta.annotation(ANNOTATION)
    if not asked or asked == draft.status.snapshots.last_trigger.rollback:
        return False
    draft.put_triggers(rollback=asked)
    done, trial = draft.status.reconciliation, draft.status.reconciliation.trial
    if trial is None or asked != done.stable_revision or asked not in draft.world.revisions:
        can = done.stable_revision if trial is not None else "none: no version is on trial"
        text = f"there is no way back to {asked}; the last stable version before: {can}"
        draft.tell("Warning", "RollbackRefused", text, asked)
        return False
    order = f"rollback-{draft.status.operation_counter + 1}-{draft.tag}"
    point = trial.restore_point.model_copy(update={"order_id": order})
    _begin(draft, trial, "RollbackRequested", f"the annotation moorage.dev/rollback is {asked}")
    # What was published since stays with its readers; the lineage branches before it.
    draft.put(next_restore=point if point.mode == "Path" else None)
    draft.put_attempt(restore_point=None)
    return True


def hindrance(draft: Draft) -> str:
    """Why a version on trial is not rolled back without a person; empty if it may be."""
    trial, done = draft.status.reconciliation.trial, draft.status.reconciliation
    if trial is None:
        return ""
    last = draft.status.snapshots.last_checkpoint
    if last is not None and last.id > trial.checkpoint_id:
        return (
            f"output was published since the upgrade (checkpoint {last.id}); correct the new "
            f"version, or take that back by annotating the job with moorage.dev/{ANNOTATION}="
            f"{done.stable_revision}: it goes on from before the upgrade"
        )
    old, new = (draft.world.revisions.get(one) for one in (done.stable_revision, trial.revision))
    if old is not None and new is not None and moved(old.spec, new.spec):
        return "the new version has another checkpointDir; correct the spec"
    return ""


def is_late(draft: Draft) -> bool:
    """Whether the version on trial has had its time."""
    trial, spec = _trial(draft), policy(draft)
    if trial is None or spec is None:
        return False
    return draft.reached(trial.since + spec.upgrade.rollback.readiness_timeout.timedelta)


def _trial(draft: Draft) -> Trial | None:
    """That of the current attempt's revision, where going back is wanted and possible."""
    spec, done, trial = (
        policy(draft),
        draft.status.reconciliation,
        draft.status.reconciliation.trial,
    )
    if spec is None or trial is None or not spec.upgrade.rollback.enabled:
        return None
    mine = trial.revision == draft.attempt.revision == target(draft)
    return trial if mine and done.stable_revision in draft.world.revisions else None


def _begin(draft: Draft, trial: Trial, reason: str, why: str) -> None:
    back = draft.status.reconciliation.stable_revision
    text = f"back to {back} from {trial.revision}: {why}"
    give_up(draft, f"it was rolled back: {why}")
    draft.put_restarts(next_retry_at=None, backoff_level=0, restore_failures=0, window=())
    if draft.is_active and draft.report is not None and draft.attempt.running_since is not None:
        # Without a last checkpoint, which would publish what is to be taken back.
        begin(draft, "Rollback", "Snapshotting", reason, text, mode_used="LastCheckpoint")
        draft.put_operation(stop_mode="None")
    else:
        begin(draft, "Rollback", "Fencing", reason, text, mode_used="LastCheckpoint")
    draft.tell("Warning", "RollbackStarted", text, draft.operation.id)
