"""A thread that answers HTTP, and keeps itself from being exhausted.

Knows nothing of what is asked: it is given the handler, which has the usual kinds of answers here.
Called by the endpoint of a driver on a cluster, and by the page.

Everything is bounded: by `Connections` how many there may be and how long each may take. Who has
shown no token, which is anybody at all, has one deadline for all that it does, and the oldest of
them makes room for another. Who has shown one has a deadline for each request, and a room that
strangers cannot fill.
"""

import asyncio
import json
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from moorage_state.server.addresses import listen

_log = logging.getLogger(__name__)
_MOST = 64
_LOOK_SECONDS = 1.0
_FULL_SECONDS = 0.1
_BACKLOG = 64
_END_SECONDS = 1.0
_START_SECONDS = 30.0
# What is wrong with a request is its sender's business and no line of the log.
_http_log = logging.getLogger(f"{__name__}.http")
_http_log.propagate = False
_http_log.addHandler(logging.NullHandler())

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(slots=True, eq=False)
class _Visit:
    """One connection."""

    connected: socket.socket
    since: float  # when it came or, once it is known, had its last answer
    begun: bool = False  # has got as far as HTTP
    known: bool = False  # has shown a token


class Connections:
    """Accepts for a server until its task is cancelled.

    Args:
        listener: listens already; closed in the end.
        secured: the TLS of a connection that begins now; None: in the clear.
        seconds: that a request may take to arrive, and an idle connection is kept; all the time
            that a stranger has.
        most: connections that have shown a token, and as many that have not.
    """

    def __init__(
        self,
        server: web.Server,
        listener: socket.socket,
        *,
        seconds: float,
        secured: Callable[[], ssl.SSLContext] | None = None,
        most: int = _MOST,
    ) -> None:
        self._server = server
        self._listener = listener
        self._seconds = seconds
        self._secured = secured
        self._most = most
        self._visits: dict[Any, _Visit] = {}

    async def run(self) -> None:
        """Let connections in, and those out that take too long."""
        self._listener.setblocking(False)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._look())
                while True:
                    connected = await self._accepted()
                    tasks.create_task(self._admit(connected))
        finally:
            self._listener.close()

    def trust(self, protocol: object) -> None:
        """It has shown a token: strangers do not count against it any more."""
        if protocol in self._visits:
            self._visits[protocol].known = True

    def answered(self, protocol: object) -> None:
        """It has had an answer, and may begin anew, if it is no stranger."""
        if protocol in self._visits and self._visits[protocol].known:
            self._visits[protocol].since = asyncio.get_running_loop().time()

    async def _accepted(self) -> socket.socket:
        while True:
            try:
                connected, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            except OSError as error:  # too many open files, or it left meanwhile
                _log.warning("endpoint_full: error=%s", error)
                await asyncio.sleep(_FULL_SECONDS)
            else:
                return connected

    async def _admit(self, connected: socket.socket) -> None:
        loop, handler = asyncio.get_running_loop(), self._server()
        self._visits[handler] = visit = _Visit(connected, loop.time())
        self._drop()
        try:
            await loop.connect_accepted_socket(
                lambda: handler,
                connected,
                ssl=self._secured() if self._secured else None,
                ssl_handshake_timeout=self._seconds if self._secured else None,
            )
            visit.begun = True
        except OSError:
            del self._visits[handler]
            connected.close()

    async def _look(self) -> None:
        while True:
            try:
                self._drop()
            except Exception:  # noqa: BLE001 - one connection's fault is not the others'
                _log.exception("endpoint_failed: slow connections are not dropped")
            await asyncio.sleep(min(_LOOK_SECONDS, self._seconds / 4))

    def _drop(self) -> None:
        """Hang up on who takes too long, and on the slowest where there are too many."""
        there = set(self._server.connections)
        for handler in [h for h, visit in self._visits.items() if visit.begun and h not in there]:
            del self._visits[handler]
        now = asyncio.get_running_loop().time()
        for known in (False, True):
            room = [(h, visit) for h, visit in self._visits.items() if visit.known is known]
            room.sort(key=lambda one: one[1].since)
            for place, (handler, visit) in enumerate(room):
                if now - visit.since > self._seconds or place < len(room) - self._most:
                    _hang_up(handler, visit)


def _hang_up(handler: Any, visit: _Visit) -> None:
    transport = handler.transport
    if visit.begun and transport is not None:
        handler.force_close()
        transport.abort()
        return
    with suppress(OSError):  # it has ended by itself
        visit.connected.shutdown(socket.SHUT_RDWR)


class HttpServer:
    """Listens, and from `start` on serves until it is closed, in a thread and a loop of its own.

    Args:
        handle: gives each request its answer, in the loop: it must not wait elsewhere.
        name: of the thread.
        host: `EVERYWHERE` for all addresses.
        port: 0 for any that is free.
        lost: called with the reason if it ends by itself.

    See `Connections` for the others.

    Raises:
        OSError: the address cannot be listened on.
    """

    def __init__(
        self,
        handle: Handler,
        *,
        name: str,
        host: str,
        port: int,
        seconds: float,
        most: int = _MOST,
        secured: Callable[[], ssl.SSLContext] | None = None,
        lost: Callable[[str], object] = lambda _reason: None,
    ) -> None:
        self._handle = handle
        self._lost = lost
        self._seconds = seconds
        self._listener = listen(host, port, backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._limits = most, secured
        self._connections: Connections | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Serve from now on; who has connected already is not lost."""
        self._thread.start()

    def trust(self, request: web.BaseRequest) -> None:
        """Who asks has shown a token. To be called in the loop."""
        if self._connections is not None:
            self._connections.trust(request.protocol)

    def close(self) -> None:
        """Serve no more; connections are closed."""
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        error: Exception | None = None
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as caught:  # noqa: BLE001 - the owner must hear of it, whatever it is
            error = caught
        finally:
            self._listener.close()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
        if not self._stop.is_set():
            _log.error("endpoint_lost: thread=%s", self._thread.name, exc_info=error)
            self._lost(str(error) or type(error).__name__)

    async def _serve(self) -> None:
        server = web.Server(
            self._answered,
            access_log=None,
            logger=_http_log,
            auto_decompress=False,
            keepalive_timeout=self._seconds,
            lingering_time=0,
            max_headers=64,
        )
        most, secured = self._limits
        self._connections = Connections(
            server, self._listener, seconds=self._seconds, secured=secured, most=most
        )
        accepting = self._loop.create_task(self._connections.run())
        stopping = self._loop.create_task(self._stop.wait())
        try:
            await asyncio.wait({accepting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                accepting.result()  # it goes on for ever, unless it fails
        finally:
            for task in (accepting, stopping):
                task.cancel()
            await asyncio.wait({accepting, stopping})
            await server.shutdown(_END_SECONDS)

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await self._handle(request)
        if not request.content.at_eof():
            answer.force_close()  # the rest of a body is not read, so no next request is found
        if self._connections is not None:
            self._connections.answered(request.protocol)
        return answer


class Refused(Exception):
    """An answer that is no success; `code` is a stable word, the message is for people."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers

    def answer(self) -> web.Response:
        """As it is sent."""
        answer = json_answer({"error": {"code": self.code, "message": str(self)}}, self.status)
        answer.headers.update(self.headers)
        return answer


async def body_of(request: web.BaseRequest, most: int) -> bytes:
    """The whole body, if it is short enough; nothing longer is taken into memory.

    Raises:
        Refused: it is longer than `most` bytes, or does not arrive whole.
    """
    too_long = Refused(413, "too_large", f"the body is too long: max={most}")
    if (request.content_length or 0) > most:
        raise too_long
    data = bytearray()
    try:
        async for piece in request.content.iter_any():
            data += piece
            if len(data) > most:
                raise too_long
    except web.RequestPayloadError as error:
        told = "the body is not as it must be: it does not arrive whole"
        raise Refused(400, "bad_request", told) from error
    return bytes(data)


def json_answer(body: object, status: int = 200) -> web.Response:
    """Plain data as JSON."""
    # An answer of some hundred keys takes `json` ten times as long.
    try:
        encoded = msgspec.json.encode(body)
    except UnicodeEncodeError:  # half a character, which only `json` replaces
        encoded = json.dumps(body, ensure_ascii=False).encode("utf-8", errors="replace")
    return web.Response(body=encoded, status=status, content_type="application/json")
