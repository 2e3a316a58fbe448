"""What a fleet costs the API server, in requests; its times are told by the benchmark."""

import asyncio

from benchmarks.scale.operator import Fleet


async def settled(jobs):
    fleet = Fleet(jobs)
    setattr(asyncio.get_running_loop(), "time", lambda: fleet.seconds)  # noqa: B010
    await fleet.settle()
    await fleet.begin()
    await fleet.run(360, fleet.checkpoint)
    fleet.cluster.requests = 0
    return fleet


async def requests(jobs, each=lambda _: None, seconds=480):
    fleet = await settled(jobs)
    await fleet.run(seconds, lambda: each(fleet))
    return fleet.cluster.requests


async def test_jobs_that_change_nothing_cost_no_request():
    cost = await requests(4)
    assert cost == 0


async def test_a_checkpoint_a_minute_costs_one_write_in_five_minutes():
    cost = await requests(4, Fleet.checkpoint, seconds=3010)
    assert 0 < cost <= 4 * 10


async def test_a_restart_reads_two_objects_of_a_job_and_none_of_its_snapshots():
    fleet = await settled(4)
    await fleet.begin()
    assert fleet.cluster.requests <= 4 * 2


async def test_a_job_that_changes_nothing_is_not_decided_upon_anew(monkeypatch):
    fleet, decided = await settled(2), []
    decide = fleet.reconciler._decide_job

    def counted(world):
        decided.append(world)
        return decide(world)

    monkeypatch.setattr(fleet.reconciler, "_decide_job", counted)
    await fleet.run(480)
    assert len(decided) <= 2 * 2
    decided.clear()
    fleet.touch()
    await fleet.run(3)
    assert len(decided) == 2
