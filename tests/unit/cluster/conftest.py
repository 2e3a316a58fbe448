"""A driver's endpoint over a job that the test plays."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self

import pytest
import yaml

from moorage.cluster.board import Board, DriverAttempt
from moorage.cluster.endpoint import Endpoint
from moorage.cluster.metrics import DriverMetrics
from moorage.cluster.orders import Places
from moorage.driver.requests import Requests
from moorage.driver.types import JobProgress
from moorage.page.history import RunHistory
from moorage.page.render import drawn_run
from moorage.redaction import Redactor
from moorage_api.driver import DriverState, RequestView

TOKEN = "a-token-of-twenty-chars"  # noqa: S105
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Kept(http.client.HTTPConnection):
    """A connection that is closed in the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def ask(self, path: str, token: str | None = None) -> bytes:
        self.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return self.getresponse().read()


@dataclass
class Played:
    """The endpoint, and what stands behind it."""

    endpoint: Endpoint
    board: Board
    requests: Requests

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.endpoint.close()

    def connect(self) -> socket.socket:
        """A connection on which nothing was said yet."""
        return socket.create_connection(("127.0.0.1", self.endpoint.port), timeout=10)

    def keep(self) -> "Kept":
        """A connection for several requests."""
        return Kept("127.0.0.1", self.endpoint.port, timeout=10)

    def order(self, path: str, **body: Any) -> tuple[int, Any]:
        """One request that gives an order, under the id `a` unless `body` says otherwise."""
        return self.call("POST", path, {"requestId": "a", **body})

    def view(self, request_id: str = "a") -> RequestView:
        return RequestView.model_validate(self.call("GET", f"/requests/{request_id}")[1])

    def state(self) -> DriverState:
        return DriverState.model_validate(self.call("GET", "/state")[1])

    def say(self, **fields: Any) -> None:
        """The driver's progress."""
        self.board(JobProgress(**fields))

    def call(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        token: str | None = TOKEN,
        **headers: str,
    ) -> tuple[int, Any]:
        """One request; its status, and its answer as JSON where it is JSON."""
        with self.keep() as connection:
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
            data = json.dumps(body).encode() if isinstance(body, dict) else body
            connection.request(method, path, body=data, headers=headers)
            answer = connection.getresponse()
            text = answer.read()
            plain = not text or answer.headers.get_content_type() != "application/json"
            return answer.status, text if plain else json.loads(text)


def board_of(clock: list[float], requests: Requests | None = None, **options: Any) -> Board:
    """The board of a driver, on a clock that the test turns; it began when that was at 100."""
    return Board(
        DriverAttempt(3, "clicks", "team", "uid-1", "s3://state/clicks"),
        requests or Requests(),
        Redactor({"AWS_SECRET_ACCESS_KEY": "very-secret-key"}, TOKEN),
        clock=lambda: clock[0],
        wall_clock=lambda: AT + timedelta(seconds=clock[0] - 100.0),
        **options,
    )


def play(port: int = 0, **options: Any) -> Played:
    requests, metrics, clock = Requests(), DriverMetrics("clicks", "team"), [100.0]
    board = board_of(clock, requests, observe=metrics)
    metrics.show(board)
    history = RunHistory("clicks")
    options = {"port": port, "host": "127.0.0.1", **options}
    endpoint = Endpoint(
        board, requests, metrics, TOKEN, page=partial(drawn_run, history, str), **options
    )
    return Played(endpoint, board, requests)


@pytest.fixture
def played() -> Iterator[Played]:
    with play() as made:
        yield made


@pytest.fixture
def hasty() -> Iterator[Played]:
    """An endpoint that waits half a second for a request."""
    with play(seconds=0.5) as made:
        yield made


@pytest.fixture
def mount(tmp_path) -> Callable[..., Places]:
    """Writes what an operator mounts; an argument replaces or (None) leaves out a file."""

    def make(**files: str | None) -> Places:
        config = tmp_path / "config"
        config.mkdir(exist_ok=True)
        for name, text in {**mounted_files(), **files}.items():
            apart = name in {"token", "control", "scrape"}
            file = tmp_path / name if apart else config / name.replace("_", ".")
            if text is None:
                file.unlink(missing_ok=True)
            else:
                file.write_text(text)
        return Places(
            config=config,
            token=tmp_path / "token",
            termination=tmp_path / "end",
            host="127.0.0.1",
            port=0,
            local=True,
            scrape=tmp_path / "scrape",
            tls=tmp_path / "tls",
        )

    return make


def mounted_files() -> dict[str, str]:
    job = {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "StatefulSparkJob",
        "metadata": {"name": "clicks", "namespace": "team", "uid": "uid-1"},
        "spec": {
            "image": "registry/clicks:1",
            "application": {"mainFile": "local:///app/job.py"},
            "scaling": {"parallelism": 2},
            "state": {"checkpointDir": "s3://state/clicks"},
            "upgrade": {"mode": "LastCheckpoint"},
        },
    }
    start = {"format": 1, "attempt": 3, "clusterId": "prod", "jobUid": "uid-1", "graceSeconds": 5}
    return {
        "job_yaml": yaml.safe_dump(job),
        "start_json": json.dumps(start),
        "spark_json": json.dumps({"spark.executor.cores": "2"}),
        "token": f"{TOKEN}\n",
    }
