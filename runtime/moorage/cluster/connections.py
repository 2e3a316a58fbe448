"""The connections of the driver's endpoint: how many there may be, and how long each may take.

Decides who must go. Who has shown no token, which is anybody at all, has one deadline for all that
it does, and the oldest of them makes room for another. Who has shown one has a deadline for each
request, and a room that strangers cannot fill. Called by `Endpoint`, within its loop.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

__all__ = ["Connections"]

_log = logging.getLogger(__name__)

_MOST = 64
_LOOK_SECONDS = 1.0
_FULL_SECONDS = 0.1


@dataclass(slots=True, eq=False)
class _Visit:
    """One connection.

    Attributes:
        since: when it came or, once it is known, had its last answer.
        begun: whether it has got as far as HTTP.
        known: whether it has shown a token.
    """

    connected: socket.socket
    since: float
    begun: bool = False
    known: bool = False


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
