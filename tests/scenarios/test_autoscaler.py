"""A job whose parallelism follows its load, and one whose parallelism others write."""

import pytest
from moorage_testing.world.scene import job

pytestmark = [pytest.mark.scenarios, pytest.mark.timeout(300)]

QUICK = {
    "enabled": True,
    "dryRun": False,
    "min": 1,
    "max": 8,
    "window": "60s",
    "stabilizationInterval": "30s",
    "scaleDownDelay": "2m",
}


def scaled(mode="InPlaceParallelism", **autoscaler):
    return job(
        scaling={
            "parallelism": 2,
            "maxParallelism": 16,
            "mode": mode,
            "autoscaler": {**QUICK, **autoscaler},
        }
    )


async def begin(world, body, arrival):
    world.drivers.habits.arrivals["clicks"] = arrival
    world.apply(body)
    await world.until(world.is_running)


def width(world):
    return world.status().scaling.observed_parallelism


def scaler(world):
    found = world.status().scaling.autoscaler
    assert found is not None
    return found


@pytest.mark.scenario(66)
@pytest.mark.parametrize(("mode", "drivers"), [("InPlaceParallelism", 1), ("Restart", 2)])
async def test_a_load_that_is_too_much_is_answered_by_more_subtasks(world, mode, drivers):
    await begin(world, scaled(mode), 2500.0)
    await world.until(lambda: width(world) == 4 and world.status().operation is None, 600)
    assert world.object()["spec"]["scaling"]["parallelism"] == 2
    assert len(world.drivers.by_pod) == drivers
    assert world.condition("Reconciled") == "True/UpToDate"
    found = scaler(world)
    assert (found.target, found.declared, found.dry_run) == (4, 2, False)
    assert "2 to 4 subtasks: more arrives than they can do" in found.message
    assert world.events().count("AutoscalerDecided") == 1
    await world.run(600)
    assert (width(world), scaler(world).reason) == (4, "Balanced")
    assert len(world.drivers.by_pod) == drivers
    assert world.status().reconciliation.trial is None


@pytest.mark.scenario(66)
async def test_a_load_that_is_small_for_long_is_answered_by_fewer(world):
    await begin(world, scaled(), 2500.0)
    await world.until(lambda: width(world) == 4, 600)
    world.drivers.habits.arrivals["clicks"] = 500.0
    await world.run(100)
    assert (width(world), scaler(world).reason) == (4, "ScaleDownDelayed")
    await world.until(lambda: width(world) == 2, 600)
    await world.until(lambda: width(world) == 1, 900)
    await world.run(200)
    assert width(world) == 1
    assert len(world.drivers.by_pod) == 1


@pytest.mark.scenario(67)
async def test_a_dry_run_says_it_once_and_does_nothing(world):
    await begin(world, scaled(dryRun=True), 2500.0)
    await world.run(450)
    assert (width(world), len(world.drivers.by_pod)) == (2, 1)
    assert (scaler(world).target, scaler(world).dry_run) == (4, True)
    assert world.events().count("AutoscalerAdvised") == 1
    assert "AutoscalerDecided" not in world.events()
    assert world.status().operation is None
    world.edit(scaling__autoscaler={**QUICK})
    await world.until(lambda: width(world) == 4, 300)


@pytest.mark.scenario(54)
async def test_who_edits_the_parallelism_decides_anew(world):
    await begin(world, scaled(), 2500.0)
    await world.until(lambda: width(world) == 4, 600)
    world.edit(scaling__parallelism=8)
    await world.until(lambda: width(world) == 8, 300)
    assert scaler(world).declared == 8
    # 2500 rows are too few for 8: it goes on from there
    await world.until(lambda: width(world) == 4, 600)
    assert world.object()["spec"]["scaling"]["parallelism"] == 8
    await world.run(300)
    assert width(world) == 4


@pytest.mark.scenario(67)
async def test_a_job_that_was_suspended_goes_on_with_the_autoscalers_number(world):
    await begin(world, scaled(), 2500.0)
    await world.until(lambda: width(world) == 4, 600)
    world.edit(desiredState="Suspended")
    await world.until(lambda: world.phase() == "Suspended")
    await world.run(200)
    assert (scaler(world).target, list(world.drivers.living)) == (4, [])
    world.edit(desiredState="Running")
    await world.until(lambda: world.is_running() and width(world) == 4)
    assert world.driver().manifest["spec"]["scaling"]["parallelism"] == 4


async def test_switched_off_the_number_of_the_spec_holds_again(world):
    await begin(world, scaled(), 2500.0)
    await world.until(lambda: width(world) == 4, 600)
    world.edit(scaling__autoscaler={"enabled": False})
    await world.until(lambda: width(world) == 2, 300)
    assert world.status().scaling.autoscaler is None


@pytest.mark.scenario(68)
async def test_what_others_write_is_damped_by_a_floor_and_a_cooldown(world):
    body = job(
        scaling={
            "parallelism": 2,
            "maxParallelism": 16,
            "mode": "InPlaceParallelism",
            "floor": 2,
            "cooldown": "5m",
        }
    )
    world.apply(body)
    await world.until(world.is_running)
    world.edit(scaling__parallelism=4)
    await world.until(lambda: width(world) == 4)
    began = world.elapsed
    for wish in (1, 4, 1, 8, 1):
        world.edit(scaling__parallelism=wish)
        await world.run(40)
        assert (width(world), world.status().operation) == (4, None)
    assert "RescaleHeld" in world.events()
    await world.until(lambda: width(world) == 2, 300)
    assert world.elapsed - began > 250
    assert len(world.drivers.by_pod) == 1
