"""A fleet of jobs lives through a day; in the suite a few of them, for an hour."""

import sys

import pytest
from moorage_testing.fleet_day import FleetDay

pytestmark = [pytest.mark.scenarios, pytest.mark.timeout(900)]


_TOLD = {
    "HealthActionWithheld",
    "PreflightFailed",
    "PreflightPassed",
    "RescaledInPlace",
    "RolledBack",
    "StandbyFailed",
    "StandbyPromoted",
}


async def test_a_small_fleet_lives_through_an_hour_that_is_worse_than_most():
    fleet = FleetDay(seed=1, jobs=4, pace=16.0)
    await fleet.run(0.75)
    await fleet.calm_down()
    assert len(fleet.happened) > 10
    assert fleet.told >= {"PreflightFailed", "PreflightPassed", "RescaledInPlace", "RolledBack"}


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(2))
async def test_two_hundred_jobs_live_through_a_day(seed, record_property):
    fleet = FleetDay(seed, jobs=200)
    await fleet.run(24.0)
    await fleet.calm_down()
    assert fleet.told >= _TOLD
    upgrades = fleet.happened["upgraded"] + fleet.happened["upgraded_badly"]
    assert fleet.happened["good version given up"] <= upgrades / 50
    for name, value in fleet.report().items():
        record_property(name, value)
        sys.stdout.write(f"{name}: {value}\n")
