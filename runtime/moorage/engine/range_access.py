"""How the engine reaches state: the servers of a run, and one range of one of them for a subtask.

Decides by which way a task reaches a server, and binds the server's interface to what stays the
same for one attempt of one subtask. `Servers` are this machine's (`moorage.driver.local`) or a
cluster's (`moorage.cluster.servers`).
"""

import time
from array import array
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, ParamSpec, Protocol, TypeVar, overload

import msgspec

from moorage_state.database import Scan
from moorage_state.errors import MoorageError, VersionGone
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import EVENT_TIMERS
from moorage_state.server.client import StateClient
from moorage_state.server.exchange import Client
from moorage_state.server.operations import Lease, StateApi, Version
from moorage_state.server.slots import ID_FILE
from moorage_state.server.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class ServerDoor:
    """How tasks find a state server.

    Attributes:
        server: the identity it must show; any if empty.
        socket: the path of its Unix socket as tasks of its own executor see it; empty where there
            is none.
        tls: how it is known where it is reached by TCP, and tasks to it; None: in the clear.
    """

    address: str
    server: str = ""
    socket: str = ""
    tls: TlsFiles | None = None


class ExecutorLost(VersionGone):
    """An executor is gone and the state on its volume with it; rewind the job."""

    code: ClassVar[str] = "executor_lost"


class ServerConnection(StateApi, Protocol):
    """A connection to a state server."""

    def close(self) -> None:
        """End the connection."""
        ...


Connect = Callable[[ServerDoor, str], Client]
"""From a door and the token that is asked for there to a connection; see `connect_to`."""


class Servers(Protocol):
    """State servers on one or several hosts; the index of one that is gone is not used again."""

    def place(self, groups: Sequence[KeyGroupRange], checkpoint_id: int) -> list[int]:
        """By subtask, the index of the server that has its ranges from now on.

        Called when a run begins, and only then do ranges move. May wait for servers to be there.

        Args:
            groups: by subtask, its key groups.
            checkpoint_id: which they will be opened from; 0 for none.
        """
        ...

    def door(self, index: int) -> ServerDoor:
        """How tasks find a server."""
        ...

    def connect(self, index: int) -> ServerConnection:
        """A new connection to a server."""
        ...

    def ensure_alive(self, well: Container[int] = ()) -> list[int]:
        """Bring back what is dead; returns the indices of the servers that were restarted.

        Args:
            well: servers that have just answered.

        Raises:
            ExecutorLost: a server that has ranges is gone with its volume.
        """
        ...

    def gone(self) -> frozenset[int]:
        """Servers that are gone with their hosts: nothing is asked of them any more.

        Raises:
            MoorageError: nobody knows, since what knows it has ended.
        """
        ...

    def refuse_lost(self) -> None:
        """Look whether all servers that have ranges are there; for any thread, within an epoch too.

        Raises:
            ExecutorLost: the host of one is gone, and it does not answer.
            MoorageError: nobody knows, since what knows it has ended.
        """
        ...

    def wants_to_move(self, *, busy: bool = False) -> bool:
        """Whether ranges should move: worth a checkpoint, an end of the run and a new one.

        Args:
            busy: the end of the run would undo something; then only if they must.
        """
        ...


@dataclass(frozen=True, slots=True)
class LeasedRange:
    """A range under a run's lease: where it is served and the version an epoch reads."""

    lease: Lease
    door: ServerDoor
    version: Version


_Packed = tuple[int, int, Version]
_encode = msgspec.msgpack.Encoder().encode
_decode_door = msgspec.msgpack.Decoder(ServerDoor).decode
_decode_range = msgspec.msgpack.Decoder(tuple[int, int, int, str]).decode


class LeasedRanges(Sequence[LeasedRange]):
    """The ranges of an operator, by subtask; a task that has them unpacks its own only.

    Every task of an epoch is sent all of them. So they are two strings each of ranges and of
    doors, which are copied as they are, whatever their number.
    """

    __slots__ = ("_doors", "_ranges", "_run", "_uid")

    def __init__(
        self, uid: str, run: str, doors: Mapping[int, ServerDoor], ranges: Iterable[_Packed]
    ) -> None:
        """Pack them.

        Args:
            doors: by index, the servers.
            ranges: by subtask, the first key group, the server and the version.
        """
        self._uid = uid
        self._run = run
        at = {index: place for place, index in enumerate(doors)}
        self._doors = _Strings.of(map(_encode, doors.values()))
        packed = ((start, at[server], *version) for start, server, version in ranges)
        self._ranges = _Strings.of(map(_encode, packed))

    def __len__(self) -> int:
        return len(self._ranges)

    @overload
    def __getitem__(self, subtask: int) -> LeasedRange: ...
    @overload
    def __getitem__(self, subtask: slice) -> tuple[LeasedRange, ...]: ...
    def __getitem__(self, subtask: int | slice) -> LeasedRange | tuple[LeasedRange, ...]:
        if isinstance(subtask, slice):
            return tuple(self[i] for i in range(*subtask.indices(len(self))))
        start, door, epoch, digest = _decode_range(self._ranges[subtask])
        lease = Lease(self._uid, start, self._run)
        return LeasedRange(lease, _decode_door(self._doors[door]), Version(epoch, digest))


class _Strings:
    """Strings of bytes one after the other, and where each ends."""

    __slots__ = ("_bytes", "_ends")

    def __init__(self, joined: bytes, ends: "array[int]") -> None:
        self._bytes = joined
        self._ends = ends

    @classmethod
    def of(cls, strings: Iterable[bytes]) -> "_Strings":
        several = [*strings]
        return cls(b"".join(several), array("Q", accumulate(map(len, several))))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:
        index = range(len(self))[index]
        start = self._ends[index - 1] if index else 0
        return self._bytes[start : self._ends[index]]


def connect_to(door: ServerDoor, token: str) -> StateClient:
    """Connect through the Unix socket where the server is this executor's own, else by TCP.

    Raises:
        Retryable: nobody answers there, or another server does.
        UserError: the server refuses this client, or our certificate will not do.
    """
    address = f"unix:{door.socket}" if _is_near(door) else door.address
    return StateClient.connect(address, token, server=door.server, tls=door.tls)


class RangeConnections:
    """To the servers of several ranges, one to each, made when it is first asked for."""

    def __init__(self, token: str, connect: "Connect | None" = None) -> None:
        self._token = token
        self._connect = connect or connect_to
        self._clients: dict[str, Client] = {}

    def to(self, leased: LeasedRange) -> Client:
        """The connection to the server of a range; see `connect_to`."""
        address = leased.door.address
        if address not in self._clients:
            self._clients[address] = self._connect(leased.door, self._token)
        return self._clients[address]

    def close(self) -> None:
        """End all of them."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            with suppress(MoorageError, OSError):
                client.close()


def _is_near(door: ServerDoor) -> bool:
    if not door.socket:
        return False
    try:
        # On another executor another server may be at the same path, or an executor was replaced at
        # the same address. The server also shows its identity when it is greeted.
        identity = (Path(door.socket).parent / ID_FILE).read_text().strip()
    except OSError:
        return False
    return bool(identity) and door.server.rpartition(".")[0] == identity


_P = ParamSpec("_P")
_T = TypeVar("_T")


class BoundRange:
    """The range of this subtask at the version this epoch reads, for this attempt's writes.

    Attributes:
        seconds: for which exchanges with the server were waited for.
    """

    def __init__(self, client: StateApi, leased: LeasedRange, epoch: int, attempt: str) -> None:
        self._range = client.range(leased.lease)
        self._version = leased.version
        self._epoch = epoch
        self._attempt = attempt
        self._frames = 0
        self.seconds = 0.0

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See `RangeAccess`."""
        return self._timed(self._range.get_many, self._version, keys)

    def scan_many(self, prefixes: list[bytes], limit_entries: int, limit_bytes: int) -> list[Scan]:
        """See `RangeAccess`."""
        limits = limit_entries, limit_bytes
        return self._timed(self._range.scan_many, self._version, prefixes, *limits)

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:
        """See `RangeAccess`."""
        return self._timed(self._range.scan_from, self._version, prefix, after, limit)

    def due_timers(
        self, up_to_ms: int, limit: int, after: bytes, kind: int = EVENT_TIMERS
    ) -> list[bytes]:
        """See `RangeAccess`; `kind` is EVENT_TIMERS or PROCESSING_TIMERS."""
        due = self._range.due_timers
        return self._timed(due, self._version, up_to_ms, limit, after, kind)

    def next_timer(self, after_ms: int, kind: int) -> int | None:
        """The earliest time, later than `after_ms`, of a stored timer of this kind."""
        return self._timed(self._range.next_timer, self._version, after_ms, kind)

    def stage(self, frame: bytes) -> None:
        """See `RangeAccess`."""
        self._timed(self._range.stage, self._epoch, self._attempt, frame, self._frames)
        self._frames += 1

    def prepare(self) -> str:
        """Finish this attempt's delta; returns its digest. Nothing may be staged after it."""
        parent = self._version[1]
        made = self._timed(self._range.prepare, self._epoch, self._attempt, parent, self._frames)
        return made.digest

    def _timed(self, ask: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        # Each call is about many keys: the two looks at the clock are nothing beside it.
        began = time.monotonic()
        try:
            return ask(*args, **kwargs)
        finally:
            self.seconds += time.monotonic() - began
