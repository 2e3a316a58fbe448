"""A job that runs and gets nowhere: no epoch, or no checkpoint, for too long. Pure.

A job whose store is away is left alone: another driver could not restore.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage_api import JobSpec
from moorage_operator.decide.draft import Draft, later
from moorage_operator.decide.specs import policy, running_spec
from moorage_operator.world import StoreView

__all__ = ["Trouble", "checkpoint_due", "trouble"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a running job."""

    reason: str
    message: str


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
        if report is None:
            text += ", and the driver does not answer"
        return Trouble("NoProgress", text)
    due = checkpoint_due(draft)
    if due is not None and report is not None and draft.now >= due:
        return Trouble("NoCheckpoint", f"no checkpoint since {_last(draft):%Y-%m-%d %H:%M:%S} UTC")
    return None


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
