"""What a fleet costs the API server, in requests; its times are told by the benchmark."""

import asyncio

from benchmarks.scale.operator import Fleet

from moorage_operator.loop import Reconciler


async def settled(jobs):
    fleet = Fleet(jobs=jobs)
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


async def test_a_restart_reads_lists_and_one_secret_of_each_job():
    fleet = await settled(4)
    await fleet.begin()
    pages_of_jobs_snapshots_pods_and_revisions = 1 + 1 + 2 + 1
    assert fleet.cluster.requests == pages_of_jobs_snapshots_pods_and_revisions + 4


async def test_a_restart_has_passes_of_jobs_and_of_no_snapshot_that_shows_all_there_is(monkeypatch):
    fleet, looked = await settled(2), []
    where = ("StatefulSparkSnapshot", "bench", f"{fleet.refs[1].name}-s7")
    fleet.cluster.api.patch(*where, {"metadata": {"labels": {"moorage.dev/state": None}}})
    await fleet.run(5)
    labelled = fleet.cluster.api.get(*where)["metadata"]["labels"]
    assert labelled["moorage.dev/state"] == "Completed"
    reconcile = Reconciler.reconcile

    async def noted(self, ref):
        looked.append(ref)
        return await reconcile(self, ref)

    monkeypatch.setattr(Reconciler, "reconcile", noted)
    await fleet.begin()
    assert sorted(looked) == sorted(fleet.refs)


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


async def test_a_checkpoint_a_minute_is_decided_upon_once_in_five_minutes(monkeypatch):
    fleet, decided = await settled(2), []
    decide = fleet.reconciler._decide_job

    def counted(world):
        decided.append(world)
        return decide(world)

    monkeypatch.setattr(fleet.reconciler, "_decide_job", counted)
    await fleet.run(3010, fleet.checkpoint)
    assert 2 * 8 <= len(decided) <= 2 * 11
