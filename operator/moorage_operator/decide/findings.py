"""What is wrong with a job that runs, and what the operator does about it by itself. Pure.

It looks at what passes see anyway. People are told; a restart goes by the newest checkpoint, as
after a failure; and of both that and a rollback there are only so many, which stand in the status.
A job is judged while nothing else is under way, and while its stream is to begin: it is no wonder
that one which is stopped stands still. What stops a job, or has it work in vain, makes it Degraded;
skewed keys and clocks do not.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage_api.driver import DriverState, LoadReport
from moorage_api.lifecycle import Health
from moorage_api.status import Check, Finding, HealthAction
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.health import stuck_start, trouble
from moorage_operator.decide.recover import FailureKind, restart
from moorage_operator.decide.rollback import may_roll_back, roll_back
from moorage_operator.decide.specs import policy, running_spec
from moorage_operator.world import CLOCKS_APART

_MOST = 64
_SKEW_SEEN = 300.0
_SKEW_ROWS = 100
_BUSY = 0.7
"""Of the time in epochs: with less, one subtask more or less is no bottleneck."""
_MOST_WORK = 0.5
"""Of the time of epochs: a subtask that is at work for less does not hold them up."""
_CALMER = 0.8
"""Of the bound: what was found is there until it is below that, or it would come and go."""

_ONLY_SHOWN = ("SkewedKeys",)
NAMED_FOR = timedelta(minutes=5)
"""How long the text of a finding names the same subtask at least: two that have as much take turns,
and each text is written."""
_RESTARTED = ("NoProgress", "NoCheckpoint")
"""What another driver may do better."""


@dataclass(frozen=True, slots=True)
class Found:
    """Something that is wrong."""

    check: Check
    message: str
    curable: bool = True  # whether now is the time for an action
    # With what the message begins as long as it is of the same subtask: the rest are its figures,
    # which change all the time. Empty where the message is to be shown as it is
    about: str = ""

    def is_of_another(self, shown: Finding) -> bool:
        """Whether what is shown names another subtask."""
        return not shown.message.startswith(self.about)


def note_counts(draft: Draft) -> None:
    """Take into the status what the driver counts, and how far its clock is off."""
    report, known = draft.report, draft.status.health
    if report is None or report.standby:
        return
    if known.attempt == 0:
        # What a driver has counted before anybody listened did not happen just now.
        lost, rewinds = report.executors_lost, report.rewinds
        _put(draft, attempt=report.attempt, executors_lost=lost, rewinds=rewinds)
        _note_clock(draft, report)
        return
    same = known.attempt == report.attempt
    lost = report.executors_lost - (known.executors_lost if same else 0)
    # A start after a failure restores as well; it is counted when its driver first answers.
    operation = draft.status.operation
    again = not same and operation is not None and operation.type == "Recover"
    restores = known.restores + again
    restores += max(report.rewinds - (known.rewinds if same else 0), 0)
    before = draft.world.status.snapshots.last_checkpoint
    last = draft.status.snapshots.last_checkpoint
    if last is not None and report.completed_checkpoints and last != before:
        restores = 0
    losses = (*known.losses, *[draft.now] * min(max(lost, 0), _MOST))[-_MOST:]
    _put(
        draft,
        attempt=report.attempt,
        executors_lost=report.executors_lost,
        rewinds=report.rewinds,
        losses=_lately(draft, losses),
        restores=restores,
    )
    _note_clock(draft, report)


def findings(draft: Draft) -> tuple[Found, ...]:
    """What is wrong with the job now, the worst first; of a start, whether that gets on."""
    spec = policy(draft)
    if spec is None or not draft.is_active:
        return ()
    if (operation := draft.status.operation) is not None:
        stuck = stuck_start(draft) if operation.step == "Verifying" else None
        return (Found(stuck.reason, stuck.message),) if stuck is not None else ()
    if draft.attempt.running_since is None:
        return ()
    rules, report = spec.failure_policy.health, draft.report
    found = []
    if (stands := trouble(draft)) is not None:
        found.append(Found(stands.reason, stands.message, stands.curable))
    if (restores := draft.status.health.restores) >= rules.max_restores:
        last = draft.status.restarts
        why = f"; last: {last.last_reason}: {last.last_message}" if last.last_reason else ""
        text = f"restored {restores} times, and no checkpoint was completed in between{why}"
        fix = "the driver's log says what it restores from, and why it fails"
        found.append(Found("RestoreLoop", f"{text}; {fix}"))
    if loop := _executor_loop(draft):
        found.append(Found("ExecutorLoop", loop))
    known = any(one.check == "SkewedKeys" for one in draft.status.health.findings)
    if report is not None and (keys := skewed(rules, report, known=known)):
        found.append(keys)
    return tuple(found)


def stops(found: Found) -> bool:
    """Whether a job does not do its work because of it."""
    return found.check not in ("ExecutorLoop", "RestoreLoop", *_ONLY_SHOWN)


def cure(draft: Draft, found: tuple[Found, ...]) -> bool:
    """Begin what the policy wants to be done about it; say whether anything was begun."""
    for one in found:
        then = _then(draft, one)
        if not one.curable or then not in ("Restart", "Rollback"):
            continue
        draft.put_restarts(last_reason=one.check, last_message=one.message, last_time=draft.now)
        draft.tell("Warning", one.check, one.message, f"{draft.attempt.number}")
        if then == "Rollback":
            roll_back(draft, f"{one.check}: {one.message}")
        else:
            restart(draft, FailureKind.APPLICATION, one.check, one.message)
            draft.put_restarts(next_retry_at=None)
        done = HealthAction(check=one.check, action=then, at=draft.now)
        _put(draft, actions=(*_counted(draft), done))
        return True
    return False


def show_findings(draft: Draft) -> None:
    """Write what was found, and tell of it."""
    before = {one.check: one for one in draft.status.health.findings}
    shown = []
    for one in findings(draft):
        old, then = before.get(one.check), _then(draft, one)
        since = old.since if old is not None else draft.now
        message = one.message
        if old is not None and one.about:
            if one.is_of_another(old) and draft.reached(old.since + NAMED_FOR):
                since = draft.now
            else:
                message = old.message
        shown.append(
            Finding(check=one.check, since=since, message=message, then=then, due=one.curable)
        )
        if not one.curable:
            continue
        # With every pass, of which the first tells it: this process may die once it is written.
        number = draft.attempt.number
        draft.tell("Warning", one.check, message, f"{number}")
        if then == "Withheld":
            text = f"{_spent(draft)}: {message}"
            draft.tell("Warning", "HealthActionWithheld", text, f"{number}-{one.check}")
    _put(draft, findings=tuple(shown), actions=_counted(draft))


def degrading(draft: Draft) -> Finding | None:
    """The worst of what was found, if it keeps the job from its work or undoes that."""
    found = (one for one in draft.status.health.findings if one.check not in _ONLY_SHOWN)
    return next(found, None)


def skewed(rules: Health, report: DriverState, *, known: bool) -> Found | None:
    """Which subtask holds the others up, and what to do; None if none does.

    Args:
        known: whether that was found before.
    """
    load, share = report.load, _CALMER if known else 1.0
    if load is None or load.seconds < _SKEW_SEEN:
        return None
    if load.busy_seconds < _BUSY * share * load.seconds:
        return None
    times = rules.skew_above * share
    return _skewed_rows(load, times) or _skewed_work(load, times, _MOST_WORK * share)


def _skewed_rows(load: LoadReport, least: float) -> Found | None:
    skew = load.skew
    if skew is None or skew.rows < _SKEW_ROWS or not skew.mean_rows:
        return None
    times = skew.rows / skew.mean_rows
    if times < least:
        return None
    who = f"subtask {skew.subtask} of {skew.uid} (key groups {skew.key_groups}) has "
    text = (
        f"{who}{times:.1f} times the mean of rows, and all wait for it; more subtasks do not help "
        f"if one key has them: aggregate before the key, or add to the key what splits it"
    )
    return Found("SkewedKeys", text, about=who)


def _skewed_work(load: LoadReport, times: float, least: float) -> Found | None:
    """Rows may be as many as elsewhere, and cost more: by larger state, or many timers."""
    spent = load.busy_seconds / load.of_window
    bound = least * spent
    for one in load.operators:
        most, median = one.most, one.median
        waited = one.subtasks > 1 and most.rows >= _SKEW_ROWS
        if waited and most.busy_seconds >= max(times * median.busy_seconds, bound):
            who = f"subtask {one.busiest} of {one.uid} (key groups {one.key_groups}) was at work "
            text = (
                f"{who}for {most.busy_seconds / spent:.0%} of the epochs' time, at least {times:g} "
                f"times the median, and all wait for it: its keys cost more, by large lists or "
                f"many timers; see its state on the page"
            )
            return Found("SkewedKeys", text, about=who)
    return None


def is_step(before: timedelta, now: timedelta) -> bool:
    """Whether a clock was set, if it was so far ahead of the other one before, and is now."""
    return abs(now - before) >= CLOCKS_APART


def _note_clock(draft: Draft, report: DriverState) -> None:
    if report.answered_at is None:
        return
    known = draft.status.health.clock_ahead_seconds
    ahead = report.answered_at - draft.now
    if not is_step(timedelta(seconds=known), ahead):
        return
    seconds = round(ahead.total_seconds())
    _put(draft, clock_ahead_seconds=seconds)
    node = draft.pod.node if draft.pod is not None and draft.pod.node else "the driver's node"
    side = "ahead of" if seconds > 0 else "behind"
    text = (
        f"the clock of {node} is {abs(seconds)} s {side} the operator's, and was {known} s ahead "
        f"before: one of them was set, or the driver is on another node; nothing is decided by it, "
        f"but see that nodes keep time"
    )
    draft.tell("Warning", "ClockStepped", text, f"{draft.attempt.number}-{seconds}")


def _executor_loop(draft: Draft) -> str:
    spec = running_spec(draft)
    if spec is None:
        return ""
    rules = spec.failure_policy.executor_failures
    lately = _lately(draft, draft.status.health.losses)
    lost = max(len(lately), draft.status.executors.failed_in_window)
    if rules.max == 0 or lost < max(min(rules.max / 2, _MOST), 2):
        return ""
    share = "half of" if rules.max <= 2 * _MOST else f"{_MOST} of"
    # Numbers that grow stay out of it: a status that says the same is not written again.
    return (
        f"executors are lost again and again, {share} executorFailures.max ({rules.max} in "
        f"{rules.window}) and more: kubectl describe their pods; mostly it is memory, a volume "
        f"or a node"
    )


def _lately(draft: Draft, losses: tuple[datetime, ...]) -> tuple[datetime, ...]:
    spec = running_spec(draft)
    window = spec.failure_policy.executor_failures.window if spec is not None else None
    if window is None:
        return losses
    return tuple(at for at in losses if not draft.reached(at + window.timedelta))


def _then(draft: Draft, found: Found) -> str:
    """What is done about it, now or as soon as it may help."""
    spec = policy(draft)
    rules = spec.failure_policy.health if spec is not None else Health()
    wanted = {
        "NoProgress": rules.actions.no_progress,
        "NoCheckpoint": rules.actions.no_checkpoint,
        "ExecutorLoop": rules.actions.executor_loop,
        "RestoreLoop": rules.actions.restore_loop,
    }.get(found.check, "Alert")
    if wanted == "Rollback" and not may_roll_back(draft):
        wanted = "Restart" if found.check in _RESTARTED else "Alert"
    if wanted != "Alert" and len(_counted(draft)) >= rules.budget.actions:
        return "Withheld"
    return wanted


def _counted(draft: Draft) -> tuple[HealthAction, ...]:
    """What counts towards the budget still."""
    spec = policy(draft)
    rules = spec.failure_policy.health if spec is not None else Health()
    window = rules.budget.window.timedelta
    return tuple(one for one in draft.status.health.actions if not draft.reached(one.at + window))


def _spent(draft: Draft) -> str:
    spec = policy(draft)
    budget = (spec.failure_policy.health if spec is not None else Health()).budget
    return (
        f"a person must look: failurePolicy.health.budget allows {budget.actions} automatic "
        f"actions in {budget.window}, and they are used up"
    )


def _put(draft: Draft, **changes: object) -> None:
    draft.put(health=draft.status.health.model_copy(update=changes))
