"""Pods and nodes that go."""

import pytest

pytestmark = pytest.mark.scenarios


async def back(world, attempts=2):
    await world.until(
        lambda: len(world.drivers.by_pod) == attempts and world.is_running(), seconds=900
    )
    restored = world.drivers.restored[-1]
    assert restored.epoch == restored.newest > 0
    return world.status().restarts


@pytest.mark.scenario(38)
async def test_a_drained_driver_is_back_at_once_and_not_counted_against_the_job(running):
    running.kubelet.drain("clicks-1-driver")
    began = running.elapsed
    restarts = await back(running)
    assert running.elapsed - began < 45
    assert restarts.backoff_level == 0
    assert not restarts.window


@pytest.mark.scenario(38)
@pytest.mark.parametrize(
    ("take", "reason"),
    [
        (lambda world: world.kubelet.drain("clicks-1-driver"), "DriverEvicted"),
        (lambda world: world.kubelet.preempt("clicks-1-driver"), "DriverPreempted"),
        (lambda world: world.kubelet.taint("clicks-1-driver"), "NodeLost"),
        (lambda world: world.kubelet.shut_down(), "NodeShutdown"),
    ],
    ids=["evicted", "preempted", "tainted", "shut down"],
)
async def test_who_took_a_driver_away_is_told_and_the_job_is_not_to_blame(running, take, reason):
    running.edit(failurePolicy={"maxRestarts": 0})
    await running.run(5)
    take(running)
    began = running.elapsed
    restarts = await back(running)
    assert running.elapsed - began < 45
    assert (restarts.last_reason, restarts.window) == (reason, ())
    assert reason in running.events()
    assert running.status().condition("Degraded").status == "False"


@pytest.mark.scenario(38)
async def test_a_preempted_driver_waits_for_a_node_and_takes_no_blame_for_that(running):
    """The place that it had is the other pod's."""
    running.kubelet.unschedulable = "0/1 nodes are available: 1 Insufficient memory."
    running.kubelet.preempt("clicks-1-driver")
    await running.until(lambda: running.condition("Progressing") == "False/Unschedulable")
    await running.run(900)
    assert running.condition("Ready") == "False/Unschedulable"
    assert "Insufficient memory" in str(running.status().condition("Progressing"))
    assert len(running.pods()) == 1
    running.kubelet.unschedulable = ""
    restarts = await back(running)
    assert not restarts.window


@pytest.mark.scenario(39)
async def test_a_driver_out_of_memory_is_an_application_failure_with_a_wait(running):
    running.kubelet.kill_container("clicks-1-driver", "OOMKilled")
    await running.run(3)
    assert running.phase() == "BackOff"
    restarts = await back(running)
    assert "OOM" in restarts.last_reason
    assert len(restarts.window) == 1


@pytest.mark.scenario(39)
async def test_a_driver_that_fills_its_own_disk_fails_and_is_not_brought_back_for_ever(running):
    running.edit(failurePolicy={"maxRestarts": 1})
    await running.run(5)
    said = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
    running.kubelet.evict_for("clicks-1-driver", said)
    restarts = await back(running)
    assert (restarts.last_reason, len(restarts.window)) == ("DriverStorageExceeded", 1)
    running.kubelet.evict_for("clicks-2-driver", said)
    await running.until(lambda: running.phase() == "Failed")
    assert "limits.ephemeral-storage" in running.status().message


@pytest.mark.scenario(38)
async def test_drivers_that_are_drained_one_after_the_other_are_back_at_once_twice(running):
    waits = []
    for number in range(1, 6):
        running.kubelet.drain(f"clicks-{number}-driver")
        began = running.elapsed
        await back(running, number + 1)
        waits.append(running.elapsed - began)
        await running.run(30)
    assert max(waits[:2]) < 45
    assert waits[2] > waits[1]
    assert waits[4] > waits[1] + 30
    assert not running.status().restarts.window


@pytest.mark.scenario(42)
async def test_a_lost_node_is_waited_for_then_left_to_the_fence(running):
    running.kubelet.lose_node()
    zombie = running.drivers.newest
    await running.run(60)
    assert len(running.drivers.by_pod) == 1
    await running.until(lambda: len(running.drivers.by_pod) == 2, seconds=300)
    await running.until(running.is_running)
    restored = running.drivers.restored[-1]
    assert restored.epoch == restored.newest
    await running.until(lambda: zombie.exit_code == 6)


@pytest.mark.scenario(46)
async def test_an_image_that_cannot_be_had_is_said_and_not_hammered(world):
    world.kubelet.image_error = "ImagePullBackOff"
    world.apply()
    await world.run(300)
    assert len(world.pods()) == 1
    assert world.condition("Progressing").startswith("False")
    assert "ImagePullBackOff" in str(world.status().condition("Progressing"))
    world.kubelet.image_error = ""
    await world.until(world.is_running)
    assert world.status().attempt.number == 1


@pytest.mark.scenario(47)
async def test_a_pod_that_finds_no_node_is_said(world):
    world.kubelet.unschedulable = "0/1 nodes are available: 1 Insufficient cpu."
    world.apply()
    await world.run(60)
    assert "Insufficient cpu" in str(world.status())
    world.kubelet.unschedulable = ""
    await world.until(world.is_running)
    assert world.status().attempt.number == 1


@pytest.mark.scenario(47)
async def test_executors_that_the_api_server_does_not_take_are_said_while_the_driver_waits(world):
    no = 'pods "clicks" is forbidden: no PriorityClass with name urgent was found'
    asked = []

    def admission(body):
        asked.append(body["metadata"]["labels"]["moorage.dev/role"])
        return no if asked[-1] == "executor" else ""

    world.api.admission = admission
    world.drivers.habits.restore = 3600.0  # as one that has no executors
    world.apply()
    await world.run(60)
    assert world.condition("Progressing") == "False/PodsRefused"
    assert "takes no executor: " in world.status().message
    assert no in world.status().message
    assert "PodsRefused" in world.events()
    await world.run(60)
    assert asked == ["driver", "executor"]  # once for each start
    world.drivers.habits.restore = 3.0
    await world.until(world.is_running)
    assert world.condition("Progressing") == "False/Idle"


@pytest.mark.scenario(48)
async def test_a_pod_deleted_by_hand_comes_back_with_its_state(running):
    running.api.delete("Pod", running.namespace, "clicks-1-driver")
    await back(running)


@pytest.mark.scenario(48)
async def test_a_pod_that_vanished_without_a_trace_comes_back_with_its_state(running):
    running.drivers.newest.kill()
    running.api.delete("Pod", running.namespace, "clicks-1-driver", grace=0)
    await back(running)


@pytest.mark.scenario(49)
async def test_a_driver_that_cannot_be_reached_while_its_pod_runs_is_not_replaced_at_once(running):
    running.drivers.habits.deaf = True
    await running.run(30)
    assert len(running.drivers.by_pod) == 1
    running.drivers.habits.deaf = False
    await running.run(30)
    assert running.is_running()
    assert running.status().restarts.total == 0


@pytest.mark.scenario(15)
async def test_a_python_error_is_a_failure_and_never_a_finished_job(running):
    driver = running.drivers.newest
    driver.exit_code = 0
    driver.fail("user_function", 3, "ValueError: no such column")
    await running.until(lambda: running.status().restarts.total == 1)
    assert "ValueError" in running.status().restarts.last_message
    await back(running)


async def test_a_stuck_job_is_restarted_when_its_health_policy_says_so(running):
    running.edit(failurePolicy={"health": {"noProgressFor": "60s", "noCheckpointFor": "1h"}})
    await running.run(5)
    running.drivers.habits.stuck = True
    await running.run(90)
    running.drivers.habits.stuck = False
    await back(running)
    assert "Progress" in running.status().restarts.last_reason
