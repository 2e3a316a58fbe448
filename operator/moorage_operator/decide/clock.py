"""A status that was written by a clock that was ahead of this one. Pure.

An operator whose clock is put back, or that follows one whose clock was ahead, would count budgets,
waits and trials from times that are still to come: until then no version is stable, a parallelism
is held, and no retry is made. What lies ahead and can only have been is taken to be now, and what
is to follow comes so much earlier. Called first in each decision.
"""

from datetime import datetime, timedelta

from moorage_operator.decide.draft import Draft

_APART = timedelta(seconds=30)
"""By which clocks of two operators differ, or one is put right, without a word."""
_OF_ATTEMPT = (
    "started_at",
    "running_since",
    "stable_since",
    "missing_since",
    "node_lost_since",
    "ended_at",
)
_OF_OPERATION = ("started_at", "step_started_at")


def put_clock_right(draft: Draft) -> None:
    """Take the times of the status for what they are by this clock."""
    ahead = max(_been(draft), default=draft.now) - draft.now
    if ahead > _APART:
        _attempt(draft)
        _operation(draft, ahead)
        _restarts(draft, ahead)
        _budgets(draft)
        _scaling(draft, ahead)


def _been(draft: Draft) -> list[datetime]:
    """Times of what has happened, by the clock of whichever operator saw it."""
    status = draft.status
    seen = [getattr(status.attempt, name) for name in _OF_ATTEMPT]
    if status.operation is not None:
        seen += [getattr(status.operation, name) for name in _OF_OPERATION]
    trial, scaler = status.reconciliation.trial, status.scaling.autoscaler
    seen += [trial.since] if trial is not None else []
    seen += [scaler.low_since] if scaler is not None else []
    seen += [scaler.step.at] if scaler is not None and scaler.step is not None else []
    seen += [one.at for one in status.health.actions]
    seen += [*status.restarts.window, *status.health.losses]
    seen += [status.restarts.last_time, status.scaling.changed_at, status.finished_at]
    seen += [status.snapshots.last_scheduled_time]
    return [at for at in seen if at is not None]


def _was(draft: Draft, at: datetime) -> datetime:
    return min(at, draft.now)


def _maybe(draft: Draft, at: datetime | None) -> datetime | None:
    return _was(draft, at) if at is not None else None


def _earlier(at: datetime | None, ahead: timedelta) -> datetime | None:
    return at - ahead if at is not None else None


def _attempt(draft: Draft) -> None:
    seen = {name: _maybe(draft, getattr(draft.attempt, name)) for name in _OF_ATTEMPT}
    draft.put_attempt(**seen)
    trial = draft.status.reconciliation.trial
    if trial is not None:
        since = _was(draft, trial.since)
        draft.put_reconciliation(trial=trial.model_copy(update={"since": since}))
    job, finished = draft.status.job, draft.status.finished_at
    moved = {"last_progress_time": _maybe(draft, job.last_progress_time)}
    draft.put(finished_at=_maybe(draft, finished), job=job.model_copy(update=moved))


def _operation(draft: Draft, ahead: timedelta) -> None:
    operation = draft.status.operation
    if operation is None:
        return
    draft.put_operation(
        **{name: _was(draft, getattr(operation, name)) for name in _OF_OPERATION},
        deadline=_earlier(operation.deadline, ahead),
        not_before=_earlier(operation.not_before, ahead),
    )
    if (standby := operation.standby) is not None:
        seen = {
            "caught_up_since": _maybe(draft, standby.caught_up_since),
            "not_before": _earlier(standby.not_before, ahead),
        }
        draft.put_operation(standby=standby.model_copy(update=seen))


def _restarts(draft: Draft, ahead: timedelta) -> None:
    known = draft.status.restarts
    draft.put_restarts(
        window=tuple(_was(draft, at) for at in known.window),
        last_time=_maybe(draft, known.last_time),
        next_retry_at=_earlier(known.next_retry_at, ahead),
    )
    left = [
        one.model_copy(update={"retry_at": _earlier(one.retry_at, ahead)})
        for one in draft.status.leaving
    ]
    draft.put(leaving=tuple(left))


def _budgets(draft: Draft) -> None:
    health, snapshots = draft.status.health, draft.status.snapshots
    actions = [one.model_copy(update={"at": _was(draft, one.at)}) for one in health.actions]
    losses = tuple(_was(draft, at) for at in health.losses)
    update = {"actions": tuple(actions), "losses": losses}
    draft.put(health=health.model_copy(update=update))
    draft.put_snapshots(last_scheduled_time=_maybe(draft, snapshots.last_scheduled_time))


def _scaling(draft: Draft, ahead: timedelta) -> None:
    scaling = draft.status.scaling
    update: dict[str, object] = {"changed_at": _maybe(draft, scaling.changed_at)}
    if (scaler := scaling.autoscaler) is not None:
        step = scaler.step
        seen = {
            "low_since": _maybe(draft, scaler.low_since),
            "no_room_until": _earlier(scaler.no_room_until, ahead),
            "step": step.model_copy(update={"at": _was(draft, step.at)}) if step else None,
        }
        update["autoscaler"] = scaler.model_copy(update=seen)
    draft.put(scaling=scaling.model_copy(update=update))
