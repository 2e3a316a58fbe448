"""What goes wrong in one namespace goes wrong there alone, and passes when it is put right."""

import asyncio

import attrs
import kmock
import pytest
from kubernetes.aio.client import Configuration
from moorage_testing.kube.emulator import Emulator
from moorage_testing.kube.processes import OperatorProcess, until
from moorage_testing.kube.refusals import ApiRefusal

import moorage_operator.app
import moorage_operator.watches
from moorage_operator.leader import LeaseTimes

JOB = "StatefulSparkJob"
FOREVER = 3600.0


@attrs.define(kw_only=True)
class Guarded(Emulator):
    """An API server that refuses what a test wants it to."""

    refused: dict = attrs.field(factory=dict, init=False)
    """By namespace: which requests (`all`, or `watch`) are forbidden."""

    async def _serve(self, raw, place, query, body):
        what = self.refused.get(place[1])
        if what == "all" or (what == "watch" and query.get("watch") == "true"):
            raise ApiRefusal(403, "Forbidden", f"forbidden: namespace={place[1]}", {})
        return await Emulator._serve(self, raw, place, query, body)


@pytest.fixture
async def emulator():
    async with Guarded() as found, kmock.Server(found):
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Watches that end often, and are begun anew soon; nothing is listed but for what failed."""
    usual = moorage_operator.watches._settings

    def settings(selector):
        found = usual(selector)
        found.watching.server_timeout = 1
        return found

    monkeypatch.setattr(moorage_operator.watches, "_settings", settings)
    monkeypatch.setattr(moorage_operator.watches, "_BACKOFFS", ())
    monkeypatch.setattr(moorage_operator.watches, "_LONGEST_BACKOFF", 0.3)
    monkeypatch.setattr(moorage_operator.app, "_LIST_AGAIN", 0.3)


def operator(emulator, *namespaces):
    found = Configuration(host=str(emulator.url).rstrip("/"))
    return OperatorProcess(
        found, watch_namespaces=namespaces, resync=FOREVER, relist=FOREVER, lease_duration=60.0
    )


def generation(emulator, namespace, name="clicks"):
    found = emulator.api.get(JOB, namespace, name) or {}
    return (found.get("status") or {}).get("observedGeneration")


def edit(emulator, namespace, ttl):
    emulator.api.patch(JOB, namespace, "clicks", {"spec": {"ttlAfterFinished": ttl}})


async def test_a_namespace_that_becomes_forbidden_stops_no_other_and_is_taken_up_again(
    emulator, a_job
):
    for namespace in ("gone", "here"):
        emulator.api.create(a_job(namespace))
    async with operator(emulator, "gone", "here").running() as process:
        app = process.app
        await until(lambda: generation(emulator, "gone") == generation(emulator, "here") == 1)
        await until(lambda: app.namespaces.shown() == {"gone": True, "here": True})
        emulator.refused["gone"] = "all"
        await until(lambda: app.namespaces.shown() == {"gone": False, "here": True})
        edit(emulator, "here", "1h")
        await until(lambda: generation(emulator, "here") == 2)
        emulator.api.create(a_job("here", "second"))
        await until(lambda: generation(emulator, "here", "second") == 1)
        assert (app.waits_for(), app.trouble(), process.ended) == ("", "", False)
        series = process.metric("moorage_operator_namespace_watched")
        assert series == {'namespace="gone"': 0.0, 'namespace="here"': 1.0}
        edit(emulator, "gone", "1h")
        del emulator.refused["gone"]
        await until(lambda: generation(emulator, "gone") == 2)
        await until(lambda: app.namespaces.shown() == {"gone": True, "here": True})
        edit(emulator, "gone", "2h")
        await until(lambda: generation(emulator, "gone") == 3)


async def test_an_operator_that_starts_beside_a_forbidden_namespace_works_in_the_others(
    emulator, a_job
):
    for namespace in ("gone", "here"):
        emulator.api.create(a_job(namespace))
    emulator.refused["gone"] = "all"
    async with operator(emulator, "gone", "here").running() as process:
        await until(lambda: generation(emulator, "here") == 1)
        assert process.app.waits_for() == ""
        assert generation(emulator, "gone") is None
        del emulator.refused["gone"]
        await until(lambda: generation(emulator, "gone") == 1)


async def test_a_watch_that_is_forbidden_is_no_dead_watch(emulator, a_job):
    """A new process could not watch either; lists go on, and the others run on."""
    emulator.api.create(a_job("gone"))
    emulator.api.create(a_job("here"))
    emulator.refused["gone"] = "watch"
    async with operator(emulator, "gone", "here").running() as process:
        process.app.canary.patience = 0.1
        await until(lambda: process.app.namespaces.problem("gone").startswith("watch of"))
        edit(emulator, "gone", "1h")
        await until(lambda: generation(emulator, "gone") == 2)
        assert process.app.trouble() == ""
        edit(emulator, "here", "1h")
        await until(lambda: generation(emulator, "here") == 2)


async def test_an_operator_that_may_list_nothing_is_not_ready(emulator, a_job):
    emulator.api.create(a_job("gone"))
    emulator.refused["gone"] = "all"
    async with operator(emulator, "gone").running() as process:
        await until(lambda: process.app.leader.leads)
        assert "no namespace" in process.app.waits_for()
        del emulator.refused["gone"]
        await until(lambda: process.app.waits_for() == "")
        await until(lambda: generation(emulator, "gone") == 1)


async def test_the_lease_is_renewed_while_the_first_list_takes_longer_than_it_lasts(
    emulator, a_job, monkeypatch
):
    """The list is answered only after the lease was renewed three times."""
    serve = Emulator._serve

    def renewals():
        return sum(method == "PATCH" and "/leases/" in path for method, path, _, _ in emulator.raw)

    async def slow(self, raw, place, query, body):
        if place[0] == "StatefulSparkSnapshot" and query.get("watch") != "true":
            async with asyncio.timeout(20.0):
                while renewals() < 3:  # noqa: ASYNC110  what is waited for is another request
                    await asyncio.sleep(0.02)
        return await serve(self, raw, place, query, body)

    monkeypatch.setattr(Emulator, "_serve", slow)
    emulator.api.create(a_job("here"))
    async with operator(emulator, "here").running() as process:
        process.app.leader._times = LeaseTimes(15.0, 10.0, 0.3)
        await until(lambda: generation(emulator, "here") == 1)
        assert process.app.leader.leads
