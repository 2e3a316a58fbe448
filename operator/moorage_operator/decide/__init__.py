"""What is to be done about a StatefulSparkJob: `decide_job(world) -> Plan`.

Pure: no I/O, and no clock but the world's. Called by the reconcile loop, once in each pass, with
everything that was observed; it answers with the status to write, the effects to carry out then,
and the events to tell. It must not know the API server, HTTP or a store. docs/operator-states.md
has the state machine and the table of everything that it says.

1. May this operator act on the object at all? 2. Could its pods be read? 3. Is the status this
object's own? 4. Which spec is good? 5. What has become of the attempt? 6. Is the job paused,
deleted, blocked? 7. The operation under way, else what to begin. 8. Snapshots. 9. What to show.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from moorage_api.lifecycle import DisruptionBudget
from moorage_api.status import Condition, OperationStep
from moorage_operator.decide.claims import keep_claims
from moorage_operator.decide.clock import put_clock_right
from moorage_operator.decide.conditions import (
    PODS_UNREADABLE,
    blind,
    conditions,
    tell_condition_changes,
)
from moorage_operator.decide.delete import delete
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.fencing import drop_strays
from moorage_operator.decide.findings import note_counts, show_findings
from moorage_operator.decide.next_operation import (
    bring_up,
    follow_rescale,
    follow_trial,
    idle,
    tell_edit,
)
from moorage_operator.decide.observed import note_unread, observe_attempt, rebuild
from moorage_operator.decide.operations import leave_block
from moorage_operator.decide.phase import message, phase
from moorage_operator.decide.rollback import follow_rollback, note_restored, note_sinks
from moorage_operator.decide.specs import (
    desired,
    is_valid,
    policy,
    renew_rejection,
    running_spec,
    show_profile,
)
from moorage_operator.decide.start import fencing, starting, verifying
from moorage_operator.decide.stop import snapshotting, stopping
from moorage_operator.decide.validate import tell_ignored_annotations, validate, warn_of_eviction
from moorage_operator.decide.view import hold_back, show_pods
from moorage_operator.plan import (
    Event,
    KeepClaims,
    Plan,
    SetDisruptionBudget,
    SetFinalizer,
    SetIngress,
    SetPodMonitor,
)
from moorage_operator.snapshots.triggers import stale, wanted
from moorage_operator.world import JobWorld, Unreadable

_STEPS: dict[OperationStep, Callable[[Draft], None]] = {
    "Preflight": follow_trial,
    "Standby": follow_trial,
    "Snapshotting": snapshotting,
    "Stopping": stopping,
    "Rescaling": follow_rescale,
    "Fencing": fencing,
    "Starting": starting,
    "Verifying": verifying,
}


def decide_job(world: JobWorld) -> Plan:
    """Return what to write, do and tell about the job that `world` shows."""
    if world.operator_too_old:
        return _hands_off(world)
    draft = Draft(world, world.status, again=world.config.resync)
    if isinstance(world.drivers, Unreadable):
        draft.wake(world.config.busy_resync)
        if world.meta.deleted_at is not None and world.namespace_terminating:
            # The right to list pods may have gone first; the namespace takes those along.
            draft.do(SetFinalizer(present=False))
        _say_blind(draft, world.drivers)
        return draft.plan()
    foreign = rebuild(draft)
    put_clock_right(draft)
    # Rejected or not, and right or wrong, decides which spec all that follows goes by.
    renew_rejection(draft)
    validate(draft)
    if not foreign:
        observe_attempt(draft)
        note_counts(draft)
        if draft.on_trial:
            note_unread(draft)
            note_restored(draft)
            note_sinks(draft)
        _act(draft)
    _describe(draft)
    return replace(draft.plan(), stale=stale(world))


def _hands_off(world: JobWorld) -> Plan:
    """A status that this operator cannot read: it says so and nothing else, or parts would go."""
    # An object that is deleted is let go where nobody can want more: with its namespace, or when a
    # person says so.
    meta, text, reason = world.meta, world.operator_too_old, "StatusUnreadable"
    if not world.status_garbled:
        text, reason = f"{text}; upgrade the operator", "OperatorTooOld"
    let_go = world.namespace_terminating or meta.annotation("skip-final-savepoint") == "true"
    effects = (SetFinalizer(present=False),) if meta.deleted_at is not None and let_go else ()
    if meta.deleted_at is not None and not let_go:
        text += "; or set moorage.dev/skip-final-savepoint=true to delete it as it is"
    event = Event("Warning", reason, text, f"{reason}-{meta.uid}-{bool(meta.deleted_at)}")
    held = Condition(
        type="Blocked",
        status="True",
        reason=reason,
        message=f"what runs goes on, and nothing is done about it: {text}"[:1024],
        observed_generation=meta.generation,
        last_transition_time=world.now,
    )
    return Plan(world.status, effects, (event,), world.config.resync, held=held)


def _act(draft: Draft) -> None:
    if draft.meta.deleted_at is not None:
        if not draft.is_paused or draft.world.namespace_terminating:
            delete(draft)
            drop_strays(draft)
        return
    if draft.is_paused:
        return
    # Whatever else is under way: a stray claims the lineage from the driver that runs.
    drop_strays(draft)
    if draft.config.finalizer not in draft.meta.finalizers:
        draft.do(SetFinalizer(present=True))
    _work(draft)
    _snapshots(draft)
    _monitor(draft)
    _budgets(draft)
    _page(draft)
    _volumes(draft)


def _work(draft: Draft) -> None:
    was_blocked = bool(draft.status.blocked_reason)
    asked, followed = draft.meta.annotation("rollback"), draft.status.snapshots.last_trigger
    if asked != followed.rollback and follow_rollback(draft):
        return
    if not leave_block(draft):
        return
    operation = draft.status.operation
    if operation is not None:
        _STEPS[operation.step](draft)
    elif was_blocked and not draft.is_active and desired(draft) == "Running":
        bring_up(draft)
    else:
        idle(draft)


def _snapshots(draft: Draft) -> None:
    """What annotations and the schedule ask for; a snapshot's own decisions do the rest."""
    # Of the status with times put right: one that was left would be ahead in the next pass again.
    found = wanted(replace(draft.world, status=draft.status))
    draft.put_snapshots(last_trigger=found.triggers, last_scheduled_time=found.last_scheduled_time)
    for effect in found.effects:
        draft.do(effect)
    draft.events.extend(found.events)
    if found.next_at is not None:
        draft.wake_at(found.next_at)


def _monitor(draft: Draft) -> None:
    """Let Prometheus find the driver, or not any more."""
    spec = policy(draft)
    wanted = spec is not None and spec.observability.metrics.pod_monitor
    if wanted or draft.status.reconciliation.pod_monitor:
        draft.put_reconciliation(pod_monitor=True)
        draft.do(SetPodMonitor(wanted, spec.tls_secret if spec is not None else ""))


def _budgets(draft: Draft) -> None:
    """Hold up evictions as far as the job wants it, or not any more."""
    spec = policy(draft)
    rules = spec.failure_policy.disruption_budget if spec is not None else DisruptionBudget()
    at_once, there = rules.executors_at_once, draft.status.executors.desired
    wanted = rules.driver or at_once is not None
    if wanted or draft.status.reconciliation.disruption_budgets:
        draft.put_reconciliation(disruption_budgets=True)
        attempt = draft.attempt.number
        draft.do(SetDisruptionBudget("driver", int(rules.driver), attempt))
        least = max(there - at_once, 0) if at_once is not None else 0
        draft.do(SetDisruptionBudget("executor", least, attempt))


def _page(draft: Draft) -> None:
    """Let people find the job's page from outside, or not any more."""
    spec = policy(draft)
    # After a wrong edit it stays: the last good version may be older than what an edit of it said.
    if spec is None or not is_valid(draft):
        return
    ui = spec.observability.ui
    wanted = bool(ui.ingress_template)
    if wanted or draft.status.reconciliation.ingress:
        draft.put_reconciliation(ingress=True)
        draft.do(SetIngress(ui if wanted else None))


def _volumes(draft: Draft) -> None:
    """Have claims outlive the driver, where executors are to find them again."""
    spec = running_spec(draft)
    if spec is None:
        return
    if spec.state.local.type == "ReusedPVC":
        keep_claims(draft)
    elif draft.attempt.stood_by:
        # Of no start that could see to those of the version before.
        draft.do(KeepClaims(draft.attempt.number, frozenset()))


def _say_blind(draft: Draft, pods: Unreadable) -> None:
    """Pods that cannot be read for a while: what was said of them last is not known any more."""
    if draft.status.lineage_owner_uid != draft.meta.uid or pods.since is None:
        return
    over = pods.since + timedelta(seconds=draft.config.endpoint_patience)
    if not draft.reached(over):
        draft.wake_at(over)
        return
    before = draft.status.condition("Ready")
    draft.put(conditions=blind(draft, pods))
    if before is None or before.reason != PODS_UNREADABLE:
        text = f"the job's pods cannot be read, so nothing is done about it: {pods.message}"
        draft.tell("Warning", PODS_UNREADABLE, text, f"{draft.attempt.number}-{pods.since}")


def _describe(draft: Draft) -> None:
    """Derive what people and tools read."""
    show_pods(draft)
    show_profile(draft)
    if is_valid(draft) and draft.status.observed_generation != draft.meta.generation:
        tell_edit(draft)
    draft.put(observed_generation=draft.meta.generation)
    show_findings(draft)
    draft.put(phase=phase(draft), message=message(draft))
    before = draft.world.status.conditions
    draft.put(conditions=conditions(draft))
    tell_condition_changes(draft, before, draft.status.conditions)
    tell_ignored_annotations(draft)
    warn_of_eviction(draft)
    hold_back(draft)
