"""Savepoints and checkpoints that are asked for, collide, fail and are deleted."""

import pytest
from moorage_testing.world.scene import CHECKPOINTS, SAVEPOINTS, job

pytestmark = pytest.mark.scenarios


def state_of(world, name):
    found = world.snapshots().get(name)
    return (found.get("status") or {}).get("state") if found else None


@pytest.mark.scenario(14)
async def test_a_name_that_another_request_used_is_refused_and_its_data_are_untouched(running):
    running.snapshot("first", name="same")
    await running.until(lambda: state_of(running, "first") == "Completed")
    before = dict(running.buckets.store(f"{SAVEPOINTS}/same")._objects)
    running.snapshot("second", name="same")
    await running.until(lambda: state_of(running, "second") == "Failed")
    assert "SavepointNameConflict" in running.events("second")
    assert dict(running.buckets.store(f"{SAVEPOINTS}/same")._objects) == before


async def suspended(world, **upgrade):
    """The job sleeps; the epoch that it was stopped at."""
    if upgrade:
        world.edit(upgrade=upgrade)
        await world.run(5)
    world.edit(desiredState="Suspended")
    epoch = world.report().epoch
    await world.until(lambda: world.phase() == "Suspended")
    return epoch


@pytest.mark.scenario(15)
@pytest.mark.parametrize("mode", ["Savepoint", "LastCheckpoint"])
async def test_a_savepoint_of_a_suspended_job_is_made_of_what_it_was_stopped_with(running, mode):
    epoch = await suspended(running, mode=mode)
    running.annotate(savepoint="late")
    await running.until(lambda: state_of(running, "clicks-late") == "Completed")
    status = running.snapshots()["clicks-late"]["status"]
    assert status["path"].endswith("/late")
    assert status["epoch"] >= epoch
    assert running.buckets.has_savepoint(f"{SAVEPOINTS}/late")
    assert not running.drivers.living
    nonce = {"mode": "Snapshot", "snapshotName": "clicks-late", "nonce": 1}
    running.edit(desiredState="Running", restore=nonce)
    await running.until(running.is_running)
    assert running.drivers.restored[-1].path.endswith("/late")
    assert running.drivers.restored[-1].epoch == status["epoch"]


@pytest.mark.scenario(15)
async def test_that_savepoint_is_a_persons_own_whatever_becomes_of_what_it_was_made_of(running):
    await suspended(running)
    (first,) = running.snapshots()
    running.snapshot("late", deletionPolicy="Delete")
    await running.until(lambda: state_of(running, "late") == "Completed")
    running.edit(desiredState="Running")
    await running.until(running.is_running)
    await running.run(30)
    running.api.delete("StatefulSparkSnapshot", running.namespace, first)
    await running.until(lambda: first not in running.snapshots())
    assert running.buckets.has_savepoint(f"{SAVEPOINTS}/late")
    running.api.delete("StatefulSparkSnapshot", running.namespace, "late")
    await running.until(lambda: "late" not in running.snapshots())
    assert not running.buckets.has_savepoint(f"{SAVEPOINTS}/late")


@pytest.mark.scenario(15)
async def test_a_savepoint_of_a_blocked_job_waits_and_is_given_up_at_its_deadline(running):
    running.drivers.habits.fail_restore = "restore_point_corrupt"
    running.drivers.newest.kill()
    await running.until(lambda: running.phase() == "Blocked")
    running.snapshot("late", startDeadline="60s")
    await running.run(20)
    assert state_of(running, "late") == "Pending"
    await running.run(60)
    assert state_of(running, "late") == "Abandoned"


@pytest.mark.scenario(15)
async def test_a_savepoint_asked_for_while_the_job_starts_is_taken_when_it_runs(world):
    world.apply()
    world.snapshot("early")
    await world.until(lambda: state_of(world, "early") == "Completed")
    assert world.buckets.has_savepoint(f"{SAVEPOINTS}/early")


@pytest.mark.scenario(16)
async def test_of_several_savepoints_one_is_in_flight_at_a_time(running):
    running.drivers.habits.snapshot = 10.0
    for name in ("a", "b", "c"):
        running.snapshot(name)
    most = 0
    for _ in range(80):
        await running.run(1)
        states = [state_of(running, name) for name in ("a", "b", "c")]
        most = max(most, states.count("InProgress"))
    assert states == ["Completed"] * 3
    assert most == 1


@pytest.mark.scenario(17)
async def test_checkpoints_slower_than_their_interval_are_said_once_and_cost_nothing(running):
    await running.until(lambda: running.condition("Checkpointing") == "True/InTime")
    running.drivers.habits.snapshot = 15.0
    await running.run(120)
    assert running.condition("Checkpointing") == "True/CheckpointLagging"
    assert running.events().count("CheckpointLagging") == 1
    assert running.status().restarts.total == 0
    running.drivers.habits.snapshot = 2.0
    await running.until(lambda: running.condition("Checkpointing") == "True/InTime")


@pytest.mark.scenario(18)
async def test_a_savepoint_whose_driver_dies_is_taken_again_when_the_job_is_back(running):
    running.drivers.habits.snapshot = 20.0
    running.snapshot("torn")
    await running.until(lambda: state_of(running, "torn") == "InProgress")
    await running.run(3)
    running.drivers.newest.kill()
    running.drivers.habits.snapshot = 2.0
    await running.until(lambda: state_of(running, "torn") == "Completed")
    assert len(running.drivers.by_pod) == 2


@pytest.mark.scenario(18)
async def test_a_savepoint_that_keeps_failing_is_given_up_and_the_job_runs_on(running):
    running.drivers.habits.savepoints_fail = 99
    running.snapshot("never", backoffLimit=2)
    await running.until(lambda: state_of(running, "never") == "Failed")
    assert running.snapshots()["never"]["status"]["failures"] == 3
    assert running.is_running()
    assert len(running.drivers.by_pod) == 1


@pytest.mark.scenario(19)
async def test_a_savepoint_that_was_written_counts_though_the_job_failed_to_stop(running):
    running.edit(image="registry.example/clicks:2")
    await running.until(lambda: running.report().requests)
    name = running.status().operation.snapshot_name
    await running.until(lambda: running.buckets.has_savepoint(f"{SAVEPOINTS}/{name}"))
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert running.drivers.restored[-1].path == f"{SAVEPOINTS}/{name}"


@pytest.mark.scenario(20)
async def test_a_snapshot_deleted_in_flight_leaves_no_finalizer_behind(running):
    running.drivers.habits.snapshot = 15.0
    running.snapshot("gone")
    await running.until(lambda: state_of(running, "gone") == "InProgress")
    running.api.delete("StatefulSparkSnapshot", running.namespace, "gone")
    await running.until(lambda: "gone" not in running.snapshots())
    assert running.is_running()


@pytest.mark.scenario(21)
async def test_a_pinned_snapshot_is_held_until_it_is_let_go(running):
    running.snapshot("kept", pinned=True, deletionPolicy="Delete")
    await running.until(lambda: state_of(running, "kept") == "Completed")
    running.api.delete("StatefulSparkSnapshot", running.namespace, "kept")
    await running.run(30)
    found = running.snapshots()["kept"]
    assert found["status"]["inUseBy"]
    assert running.buckets.has_savepoint(f"{SAVEPOINTS}/kept")
    running.api.patch(
        "StatefulSparkSnapshot", running.namespace, "kept", {"spec": {"pinned": False}}
    )
    await running.until(lambda: "kept" not in running.snapshots())
    assert not running.buckets.has_savepoint(f"{SAVEPOINTS}/kept")


@pytest.mark.scenario(21)
async def test_the_savepoint_that_a_suspended_job_would_resume_from_is_held(running):
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended")
    (name,) = [n for n, s in running.snapshots().items() if s["status"]["state"] == "Completed"]
    running.api.delete("StatefulSparkSnapshot", running.namespace, name)
    await running.run(20)
    assert name in running.snapshots()
    running.edit(desiredState="Running")
    await running.until(running.is_running)
    assert running.drivers.restored[-1].epoch > 0


async def test_a_snapshot_of_a_dead_job_is_deleted_from_the_store_without_it(running):
    running.snapshot("old", deletionPolicy="Delete")
    await running.until(lambda: state_of(running, "old") == "Completed")
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended")
    running.api.delete("StatefulSparkSnapshot", running.namespace, "old")
    await running.until(lambda: "old" not in running.snapshots())
    assert not running.buckets.has_savepoint(f"{SAVEPOINTS}/old")


async def test_deleting_what_a_person_asked_for_leaves_its_data(running):
    """However it was asked for, and unless that person says otherwise."""
    running.snapshot("declared")
    await running.until(lambda: state_of(running, "declared") == "Completed")
    running.annotate(savepoint="annotated")
    await running.until(lambda: state_of(running, "clicks-annotated") == "Completed")
    for name in running.snapshots():
        running.api.delete("StatefulSparkSnapshot", running.namespace, name)
    await running.until(lambda: not running.snapshots())
    running.delete()
    await running.until(lambda: running.object() is None)
    assert running.buckets.has_savepoint(f"{SAVEPOINTS}/declared")
    assert running.buckets.has_savepoint(f"{SAVEPOINTS}/annotated")


async def test_an_existing_savepoint_is_registered_after_it_was_verified(running):
    running.snapshot("made")
    await running.until(lambda: state_of(running, "made") == "Completed")
    running.snapshot("imported", existingPath=f"{SAVEPOINTS}/made")
    running.snapshot("missing", existingPath=f"{SAVEPOINTS}/nowhere")
    await running.until(lambda: state_of(running, "imported") == "Completed")
    await running.until(lambda: state_of(running, "missing") == "Failed")
    imported = running.snapshots()["imported"]["status"]
    made = running.snapshots()["made"]["status"]
    assert imported["manifestDigest"] == made["manifestDigest"]


@pytest.mark.scenario(24)
async def test_while_the_store_is_away_the_job_runs_and_says_so(running):
    running.buckets.down = True
    await running.run(60)
    assert len(running.drivers.by_pod) == 1
    assert running.condition("StorageReachable").startswith("False")
    running.buckets.down = False
    await running.run(60)
    assert running.condition("StorageReachable").startswith("True")
    assert running.status().restarts.total == 0


@pytest.mark.scenario(25)
async def test_a_store_that_denies_blocks_with_clear_words(world):
    world.buckets.denied = True
    world.apply()
    await world.until(lambda: world.phase() == "Blocked")
    assert "AccessDenied" in world.status().message or "access" in world.status().message
    world.buckets.denied = False
    world.annotate(restart="now")
    await world.until(world.is_running)


@pytest.mark.scenario(28)
async def test_a_savepoint_asked_for_during_a_rescale_waits_for_the_job(running):
    running.edit(scaling__parallelism=4, scaling__mode="Restart")
    await running.until(lambda: running.status().operation is not None)
    running.snapshot("meanwhile")
    await running.until(lambda: state_of(running, "meanwhile") == "Completed")
    assert running.status().scaling.observed_parallelism == 4
    assert len(running.drivers.by_pod) == 2


async def test_a_checkpoint_is_taken_when_the_annotation_asks(running):
    running.drivers.newest.manifest["spec"]["checkpoint"]["interval"] = "10000s"
    await running.run(15)
    before = len(running.buckets.completed(CHECKPOINTS))
    running.annotate(checkpoint="now")
    await running.until(lambda: len(running.buckets.completed(CHECKPOINTS)) == before + 1)


async def test_periodic_savepoints_are_kept_by_count_and_others_are_never_deleted(running):
    running.annotate(savepoint="mine")
    running.edit(savepoint={"schedule": {"cron": "* * * * *"}, "retain": {"count": 2}})
    await running.run(400)
    triggers = [
        s["metadata"]["labels"]["moorage.dev/trigger"] for s in running.snapshots().values()
    ]
    assert 2 <= triggers.count("Periodic") <= 3
    assert triggers.count("Manual") == 1
    assert len(running.drivers.by_pod) == 1


async def test_two_jobs_that_want_one_object_name_both_get_their_savepoint(world):
    for name in ("clicks", "clicks-eu"):
        world.apply(job(name))
        await world.until(lambda n=name: world.is_running(n))
    world.annotate("clicks", savepoint="eu-final")
    await world.until(lambda: state_of(world, "clicks-eu-final") == "Completed")
    world.annotate("clicks-eu", savepoint="final")
    place = "s3://savepoints/clicks-eu/final"
    await world.until(lambda: world.buckets.has_savepoint(place))
    await world.run(30)
    owners = [o["spec"]["jobRef"]["name"] for o in world.snapshots().values()]
    assert sorted(owners) == ["clicks", "clicks-eu"]
    assert world.status("clicks-eu").snapshots.last_trigger.savepoint == "final"


async def test_the_savepoints_of_upgrades_are_let_go_some_time(running):
    for number in range(2, 6):
        retain = {"retain": {"count": 1, "maxAge": "1m"}}
        running.edit(image=f"registry.example/clicks:{number}", savepoint=retain)
        await running.until(
            lambda n=number: running.status().attempt.number == n and running.is_running()
        )
        await running.run(30)
    await running.run(300, step=5.0)
    assert len(running.snapshots()) <= 2


async def test_waiting_for_what_passes_by_itself_leaves_the_whole_deadline_for_a_hiccup(running):
    running.snapshot("mine", startDeadline="2m")
    running.annotate(paused="true")
    await running.run(180, step=5.0)
    assert state_of(running, "mine") == "Pending"
    running.drivers.habits.deaf = True
    running.annotate(paused="false")
    await running.run(35)
    running.drivers.habits.deaf = False
    await running.until(lambda: state_of(running, "mine") == "Completed")


async def test_after_such_a_wait_the_deadline_counts_anew_and_once(running):
    running.drivers.habits.fail_restore = "restore_point_corrupt"
    running.drivers.newest.kill()
    await running.until(lambda: running.phase() == "Blocked")
    running.annotate(paused="true")
    running.snapshot("mine", startDeadline="2m")
    await running.run(180, step=5.0)
    running.annotate(paused="false")
    await running.run(90)
    assert state_of(running, "mine") == "Pending"
    await running.run(60)
    assert state_of(running, "mine") == "Abandoned"
