"""A job that runs and gets nowhere: nothing moves, or no checkpoint comes, for too long. Pure.

A job whose store is away is left alone: another driver could not restore.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage_api import JobSpec
from moorage_api.driver import DriverState
from moorage_api.lifecycle import Health
from moorage_api.status import Check
from moorage_operator.decide.draft import Draft, here, later
from moorage_operator.decide.specs import policy, running_spec
from moorage_operator.world import PodView, StoreView, Unreadable

_LAG_SEEN = 30.0
"""Seconds between two looks at a lag, for it to be said to grow."""
_LAG_WAITS = 30.0
"""Seconds of what comes: a lag that is shorter is none."""
_LAG_SHARE = 0.05
"""Of what comes, as that much more is left waiting."""

_OPAQUE = ("restoring", "rewinding", "checkpointing", "stopping")
"""Phases in which a driver shows no signs until they are over."""
_OPAQUE_FACTOR = 4
"""Times noProgressFor, for what shows no signs on the way."""

_REFUSES = (
    "the driver refuses the operator's token, as the job's Secret was replaced while it ran; set "
    "the annotation moorage.dev/restart to a new value"
)
"""Of a driver that answers, and does not believe who asks."""

_MAY_NOT_ASK = (
    "the operator may not read the Secret with the driver's token, so that it cannot ask the "
    "driver; name the namespace in the chart's value jobs.namespaces"
)
"""With stores.readSecrets=false it has rights there alone."""

UNTRUSTED = "EndpointUntrusted"
"""Why a driver that answers could not be read: its certificate is not believed."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a running job."""

    reason: Check
    message: str
    curable: bool = True  # another driver may do better; else it is only shown


def trouble(draft: Draft) -> Trouble | None:
    """What is wrong with the job now; None if nothing is.

    A job is slow while anything in it moves, and hangs when nothing has for too long.
    """
    spec = policy(draft)
    if spec is None or not draft.is_active or draft.attempt.running_since is None:
        return None
    rules, report = spec.failure_policy.health, draft.report
    if report is not None and report.storage_error:
        return None
    if draft.reached(_progress(draft) + rules.no_progress_for.timedelta, told=True):
        text = f"no epoch and no checkpoint for {rules.no_progress_for}"
        return _unheard(draft, text) if report is None else _stalled(draft, report, rules)
    due = checkpoint_due(draft)
    if due is not None and report is not None and draft.reached(due, told=True):
        text = f"no checkpoint since {_last(draft):%Y-%m-%d %H:%M:%S} UTC"
        late = due + 2 * _epoch_length(draft, report)
        curable = draft.reached(late, told=True)
        # Checkpoints wait for the end of an epoch. One of many short ones holds up none, and would
        # be another one at each look.
        began = report.epoch_since
        if began is not None and here(draft, report, began) <= due:
            text += _under_way(report)
        return Trouble("NoCheckpoint", text, curable=curable)
    return None


def stuck_start(draft: Draft) -> Trouble | None:
    """What keeps the stream of a driver that answers from running; None if it only takes its time.

    One that does not answer is `start`'s to judge.
    """
    spec, report, operation = policy(draft), draft.report, draft.operation
    if spec is None or report is None or report.storage_error:
        return None
    if report.standby:
        late = draft.late_at is not None and draft.reached(draft.late_at)
        limit = f"{draft.config.start_timeout:.0f} s"
        text = f"it was told to lead {limit} ago, and still stands by"
        return Trouble("NoProgress", text) if late else None
    there = draft.status.executors
    if there.ready < there.desired:
        return None  # it waits for them, and conditions say what for
    moved, patience = report.last_move_time, spec.failure_policy.health.no_progress_for
    if moved is None:
        return None  # nothing of that is known of it
    moved = max(here(draft, report, moved), operation.step_started_at)
    if not draft.reached(moved + patience.timedelta * _OPAQUE_FACTOR, told=True):
        return None
    text = f"the stream does not begin to run, and nothing has moved for {_OPAQUE_FACTOR} times"
    return Trouble("NoProgress", f"{text} {patience}{_under_way(report)}")


def _unheard(draft: Draft, text: str) -> Trouble | None:
    """Of a driver that does not answer: what the kubelet and the store show counts."""
    if is_believed(draft):
        return None  # it answered a moment ago: it is the clock that has gone so far since
    # A ready pod is one that the kubelet reaches, so that it is the way from here that is broken;
    # and what could not be read of the store proves nothing.
    pod = draft.pod
    if why := estranged(draft):
        return Trouble("DriverUnreachable", why, curable=False)
    if pod is not None and is_ready(pod):
        fix = "see that network policies let the operator reach it and that its token is there"
        text = f"the driver's pod is ready and does not answer the operator; {fix}"
        return Trouble("DriverUnreachable", text, curable=False)
    if not isinstance(draft.world.store, StoreView):
        text = "the driver does not answer, and the store does not show whether it gets on"
        return Trouble("DriverUnreachable", text, curable=False)
    return Trouble("NoProgress", f"{text}, and the driver does not answer")


def is_believed(draft: Draft) -> bool:
    """Whether a driver does not answer, and has been silent for too short a time to mean it."""
    silent = draft.world.report
    since = silent.since if isinstance(silent, Unreadable) else None
    patience = timedelta(seconds=draft.config.endpoint_patience)
    return since is not None and not draft.reached(since + patience)


def estranged(draft: Draft) -> str:
    """Why operator and driver are at odds, whatever the network does; empty if they are not."""
    report = draft.world.report
    if not isinstance(report, Unreadable):
        return ""
    if report.reason == UNTRUSTED:
        return report.message
    if report.reason == "Forbidden":
        return f"{_MAY_NOT_ASK}: {report.message}"
    return _REFUSES if report.reason == "EndpointRefused" else ""


def is_ready(pod: PodView) -> bool:
    """Whether the kubelet of a node that answers reaches the pod."""
    return pod.ready and pod.phase == "Running" and pod.node_ready is not False


def _stalled(draft: Draft, report: DriverState, rules: Health) -> Trouble:
    """Of a driver that answers, and that has shown no sign for noProgressFor."""
    # What shows no signs on the way, a task or a restore, is given more time; not for ever.
    text = f"nothing has moved for {rules.no_progress_for}{_under_way(report)}"
    at_work = report.tasks_running > 0 or report.phase in _OPAQUE
    patience = rules.no_progress_for.timedelta * (_OPAQUE_FACTOR if at_work else 1)
    curable = draft.reached(_progress(draft) + patience, told=True)
    return Trouble("NoProgress", text, curable=curable)


def _under_way(report: DriverState) -> str:
    """What the driver is at, for people."""
    if report.epoch_since is not None:
        since = f"{report.epoch_since:%Y-%m-%d %H:%M:%S} UTC"
        return f"; epoch {report.epoch + 1} is under way since {since}"
    said = f" ({report.message})" if report.phase == "rewinding" and report.message else ""
    return f"; it is {report.phase}{said}" if report.phase in _OPAQUE else ""


def _epoch_length(draft: Draft, report: DriverState) -> timedelta:
    """How long epochs take: checkpoints begin, and are noted, between two of them."""
    began = report.epoch_since
    age = draft.now - here(draft, report, began) if began is not None else timedelta(0)
    return max(age, timedelta(seconds=report.epoch_seconds))


def has_run_in(draft: Draft) -> bool:
    """Whether the version has run, and completed checkpoints, for as long as stableAfter wants."""
    attempt, spec, report = draft.attempt, policy(draft), draft.report
    if attempt.running_since is None or spec is None or report is None:
        return False
    wanted = spec.upgrade.rollback.stable_after
    if report.completed_checkpoints < wanted.completed_checkpoints:
        return False
    good_at = draft.attended(attempt.running_since) + wanted.duration.timedelta
    if draft.reached(good_at):
        return True
    draft.wake_at(good_at)
    return False


def lag_grows(report: DriverState) -> bool:
    """Whether more rows come than the stream takes, as far as its sources say.

    By the first and the last look of the load's window; what a few seconds bring is none, since
    looks fall anywhere between two epochs.
    """
    load = report.load
    if load is None or load.lag_rows is None or load.lag_rows_before is None:
        return False
    growth = load.lag_rows - load.lag_rows_before
    if load.lag_seconds < _LAG_SEEN or load.seconds <= 0:
        return False
    comes = load.rows / load.seconds + growth / load.lag_seconds
    waits = load.lag_rows > _LAG_WAITS * comes
    return waits and growth / load.lag_seconds > _LAG_SHARE * comes


def checkpoint_due(draft: Draft) -> datetime | None:
    """When the next checkpoint is overdue; None where that cannot be told."""
    spec, running = policy(draft), running_spec(draft)
    if spec is None or running is None or draft.attempt.running_since is None:
        return None
    interval = running.checkpoint.effective_interval
    if interval is None:
        return None
    return _last(draft) + _allowed(spec, running, interval.timedelta)


def _allowed(spec: JobSpec, running: JobSpec, interval: timedelta) -> timedelta:
    """Never less than two intervals and the time that one may take."""
    least = 2 * interval + running.checkpoint.timeout.timedelta
    return max(spec.failure_policy.health.no_checkpoint_for.timedelta, least)


def _last(draft: Draft) -> datetime:
    """When a checkpoint was completed last, or the stream began to run; on this clock."""
    # Of a driver that does not answer nobody knows what its times mean.
    last, report = draft.status.snapshots.last_checkpoint, draft.report
    since = draft.attempt.running_since or draft.now
    if report is None:
        return since
    # Both by the driver's report where it tells its time: then this clock may have been set, too.
    if report.answered_at is not None and report.running_since is not None:
        since = min(here(draft, report, report.running_since), draft.now)
    if report.last_checkpoint_time is not None:
        return max(since, min(here(draft, report, report.last_checkpoint_time), draft.now))
    if last is None:
        return since
    return max(since, min(here(draft, report, last.completed_at), draft.now))


def _progress(draft: Draft) -> datetime:
    """When the job last got on, by whatever sign there is."""
    report = draft.report
    if report is not None and report.last_move_time is not None and report.answered_at is not None:
        return here(draft, report, report.last_move_time)
    seen = draft.status.job.last_progress_time
    if report is not None and report.last_progress_time is not None:
        seen = later(seen, here(draft, report, report.last_progress_time))
    return later(seen, _last(draft)) or draft.now
