"""Times of a driver's clock on the operator's own. Pure.

Nodes' clocks are minutes apart, whatever they should be. So a duration is only ever measured on one
clock: what a driver tells is moved to this one by the time of its report, and where that cannot be
done, differences between times of the driver's own are.
"""

from datetime import datetime

from moorage_api.driver import DriverState
from moorage_operator.decide.draft import Draft

__all__ = ["began_running", "here"]


def here(draft: Draft, report: DriverState, moment: datetime) -> datetime:
    """A time of the driver's clock on this one; what the report took to come counts for nothing."""
    return moment + (draft.now - report.answered_at) if report.answered_at is not None else moment


def began_running(draft: Draft, report: DriverState) -> datetime | None:
    """When the stream began to run, on this clock; None while it does not.

    Never before the attempt began nor in the future, should the driver's clock have been put right
    in between. A driver that does not tell its time began when that was seen.
    """
    if report.running_since is None:
        return None
    if report.answered_at is None:
        return draft.now
    began = draft.attempt.started_at
    least = min(began, draft.now) if began is not None else report.running_since
    return min(max(here(draft, report, report.running_since), least), draft.now)
