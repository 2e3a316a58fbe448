"""A version that never becomes stable makes room for the one before it."""

import pytest

pytestmark = pytest.mark.scenarios

OLD, BAD = "registry.example/clicks:1", "registry.example/clicks:2"
RULES = {"upgrade": {"rollback": {"enabled": True, "readinessTimeout": "5m"}}}


@pytest.fixture
async def stable(running):
    """A job whose version is stable."""
    running.edit(**RULES)
    await running.until(lambda: running.condition("Stable") == "True/Stable", 600)
    return running


def image(world):
    driver = world.driver()
    return driver.manifest["spec"]["image"] if driver is not None else ""


async def crashing(world, seconds, of=BAD):
    """Time passes, and drivers of this image fail as soon as they run."""
    for _ in range(seconds):
        for driver in world.drivers.living:
            if driver.manifest["spec"]["image"] == of and driver.running_since is not None:
                driver.fail("user_function", 3)
        await world.run(1)


async def test_a_version_that_only_crashes_is_rolled_back_to_where_the_old_one_stopped(stable):
    stable.edit(image=BAD)
    await crashing(stable, 420)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    restored = stable.drivers.restored[-1]
    assert restored.epoch == restored.newest
    assert "RolledBack" in stable.events()
    reconciled = stable.status().condition("Reconciled")
    assert (reconciled.status, reconciled.reason) == ("False", "Rejected")
    assert "within 5m; UserCodeFailed: it broke" in reconciled.message
    await stable.run(600)
    assert image(stable) == OLD
    assert stable.condition("Stable") == "True/Stable"


async def test_a_version_that_cannot_be_restored_is_rolled_back_at_once(stable):
    stable.drivers.habits.fail_restore = "restore_point_incompatible"
    stable.edit(image=BAD)
    await stable.until(lambda: "RollbackStarted" in stable.events(), 120)
    stable.drivers.habits.fail_restore = ""
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    assert not stable.status().blocked_reason


async def test_a_version_whose_image_cannot_be_pulled_is_rolled_back_in_time(stable):
    stable.kubelet.image_error = "ImagePullBackOff"
    stable.edit(image=BAD)
    await stable.until(lambda: "RollbackStarted" in stable.events(), 420)
    stable.kubelet.image_error = ""
    await stable.until(lambda: image(stable) == OLD and stable.is_running())


async def test_a_version_that_gets_nowhere_is_stopped_without_a_checkpoint(stable):
    stable.drivers.habits.stuck = True
    stable.edit(image=BAD, upgrade__mode="LastCheckpoint")
    await stable.until(lambda: "RollbackStarted" in stable.events(), 600)
    published = len(stable.buckets.completed("s3://state/clicks"))
    stable.drivers.habits.stuck = False
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    before = [d for d in stable.drivers.by_pod.values() if d.manifest["spec"]["image"] == BAD]
    assert all(driver.last_checkpoint is None for driver in before)
    assert published <= len(stable.buckets.completed("s3://state/clicks"))


async def test_once_output_was_published_a_person_decides(stable):
    old = stable.status().reconciliation.stable_revision
    stable.edit(image=BAD)
    await stable.until(lambda: image(stable) == BAD and stable.report().completed_checkpoints > 1)
    at = stable.drivers.restored[-1].epoch
    await crashing(stable, 420)
    blocked = stable.status().condition("Stable")
    assert (blocked.status, blocked.reason) == ("False", "RollbackBlocked")
    assert f"moorage.dev/rollback={old}" in blocked.message
    assert "RollbackBlocked" in stable.events()
    assert "RollbackStarted" not in stable.events()
    stable.annotate(rollback=old)
    await crashing(stable, 60)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    assert stable.drivers.restored[-1].epoch == at
    assert stable.drivers.restored[-1].explicit
    await stable.run(120)
    assert image(stable) == OLD


async def test_a_version_that_becomes_stable_stays(stable):
    stable.edit(image=BAD)
    await stable.run(900)
    assert image(stable) == BAD
    assert stable.condition("Stable") == "True/Stable"
    assert stable.status().reconciliation.trial is None


async def test_what_was_rolled_back_is_tried_again_when_a_person_says_so(stable):
    stable.drivers.habits.fail_restore = "restore_point_incompatible"
    stable.edit(image=BAD)
    await stable.until(lambda: "RollbackStarted" in stable.events(), 120)
    stable.drivers.habits.fail_restore = ""
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    stable.annotate(restart="try again")
    await stable.until(lambda: image(stable) == BAD and stable.is_running())


async def test_without_the_policy_a_bad_version_is_tried_for_ever(running):
    await running.until(lambda: running.condition("Stable") == "True/Stable", 600)
    running.edit(image=BAD)
    await crashing(running, 900)
    assert "RollbackStarted" not in running.events()


async def test_there_is_no_way_back_to_what_is_not_known(stable):
    stable.annotate(rollback="clicks-0000000000")
    await stable.run(10)
    assert "RollbackRefused" in stable.events()
    assert image(stable) == OLD
    assert len(stable.drivers.by_pod) == 1
