"""A version that was given up stays so, whatever else goes on around the job."""

import pytest
from moorage_testing.world.scene import job

from moorage_api.changes import spec_hash
from moorage_api.job import JobSpec

pytestmark = pytest.mark.scenarios

OLD, BAD, NEXT = (f"registry.example/clicks:{n}" for n in (1, 2, 3))
ROLLBACK = {"enabled": True, "readinessTimeout": "1m", "stableAfter": {"duration": "15s"}}


def image(world):
    driver = world.driver()
    return driver.manifest["spec"]["image"] if driver is not None else ""


def width(world):
    return world.status().scaling.observed_parallelism


def tries(world, of=BAD):
    """How many drivers of an image there were."""
    return sum(one.manifest["spec"]["image"] == of for one in world.drivers.by_pod.values())


def scale(world, replicas):
    """`kubectl scale`, or what an HPA writes."""
    world.edit(scaling__parallelism=replicas)


def settled(world, replicas, name=OLD):
    """A job of this image and width runs, and nothing is under way."""
    runs = world.is_running() and image(world) == name and width(world) == replicas
    return runs and world.status().operation is None


async def stable(world, **spec):
    scaling = {"parallelism": 2, "maxParallelism": 16, "mode": "InPlaceParallelism"}
    world.apply(job(**{"upgrade": {"rollback": ROLLBACK}, "scaling": scaling, **spec}))
    await world.until(lambda: world.condition("Stable") == "True/Stable", 600)


async def rolled_back(world, **spec):
    """A job whose newest version was rolled back."""
    await stable(world, **spec)
    world.drivers.habits.fail_restore = "restore_point_incompatible"
    world.drivers.habits.fail_restore_of = BAD
    world.edit(image=BAD)
    await world.until(lambda: "RolledBack" in world.events(), 300)
    assert (image(world), tries(world)) == (OLD, 1)


async def refused(world, **spec):
    """A job whose newest version failed its preflight."""
    await stable(world, **spec)
    world.drivers.habits.preflight_fails = "it has no build"
    world.edit(image=BAD, upgrade__preflight=True)
    await world.until(lambda: "PreflightFailed" in world.events(), 300)
    assert (image(world), tries(world)) == (OLD, 0)


@pytest.mark.scenario(74)
@pytest.mark.parametrize("how", [rolled_back, refused])
async def test_what_runs_follows_an_autoscaler_and_the_version_that_was_given_up_is_not_tried(
    world, how
):
    await how(world)
    before = tries(world)
    for replicas in (4, 7, 3):
        scale(world, replicas)
        await world.until(lambda n=replicas: settled(world, n), 120)
        assert world.condition("Reconciled") == "False/Rejected"
    assert tries(world) == before
    assert tries(world, OLD) == before + 1
    assert world.events().count("RescaledInPlace") == 3
    assert world.status().reconciliation.trial is None
    await world.run(100)
    assert settled(world, 3)
    assert world.condition("Stable") == "True/Stable"


@pytest.mark.scenario(74)
async def test_without_the_mode_it_follows_by_a_restart_once_the_job_is_back(world):
    await stable(world, scaling={"parallelism": 2, "maxParallelism": 16, "mode": "InPlace"})
    world.drivers.habits.fail_restore = "restore_point_incompatible"
    world.drivers.habits.fail_restore_of = BAD
    world.edit(image=BAD)
    await world.until(lambda: "RollbackStarted" in world.events(), 300)
    scale(world, 4)
    await world.until(lambda: "RolledBack" in world.events(), 120)
    await world.until(lambda: settled(world, 4), 120)
    restored = world.drivers.restored[-1]
    assert restored.epoch == restored.newest
    assert world.condition("Reconciled") == "False/Rejected"
    done = world.status().reconciliation
    assert (done.trial, done.stable_revision) == (None, world.status().attempt.revision)
    world.driver().kill()
    await world.run(10)
    await world.until(lambda: settled(world, 4), 120)
    assert tries(world) == 1


async def test_a_job_that_slept_has_the_last_number_and_a_person_can_have_it_tried_again(world):
    await rolled_back(world)
    world.edit(desiredState="Suspended")
    await world.until(lambda: world.phase() == "Suspended", 120)
    scale(world, 5)
    await world.run(10)
    world.edit(desiredState="Running")
    await world.until(lambda: settled(world, 5), 120)
    assert tries(world) == 1
    world.drivers.habits.fail_restore = ""
    world.annotate(restart="corrected")
    await world.until(lambda: settled(world, 5, BAD), 120)
    assert world.condition("Reconciled") == "True/UpToDate"


async def test_and_when_a_person_said_so_while_the_job_was_brought_back_from_a_failure(world):
    await rolled_back(world)
    world.drivers.habits.fail_restore = ""
    world.kubelet.image_error = "ImagePullBackOff"
    world.driver().fail("user_function", 3)
    await world.run(3)
    world.annotate(restart="corrected")
    await world.run(3)
    world.kubelet.image_error = ""
    await world.until(lambda: settled(world, 2, BAD), 200)


async def test_the_jobs_own_autoscaler_goes_on_for_what_runs(world):
    scaler = {"enabled": True, "dryRun": False, "min": 1, "max": 8, "window": "60s"}
    scaler |= {"stabilizationInterval": "30s"}
    width_ = {"parallelism": 2, "maxParallelism": 16, "mode": "InPlaceParallelism"}
    world.drivers.habits.arrivals["clicks"] = 1200.0
    await rolled_back(world, scaling={**width_, "autoscaler": scaler})
    world.drivers.habits.arrivals["clicks"] = 3000.0
    await world.until(lambda: width(world) > 2, 900)
    assert image(world) == OLD
    assert tries(world) == 1


# -- a number of subtasks that was given up


async def with_too_many(world, **scaling):
    """A job that did not get on with 12 subtasks, and is back at 2."""
    width_ = {"parallelism": 2, "maxParallelism": 16, "mode": "InPlace"}
    await stable(world, scaling={**width_, **scaling})
    world.kubelet.unschedulable = "0/1 nodes are available: insufficient memory"
    scale(world, 12)
    await world.until(lambda: "RollbackStarted" in world.events(), 600)
    world.kubelet.unschedulable = ""
    await world.until(lambda: settled(world, 2), 120)


async def test_a_number_that_does_not_do_is_not_tried_again_and_another_one_is(world):
    await with_too_many(world, cooldown="4m")
    drivers = len(world.drivers.by_pod)
    await world.run(250)
    assert settled(world, 2)
    assert len(world.drivers.by_pod) == drivers
    assert world.condition("Reconciled") == "False/Rejected"
    assert "RescaleHeld" not in world.events()
    scale(world, 4)
    await world.until(lambda: settled(world, 4), 700)
    assert world.condition("Reconciled") == "True/UpToDate"
    scale(world, 12)
    await world.run(30)
    assert settled(world, 4)
    world.edit(image=NEXT)
    await world.until(lambda: settled(world, 12, NEXT), 700)


# -- two versions, one after the other


async def test_a_version_on_trial_makes_room_though_the_one_after_it_was_given_up_before(world):
    await stable(world)
    world.edit(image=NEXT, upgrade__preflight=True)
    await world.until(lambda: settled(world, 2, NEXT), 120)
    world.drivers.habits.preflight_fails = "it has no build"
    world.edit(image=BAD)
    await world.until(lambda: "PreflightFailed" in world.events(), 120)
    before = world.status().snapshots.last_checkpoint
    world.drivers.habits.fail_restore = "restore_point_incompatible"
    world.drivers.habits.fail_restore_of = NEXT
    world.driver().fail("user_function", 3)
    world.annotate(rollback=world.status().reconciliation.stable_revision)
    await world.until(lambda: settled(world, 2), 300)
    assert before is not None
    await world.run(100)
    assert settled(world, 2)
    assert tries(world) == 0
    assert world.events().count("PreflightFailed") == 1
    assert world.condition("Reconciled") == "False/Rejected"


async def test_a_version_is_rolled_back_though_a_wrong_edit_came_after_it(world):
    await stable(world)
    world.edit(image=BAD)
    await world.until(lambda: tries(world) == 1, 120)
    world.drivers.habits.stuck = True
    world.edit(state__checkpointDir="s3://state/elsewhere")
    await world.until(lambda: "RollbackStarted" in world.events(), 700)
    world.drivers.habits.stuck = False
    await world.until(lambda: settled(world, 2), 120)
    assert world.condition("Reconciled") == "False/SpecInvalid"
    assert tries(world) == 1
    world.edit(state__checkpointDir="s3://state/clicks")
    await world.run(60)
    assert settled(world, 2)
    assert world.condition("Reconciled") == "False/Rejected"


async def test_a_person_who_sets_the_manifest_back_and_rolls_back_has_the_old_version(world):
    await stable(world)
    old = world.status().reconciliation.stable_revision
    world.edit(image=BAD, upgrade__rollback__stableAfter={"duration": "5m"})
    await world.until(lambda: image(world) == BAD and world.report().completed_checkpoints > 1)
    before = world.drivers.restored[-1].epoch
    world.edit(image=OLD)
    world.annotate(rollback=old)
    await world.until(lambda: settled(world, 2), 120)
    await world.run(30)
    assert settled(world, 2)
    assert world.drivers.restored[-1].epoch == before
    assert world.condition("Reconciled") == "True/UpToDate"


# -- another release


async def test_operators_that_die_and_those_of_other_releases_know_what_was_given_up(world):
    await rolled_back(world)
    found = world.object()
    # Once a version was known by the hash of its whole spec.
    digest = spec_hash(JobSpec.model_validate(found["spec"]))
    found["status"]["reconciliation"]["rejectedSpecHash"] = digest
    found["status"]["reconciliation"].pop("rejectedParallelism")
    world.api.replace_status(found)
    world.restart_operator()
    await world.run(5)
    assert settled(world, 2)
    scale(world, 4)
    await world.run(1)
    world.restart_operator()
    await world.until(lambda: settled(world, 4), 120)
    assert tries(world) == 1
    world.edit(image=NEXT)
    await world.until(lambda: settled(world, 4, NEXT), 120)
    assert world.condition("Reconciled") == "True/UpToDate"
    world.edit(image=OLD)
    await world.until(lambda: settled(world, 4), 120)
