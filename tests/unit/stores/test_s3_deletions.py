"""Many objects go in one request, and each that does not is told by its key."""

import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from moorage_state.errors import StoreDenied, StoreUnavailable
from moorage_state.stores import Retries, S3Store, store_url

QUICK = Retries(attempts=4, first_pause=0.001, longest_pause=0.002)
KEYS = [f"shared/{n}" for n in range(6)]


class DeletingServer(BaseHTTPRequestHandler):
    """Answers for each key what `codes` says; counts the keys of each request."""

    codes: dict[str, list[str]]
    knows_batches: bool
    requests: list[list[str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if not self.knows_batches:
            self._answer(501, _error("NotImplemented"))
            return
        keys = re.findall("<Key>(.*?)</Key>", body)
        self.requests.append(keys)
        refused = [(key, self.codes[key].pop(0)) for key in keys if self.codes.get(key)]
        told = "".join(
            f"<Error><Key>{key}</Key><Code>{code}</Code><Message>m</Message></Error>"
            for key, code in refused
        )
        self._answer(200, f"<DeleteResult>{told}</DeleteResult>")

    def do_DELETE(self) -> None:
        key = self.path.partition("/bucket/")[2].partition("?")[0]
        self.requests.append([key])
        code = self.codes.get(key) and self.codes[key].pop(0)
        self._answer(403, _error(code)) if code else self._answer(204, "")

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


def _error(code: str) -> str:
    return f"<Error><Code>{code}</Code><Message>m</Message></Error>"


Serve = Callable[..., tuple[S3Store, list[list[str]]]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """A store on a server with these answers."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(
        codes: dict[str, list[str]], *, knows_batches: bool = True
    ) -> tuple[S3Store, list[list[str]]]:
        asked: list[list[str]] = []
        fields = {"codes": codes, "requests": asked, "knows_batches": knows_batches}
        server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (DeletingServer,), dict(fields))
        )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        servers.append((server, thread))
        endpoint = f"http://127.0.0.1:{server.server_port}"
        url = store_url("s3://bucket", endpoint, "us-east-1", path_style=True)
        return S3Store(S3Store.at(url).address, QUICK), asked

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_a_server_refuses_is_told_by_its_key_and_the_rest_is_gone(serve: Serve) -> None:
    store, asked = serve({KEYS[1]: ["AccessDenied"], KEYS[4]: ["NoSuchKey"]})
    failed = store.delete_many(KEYS)
    assert list(failed) == [KEYS[1]]
    assert isinstance(failed[KEYS[1]], StoreDenied)
    assert "s3:DeleteObject" in str(failed[KEYS[1]])
    assert asked == [KEYS]


def test_only_what_may_pass_is_asked_for_again(serve: Serve) -> None:
    codes = {KEYS[0]: ["AccessDenied"], KEYS[2]: ["SlowDown", "InternalError"]}
    store, asked = serve(codes)
    assert list(store.delete_many(KEYS)) == [KEYS[0]]
    assert asked == [KEYS, [KEYS[2]], [KEYS[2]]]


def test_what_never_passes_is_told_when_the_attempts_are_used_up(serve: Serve) -> None:
    store, _ = serve({KEYS[2]: ["SlowDown"] * 9, KEYS[0]: ["AccessDenied"]})
    failed = store.delete_many(KEYS)
    assert {key: type(error) for key, error in failed.items()} == {
        KEYS[0]: StoreDenied,
        KEYS[2]: StoreUnavailable,
    }


def test_a_thousand_go_in_one_request(serve: Serve) -> None:
    store, asked = serve({})
    assert store.delete_many([f"shared/{n}" for n in range(2300)]) == {}
    assert [len(keys) for keys in asked] == [1000, 1000, 300]


def test_a_server_without_that_request_is_asked_for_each(serve: Serve) -> None:
    store, asked = serve({KEYS[3]: ["AccessDenied"]}, knows_batches=False)
    assert list(store.delete_many(KEYS)) == [KEYS[3]]
    assert sorted(asked) == [[key] for key in KEYS]
