"""Clients of a state server: over a socket, or of a host in this process.

Called by tasks and by the driver. Errors are the same classes on either way. A client is used by
one thread at a time; sharing one is safe, and makes its threads wait for each other. Uploads
take long, so they have clients of their own.
"""

import socket
import threading
from abc import ABC, abstractmethod
from typing import Any, Self

from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.errors import ServerGone, UserError, error_from_wire
from moorage_state.server.addresses import split_address
from moorage_state.server.api import (
    EVENT_TIMER_KIND,
    OpenResult,
    Prepared,
    RangeSpec,
    RangeStats,
    RestoreBase,
    Scan,
    SnapshotSync,
    StateApi,
    Uploaded,
    UploadLimits,
    UploadRequest,
    Version,
)
from moorage_state.server.tls import TlsFiles, certificates
from moorage_state.server.wire import OPERATIONS, Connection, greet_server

__all__ = ["InProcessClient", "StateClient"]

_CONNECT_SECONDS = 10.0
_STORE_SECONDS = 300.0
"""What a store may take to answer, retries included, while its caller hears of no progress."""
_LONG_OPERATIONS = frozenset({"open_range", "save_many", "upload_many"})


class _Calls(ABC):
    """`StateApi` in terms of one call; see there for what each method does and raises."""

    @abstractmethod
    def _call(self, operation: str, *arguments: Any) -> Any:
        """Carry out one method of `StateApi` with all its arguments in order."""

    def ping(self) -> int:
        pid: int = self._call("ping")
        return pid

    def adopt(self, lineage: str) -> bool:
        deleted: bool = self._call("adopt", lineage)
        return deleted

    def open_range(
        self,
        spec: RangeSpec,
        run: str,
        base: RestoreBase | None,
        committed: list[Version],
        store_url: str,
        initial_epoch: int = 0,
    ) -> OpenResult:
        result: OpenResult = self._call(
            "open_range", spec, run, base, committed, store_url, initial_epoch
        )
        return result

    def get_many(
        self, uid: str, start: int, run: str, version: Version, keys: list[bytes]
    ) -> list[bytes | None]:
        values: list[bytes | None] = self._call("get_many", uid, start, run, version, keys)
        return values

    def scan_many(
        self,
        uid: str,
        start: int,
        run: str,
        version: Version,
        prefixes: list[bytes],
        limit_entries: int = 10_000,
        limit_bytes: int = 64 << 20,
    ) -> list[Scan]:
        found: list[Scan] = self._call(
            "scan_many", uid, start, run, version, prefixes, limit_entries, limit_bytes
        )
        return found

    def scan_from(
        self,
        uid: str,
        start: int,
        run: str,
        version: Version,
        prefix: bytes,
        after: bytes = b"",
        limit: int = 10_000,
    ) -> Scan:
        found: Scan = self._call("scan_from", uid, start, run, version, prefix, after, limit)
        return found

    def due_timers(
        self,
        uid: str,
        start: int,
        run: str,
        version: Version,
        up_to_ms: int,
        limit: int,
        after: bytes = b"",
        kind: int = EVENT_TIMER_KIND,
    ) -> list[bytes]:
        due: list[bytes] = self._call(
            "due_timers", uid, start, run, version, up_to_ms, limit, after, kind
        )
        return due

    def next_timer(
        self, uid: str, start: int, run: str, version: Version, after_ms: int, kind: int
    ) -> int | None:
        found: int | None = self._call("next_timer", uid, start, run, version, after_ms, kind)
        return found

    def stage(
        self,
        uid: str,
        start: int,
        run: str,
        epoch: int,
        attempt: str,
        frame: bytes,
        seq: int,
    ) -> None:
        self._call("stage", uid, start, run, epoch, attempt, frame, seq)

    def prepare(
        self,
        uid: str,
        start: int,
        run: str,
        epoch: int,
        attempt: str,
        parent_digest: str,
        frame_count: int,
    ) -> Prepared:
        prepared: Prepared = self._call(
            "prepare", uid, start, run, epoch, attempt, parent_digest, frame_count
        )
        return prepared

    def abort(self, uid: str, start: int, run: str, epoch: int, attempt: str) -> None:
        self._call("abort", uid, start, run, epoch, attempt)

    def commit(
        self,
        uid: str,
        start: int,
        run: str,
        epoch: int,
        digest: str,
        wait: bool = False,  # noqa: FBT001, FBT002  arguments cross the wire by position
    ) -> None:
        self._call("commit", uid, start, run, epoch, digest, wait)

    def snapshot(
        self, uid: str, start: int, run: str, checkpoint_id: int, version: Version
    ) -> SnapshotSync:
        result: SnapshotSync = self._call("snapshot", uid, start, run, checkpoint_id, version)
        return result

    def upload_many(
        self,
        run: str,
        checkpoint_id: int,
        store_url: str,
        requests: list[UploadRequest],
        limits: UploadLimits,
    ) -> Uploaded:
        uploaded: Uploaded = self._call(
            "upload_many", run, checkpoint_id, store_url, requests, limits
        )
        return uploaded

    def save_many(
        self,
        run: str,
        checkpoint_id: int,
        store_url: str,
        specs: list[CanonicalSpec],
        canonical: bool,  # noqa: FBT001 - as in StateApi
    ) -> Uploaded:
        uploaded: Uploaded = self._call(
            "save_many", run, checkpoint_id, store_url, specs, canonical
        )
        return uploaded

    def notify_complete(self, checkpoint_id: int, run: str = "") -> None:
        self._call("notify_complete", checkpoint_id, run)

    def notify_aborted(self, checkpoint_id: int, run: str = "") -> None:
        self._call("notify_aborted", checkpoint_id, run)

    def release_range(self, uid: str, start: int, run: str) -> None:
        self._call("release_range", uid, start, run)

    def stats(self) -> list[RangeStats]:
        stats: list[RangeStats] = self._call("stats")
        return stats


class InProcessClient(_Calls):
    """The interface of `StateClient` on a host in this process. Errors of `stage` come at once."""

    def __init__(self, host: StateApi) -> None:
        self._host = host

    def _call(self, operation: str, *arguments: Any) -> Any:
        return getattr(self._host, operation)(*arguments)

    def close(self) -> None:
        """Does nothing: the host belongs to whoever made it."""


class StateClient(_Calls):
    """A connection to a state server.

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
        """Connect to `unix:/path` or `tcp:host:port`.

        Args:
            address: as a server or its group tells it.
            token: the server's shared secret.
            timeout: seconds that the server may say nothing while a call is at work. As long as the
                call gets on, the server says so.
            server: the identity that the server must have; any if empty.
            store_timeout: the same for calls that move files to or from the store.
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
        """Close the connection; idempotent, and for any thread. The ranges stay open.

        A call that waits for its answer in another thread ends with `ServerGone`.
        """
        self._broken = self._broken or "the client was closed"
        self._connection.close()

    def _call(self, operation: str, *arguments: Any) -> Any:
        kind = OPERATIONS[operation]
        with self._lock:
            if self._broken:
                raise ServerGone(
                    f"connection to the state server is gone: address={self._address} "
                    f"reason={self._broken}; connect again"
                )
            try:
                self._connection.send_request(kind, arguments)
                if not kind.has_reply:
                    return None
                error, payload = self._reply(operation)
            except (OSError, EOFError) as problem:
                self._break(problem)
                raise _no_answer(self._address, self._broken) from problem
            except BaseException as problem:
                # Half a message may be on its way: nothing sensible can follow it.
                self._break(problem)
                raise
        if error is not None:
            raise error_from_wire(error)
        return kind.decode_result(payload)

    def _break(self, problem: BaseException) -> None:
        self._broken = self._broken or str(problem) or type(problem).__name__
        self._connection.close()

    def _reply(self, operation: str) -> tuple[dict[str, Any] | None, bytearray]:
        if operation not in _LONG_OPERATIONS:
            return self._connection.receive_reply()
        self._connection.socket.settimeout(self._store_timeout)
        try:
            return self._connection.receive_reply()
        finally:
            self._connection.socket.settimeout(self._timeout)


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
