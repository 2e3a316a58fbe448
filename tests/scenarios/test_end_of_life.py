"""Jobs that finish, fail for good, or are deleted."""

import pytest
from moorage_testing.world.scene import CHECKPOINTS, job

from moorage_state.snapshots.history import is_released

pytestmark = pytest.mark.scenarios


@pytest.mark.scenario(59)
async def test_a_bounded_job_finishes_and_stays_finished(world):
    world.drivers.habits.finish_at = 25
    world.apply(job(bounded=True, ttlAfterFinished="120s"))
    await world.until(lambda: world.phase() == "Finished")
    world.restart_operator()
    await world.run(60)
    assert world.phase() == "Finished"
    assert len(world.drivers.by_pod) == 1
    await world.until(lambda: not world.pods())
    assert world.buckets.completed(CHECKPOINTS)


@pytest.mark.scenario(60)
async def test_a_job_that_fails_again_and_again_waits_longer_and_ends_failed(running):
    running.edit(failurePolicy={"maxRestarts": 3, "backoff": {"initial": "10s", "max": "5m"}})
    await running.run(5)
    waits, before = [], running.elapsed
    for attempt in range(1, 5):
        await running.until(lambda n=attempt: len(running.drivers.by_pod) == n, seconds=900)
        waits.append(running.elapsed - before)
        before = running.elapsed
        running.drivers.newest.fail("user_function", 3)
        await running.run(3)
    await running.until(lambda: running.phase() == "Failed")
    assert waits[1] < waits[2] < waits[3]
    await running.run(900)
    assert len(running.drivers.by_pod) == 4
    assert running.pods()
    running.edit(image="registry.example/clicks:2")
    await running.until(running.is_running)
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest > 0


@pytest.mark.scenario(61)
async def test_a_deleted_job_ends_with_a_savepoint_and_gives_its_lineage_up(running):
    running.delete()
    await running.until(lambda: running.object() is None)
    await running.run(5)
    assert not running.pods()
    assert not running.drivers.living
    assert is_released(running.buckets.entries(CHECKPOINTS))
    assert running.buckets.completed(CHECKPOINTS)


@pytest.mark.scenario(61)
@pytest.mark.parametrize("policy", ["Retain", "Delete"])
async def test_what_a_suspended_job_was_stopped_with_outlives_it(running, policy):
    """No other savepoint is taken of it: with its object went what there is of the job."""
    running.edit(deletion={"policy": policy}, desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended")
    [(name, before)] = running.snapshots().items()
    assert before["spec"]["deletionPolicy"] == "Delete"
    running.delete()
    await running.until(lambda: running.object() is None)
    kept = running.snapshots()[name]
    assert kept["spec"]["deletionPolicy"] == "Retain"
    assert kept["metadata"]["labels"]["moorage.dev/trigger"] == "Final"
    running.api.delete("StatefulSparkSnapshot", running.namespace, name)
    await running.until(lambda: not running.snapshots())
    path = kept["status"]["path"]
    assert running.buckets.has_savepoint(path)


async def test_a_savepoint_whose_object_was_deleted_before_is_not_brought_back(running):
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended")
    [name] = running.snapshots()
    change = {"spec": {"deletionPolicy": "Retain"}}
    running.api.patch("StatefulSparkSnapshot", running.namespace, name, change)
    running.api.delete("StatefulSparkSnapshot", running.namespace, name)
    await running.until(lambda: not running.snapshots())
    running.delete()
    await running.until(lambda: running.object() is None)
    assert not running.snapshots()


@pytest.mark.scenario(62)
async def test_a_job_deleted_while_the_store_is_down_goes_when_its_time_is_over(running):
    running.edit(deletion={"timeout": "60s"})
    await running.run(5)
    running.buckets.down = True
    running.delete()
    await running.until(lambda: running.object() is None, seconds=900)
    assert "FinalSnapshotSkipped" in running.events()


@pytest.mark.scenario(62)
async def test_a_deletion_that_must_not_skip_its_snapshot_waits_for_a_person(running):
    running.edit(deletion={"timeout": "60s", "onTimeout": "Block"})
    await running.run(5)
    running.buckets.down = True
    running.delete()
    await running.run(600)
    assert running.object() is not None
    running.annotate(skip_final_savepoint="true")
    await running.until(lambda: running.object() is None, seconds=900)


@pytest.mark.scenario(63)
async def test_a_job_made_again_under_its_name_takes_up_what_was_released(running):
    running.delete()
    await running.until(lambda: running.object() is None)
    last = running.drivers.newest.epoch
    running.apply()
    await running.until(running.is_running)
    assert running.drivers.restored[-1].epoch == last


@pytest.mark.scenario(64)
async def test_two_jobs_on_one_directory_the_second_is_refused_and_both_are_told(running):
    body = job("rival")
    body["spec"]["state"]["checkpointDir"] = CHECKPOINTS
    running.apply(body)
    await running.run(30)
    assert running.phase("rival") == "Blocked"
    assert f"{running.namespace}/clicks" in running.status("rival").message
    assert "CheckpointDirConflict" in running.events("rival")
    assert "CheckpointDirConflict" in running.events("clicks")
    assert running.is_running()
    assert len(running.drivers.by_pod) == 1


@pytest.mark.scenario(65)
async def test_a_log_of_a_newer_format_is_not_touched(running):
    found = running.object()
    running.api.replace_status({**found, "status": {**found["status"], "format": 7}})
    running.edit(image="registry.example/clicks:2")
    await running.run(60)
    assert len(running.drivers.by_pod) == 1
    assert "OperatorTooOld" in running.events()


@pytest.mark.scenario(48)
async def test_in_a_namespace_that_goes_nothing_is_waited_for(running):
    running.api.delete("Namespace", None, running.namespace)
    await running.until(lambda: running.object() is None, seconds=300)


async def test_a_job_whose_spec_was_never_valid_can_be_deleted(world):
    world.apply(job(driver={"podTemplate": {"spec": {"volumes": "none"}}}))
    await world.run(10)
    assert world.condition("SpecValid").startswith("False")
    world.delete()
    await world.until(lambda: world.object() is None)


async def test_with_policy_delete_the_checkpoints_go_and_savepoints_stay(running):
    running.edit(deletion={"policy": "Delete"})
    running.annotate(savepoint="mine")
    await running.run(20)
    running.delete()
    await running.until(lambda: running.object() is None, seconds=900)
    assert not list(running.buckets.store(CHECKPOINTS).list("chk-"))
    assert running.buckets.has_savepoint("s3://savepoints/clicks/mine")


async def test_a_deletion_releases_the_directory_that_the_job_used(running):
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended")
    running.edit(state__checkpointDir="s3://state/other", restore__nonce=1)
    await running.run(5)
    running.delete()
    await running.until(lambda: running.object() is None, seconds=1200)
    assert is_released(running.buckets.entries(CHECKPOINTS))


async def test_a_job_whose_status_nobody_can_read_goes_when_a_person_says_so(running):
    running.api.set_status("StatefulSparkJob", running.namespace, "clicks", operation={"id": "x"})
    running.delete()
    await running.run(60)
    assert running.object() is not None
    assert "StatusUnreadable" in running.events()
    running.annotate(skip_final_savepoint="true")
    await running.until(lambda: running.object() is None)
