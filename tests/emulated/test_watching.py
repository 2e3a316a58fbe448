"""Kopf in its thread: where its watches begin, what they tell, and how they end."""

import asyncio
import logging
from contextlib import asynccontextmanager

import attrs
import kmock
import pytest
from kubernetes.aio.client import Configuration
from moorage_testing.kube.emulator import Emulator
from moorage_testing.kube.processes import OperatorProcess, until
from moorage_testing.kube.refusals import ApiRefusal

import moorage_operator.watches
from moorage_operator.shards import Selection
from moorage_operator.watches import NOTHING, Watching

JOB, SNAPSHOT, POD = "StatefulSparkJob", "StatefulSparkSnapshot", "Pod"
FOREVER = 3600.0


@attrs.define(kw_only=True)
class Forgetful(Emulator):
    """An API server that may refuse a kind, or have forgotten what it showed last."""

    refused: str = attrs.field(default="", init=False)
    undefined: bool = attrs.field(default=False, init=False)
    away: bool = attrs.field(default=False, init=False)
    expired: str = attrs.field(default="", init=False)
    told: int = attrs.field(default=0, init=False)
    """How often it said that it has forgotten."""

    async def _serve(self, raw, place, query, body):
        if self.away:
            raise ApiRefusal(503, "ServiceUnavailable", "away", {})
        if self.undefined and place[0] in (JOB, SNAPSHOT):
            raise ApiRefusal(404, "NotFound", "the server could not find the resource", {})
        if place[0] == self.refused:
            raise ApiRefusal(403, "Forbidden", f"forbidden: kind={place[0]}", {})
        return await Emulator._serve(self, raw, place, query, body)

    async def _watch(self, raw, kind, namespace, query):
        if kind == self.expired:
            self.told += 1
            query = {**query, "resourceVersion": "-1"}
        return await Emulator._watch(self, raw, kind, namespace, query)


@pytest.fixture
async def emulator():
    async with Forgetful() as found, kmock.Server(found):
        yield found


@pytest.fixture
def found(emulator):
    return Configuration(host=str(emulator.url).rstrip("/"))


@pytest.fixture
def quick(monkeypatch):
    """Watches that end often, and are begun anew soon."""
    usual = moorage_operator.watches._settings

    def settings(selector):
        found = usual(selector)
        found.watching.server_timeout = 1
        return found

    monkeypatch.setattr(moorage_operator.watches, "_settings", settings)
    monkeypatch.setattr(moorage_operator.watches, "_BACKOFFS", ())
    monkeypatch.setattr(moorage_operator.watches, "_LONGEST_BACKOFF", 0.1)


@asynccontextmanager
async def watching(found, *namespaces):
    """What watches show, which of them have begun, and what is refused."""
    shown, begun, refused = [], [], []
    watches = Watching(
        found,
        Selection(namespaces),
        lambda event, kind, body: shown.append((event, kind, body["metadata"]["name"])),
        lambda *refusal: refused.append(refusal),
        lambda *place: begun.append(place),
    )
    task = asyncio.create_task(watches.run())
    try:
        yield shown, begun, refused
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1])
async def test_watches_that_are_ended_while_they_begin_end_without_a_complaint(
    found, caplog, seconds
):
    watching = Watching(found, Selection(), lambda *_: None)
    task = asyncio.create_task(watching.run())
    await asyncio.sleep(seconds)
    task.cancel()
    async with asyncio.timeout(3.0):
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert not [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("namespaces", [(), ("here",), ("here", "there")])
async def test_watches_begin_where_a_list_would_end_and_show_what_comes_then(
    emulator, found, a_job, namespaces
):
    for name in ("one", "two"):
        emulator.api.create(a_job("here", name))
    async with watching(found, *namespaces) as (shown, begun, refused):
        wanted = {(one, kind) for one in namespaces or (None,) for kind in (JOB, SNAPSHOT, POD)}
        await until(lambda: len(begun) >= len(wanted))
        # What happens from now on is shown, whether the watch is connected yet or not.
        emulator.api.patch(JOB, "here", "two", {"spec": {"ttlAfterFinished": "1h"}})
        emulator.api.delete(JOB, "here", "one")
        await until(lambda: len(shown) >= 2)
    assert (set(begun), len(begun), refused) == (wanted, len(wanted), [])
    assert shown == [("MODIFIED", JOB, "two"), ("DELETED", JOB, "one")]


@pytest.mark.usefixtures("quick")
async def test_a_kind_that_is_refused_is_told_and_the_others_are_watched(emulator, found, a_job):
    emulator.refused = SNAPSHOT
    async with watching(found) as (shown, begun, refused):
        await until(lambda: len(begun) == 2 and refused)
        assert refused == [(None, SNAPSHOT, "watch of StatefulSparkSnapshot: 403 Forbidden")]
        emulator.api.create(a_job("here"))
        await until(lambda: shown)
        emulator.refused = ""
        await until(lambda: (None, SNAPSHOT) in begun)
    assert refused[1:] == [(None, SNAPSHOT, "")]


@pytest.mark.usefixtures("quick")
async def test_an_api_server_that_is_away_at_the_start_is_waited_for(emulator, a_job):
    emulator.away = True
    emulator.api.create(a_job("here"))
    found = Configuration(host=str(emulator.url).rstrip("/"))
    async with OperatorProcess(found, relist=FOREVER, resync=FOREVER).running() as process:
        await until(lambda: len(emulator.raw) > 3)
        assert process.app.waits_for()
        emulator.away = False
        await until(lambda: generation(emulator) == 1)
        edit(emulator, "1h")
        await until(lambda: generation(emulator) == 2)


async def test_definitions_that_come_after_the_operator_are_watched(emulator, found, a_job):
    """Kopf looks once which kinds there are."""
    names = [
        f"moorage.dev/v1alpha1/{one}" for one in ("statefulsparkjobs", "statefulsparksnapshots")
    ]
    served = {name: emulator.resources[name] for name in names}
    for name in names:
        del emulator.resources[name]
    emulator.undefined = True
    async with OperatorProcess(found, relist=FOREVER, resync=FOREVER).running() as process:
        await until(lambda: any("statefulsparkjobs" in path for _, path, _, _ in emulator.raw))
        assert process.app.waits_for()
        for name in names:
            emulator.resources[name] = served[name]
        emulator.undefined = False
        await until(process.app.namespaces._answered.is_set)
        emulator.api.create(a_job("here"))
        await until(lambda: generation(emulator) == 1)
        edit(emulator, "1h")
        await until(lambda: generation(emulator) == 2)


def generation(emulator):
    found = emulator.api.get(JOB, "here", "clicks") or {}
    return (found.get("status") or {}).get("observedGeneration")


def edit(emulator, ttl):
    emulator.api.patch(JOB, "here", "clicks", {"spec": {"ttlAfterFinished": ttl}})


@pytest.mark.usefixtures("quick")
async def test_what_happens_while_a_watch_has_lost_its_place_is_found_by_a_list(
    emulator, found, a_job
):
    """Also when it loses its place again and again; and no process is begun anew for that."""
    emulator.api.create(a_job("here"))
    async with OperatorProcess(found, relist=FOREVER, resync=FOREVER).running() as process:
        process.app.canary.patience = 0.1
        await until(lambda: generation(emulator) == 1)
        emulator.expired = JOB
        await until(lambda: emulator.told >= 2)
        edit(emulator, "1h")
        await until(lambda: generation(emulator) == 2)
        emulator.expired = ""
        assert process.app.trouble() == ""
        edit(emulator, "2h")
        await until(lambda: generation(emulator) == 3)


async def test_no_object_is_shown_twice_when_the_operator_starts(emulator, found, a_job):
    """Kopf takes a task and a queue for each object that it is shown: lists are the loop's."""
    for number in range(3):
        emulator.api.create(a_job("here", f"job-{number}"))
    async with OperatorProcess(found, relist=FOREVER, resync=FOREVER).running() as process:
        await until(lambda: process.app.queue.known == 3 and not process.app.queue.waiting)
    lists = [
        query
        for method, path, query, _ in emulator.raw
        if method == "GET" and path.endswith("/statefulsparkjobs") and "watch" not in query
    ]
    # Whether the kind is served, Kopf's, and the one list of all there is.
    assert [one.get("labelSelector") for one in lists] == [NOTHING, NOTHING, None]
