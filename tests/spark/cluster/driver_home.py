"""What an operator mounts for a driver, and drivers as their pods run them, with Spark inside."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from moorage_testing.fresh_process import start_in_session
from moorage_testing.jobs import wait_until
from moorage_testing.tls import NAME, authority, mount

from moorage_api.driver import DriverEnd, DriverState, RequestView
from moorage_state.snapshots import LineageLog
from moorage_state.stores import open_store

CONTEXT = ssl.create_default_context(cadata=authority())
ROOT = Path(__file__).parents[3]
JOB = Path(__file__).parent / "held_job.py"
TOKEN = "a-token-of-twenty-chars"  # noqa: S105
CONTROL = "a-token-that-gives-orders"


class DriverHome:
    """What an operator mounts for a job, and the drivers that it starts."""

    def __init__(self, path: Path, job: Path = JOB) -> None:
        self.path = path
        self.job = job
        self.processes: list[subprocess.Popen[bytes]] = []
        for name in ("in", "out", "config", "savepoints"):
            (path / name).mkdir()
        (path / "token").write_text(f"{TOKEN}\n")
        (path / "control").write_text(f"{CONTROL}\n")
        mount(path / "tls")

    @property
    def checkpoint_dir(self) -> str:
        return f"file://{self.path}/checkpoints"

    @property
    def savepoint_dir(self) -> str:
        return f"file://{self.path}/savepoints"

    def start(self, attempt: int, *, uid: str = "uid-1", **start: Any) -> "DriverProcess":
        home = self.path / f"attempt-{attempt}"
        home.mkdir()
        job = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkJob",
            "metadata": {"name": "clicks", "namespace": "team", "uid": uid},
            "spec": {
                "image": "counting:1",
                "security": {"tls": {"secretName": "clicks-tls"}},
                "application": {"mainFile": f"local://{self.job}", "args": [str(self.path)]},
                "scaling": {"parallelism": 2, "mode": "Restart"},
                "epoch": {"interval": "100ms"},
                "state": {"checkpointDir": self.checkpoint_dir, "savepointDir": self.savepoint_dir},
                "checkpoint": {"interval": "1s", "minPause": "100ms"},
            },
        }
        order = {"format": 1, "attempt": attempt, "clusterId": "prod", "jobUid": uid, **start}
        (self.path / "config" / "job.yaml").write_text(yaml.safe_dump(job))
        (self.path / "config" / "start.json").write_text(json.dumps(order))
        roots = [ROOT / name for name in ("backends", "operator", "runtime", "tests/support")]
        environment = {
            "MOORAGE_CONFIG_DIR": str(self.path / "config"),
            "MOORAGE_TOKEN_FILE": str(self.path / "token"),
            "MOORAGE_TLS_DIR": str(self.path / "tls"),
            "MOORAGE_TERMINATION_LOG": str(home / "end"),
            "MOORAGE_ENDPOINT_PORT": "0",
            "MOORAGE_ENDPOINT_HOST": "127.0.0.1",
            "MOORAGE_ENVIRONMENT": "local",
            "MOORAGE_POD_NAME": f"counting-{attempt}-driver",
            "PYTHONPATH": os.pathsep.join(map(str, roots)),
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
            "TMPDIR": str(home),
        }
        command = [sys.executable, "-m", "moorage.cluster"]
        process = start_in_session(command, home, home / "log", environment)
        self.processes.append(process)
        return DriverProcess(home, process)

    def entries(self) -> list[Any]:
        return [entry for _, entry in LineageLog.open(open_store(self.checkpoint_dir)).read()]


class DriverProcess:
    """One attempt."""

    def __init__(self, home: Path, process: "subprocess.Popen[bytes]") -> None:
        self.home = home
        self.process = process

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        port = wait_until(self._port, 60, f"the endpoint\n{self.log}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        plain = socket.create_connection(("127.0.0.1", port), timeout=20)
        connection.sock = CONTEXT.wrap_socket(plain, server_hostname=NAME)
        try:
            data = json.dumps(body).encode() if body is not None else None
            headers = {"Authorization": f"Bearer {CONTROL}"}
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, text.decode() if path == "/metrics" else json.loads(text)
        finally:
            connection.close()

    def state(self) -> DriverState:
        return DriverState.model_validate(self.call("GET", "/state")[1])

    def ask(self, path: str, **body: Any) -> RequestView:
        return RequestView.model_validate(self.call("POST", path, body)[1])

    def done(self, request_id: str) -> RequestView:
        def view() -> RequestView | None:
            found = RequestView.model_validate(self.call("GET", f"/requests/{request_id}")[1])
            return found if found.state in {"Completed", "Failed"} else None

        return wait_until(view, 200, f"the end of {request_id}\n{self.log}")

    def wait_for_rows(self, rows: int) -> DriverState:
        def reached() -> DriverState | None:
            self._ended()
            state = self.state()
            return state if state.phase == "running" and state.rows_total >= rows else None

        return wait_until(reached, 400, f"{rows} rows\n{self.log}")

    def end(self, status: int, timeout: float = 200) -> DriverEnd:
        assert self.process.wait(timeout) == status, self.log
        text = (self.home / "end").read_text()
        assert TOKEN not in text + self.log
        assert CONTROL not in text + self.log
        return DriverEnd.model_validate_json(text)

    def terminate(self) -> None:
        os.kill(self.process.pid, signal.SIGTERM)

    def _port(self) -> int | None:
        if found := re.search(r"endpoint_listens: port=(\d+)", self.log):
            return int(found[1])
        self._ended()
        return None

    def _ended(self) -> None:
        if self.process.poll() is not None:
            pytest.fail(self.log)
