"""Several operators at one API server: each has its jobs, none has another's, and jobs may move."""

import asyncio
from contextlib import AsyncExitStack

import kmock
import pytest
from kubernetes.aio.client import Configuration
from moorage_testing.kube.emulator import Emulator
from moorage_testing.kube.processes import OperatorProcess, until

JOB, SNAPSHOT = "StatefulSparkJob", "StatefulSparkSnapshot"
SHARD = "moorage.dev/shard"
HOME = "moorage-system"


@pytest.fixture
async def emulator():
    async with Emulator() as found, kmock.Server(found):
        yield found


@pytest.fixture
def api(emulator):
    return emulator.api


@pytest.fixture
def journals():
    """What each operator writes."""
    return {}


@pytest.fixture
async def start(emulator, journals):
    """Start an operator of a shard; they end with the test."""
    async with AsyncExitStack() as stack:

        async def started(shard="", shards=("a", "b"), **settings):
            found = Configuration(host=str(emulator.url).rstrip("/"))
            process = OperatorProcess(found, shard=shard, shards=shards, **settings)
            await stack.enter_async_context(process.running())
            journals[process] = journal_of(process.cluster)
            return process

        yield started


def journal_of(cluster):
    """The paths of what a client writes from now on, but for Leases and Events."""
    found, send = [], cluster._send

    async def sent(method, path, *rest, **more):
        if method != "GET" and "/leases" not in path and "/events" not in path:
            found.append(path)
        return await send(method, path, *rest, **more)

    cluster._send = sent
    return found


async def end(process):
    process.stop.set()
    await asyncio.gather(process.task, return_exceptions=True)


def labels(shard):
    return {"labels": {SHARD: shard}} if shard else {}


def lease_of(api, name="clicks"):
    """Whose a job is; of one that is being taken over, still the former one's."""
    said = ((api.get(JOB, "here", name) or {}).get("status") or {}).get("operator") or {}
    return said.get("takenFrom") or said.get("lease")


def make_snapshot(api, name, **meta):
    kind = {"apiVersion": "moorage.dev/v1alpha1", "kind": SNAPSHOT}
    spec = {"jobRef": {"name": "clicks"}, "type": "Savepoint"}
    api.create({**kind, "metadata": {"name": name, "namespace": "here", **meta}, "spec": spec})


def label_of(api, name):
    return (api.get(SNAPSHOT, "here", name)["metadata"].get("labels") or {}).get(SHARD)


def known(process, kind=JOB):
    return sorted(ref.name for ref in process.app.reconciler._memory if ref.kind == kind)


async def test_each_shard_has_its_jobs_and_asks_the_server_for_no_others(
    emulator, api, start, a_job
):
    for name, shard in (("one", "a"), ("two", "b"), ("three", ""), ("four", "typo")):
        api.create(a_job("here", name, **labels(shard)))
    rest, first, second = await start(), await start("a"), await start("b")
    await until(lambda: all(lease_of(api, name) for name in ("one", "two", "three", "four")))
    assert lease_of(api, "one") == f"{HOME}/moorage-operator-a"
    assert lease_of(api, "two") == f"{HOME}/moorage-operator-b"
    assert lease_of(api, "three") == lease_of(api, "four") == f"{HOME}/moorage-operator"
    wanted = [["four", "three"], ["one"], ["two"]]
    await until(lambda: [known(one) for one in (rest, first, second)] == wanted)
    plurals = ("statefulsparkjobs", "statefulsparksnapshots", "pods")
    lists = [
        query.get("labelSelector", "")
        for method, path, query, _ in emulator.raw
        if method == "GET" and path.endswith(plurals)
    ]
    assert all(SHARD in one or one.startswith("moorage.dev/job=") for one in lists)
    leading = first.metric("moorage_operator_leading")
    assert leading == {'shard=""': 0.0, 'shard="a"': 1.0, 'shard="b"': 0.0}


async def test_when_a_shards_leader_ends_its_next_one_leads_and_no_other_shard_does(
    api, start, a_job
):
    api.create(a_job("here", **labels("a")))
    other, first, next_one = await start("b"), await start("a"), await start("a")
    await until(lambda: lease_of(api) is not None)
    leader, follower = (first, next_one) if first.app.leader.leads else (next_one, first)
    await end(leader)
    await until(lambda: follower.app.leader.leads)
    api.patch(JOB, "here", "clicks", {"spec": {"ttlAfterFinished": "1h"}})
    await until(lambda: api.get(JOB, "here", "clicks")["status"]["observedGeneration"] == 2)
    assert lease_of(api) == f"{HOME}/moorage-operator-a"
    assert known(other) == []


@pytest.mark.scenario(84)
async def test_a_job_that_moves_is_let_go_and_then_taken_over_with_its_snapshots(
    api, start, journals, a_job
):
    api.create(a_job("here", **labels("a")))
    make_snapshot(api, "s1", labels={SHARD: "a", "moorage.dev/job": "clicks"})
    first, second = await start("a"), await start("b")
    await until(lambda: lease_of(api) == f"{HOME}/moorage-operator-a")
    await until(lambda: known(first, SNAPSHOT) == ["s1"])
    api.patch(JOB, "here", "clicks", {"metadata": {"labels": {SHARD: "b"}}})
    began = asyncio.get_running_loop().time()
    await until(lambda: known(first) == [])
    assert lease_of(api) == f"{HOME}/moorage-operator-a"
    journals[first].clear()
    await until(lambda: lease_of(api) == f"{HOME}/moorage-operator-b")
    waited = asyncio.get_running_loop().time() - began
    assert waited >= second.settings.lease_duration
    await until(lambda: label_of(api, "s1") == "b")
    await until(lambda: (known(first, SNAPSHOT), known(second, SNAPSHOT)) == ([], ["s1"]))
    # All that it did after it let go: it led the snapshot to where its job went.
    assert {path.rpartition("/")[2] for path in journals[first]} <= {"s1"}
    assert not first.metric("moorage_job_phase")
    await until(lambda: second.metric("moorage_job_phase"))


async def test_a_persons_snapshot_without_a_label_finds_the_shard_of_its_job(api, start, a_job):
    api.create(a_job("here", **labels("a")))
    rest, first = await start(), await start("a")
    await until(lambda: lease_of(api) is not None)
    make_snapshot(api, "mine")
    await until(lambda: label_of(api, "mine") == "a")
    await until(lambda: (api.get(SNAPSHOT, "here", "mine").get("status") or {}).get("state"))
    assert known(first, SNAPSHOT) == ["mine"]
    await until(lambda: known(rest, SNAPSHOT) == [])


@pytest.mark.scenario(84)
async def test_two_operators_set_up_for_the_same_jobs_never_both_act(api, start, journals, a_job):
    api.create(a_job("here"))
    first = await start(shards=(), lease_name="one")
    await until(lambda: lease_of(api) == f"{HOME}/one")
    second = await start(shards=(), lease_name="two")
    waits = second.app.reconciler._ownership._held
    await until(lambda: len(waits) == 1)

    def told():
        for one in waits:
            waits[one] = -1e9
        return [e for e in api.list("Event") if e["reason"] == "HeldByAnotherOperator"]

    await until(told)
    assert "lease=moorage-system/one own=moorage-system/two" in told()[0]["message"]
    # Told once it was seen for longer than the Lease lasts: its holder lives.
    assert (lease_of(api), journals[second]) == (f"{HOME}/one", [])
    await end(first)
    await until(lambda: lease_of(api) == f"{HOME}/two")


async def test_a_new_shard_takes_its_jobs_from_the_rest_once_that_knows_of_it(
    api, start, journals, a_job
):
    api.create(a_job("here", **labels("a")))
    old = await start(shards=())
    await until(lambda: lease_of(api) == f"{HOME}/moorage-operator")
    new = await start("a", shards=("a",))
    await until(lambda: new.app.reconciler._ownership.waiting == 1)
    await end(old)
    rest = await start(shards=("a",))
    await until(lambda: lease_of(api) == f"{HOME}/moorage-operator-a")
    assert (known(rest), journals[rest]) == ([], [])
    # And back: the shard is given up.
    await end(new)
    await end(rest)
    await start(shards=())
    await until(lambda: lease_of(api) == f"{HOME}/moorage-operator")
