"""The client of a state server, over a socket.

Called by tasks and by the driver. Errors are of the classes that the server raised. A client is
used by one thread at a time; sharing one is safe, and makes its threads wait for each other.
Uploads take long, so they have clients of their own.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self, cast

from moorage_state.errors import ServerGone, UserError, error_from_wire
from moorage_state.server.addresses import split_address
from moorage_state.server.operations import Lease, RangeApi, StateApi
from moorage_state.server.tls import TlsFiles, certificates
from moorage_state.server.wire import OPERATIONS, Connection, RemoteOperation, greet_server

_CONNECT_SECONDS = 10.0
_STORE_SECONDS = 300.0
"""What a store may take to answer, retries included, while its caller hears of no progress."""
LONG_OPERATIONS = frozenset(
    {"open_range", "save_many", "upload_many", "persist_many", "materialize_many"}
)
"""Those that move files to or from the store."""


class _RemoteRange:
    """A range of a connection's server: `RangeApi`, whose methods are put in below."""

    __slots__ = ("_lease", "_send")

    def __init__(self, send: Callable[..., Any], lease: Lease) -> None:
        self._send = send
        self._lease = lease


class StateClient(StateApi):
    """A connection to a state server: `StateApi`, whose methods are put in below.

    Made by `connect`. When the server goes away or does not answer in time, the call raises
    `ServerGone` and so does every later one: whether that call took effect is not known (all of
    them may be repeated) and a new client is needed.
    """

    def __init__(
        self,
        connection: Connection,
        address: str,
        server: str,
        timeout: float,
        store_timeout: float,
    ) -> None:
        self._connection = connection
        self._address = address
        self._server = server
        self._timeout = timeout
        self._store_timeout = store_timeout
        self._lock = threading.Lock()
        self._broken = ""

    @classmethod
    def connect(
        cls,
        address: str,
        token: str,
        timeout: float = 120.0,
        server: str = "",
        *,
        store_timeout: float = _STORE_SECONDS,
        tls: TlsFiles | None = None,
    ) -> "StateClient":
        """Connect to `unix:/path` or `tcp:host:port`, as a server or its group tells it.

        Args:
            token: the server's shared secret.
            timeout: seconds that the server may say nothing while a call is at work.
            server: the identity that the server must have; any if empty.
            store_timeout: the same as `timeout`, for calls that move files to or from the store.
            tls: by what a server at a TCP address is known, and we to it; None: in the clear.

        Raises:
            BadCertificate: our own will not do.
            AnotherServer: the server there is not the wanted one.
            ServerGone: nobody answers there.
            UserError: the address is not one, or the server refuses this client.
        """
        connected = _secured(_connect(address), address, tls)
        try:
            connection = Connection(connected)
            # The handshake as a whole, so that no stranger holds us up byte by byte.
            connection.limit(_CONNECT_SECONDS)
            identity = greet_server(connection, token, server)
            connection.limit(None)
            connected.settimeout(timeout)
        except (OSError, EOFError) as error:
            connected.close()
            raise _no_answer(address, str(error) or type(error).__name__) from error
        except BaseException:
            connected.close()
            raise
        return cls(connection, address, identity, timeout, store_timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._address

    @property
    def server(self) -> str:
        """The identity that the server has shown."""
        return self._server

    def close(self) -> None:
        """Close the connection; idempotent, and for any thread. The ranges stay open."""
        # First, so that a call which waits in another thread ends with `ServerGone` and this
        # reason.
        self._broken = self._broken or "the client was closed"
        self._connection.end()
        self._close_unused()

    def _close_unused(self) -> None:
        """Close the socket of a client that is given up, unless a call is at work: that does it."""
        if self._lock.acquire(blocking=False):
            try:
                self._connection.close()
            finally:
                self._lock.release()

    def range(self, lease: Lease, /) -> RangeApi:
        """The range, to call; whether it is there says only the answer to a call."""
        return cast("RangeApi", _RemoteRange(self._send, lease))

    @contextmanager
    def lent(self, seconds: float | None) -> Iterator[socket.socket]:
        """The socket for whoever exchanges whole messages itself, without waiting in it.

        Args:
            seconds: to wait for another thread's call; None: as long as that takes.

        Raises:
            ServerGone: the server went away, or another thread's call takes longer.
        """
        if not self._lock.acquire(timeout=-1 if seconds is None else seconds):
            self.close()
            raise _no_answer(self._address, "timed out")
        try:
            self._require_whole()
            connected = self._connection.socket
            connected.settimeout(0.0)
            yield connected
            with suppress(OSError):  # it was closed meanwhile
                connected.settimeout(self._timeout)
        finally:
            self._lock.release()
            if self._broken:
                self._close_unused()

    def patience(self, *, long: bool) -> float:
        """Seconds that the server may say nothing; `long`: in one of `LONG_OPERATIONS`."""
        return self._store_timeout if long else self._timeout

    def broken_by(self, problem: BaseException) -> ServerGone:
        """Give up the connection that this thread was lent; returns the error that says so."""
        self._break(problem)
        return _no_answer(self._address, self._broken)

    def _require_whole(self) -> None:
        if self._broken:
            raise ServerGone(
                f"connection to the state server is gone: address={self._address} "
                f"reason={self._broken}; connect again"
            )

    def _send(self, operation: RemoteOperation, arguments: tuple[Any, ...]) -> Any:
        try:
            with self._lock:
                error, payload = self._answer(operation, arguments)
        finally:
            if self._broken:
                self._close_unused()
        if error is not None:
            raise error_from_wire(error)
        return operation.decode_result(payload) if operation.has_reply else None

    def _answer(
        self, operation: RemoteOperation, arguments: tuple[Any, ...]
    ) -> tuple[dict[str, Any] | None, bytearray]:
        """What the server replies, nothing to what has no reply; under the lock."""
        self._require_whole()
        try:
            self._connection.send_request(operation, arguments)
            return self._reply(operation) if operation.has_reply else (None, bytearray())
        except (OSError, EOFError) as problem:
            raise self.broken_by(problem) from problem
        except BaseException as problem:
            # Half a message may be on its way: nothing sensible can follow it.
            self._break(problem)
            raise

    def _break(self, problem: BaseException) -> None:
        self._broken = self._broken or str(problem) or type(problem).__name__
        self._connection.close()

    def _reply(self, operation: RemoteOperation) -> tuple[dict[str, Any] | None, bytearray]:
        if operation.name not in LONG_OPERATIONS:
            return self._connection.receive_reply()
        self._connection.socket.settimeout(self._store_timeout)
        try:
            return self._connection.receive_reply()
        finally:
            self._connection.socket.settimeout(self._timeout)


def _remote(operation: RemoteOperation) -> Callable[..., Any]:
    """What sends one operation, as a method of the class that has it."""
    if operation.of_range:

        def ask_range(self: Any, *arguments: Any) -> Any:
            return self._send(operation, (self._lease, *arguments))

        return ask_range

    def ask_server(self: Any, *arguments: Any) -> Any:
        return self._send(operation, arguments)

    return ask_server


# The protocols are the one place where operations are written out; mypy sees their signatures.
for _name, _operation in OPERATIONS.items():
    setattr(_RemoteRange if _operation.of_range else StateClient, _name, _remote(_operation))


def _connect(address: str) -> socket.socket:
    scheme, _, where = address.partition(":")
    remote = split_address(where)
    try:
        if scheme == "unix" and where:
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connected.settimeout(_CONNECT_SECONDS)
            connected.connect(where)
            return connected
        if scheme == "tcp" and remote is not None:
            return socket.create_connection(remote, _CONNECT_SECONDS)
    except OSError as error:
        raise _no_answer(address, str(error) or type(error).__name__) from error
    raise UserError(
        f"not the address of a state server: address={address!r}; use unix:/path, tcp:host:port, "
        f"or tcp:[host]:port for IPv6"
    )


def _secured(connected: socket.socket, address: str, tls: TlsFiles | None) -> socket.socket:
    if tls is None or connected.family == socket.AF_UNIX:
        return connected
    try:
        return certificates(tls).connected(connected)
    except OSError as error:
        connected.close()
        why = getattr(error, "verify_message", "") or str(error) or type(error).__name__
        raise _no_answer(address, f"no connection by TLS: {why}") from error
    except BaseException:
        connected.close()
        raise


def _no_answer(address: str, why: str) -> ServerGone:
    return ServerGone(
        f"state server does not answer: address={address} error={why}; connect again when it is "
        f"back"
    )
