"""No operation is under way: the job runs, rests, has finished, or is to be started. Pure."""

from datetime import timedelta

from moorage_api.status import OperationType
from moorage_operator.decide.change import follow_edit, follow_restart
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.failures import Kind
from moorage_operator.decide.health import trouble
from moorage_operator.decide.leaving import release_left
from moorage_operator.decide.operations import begin, block
from moorage_operator.decide.rebuild import REBUILT
from moorage_operator.decide.recover import after_end, finish, restart
from moorage_operator.decide.specs import desired, is_new_nonce, is_valid, policy, target
from moorage_operator.plan import DeletePod, TidyAttempt

__all__ = ["bring_up", "idle"]

_OURS = ("", REBUILT, "Superseded")


def idle(draft: Draft) -> None:
    """Decide what to begin, if anything."""
    if draft.status.finished_at is not None:
        _finished(draft)
    elif draft.lives:
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
    _forget_old_failures(draft)
    found, spec = trouble(draft), policy(draft)
    if found is None or spec is None:
        _tidy(draft)
        release_left(draft)
    elif found.curable and spec.failure_policy.health.action == "Restart":
        draft.put_restarts(
            last_reason=found.reason, last_message=found.message, last_time=draft.now
        )
        draft.tell("Warning", found.reason, found.message, f"{draft.attempt.number}")
        restart(draft, Kind.APPLICATION, found.reason, found.message)
        draft.put_restarts(next_retry_at=None)


def _forget_old_failures(draft: Draft) -> None:
    """After a good run the next failure waits no longer than the first one did."""
    since, spec = draft.attempt.running_since, policy(draft)
    if draft.status.restarts.backoff_level == 0 or since is None or spec is None:
        return
    over = since + spec.failure_policy.backoff.reset_after.timedelta
    if draft.now >= over:
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
        _suspended(draft)
    elif not unanswered or _slept(draft):
        bring_up(draft)
    else:
        after_end(draft)


def _slept(draft: Draft) -> bool:
    return draft.status.reconciliation.desired_state == "Suspended"


def _suspended(draft: Draft) -> None:
    if draft.attempt.outcome == "Finished":
        finish(draft)
        return
    draft.put_reconciliation(desired_state="Suspended")
    draft.put_triggers(restart=draft.meta.annotation("restart"))


def _finished(draft: Draft) -> None:
    """A finished job stays finished until another one is asked for."""
    attempt = draft.attempt
    asked = draft.meta.annotation("restart")
    edited = is_valid(draft) and target(draft) not in ("", attempt.revision)
    restarted = bool(asked) and asked != draft.status.snapshots.last_trigger.restart
    if desired(draft) == "Running" and (edited or is_new_nonce(draft) or restarted):
        draft.put(finished_at=None)
        bring_up(draft)
        return
    _drop_pods(draft)


def _drop_pods(draft: Draft) -> None:
    spec, finished_at = policy(draft), draft.status.finished_at
    if spec is None or finished_at is None:
        return
    over = finished_at + spec.ttl_after_finished.timedelta
    if draft.now < over:
        draft.wake_at(max(over, draft.now + timedelta(seconds=1)))
        return
    for pod in draft.drivers:
        if pod.owned and pod.deleted_at is None:
            draft.do(DeletePod(pod.name, pod.uid))
