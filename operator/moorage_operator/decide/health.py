"""A job that runs and gets nowhere: no epoch, or no checkpoint, for too long. Pure.

A job whose store is away is left alone: another driver could not restore.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage_api import JobSpec
from moorage_api.driver import DriverState
from moorage_operator.decide.draft import Draft, later
from moorage_operator.decide.specs import policy, running_spec
from moorage_operator.world import PodView, StoreView

__all__ = ["Trouble", "checkpoint_due", "is_ready", "trouble"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a running job.

    Attributes:
        curable: another driver may do better; else it is only shown.
    """

    reason: str
    message: str
    curable: bool = True


def trouble(draft: Draft) -> Trouble | None:
    """What is wrong with the job now; None if nothing is."""
    spec = policy(draft)
    if spec is None or not draft.lives or draft.attempt.running_since is None:
        return None
    rules, report = spec.failure_policy.health, draft.report
    if report is not None and report.storage_error:
        return None
    if draft.now >= _progress(draft) + rules.no_progress_for.timedelta:
        text = f"no epoch and no checkpoint for {rules.no_progress_for}"
        return _unheard(draft, text) if report is None else _stalled(report, text)
    due = checkpoint_due(draft)
    if due is not None and report is not None and draft.now >= due:
        text = f"no checkpoint since {_last(draft):%Y-%m-%d %H:%M:%S} UTC"
        return Trouble("NoCheckpoint", text, curable=not _in_long_epoch(draft, report))
    return None


def _unheard(draft: Draft, text: str) -> Trouble:
    """Of a driver that does not answer: what the kubelet and the store show counts.

    A ready pod is one that the kubelet reaches, so that it is the way from here that is broken;
    and what could not be read of the store proves nothing.
    """
    pod = draft.pod
    if pod is not None and is_ready(pod):
        fix = "see that network policies let the operator reach it and that its token is there"
        text = f"the driver's pod is ready and does not answer the operator; {fix}"
        return Trouble("DriverUnreachable", text, curable=False)
    if not isinstance(draft.world.store, StoreView):
        text = "the driver does not answer, and the store does not show whether it gets on"
        return Trouble("DriverUnreachable", text, curable=False)
    return Trouble("NoProgress", f"{text}, and the driver does not answer")


def is_ready(pod: PodView) -> bool:
    """Whether the kubelet of a node that answers reaches the pod."""
    return pod.ready and pod.phase == "Running" and pod.node_ready is not False


def _stalled(report: DriverState, text: str) -> Trouble:
    """Of a driver that is in an epoch: another one would meet the same epoch."""
    if report.busy_ratio > 0:
        return Trouble("NoProgress", f"{text}: one epoch takes very long", curable=False)
    return Trouble("NoProgress", text)


def _in_long_epoch(draft: Draft, report: DriverState) -> bool:
    """Whether no epoch has ended since a checkpoint is due: it is taken between two."""
    running = running_spec(draft)
    interval = running.checkpoint.effective_interval if running is not None else None
    ended = report.last_progress_time
    if report.busy_ratio <= 0 or interval is None:
        return False
    return ended is None or ended < _last(draft) + interval.timedelta


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
    last = draft.status.snapshots.last_checkpoint
    since = draft.attempt.running_since or draft.now
    return max(since, last.completed_at) if last is not None else since


def _progress(draft: Draft) -> datetime:
    """When the job last got on, by whatever sign there is."""
    report, store = draft.report, draft.world.store
    seen = report.last_progress_time if report is not None else None
    seen = later(seen, draft.status.job.last_progress_time)
    if isinstance(store, StoreView) and store.newest is not None:
        seen = later(seen, store.newest.completed_at)
    return later(seen, _last(draft)) or draft.now
