"""The state backend of jobs that name none: the cluster's default, until they have state."""

import pytest
from moorage_testing.world.scene import CHECKPOINTS, SAVEPOINTS, job

pytestmark = [pytest.mark.scenarios, pytest.mark.in_memory("it sets up the operator otherwise")]


def told(world):
    """What the newest driver was told."""
    newest = max(world.drivers.by_pod.values(), key=lambda driver: driver.order.attempt)
    return newest.manifest["spec"]["state"]["backend"]


async def begun(world, default):
    world.restart_operator(state_backend=default)
    world.apply()
    await world.until(world.is_running)
    return world


async def next_start(world, number):
    await world.until(lambda: world.is_running() and world.status().attempt.number == number)


async def test_a_job_keeps_the_default_that_it_began_with_until_it_names_a_backend(world):
    await begun(world, "hashmap")
    assert told(world) == world.status().reconciliation.state_backend == "hashmap"
    world.restart_operator(state_backend="rocksdb")
    world.edit(ttlAfterFinished="2h")
    await world.run(60)
    assert world.status().attempt.number == 1
    assert world.condition("Reconciled") == "True/UpToDate"
    world.edit(image="registry.example/clicks:2")
    await next_start(world, 2)
    assert told(world) == "hashmap"
    world.edit(state__backend="rocksdb")
    await next_start(world, 3)
    assert told(world) == world.status().reconciliation.state_backend == "rocksdb"
    world.edit(state__backend=None)
    await world.run(60)
    assert world.status().attempt.number == 3


async def test_a_default_changes_no_job_whose_object_older_definitions_filled_in(world):
    state = {"checkpointDir": CHECKPOINTS, "savepointDir": SAVEPOINTS, "backend": "rocksdb"}
    world.apply(job(state=state))
    await world.until(world.is_running)
    world.restart_operator(state_backend="hashmap")
    await world.run(60)
    world.edit(ttlAfterFinished="2h")
    await world.run(60)
    assert world.status().attempt.number == 1
    assert told(world) == "rocksdb"


async def test_a_status_that_was_wiped_says_nothing_and_its_driver_does(world):
    await begun(world, "hashmap")
    world.restart_operator(state_backend="rocksdb")
    world.api.patch(
        "StatefulSparkJob", world.namespace, "clicks", {"status": None}, subresource="status"
    )
    world.edit(ttlAfterFinished="2h")
    await world.run(60)
    assert world.status().attempt.number == 1
    assert world.status().reconciliation.state_backend == "hashmap"


async def test_a_job_that_never_ran_follows_the_default_that_is_put_right(world):
    world.drivers.habits.fail_restore = "user_error"
    world.restart_operator(state_backend="acme:Missing")
    world.apply()
    await world.until(lambda: world.phase() == "Blocked")
    assert told(world) == "acme:Missing"
    world.drivers.habits.fail_restore = ""
    world.restart_operator(state_backend="hashmap")
    world.annotate(restart="1")
    await world.until(world.is_running)
    assert told(world) == "hashmap"
