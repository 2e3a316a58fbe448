"""The ten conditions, for people, `kubectl wait` and GitOps tools, and their events. Pure.

A condition's time is that of its last change of status. Messages carry no ages and no counters that
run: a status that says the same is not written again.
"""

import hashlib
from collections.abc import Callable
from typing import Literal, NamedTuple

from moorage_api.status import Condition
from moorage_api.unsupported import without_effect
from moorage_operator.decide.draft import QUOTA_EXCEEDED, Draft
from moorage_operator.decide.findings import degrading
from moorage_operator.decide.health import (
    checkpoint_due,
    estranged,
    has_run_in,
    is_believed,
    lag_grows,
    trouble,
)
from moorage_operator.decide.phase import PAUSED, is_suspended, slow_start, stuck, stuck_executor
from moorage_operator.decide.preflight import preflight_text
from moorage_operator.decide.rescale import waits_for_trial
from moorage_operator.decide.restore_point import path_store_task
from moorage_operator.decide.rollback import hindrance, is_late, waits_for_store
from moorage_operator.decide.room import lacks_edit, lacks_start
from moorage_operator.decide.specs import (
    borne,
    is_given_up,
    is_new_nonce,
    newest_name,
    policy,
    running_spec,
    waiting_text,
)
from moorage_operator.decide.standby import standby_text
from moorage_operator.world import StoreView, Unreadable

ACTION_FAILED = "ActionFailed"
"""What is to be done fails again and again, such as a pod that a quota refuses."""

EXECUTORS_MISSING = "ExecutorsMissing"

PODS_UNREADABLE = "PodsUnreadable"

WITHOUT_EFFECT = "FieldsWithoutEffect"
"""The spec is good and sets something that this release passes over."""


ROLLBACK_BLOCKED = "RollbackBlocked"
"""A version that does not become stable has published output: a person decides."""

ROLLBACK_WAITS = "RollbackWaits"
"""Whether it has published any cannot be read of its store."""

_UNREACHABLE = "DriverUnreachable"

_OTHER_RULES = (
    "nobody has edited the job, and by the rules of this release of the operator its spec is "
    "wrong; what runs goes on, and the next edit must correct it: "
)

_WHILE_IT_RUNS = ("Preflight", "Standby", "Rescaling", "Verifying")
"""Steps of operations that the stream runs through."""


class _Said(NamedTuple):
    """A condition without its times."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def conditions(draft: Draft) -> tuple[Condition, ...]:
    """All conditions as they are now, in a fixed order."""
    return tuple(_condition(draft, kind, say) for kind, say in TYPES.items())


def blind(draft: Draft, pods: Unreadable) -> tuple[Condition, ...]:
    """All conditions as they were said last, but for Ready: the pods cannot be read."""
    said = _Said("Unknown", PODS_UNREADABLE, f"the pods cannot be read: {pods.message}")
    ready = _condition(draft, "Ready", lambda _: said)
    rest = tuple(one for one in draft.world.status.conditions if one.type != "Ready")
    return (ready, *rest)


def _condition(draft: Draft, kind: str, say: Callable[[Draft], _Said]) -> Condition:
    said, old = say(draft), draft.world.status.condition(kind)
    own = draft.world.status.lineage_owner_uid == draft.meta.uid
    same = old is not None and own and old.status == said.status
    return Condition(
        type=kind,
        status=said.status,
        reason=said.reason,
        message=said.message[:1024],
        observed_generation=draft.meta.generation,
        last_transition_time=old.last_transition_time if same and old is not None else draft.now,
    )


def _ready(draft: Draft) -> _Said:  # noqa: PLR0911  one line a case
    if not draft.is_active:
        return _Said("False", *_why_nothing_runs(draft))
    if draft.attempt.running_since is None:
        return _starting(draft)
    operation = draft.status.operation
    if operation is not None and operation.step not in _WHILE_IT_RUNS:
        return _Said("False", operation.type)
    if draft.attempt.missing_since is not None or draft.attempt.node_lost_since is not None:
        return _Said("False", "DriverLost", "the driver's pod or its node does not answer")
    silent = _silent(draft)
    if silent is not None:
        return silent
    found = trouble(draft)
    if found is None or (draft.report is not None and not found.curable):
        return _Said("True", "Running")
    return _Said("False", found.reason, found.message)


def _starting(draft: Draft) -> _Said:
    held = stuck(draft) or stuck_executor(draft)
    if held is not None:
        return _Said("False", *held)
    silent = _silent(draft)
    if silent is not None and silent.reason == _UNREACHABLE:
        return silent
    return _Said("False", "Starting", slow_start(draft) or draft.status.job.message)


def _silent(draft: Draft) -> _Said | None:
    """A driver that does not answer is believed in for a while."""
    report = draft.world.report
    if not isinstance(report, Unreadable):
        return None
    if report.since is not None and not is_believed(draft):
        text = estranged(draft) or "the driver's pod runs and does not answer"
        return _Said("False", _UNREACHABLE, text)
    old = draft.world.status.condition("Ready")
    return _Said(old.status, old.reason, old.message) if old is not None else None


def _why_nothing_runs(draft: Draft) -> tuple[str, str]:
    status = draft.status
    if status.blocked_reason:
        return status.blocked_reason, ""
    if status.finished_at is not None:
        return "Finished", ""
    if is_suspended(draft):
        return "Suspended", ""
    if draft.is_paused:
        return "Paused", PAUSED
    return status.operation.type if status.operation is not None else "NotStarted", ""


def _progressing(draft: Draft) -> _Said:  # noqa: PLR0911  one line a case
    operation = draft.status.operation
    if draft.is_paused and not draft.status.blocked_reason:
        return _Said("False", "Paused", PAUSED)
    if operation is None:
        return _Said("False", "Idle")
    starting = draft.attempt.running_since is None
    held = stuck(draft) or (stuck_executor(draft) if starting else None)
    if held is not None:
        return _Said("False", *held)
    if draft.status.blocked_reason:
        return _Said("False", draft.status.blocked_reason, draft.status.message)
    if draft.world.trouble:
        return _Said("False", ACTION_FAILED, draft.world.trouble)
    if lacks := lacks_start(draft):
        return _Said("False", QUOTA_EXCEEDED, lacks)
    waits = draft.status.restarts.next_retry_at
    if operation.type == "Recover" and waits is not None and not draft.reached(waits):
        return _Said("True", "BackOff", operation.message)
    return _Said("True", operation.type, operation.message)


def _degraded(draft: Draft) -> _Said:  # noqa: PLR0911  one line a case
    status = draft.status
    if status.blocked_reason:
        return _Said("True", status.blocked_reason, status.message)
    operation = status.operation
    if draft.is_paused and draft.attempt.outcome == "Failed":
        return _Said("True", draft.attempt.outcome_reason, draft.attempt.outcome_message)
    if draft.world.trouble:
        return _Said("True", ACTION_FAILED, draft.world.trouble)
    if operation is not None and operation.type == "Recover":
        return _Said("True", operation.reason or "Recovering", operation.message)
    found = degrading(draft)
    if found is not None:
        return _Said("True", found.check, found.message)
    if draft.is_active and draft.attempt.running_since is not None:
        executors = status.executors
        if executors.ready < executors.desired:
            held = stuck_executor(draft)
            why = f": {held[1]}" if held is not None else ""
            text = f"fewer executors are ready than are wanted{why}"
            return _Said("True", EXECUTORS_MISSING, text)
        spec = running_spec(draft)
        tolerable = spec.checkpoint.tolerable_failures if spec is not None else 3
        if status.snapshots.consecutive_failures > tolerable:
            return _Said("True", "CheckpointsFailing", "more checkpoints failed than tolerated")
    late = operation is not None and operation.step == "Verifying" and operation.deadline
    if late and draft.reached(late):
        seen = slow_start(draft) or draft.status.job.message
        text = seen or f"see the log of {draft.attempt.driver_pod}"
        return _Said("True", "StartSlow", f"the stream does not run yet: {text}")
    return _Said("False", "Healthy")


def _suspended(draft: Draft) -> _Said:
    if is_suspended(draft):
        return _Said("True", "Suspended", "spec.desiredState is Suspended")
    return _Said("False", "NotSuspended")


def _reconciled(draft: Draft) -> _Said:  # noqa: PLR0911  one line a case
    status, newest = draft.status, newest_name(draft)
    if not newest:
        return _Said("False", "SpecInvalid", "the newest spec is wrong; see condition SpecValid")
    if is_given_up(draft):
        text = "this spec was given up; change it, or set the annotation moorage.dev/restart"
        why = status.reconciliation.rejected_message
        text = f"{text}: {why}" if why else text
        return _Said("False", "Rejected", text + _not_followed(draft))
    if status.blocked_reason:
        return _Said("False", status.blocked_reason, status.message)
    if status.operation is not None and status.operation.step == "Preflight":
        return _Said("False", "Preflight", _tried(draft, preflight_text(draft)))
    if status.operation is not None and status.operation.step == "Standby":
        return _Said("False", "Standby", _tried(draft, standby_text(draft)))
    if status.operation is not None:
        return _Said("False", "OperationUnderWay", f"{status.operation.type} is under way")
    current = draft.attempt.revision == newest and not (draft.is_active and is_new_nonce(draft))
    if is_suspended(draft) or current:
        return _Said("True", "UpToDate", waiting_text(draft))
    if draft.is_paused:
        return _Said("False", "Paused", PAUSED)
    if lacks := lacks_edit(draft):
        return _Said("False", QUOTA_EXCEEDED, lacks)
    sought = is_new_nonce(draft) and draft.is_active
    return _Said("False", "Waiting", _sought(draft) if sought else "another one runs")


def _tried(draft: Draft, text: str) -> str:
    """How far a version is that is tried, and what waits for it."""
    waits = waits_for_trial(draft)
    return f"{text}; {waits}" if waits else text


def _sought(draft: Draft) -> str:
    """What a redeploy waits for, and why it was not found out yet."""
    spec = policy(draft)
    task = path_store_task(draft, spec).id if spec is not None else ""
    view = draft.world.store_tasks.get(task)
    why = f": {view.message}" if view is not None and view.message else ""
    return f"what spec.restore names is looked for in the store{why}"


def _not_followed(draft: Draft) -> str:
    """That what goes on in place of a version that was given up has not the width asked for."""
    running, newest = draft.world.revisions.get(draft.attempt.revision), draft.newest
    idle = draft.is_active and draft.status.operation is None
    held = draft.world.parallelism_held_until or draft.status.reconciliation.rejected_parallelism
    if running is None or newest is None or held or not idle:
        return ""
    asked, runs = newest.scaling.parallelism, running.spec.scaling.parallelism
    if asked == runs:
        return ""
    why = lacks_edit(draft) or "the version that runs cannot have as many"
    return f"; {asked} subtasks are asked for, and {runs} stay: {why}"


def _spec_valid(draft: Draft) -> _Said:
    found = (*draft.problems, *borne(draft))
    if not found:
        return _passed_over(draft)
    shown = "; ".join(str(one) for one in found[:5])
    more = len(found) - 5
    text = f"{shown}; and {more} more" if more > 0 else shown
    return _Said("False", "Invalid", f"{_by_other_rules(draft)}{text}")


def _by_other_rules(draft: Draft) -> str:
    """That a spec is wrong by now though nobody has edited it; else empty."""
    before, generation = draft.world.status, draft.meta.generation
    old = before.condition("SpecValid")
    if draft.world.spec is not None or before.lineage_owner_uid != draft.meta.uid or old is None:
        return ""
    held = old.status == "True" or old.message.startswith(_OTHER_RULES)
    return _OTHER_RULES if held and old.observed_generation == generation else ""


def _passed_over(draft: Draft) -> _Said:
    """A good spec; and what it asks for in vain."""
    spec = draft.world.spec
    found = list(without_effect(spec)) if spec is not None else []
    if not found:
        return _Said("True", "Valid")
    return _Said("True", WITHOUT_EFFECT, "; ".join(str(one) for one in found))


def _storage(draft: Draft) -> _Said:
    report, store = draft.report, draft.world.store
    if report is not None and report.storage_error:
        return _Said("False", "StoreUnavailable", report.storage_error)
    if isinstance(store, Unreadable) and report is None:
        return _Said("False", store.reason, store.message)
    if isinstance(store, StoreView) or (report is not None and report.running_since is not None):
        return _Said("True", "Reachable")
    last = draft.attempt.outcome_reason
    if last in ("StoreUnavailable", "StoreDenied"):
        return _Said("False", last, draft.attempt.outcome_message)
    return _kept(draft, "StorageReachable", "NotRead")


def _checkpointing(draft: Draft) -> _Said:
    snapshots, attempt = draft.status.snapshots, draft.attempt
    if not draft.is_active or attempt.running_since is None:
        return _Said("Unknown", "NotRunning")
    due = checkpoint_due(draft)
    if due is not None and draft.reached(due, told=True):
        return _Said("False", "CheckpointOverdue", "no checkpoint was completed in time")
    if snapshots.consecutive_failures > 0:
        return _Said("False", "CheckpointFailed", "the last checkpoint failed; see the events")
    last = snapshots.last_checkpoint
    if last is None or (draft.report is not None and not attempt.checkpointed):
        return _Said("Unknown", "NoneYet", "no checkpoint was completed since the start")
    spec = running_spec(draft)
    interval = spec.checkpoint.effective_interval if spec is not None else None
    if interval is not None and last.duration_ms > interval.seconds * 1000:
        return _Said("True", "CheckpointLagging", "a checkpoint takes longer than the interval")
    return _Said("True", "InTime")


def _stable(draft: Draft) -> _Said:
    if draft.is_active and draft.attempt.stable_since is not None:
        return _Said("True", "Stable")
    rests = draft.status.finished_at is not None or is_suspended(draft)
    if draft.on_trial and not rests and is_late(draft):
        if blocked := hindrance(draft):
            return _Said("False", ROLLBACK_BLOCKED, blocked)
        if waits := waits_for_store(draft):
            return _Said("False", ROLLBACK_WAITS, waits)
    if not draft.is_active or draft.attempt.running_since is None:
        return _Said("False", "NotRunning")
    spec = policy(draft)
    after = spec.upgrade.rollback.stable_after if spec is not None else None
    report = draft.report
    if report is not None and has_run_in(draft) and lag_grows(report):
        return _Said("False", "LagGrowing", "more rows come than it takes; see its lag")
    wanted = f"{after.duration} and {after.completed_checkpoints} checkpoints" if after else ""
    return _Said("False", "NotYet", f"it must run for {wanted}" if wanted else "")


def _blocked(draft: Draft) -> _Said:
    status = draft.status
    if not status.blocked_reason:
        return _Said("False", "NotBlocked")
    return _Said("True", status.blocked_reason, status.message)


def _kept(draft: Draft, kind: str, reason: str) -> _Said:
    """As it was said last; nobody knows better."""
    old = draft.world.status.condition(kind)
    return _Said(old.status, old.reason, old.message) if old else _Said("Unknown", reason)


TYPES: dict[str, Callable[[Draft], _Said]] = {
    "Ready": _ready,
    "Progressing": _progressing,
    "Degraded": _degraded,
    "Suspended": _suspended,
    "Reconciled": _reconciled,
    "SpecValid": _spec_valid,
    "StorageReachable": _storage,
    "Checkpointing": _checkpointing,
    "Stable": _stable,
    "Blocked": _blocked,
}
"""The types, in the order in which they are shown, and who says them."""


_ON_FALSE = {
    "SpecValid": "ValidationFailed",
    "StorageReachable": "StoreUnreachable",
}
_LAGGING = "CheckpointLagging"


def tell_condition_changes(
    draft: Draft, before: tuple[Condition, ...], after: tuple[Condition, ...]
) -> None:
    """Tell what a person should hear of."""
    old = {one.type: one for one in before}
    for new in after:
        reason = _event_reason(draft, new)
        if reason and _is_news(old.get(new.type), new):
            draft.tell("Warning", reason, new.message or new.reason, _event_key(draft, new))


def _event_reason(draft: Draft, new: Condition) -> str:
    """The event's reason; empty if there is nothing to tell."""
    if new.status == "False" and new.type in _ON_FALSE:
        return _ON_FALSE[new.type]
    if new.reason == ACTION_FAILED:
        return ACTION_FAILED if new.type == "Degraded" else ""
    if new.reason in (WITHOUT_EFFECT, ROLLBACK_BLOCKED):
        return new.reason
    if new.reason == EXECUTORS_MISSING:
        # One that is only late needs nobody.
        return EXECUTORS_MISSING if stuck_executor(draft) is not None else ""
    stuck = new.type == "Progressing" and _is_stuck(draft, new)
    return new.reason if stuck or new.reason == _LAGGING else ""


def _is_news(was: Condition | None, new: Condition) -> bool:
    """Whether it says something else; a spec that is wrong in another way is news as well."""
    if was is None or was.status != new.status or was.reason != new.reason:
        return True
    changes = new.type == "SpecValid" or new.reason == EXECUTORS_MISSING
    return changes and was.message != new.message


def _is_stuck(draft: Draft, new: Condition) -> bool:
    operation = draft.status.operation
    waits = new.status == "False" and operation is not None and not draft.status.blocked_reason
    return waits and new.reason != "Idle"


def _event_key(draft: Draft, new: Condition) -> str:
    digest = hashlib.sha256(f"{new.reason}{new.message}".encode()).hexdigest()[:8]
    return f"{draft.meta.generation}-{draft.attempt.number}-{digest}"
