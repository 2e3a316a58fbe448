"""The preflight of an upgrade: which pod tries the new version, and what comes of that. Pure."""

from moorage_operator.decide.draft import Draft
from moorage_operator.decide.health import trouble
from moorage_operator.decide.operations import end
from moorage_operator.decide.restore_point import LATEST, with_newest_known
from moorage_operator.decide.specs import give_up, keep_revision, policy
from moorage_operator.plan import RunStoreTask, StoreTask
from moorage_operator.world import StoreTaskView, Unreadable


def preflight_text(draft: Draft) -> str:
    """What a person should know while it goes on."""
    view, pods = _view(draft), draft.world.refused_pods
    if isinstance(pods, Unreadable):
        return f"the new version is tried, and the old one runs: {_unasked(pods)}"
    held = f": {view.message}" if view is not None and view.message else ""
    return f"the new version is tried, and the old one runs{held}"


def is_wanted(draft: Draft) -> bool:
    """Whether the old version gets on, and the new one is still to be tried."""
    found, spec = trouble(draft), policy(draft)
    wanted = spec is not None and spec.upgrade.preflight
    return wanted and (found is None or not found.curable)


def has_passed(draft: Draft) -> bool:
    """Whether the new version could start; else it is tried, or given up."""
    operation, view = draft.operation, _view(draft)
    keep_revision(draft, operation.target_revision)
    late = draft.late_at is not None and draft.reached(draft.late_at)
    pods = draft.world.refused_pods
    if isinstance(pods, tuple) and pods:
        # Before a pod is made for it: that would be refused as well, and say less.
        _refuse(draft, f"the API server would not take its pods: {'; '.join(pods)}")
        return False
    if not isinstance(pods, tuple):
        if late and isinstance(pods, Unreadable):
            _refuse(draft, _unasked(pods))
        return False
    if view is not None and view.state == "Completed":
        found = f"The new version could start: {view.result.get('text', '')}"
        if unplaced := draft.world.unplaced_pods:
            # A cluster may make such nodes as they are needed: that is no reason to refuse it.
            found = f"{found}; but no node there is could hold its pods: {unplaced}"
        draft.tell("Warning" if unplaced else "Normal", "PreflightPassed", found, operation.id)
        return True
    if late or (view is not None and view.failed_for_good):
        said = view.message if view is not None else draft.world.trouble
        _refuse(draft, said or f"it did not end within {draft.config.start_timeout:.0f} s")
    else:
        draft.do(RunStoreTask(_task(draft), operation.target_revision))
    return False


def _unasked(pods: Unreadable) -> str:
    return f"the API server does not say whether it would take its pods: {pods.message}"


def _task(draft: Draft) -> StoreTask:
    """That of the operation under way."""
    spec = policy(draft)
    stateless = spec is not None and spec.upgrade.mode == "Stateless"
    source = "Empty" if stateless else with_newest_known(draft, LATEST).path
    return StoreTask(draft.trial_id, "Preflight", source=source)


def _view(draft: Draft) -> StoreTaskView | None:
    """How far it is; None before anything is known."""
    return draft.world.store_tasks.get(draft.trial_id)


def _refuse(draft: Draft, why: str) -> None:
    refuse_version(draft, "PreflightFailed", f"the new version failed its preflight: {why}")


def refuse_version(draft: Draft, reason: str, text: str) -> None:
    """The new version is given up; what runs is as it was."""
    operation = draft.operation
    give_up(draft, operation.target_revision, text)
    end(draft)
    more = (
        "the old one runs on; set moorage.dev/restart to try again, or change the version: what is "
        "set in spec.upgrade makes no other one"
    )
    draft.tell("Warning", reason, f"{text}; {more}", operation.id)
