"""Going back to the last version that was stable, from one that never gets so. Pure.

By itself only where that changes nothing that anybody has read: output is published with completed
checkpoints, so before the new version has completed one, its start can be made undone. After that
a person decides: in advance, by `rollback.retractOutput`, where every sink takes output back; or by
the annotation `moorage.dev/rollback`.
"""

from datetime import datetime

from moorage_api import JobSpec
from moorage_api.changes import classify
from moorage_api.status import RestorePointStatus, Trial
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.health import is_ready, lag_grows
from moorage_operator.decide.operations import begin, clear_block
from moorage_operator.decide.restore_point import is_by_spec, place_of
from moorage_operator.decide.specs import (
    give_up,
    is_given_up,
    is_new_nonce,
    newest_name,
    note_rolled_back,
    policy,
    target,
)
from moorage_operator.store_access import access_of
from moorage_operator.world import StoreView, Unreadable

_ANNOTATION = "rollback"
_OTHERS = ("Delete", "Suspend")
_FOR_THE_STORE = ("Fenced", "StoreUnavailable")
"""Reasons of ends that may be no version's fault."""


def note_start(draft: Draft, revision: str, number: int, point: RestorePointStatus) -> None:
    """Attempt `number` begins: where another version was stable, this one is on trial."""
    done, before = draft.status.reconciliation, draft.attempt.revision
    operation = draft.status.operation
    if revision == done.stable_revision:
        draft.put_reconciliation(trial=None)
    elif _only_scales(draft, before, revision):
        draft.put_reconciliation(stable_revision=revision, trial=None)
    elif before == done.stable_revision:
        last = draft.status.snapshots.last_checkpoint
        elsewhere = point.mode == "Empty" or (point.mode == "Path" and is_by_spec(point))
        back = point
        if last is not None and (elsewhere or point.mode != "Path"):
            back = RestorePointStatus(mode="Path", path=last.path, checkpoint_id=last.id)
        trial = Trial(
            revision=revision,
            since=draft.now,
            attempt=number,
            elsewhere=elsewhere,
            checkpoint_id=_newest_number(draft, point),
            restore_point=back,
            sinks_before=draft.attempt.sinks,
            unsaid=(revision,),
        )
        draft.put_reconciliation(trial=trial)
    elif done.trial is not None:
        # What was published since the version that was stable counts on.
        resumed = operation is not None and operation.type == "Resume"
        anew = resumed or done.trial.revision != revision or _is_given_time(draft, done.trial)
        since = draft.now if anew else done.trial.since
        unsaid = done.trial.unsaid
        if revision not in unsaid and revision != before:
            unsaid = (*unsaid, revision)
        update = {"revision": revision, "since": since, "unsaid": unsaid}
        if point.mode == "Empty" or is_by_spec(point):
            update["elsewhere"] = True  # a person went somewhere else meanwhile
        trial = done.trial.model_copy(update=update)
        draft.put_reconciliation(trial=trial)


def _newest_number(draft: Draft, point: RestorePointStatus) -> int:
    """The newest checkpoint of the version before, whoever knows of it: its driver is gone."""
    # The status may be minutes older than the end of a driver that left no word.
    last, store = draft.status.snapshots.last_checkpoint, draft.world.store
    known = [point.checkpoint_id, last.id if last is not None else 0]
    if isinstance(store, StoreView) and store.newest is not None:
        owner = store.owner
        if owner is not None and owner[3] == draft.meta.uid:
            known.append(store.newest.checkpoint_id)
    return max(known)


def _only_scales(draft: Draft, before: str, revision: str) -> bool:
    """Whether it is the stable version with another width, which nobody is to try."""
    stable = draft.status.reconciliation.stable_revision
    old, new = (draft.world.revisions.get(name) for name in (stable, revision))
    known = draft.status.scaling.autoscaler
    if old is None or new is None or classify(old.spec, new.spec).kind != "Rescale":
        return False
    # There is nothing to go back to where it goes on in place of one that was given up.
    if draft.world.given_up is not None:
        return True
    if known is None or known.dry_run or before != stable:
        return False
    return known.target == new.spec.scaling.parallelism


def note_restored(draft: Draft) -> None:
    """The trial's first driver says what the version before had come to: nobody knows better."""
    trial, attempt = draft.status.reconciliation.trial, draft.attempt
    found = attempt.restored_from
    if trial is None or trial.elsewhere or found is None or attempt.number != trial.attempt:
        return
    point = trial.restore_point
    if found.path != point.path:
        point = RestorePointStatus(
            mode="Path", path=found.path, checkpoint_id=found.checkpoint_id or 0
        )
    number = max(trial.checkpoint_id, found.checkpoint_id or 0)
    trial = trial.model_copy(update={"checkpoint_id": number, "restore_point": point})
    draft.put_reconciliation(trial=trial)


def note_sinks(draft: Draft) -> None:
    """What a version on trial publishes is its sinks'; its driver has said which these are."""
    trial, attempt = draft.status.reconciliation.trial, draft.attempt
    if trial is None or not attempt.sinks_known or trial.revision != attempt.revision:
        return
    sinks = (*trial.sinks, *(one for one in attempt.sinks if one not in trial.sinks))
    unsaid = tuple(name for name in trial.unsaid if name != attempt.revision)
    draft.put_reconciliation(trial=trial.model_copy(update={"sinks": sinks, "unsaid": unsaid}))


def roll_back_if_late(draft: Draft) -> bool:
    """Begin to go back if the new version has had its time; say whether that was begun."""
    trial, spec = _trial(draft), policy(draft)
    if trial is None or spec is None or draft.attempt.stable_since is not None:
        return False
    if isinstance(draft.world.report, Unreadable) and draft.pod is not None and is_ready(draft.pod):
        return False  # it cannot be reached from here; it may publish all the same
    late, operation = _late_at(draft, trial, spec), draft.status.operation
    resumes = operation is not None and operation.type == "Resume"
    if late is None or resumes or _is_given_time(draft, trial):
        return False  # its time begins anew with the start
    if not draft.reached(late):
        draft.wake_at(late)
        return False
    limit, last = spec.upgrade.rollback.readiness_timeout, draft.status.restarts
    failed = last.last_time is not None and last.last_time >= trial.since
    why = f"; {last.last_reason}: {last.last_message}" if failed else ""
    if draft.report is not None and lag_grows(draft.report):
        why = f"{why}; more rows come than it takes"
    return roll_back(draft, f"it did not become stable within {limit}{why}")


def roll_back(draft: Draft, why: str) -> bool:
    """Begin to go back, if that may be without a person; say whether that was begun."""
    trial = _trial(draft)
    if trial is None or not may_roll_back(draft):
        return False
    _begin(draft, trial, "NotStable", why)
    if _published(draft, trial):
        # What every sink takes back, and nothing else, was published since.
        _go_before(draft, trial)
    # Else it began from the newest point of the lineage and completed none: a start from the same,
    # or from the newest, is where the version before stopped.
    return True


def may_roll_back(draft: Draft) -> bool:
    """Whether `roll_back` would begin to."""
    return _trial(draft) is not None and not hindrance(draft) and not waits_for_store(draft)


def waits_for_store(draft: Draft) -> str:
    """Why nobody knows whether the version on trial, which may go otherwise, published; else empty.

    Its driver ended, or is silent, and the store was not read since: that proves nothing.
    """
    trial, store, pod = _trial(draft), draft.world.store, draft.pod
    if trial is None or isinstance(store, StoreView) or hindrance(draft):
        return ""
    silent = draft.is_active and draft.report is None and pod is not None
    if not (trial.unread or (silent and pod is not None and pod.phase != "Pending")):
        return ""
    why = f": {store.message}" if store is not None else ""
    return (
        "it makes room once the store shows that nothing was published since the upgrade, of which "
        f"its driver left no word{why}"
    )


def follow_rollback(draft: Draft) -> bool:
    """Do what a new value of the annotation asks for; say whether a rollback was begun."""
    asked, operation = draft.meta.annotation(_ANNOTATION), draft.status.operation
    if asked == draft.status.snapshots.last_trigger.rollback:
        return False
    if operation is not None and operation.type in _OTHERS:
        return False
    draft.put_triggers(rollback=asked)
    done, trial = draft.status.reconciliation, draft.status.reconciliation.trial
    back = operation is not None and operation.type == "Rollback"
    if not asked or (back and asked == done.stable_revision):
        return False
    order = f"the annotation moorage.dev/rollback is {asked}"
    if not back and asked == draft.attempt.revision and _leave_unbegun(draft, order):
        return False
    if trial is None or back or asked != done.stable_revision or asked not in draft.world.revisions:
        _refuse(draft, asked)
        return False
    clear_block(draft)
    _begin(draft, trial, "RollbackRequested", order)
    _go_before(draft, trial)
    return True


def _leave_unbegun(draft: Draft, order: str) -> bool:
    """Take back the edit by which another version is to follow; say whether one waits to.

    What is under way for it goes on as after an edit that is set back.
    """
    newest, here, operation = newest_name(draft), draft.attempt.revision, draft.status.operation
    waits = newest not in ("", here) and here in draft.world.revisions
    if not waits or is_given_up(draft) or is_new_nonce(draft):
        return False
    if draft.status.blocked_reason:
        clear_block(draft)
    if operation is not None and operation.mode_used == "Stateless":
        draft.put_operation(mode_used="LastCheckpoint")  # only the other one was to begin empty
    give_up(draft, newest, f"it was not begun: {order}", instead=here)
    text = f"{here} goes on, and {newest} is not begun: {order}"
    draft.tell("Normal", "RolledBack", text, _key(draft, here))
    return True


def _refuse(draft: Draft, asked: str) -> None:
    operation, trial = draft.status.operation, draft.status.reconciliation.trial
    back = operation is not None and operation.type == "Rollback"
    why = f"the last stable version before: {draft.status.reconciliation.stable_revision}"
    if asked == draft.attempt.revision and not back:
        raised = "spec.restore.nonce was raised, which is not taken back"
        idle = "it began last, and no other version waits to follow"
        why = raised if is_new_nonce(draft) else idle
    elif trial is not None and _is_lost(draft):
        why = f"{why}, whose ControllerRevision was deleted"
    elif trial is None:
        why = "the last stable version before: none: no version is on trial"
    text = f"there is no way back to {asked}; {why}"
    draft.tell("Warning", "RollbackRefused", text, _key(draft, asked))


def _key(draft: Draft, asked: str) -> str:
    """Of an order: the same value may be followed once more, after it was taken off."""
    return f"{draft.meta.generation}-{draft.status.operation_counter}-{asked}"


def _go_before(draft: Draft, trial: Trial) -> None:
    """The version before begins where it stopped; the lineage branches there."""
    order = f"rollback-{draft.status.operation_counter}-{draft.tag}"
    point = trial.restore_point.model_copy(update={"order_id": order})
    draft.put(next_restore=point if point.mode == "Path" else None)
    draft.put_attempt(restore_point=None)


def hindrance(draft: Draft) -> str:
    """Why a version on trial is not rolled back without a person; empty if it may be."""
    done, trial = draft.status.reconciliation, draft.status.reconciliation.trial
    if trial is None:
        return ""
    if _is_lost(draft):
        return f"the ControllerRevision {done.stable_revision} was deleted; correct the new version"
    back = f"annotating the job with moorage.dev/{_ANNOTATION}={done.stable_revision}"
    if draft.meta.annotation(_ANNOTATION) == done.stable_revision:
        back = f"{back} (take the annotation off first, as its value was followed before)"
    published = _published(draft, trial)
    kept = _kept_output(draft, trial) if published else None
    if kept is not None and trial.elsewhere:
        return (
            f"output was published since the upgrade (checkpoint {published}){kept}, and the job "
            f"began from another point than the version before had come to; correct the new "
            f"version, or go back to where that stopped by {back}: what was restored since is left"
        )
    if kept is not None:
        return (
            f"output was published since the upgrade (checkpoint {published}){kept}; correct the "
            f"new version, or take that back by {back}: it goes on from before the upgrade"
        )
    if trial.elsewhere:
        return (
            "the new version began from another point than the version before had come to; "
            f"correct it, or go back to where that stopped by {back}"
        )
    old, new = (draft.world.revisions.get(one) for one in (done.stable_revision, trial.revision))
    moved = old is not None and new is not None and place_of(old.spec) != place_of(new.spec)
    return "the new version has its state in another place; correct the spec" if moved else ""


def _published(draft: Draft, trial: Trial) -> int:
    """The newest checkpoint of versions on trial, with which output was published; 0 for none."""
    last = draft.status.snapshots.last_checkpoint
    return last.id if last is not None and last.id > trial.checkpoint_id else 0


def _kept_output(draft: Draft, trial: Trial) -> str | None:
    """Why what was published is not taken back without a person, in more words; None if it is."""
    spec = policy(draft)
    if spec is None or not spec.upgrade.rollback.retract_output:
        return ""
    if trial.unsaid:
        return f", and nobody knows by which sinks, as no driver of {trial.unsaid[0]} said"
    able = {(one.uid, one.takes_back) for one in trial.sinks_before if one.takes_back}
    unable = sorted({one.uid for one in trial.sinks if (one.uid, one.takes_back) not in able})
    if unable:
        return f", and not every sink of both versions takes output back: {', '.join(unable[:8])}"
    since, last = _published(draft, trial) - trial.checkpoint_id, trial.restore_point.path
    is_checkpoint = last.partition("?")[0].rpartition("/")[2].startswith("chk-")
    if is_checkpoint and since >= spec.checkpoint.retain.count:
        return ", and by checkpoint.retain the checkpoint before the upgrade may be gone"
    return None


def is_late(draft: Draft) -> bool:
    """Whether the version on trial has had its time."""
    trial, spec = _trial(draft), policy(draft)
    late = _late_at(draft, trial, spec) if trial is not None and spec is not None else None
    return late is not None and draft.reached(late)


def give_time(draft: Draft) -> None:
    """A version on trial has its time anew: its driver ended for want of the store."""
    done, trial = draft.status.reconciliation, draft.status.reconciliation.trial
    if trial is None:
        return
    # Where the operator reads it, or another way leads there, it is the version that has lost it.
    old, new = (draft.world.revisions.get(one) for one in (done.stable_revision, trial.revision))
    ways = {_way(known.spec) for known in (old, new) if known is not None}
    if not isinstance(draft.world.store, StoreView) and len(ways) == 1:
        draft.put_reconciliation(trial=trial.model_copy(update={"since": draft.now}))


def _way(spec: JobSpec) -> tuple[object, ...]:
    """How it reaches its store."""
    access = access_of(spec)
    return place_of(spec), access.service_account_name, access.credentials_secret, access.region


def _is_given_time(draft: Draft, trial: Trial) -> bool:
    """Whether its last driver ended so, and no other has begun."""
    last = draft.status.restarts
    return trial.since == last.last_time and last.last_reason in _FOR_THE_STORE


def _late_at(draft: Draft, trial: Trial, spec: JobSpec) -> datetime | None:
    """None where nobody knows how long a good version takes: its checkpoints go by a calendar."""
    rules, interval = spec.upgrade.rollback, spec.checkpoint.effective_interval
    needed, count = rules.stable_after.duration.timedelta, rules.stable_after.completed_checkpoints
    if count and interval is None:
        return None
    if interval is not None:
        needed += interval.timedelta * (count + 1)
    return draft.attended(trial.since) + max(rules.readiness_timeout.timedelta, needed)


def _trial(draft: Draft) -> Trial | None:
    """That of the current attempt's revision, where going back is wanted."""
    spec, trial = policy(draft), draft.status.reconciliation.trial
    if spec is None or trial is None or not spec.upgrade.rollback.enabled:
        return None
    return trial if trial.revision == draft.attempt.revision == target(draft) else None


def _is_lost(draft: Draft) -> bool:
    """Whether nobody knows any more what the last stable version was."""
    return draft.status.reconciliation.stable_revision not in draft.world.revisions


def _begin(draft: Draft, trial: Trial, reason: str, why: str) -> None:
    back = draft.status.reconciliation.stable_revision
    text = f"back to {back} from {trial.revision}: {why}"
    give_up(draft, trial.revision, f"it was rolled back: {why}", instead=back)
    note_rolled_back(draft, trial.revision, why)
    draft.put_restarts(next_retry_at=None, backoff_level=0, restore_failures=0, window=())
    if draft.is_active and draft.report is not None and draft.attempt.running_since is not None:
        # Without a last checkpoint, which would publish what is to be taken back.
        begin(draft, "Rollback", "Snapshotting", reason, text, mode_used="LastCheckpoint")
        draft.put_operation(stop_mode="None")
    else:
        begin(draft, "Rollback", "Fencing", reason, text, mode_used="LastCheckpoint")
    # Whatever was newest: that may have been given up before, or be wrong.
    draft.put_operation(target_revision=back)
    draft.tell("Warning", "RollbackStarted", text, draft.operation.id)
