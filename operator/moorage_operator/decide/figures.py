"""Figures of a running stream: which of them are worth a status of their own. Pure.

They change all the time, and each status that is written is an event that leads to another pass. So
they are written along with whatever else changes, and by themselves when they say something new, or
once a minute. Decisions go by the newest ones in any case.
"""

from datetime import datetime, timedelta

from moorage_api.driver import CheckpointInfo
from moorage_api.status import JobStatus
from moorage_operator.decide.draft import Draft

__all__ = ["hold_back", "is_worse"]

_SHOWN_EVERY = timedelta(seconds=60)
_FEW = 8


def hold_back(draft: Draft) -> None:
    """Leave the status as it is, if nothing but figures has changed since, and not for long."""
    old, new = draft.world.status, draft.status
    if _without_figures(old) == _without_figures(new) and not _is_news(old, new):
        draft.status = old


def is_worse(before: int, now: int) -> bool:
    """Whether failures in a row are worth a word: the first few, then whenever they doubled."""
    return now > before and (now <= _FEW or now >= 2 * before)


def _without_figures(status: JobStatus) -> JobStatus:
    plain = status.snapshots.model_copy(update={"last_checkpoint": None, "consecutive_failures": 0})
    job = status.job.model_copy(
        update={
            "epoch": 0,
            "last_progress_time": None,
            "epoch_since": None,
            "input_rows_per_second": "",
            "busy_ratio": "",
            "state_bytes": 0,
        }
    )
    return status.model_copy(update={"snapshots": plain, "job": job})


def _is_news(old: JobStatus, new: JobStatus) -> bool:
    before, now = old.snapshots, new.snapshots
    return (
        _is_another(before.last_checkpoint, now.last_checkpoint)
        or is_worse(before.consecutive_failures, now.consecutive_failures)
        or now.consecutive_failures < before.consecutive_failures
        or _is_long(old.job.last_progress_time, new.job.last_progress_time)
    )


def _is_another(old: CheckpointInfo | None, new: CheckpointInfo | None) -> bool:
    """The first one, one of another place, one that a restore went back to, or one much later."""
    if old is None or new is None:
        return old is not new
    if new.id < old.id or _place(new) != _place(old):
        return True
    return _is_long(old.completed_at, new.completed_at)


def _place(checkpoint: CheckpointInfo) -> str:
    return checkpoint.path.partition("?")[0].rpartition("/")[0]


def _is_long(old: datetime | None, new: datetime | None) -> bool:
    """Between two times of one clock; of what was not known before, anything is news."""
    if old is None or new is None:
        return old is not new
    return abs(new - old) >= _SHOWN_EVERY
