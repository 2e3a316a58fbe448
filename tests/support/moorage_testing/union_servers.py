"""State servers with ranges that have a union list, and how many messages reading it takes."""

import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest.mock import patch

from moorage.engine.range_access import LeasedRange, RangeConnections, ServerDoor
from moorage.engine.union_lists import UnionLists
from moorage_state.deltas import encode_frame
from moorage_state.keygroups import range_of
from moorage_state.operator_state.layout import element_key, state_prefix
from moorage_state.server import RangeHost, RangeSpec, Version
from moorage_state.server.service import Service
from moorage_state.server.wire import Connection
from moorage_state.state_backends import HashMapStateBackend

__all__ = ["UnionServers"]

_TOKEN = "secret"  # noqa: S105
_RUN = "f1r0"
_NAME = "offsets"


class UnionServers:
    """So many subtasks on so many servers, each of which has one element of a union list.

    Attributes:
        messages: by operation, what servers were asked since it was cleared.
        sent: bytes of their answers.
    """

    def __init__(self, folder: Path, subtasks: int, servers: int, stack: ExitStack) -> None:
        self.messages: Counter[str] = Counter()
        self._subtasks = subtasks
        self._epoch = 0
        self._hosts: list[RangeHost] = []
        self._doors: list[ServerDoor] = []
        for number in range(servers):
            backend = HashMapStateBackend(memory_limit=1 << 30)
            host = stack.enter_context(RangeHost(folder / f"{number}", backend))
            listener = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            path = folder / f"{number}.sock"
            listener.bind(str(path))
            listener.listen(subtasks)
            Service(host, _TOKEN, strangers=subtasks + 1).listen(listener)
            self._hosts.append(host)
            self._doors.append(ServerDoor(f"unix:{path}"))
        groups = [range_of(i, subtasks, 32_768) for i in range(subtasks)]
        self._specs = [RangeSpec("op", some.start, some.end) for some in groups]
        self._versions = [
            self._host(i).open_range(spec, _RUN, None, [], "").version
            for i, spec in enumerate(self._specs)
        ]
        receive = Connection.receive_request

        def counted(connection: Connection):
            request = receive(connection)
            self.messages[request[0].name] += 1
            return request

        stack.enter_context(patch.object(Connection, "receive_request", counted))

    @classmethod
    @contextmanager
    def running(cls, folder: Path, subtasks: int, servers: int) -> Iterator["UnionServers"]:
        """They run within the block."""
        folder.mkdir(exist_ok=True)
        with ExitStack() as stack:
            yield cls(folder, subtasks, servers, stack)

    def write(self) -> None:
        """An epoch in which each subtask replaces its element."""
        self._epoch += 1
        for number, spec in enumerate(self._specs):
            opened = self._host(number).range(spec.lease(_RUN))
            key = element_key(state_prefix(spec.start, _NAME), 0, 0)
            frame = encode_frame([], [key], [f"{self._epoch}:{number}".encode()])
            opened.stage(self._epoch, "a", frame, 0)
            prepared = opened.prepare(self._epoch, "a", self._versions[number].digest, 1)
            opened.commit(self._epoch, prepared.digest)
            self._versions[number] = Version(self._epoch, prepared.digest)

    def forget(self, server: int) -> None:
        """What a restart does to a server's memory."""
        self._hosts[server]._unions.forget("op")

    def read(self, version: str, threads: int = 16) -> list[list[bytes]]:
        """What each subtask reads of the union, many at a time."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda number: self._read(version, number), range(self._subtasks)))

    def _read(self, version: str, subtask: int) -> list[bytes]:
        ranges = [
            LeasedRange(spec.lease(_RUN), self._doors[self._place(i)], self._versions[i])
            for i, spec in enumerate(self._specs)
        ]
        with closing(RangeConnections(_TOKEN)) as connections:
            lists = UnionLists("op", version, ranges, subtask, connections.to).read(_NAME)
        return [raw for some in lists.values() for raw in some]

    def _place(self, subtask: int) -> int:
        return subtask % len(self._doors)

    def _host(self, subtask: int) -> RangeHost:
        return self._hosts[self._place(subtask)]
