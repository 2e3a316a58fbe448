"""Namespaces that get a label are looked after from then on, and those that lose it are let go."""

import logging

import kmock
import pytest
from kubernetes.aio.client import Configuration
from moorage_testing.kube.emulator import Emulator
from moorage_testing.kube.processes import OperatorProcess, until
from moorage_testing.kube.refusals import ApiRefusal

import moorage_operator.namespaces
import moorage_operator.watches
from moorage_operator.leader import LeaseTimes
from moorage_operator.shards import read_selection

JOB = "StatefulSparkJob"
LABEL = "moorage.dev/jobs"
FOREVER = 3600.0


@pytest.fixture
async def emulator():
    async with Emulator() as found, kmock.Server(found):
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(moorage_operator.namespaces, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(moorage_operator.watches, "_BACKOFFS", ())
    monkeypatch.setattr(moorage_operator.watches, "_LONGEST_BACKOFF", 0.3)


def operator(emulator):
    found = Configuration(host=str(emulator.url).rstrip("/"))
    return OperatorProcess(
        found,
        watch_namespace_selector=f"{LABEL}=yes",
        lease_name="moorage",
        resync=FOREVER,
        relist=FOREVER,
        lease_duration=60.0,
    )


def namespace(emulator, name, label="yes"):
    labels = {LABEL: label} if label else {}
    meta = {"name": name, "labels": labels}
    emulator.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})


def label(emulator, name, value):
    emulator.api.patch("Namespace", None, name, {"metadata": {"labels": {LABEL: value}}})


def generation(emulator, namespace, name="clicks"):
    found = emulator.api.get(JOB, namespace, name) or {}
    return (found.get("status") or {}).get("observedGeneration")


def edit(emulator, namespace, ttl):
    emulator.api.patch(JOB, namespace, "clicks", {"spec": {"ttlAfterFinished": ttl}})


def watches(emulator, namespace):
    """Requests that watch jobs there."""
    return [
        path
        for _, path, query, _ in emulator.raw
        if f"/namespaces/{namespace}/statefulsparkjobs" in path and "watch" in query
    ]


@pytest.mark.scenario(84)
async def test_a_namespace_that_gets_the_label_is_watched_from_then_on(emulator, a_job):
    namespace(emulator, "here")
    namespace(emulator, "later", label="")
    for name in ("here", "later"):
        emulator.api.create(a_job(name))
    async with operator(emulator).running() as process:
        await until(lambda: generation(emulator, "here") == 1)
        assert generation(emulator, "later") is None
        assert not watches(emulator, "later")
        label(emulator, "later", "yes")
        await until(lambda: generation(emulator, "later") == 1)
        # Not by a list alone: what happens there is seen, and here as before.
        await until(lambda: process.app.namespaces.shown() == {"here": True, "later": True})
        for name in ("here", "later"):
            edit(emulator, name, "1h")
        await until(lambda: generation(emulator, "later") == generation(emulator, "here") == 2)
        assert not process.ended


@pytest.mark.scenario(84)
async def test_a_namespace_that_loses_the_label_is_let_go_and_its_jobs_are_left_alone(
    emulator, a_job, caplog
):
    caplog.set_level(logging.INFO)
    for name in ("here", "there"):
        namespace(emulator, name)
        emulator.api.create(a_job(name))
    async with operator(emulator).running() as process:
        app = process.app
        await until(lambda: generation(emulator, "here") == generation(emulator, "there") == 1)
        await until(lambda: app.namespaces.shown() == {"here": True, "there": True})
        await until(lambda: emulator.api.list("Pod", "there"))
        before = emulator.api.list("Pod", "there")
        label(emulator, "there", None)
        await until(lambda: app.namespaces.shown() == {"here": True})
        edit(emulator, "there", "1h")
        edit(emulator, "here", "1h")
        await until(lambda: generation(emulator, "here") == 2)
        assert generation(emulator, "there") == 1
        assert emulator.api.list("Pod", "there") == before
        assert not [place for place, _ in app.watched.versions(JOB, "there")]
        assert list(process.metric("moorage_operator_namespace_watched")) == ['namespace="here"']
        told = [one.getMessage() for one in caplog.records if "is let go" in one.getMessage()]
        assert ["namespace=there jobs=1" in one for one in told] == [True]
        # It comes back, and is looked after as it is by then.
        label(emulator, "there", "yes")
        await until(lambda: generation(emulator, "there") == 2)
        edit(emulator, "there", "2h")
        await until(lambda: generation(emulator, "there") == 3)
        assert (app.trouble(), process.ended) == ("", False)


async def test_without_any_such_namespace_it_is_ready_and_waits(emulator, a_job):
    namespace(emulator, "later", label="")
    emulator.api.create(a_job("later"))
    async with operator(emulator).running() as process:
        await until(lambda: process.app.waits_for() == "" and process.app.leader.leads)
        label(emulator, "later", "yes")
        await until(lambda: generation(emulator, "later") == 1)


async def test_namespaces_that_cannot_be_listed_for_a_while_are_not_let_go(
    emulator, a_job, caplog, monkeypatch
):
    namespace(emulator, "here")
    emulator.api.create(a_job("here"))
    serve = Emulator._serve
    refused: list = []

    async def guarded(self, raw, place, query, body):
        if refused and place[0] == "Namespace" and "labelSelector" in query:
            refused.append(place)
            raise ApiRefusal(403, "Forbidden", "namespaces is forbidden")
        return await serve(self, raw, place, query, body)

    monkeypatch.setattr(Emulator, "_serve", guarded)
    async with operator(emulator).running() as process:
        await until(lambda: generation(emulator, "here") == 1)
        refused.append("from now on")
        await until(lambda: len(refused) > 3)
        edit(emulator, "here", "1h")
        await until(lambda: generation(emulator, "here") == 2)
        assert process.app.namespaces.shown() == {"here": True}
        told = [one for one in caplog.records if "cannot be listed" in one.getMessage()]
        assert len(told) == 1


async def test_others_read_on_the_lease_which_namespaces_are_looked_after_by_now(emulator, a_job):
    """So another operator takes over what this one has let go of."""
    namespace(emulator, "here")
    namespace(emulator, "there", label="")
    emulator.api.create(a_job("here"))

    def selected(name):
        lease = emulator.api.get("Lease", "moorage-system", "moorage")
        return lease is not None and read_selection(lease).has(name, {})

    async with operator(emulator).running() as process:
        process.app.leader._times = LeaseTimes(60.0, 40.0, 0.1)
        await until(lambda: selected("here") and not selected("there"))
        label(emulator, "here", "other")
        label(emulator, "there", "yes")
        await until(lambda: selected("there") and not selected("here"))
