"""The operator dies, the API server fails, people edit at the worst moment."""

import pytest
from moorage_testing.world.scene import CHECKPOINTS, SAVEPOINTS, job

from moorage_api.status import read_status
from moorage_operator.ports import ApiUnavailable

pytestmark = pytest.mark.scenarios


def step(world):
    operation = world.status().operation
    return (operation.type, operation.step) if operation else None


@pytest.mark.scenario(1)
async def test_an_operator_that_dies_while_a_savepoint_is_taken_is_followed_by_one_that_adopts_it(
    running,
):
    running.drivers.habits.snapshot = 20.0
    running.annotate(savepoint="before")
    await running.until(lambda: running.report().requests)
    running.restart_operator()
    await running.until(lambda: running.buckets.has_savepoint(f"{SAVEPOINTS}/before"))
    await running.run(10)
    assert running.events("clicks-before").count("SavepointCompleted") == 1
    assert len(running.report().requests) == 1
    assert running.snapshots()["clicks-before"]["status"]["state"] == "Completed"


@pytest.mark.scenario(2)
async def test_an_operator_that_dies_after_the_stop_finds_the_savepoint_again(running):
    running.edit(image="registry.example/clicks:2")
    await running.until(lambda: not running.drivers.living)
    stopped_at = running.drivers.newest.epoch
    running.restart_operator()
    await running.until(running.is_running)
    assert running.drivers.restored[-1].epoch == stopped_at
    assert running.drivers.restored[-1].path.startswith(SAVEPOINTS)


@pytest.mark.scenario(3)
async def test_a_driver_pod_made_just_before_the_operator_died_is_adopted(world):
    world.apply()
    made = []
    world.api.watchers.append(
        lambda event, found: (
            made.append(found["metadata"]["name"])
            if event == "ADDED" and found["kind"] == "Pod"
            else None
        )
    )
    world.points.crash_at, world.points.crash_when = None, "after"

    def kill_after_pod(call):
        if call.verb in ("apply", "create") and call.kind == "Pod":
            world.points.crash_at = world.points.count + 1

    world.operator.cluster.chaos = kill_after_pod
    await world.until(world.is_running)
    assert world.deaths == 1
    assert [name for name in made if name.endswith("-driver")] == ["clicks-1-driver"]


@pytest.mark.scenario(4)
async def test_of_two_operators_one_finds_the_others_status_and_starts_nothing(running):
    running.second_operator()
    running.edit(image="registry.example/clicks:2")
    await running.run(5)
    await running.until(running.is_running)
    await running.run(60)
    attempts = [restored.attempt for restored in running.drivers.restored]
    assert attempts == sorted(set(attempts))
    assert len(running.drivers.living) == 1


@pytest.mark.scenario(5)
async def test_while_the_api_server_fails_nothing_is_touched_and_nothing_counts_as_gone(running):
    before = running.drivers.newest
    running.operator.cluster.fail(ApiUnavailable("503"), verb="list", times=-1)
    await running.run(120)
    running.operator.cluster.heal()
    await running.run(30)
    assert running.drivers.newest is before
    assert running.is_running()
    assert running.status().restarts.total == 0


@pytest.mark.scenario(7)
async def test_an_edit_during_an_upgrade_costs_no_second_restart(running):
    running.edit(image="registry.example/clicks:2")
    await running.until(lambda: step(running) is not None)
    running.edit(image="registry.example/clicks:3")
    await running.until(lambda: len(running.drivers.by_pod) > 1 and running.is_running())
    await running.run(30)
    assert running.drivers.newest.manifest["spec"]["image"] == "registry.example/clicks:3"
    assert len(running.drivers.by_pod) == 2


@pytest.mark.scenario(8)
async def test_an_invalid_edit_leaves_the_job_running_and_recovering_with_the_last_good_spec(
    running,
):
    running.edit(driver={"podTemplate": {"spec": {"volumes": "none"}}})
    await running.run(10)
    assert running.condition("SpecValid").startswith("False")
    assert "spec.driver.podTemplate" in running.status().condition("SpecValid").message
    assert "ValidationFailed" in running.events()
    assert len(running.drivers.by_pod) == 1
    running.drivers.newest.fail("internal", 1)
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert "driver" not in running.drivers.newest.manifest["spec"]


@pytest.mark.scenario(9)
async def test_an_edit_taken_back_before_anything_was_stopped_changes_nothing(running):
    running.drivers.habits.deaf = True
    running.edit(image="registry.example/clicks:2")
    await running.run(3)
    running.edit(image="registry.example/clicks:1")
    running.drivers.habits.deaf = False
    await running.run(30)
    assert running.is_running()
    assert len(running.drivers.by_pod) == 1


@pytest.mark.scenario(10)
async def test_a_wiped_status_is_rebuilt_from_what_runs(running):
    found = running.object()
    running.api.replace_status({**found, "status": {}})
    await running.run(60)
    assert running.is_running()
    assert len(running.drivers.by_pod) == 1
    assert running.status().attempt.number == 1


@pytest.mark.scenario(10)
async def test_an_object_restored_from_a_backup_may_not_take_the_lineage_until_a_person_says_so(
    running,
):
    status = running.object()["status"]
    lineage = status["snapshots"]["lineageId"]
    for pod in running.pods():
        running.drivers.newest.kill()
        running.api.delete("Pod", running.namespace, pod["metadata"]["name"], grace=0)
    running.api.patch(
        "StatefulSparkJob", running.namespace, "clicks", {"metadata": {"finalizers": None}}
    )
    running.delete()
    running.apply()
    found = running.object()
    running.api.replace_status({**found, "status": status})
    await running.until(lambda: running.phase() == "Blocked")
    assert "adopt-lineage" in running.status().message
    assert lineage in running.status().message
    running.annotate(adopt_lineage=lineage)
    await running.until(running.is_running)
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest > 0


@pytest.mark.scenario(11)
async def test_missed_times_of_a_schedule_are_made_up_for_once(world):
    body = job()
    body["spec"]["savepoint"] = {"schedule": {"cron": "*/5 * * * *"}}
    world.apply(body)
    await world.until(world.is_running)
    world.operator.due.clear()
    world.operator.retire()
    for _ in range(20):
        world.clock.advance(60)
        world.elapsed += 60
        world.drivers.tick()
    world.operators[0] = type(world.operators[0])(world, world.points)
    world.operators[0].look_at_everything()
    await world.run(60)
    periodic = [
        s
        for s in world.snapshots().values()
        if s["metadata"]["labels"]["moorage.dev/trigger"] == "Periodic"
    ]
    assert len(periodic) == 1


@pytest.mark.scenario(12)
@pytest.mark.scenario(13)
async def test_an_annotation_acts_once_by_its_value_and_is_never_taken_away(running):
    running.annotate(savepoint="one")
    await running.until(lambda: running.buckets.has_savepoint(f"{SAVEPOINTS}/one"))
    for _ in range(5):
        running.annotate(savepoint="one")
        await running.run(10)
    assert set(running.snapshots()) == {"clicks-one"}
    assert running.object()["metadata"]["annotations"]["moorage.dev/savepoint"] == "one"
    running.annotate(savepoint="two")
    await running.until(lambda: running.buckets.has_savepoint(f"{SAVEPOINTS}/two"))
    assert running.object()["metadata"]["generation"] == 1


async def test_a_paused_job_is_looked_at_and_left_alone(running):
    running.annotate(paused="true")
    await running.run(2)
    running.edit(image="registry.example/clicks:2")
    running.drivers.newest.kill()
    await running.run(60)
    assert len(running.drivers.by_pod) == 1
    running.annotate(paused="false")
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())


async def test_nothing_is_written_while_nothing_changes(running):
    await running.run(200)
    running.drivers.habits.stuck = True
    await running.run(90)
    version = running.object()["metadata"]["resourceVersion"]
    await running.run(120)
    assert running.object()["metadata"]["resourceVersion"] == version


async def test_a_status_of_a_newer_operator_is_left_alone(running):
    found = running.object()
    running.api.replace_status({**found, "status": {**found["status"], "format": 99}})
    running.drivers.newest.kill()
    await running.run(60)
    assert len(running.drivers.by_pod) == 1
    assert read_status(running.object()["status"]).format == 99


async def test_the_checkpoint_directory_stands_in_the_world(running):
    assert running.buckets.completed(CHECKPOINTS)


async def test_a_new_job_beside_the_operator_is_refused_and_one_that_runs_there_is_kept(running):
    """Nobody's state is held back by a rule that came after the job."""
    running.operators_namespace = running.namespace
    running.restart_operator()
    running.drivers.newest.kill()
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    running.apply(job("second"))
    await running.run(60)
    assert running.condition("SpecValid", "second").startswith("False")
    assert "operator's own" in running.status("second").message
    assert all(p["metadata"]["name"].startswith("clicks-") for p in running.pods())


async def test_a_job_beside_the_operator_is_suspended_and_deleted_as_the_page_says(running):
    """How it moves away: suspended first, then made again elsewhere."""
    running.operators_namespace = running.namespace
    running.restart_operator()
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended", seconds=600)
    assert not running.drivers.living
    last = running.drivers.newest.epoch
    await running.run(600)
    assert running.phase() == "Suspended"
    assert running.drivers.newest.epoch == last
