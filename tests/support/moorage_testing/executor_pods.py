"""Spark's own backend for Kubernetes, against as much of an API server as it asks for."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from moorage.cluster.environment import Pod, cluster_conf
from moorage_testing.quick_spark import start_session

__all__ = ["ApiServer", "session"]

NAME = "clicks-driver"
DRIVER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": NAME, "namespace": "team", "uid": "1", "resourceVersion": "1"},
    "spec": {"containers": [{"name": "driver", "image": "image"}]},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}


class ApiServer(ThreadingHTTPServer):
    """Knows the driver's pod, and those of executors and claims that Spark makes.

    Attributes:
        full: whether a quota refuses executors.
        refused: how many it refused.
        phase: of executors that are made.
        pods: they, by name.
        claims: by name.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Request)
        self.full, self.refused, self.phase = False, 0, "Pending"
        self.pods, self.claims = {}, {}

    def create(self, body):
        name = body["metadata"].get("name", "")
        if body.get("kind") == "PersistentVolumeClaim":
            body["metadata"] |= {"uid": name, "creationTimestamp": "2126-01-01T00:00:00Z"}
            self.claims[name] = body
            return 201, body
        if body.get("kind") != "Pod":
            body["metadata"]["uid"] = "2"
            return 201, body
        if self.full:
            self.refused += 1
            text = "forbidden: exceeded quota: compute"
            return 403, {"kind": "Status", "status": "Failure", "message": text, "code": 403}
        body["metadata"] |= {"uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        body["status"] = {"phase": self.phase, "containerStatuses": []}
        self.pods[name] = body
        return 201, body

    def found(self, place, query):
        """The items of a list that is asked for."""
        if NAME in place:
            return [DRIVER]
        items = self.claims if "persistentvolumeclaims" in place else self.pods
        wanted = [part for one in query.get("labelSelector", []) for part in one.split(",")]
        return [
            item
            for item in list(items.values())
            if all(_has(item["metadata"]["labels"], one) for one in wanted)
        ]

    def delete(self, place, query):
        name = place.rpartition("/")[2]
        doomed = [item["metadata"]["name"] for item in self.found(place, query)]
        for one in doomed if name in ("pods", "persistentvolumeclaims") else [name]:
            (self.claims if "persistentvolumeclaims" in place else self.pods).pop(one, None)


def _has(labels, requirement):
    key, _, value = requirement.partition("=")
    return (labels.get(key.removesuffix("!")) == value) != key.endswith("!")


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ApiServer

    def log_message(self, *_):
        pass

    def do_GET(self):
        place, query = self._asked()
        if "watch" in query:
            self._answer(400, {"kind": "Status", "status": "Failure", "code": 400})
        elif place.endswith(f"/{NAME}"):
            self._answer(200, DRIVER)
        else:
            kind = "PersistentVolumeClaimList" if "persistentvolumeclaims" in place else "PodList"
            items = self.server.found(self.path, query)
            self._answer(200, {"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items})

    def do_POST(self):
        self._answer(*self.server.create(self._body()))

    def do_PUT(self):
        self._answer(*self.server.create(self._body()))

    def do_DELETE(self):
        self._body()
        self.server.delete(*self._asked())
        self._answer(200, {"kind": "Status", "status": "Success"})

    def _asked(self):
        url = urlsplit(self.path)
        return url.path, parse_qs(url.query)

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
def session(api, ordered):
    """Spark whose executors are to be pods, with the settings of a driver's pod.

    Args:
        ordered: the operator's.
    """
    job = type("Job", (), {"spark_conf": {}, "py_files": (), "parallelism": 2})()
    job.main_file = Path("job.py")
    usual = {
        "spark.executor.instances": "2",
        "spark.kubernetes.executor.container.image": "image",
        # This server has no watches.
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.executor.apiPollingInterval": "1s",
        "spark.kubernetes.executor.podTemplateFile": str(_template()),
        # Else it waits for executors before it says that it is there.
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "0s",
    }
    conf = cluster_conf(job, usual | ordered, Pod(NAME, "team", "127.0.0.1"))
    conf.pop("spark.kubernetes.authenticate.caCertFile")
    ours = {"spark.driver.port": "0", "spark.driver.blockManager.port": "0"}
    threading.Thread(target=api.serve_forever, daemon=True).start()
    spark = start_session(f"k8s://http://127.0.0.1:{api.server_port}", Path.cwd(), conf | ours)
    yield spark
    spark.stop()
    api.shutdown()


def _template():
    file = Path("executor.yaml").absolute()
    file.write_text("spec: {containers: [{name: executor, image: image}]}", encoding="utf-8")
    return file
