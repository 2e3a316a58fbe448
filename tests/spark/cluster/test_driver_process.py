"""`python -m moorage.cluster` as its pod runs it, but with Spark in its own process."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from moorage_testing.batches import add_batch
from moorage_testing.fresh_process import start_in_session
from moorage_testing.jobs import kill_group, wait_until
from moorage_testing.tls import NAME, authority, mount

from moorage_api.driver import DriverEnd, DriverState, RequestView
from moorage_state.snapshots import LineageLog, Released, Run, SavepointStore
from moorage_state.stores import open_store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

CONTEXT = ssl.create_default_context(cadata=authority())
ROOT = Path(__file__).parents[3]
JOB = Path(__file__).parent / "held_job.py"
TOKEN = "a-token-of-twenty-chars"  # noqa: S105
CONTROL = "a-token-that-gives-orders"


class DriverHome:
    """What an operator mounts for a job, and the drivers that it starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
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
                "application": {"mainFile": f"local://{JOB}", "args": [str(self.path)]},
                "scaling": {"parallelism": 2},
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

        return wait_until(view, 60, f"the end of {request_id}\n{self.log}")

    def wait_for_rows(self, rows: int) -> DriverState:
        def reached() -> DriverState | None:
            self._ended()
            state = self.state()
            return state if state.phase == "running" and state.rows_total >= rows else None

        return wait_until(reached, 120, f"{rows} rows\n{self.log}")

    def end(self, status: int, timeout: float = 60) -> DriverEnd:
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


@pytest.fixture
def home(tmp_path) -> Iterator[DriverHome]:
    made = DriverHome(tmp_path)
    add_batch(tmp_path / "in", 0)
    yield made
    for process in made.processes:
        kill_group(process)


def test_a_driver_is_asked_ended_and_followed_by_another(home):
    first = home.start(1)
    state = first.wait_for_rows(10)
    assert (state.attempt, state.job_uid, state.fence, state.parallelism) == (1, "uid-1", 1, 2)
    first.ask("/checkpoints", requestId="c-1")
    checkpoint = first.done("c-1").checkpoint
    assert checkpoint is not None
    assert checkpoint.path == f"{home.checkpoint_dir}/chk-{checkpoint.id}"
    assert first.ask("/savepoints", requestId="s-1", name="before").state != "Failed"
    savepoint = first.done("s-1").savepoint
    assert first.ask("/savepoints", requestId="s-1", name="before").savepoint == savepoint
    assert savepoint is not None
    assert SavepointStore(savepoint.path).digest() == savepoint.manifest_digest
    assert first.ask("/rescale", requestId="r-1", parallelism=4).state == "Pending"
    refused = first.done("r-1").error
    assert refused is not None
    assert refused.code == "restart_needed"
    assert 'moorage_fence{job="clicks",namespace="team"} 1.0' in first.call("GET", "/metrics")[1]
    add_batch(home.path / "in", 1)
    first.wait_for_rows(20)
    first.terminate()
    end = first.end(0)
    assert (end.outcome, end.attempt, end.fence, end.released) == ("Stopped", 1, 1, False)
    assert end.last_checkpoint is not None

    second = home.start(2)
    state = wait_until(
        lambda: s if (s := second.state()).running_since else None, 120, f"a run\n{second.log}"
    )
    assert state.fence == 2
    assert state.restored_from is not None
    assert state.restored_from.checkpoint_id == end.last_checkpoint.id
    assert state.last_checkpoint is not None
    assert state.last_checkpoint.id == end.last_checkpoint.id
    again = second.ask("/savepoints", requestId="s-1", name="before")
    again = second.done("s-1") if again.savepoint is None else again
    assert again.savepoint is not None
    assert again.savepoint.manifest_digest == savepoint.manifest_digest
    second.ask("/savepoints", requestId="s-2", name="before")
    conflict = second.done("s-2").error
    assert conflict is not None
    assert conflict.code == "savepoint_name_conflict"
    second.ask("/stop", requestId="t", mode="Savepoint", name="last", release=True)
    end = second.end(0)
    assert (end.outcome, end.released) == ("Stopped", True)
    assert end.savepoint is not None
    assert SavepointStore(end.savepoint.path).load().checkpoint_id == end.savepoint.checkpoint_id
    assert isinstance(home.entries()[-1], Released)

    other = {"mode": "Path", "path": savepoint.path, "digest": "sha256:other", "orderId": "o-1"}
    third = home.start(3, uid="uid-2", restore=other)
    end = third.end(4)
    assert (end.outcome, end.code) == ("Failed", "restore_point_changed")


def test_a_savepoint_in_flight_does_not_hold_up_the_end_and_is_carried_on(home):
    (home.path / "hold").touch()
    first = home.start(1, graceSeconds=60)
    first.wait_for_rows(10)
    first.ask("/savepoints", requestId="s-1", name="held")
    begun = home.path / "savepoints" / "held" / "ATTEMPT"
    wait_until(begun.exists, 60, f"the savepoint's beginning\n{first.log}")
    first.terminate()
    end = first.end(0, timeout=30)
    assert (end.outcome, end.savepoint) == ("Stopped", None)
    assert end.last_checkpoint is not None

    (home.path / "hold").unlink()
    order = {"mode": "Path", "path": f"chk-{end.last_checkpoint.id}", "orderId": "o-1"}
    second = home.start(2, restore=order)
    second.ask("/savepoints", requestId="s-1", name="held")
    savepoint = second.done("s-1").savepoint
    assert savepoint is not None
    SavepointStore(savepoint.path).verify(full=True)
    assert [e.order_id for e in home.entries() if isinstance(e, Run)] == ["", "o-1"]

    # Another driver takes the lineage: this one must end at once, and say why.
    third = home.start(3, restore=order)
    end = second.end(6)
    assert (end.outcome, end.code, end.fence) == ("Failed", "fenced", 2)
    state = wait_until(
        lambda: s if (s := third.state()).running_since else None, 120, f"a run\n{third.log}"
    )
    assert state.fence == 3
    assert [e.order_id for e in home.entries() if isinstance(e, Run)][-1] == ""
    third.ask("/stop", requestId="now", mode="None")
    assert third.end(0).outcome == "Stopped"
