"""A job that runs and gets nowhere, and the clocks of a cluster."""

import pytest

from moorage_operator.ports import Forbidden

pytestmark = pytest.mark.scenarios

QUICK = {"noProgressFor": "60s", "noCheckpointFor": "1h"}


def health(world, **rules):
    world.edit(failurePolicy={"health": {**QUICK, **rules}})


def found(world):
    return {one.check: one.then for one in world.status().health.findings}


async def hang(world):
    """The driver hangs, and another one takes over; or not."""
    before = len(world.drivers.by_pod)
    world.drivers.newest.hung = True
    await world.run(130)
    return len(world.drivers.by_pod) - before


@pytest.mark.scenario(77)
async def test_a_job_that_hangs_goes_on_from_its_newest_checkpoint_as_often_as_its_budget_says(
    running,
):
    health(running, budget={"actions": 2, "window": "20m"})
    await running.run(5)
    assert [await hang(running) for _ in range(3)] == [1, 1, 0]
    assert found(running) == {"NoProgress": "Withheld"}
    assert running.condition("Degraded") == "True/NoProgress"
    told = running.events()
    assert told.count("HealthActionWithheld") == 1
    running.restart_operator()
    await running.run(300)
    assert len(running.drivers.by_pod) == 3, "what was done stands in the status"
    assert running.events().count("HealthActionWithheld") == 1
    for restored in running.drivers.restored:
        assert restored.epoch == restored.newest
    await running.until(lambda: running.is_running() and not running.drivers.newest.hung, 1200)
    assert found(running) == {}


@pytest.mark.scenario(77)
async def test_a_job_that_hangs_since_its_store_was_away_is_begun_anew_when_that_is_back(running):
    health(running)
    await running.run(5)
    running.buckets.down = True
    await running.run(70)
    assert running.condition("StorageReachable") == "False/StoreUnavailable"
    running.drivers.newest.hung = True
    await running.run(600)
    assert len(running.drivers.by_pod) == 1, "another driver could not restore"
    running.buckets.down = False
    await running.until(lambda: len(running.drivers.by_pod) == 2, 400)
    await running.until(running.is_running)
    assert running.condition("StorageReachable") == "True/Reachable"


@pytest.mark.scenario(78)
async def test_what_is_only_to_be_told_is_told_and_left_alone(running):
    health(running, actions={"noProgress": "Alert"})
    await running.run(5)
    assert await hang(running) == 0
    assert found(running) == {"NoProgress": "Alert"}
    running.drivers.newest.hung = False
    await running.run(60)
    assert found(running) == {}
    assert running.condition("Degraded") == "False/Healthy"


@pytest.mark.scenario(78)
async def test_keys_that_are_skewed_are_told_and_no_reason_to_begin_anew(running):
    """What holds the others up is in the data: another driver would have it, too."""
    health(running, actions={"noProgress": "Restart", "noCheckpoint": "Restart"})
    habits = running.drivers.habits
    habits.arrivals["clicks"], habits.hot = 1_900.0, 5.0
    await running.until(lambda: found(running) == {"SkewedKeys": "Alert"}, 600)
    [said] = running.status().health.findings
    assert "subtask 1 of counts (key groups 8-15) has 5.0 times the mean of rows" in said.message
    assert running.condition("Degraded") == "False/Healthy"
    assert running.condition("Ready") == "True/Running"
    running.restart_operator()
    habits.hot = 3.5
    await running.run(120)
    assert found(running) == {"SkewedKeys": "Alert"}, "it does not come and go"
    habits.hot = 1.5
    await running.until(lambda: found(running) == {}, 120)
    await running.run(60)
    assert running.events().count("SkewedKeys") == 1
    assert len(running.drivers.by_pod) == 1
    assert running.status().health.actions == ()


async def test_skewed_keys_of_a_stream_with_time_left_are_nobodys_trouble(running):
    health(running)
    running.drivers.habits.arrivals["clicks"], running.drivers.habits.hot = 600.0, 5.0
    await running.run(600)
    assert found(running) == {}


@pytest.mark.scenario(79)
@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
async def test_a_clock_that_is_set_is_a_word_and_nothing_else(running, ahead):
    health(running)
    await running.run(60)
    for off in (ahead, 0.0):
        running.drivers.habits.clock_ahead = off
        await running.run(120)
    assert len(running.drivers.by_pod) == 1
    assert running.status().health.findings == ()
    assert running.events().count("ClockStepped") == 2
    assert running.condition("Ready") == "True/Running"


@pytest.mark.scenario(78)
async def test_executors_that_are_lost_without_end_are_told_and_forgotten_when_it_is_over(running):
    running.edit(
        failurePolicy={"executorFailures": {"max": 6, "window": "5m"}},
        checkpoint={"interval": "3600s"},
    )
    await running.until(lambda: running.is_running() and len(running.drivers.by_pod) == 2)
    for _ in range(5):
        running.driver().lose_executor()
        await running.run(10)
    await running.run(40)
    assert found(running) == {"ExecutorLoop": "Alert", "RestoreLoop": "Alert"}
    running.annotate(checkpoint="now")
    await running.run(400)
    assert found(running) == {}
    assert len(running.drivers.by_pod) == 2


@pytest.mark.in_memory("there no calls can be made to fail")
async def test_what_hangs_is_not_ended_for_a_nonce_whose_version_cannot_be_kept(running):
    """Nothing could be started in its place; and it may get on by itself."""
    health(running)
    await running.run(5)
    refused = {"kind": "ControllerRevision", "verb": "create", "times": -1}
    running.operator.cluster.fail(Forbidden("quota"), **refused)
    running.drivers.newest.hung = True
    running.edit(restore={"mode": "Latest", "nonce": 1})
    await running.run(300)
    assert running.drivers.newest.alive
    assert running.condition("Degraded") == "True/ActionFailed"
    assert "quota" in running.status().condition("Degraded").message
    running.operator.cluster.heal()
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running(), 300)
    assert running.condition("Reconciled") == "True/UpToDate"


async def test_a_job_that_is_suspended_while_it_hangs_is_not_begun_anew(running):
    health(running)
    running.edit(savepoint={"timeout": "90s"})
    await running.run(5)
    running.drivers.newest.hung = True
    await running.run(30)
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended", 600)
    assert len(running.drivers.by_pod) == 1
    assert "NoProgress" not in running.events()
