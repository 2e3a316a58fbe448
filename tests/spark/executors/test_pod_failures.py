"""Pods that an API server refuses, and pods that fail, as Spark's own allocator meets them."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from moorage_testing.quick_spark import start_session

from moorage.cluster.environment import Pod, cluster_conf
from moorage.cluster.executors import PodFailures, SparkExecutors
from moorage.engine.task_failures import SparkEnded

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MOST = 3
WAIT_SECONDS = 120.0
LIMIT = "spark.executor.maxNumFailures"

NAME = "clicks-driver"
DRIVER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": NAME, "namespace": "team", "uid": "1", "resourceVersion": "1"},
    "spec": {"containers": [{"name": "driver", "image": "image"}]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


class ApiServer(ThreadingHTTPServer):
    """Knows the driver's pod; refuses those of executors, or has each of them fail."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Request)
        self.full, self.refused, self.pods = True, 0, {}

    def create(self, body):
        if body.get("kind") != "Pod":
            body["metadata"]["uid"] = "2"
            return 201, body
        if self.full:
            self.refused += 1
            text = "forbidden: exceeded quota: compute"
            return 403, {"kind": "Status", "status": "Failure", "message": text, "code": 403}
        name = body["metadata"]["name"]
        body["metadata"] |= {"uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        body["status"] = {"phase": "Failed", "containerStatuses": []}
        self.pods[name] = body
        return 201, body


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer

    def log_message(self, *_):
        pass

    def do_GET(self):
        name = urlsplit(self.path).path.rpartition("/")[2]
        if "watch=true" in self.path:
            self._answer(400, {"kind": "Status", "status": "Failure", "code": 400})
        elif name == NAME:
            self._answer(200, DRIVER)
        else:
            pods = [DRIVER] if NAME in self.path else list(self.server.pods.values())
            self._answer(
                200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}
            )

    def do_POST(self):
        self._answer(*self.server.create(self._body()))

    def do_PUT(self):
        self._answer(*self.server.create(self._body()))

    def do_DELETE(self):
        self._body()
        self.server.pods.pop(urlsplit(self.path).path.rpartition("/")[2], None)
        self._answer(200, {"kind": "Status", "status": "Success"})

    def _body(self):
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def session(api):
    """Spark whose executors are to be pods, with the settings of a driver's pod."""
    job = type("Job", (), {"spark_conf": {}, "py_files": (), "parallelism": 2})()
    job.main_file = Path("job.py")
    ordered = {
        LIMIT: str(MOST),
        PodFailures.WINDOW: "600000ms",
        "spark.executor.instances": "2",
        "spark.kubernetes.executor.container.image": "image",
        # This server has no watches.
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.executor.apiPollingInterval": "1s",
        "spark.kubernetes.executor.podTemplateFile": str(_template()),
        # Else it waits for executors before it says that it is there.
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "0s",
    }
    conf = cluster_conf(job, ordered, Pod(NAME, "team", "127.0.0.1"))
    conf.pop("spark.kubernetes.authenticate.caCertFile")
    ours = {"spark.driver.port": "0", "spark.driver.blockManager.port": "0"}
    spark = start_session(f"k8s://http://127.0.0.1:{api.server_port}", Path.cwd(), conf | ours)
    yield spark
    spark.stop()


def _template():
    file = Path("executor.yaml").absolute()
    file.write_text("spec: {containers: [{name: executor, image: image}]}", encoding="utf-8")
    return file


def wait(condition):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def scenario():
    api = ApiServer()
    threading.Thread(target=api.serve_forever, daemon=True).start()
    with session(api) as spark:
        context = spark.sparkContext
        executors = SparkExecutors(context, 2, PodFailures(context, MOST))
        before = api.refused
        wait(lambda: api.refused > before + 4 * MOST)
        seen: dict[str, object] = {
            "while_full": sorted(executors.registered()),
            "trouble": executors.trouble(),
        }
        api.full = False
        try:
            wait(executors.registered)
        except SparkEnded as error:
            seen["ended"] = str(error)
        seen["lives"] = not context._jsc.sc().isStopped()
    api.shutdown()
    return seen


@pytest.fixture(scope="module")
def seen(fresh_process):
    return fresh_process(scenario)


def test_a_driver_outlives_a_quota_without_room_for_its_executors(seen):
    assert seen["while_full"] == []
    assert seen["lives"]


def test_pods_that_are_not_made_are_told_of(seen):
    assert seen["trouble"].startswith("the API server does not make their pods")


def test_pods_that_fail_again_and_again_end_it(seen):
    assert "too many pods of executors failed" in seen["ended"]
    assert f"max={MOST}" in seen["ended"]
