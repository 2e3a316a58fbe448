"""Which operation begins next, where none is under way or one is overtaken, and how. Pure."""

from datetime import timedelta

from moorage_api.changes import SpecChange, classify
from moorage_api.lifecycle import Upgrade
from moorage_api.status import OperationType
from moorage_operator.decide.autoscaler import autoscale, give_step_back
from moorage_operator.decide.draft import QUOTA_EXCEEDED, Draft, here
from moorage_operator.decide.findings import cure, findings, stops
from moorage_operator.decide.leaving import release_left
from moorage_operator.decide.observed import REBUILT
from moorage_operator.decide.operations import begin, block, end
from moorage_operator.decide.preflight import has_passed, is_wanted
from moorage_operator.decide.recover import after_end, finish
from moorage_operator.decide.rescale import (
    begin_rescale,
    is_interrupted,
    rescaling,
    take_back,
    tell_held,
    tell_waits,
)
from moorage_operator.decide.restore_point import path_store_task
from moorage_operator.decide.rollback import roll_back_if_late
from moorage_operator.decide.room import lacks_edit
from moorage_operator.decide.specs import (
    desired,
    is_new_nonce,
    is_valid,
    newest_name,
    note_restart,
    pass_over_restart,
    policy,
    running_spec,
    target,
)
from moorage_operator.decide.standby import begin_standby, follow_standby, wants_standby
from moorage_operator.decide.stop import RESTART, StopMode, begin_stop, is_left_half_way
from moorage_operator.plan import DeletePod, RunStoreTask, TidyAttempt

_ANOTHER = ("Upgrade", "Redeploy")
"""Kinds of edits that make another version."""
_NO_SPEC = "no spec is known that could be started; correct the spec, and it is followed"


def change_of(draft: Draft) -> SpecChange | None:
    """What the newest spec changes of the one that runs; None if either is not known."""
    known = draft.world.revisions.get(draft.attempt.revision)
    if known is None or not is_valid(draft) or draft.world.spec is None:
        return None
    return classify(known.spec, draft.world.spec)


def follow_edit(draft: Draft) -> bool:
    """Begin what a running job's newest spec asks for; say whether there was anything."""
    if desired(draft) == "Suspended":
        _suspend(draft)
        return True
    if is_new_nonce(draft):
        if _looks_first(draft):
            return True
        text = "spec.restore.nonce was raised"
        begin_stop(draft, "Redeploy", "Checkpoint", "SpecChanged", text, used="LastCheckpoint")
        return True
    if target(draft) in ("", draft.attempt.revision):
        return False
    if lacks := lacks_edit(draft):
        _wait_for_room(draft, lacks)
        return False
    change = change_of(draft)
    fields = ", ".join(change.fields) if change is not None else "unknown"
    kind: OperationType = "Upgrade"
    if change is not None and change.kind == "Rescale":
        begin_rescale(draft, change)
    else:
        _upgrade(draft, kind, "SpecChanged", f"changed: {fields}")
    return True


def _wait_for_room(draft: Draft, lacks: str) -> None:
    """Nothing is stopped for what has no room. Another look comes as to any job."""
    if not give_step_back(draft, lacks):
        text = f"the edit waits, and what runs goes on: {lacks}"
        draft.tell("Warning", QUOTA_EXCEEDED, text, f"{draft.meta.uid}-{draft.meta.generation}")


def follow_restart(draft: Draft) -> bool:
    """Begin the restart that a new value of the annotation asks for."""
    asked, before = draft.meta.annotation("restart"), draft.status
    if not draft.restart_asked:
        return False
    note_restart(draft)
    if policy(draft) is None:
        draft.status = before  # it is followed once there is a spec to go by
        text = f"the annotation moorage.dev/restart is {asked[:80]!r} and waits: {_NO_SPEC}"
        draft.tell("Warning", "AnnotationIgnored", text, f"{draft.meta.uid}-waits-{asked}")
        return False
    _upgrade(draft, "Upgrade", RESTART, f"the annotation moorage.dev/restart is {asked[:80]}")
    return True


def follow_rescale(draft: Draft) -> None:
    """The step Rescaling, as long as nothing else is asked for."""
    if not is_interrupted(draft):
        rescaling(draft)
    elif desired(draft) == "Suspended" or is_new_nonce(draft):
        follow_edit(draft)
    elif not (follow_restart(draft) or follow_edit(draft)):
        if target(draft) in ("", draft.attempt.revision):
            take_back(draft)
        else:
            rescaling(draft)  # the newest edit has no room, and waits


def follow_trial(draft: Draft) -> None:
    """The steps Preflight and Standby: the new version is tried, and the old one runs."""
    operation = draft.operation
    draft.wake(draft.config.busy_resync)
    if draft.is_unmade or draft.attempt.outcome:
        # Nothing runs that could be spared: what is next is a start like any other.
        end(draft)
    elif desired(draft) == "Suspended" or is_new_nonce(draft):
        follow_edit(draft)
    elif target(draft) != operation.target_revision:
        _drop_trial(draft)
    else:
        tell_waits(draft)
        if operation.step == "Standby":
            _run_beside(draft)
        elif is_wanted(draft):
            _try_first(draft)
        else:
            _tried(draft)


def _drop_trial(draft: Draft) -> None:
    """The version that is tried is not the one that is meant any more."""
    operation, change, name = draft.operation, change_of(draft), target(draft)
    tried, kind = operation.target_revision, operation.type
    text = f"{kind} to {tried} gives way to {name}, as the spec was edited; nothing was stopped"
    if change is None or change.kind not in _ANOTHER or name == draft.attempt.revision:
        text = f"{kind} was taken back before anything was stopped"
    if operation.reason == RESTART:
        _upgrade(draft, kind, RESTART, operation.message)
        return
    end(draft)
    draft.tell("Normal", "OperationCancelled", text, operation.id)


def _try_first(draft: Draft) -> None:
    if has_passed(draft):
        _tried(draft)


def _tried(draft: Draft) -> None:
    """Nothing is left to be tried without the job's input."""
    operation = draft.operation
    _replace(draft, operation.type, operation.reason, operation.message)


def _run_beside(draft: Draft) -> None:
    operation = draft.operation
    if wants_standby(draft):
        follow_standby(draft)
    else:
        _stop_for(draft, operation.type, operation.reason, operation.message)


def tell_edit(draft: Draft) -> None:
    """Tell once what a new generation means for the spec that runs."""
    change = change_of(draft)
    # A deletion is a new generation as well, and changes nothing of the spec.
    if change is None or not change.fields or draft.meta.deleted_at is not None:
        return
    fields = ", ".join(change.fields[:12])
    more = f" and {len(change.fields) - 12} more" if len(change.fields) > 12 else ""
    waits = newest_name(draft) != target(draft)
    text = f"{change.kind}: {fields}{more}" + ("; it waits for a savepoint" if waits else "")
    draft.tell("Normal", "SpecChanged", text, f"{draft.meta.uid}-{draft.meta.generation}")


def _looks_first(draft: Draft) -> bool:
    """Whether it is still looked for what spec.restore.path names; the job runs on meanwhile."""
    spec = policy(draft)
    if spec is None or spec.restore.mode != "Path":
        return False
    store_task = path_store_task(draft, spec)
    view = draft.world.store_tasks.get(store_task.id)
    # What the operator may not look at is for the driver to find.
    if view is not None and (view.state == "Completed" or view.failed_for_good):
        return False
    draft.do(RunStoreTask(store_task))
    draft.wake(draft.config.busy_resync)
    return True


def _suspend(draft: Draft) -> None:
    rules, spec = policy(draft), running_spec(draft)
    wanted = rules is not None and rules.upgrade.mode == "Savepoint"
    able = spec is not None and bool(spec.state.savepoint_dir)
    mode: StopMode = "Savepoint" if wanted and able else "Checkpoint"
    begin_stop(draft, "Suspend", mode, "SpecChanged", "desiredState is Suspended")


def _upgrade(draft: Draft, kind: OperationType, reason: str, message: str) -> None:
    spec = policy(draft)
    if spec is None:
        return
    runs = draft.is_active and draft.attempt.running_since is not None
    if spec.upgrade.preflight and runs and target(draft) not in ("", draft.attempt.revision):
        deadline = draft.now + timedelta(seconds=draft.config.start_timeout)
        begin(draft, kind, "Preflight", reason, message, deadline)
        _try_first(draft)
        return
    _replace(draft, kind, reason, message)


def _replace(draft: Draft, kind: OperationType, reason: str, message: str) -> None:
    """Have the new version take the place of the old one, as spec.upgrade.strategy says."""
    runs = draft.is_active and draft.attempt.running_since is not None
    another = target(draft) not in ("", draft.attempt.revision)
    if runs and another and wants_standby(draft):
        begin_standby(draft, kind, reason, message)
    else:
        _stop_for(draft, kind, reason, message)


def _stop_for(draft: Draft, kind: OperationType, reason: str, message: str) -> None:
    spec = policy(draft)
    if spec is None:
        return
    mode = _wanted_mode(draft, spec.upgrade)
    used = "Stateless" if spec.upgrade.mode == "Stateless" else ""
    begin_stop(draft, kind, mode, reason, message, used=used)
    if spec.upgrade.mode == "Savepoint" and mode != "Savepoint":
        text = "the version that runs has no spec.state.savepointDir: a checkpoint takes its place"
        draft.tell("Warning", "UpgradeModeFallback", text, draft.operation.id)


def _wanted_mode(draft: Draft, rules: Upgrade) -> StopMode:
    """What an upgrade takes before it stops the driver."""
    if rules.mode == "Stateless":
        return "None"
    spec = running_spec(draft)
    if rules.mode == "Savepoint" and spec is not None and spec.state.savepoint_dir:
        return "Savepoint"
    last, report = draft.status.snapshots.last_checkpoint, draft.report
    if last is None:
        return "Checkpoint"
    at = here(draft, report, last.completed_at) if report is not None else last.completed_at
    if draft.reached(at + rules.max_checkpoint_age.timedelta, told=True):
        return "Checkpoint"
    return "None"


_OURS = ("", REBUILT, "Superseded")


def idle(draft: Draft) -> None:
    """Decide what to begin, if anything."""
    if draft.status.finished_at is not None:
        _finished(draft)
    elif draft.is_active:
        _running(draft)
    else:
        _resting(draft)


def bring_up(draft: Draft) -> None:
    """Begin the start of a job that does not run and is to run."""
    attempt, spec = draft.attempt, draft.world.spec
    name = target(draft)
    if not name:
        problems = "; ".join(str(one) for one in draft.problems[:3])
        block(draft, "InvalidSpec", f"there is no valid spec to start: {problems}")
        return
    kind, reason = _kind(draft, name)
    stateless = kind == "Upgrade" and spec is not None and spec.upgrade.mode == "Stateless"
    used = "Stateless" if stateless else ""
    text = "" if attempt.number else "the first start"
    begin(draft, kind, "Fencing", reason, text, mode_used=used)


def _kind(draft: Draft, name: str) -> tuple[OperationType, str]:
    attempt = draft.attempt
    if attempt.number == 0 or attempt.outcome_reason == REBUILT:
        return "Deploy", "Created"
    if is_new_nonce(draft):
        return "Redeploy", "SpecChanged"
    if _slept(draft):
        return "Resume", "SpecChanged"
    if name != attempt.revision:
        return "Upgrade", "SpecChanged"
    return "Recover", "RestartRequested"


def _running(draft: Draft) -> None:
    """The stream runs, or did when it was last heard of."""
    if follow_edit(draft) or follow_restart(draft):
        return
    pod = draft.pod
    if pod is not None and pod.deleted_at is not None:
        draft.wake(draft.config.busy_resync)
        return
    if is_left_half_way(draft):
        take_back(draft)
        return
    if draft.on_trial and roll_back_if_late(draft):
        return
    _forget_old_failures(draft)
    found, spec = findings(draft), policy(draft)
    if cure(draft, found) or any(stops(one) for one in found):
        return
    _tidy(draft)
    release_left(draft)
    if draft.world.parallelism_held_until is not None:
        tell_held(draft, draft.world.parallelism_held_until)
    scaled = draft.status.scaling.autoscaler is not None
    if scaled or (spec is not None and spec.scaling.autoscaler.enabled):
        autoscale(draft)


def _forget_old_failures(draft: Draft) -> None:
    """After a good run the next failure waits no longer than the first one did."""
    since, spec = draft.attempt.running_since, policy(draft)
    if draft.status.restarts.backoff_level == 0 or since is None or spec is None:
        return
    over = since + spec.failure_policy.backoff.reset_after.timedelta
    if draft.reached(over):
        draft.put_restarts(backoff_level=0)
    else:
        draft.wake_at(over)


def _tidy(draft: Draft) -> None:
    """Of ended drivers the newest stays, for its log."""
    number = draft.attempt.number
    ended = [p for p in draft.drivers if p.owned and p.terminal and p.attempt < number]
    if len(ended) > 1:
        draft.do(TidyAttempt(below=number))


def _resting(draft: Draft) -> None:
    """No driver lives."""
    unanswered = draft.attempt.number > 0 and draft.attempt.outcome_reason not in _OURS
    if desired(draft) == "Suspended":
        _stay_suspended(draft)
    elif not unanswered or _slept(draft):
        bring_up(draft)
    else:
        after_end(draft)


def _slept(draft: Draft) -> bool:
    return draft.status.reconciliation.desired_state == "Suspended"


def _stay_suspended(draft: Draft) -> None:
    if draft.attempt.outcome == "Finished":
        finish(draft)
        return
    draft.put_reconciliation(desired_state="Suspended")
    pass_over_restart(draft, "spec.desiredState is Suspended")


def _finished(draft: Draft) -> None:
    """A finished job stays finished until another one is asked for."""
    edited = is_valid(draft) and target(draft) not in ("", draft.attempt.revision)
    wanted = edited or is_new_nonce(draft) or draft.restart_asked
    if desired(draft) == "Running" and wanted:
        bring_up(draft)
        return
    _drop_pods(draft)


def _drop_pods(draft: Draft) -> None:
    spec, finished_at = policy(draft), draft.status.finished_at
    if spec is None or finished_at is None:
        return
    over = finished_at + spec.ttl_after_finished.timedelta
    if not draft.reached(over):
        draft.wake_at(max(over, draft.now + timedelta(seconds=1)))
        return
    for pod in draft.drivers:
        if pod.owned and pod.deleted_at is None:
            draft.do(DeletePod(pod.name, pod.uid))
