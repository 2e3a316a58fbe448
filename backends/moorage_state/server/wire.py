"""The bytes between a client and a state server: messages, handshake, and how calls are encoded.

A message is a header and a payload, both of which may be empty (integers big-endian)::

    header length (4) | payload length (8) | header | payload

Greeting: the server sends `MOORSTA` and one byte, the protocol version, then a nonce (32), the
length of its identity (1) and its identity. The client answers with a message whose header is
msgpack [protocol version, proof, nonce of its own (32)]; the server's reply holds its own proof, or
an error. A proof is HMAC-SHA256 under the token of `client` or `server`, a zero byte, the server's
nonce, the client's and the identity: each side shows that it knows the token, and the server that
it is the one that says so. A client that wants a certain server looks at the identity first and
proves nothing to another, whose token may be another one.

Request header: msgpack [operation, [arguments]]; those of an operation of `RangeApi` begin with the
lease. The argument that holds the bulk of a call (`BULK_ARGUMENTS`) travels as the payload instead:
`stage` as it is, all others as msgpack.
Reply header: msgpack nil, or {"code", "args", "bases"} of an error; its payload is the msgpack
result.
Before the reply of a long call may come any number of messages with the header true and no payload:
the call has got on since the one before.
`together` makes several calls with one message: its argument says whether they go on after one that
failed, its payload is msgpack [[operation, [arguments]], ...] and the result a pair [error or nil,
result] for each call that was begun. It ends early, after the call at work, when the client sends
anything meanwhile.
`stage` has no reply: its error is the reply of the next `prepare` of that attempt on the same
connection. Types on either side come from the signatures of `StateApi` and `RangeApi`.
"""

import hashlib
import hmac
import inspect
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

import msgspec

from moorage_state.errors import Bug, LocalDiskError, MoorageError, Retryable, UserError
from moorage_state.formats import UNREADABLE
from moorage_state.server.operations import Call, Lease, RangeApi, StateApi

PROTOCOL_VERSION = 4

BULK_ARGUMENTS = {
    "get_many": "keys",
    "scan_many": "prefixes",
    "stage": "frame",
    "upload_many": "requests",
    "save_many": "specs",
    "keep_union_list": "content",
}

_MAGIC = b"MOORSTA"
NONCE_BYTES = 32
_LENGTHS = struct.Struct(">IQ")
_MAX_HEADER = 64 << 20
_MAX_PAYLOAD = 4 << 30
_MAX_HELLO = 1 << 10
_BUFFER_BYTES = 1 << 20
_AHEAD_BYTES = 64 << 10
_SEND_JOINED_BELOW = 1 << 16

_SILENT_PEER_SECONDS = 20
"""How long a host may leave packets unanswered before its connections count as gone."""
_PROBES = 4

_CLIENT, _SERVER = b"client\0", b"server\0"

_pack = msgspec.msgpack.Encoder().encode


class AnotherServer(Retryable):
    """At the address is another server than the wanted one, which is gone."""

    code: ClassVar[str] = "another_server"


class _Request(msgspec.Struct, array_like=True):
    operation: str
    arguments: msgspec.Raw


class _Hello(msgspec.Struct, array_like=True):
    protocol: int
    proof: bytes
    nonce: bytes = b""


@dataclass(frozen=True, slots=True)
class RemoteOperation:
    """How one method of `StateApi` or `RangeApi` crosses the wire.

    `count` is of all arguments, which begin with the lease where the method is `of_range`;
    `defaults` are of those that a caller may leave out, which are the last.
    """

    name: str
    of_range: bool
    count: int
    defaults: tuple[Any, ...]
    bulk_at: int | None
    has_reply: bool
    decode_arguments: Callable[[bytes | bytearray | memoryview], tuple[Any, ...]]
    decode_bulk: Callable[[bytearray], Any]
    decode_result: Callable[[bytearray | memoryview], Any]

    def encode_request(self, arguments: tuple[Any, ...]) -> tuple[bytes, bytes]:
        """Header and payload of a call with its arguments in order."""
        arguments = self.complete(arguments)
        if self.bulk_at is None:
            return _pack((self.name, arguments)), b""
        bulk = arguments[self.bulk_at]
        small = arguments[: self.bulk_at] + arguments[self.bulk_at + 1 :]
        return _pack((self.name, small)), _pack(bulk) if self.has_reply else bulk

    def complete(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with those that were left out."""
        missing = self.count - len(arguments)
        return arguments + self.defaults[-missing:] if missing else arguments

    def arguments_of(self, raw: msgspec.Raw, payload: bytearray) -> tuple[Any, ...]:
        """The arguments of a call in order. Raises `Bug` if the operation takes others."""
        try:
            small = self.decode_arguments(memoryview(raw))
            if self.bulk_at is None:
                return small
            return (*small[: self.bulk_at], self.decode_bulk(payload), *small[self.bulk_at :])
        except UNREADABLE as error:
            raise Bug(f"malformed request: operation={self.name} error={error}") from error

    def carry_out(self, host: StateApi, arguments: tuple[Any, ...]) -> object:
        """Call the method with the arguments of `arguments_of`."""
        if self.of_range:
            return getattr(host.range(arguments[0]), self.name)(*arguments[1:])
        return getattr(host, self.name)(*arguments)


def _operation(api: type, name: str) -> RemoteOperation:
    method = getattr(api, name)
    hints = get_type_hints(method)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    of_range, bulk = api is RangeApi, BULK_ARGUMENTS.get(name)
    types = [Lease] * of_range + [hints[parameter.name] for parameter in parameters]
    names = ["lease"] * of_range + [parameter.name for parameter in parameters]
    bulk_at = names.index(bulk) if bulk is not None else None
    small = tuple(kind for at, kind in enumerate(types) if at != bulk_at)
    decode_bulk: Callable[[bytearray], Any] = _as_it_is
    if bulk is not None and name != "stage":
        decode_bulk = msgspec.msgpack.Decoder(hints[bulk]).decode
    return RemoteOperation(
        name=name,
        of_range=of_range,
        count=len(types),
        defaults=tuple(p.default for p in parameters if p.default is not p.empty),
        bulk_at=bulk_at,
        has_reply=name != "stage",
        decode_arguments=msgspec.msgpack.Decoder(tuple.__class_getitem__(small)).decode,
        decode_bulk=decode_bulk,
        decode_result=msgspec.msgpack.Decoder(hints["return"]).decode,
    )


def _as_it_is(payload: bytearray) -> bytearray:
    return payload


OPERATIONS = {
    name: _operation(api, name)
    for api in (StateApi, RangeApi)
    for name, _ in inspect.getmembers(api, inspect.isfunction)
    # `range` is answered by the client itself, and what the answer is asked is an operation.
    if name != "range" and not name.startswith("_")
}

_CalledTogether = list[tuple[dict[str, Any] | None, msgspec.Raw]]

TOGETHER = RemoteOperation(
    name="together",
    of_range=False,
    count=2,
    defaults=(),
    bulk_at=1,
    has_reply=True,
    decode_arguments=msgspec.msgpack.Decoder(tuple[bool]).decode,
    decode_bulk=msgspec.msgpack.Decoder(list[_Request]).decode,
    decode_result=msgspec.msgpack.Decoder(_CalledTogether).decode,
)
"""Several calls, whether they go on after an error first; see `encode_together`."""

_REQUESTS = OPERATIONS | {TOGETHER.name: TOGETHER}


def encode_together(calls: Iterable[Call], *, keep_going: bool) -> tuple[bytes, bytes]:
    """Header and payload of several calls."""
    several = []
    for call in calls:
        operation = OPERATIONS[call.operation]
        if operation.bulk_at is not None:
            raise Bug(f"is called alone: operation={call.operation}")
        lease = () if call.lease is None else (call.lease,)
        several.append((call.operation, operation.complete(lease + call.arguments)))
    return TOGETHER.encode_request((keep_going, several))


_decode_request = msgspec.msgpack.Decoder(_Request).decode
_decode_reply = msgspec.msgpack.Decoder(dict[str, Any] | bool | None).decode
_decode_error = msgspec.msgpack.Decoder(dict[str, Any] | None).decode
_decode_hello = msgspec.msgpack.Decoder(_Hello).decode


class Connection:
    """Messages over a connected socket. One thread at a time.

    Raises (every method): `OSError` and `EOFError` when the peer is gone or does not answer in
    the socket's time; the connection is then of no more use.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._deadline: float | None = None
        self._remote = connected.family != socket.AF_UNIX
        self._staging = False
        # Received, and not asked for yet.
        self._ahead = memoryview(b"")
        # A file must not be closed, and its number be another's, while it is shut down.
        self._closing = threading.Lock()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connected.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        if self._remote:
            # Requests and replies are whole messages: waiting for more to send only delays them.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _notice_lost_hosts(connected)

    def limit(self, seconds: float | None) -> None:
        """Give all that is received from here on, taken together, so many seconds; None: no end."""
        # A socket's own time is for each piece, so that a peer could go on for ever byte by byte.
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def send_request(self, operation: RemoteOperation, arguments: tuple[Any, ...]) -> None:
        """Send a call."""
        if not operation.has_reply and self._remote and not self._staging:
            # Calls without replies may fill the peer's buffers while its disk is slow, for longer
            # than a host may be silent, and the kernel counts a peer that reads nothing as silent.
            self._staging = True
            _bound_unacknowledged(self.socket, 0)
        self._send(*operation.encode_request(arguments))

    def receive_request(self) -> tuple[RemoteOperation, msgspec.Raw, bytearray]:
        """The next call: operation, arguments and payload. Raises `Bug` if it is no request."""
        header, payload = self._receive(_MAX_HEADER, _MAX_PAYLOAD)
        try:
            request = _decode_request(header)
            return _REQUESTS[request.operation], request.arguments, payload
        except (*UNREADABLE, KeyError) as error:
            raise Bug(f"request is not understood: error={error}") from error

    def has_more(self) -> bool:
        """Whether the peer has sent something since, or has gone."""
        if self._ahead:
            return True
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def send_result(self, result: object) -> None:
        """Answer a call."""
        self._send(_pack(None), _pack(result))

    def send_error(self, error: dict[str, object]) -> None:
        """Answer a call with what `error_to_wire` made."""
        self._send(_pack(error), b"")

    def send_progress(self) -> None:
        """Say that the call at work gets on."""
        self._send(_pack(True), b"")

    def receive_reply(self) -> tuple[dict[str, Any] | None, bytearray]:
        """The error of a call, or None and its encoded result."""
        while True:
            header, payload = self._receive(_MAX_HEADER, _MAX_PAYLOAD)
            reply = reply_in(header)
            # A sign of progress is a message as well: a call that gets on may take as long as it
            # likes.
            if not isinstance(reply, bool):
                if self._staging:
                    # The peer has read all that was sent before: its silence tells again.
                    self._staging = False
                    _bound_unacknowledged(self.socket, _SILENT_PEER_SECONDS)
                return reply, payload

    def receive_welcome(self) -> tuple[dict[str, Any] | None, bytearray]:
        """The reply to a hello, of a server that is not trusted yet: a short one."""
        header, payload = self._receive(_MAX_HELLO, _MAX_HELLO)
        try:
            return _decode_error(header), payload
        except UNREADABLE as error:
            raise UserError(
                f"peer is not a state server of this protocol: its welcome is not understood: "
                f"error={error}; use one release of moorage everywhere"
            ) from error

    def end(self) -> None:
        """Free whoever waits for the socket, which stays open; idempotent, and for any thread."""
        with self._closing:
            self._shut_down()

    def close(self) -> None:
        """Close the socket; idempotent. Nobody may be about to wait for it in another thread.

        It would wait for whatever else has the number of its file by then.
        """
        with self._closing:
            self._shut_down()
            self.socket.close()

    def _shut_down(self) -> None:
        with suppress(OSError):
            # Past TLS: after its own shutdown another thread would send on in the clear.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def send_hello(self, proof: bytes, nonce: bytes) -> None:
        """Answer the server's greeting."""
        self._send(_pack((PROTOCOL_VERSION, proof, nonce)), b"")

    def receive_hello(self) -> tuple[int, bytes, bytes]:
        """Protocol version, proof and nonce of a client that is not trusted yet."""
        header, _ = self._receive(_MAX_HELLO, 0)
        try:
            hello = _decode_hello(header)
        except UNREADABLE as error:
            raise Bug(f"hello is not understood: error={error}") from error
        return hello.protocol, hello.proof, hello.nonce

    def receive_exactly(self, size: int) -> bytearray:
        """The next `size` bytes."""
        data = bytearray(size)
        view = memoryview(data)
        while view:
            if self._deadline is not None:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("the peer takes too long")
                self.socket.settimeout(left)
            if len(view) >= _AHEAD_BYTES and not self._ahead:
                count = self.socket.recv_into(view)
            else:
                # A short message in one piece: after each a thread waits for Python's lock.
                self._ahead = self._ahead or memoryview(self.socket.recv(_AHEAD_BYTES))
                count = min(len(view), len(self._ahead))
                view[:count], self._ahead = self._ahead[:count], self._ahead[count:]
            if not count:
                raise EOFError("the peer closed the connection")
            view = view[count:]
        return data

    def _send(self, header: bytes, payload: bytes) -> None:
        lengths = _LENGTHS.pack(len(header), len(payload))
        # One packet for small ones; a large payload is not copied once more.
        if len(payload) < _SEND_JOINED_BELOW:
            self.socket.sendall(b"".join((lengths, header, payload)))
        else:
            self.socket.sendall(lengths + header)
            self.socket.sendall(payload)

    def _receive(self, max_header: int, max_payload: int) -> tuple[bytearray, bytearray]:
        header, payload = _LENGTHS.unpack(self.receive_exactly(_LENGTHS.size))
        if header > max_header or payload > max_payload:
            raise Bug(f"message is too large: header={header} payload={payload}")
        return self.receive_exactly(header), self.receive_exactly(payload)


def encode_message(header: bytes, payload: bytes) -> bytes:
    """The bytes of a message."""
    return b"".join((_LENGTHS.pack(len(header), len(payload)), header, payload))


def take_message(received: bytearray) -> tuple[bytearray, bytearray] | None:
    """Header and payload of the first message, which is removed; None while it is not whole."""
    if len(received) < _LENGTHS.size:
        return None
    header, payload = _LENGTHS.unpack_from(received)
    if header > _MAX_HEADER or payload > _MAX_PAYLOAD:
        raise Bug(f"message is too large: header={header} payload={payload}")
    start = _LENGTHS.size
    end = start + header + payload
    if len(received) < end:
        return None
    message = received[start : start + header], received[start + header : end]
    del received[:end]
    return message


def reply_in(header: bytearray) -> dict[str, Any] | bool | None:
    """What a reply's header says: an error, None for a result, True for a call that gets on."""
    try:
        reply: dict[str, Any] | bool | None = _decode_reply(header)
    except UNREADABLE as error:
        raise Bug(f"reply of a state server is not understood: error={error}") from error
    return reply


def _notice_lost_hosts(connected: socket.socket) -> None:
    """End the connection when the peer's host has vanished: nothing else would tell for minutes."""
    seconds = _SILENT_PEER_SECONDS // _PROBES
    # Keepalive asks a host that we wait for; the other bound is for what was sent and never
    # acknowledged. A peer that takes nothing in for that long counts as gone, too.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES - 1)
    _bound_unacknowledged(connected, _SILENT_PEER_SECONDS)


def _bound_unacknowledged(connected: socket.socket, seconds: int) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)


def accept_peer(connection: Connection, token: str, nonce: bytes, server: str = "") -> None:
    """The server's side of the handshake; `server` is its identity, 255 ASCII characters at most.

    Raises `UserError` for another protocol version or a wrong token; the client has been told.
    """
    identity = server.encode("ascii")
    greeting = _MAGIC + bytes([PROTOCOL_VERSION]) + nonce + bytes([len(identity)]) + identity
    connection.socket.sendall(greeting)
    protocol, proof, theirs = connection.receive_hello()
    both, refusal = nonce + theirs + identity, ""
    if protocol != PROTOCOL_VERSION:
        refusal = f"protocol version differs: client={protocol} server={PROTOCOL_VERSION}"
    # In constant time: how long a wrong proof takes must not tell how much of it was right.
    elif not hmac.compare_digest(proof, _proof(token, _CLIENT, both)):
        refusal = "token is wrong"
    if refusal:
        error = UserError(f"state server refuses the connection: {refusal}")
        connection.send_error({"code": error.code, "args": list(error.args)})
        raise error
    connection.send_result(_proof(token, _SERVER, both))


def greet_server(connection: Connection, token: str, wanted: str = "") -> str:
    """The client's side of the handshake; returns the identity of the server.

    `wanted` is the identity that it must have; any if empty.

    Raises:
        AnotherServer: it is not the wanted one, or is another job's.
        UserError: the server refuses, does not know the token, or is something else.
    """
    greeting = connection.receive_exactly(len(_MAGIC) + 1)
    if greeting[: len(_MAGIC)] != _MAGIC or greeting[-1] != PROTOCOL_VERSION:
        raise UserError(
            f"peer is not a state server of this protocol: greeting={bytes(greeting)!r} "
            f"protocol={PROTOCOL_VERSION}; use one release of moorage everywhere"
        )
    nonce = bytes(connection.receive_exactly(NONCE_BYTES))
    identity = bytes(connection.receive_exactly(connection.receive_exactly(1)[0]))
    server = identity.decode("ascii", errors="replace")
    if wanted and server != wanted:
        raise AnotherServer(
            f"another state server is at the address: wanted={wanted} found={server}; the wanted "
            f"one is gone"
        )
    mine = secrets.token_bytes(NONCE_BYTES)
    both = nonce + mine + identity
    connection.send_hello(_proof(token, _CLIENT, both), mine)
    error, payload = connection.receive_welcome()
    if error is not None:
        raise _refusal("; ".join(str(arg) for arg in error.get("args", ())), wanted)
    if not hmac.compare_digest(_decode_proof(payload), _proof(token, _SERVER, both)):
        raise _refusal(
            f"peer does not know the token of this job's state servers: server={server}; another "
            f"program answers at this address",
            wanted,
        )
    return server


def _refusal(text: str, wanted: str) -> MoorageError:
    """The error for a peer that refuses, or does not know the token."""
    if not wanted:
        return UserError(text)
    # One of the wanted name was this job's once; now another job has its place on the volume.
    return AnotherServer(f"another job has the state server's place: wanted={wanted} ({text})")


def _decode_proof(payload: bytearray) -> bytes:
    try:
        return msgspec.msgpack.decode(payload, type=bytes)
    except UNREADABLE:
        return b""


def _proof(token: str, side: bytes, both: bytes) -> bytes:
    return hmac.digest(token.encode(), side + both, hashlib.sha256)


def as_moorage_error(error: Exception) -> MoorageError:
    """`error` itself, or one that says what it was."""
    if isinstance(error, MoorageError):
        return error
    # Stores and sockets have errors of their own: what is left is the volume.
    if isinstance(error, OSError):
        return LocalDiskError(
            f"a volume does not work: {error}; check space and health of this volume"
        )
    return Bug(f"unexpected error in the state server: {type(error).__name__}: {error}")
