"""SIGTERM, at whatever the process is: it ends in time, with status 0, and lets the next one in."""

import asyncio
import signal

import attrs
import kmock
import pytest
from kubernetes.aio.client import Configuration
from moorage_testing.kube.emulator import Emulator
from moorage_testing.kube.processes import OperatorProcess, start_operator, until
from moorage_testing.kube.refusals import ApiRefusal

OTHER = {"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": "2026-03-01T12:00:00Z"}


@attrs.define(kw_only=True)
class Slow(Emulator):
    """An API server that takes its time about the Lease, and may lack our definitions."""

    latency: float = attrs.field(default=0.0, init=False)
    begun: list = attrs.field(factory=list, init=False)
    """Requests about the Lease, by method."""
    undefined: bool = attrs.field(default=False, init=False)

    async def _serve(self, raw, place, query, body):
        if place[0] == "Lease":
            self.begun.append(raw.method)
            await asyncio.sleep(self.latency)
        if self.undefined and place[0] == "StatefulSparkJob":
            raise ApiRefusal(404, "NotFound", "the server could not find the resource", {})
        return await Emulator._serve(self, raw, place, {**query, "timeoutSeconds": "1"}, body)


@pytest.fixture
async def emulator():
    async with Slow() as found, kmock.Server(found):
        yield found


def operator(emulator, **settings):
    return OperatorProcess(Configuration(host=str(emulator.url).rstrip("/")), **settings)


def holders(emulator):
    return [lease["spec"].get("holderIdentity") for lease in emulator.api.list("Lease")]


async def ended(process, seconds=15.0):
    """As on SIGTERM; raises what would be an exit status other than 0."""
    process.stop.set()
    await asyncio.wait_for(asyncio.shield(process.task), seconds)


@pytest.mark.parametrize("requests", [1, 2, 3, 4, 5])
async def test_sigterm_in_any_request_about_the_lease_ends_the_process_well(emulator, requests):
    """Reading, taking, reading again, renewing: each is under way when the word comes."""
    emulator.latency = 0.6
    async with operator(emulator).running() as process:
        await until(lambda: len(emulator.begun) >= requests)
        await ended(process)
    # What was cut short on its way to the server may still arrive there.
    await until(lambda: not any(holders(emulator)) or requests <= 2)


async def test_sigterm_in_a_process_that_stands_by_leaves_the_lease_alone(emulator):
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    meta = {"name": "moorage-operator", "namespace": "moorage-system"}
    emulator.api.create({**kind, "metadata": meta, "spec": OTHER})
    async with operator(emulator).running() as process:
        assert "lease" in process.app.waits_for()
        await until(lambda: process.app.waits_for() == "")
        assert not process.app.leader.leads
        await ended(process, seconds=3.0)
    assert holders(emulator) == ["other"]


async def test_a_leader_that_is_ended_while_the_lease_is_silent_ends_in_time(emulator):
    async with operator(emulator, lease_duration=60.0).running() as process:
        await until(lambda: process.app.namespaces.primed)
        emulator.latency = 60.0
        await ended(process)


async def test_sigterm_before_the_api_server_has_ever_answered_ends_the_process_well(tmp_path):
    process = await start_operator(tmp_path, "http://127.0.0.1:9", "--health-port", "0")
    try:
        assert process.stderr is not None
        line = await asyncio.wait_for(process.stderr.readline(), 60)
        assert b"the cluster's id cannot be read" in line
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 20)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0


async def test_a_part_of_kopf_that_dies_ends_the_process(emulator, tmp_path, a_job):
    """Its other parts go on and do nothing: only a new process watches again."""
    flags = ("--cluster-id", "test", "--health-port", "0")
    process = await start_operator(tmp_path, emulator.url, *flags)
    try:
        emulator.api.create(a_job("here"))
        seen = emulator.api.get
        await until(lambda: seen("StatefulSparkJob", "here", "clicks").get("status"), seconds=60.0)
        emulator.undefined = True
        _, lines = await asyncio.wait_for(process.communicate(), 40)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 1
    assert b"the watches ended, and the process must start anew" in lines
