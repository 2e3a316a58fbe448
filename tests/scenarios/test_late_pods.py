"""A request to make a driver's pod goes through long after it was given up."""

import copy

import pytest

from moorage_operator.ports import ApiUnavailable


@pytest.fixture
async def late_pod(running):
    """The second driver's pod, whose making the API server did not confirm and nobody has seen."""
    world, kept = running, {}
    create = world.operator.cluster.create

    async def lose(body):
        if body["kind"] == "Pod" and body["metadata"]["name"] == "clicks-2-driver":
            kept["body"] = copy.deepcopy(body)
            raise ApiUnavailable("timeout")
        return await create(body)

    world.operator.cluster.create = lose
    world.kubelet.kill_container("clicks-1-driver", "OOMKilled")
    await world.until(lambda: "body" in kept, seconds=120)
    return kept["body"]


async def test_beside_the_next_driver_it_is_removed_and_the_job_runs_on(running, late_pod):
    running.edit(image="registry.example/clicks:3")
    await running.until(lambda: running.status().attempt.number == 3, seconds=200)
    running.api.create(late_pod)
    await running.run(300)
    assert len(running.drivers.living) == 1
    assert running.is_running()
    assert running.driver().manifest["spec"]["image"] == "registry.example/clicks:3"


async def test_beside_a_suspended_job_it_is_removed(running, late_pod):
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended", seconds=200)
    running.api.create(late_pod)
    await running.run(120)
    assert running.drivers.living == []
    assert running.phase() == "Suspended"


async def test_beside_a_paused_job_nothing_is_touched(running, late_pod):
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended", seconds=200)
    running.annotate(paused="true")
    running.api.create(late_pod)
    await running.run(60)
    assert len(running.drivers.living) == 1
