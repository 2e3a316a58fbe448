"""Serves a `RangeHost` on listening sockets, one thread a connection.

Decides when an error ends a connection and when only a call. Called by `process`. Who has not shown
yet that it knows the token stays in the listener's `Lobby`, so that strangers hold only so many
threads, and each only so long. The `Pulse` tells clients that long calls get on.
"""

import contextlib
import errno
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from moorage_state.errors import MoorageError, UserError, error_to_wire
from moorage_state.progress import Progress, advance, carrying
from moorage_state.server.operations import StateApi
from moorage_state.server.tls import Certificates
from moorage_state.server.wire import (
    NONCE_BYTES,
    OPERATIONS,
    TOGETHER,
    Connection,
    RemoteOperation,
    accept_peer,
    as_moorage_error,
)

_PULSE_SECONDS = 5.0
_log = logging.getLogger(__name__)
_HANDSHAKE_SECONDS = 10.0
_MOST_STRANGERS = 64
"""By listener: a crowd that comes over the network leaves room on the Unix socket."""

_FULL_SECONDS = 0.1
_CLOSED = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
_ATTEMPT = slice(0, 3)
_AttemptKey = tuple[Any, ...]


class Lobby:
    """Connections of one listener that are not trusted yet: at most `most`, each for `seconds`."""

    def __init__(
        self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._places = threading.Semaphore(most)
        self._changed = threading.Condition()
        # In the order of coming, so that the first one is the oldest.
        self._since: dict[socket.socket, float] = {}
        threading.Thread(target=self._watch, name="lobby", daemon=True).start()

    def enter(self, connected: socket.socket) -> None:
        """Take a connection in; waits until the oldest has made room, if there is none."""
        if not self._places.acquire(blocking=False):
            with self._changed:
                oldest = next(iter(self._since), None)
                if oldest is not None:
                    _hang_up(oldest)
            # Whoever was hung up on, or has ended by itself, comes out: never more than `most`.
            self._places.acquire()
        with self._changed:
            self._since[connected] = self._clock()
            self._changed.notify()

    def leave(self, connected: socket.socket) -> None:
        """It is trusted, or over; idempotent."""
        with self._changed:
            inside = self._since.pop(connected, None) is not None
        if inside:
            self._places.release()

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = self._clock()
                for connected, since in self._since.items():
                    if now - since >= self._seconds:
                        _hang_up(connected)
                first = next((s for s in self._since.values() if now - s < self._seconds), None)
                self._changed.wait(None if first is None else first + self._seconds - now)


def _hang_up(connected: socket.socket) -> None:
    # It may have ended by itself. A TLS socket waits for nobody here either.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


@dataclass(slots=True, eq=False)
class _Call:
    """A call at work."""

    connection: Connection
    progress: Progress = field(default_factory=Progress)
    lock: threading.Lock = field(default_factory=threading.Lock)
    # Nothing is sent for it without the lock, or when it is over: its reply would come in between.
    over: bool = False


class Pulse:
    """The calls of a server that are at work, looked at every so many `seconds`."""

    def __init__(
        self, seconds: float = _PULSE_SECONDS, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._seconds = seconds
        self._sleep = sleep
        self._calls: dict[int, _Call] = {}

    def start(self) -> None:
        """Look after calls in the background for as long as the process lives."""
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    @contextmanager
    def of(self, connection: Connection) -> Iterator[None]:
        """Within the block a call of this connection is at work; nothing is sent after it."""
        call = _Call(connection)
        self._calls[id(call)] = call
        try:
            with carrying(call.progress):
                yield
        finally:
            with call.lock:
                call.over = True
            del self._calls[id(call)]

    def beat(self) -> None:
        """Tell the clients of all calls that have got on since the last time."""
        for call in list(self._calls.values()):
            with call.lock, suppress(OSError):  # who has gone is missed by nobody
                if not call.over and call.progress.moved():
                    call.connection.send_progress()

    def _run(self) -> None:
        while True:
            self._sleep(self._seconds)
            self.beat()


class Service:
    """Answers every connection to the sockets it listens on.

    Args:
        server: the identity that this server shows.
        strangers: how many connections of a listener may be under handshake.
        seconds: for the whole of a handshake.
        certificates: for TCP; without them, it is in the clear.
    """

    def __init__(
        self,
        host: StateApi,
        token: str,
        server: str = "",
        *,
        strangers: int = _MOST_STRANGERS,
        seconds: float = _HANDSHAKE_SECONDS,
        pulse: Pulse | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self._host = host
        self._token = token
        self._server = server
        self._strangers = strangers
        self._seconds = seconds
        self._certificates = certificates
        self._pulse = pulse or Pulse()
        self._pulse.start()

    def listen(self, listener: socket.socket) -> None:
        """Accept connections in the background for as long as the process lives."""
        # Daemons, as all threads here: the end of the process never waits for them.
        threading.Thread(target=self._accept, args=(listener,), name="accept", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        lobby = Lobby(self._strangers, self._seconds)
        while True:
            try:
                connected = self._secured(listener.accept()[0])
            except UserError as error:
                _log.warning("connection not accepted: error=%s", error)
                continue
            except OSError as error:
                if error.errno in _CLOSED:
                    return  # the listener was closed
                # Too many open files, or a client that left meanwhile: others may come still.
                _log.warning("connection not accepted: error=%s", error)
                time.sleep(_FULL_SECONDS)
                continue
            lobby.enter(connected)
            thread = threading.Thread(
                target=self._serve, args=(connected, lobby), name="serve", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # there are as many as the system allows
                _log.warning("connection not served: error=%s", error)
                connected.close()
                lobby.leave(connected)

    def _secured(self, connected: socket.socket) -> socket.socket:
        """With TLS to come, where it is wanted; nothing is sent or waited for yet."""
        if self._certificates is None or connected.family == socket.AF_UNIX:
            return connected
        try:
            return self._certificates.accepted(connected)
        except BaseException:
            connected.close()
            raise

    def _shake_hands(self, connected: socket.socket) -> None:
        if isinstance(connected, ssl.SSLSocket) and self._certificates is not None:
            connected.do_handshake()
            self._certificates.refuse_others(connected)

    def _serve(self, connected: socket.socket, lobby: Lobby) -> None:
        try:
            self._shake_hands(connected)
            connection = Connection(connected)
            accept_peer(connection, self._token, secrets.token_bytes(NONCE_BYTES), self._server)
            lobby.leave(connected)
            staged: dict[_AttemptKey, MoorageError] = {}
            while True:
                self._answer(connection, staged)
        except UserError as error:
            _log.warning("connection refused: error=%s", error)
        except MoorageError as error:
            _log.warning("connection closed: error=%s", error)
        except ssl.SSLError as error:
            _log.warning("connection refused: error=%s", error.reason or error)
        except (OSError, EOFError):
            pass  # clients come and go
        finally:
            connected.close()
            lobby.leave(connected)

    def _answer(self, connection: Connection, staged: dict[_AttemptKey, MoorageError]) -> None:
        operation, raw, payload = connection.receive_request()
        arguments: tuple[Any, ...] | None = None
        try:
            arguments = operation.arguments_of(raw, payload)
            with self._pulse.of(connection) if operation.has_reply else nullcontext():
                if operation is TOGETHER:
                    result: object = self._together(connection, *arguments)
                else:
                    result = self._call(operation, arguments, staged)
        except Exception as problem:  # every error goes to the client that asked
            error = as_moorage_error(problem)
            if error is not problem:
                _log.exception("operation failed: operation=%s", operation.name)
            if operation.has_reply:
                connection.send_error(error_to_wire(error))
            elif arguments is None:
                raise error from problem
            else:
                # Nobody waits for a reply to `stage`: its first error is that of the attempt's
                # `prepare`.
                staged.setdefault(_attempt(arguments), error)
            return
        if operation.has_reply:
            connection.send_result(result)

    def _together(
        self,
        connection: Connection,
        keep_going: bool,  # noqa: FBT001  as it crosses the wire
        calls: Iterable[Any],
    ) -> list[tuple[dict[str, object] | None, object]]:
        answers: list[tuple[dict[str, object] | None, object]] = []
        for call in calls:
            # Whoever sends something before it has the answer has no use for the calls that are
            # left.
            if answers and connection.has_more():
                break
            try:
                operation = OPERATIONS[call.operation]
                arguments = operation.arguments_of(call.arguments, bytearray())
                answers.append((None, operation.carry_out(self._host, arguments)))
            except Exception as problem:  # noqa: BLE001  every error goes to the client that asked
                error = as_moorage_error(problem)
                if error is not problem:
                    _log.exception("operation failed: operation=%s", call.operation)
                answers.append((error_to_wire(error), None))
                if not keep_going:
                    break
            advance()
        return answers

    def _call(
        self,
        operation: RemoteOperation,
        arguments: tuple[Any, ...],
        staged: dict[_AttemptKey, MoorageError],
    ) -> object:
        if operation.name == "prepare":
            error = staged.pop(_attempt(arguments), None)
            if error is not None:
                raise error
        elif operation.name == "stage" and _attempt(arguments) in staged:
            return None
        elif operation.name == "abort":
            staged.pop(_attempt(arguments), None)
        return operation.carry_out(self._host, arguments)


def _attempt(arguments: tuple[Any, ...]) -> _AttemptKey:
    """What names an attempt."""
    # Lease, epoch and attempt lead in all three operations.
    return arguments[_ATTEMPT]
