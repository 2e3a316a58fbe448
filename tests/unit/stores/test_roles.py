"""Credentials that the machine gives, by a service that may be away for a moment."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from moorage_state.errors import StoreDenied
from moorage_state.stores import Retries, S3Address, S3Store

_ROLE = {
    "AccessKeyId": "key",
    "SecretAccessKey": "secret",
    "Token": "token",
    "Expiration": "2100-01-01T00:00:00Z",
}


class Machine(ThreadingHTTPServer):
    """A machine's metadata service, which is away for some questions, and an empty store."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.refusals, self.asked = 0, 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def is_away(self) -> bool:
        """Whether the newest question is one that it does not answer."""
        return self.asked <= self.refusals

    def answer(self, path: str) -> tuple[int, str]:
        """What a GET is answered."""
        if path.startswith("/latest/") and self.is_away:
            return 503, ""
        if not path.startswith("/latest/"):
            return 200, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        return 200, "role" if path.endswith("/security-credentials/") else json.dumps(_ROLE)


class _Request(BaseHTTPRequestHandler):
    server: Machine

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        self.server.asked += 1
        self._send(*((503, "") if self.server.is_away else (200, "session")))

    def do_GET(self) -> None:
        self._send(*self.server.answer(self.path))

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[Machine]:
    """A machine without any credentials but its role."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with Machine() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        yield server
        server.shutdown()


@pytest.fixture
def store(machine: Machine) -> S3Store:
    address = S3Address("bucket", endpoint=machine.url, region="eu-west-1", path_style=True)
    return S3Store(address, Retries(attempts=1))


def test_a_role_that_is_not_given_at_once_is_asked_for_again(machine, store):
    machine.refusals = 2
    assert list(store.list("")) == []


def test_a_process_that_began_without_credentials_finds_them_later(machine, store):
    machine.refusals = 3
    with pytest.raises(StoreDenied, match="NoCredentialsError"):
        list(store.list(""))
    assert list(store.list("")) == []
    assert list(store.list("")) == []
    assert machine.asked == 4  # they are kept once there are some


def test_who_says_how_often_a_machine_is_asked_is_followed(machine, store, monkeypatch):
    monkeypatch.setenv("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "1")
    machine.refusals = 2
    with pytest.raises(StoreDenied):
        list(store.list(""))
    assert machine.asked == 1
