"""A proxy in front of an S3 server that goes wrong by plan.

    with FaultProxy(s3_server.endpoint) as proxy:
        store = S3Store.at(s3_server.url("x", endpoint=proxy.endpoint), ...)
        proxy.inject(Fault.LOST_REPLY, "PUT", "log/")
        proxy.chaos = Chaos(seed=7, rate=0.2)

Injected faults come first, in order; then `chaos` decides. Whether a request of chaos goes wrong
depends on the seed, its method and path (without random ids), and how many such requests there
were before: hardly on how threads take turns.
"""

import contextlib
import enum
import http.client
import random
import re
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Self
from urllib.parse import urlsplit

__all__ = ["Chaos", "Fault", "FaultProxy"]


class Fault(enum.Enum):
    """What happens to a request. The server did the work in those that say so."""

    ERROR = enum.auto()
    """500 before the work."""
    SLOW_DOWN = enum.auto()
    """503 SlowDown before the work."""
    CONFLICT = enum.auto()
    """409 ConditionalRequestConflict before the work."""
    FORBIDDEN = enum.auto()
    """403 AccessDenied before the work."""
    EXPIRED = enum.auto()
    """400 ExpiredToken before the work."""
    FULL = enum.auto()
    """507 before the work."""
    SLOW = enum.auto()
    """Done, after a pause."""
    CUT_REQUEST = enum.auto()
    """The connection ends while the request is read; no work."""
    LOST_REPLY = enum.auto()
    """The work is done, then the connection ends without an answer."""
    ERROR_AFTER = enum.auto()
    """The work is done, and the answer is 500."""
    CUT_REPLY = enum.auto()
    """The work is done; of the body of the answer only a part arrives."""
    FLIPPED_BIT = enum.auto()
    """The work is done; one bit of the body of the answer is wrong."""


PASSING = (
    Fault.ERROR,
    Fault.SLOW_DOWN,
    Fault.SLOW,
    Fault.CUT_REQUEST,
    Fault.LOST_REPLY,
    Fault.ERROR_AFTER,
    Fault.CUT_REPLY,
)
"""The faults that a second attempt overcomes."""

_ANSWERS = {
    Fault.ERROR: (500, "InternalError"),
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.CONFLICT: (409, "ConditionalRequestConflict"),
    Fault.FORBIDDEN: (403, "AccessDenied"),
    Fault.EXPIRED: (400, "ExpiredToken"),
    Fault.FULL: (507, "InsufficientStorage"),
}
_RANDOM_ID = re.compile("[0-9a-f]{16,}")
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})


@dataclass(slots=True)
class Chaos:
    """Faults by chance, from a seed.

    Attributes:
        seed: the same seed goes wrong in the same places.
        rate: the share of requests that go wrong.
        faults: which ones.
    """

    seed: int
    rate: float
    faults: tuple[Fault, ...] = PASSING
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def choose(self, method: str, path: str) -> Fault | None:
        """Return the fault of this request, if any."""
        which = (method, _RANDOM_ID.sub("*", path))
        self._counts[which] += 1
        chance = random.Random(f"{self.seed} {which} {self._counts[which]}")
        return chance.choice(self.faults) if chance.random() < self.rate else None


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes


class FaultProxy:
    """The proxy; a context manager that stops it.

    Attributes:
        chaos: decides on requests for which nothing was injected.
        slow_seconds: how long SLOW takes.
        before: called with the method and target of each request that goes on to the server, so
            that a test can do something in between.
        seen: the requests that came, with what happened to them: (method, path, fault).
    """

    def __init__(self, upstream: str, slow_seconds: float = 0.05) -> None:
        self.chaos: Chaos | None = None
        self.slow_seconds = slow_seconds
        self.before: Callable[[str, str], None] | None = None
        self.seen: list[tuple[str, str, Fault | None]] = []
        self._upstream = urlsplit(upstream).netloc
        self._injected: list[tuple[Fault | None, str, str]] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._server = _Server(("127.0.0.1", 0), self._serve)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="fault-proxy"
        )

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def inject(self, fault: Fault, method: str, contains: str = "", times: int = 1) -> None:
        """Let the next `times` requests of `method` whose path contains a text go wrong."""
        with self._lock:
            self._injected += [(fault, method, contains)] * times

    def skip_first(self, method: str, contains: str = "", times: int = 1) -> None:
        """Let the next `times` such requests pass: what is injected later is for those after."""
        with self._lock:
            self._injected += [(None, method, contains)] * times

    def forget(self) -> None:
        """Forget what was injected and seen."""
        with self._lock:
            self._injected.clear()
            self.seen.clear()
            self.before = None

    def count(self, method: str, contains: str = "") -> int:
        """Return how many requests of `method` came whose path contains a text."""
        with self._lock:
            return sum(1 for one, path, _ in self.seen if one == method and contains in path)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        with self._lock:
            still_open = list(self._open)
        for one in still_open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._server.server_close()  # joins the threads of the connections
        self._thread.join()

    def _serve(self, client: socket.socket) -> None:
        """Answer the requests of one connection until it ends or a fault ends it."""
        with self._lock:
            self._open.add(client)
        upstream = http.client.HTTPConnection(self._upstream, timeout=60)
        try:
            with client.makefile("rb") as reader, contextlib.closing(upstream):
                while request := _read_request(client, reader):
                    if not self._answer(client, upstream, request):
                        return
        except (OSError, http.client.HTTPException):
            return
        finally:
            with self._lock:
                self._open.discard(client)

    def _answer(
        self, client: socket.socket, upstream: http.client.HTTPConnection, request: _Request
    ) -> bool:
        """Answer one request; False when the connection ends with it."""
        fault = self._choose(request)
        if fault is Fault.CUT_REQUEST:
            return False
        if fault in _ANSWERS:
            client.sendall(_error_answer(*_ANSWERS[fault]))
            return True
        if self.before is not None:
            self.before(request.method, request.target)
        if fault is Fault.SLOW:
            time.sleep(self.slow_seconds)
        head, body = _forward(upstream, request)
        if fault is Fault.LOST_REPLY:
            return False
        if fault is Fault.ERROR_AFTER:
            client.sendall(_error_answer(*_ANSWERS[Fault.ERROR]))
            return True
        if fault is Fault.FLIPPED_BIT and body:
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        if fault is Fault.CUT_REPLY:
            client.sendall(head + body[: len(body) // 2])
            return False
        client.sendall(head + body)
        return True

    def _choose(self, request: _Request) -> Fault | None:
        path = urlsplit(request.target).path
        with self._lock:
            fault, injected = self._take(request.method, request.target)
            if not injected and self.chaos is not None:
                fault = self.chaos.choose(request.method, path)
            self.seen.append((request.method, request.target, fault))
        return fault

    def _take(self, method: str, target: str) -> tuple[Fault | None, bool]:
        """Return the fault that was injected for a request, and whether anything was."""
        for index, (fault, wanted, contains) in enumerate(self._injected):
            if wanted == method and contains in target:
                del self._injected[index]
                return fault, True
        return None, False


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    block_on_close = True
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], serve: Callable[[Any], None]) -> None:
        self._serve = serve
        super().__init__(address, socketserver.BaseRequestHandler)

    def finish_request(self, request: object, client_address: object) -> None:  # noqa: ARG002
        self._serve(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        return


def _read_request(client: socket.socket, reader: BinaryIO) -> _Request | None:
    """Read one request, whole; None when the client has closed the connection."""
    first = reader.readline()
    if not first:
        return None
    method, target, _ = first.decode("latin-1").split(" ", 2)
    headers = list(_headers(reader))
    named = {name.lower(): value for name, value in headers}
    if named.get("expect", "").lower() == "100-continue":
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" in named.get("transfer-encoding", ""):
        raise http.client.HTTPException("chunked requests are not forwarded")
    length = int(named.get("content-length", "0"))
    body = reader.read(length)
    if len(body) != length:
        raise http.client.HTTPException("request was cut by the client")
    return _Request(method, target, headers, body)


def _headers(reader: BinaryIO) -> Iterator[tuple[str, str]]:
    while line := reader.readline().decode("latin-1").rstrip("\r\n"):
        name, _, value = line.partition(":")
        yield name, value.strip()


def _forward(upstream: http.client.HTTPConnection, request: _Request) -> tuple[bytes, bytes]:
    """Have the server do the work; return the head and the body of its answer.

    Host stays what the client signed.
    """
    upstream.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
    for name, value in request.headers:
        if name.lower() not in _HOP:
            upstream.putheader(name, value)
    upstream.endheaders(request.body or None)
    with upstream.getresponse() as answer:
        body = answer.read()
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}"]
        kept = [
            (name, value)
            for name, value in answer.getheaders()
            if name.lower() not in _HOP | {"content-length"}
        ]
        length = answer.getheader("content-length") if request.method == "HEAD" else len(body)
        kept.append(("Content-Length", str(length or 0)))
        lines += [f"{name}: {value}" for name, value in kept]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), body


def _error_answer(status: int, code: str) -> bytes:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
        f"<Message>injected</Message></Error>"
    ).encode()
    head = (
        f"HTTP/1.1 {status} Injected\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
