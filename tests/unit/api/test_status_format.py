"""The number of a status: who reads it must know what to do about the job."""

from datetime import UTC, datetime
from typing import get_args

import pytest

from moorage_api.status import (
    STATUS_FORMAT,
    AttemptStatus,
    JobStatus,
    OperationStatus,
    OperationStep,
    needed_format,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
OF_FORMAT_1 = {
    "Preflight",
    "Rescaling",
    "Snapshotting",
    "Stopping",
    "Fencing",
    "Starting",
    "Verifying",
}
"""The steps that its readers know; none is ever added here."""


def status(step, **attempt):
    operation = OperationStatus(
        id="1-1", type="Upgrade", step=step, started_at=AT, step_started_at=AT
    )
    return JobStatus(operation=operation, attempt=AttemptStatus(**attempt))


@pytest.mark.parametrize("step", get_args(OperationStep))
def test_a_step_that_came_later_has_a_number_of_its_own(step):
    found = needed_format(status(step))
    assert (found == 1) == (step in OF_FORMAT_1)
    assert found <= STATUS_FORMAT


@pytest.mark.parametrize(
    ("attempt", "number"),
    [
        ({"number": 2, "stood_by": True}, 2),
        ({"number": 2, "stood_by": True, "running_since": AT}, 1),
        ({"number": 2, "stood_by": True, "outcome": "Failed"}, 1),
        ({"number": 2}, 1),
    ],
)
def test_a_driver_that_is_yet_to_be_told_to_lead_is_no_ordinary_start(attempt, number):
    assert needed_format(status("Verifying", **attempt)) == number
