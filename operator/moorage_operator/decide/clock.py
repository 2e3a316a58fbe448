"""A status that was written by a clock that was ahead of this one. Pure.

An operator whose clock is put back, or that follows one whose clock was ahead, would count budgets,
waits and trials from times that are still to come: until then no version is stable, a parallelism
is held, and no retry is made. What lies ahead and can only have been is taken to be now, and what
is to follow comes so much earlier. Called first in each decision.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from moorage_api.driver import CheckpointSummary, Report, RestoredFrom, SavepointInfo
from moorage_api.status import Condition, JobView, RestorePointStatus
from moorage_operator.decide.draft import Draft
from moorage_operator.world import CLOCKS_APART

_TO_COME = frozenset({"deadline", "next_retry_at", "no_room_until", "not_before", "retry_at"})
"""What is waited for; all other times of a status are of what has happened."""

_LEFT = (CheckpointSummary, Condition, JobView, RestoredFrom, RestorePointStatus, SavepointInfo)
"""By the clock of a driver, or made from it; conditions are for people, and stay as they were told:
what was left ahead and counted would put every wait off again in each pass."""


def put_clock_right(draft: Draft) -> None:
    """Take the times of the status for what they are by this clock."""
    ahead = max(_been(draft.status), default=draft.now) - draft.now
    if ahead <= CLOCKS_APART:
        return
    draft.status = _put_right(draft.status, draft.now, ahead)
    if (moved := draft.status.job.last_progress_time) is not None:
        seen = {"last_progress_time": min(moved, draft.now)}
        draft.put(job=draft.status.job.model_copy(update=seen))


def _been(value: object) -> Iterator[datetime]:
    """Times of what has happened, by the clock of whichever operator saw it."""
    match value:
        case datetime():
            yield value
        case tuple():
            for one in value:
                yield from _been(one)
        case Report() if not isinstance(value, _LEFT):
            for name in type(value).model_fields:
                if name not in _TO_COME:
                    yield from _been(getattr(value, name))


def _put_right(value: Any, now: datetime, ahead: timedelta, name: str = "") -> Any:
    """The same with other times; `name` is that of its field."""
    match value:
        case datetime():
            return value - ahead if name in _TO_COME else min(value, now)
        case tuple():
            return tuple(_put_right(one, now, ahead, name) for one in value)
        case Report() if not isinstance(value, _LEFT):
            fields = {one: getattr(value, one) for one in type(value).model_fields}
            right = {one: _put_right(held, now, ahead, one) for one, held in fields.items()}
            return value.model_copy(update=right)
    return value
