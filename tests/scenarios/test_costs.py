"""What a fleet at rest costs the API server, in requests a minute."""

import collections

import pytest
from moorage_testing.world.scene import job

pytestmark = pytest.mark.scenarios
VERBS = ("get", "list", "apply", "create", "patch", "delete", "replace_status")


async def requests_a_minute(world, minutes=4.0, rest=60.0):
    """By kind, once nothing happens any more but what the stream does."""
    await world.run(rest)
    counts: collections.Counter[str] = collections.Counter()
    cluster = world.operator.cluster

    def counted(ask):
        async def asked(what, *args, **kwargs):
            counts[what if isinstance(what, str) else what["kind"]] += 1
            return await ask(what, *args, **kwargs)

        return asked

    for verb in VERBS:
        setattr(cluster, verb, counted(getattr(cluster, verb)))
    await world.run(60.0 * minutes)
    return {kind: count / minutes for kind, count in counts.items()}


@pytest.mark.in_memory("time passes there as it does")
async def test_twenty_completed_snapshots_cost_no_more_than_their_job_alone(running):
    alone = await requests_a_minute(running)
    running.restart_operator()
    for number in range(20):
        running.snapshot(f"s{number}")
    await running.until(
        lambda: (
            {(s.get("status") or {}).get("state") for s in running.snapshots().values()}
            == {"Completed"}
        ),
        seconds=900,
    )
    beside = await requests_a_minute(running)
    assert sum(beside.values()) <= sum(alone.values()) + 2 <= 20, (alone, beside)


@pytest.mark.in_memory("time passes there as it does")
async def test_a_job_that_once_had_a_store_task_rests_as_cheaply_as_any_other(running):
    alone = await requests_a_minute(running)
    running.restart_operator()
    running.edit(image="registry.example/clicks:2", upgrade={"preflight": True})
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    await running.until(lambda: running.phase() == "Stable")
    after = await requests_a_minute(running)
    assert after.get("Pod", 0) <= alone.get("Pod", 0), (alone, after)


@pytest.mark.in_memory("time passes there as it does")
@pytest.mark.parametrize("interval", ["60s", "1s"])
async def test_a_short_checkpoint_interval_costs_no_more_than_a_long_one(world, interval):
    world.apply(job(checkpoint={"interval": interval}))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    await world.run(60)
    assert sum((await requests_a_minute(world)).values()) <= 20


@pytest.mark.in_memory("time passes there as it does")
async def test_a_savepoint_that_takes_long_is_not_asked_of_the_api_server_all_the_time(running):
    running.drivers.habits.snapshot = 400.0
    running.snapshot("one")

    def state():
        return (running.snapshots()["one"].get("status") or {}).get("state")

    await running.until(lambda: state() == "InProgress")
    meanwhile = await requests_a_minute(running, minutes=2, rest=30.0)
    assert state() == "InProgress"
    assert sum(meanwhile.values()) <= 10, meanwhile


async def test_a_snapshot_says_what_it_is_needed_for_as_soon_as_that_changes(running):
    running.snapshot("one")

    def shown():
        return (running.snapshots()["one"].get("status") or {}).get("inUseBy")

    def state():
        return (running.snapshots()["one"].get("status") or {}).get("state")

    await running.until(lambda: state() == "Completed")
    assert not shown()
    restore = {"mode": "Snapshot", "snapshotName": "one", "nonce": 1}
    running.edit(restore=restore)
    await running.until(lambda: shown() and "spec.restore of clicks" in shown(), seconds=10)
    running.delete()
    await running.until(lambda: running.object() is None)
    await running.until(lambda: not shown(), seconds=10)
