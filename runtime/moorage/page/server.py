"""Serves the page of a run on this machine, to this machine only.

Decides that nobody can hold up the run: one thread of its own, so many connections at once, so long
for each, one answer a connection. Read-only, without a token: what is shown holds no state values.
"""

import asyncio
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from moorage_state.errors import UserError

_log = logging.getLogger(__name__)
HOST = "127.0.0.1"
_NAMES = frozenset({"localhost", "127.0.0.1"})
_MOST = 16
_MOST_HEAD = 8 << 10
_SECONDS = 5.0
_END_SECONDS = 5.0
_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class PageServer:
    """Serves until it is closed.

    Args:
        page: the document; given the nonce that its style and script must carry.
        port: 0 for any that is free.
        seconds: what a connection has for its request, and as much again for taking the answer.

    Raises:
        UserError: the port cannot be listened on.
    """

    def __init__(
        self, page: Callable[[str], str], *, port: int, seconds: float = _SECONDS, most: int = _MOST
    ) -> None:
        self._page = page
        self._seconds = seconds
        self._most = most
        self._there = 0
        try:
            listener = socket.create_server((HOST, port))
        except OSError as error:
            raise UserError(
                f"the page cannot be served: host={HOST} port={port} error={error.strerror}; name "
                f"another port with --page"
            ) from error
        self.port: int = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="moorage-page", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """For people."""
        return f"http://localhost:{self.port}"

    def close(self) -> None:
        """Serve no more."""
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_END_SECONDS)

    def _run(self, listener: socket.socket) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve(listener))
        finally:
            listener.close()

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._visit, sock=listener, limit=_MOST_HEAD)
        await self._stop.wait()
        server.close()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._there += 1
        try:
            status, body, nonce = 503, "too many readers at once; try again\n", ""
            if self._there <= self._most:
                async with asyncio.timeout(self._seconds):
                    head = await reader.readuntil(b"\r\n\r\n")
                status, body, nonce = self._answer(head)
            writer.write(_response(status, body, nonce))
            async with asyncio.timeout(self._seconds):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._there -= 1

    def _answer(self, head: bytes) -> tuple[int, str, str]:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3:
            return 400, "not a request of HTTP\n", ""
        fields = [line.partition(":") for line in lines[1:] if line]
        hosts = [value.strip() for name, _, value in fields if name.lower() == "host"]
        # A name that somebody else's DNS points here would let his pages read this one.
        if len(hosts) != 1 or hosts[0].partition(":")[0] not in _NAMES:
            return 403, f"open {self.url}\n", ""
        if words[0] != "GET":
            return 405, "the page can only be read\n", ""
        if words[1] != "/":
            return 404, "there is only /\n", ""
        nonce = secrets.token_urlsafe(16)
        try:
            return 200, self._page(nonce), nonce
        except Exception:  # noqa: BLE001 - its own fault must not look like a lost connection
            _log.exception("page_failed")
            return 500, "the page cannot be drawn; see what the run prints\n", ""


def _response(status: int, body: str, nonce: str) -> bytes:
    content = body.encode()
    kind = "text/html" if status == 200 else "text/plain"
    allowed = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; " if nonce else ""
    policy = (
        f"default-src 'none'; {allowed}img-src data:; connect-src 'self'; base-uri 'none'; "
        f"form-action 'none'"
    )
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {kind}; charset=utf-8",
        f"Content-Length: {len(content)}",
        f"Content-Security-Policy: {policy}; frame-ancestors 'none'",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Cache-Control: no-store",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + content
