"""The operator cannot reach drivers that are well, or the API server refuses what it asks."""

from moorage_operator.ports import Forbidden


async def test_a_healthy_job_that_cannot_be_asked_runs_on(running):
    running.drivers.habits.deaf = True
    await running.run(20 * 60, step=5.0)
    assert running.status().attempt.number == 1
    assert running.condition("Ready") == "False/DriverUnreachable"
    assert running.condition("Degraded") == "True/DriverUnreachable"
    running.drivers.habits.deaf = False
    await running.run(60)
    assert running.condition("Ready") == "True/Running"


async def test_an_hour_without_answers_does_not_use_up_restarts(running):
    running.edit(failurePolicy={"maxRestarts": 1, "window": "2h"})
    await running.run(3)
    running.drivers.habits.deaf = True
    await running.run(60 * 60, step=5.0)
    assert running.status().restarts.total == 0


async def test_a_deleted_token_stops_nothing(running):
    running.api.delete("Secret", running.namespace, "clicks-1-tokens")
    running.restart_operator()
    await running.run(17 * 60, step=5.0)
    assert running.status().attempt.number == 1


async def test_pods_that_cannot_be_read_make_ready_unknown_until_they_can(running):
    world, listed = running, running.operator.cluster.list

    async def refuse(kind, namespace, labels=None):
        if kind == "Pod":
            raise Forbidden("pods is forbidden", "Forbidden")
        return await listed(kind, namespace, labels)

    world.operator.cluster.list = refuse
    world.drivers.newest.kill()
    await world.run(600, step=5.0)
    assert world.condition("Ready") == "Unknown/PodsUnreadable"
    assert world.events().count("PodsUnreadable") == 1
    world.operator.cluster.list = listed
    await world.until(world.is_running)
    assert world.condition("Ready") == "True/Running"


async def test_a_pod_that_a_quota_refuses_is_said_in_conditions_and_one_event(world):
    create = world.operator.cluster.create

    async def refuse(body):
        if body["kind"] == "Pod":
            raise Forbidden('pods "clicks-1-driver" is forbidden: exceeded quota', "Forbidden")
        return await create(body)

    world.operator.cluster.create = refuse
    world.apply()
    await world.run(300)
    assert world.condition("Progressing") == "False/ActionFailed"
    assert world.condition("Degraded") == "True/ActionFailed"
    assert "exceeded quota" in world.status().message
    assert world.events().count("ActionFailed") == 1
    world.operator.cluster.create = create
    await world.until(world.is_running, seconds=600)
    assert world.condition("Degraded") == "False/Healthy"


async def test_a_quota_on_snapshot_objects_holds_no_upgrade(running):
    world, create = running, running.operator.cluster.create

    async def refuse(body):
        if body["kind"] == "StatefulSparkSnapshot":
            raise Forbidden("exceeded quota: count/statefulsparksnapshots", "Forbidden")
        return await create(body)

    world.operator.cluster.create = refuse
    world.edit(image="registry.example/clicks:2")
    await world.run(600, step=2.0)
    assert world.is_running()
    assert world.status().attempt.number == 2
    assert [restored.explicit for restored in world.drivers.restored][-1]


async def test_a_fix_made_while_the_operator_was_away_is_tried(running):
    world = running
    world.drivers.newest.fail("user_error", 3)
    world.edit(image="registry.example/clicks:2")
    world.restart_operator()
    await world.until(world.is_running, seconds=400)
    assert world.driver().manifest["spec"]["image"] == "registry.example/clicks:2"


async def test_a_path_without_a_savepoint_leaves_the_running_job_running(running):
    path = "s3://savepoints/clicks/typo"
    running.edit(restore={"mode": "Path", "path": path, "nonce": 1})
    await running.run(300)
    assert running.status().attempt.number == 1
    assert running.is_running()
    assert running.condition("SpecValid") == "False/Invalid"
    assert path in running.status().message


async def test_state_is_not_left_behind_by_naming_another_directory(running):
    running.edit(state__checkpointDir="s3://state/other", restore__nonce=1)
    await running.run(120)
    assert running.status().attempt.number == 1
    assert "acknowledgeStateLoss" in running.status().message
    running.edit(restore__acknowledgeStateLoss=True)
    await running.until(lambda: running.status().attempt.number == 2 and running.is_running())
