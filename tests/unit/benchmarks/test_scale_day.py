"""A day of a fleet, made short: what happens in it, and that nothing else is let pass."""

import asyncio
from collections import Counter

import pytest
from benchmarks.scale.day import Day


async def settled(jobs, hours):
    day = Day(jobs=jobs)
    setattr(asyncio.get_running_loop(), "time", lambda: day.seconds)  # noqa: B010
    await day.settle(hours)
    await day.begin()
    return day


def completed(day):
    found = day.cluster.api.list("StatefulSparkSnapshot")
    return sum((one.get("status") or {}).get("state") == "Completed" for one in found)


@pytest.mark.timeout(60)
async def test_a_driver_is_killed_and_savepoints_taken_and_all_jobs_run_in_the_end():
    day = await settled(5, 2)
    before = completed(day)
    cost = await day.pass_by(2.0)
    assert sum(day.killed.values()) == 1
    assert completed(day) - before == 5
    assert 0 < cost["requests"] < 5


@pytest.mark.timeout(60)
async def test_a_warning_and_a_restart_that_nobody_asked_for_fail_the_benchmark():
    day = await settled(1, 0)
    day._judge(Counter())
    with pytest.raises(AssertionError, match="NoCheckpoint"):
        day._judge(Counter({"Warning NoCheckpoint": 1}))
    day.kill("job-00000")
    day.killed.clear()
    await day.live(0.1)
    with pytest.raises(AssertionError, match="job-00000"):
        day._judge(Counter())
