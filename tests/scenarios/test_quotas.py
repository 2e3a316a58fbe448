"""A namespace whose ResourceQuota has no room for pods that are to come."""

import pytest
from moorage_testing.world import World
from moorage_testing.world.scene import job

pytestmark = [
    pytest.mark.scenarios,
    pytest.mark.in_memory("there it sets what a quota's controller would"),
]


def quota(world: World, **left: str) -> None:
    """A quota with so much left, by resource with _ for a dot."""
    names = {name.replace("_", "."): amount for name, amount in left.items()}
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "compute", "namespace": world.namespace},
        "spec": {"hard": names},
        "status": {"hard": names, "used": dict.fromkeys(names, "0")},
    }
    world.api.apply(body, manager="quota")


def said(world: World, kind: str) -> str:
    found = world.status().condition(kind)
    return found.message if found else ""


async def test_a_start_without_room_waits_and_says_what_is_missing(world):
    quota(world, requests_memory="2Gi")
    world.apply()
    await world.until(lambda: world.condition("Progressing") == "False/QuotaExceeded")
    assert "ResourceQuota compute lacks requests.memory" in said(world, "Progressing")
    await world.run(60)
    assert world.pods() == []
    assert world.events().count("QuotaExceeded") == 1
    quota(world, requests_memory="64Gi")
    await world.until(world.is_running)


async def test_with_room_for_some_executors_it_begins_with_fewer(world):
    quota(world, pods="2")
    world.apply(job(scaling={"parallelism": 4, "maxParallelism": 16}))
    await world.until(world.is_running)
    assert "QuotaExceeded" in world.events()


async def test_an_edit_without_room_stops_nothing_until_there_is(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    quota(world, requests_memory="1Gi")
    world.edit(driver={"memory": "12Gi"})
    await world.until(lambda: world.condition("Reconciled") == "False/QuotaExceeded")
    assert "requests.memory" in said(world, "Reconciled")
    await world.run(60)
    assert world.is_running()
    assert world.status().attempt.number == 1
    quota(world, requests_memory="64Gi")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2)


async def test_an_edit_that_asks_for_no_more_needs_no_room(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    quota(world, requests_memory="0", pods="0")
    world.edit(image="registry.example/clicks:2")
    await world.until(lambda: world.status().operation is not None)
    assert world.status().operation.type == "Upgrade"
