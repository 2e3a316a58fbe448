"""A running job is to be another one: which operation that is, and how it begins. Pure."""

from moorage_api.changes import Change, classify
from moorage_api.lifecycle import Upgrade
from moorage_api.status import OperationType
from moorage_operator.decide.clocks import here
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.rescale import (
    begin_rescale,
    is_interrupted,
    rescaling,
    take_back,
)
from moorage_operator.decide.restore_point import path_errand
from moorage_operator.decide.specs import (
    desired,
    is_new_nonce,
    is_valid,
    newest_name,
    policy,
    running_spec,
    target,
)
from moorage_operator.decide.stop import RESTART, StopMode, begin_stop
from moorage_operator.plan import RunErrand
from moorage_operator.world import ErrandView

__all__ = ["change_of", "follow_edit", "follow_rescale", "follow_restart", "tell_edit"]


def change_of(draft: Draft) -> Change | None:
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
    change = change_of(draft)
    fields = ", ".join(change.fields) if change is not None else "unknown"
    kind: OperationType = "Upgrade"
    if change is not None and change.kind == "Rescale":
        begin_rescale(draft, change)
    else:
        _upgrade(draft, kind, "SpecChanged", f"changed: {fields}")
    return True


def follow_restart(draft: Draft) -> bool:
    """Begin the restart that a new value of the annotation asks for."""
    asked = draft.meta.annotation("restart")
    handled = draft.status.snapshots.last_trigger.restart
    if not asked or asked == handled:
        return False
    draft.put_triggers(restart=asked)
    draft.put_reconciliation(rejected_spec_hash="")
    _upgrade(draft, "Upgrade", RESTART, f"the annotation moorage.dev/restart is {asked[:80]}")
    return True


def follow_rescale(draft: Draft) -> None:
    """The step Rescaling, as long as nothing else is asked for."""
    if not is_interrupted(draft):
        rescaling(draft)
    elif desired(draft) == "Suspended" or is_new_nonce(draft):
        follow_edit(draft)
    elif not (follow_restart(draft) or follow_edit(draft)):
        take_back(draft)


def tell_edit(draft: Draft) -> None:
    """Tell once what a new generation means for the spec that runs."""
    change = change_of(draft)
    if change is None or not change.fields:
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
    errand = path_errand(draft, spec)
    view = draft.world.errands.get(errand.id)
    # What the operator may not look at is for the driver to find.
    if view is not None and (view.state == "Completed" or _is_final(view)):
        return False
    draft.do(RunErrand(errand))
    draft.wake(draft.config.busy_resync)
    return True


def _is_final(view: ErrandView) -> bool:
    return view.state == "Failed" and not view.retryable


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
    if draft.now - at > rules.max_checkpoint_age.timedelta:
        return "Checkpoint"
    return "None"
