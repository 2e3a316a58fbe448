"""The operator's own way to a store, and that by pods: asked for alike, answered alike."""

import asyncio
import base64
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from moorage_testing.fault_proxy import Fault, FaultProxy
from moorage_testing.kube import ApiStore, MemoryCluster
from moorage_testing.s3_server import ACCESS_KEY, SECRET_KEY
from moorage_testing.savepoint_dirs import OWNER, checkpoint, lineage, make_savepoint
from moorage_testing.snapshot_worlds import job_meta, job_spec
from moorage_testing.world.clock import FakeClock

from moorage.errand import log_to_stderr, main, write_answer
from moorage.preflight import _document
from moorage_operator.lineages import ChosenLineages
from moorage_operator.lineages.direct import DirectLineages, opener
from moorage_operator.lineages.pods import (
    PREFLIGHT_JOB_ENV,
    STORE_TASK_ENV,
    PodLineages,
    pod_name,
    store_task_pod,
)
from moorage_operator.lineages.requests import request_of
from moorage_operator.plan import StoreTask
from moorage_operator.ports import ApiUnavailable, Invalid, JobRefs
from moorage_operator.settings import Settings
from moorage_operator.world import StoreView, Unreadable
from moorage_state.errors import StoreUnavailable
from moorage_state.snapshots.store_tasks import Answer, decode_request, encode_answer
from moorage_state.stores import open_store

VERIFY = StoreTask("v-1", "Verify", "s3://savepoints/clicks/a")
ROOT = Path(__file__).parents[3]


def refs(uid="job-uid", **spec):
    return JobRefs(job_meta(uid=uid), job_spec(**spec))


def state(directory, **more):
    return {"checkpointDir": directory, **more}


def secret(cluster, **data):
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s3-creds", "namespace": "default"},
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in data.items()},
    }
    cluster.api.create(body)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def cluster(clock):
    return MemoryCluster(ApiStore(now=clock.now))


@pytest.fixture
async def direct(cluster, clock):
    schemes = frozenset({"s3", "file"})
    way = DirectLineages(
        cluster, clock, "test", schemes=schemes, inspect_seconds=5.0, store_task_seconds=5.0
    )
    yield way
    await way.close()


async def answered(way, job, store_task):
    view = await way.run(job, store_task)
    for _ in range(500):
        if view.state != "Pending":
            return view
        await asyncio.sleep(0.01)
        view = await way.look(job, store_task.id)
    raise AssertionError("no answer")


async def found(way, job, since=None):
    """What an inspection says once it has ended."""
    for _ in range(3000):
        view = await way.inspect(job, since)
        if view is not None:
            return view
        await asyncio.sleep(0.01)
    raise AssertionError("no answer")


# -- the operator itself -----------------------------------------------------------------------


def on_s3(server, endpoint=None):
    spec = state(
        "s3://moorage/ways",
        credentialsSecretRef={"name": "s3-creds"},
        s3={"endpoint": endpoint or server.endpoint, "region": "us-east-1", "pathStyle": True},
    )
    return refs(state=spec, upgrade={"mode": "LastCheckpoint"})


async def test_a_store_is_read_with_the_credentials_of_the_jobs_secret(
    cluster, direct, s3_server, monkeypatch
):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = open_store(s3_server.url("ways"))
    secret(cluster, AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    view = await found(direct, on_s3(s3_server))
    assert isinstance(view, StoreView)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert view.exists is any(True for _ in store.list("log/"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "there is no such Secret: secret=default/s3-creds"),
        ({"AWS_ACCESS_KEY_ID": "someone"}, "lacks AWS_SECRET_ACCESS_KEY"),
    ],
)
async def test_credentials_that_are_missing_are_told_without_a_request(
    cluster, direct, s3_server, data, words
):
    if data is not None:
        secret(cluster, **data)
    view = await found(direct, on_s3(s3_server))
    assert view.reason == "CredentialsMissing"
    assert words in view.message
    assert "someone" not in view.message


async def test_scenario_25_wrong_credentials_are_denied_and_never_shown(
    cluster, direct, s3_server, caplog
):
    caplog.set_level(logging.DEBUG, logger="moorage_operator")
    wrong = "wrong-secret-value"
    secret(cluster, AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=wrong)
    view = await found(direct, on_s3(s3_server))
    assert view.reason == "StoreDenied"
    assert wrong not in f"{view}{caplog.text}"


async def test_scenario_24_a_store_that_is_down_is_unavailable_and_not_empty(
    cluster, direct, s3_server
):
    secret(cluster, AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    with FaultProxy(s3_server.endpoint) as proxy:
        proxy.inject(Fault.ERROR, "GET", times=50)
        view = await found(direct, on_s3(s3_server, proxy.endpoint))
    assert isinstance(view, Unreadable)
    assert view.reason == "StoreUnavailable"


async def test_credentials_are_sent_to_no_other_server_than_the_jobs(cluster, direct, s3_server):
    secret(cluster, AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    with FaultProxy(s3_server.endpoint) as proxy:
        path = f"s3://moorage/any?endpoint={proxy.endpoint}&path_style=true"
        view = await answered(direct, on_s3(s3_server), StoreTask("v", "Verify", path))
        assert proxy.seen == []
    assert (view.code, view.retryable) == ("store_denied", False)


async def test_without_a_secret_the_operators_own_credentials_are_not_used(direct):
    job = refs(state=state("s3://moorage/ways"), upgrade={"mode": "LastCheckpoint"})
    view = await found(direct, job)
    assert view.reason == "StoreDenied"
    assert "credentialsSecretRef" in view.message


async def test_a_store_task_is_one_however_often_it_is_asked_for(direct, tmp_path, clock):
    url = f"file://{tmp_path}/sp"
    digest = make_savepoint(open_store(url, create=True))
    job = refs(state=state(f"file://{tmp_path}/state"), upgrade={"mode": "LastCheckpoint"})
    store_task = StoreTask("d-1", "Delete", url, digest, "ssnap-1")
    assert await direct.look(job, "d-1") is None
    first = await answered(direct, job, store_task)
    assert first.result["deleted"] == 5
    assert await direct.run(job, store_task) == first
    clock.advance(601)
    await direct.run(job, StoreTask("v-2", "Verify", url))
    assert await direct.look(job, "d-1") is None


async def test_a_store_that_hangs_holds_up_nobody_for_ever(cluster, clock, tmp_path, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(
        "moorage_operator.lineages.direct.run_store_task", lambda *_, **__: go_on.wait(20)
    )
    monkeypatch.setattr("moorage_operator.lineages.direct._PATIENCE", 0.1)
    way = DirectLineages(cluster, clock, "test", schemes=frozenset({"file"}), inspect_seconds=0.1)
    job = refs(state=state(f"file://{tmp_path}/state"), upgrade={"mode": "LastCheckpoint"})
    try:
        view = await found(way, job)
        assert isinstance(view, Unreadable)
        assert view.reason == "StoreUnavailable"
    finally:
        go_on.set()
        await way.close()


class Hanging:
    """A store whose inspections hang until they are let go on."""

    def __init__(self):
        self.begun, self.go_on = 0, threading.Event()

    def __call__(self, request, *_, **__):
        self.begun += 1
        self.go_on.wait(20)
        read_at = "2026-03-01T12:00:00+00:00"
        return Answer(
            id=request.id, state="Completed", result={"exists": False, "read_at": read_at}
        )


@pytest.fixture
def hanging(monkeypatch):
    store = Hanging()
    monkeypatch.setattr("moorage_operator.lineages.direct.run_store_task", store)
    yield store
    store.go_on.set()


def test_a_store_that_was_opened_begins_nothing_after_its_time(tmp_path):
    now = [0.0]
    job, url = refs(), f"file://{tmp_path}"
    files = frozenset({"file"})
    store = opener(job, None, files, 5.0, own_chain=False, clock=lambda: now[0])(url)
    for name in ("a", "b"):
        store.put(name, b"data")
    assert store.url == open_store(url).url
    half = store.list("")
    assert (store.get("a"), next(half).key) == (b"data", "a")
    now[0] = 5.1
    for late in (lambda: store.get("a"), lambda: store.delete_many(["a"]), lambda: next(half)):
        with pytest.raises(StoreUnavailable, match=f"store is too slow: store={store.url}"):
            late()
    assert open_store(url).get("a") == b"data"


async def test_nobody_waits_for_a_store_and_whoever_asked_is_woken(cluster, clock, hanging):
    answered: asyncio.Queue[JobRefs] = asyncio.Queue()
    way = DirectLineages(
        cluster, clock, "test", schemes=frozenset({"file"}), answered=answered.put_nowait
    )
    job = refs(state=state("file:///state/clicks"), upgrade={"mode": "LastCheckpoint"})
    jobs = [replace(job, meta=replace(job.meta, name=f"j{n}")) for n in range(40)]
    async with asyncio.timeout(10):
        for _ in range(3):
            assert [await way.inspect(job) for job in jobs] == [None] * 40
        assert hanging.begun <= 4
        hanging.go_on.set()
        woken = {(await answered.get()).meta.name for _ in jobs}
    assert woken == {f"j{n}" for n in range(40)}
    assert isinstance(await way.inspect(jobs[0]), StoreView)
    await way.close()


async def test_an_inspection_counts_for_seconds_and_only_after_the_end_of_the_driver(
    cluster, clock, hanging
):
    hanging.go_on.set()
    way = DirectLineages(cluster, clock, "test", schemes=frozenset({"file"}))
    job = refs(state=state("file:///state/clicks"), upgrade={"mode": "LastCheckpoint"})
    assert isinstance(await found(way, job), StoreView)
    clock.advance(3)
    assert isinstance(await way.inspect(job), StoreView)
    assert await way.inspect(job, since=clock.now()) is None
    assert isinstance(await found(way, job, since=clock.now()), StoreView)
    clock.advance(6)
    assert await way.inspect(job) is None
    await way.close()


async def test_a_failure_is_told_until_the_next_inspection_has_ended(direct, clock):
    job = refs(state=state("s3://moorage/ways"), upgrade={"mode": "LastCheckpoint"})
    assert isinstance(await found(direct, job), Unreadable)
    clock.advance(60)
    again = await direct.inspect(job)
    assert isinstance(again, Unreadable)
    assert again.reason == "StoreDenied"


def test_a_process_that_ends_does_not_wait_for_a_store_that_hangs():
    code = """
import asyncio, threading
from moorage_operator.lineages.direct import _in_daemon
async def main():
    _in_daemon(threading.Event().wait)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


# -- pods --------------------------------------------------------------------------------------


@pytest.fixture
def pods(cluster, clock):
    return PodLineages(cluster, clock, "test", seconds=300)


def the_pod(cluster):
    (pod,) = cluster.api.list("Pod")
    return pod


def ends(cluster, clock, answer=None, phase="Succeeded", **status):
    pod = the_pod(cluster)
    message = encode_answer(answer) if answer is not None else ""
    terminated = {
        "exitCode": 0,
        "message": message,
        "finishedAt": clock.now().isoformat().replace("+00:00", "Z"),
    }
    cluster.api.set_status(
        "Pod",
        "default",
        pod["metadata"]["name"],
        phase=phase,
        containerStatuses=[{"name": "errand", "state": {"terminated": terminated}}],
        **status,
    )


FOUND = Answer(id="v-1", state="Completed", result={"found": True})


async def test_a_store_task_is_a_pod_under_the_jobs_account_found_again_by_its_name(
    cluster, pods, clock
):
    job = refs()
    assert (await pods.run(job, VERIFY)).state == "Pending"
    pod = the_pod(cluster)
    assert pod["metadata"]["name"] == pod_name("clicks", "v-1")
    assert pod["metadata"]["labels"]["moorage.dev/role"] == "errand"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    assert pod["spec"]["serviceAccountName"] == "spark"
    another = PodLineages(cluster, clock, "test")
    assert (await another.run(job, VERIFY)).state == "Pending"
    assert len(cluster.api.list("Pod")) == 1
    ends(cluster, clock, FOUND)
    seen = await another.look(job, "v-1")
    assert seen is not None
    assert seen.result == {"found": True}
    assert (await pods.run(job, VERIFY)).result == {"found": True}


async def test_a_lost_reply_to_the_creation_makes_no_second_pod(cluster, pods):
    cluster.fail(ApiUnavailable("cut"), verb="create", kind="Pod", when="after")
    with pytest.raises(ApiUnavailable):
        await pods.run(refs(), VERIFY)
    assert (await pods.run(refs(), VERIFY)).state == "Pending"
    assert len(cluster.api.list("Pod")) == 1


async def test_a_pod_that_ended_without_an_answer_may_go_well_later(cluster, pods, clock):
    await pods.run(refs(), VERIFY)
    ends(cluster, clock, phase="Failed", reason="Evicted", message="the node was low on memory")
    view = await pods.look(refs(), "v-1")
    assert (view.state, view.retryable) == ("Failed", True)
    assert "Evicted" in view.message
    clock.advance(11)
    assert (await pods.run(refs(), VERIFY)).state == "Pending"


async def test_what_is_tried_again_says_how_it_ended_before(cluster, pods, clock):
    await pods.run(refs(), VERIFY)
    ends(cluster, clock, phase="Failed", reason="Evicted", message="the node was low on memory")
    clock.advance(11)
    for _ in range(2):
        assert "Evicted" in (await pods.run(refs(), VERIFY)).message
        assert "Evicted" in (await pods.look(refs(), "v-1")).message
    ends(cluster, clock, FOUND)
    assert (await pods.run(refs(), VERIFY)).result == {"found": True}


async def test_a_container_beside_that_never_ends_holds_up_no_answer(cluster, pods, clock):
    """Such as the proxy of a mesh, which a webhook puts into every pod."""
    await pods.run(refs(), VERIFY)
    ends(cluster, clock, FOUND, phase="Running")
    assert (await pods.look(refs(), "v-1")).result == {"found": True}


@pytest.mark.parametrize("minutes", [-30, -2, 2, 30])
async def test_clocks_of_nodes_and_of_the_api_server_may_be_off(clock, minutes):
    """What this process saw of a pod it times by its own clock."""

    def theirs():
        return clock.now() + timedelta(minutes=minutes)

    cluster = MemoryCluster(ApiStore(now=theirs))
    pods = PodLineages(cluster, clock, "test", seconds=300)
    there = FakeClock(theirs())
    ended = clock.now()
    assert await pods.inspect(refs(), since=ended) is None
    assert await pods.inspect(refs(), since=ended) is None
    result = {"exists": False, "read_at": there.now().isoformat()}
    ends(cluster, there, Answer(id="inspect", state="Completed", result=result))
    assert isinstance(await pods.inspect(refs(), since=ended), StoreView)
    clock.advance(61)
    assert await pods.inspect(refs(), since=ended) is None
    await pods.run(refs(), VERIFY)
    ends_last(cluster, FakeClock(theirs()))
    seen = await pods.look(refs(), "v-1")
    assert seen is not None
    assert seen.state == "Failed"
    clock.advance(11)
    assert (await pods.run(refs(), VERIFY)).state == "Pending"


def ends_last(cluster, clock):
    """The pod that was made last ends without an answer."""
    for pod in cluster.api.list("Pod"):
        if pod["metadata"]["name"] != pod_name("clicks", "v-1"):
            cluster.api.delete("Pod", "default", pod["metadata"]["name"], grace=0)
    ends(cluster, clock, phase="Failed")


async def test_an_answer_that_nobody_here_waited_for_is_as_old_as_its_node_says(
    cluster, pods, clock
):
    await pods.inspect(refs())
    result = {"exists": False, "read_at": clock.now().isoformat()}
    ends(cluster, clock, Answer(id="inspect", state="Completed", result=result))
    clock.advance(61)
    another = PodLineages(cluster, clock, "test", seconds=300)
    assert await another.inspect(refs()) is None


async def test_a_pod_of_a_former_object_of_the_name_is_not_believed(cluster, pods, clock):
    await pods.run(refs(uid="old-uid"), VERIFY)
    ends(cluster, clock, FOUND)
    assert await pods.look(refs(), "v-1") is None
    assert (await pods.run(refs(), VERIFY)).state == "Pending"


async def test_an_inspection_is_read_once_its_pod_has_ended_and_not_when_it_is_old(
    cluster, pods, clock
):
    assert await pods.inspect(refs()) is None
    assert await pods.inspect(refs()) is None
    result = {"exists": False, "read_at": clock.now().isoformat()}
    ends(cluster, clock, Answer(id="inspect", state="Completed", result=result))
    view = await pods.inspect(refs())
    assert isinstance(view, StoreView)
    assert not view.exists
    clock.advance(61)
    assert await pods.inspect(refs()) is None


async def test_an_inspection_from_before_the_driver_ended_does_not_count(cluster, pods, clock):
    await pods.inspect(refs())
    result = {"exists": False, "read_at": clock.now().isoformat()}
    clock.advance(5)
    ended = clock.now()
    ends(cluster, clock, Answer(id="inspect", state="Completed", result=result))
    assert await pods.inspect(refs(), since=ended) is None


async def test_an_inspection_of_another_directory_says_nothing_about_this_one(cluster, pods, clock):
    await pods.inspect(refs(state=state("s3://state/old"), upgrade={"mode": "LastCheckpoint"}))
    result = {"exists": False, "read_at": "2026-03-01T12:00:00+00:00"}
    ends(cluster, clock, Answer(id="inspect", state="Completed", result=result))
    new = refs(state=state("s3://state/new"), upgrade={"mode": "LastCheckpoint"})
    assert await pods.inspect(new) is None
    assert cluster.api.list("Pod") == []


def does_not_start(cluster):
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    name = the_pod(cluster)["metadata"]["name"]
    containers = [{"name": "errand", "state": {"waiting": waiting}}]
    cluster.api.set_status("Pod", "default", name, phase="Pending", containerStatuses=containers)
    return f"store task's pod does not start: {name}: no such image"


async def test_a_store_tasks_pod_that_does_not_start_is_named_with_the_kubelets_words(
    cluster, pods
):
    await pods.inspect(refs())
    told = does_not_start(cluster)
    view = await pods.inspect(refs())
    assert (view.reason, view.message) == ("ErrandStuck", told)


async def test_a_store_task_that_waits_for_its_pod_says_so(cluster, pods):
    await pods.run(refs(), VERIFY)
    told = does_not_start(cluster)
    for view in (await pods.look(refs(), "v-1"), await pods.run(refs(), VERIFY)):
        assert (view.state, view.message) == ("Pending", told)


async def test_a_corrected_image_does_not_wait_for_the_wrong_ones_end(cluster, pods):
    await pods.inspect(refs())
    does_not_start(cluster)
    right = refs(image="registry.example/clicks:right")
    assert await pods.inspect(right) is None
    assert await pods.inspect(right) is None
    assert the_pod(cluster)["spec"]["containers"][0]["image"] == "registry.example/clicks:right"


async def test_a_failed_inspection_says_nothing_about_what_there_is(cluster, pods, clock):
    await pods.inspect(refs())
    denied = Answer(id="inspect", state="Failed", code="store_denied", message="403")
    ends(cluster, clock, denied)
    view = await pods.inspect(refs())
    assert (view.reason, view.message) == ("StoreDenied", "403")


async def test_pods_that_answered_long_ago_are_removed(cluster, pods, clock):
    await pods.run(refs(), VERIFY)
    ends(cluster, clock, FOUND)
    clock.advance(1000)
    await pods.run(refs(), StoreTask("v-2", "Verify", "s3://bucket/b"))
    names = [pod["metadata"]["name"] for pod in cluster.api.list("Pod")]
    alive = [
        pod["metadata"]["name"]
        for pod in cluster.api.list("Pod")
        if "deletionTimestamp" not in pod["metadata"]
    ]
    assert alive == [pod_name("clicks", "v-2")], names


def test_the_pod_takes_volumes_and_places_from_the_drivers_template_and_nothing_that_runs():
    template = {
        "spec": {
            "nodeSelector": {"zone": "a"},
            "volumes": [{"name": "state", "hostPath": {"path": "/data"}}],
            "initContainers": [{"name": "prepare", "image": "x"}],
            "containers": [
                {"name": "driver", "volumeMounts": [{"name": "state", "mountPath": "/data"}]},
                {"name": "proxy", "image": "x"},
            ],
        }
    }
    job = refs(driver={"podTemplate": template})
    spec = store_task_pod(job, request_of(job, VERIFY, "test"), 300)["spec"]
    assert [c["name"] for c in spec["containers"]] == ["errand"]
    assert "initContainers" not in spec
    assert spec["nodeSelector"] == {"zone": "a"}
    assert spec["containers"][0]["volumeMounts"][0]["mountPath"] == "/data"
    assert spec["activeDeadlineSeconds"] == 300
    env = {one["name"]: one for one in spec["containers"][0]["env"]}
    assert env["AWS_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "s3-creds"
    assert decode_request(env[STORE_TASK_ENV]["value"]).path == VERIFY.path
    assert "securityContext" in spec["containers"][0]


def test_a_preflight_has_what_brings_the_program_and_the_manifest_as_it_is_written():
    """The kubelet would put variables into an environment's values."""
    template = {"spec": {"initContainers": [{"name": "fetch", "image": "x"}]}}
    env = [{"name": "PRICE", "value": "$(HOME) $5"}]
    application = {"mainFile": "local:///app/job.py", "env": env}
    job = refs(driver={"podTemplate": template}, application=application)
    task = StoreTask("p-1", "Preflight")
    spec = store_task_pod(job, request_of(job, task, "test"), 300)["spec"]
    assert [one["name"] for one in spec["initContainers"]] == ["fetch"]
    given = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    read = json.loads(given[PREFLIGHT_JOB_ENV].replace("$$", "$"))
    assert read["spec"]["application"]["env"] == env
    assert "$" not in given[PREFLIGHT_JOB_ENV].replace("$$", "")


def of_preflight(*arguments):
    application = {"mainFile": "local:///app/job.py", "args": list(arguments)}
    job = refs(application=application)
    request = request_of(job, StoreTask("p-1", "Preflight"), "test")
    env = store_task_pod(job, request, 300)["spec"]["containers"][0]["env"]
    return {one["name"]: one["value"] for one in env if "value" in one}


def test_a_manifest_that_is_longer_than_a_variable_may_be_is_packed_and_read_again():
    words = [f"word-{number} $(HOME) " * 200 for number in range(60)]
    given = of_preflight(*words)
    assert PREFLIGHT_JOB_ENV not in given
    assert max(map(len, given.values())) < 128 << 10
    assert json.loads(_document(given))["spec"]["application"]["args"] == words


def test_one_that_is_too_long_all_the_same_is_refused_in_words():
    noise = [random.Random(number).randbytes(2_000).hex() for number in range(100)]
    with pytest.raises(Invalid, match=r"spec\.upgrade\.preflight to false"):
        of_preflight(*noise)


def test_the_process_in_the_pod_answers_in_its_termination_message(tmp_path):
    store = open_store(f"file://{tmp_path}/state", create=True)
    checkpoint(store, lineage(store), 1)
    job = refs(state=state(f"file://{tmp_path}/state"), upgrade={"mode": "LastCheckpoint"})
    pod = store_task_pod(job, request_of(job, StoreTask("inspect", "Inspect"), "test"), 300)
    order = pod["spec"]["containers"][0]["env"][-1]
    environ = {
        **os.environ,
        order["name"]: order["value"],
        "MOORAGE_TERMINATION_LOG": str(tmp_path / "message"),
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("backends", "runtime")),
    }
    command = [*pod["spec"]["containers"][0]["command"][3:]]
    command[0] = sys.executable
    done = subprocess.run(command, env=environ, check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer = json.loads((tmp_path / "message").read_text())
    assert answer["result"]["newest"]["checkpoint_id"] == 1
    assert answer["result"]["owner"][3] == OWNER.uid


def test_the_process_refuses_what_is_no_store_task(tmp_path):
    environ = {"MOORAGE_ERRAND": "?", "MOORAGE_TERMINATION_LOG": str(tmp_path / "message")}
    assert main(environ) == 2
    assert json.loads((tmp_path / "message").read_text())["code"] == "user_error"


# -- the choice --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "directory", "named", "expected"),
    [
        (Settings(), "s3://bucket/b", True, True),
        (Settings(), "s3://bucket/b", False, False),
        (Settings(read_secrets=False), "s3://bucket/b", True, False),
        (Settings(own_credentials=True), "s3://bucket/b", False, True),
        (Settings(), "file:///a/b", True, False),
        (Settings(local_files=True), "file:///a/b", False, True),
    ],
)
def test_the_way_follows_from_the_jobs_spec_and_the_settings(
    direct, pods, settings, directory, named, expected
):
    spec = state(directory)
    if named:
        spec["credentialsSecretRef"] = {"name": "s3-creds"}
    job = refs(state=spec, upgrade={"mode": "LastCheckpoint"})
    chosen = ChosenLineages(direct, pods, settings)
    assert (chosen._way(job) is direct) is expected


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (None, True),
        ("https://minio.stores:9000", True),
        ("https://minio.stores:9000/", True),
        ("http://minio.stores:9000", False),
        ("http://169.254.169.254", False),
        ("https://minio.stores.evil.example:9000", False),
    ],
)
def test_the_operator_asks_only_servers_that_it_may(direct, pods, endpoint, expected):
    settings = Settings(store_endpoints=("https://minio.stores:9000/", "https://other:9000"))
    spec = state("s3://bucket/b", credentialsSecretRef={"name": "s3-creds"})
    if endpoint:
        spec["s3"] = {"endpoint": endpoint}
    job = refs(state=spec, upgrade={"mode": "LastCheckpoint"})
    assert (ChosenLineages(direct, pods, settings)._way(job) is direct) is expected


async def test_the_chosen_way_is_taken_for_everything(direct, pods, cluster):
    chosen = ChosenLineages(direct, pods, Settings(read_secrets=False))
    await chosen.run(refs(), VERIFY)
    assert await chosen.look(refs(), "v-1") is not None
    assert await chosen.inspect(refs()) is None
    assert len(cluster.api.list("Pod")) == 2


async def test_scenario_15_gigabytes_are_moved_by_a_pod_whoever_may_open_the_store(
    direct, pods, cluster
):
    chosen = ChosenLineages(direct, pods, Settings(local_files=True))
    job = refs(state=state("file:///state"), upgrade={"mode": "LastCheckpoint"})
    copy = StoreTask("u-copy-1", "Copy", "file:///late", source="file:///state")
    assert (await chosen.run(job, copy)).state == "Pending"
    [pod] = cluster.api.list("Pod")
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert decode_request(env[STORE_TASK_ENV]).source == "file:///state"
    found = await chosen.look(job, "u-copy-1")
    assert found is not None
    assert found.state == "Pending"


async def test_what_one_job_asks_for_costs_the_same_beside_a_thousand(direct):
    spec = state("s3://moorage/many", credentialsSecretRef={"name": "missing"})
    jobs = [refs(uid=f"uid-{number}", state=spec) for number in range(2000)]

    async def cost(some):
        begun = time.process_time()
        for job in some:
            await direct.inspect(job)
        return (time.process_time() - begun) / len(some)

    few = min([await cost(jobs[:20]) for _ in range(20)])
    await cost(jobs)
    many = min([await cost(jobs[:20]) for _ in range(20)])
    assert many <= 5 * few


async def test_an_answer_is_forgotten_ten_minutes_after_it_came_and_not_when_it_was_asked_anew(
    direct, clock
):
    spec = state("s3://moorage/many", credentialsSecretRef={"name": "missing"})
    job, other = refs(state=spec), refs(uid="other", state=spec)
    assert await answered(direct, job, VERIFY)
    for _ in range(2):
        assert await found(direct, job)
        await asyncio.sleep(0.05)
        clock.advance(310.0)
    await direct.inspect(other)
    assert await direct.look(job, VERIFY.id) is None
    assert await direct.inspect(job) is not None
    await asyncio.sleep(0.05)
    clock.advance(700.0)
    await direct.inspect(other)
    assert await direct.inspect(job) is None


def test_what_a_program_lets_slip_is_not_in_the_answer(tmp_path, capfd):
    password = "swordfish-of-the-database"  # noqa: S105  a plant
    environ = {
        "KAFKA_PASSWORD": password,
        "MOORAGE_TERMINATION_LOG": str(tmp_path / "message"),
    }
    log_to_stderr(environ)
    said = f"cannot log in: https://me:{password}@broker/ password={password}"
    result = {"text": said}
    write_answer(environ, Answer(id="p-1", state="Failed", result=result, message=said))
    message, log = (tmp_path / "message").read_text(), capfd.readouterr().err
    assert "cannot log in" in message
    assert "store task" in log
    assert password not in message + log


@pytest.mark.parametrize(("kind", "expected"), [("Verify", False), ("Preflight", True)])
def test_a_store_task_has_no_token_of_the_account(kind, expected):
    """A preflight does as a driver, whose containers may need it."""
    job = refs()
    pod = store_task_pod(job, request_of(job, StoreTask("v-1", kind), "test"), 300)
    assert pod["spec"]["automountServiceAccountToken"] is expected
