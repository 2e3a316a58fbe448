"""When a lag is said to grow."""

import pytest

from moorage_api.driver import DriverState, LoadReport
from moorage_operator.decide.health import lag_grows

SECONDS = 120.0


def report(*, before, now, rows=120_000, between=100.0):
    load = LoadReport(
        seconds=SECONDS, rows=rows, lag_rows_before=before, lag_rows=now, lag_seconds=between
    )
    return DriverState(attempt=1, job_uid="u", phase="running", load=load)


@pytest.mark.parametrize(
    ("lag", "grows"),
    [
        (report(before=0, now=60_000), True),
        (report(before=500_000, now=560_000), True),
        (report(before=500_000, now=400_000), False),
        (report(before=500_000, now=503_000), False),
        (report(before=0, now=20_000), False),
        (report(before=0, now=60_000, between=10.0), False),
        (report(before=None, now=None), False),
        (report(before=0, now=60_000, rows=0), True),
        (report(before=0, now=0, rows=0), False),
    ],
    ids=[
        "from nothing",
        "from a backlog",
        "a backlog that goes",
        "a backlog that stays",
        "what comes in a moment",
        "two looks near each other",
        "sources that do not say",
        "nothing is done",
        "nothing comes",
    ],
)
def test_a_lag_grows_where_more_comes_than_is_taken(lag, grows):
    assert lag_grows(lag) is grows


def test_a_driver_that_says_nothing_of_a_load_has_no_lag():
    assert not lag_grows(DriverState(attempt=1, job_uid="u", phase="running"))
