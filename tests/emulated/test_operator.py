"""The whole process on an API server: Kopf watches, the loop works, it stops and is replaced."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import kmock
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from moorage_testing.kube.emulator import Emulator
from moorage_testing.kube.processes import OperatorProcess, start_operator, until

from moorage_operator.app import LeadershipLost, build
from moorage_operator.health_server import health_server
from moorage_operator.kube.client import KubeCluster
from moorage_operator.settings import Settings

JOB = "StatefulSparkJob"


def operator_of(url, **settings):
    return OperatorProcess(Configuration(host=str(url).rstrip("/")), **settings)


@pytest.fixture
async def emulator():
    async with Emulator() as found, kmock.Server(found):
        yield found


@pytest.fixture
def api(emulator):
    return emulator.api


def status_of(api, name="clicks"):
    found = api.get(JOB, "here", name)
    return (found or {}).get("status") or {}


async def test_a_job_that_is_made_is_seen_and_gets_a_status(emulator, api, a_job):
    async with operator_of(emulator.url).running():
        api.create(a_job("here"))
        await until(lambda: status_of(api).get("observedGeneration") == 1)
    assert "moorage.dev/operator" in api.get(JOB, "here", "clicks")["metadata"]["finalizers"]


async def test_an_edit_wakes_the_loop_by_the_watch_alone(emulator, api, a_job):
    async with operator_of(emulator.url, resync=3600.0).running() as operator:
        api.create(a_job("here"))
        await until(lambda: status_of(api).get("observedGeneration") == 1)
        await until(lambda: not operator.app.queue.waiting)
        api.patch(JOB, "here", "clicks", {"spec": {"ttlAfterFinished": "1h"}})
        await until(lambda: status_of(api).get("observedGeneration") == 2)


async def test_objects_from_before_the_start_are_looked_at(emulator, api, a_job):
    api.create(a_job("here"))
    async with operator_of(emulator.url).running():
        await until(lambda: status_of(api).get("observedGeneration") == 1)


async def test_nothing_but_our_own_marks_are_put_on_objects(emulator, api, a_job):
    async with operator_of(emulator.url).running():
        api.create(a_job("here"))
        await until(lambda: status_of(api).get("observedGeneration") == 1)
    meta = api.get(JOB, "here", "clicks")["metadata"]
    assert meta["finalizers"] == ["moorage.dev/operator"]
    assert not meta.get("annotations")


SNAPSHOT = "StatefulSparkSnapshot"


def make_completed(api, name):
    meta = {"name": name, "namespace": "here", "labels": {"moorage.dev/job": "clicks"}}
    spec = {"jobRef": {"name": "clicks"}, "type": "Savepoint"}
    kind = {"apiVersion": "moorage.dev/v1alpha1", "kind": SNAPSHOT}
    api.create({**kind, "metadata": meta, "spec": spec})
    path = f"s3://savepoints/here/clicks/{name}"
    api.set_status(SNAPSHOT, "here", name, state="Completed", path=path, manifestDigest="sha256:a")


async def test_completed_snapshots_are_looked_at_once_and_then_only_listed(emulator, api, a_job):
    api.create(a_job("here"))
    for number in range(20):
        make_completed(api, f"s{number}")
    quick = {"resync": 0.5, "relist": 0.5, "lease_duration": 60.0}
    async with operator_of(emulator.url, **quick).running() as operator:
        seen, queue = operator.app.reconciler.has_seen, operator.app.queue
        await until(lambda: all(map(seen, api.list(SNAPSHOT))) and queue.known == 1, seconds=60.0)
        emulator.raw.clear()

        def asked(part):
            return sum(part in path for _, path, query, _ in emulator.raw if "watch" not in query)

        await until(lambda: asked("/statefulsparkjobs/clicks") >= 4)
        assert asked("/statefulsparksnapshots/") == 0
        assert asked("/statefulsparksnapshots") > 0


async def test_other_namespaces_are_left_alone(emulator, api, a_job):
    async with operator_of(emulator.url, watch_namespaces=("here",)).running():
        api.create(a_job("there", "others"))
        api.create(a_job("here"))
        await until(lambda: status_of(api).get("observedGeneration") == 1)
    assert "status" not in api.get(JOB, "there", "others")


async def test_a_stopped_operator_gives_the_lease_back_and_the_next_one_leads_at_once(
    emulator, api
):
    async with operator_of(emulator.url, lease_duration=30.0).running() as first:
        await until(lambda: first.app.leader.leads)
    assert not api.list("Lease")[0]["spec"].get("holderIdentity")
    async with operator_of(emulator.url, lease_duration=30.0).running() as second:
        await until(lambda: second.app.leader.leads, seconds=10.0)


@pytest.fixture
def deeply():
    """The emulator reads and copies what is nested as deep as an API server takes it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("deeply")
async def test_what_is_nested_in_one_job_holds_up_no_other(emulator, api, a_job, tmp_path):
    """Whoever may write jobs in one namespace would else stop the operator of all of them."""

    def deep(namespace):
        body = a_job(namespace)
        inner: dict[str, object] = {}
        body["spec"]["driver"] = {"podTemplate": inner}
        for _ in range(1_500):
            deeper: dict[str, object] = {}
            inner["x"] = deeper
            inner = deeper
        return body

    def is_seen(name):
        return (api.get(JOB, name, "clicks").get("status") or {}).get("observedGeneration") == 1

    api.create(deep("tenant"))
    process = await start_operator(tmp_path, emulator.url, "--cluster-id", "test")
    try:
        api.create(a_job("here"))
        await until(lambda: is_seen("here"), seconds=60.0)
        api.create(deep("other"))
        api.create(a_job("there"))
        await until(lambda: is_seen("there"), seconds=60.0)
        assert process.returncode is None
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_only_one_of_two_processes_works(emulator, api, a_job):
    async with operator_of(emulator.url).running() as first:
        await until(lambda: first.app.leader.leads)
        async with operator_of(emulator.url).running() as second:
            api.create(a_job("here"))
            await until(lambda: status_of(api).get("observedGeneration") == 1)
            assert first.app.leader.leads
            assert not second.app.leader.leads
            assert second.app.queue.known == 0


async def test_a_leader_whose_lease_is_taken_ends_with_an_error(emulator, api):
    async with operator_of(emulator.url).running() as operator:
        await until(lambda: operator.app.leader.leads)
        theft = {"spec": {"holderIdentity": "thief", "renewTime": "2099-01-01T00:00:00.000000Z"}}
        api.patch("Lease", "moorage-system", "moorage-operator", theft)
        with pytest.raises(ExceptionGroup) as ended:
            await asyncio.wait_for(asyncio.shield(operator.task), 20)
        assert ended.group_contains(LeadershipLost)


async def test_a_cluster_is_named_by_its_kube_system(emulator, api):
    made = api.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
    )
    async with AsyncExitStack() as stack:
        cluster = KubeCluster(Configuration(host=str(emulator.url).rstrip("/")))
        stack.push_async_callback(cluster.close)
        app = await build(Settings(), Configuration(), cluster, stack)
        assert app.reconciler._observer.config.cluster_id == made["metadata"]["uid"]


async def test_health_and_metrics_are_served(emulator, api, a_job):
    async with operator_of(emulator.url).running() as operator:
        app = operator.app
        api.create(a_job("here"))
        await until(lambda: status_of(api).get("observedGeneration") == 1)
        trouble = iter(["", "stuck"])
        server = health_server(
            "127.0.0.1",
            0,
            trouble=lambda: next(trouble),
            waits_for=operator.app.waits_for,
            registry=app.metrics.registry,
        )
        async with server as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            codes = [(await session.get("/healthz")).status for _ in range(2)]
            ready = (await session.get("/readyz")).status
            text = await (await session.get("/metrics")).text()
    assert (codes, ready) == ([200, 500], 200)
    assert 'moorage_operator_namespace_watched{namespace=""} 1.0' in text
    assert 'moorage_job_phase{job="clicks",namespace="here"' in text
    assert 'moorage_operator_leading{shard=""} 1.0' in text


class Proxy:
    """Between the operator and the API server; once `mute`, watches are open and say nothing."""

    def __init__(self, url):
        self.url, self.mute, self.hung, self.lists = str(url).rstrip("/"), False, 0, 0

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            async with aiohttp.ClientSession(auto_decompress=False) as self.session:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _pass(self, request):
        self.lists += request.path.endswith("/statefulsparkjobs") and "watch" not in request.query
        kept = {k: v for k, v in request.headers.items() if k.lower() in {"content-type", "accept"}}
        asked = self.session.request(
            request.method, self.url + request.path_qs, data=await request.read(), headers=kept
        )
        async with asked as found:
            answer = web.StreamResponse(status=found.status)
            answer.content_type = found.content_type
            await answer.prepare(request)
            async for data in found.content.iter_any():
                if self.mute and "watch" in request.query:
                    self.hung += 1
                    await asyncio.sleep(3600)
                await answer.write(data)
            return answer


@pytest.mark.scenario(6)
async def test_a_watch_that_is_silently_dead_is_made_good_by_lists_and_fails_liveness(
    emulator, api, a_job
):
    proxy = Proxy(emulator.url)
    async with (
        proxy.running() as url,
        operator_of(url, resync=3600.0, relist=0.5).running() as operator,
    ):
        api.create(a_job("here"))
        # Of somebody who is no job, and so of no watch: no sign of anything.
        labels = {"moorage.dev/role": "driver"}
        pod = {"name": "strange", "namespace": "here", "labels": labels}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": {}})
        await until(lambda: status_of(api).get("observedGeneration") == 1)
        operator.app.canary.patience = 1.0
        await until(lambda: not operator.app.queue.waiting)
        later = proxy.lists + 4
        await until(lambda: proxy.lists >= later)
        assert operator.app.trouble() == ""
        proxy.mute = True
        api.patch(JOB, "here", "clicks", {"spec": {"ttlAfterFinished": "1h"}})
        await until(lambda: status_of(api).get("observedGeneration") == 2)
        assert proxy.hung
        await until(lambda: "the watch of StatefulSparkJob is dead" in operator.app.trouble())


async def test_the_process_works_and_ends_well_on_sigterm(emulator, api, a_job, tmp_path):
    flags = ("--cluster-id", "test", "--health-port", "0")
    process = await start_operator(tmp_path, emulator.url, *flags)
    try:
        api.create(a_job("here"))
        await until(lambda: status_of(api).get("observedGeneration") == 1, seconds=60.0)
        process.terminate()
        _, lines = await asyncio.wait_for(process.communicate(), 30)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, lines.decode()
    assert {json.loads(line)["level"] for line in lines.splitlines()} <= {"info", "warning"}
    assert not api.list("Lease")[0]["spec"].get("holderIdentity")


async def test_wrong_settings_end_the_process_with_words(tmp_path):
    process = await start_operator(tmp_path, "", "--workers", "many")
    _, lines = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert b"--workers (MOORAGE_WORKERS)" in lines
