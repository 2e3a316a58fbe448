"""An epoch's coordination against the number of subtasks, for chains of one to three operators.

The driver's own code: `EpochRunner`, `verify`, `RangeFleet`, the plans of subtasks and the wire to
state servers. Spark is left out; the servers are one process that answers each message after a
latency. Counted are the CPU time of this process and all bytes that coordination sends or receives:
plans, acknowledgements, messages. What Spark spends on tasks, and what tasks do, is not.
"""

import multiprocessing
import selectors
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.types import LongType, StringType, StructField, StructType

from benchmarks.scale.curve import Curve
from moorage.api.functions import KeyedProcessFunction
from moorage.api.graph import JobGraph, OperatorNode
from moorage.engine.acks import Ack, ReadRows, Tally, encode_ack
from moorage.engine.columns import ACK_COLUMN
from moorage.engine.epoch import EpochRunner, RunIdentity
from moorage.engine.event_time import Watermarks
from moorage.engine.fleet import RangeFleet
from moorage.engine.plan import EpochFrame, EpochPlan, EpochPlanner
from moorage.engine.range_access import ServerDoor
from moorage_state.keyed.schema import StateSchema
from moorage_state.keygroups import KeyGroupRange, range_of
from moorage_state.server import wire
from moorage_state.server.client import StateClient
from moorage_state.server.operations import OpenResult, ServerLoad, SnapshotSync, Version
from moorage_state.server.wire import (
    OPERATIONS,
    TOGETHER,
    Connection,
    accept_peer,
    encode_message,
    take_message,
)
from moorage_state.snapshots.manifest import PartRef, RangeInPart

__all__ = ["Epochs", "Spent", "measure"]

_PROCESS: Callable[..., Any] = multiprocessing.get_context("spawn").Process
_TOKEN = "of the benchmark"  # noqa: S105
_OF_A_SERVER = 4
"""Subtasks, as on executors with four cores."""

_SIZES = (100, 300, 1000, 4000, 10_000)
_QUICK = (50, 100)
_EPOCHS = 3
_LATENCY = 0.02
_ROWS = 100
_MAX_PARALLELISM = 32_768


# -- servers ----------------------------------------------------------------------------------


_RESULTS = {
    "ping": 1,
    "load": ServerLoad(1 << 20),
    "stats": [],
    "snapshot": SnapshotSync(0, 0.0),
}


def _answer(header: bytes, payload: bytearray) -> bytes:
    request = wire._decode_request(header)  # noqa: SLF001
    if request.operation == TOGETHER.name:
        _, calls = TOGETHER.arguments_of(request.arguments, payload)
        result: object = [(None, _result(call)) for call in calls]
    else:
        result = _result(request)
    return encode_message(wire._pack(None), wire._pack(result))  # noqa: SLF001


def _result(request: Any) -> object:
    # Of most calls the arguments are not looked at: one process stands for thousands of servers.
    if request.operation != "open_range":
        return _RESULTS.get(request.operation)
    arguments = OPERATIONS[request.operation].arguments_of(request.arguments, bytearray())
    return OpenResult(Version(arguments[5], ""), "empty", 0, 0.0)


@dataclass(slots=True)
class _Peer:
    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    out: bytearray = field(default_factory=bytearray)


def _serve(path: str, latency: float, count: int, pipe: Pipe) -> None:
    """All servers in one process; tells messages and bytes so far to whoever asks."""
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(path)
        listener.listen(count)
        pipe.send(None)
        for _ in range(count):
            connected = listener.accept()[0]
            accept_peer(Connection(connected), _TOKEN, bytes(32))
            connected.setblocking(False)
            selector.register(connected, selectors.EVENT_READ, _Peer(connected))
        selector.register(pipe.fileno(), selectors.EVENT_READ)
        due: list[tuple[float, int, _Peer, bytes]] = []
        messages = moved = 0
        while True:
            wait = max(0.0, due[0][0] - time.monotonic()) if due else None
            for key, _ in selector.select(wait):
                if key.data is None:
                    if pipe.recv() == "end":
                        return
                    pipe.send((messages, moved))
                    continue
                for header, payload, size in _messages(key.data):
                    messages, moved = messages + 1, moved + size
                    at = time.monotonic() + latency
                    heappush(due, (at, messages, key.data, _answer(header, payload)))
            while due and due[0][0] <= time.monotonic():
                _, _, peer, answer = heappop(due)
                moved += len(answer)
                peer.socket.setblocking(True)
                peer.socket.sendall(answer)
                peer.socket.setblocking(False)


def _messages(peer: _Peer) -> Iterator[tuple[bytes, bytearray, int]]:
    try:
        while piece := peer.socket.recv(1 << 20):
            peer.received += piece
    except BlockingIOError:
        pass
    while True:
        before = len(peer.received)
        message = take_message(peer.received)
        if message is None:
            return
        yield bytes(message[0]), message[1], before - len(peer.received)


class _Servers:
    """See `engine.range_access.Servers`: all at one path."""

    def __init__(self, path: str, count: int) -> None:
        self._path = path
        self._count = count

    def place(self, groups: Sequence[KeyGroupRange], _checkpoint_id: int) -> list[int]:
        return [subtask % self._count for subtask in range(len(groups))]

    def door(self, index: int) -> ServerDoor:
        host = f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}"
        slot = f"{index:032x}-0"
        return ServerDoor(f"tcp:{host}:7071", f"{slot}.0", "/moorage/state/run/0.sock")

    def connect(self, _index: int) -> StateClient:
        return StateClient.connect(f"unix:{self._path}", _TOKEN)

    def ensure_alive(self, well: Any = ()) -> list[int]:  # noqa: ARG002
        return []

    def gone(self) -> frozenset[int]:
        return frozenset()

    def wants_to_move(self, *, busy: bool = False) -> bool:  # noqa: ARG002
        return False


# -- what tasks would do ----------------------------------------------------------------------


class _Counts(KeyedProcessFunction):
    def process(self, row: Any, ctx: Any) -> Any:
        yield ctx.key, row.n


_OUTPUT = StructType([StructField("user", StringType()), StructField("n", LongType())])


def _chain(operators: int) -> JobGraph:
    graph = JobGraph()
    for number in range(operators):
        stream: Any = SimpleNamespace(
            branches=(),
            event_time=None,
            side_output=None,
            schema=_OUTPUT,
            operator=graph.operators[-1] if number else None,
        )
        node = OperatorNode(
            f"operator-{number}", stream, ("user",), ("string",), _Counts(), _OUTPUT, "fail"
        )
        graph.operators.append(node)
    return graph


class _Tasks:
    """In place of the planner: makes the plans that tasks get, and their acknowledgements."""

    def __init__(self, graph: JobGraph, parallelism: int) -> None:
        nothing: Any = None
        self._graph = graph
        self._parallelism = parallelism
        self._planner = EpochPlanner(nothing, graph, nothing, parallelism, _MAX_PARALLELISM)
        self.clocks = self._planner.clocks
        self.moved = 0
        self.seconds = 0.0

    def plan(self, spec: EpochPlan, _batch: Any) -> EpochFrame:
        for operator in self._graph.operators:
            self.moved += len(cloudpickle.dumps(self._planner.subtask_plan(spec, operator)))
        began = time.process_time()
        rows = [{ACK_COLUMN: encode_ack(ack)} for ack in self._acks(spec)]
        self.moved += sum(len(row[ACK_COLUMN]) for row in rows)
        self.seconds += time.process_time() - began
        frame: Any = SimpleNamespace(collect=lambda: rows)
        return EpochFrame(frame, ())

    def _acks(self, spec: EpochPlan) -> Iterator[Ack]:
        schemas = [StateSchema("n", "value", "bigint")]
        sent = Tally(_ROWS, spec.epoch << 40, 12_345)
        before = ""
        for operator in self._graph.operators:
            last = operator is self._graph.operators[-1]
            for subtask in range(self._parallelism):
                yield Ack(
                    uid=operator.uid,
                    subtask=subtask,
                    run=spec.run,
                    epoch=spec.epoch,
                    delta=f"{spec.epoch << 64 | subtask:032x}",
                    output="" if last else f"{subtask:032x}",
                    rows_in=_ROWS,
                    rows_out=_ROWS,
                    keys=_ROWS,
                    schemas=schemas,
                    sent={} if last else {"": sent},
                    read=(ReadRows(before, "", sent),) if before else (),
                )
            before = operator.uid


# -- measuring --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spent:
    """What one epoch cost.

    Attributes:
        cpu: seconds of the driver.
        wall: seconds, with the latencies.
        messages: to servers.
        moved: bytes, sent and received.
    """

    cpu: float
    wall: float
    messages: int
    moved: int


class Epochs:
    """A driver between its servers and its tasks."""

    def __init__(self, operators: int, parallelism: int, pipe: Pipe, path: str, count: int) -> None:
        graph = _chain(operators)
        self._pipe = pipe
        self._tasks = _Tasks(graph, parallelism)
        servers: Any = _Servers(path, count)
        self._parallelism = parallelism
        self._uids = [operator.uid for operator in graph.operators]
        self.fleet = RangeFleet(servers, self._uids, parallelism, _MAX_PARALLELISM, "memory://x")
        self.fleet.open("f1r0", 0, {}, 0)
        planner: Any = self._tasks
        self.runner = EpochRunner(
            graph,
            planner,
            self.fleet,
            parallelism,
            RunIdentity("lineage", "f1r0", _TOKEN),
            epoch=0,
            watermarks=Watermarks.at_first(self._tasks.clocks),
            schemas={},
        )

    def messages(self, action: Callable[[], object]) -> int:
        """How many messages to servers something takes."""
        before, _ = self._counted()
        action()
        return self._counted()[0] - before

    def run(self) -> Spent:
        """One epoch."""
        messages, moved = self._counted()
        tasks, made = self._tasks, self._tasks.seconds
        tasks.moved = 0
        cpu, wall = time.process_time(), time.monotonic()
        self.runner.run(None)
        made = tasks.seconds - made
        cpu, wall = time.process_time() - cpu - made, time.monotonic() - wall - made
        after, later = self._counted()
        return Spent(cpu, wall, after - messages, later - moved + tasks.moved)

    def restart(self) -> float:
        """Complete a checkpoint and open all ranges from it; returns the driver's CPU seconds."""
        stored: dict[str, list[RangeInPart]] = {}
        for uid in self._uids:
            for subtask, leased in enumerate(self.fleet.leased(uid)):
                server = subtask // _OF_A_SERVER
                part = PartRef(key=f"parts/{server:08}", size=1, sha256=f"{server:064x}")
                start = leased.lease.start
                end = range_of(subtask, self._parallelism, _MAX_PARALLELISM).end
                place = RangeInPart(uid, start, end, 1 << 20, part, uid)
                stored.setdefault(uid, []).append(place)
        began = time.process_time()
        epoch = self.runner.epoch
        self.fleet.complete(1, epoch, stored)
        self.fleet.open("f1r1", epoch, stored, 1)
        return time.process_time() - began

    def _counted(self) -> tuple[int, int]:
        self._pipe.send("count")
        messages, moved = self._pipe.recv()
        return messages, moved


@contextmanager
def epochs(
    operators: int,
    parallelism: int,
    latency: float = _LATENCY,
    worker: Callable[..., Any] = _PROCESS,
) -> Iterator[Epochs]:
    """A driver whose servers have this latency, four subtasks each.

    Args:
        worker: in which all servers run; a thread starts sooner, and its CPU time counts.
    """
    count = -(-parallelism // _OF_A_SERVER)
    with tempfile.TemporaryDirectory(prefix="moorage-scale-") as folder:
        path = str(Path(folder) / "s")
        pipe, theirs = multiprocessing.Pipe()
        process = worker(target=_serve, args=(path, latency, count, theirs), daemon=True)
        process.start()
        pipe.recv()
        one = Epochs(operators, parallelism, pipe, path, count)
        try:
            yield one
        finally:
            one.fleet.close()
            pipe.send("end")
            process.join()


def measure(*, quick: bool = False) -> list[Curve]:
    """The curves of the topic."""
    curves = []
    for operators in (1, 2, 3):
        spent: dict[int, Spent] = {}
        starts: list[tuple[float, float]] = []
        for parallelism in _QUICK if quick else _SIZES:
            with epochs(operators, parallelism) as driver:
                driver.run()
                several = [driver.run() for _ in range(_EPOCHS)]
                spent[parallelism] = min(several, key=lambda one: one.cpu)
                starts.append((parallelism, 1e6 * driver.restart() / parallelism / operators))
        kinds = [
            ("driver CPU", "microseconds for each subtask", 0.1, lambda s, n: 1e6 * s.cpu / n),
            ("bytes", "bytes for each subtask", 0.1, lambda s, n: s.moved / n),
            ("overhead at calls of 20 ms", "seconds", None, lambda s, _: s.wall),
            ("messages to servers", "messages", 1.1, lambda s, _: s.messages),
        ]
        for name, unit, most, figure in kinds:
            points = tuple((p, figure(s, p * operators)) for p, s in spent.items())
            chain = f"{name}, operators={operators}"
            curves.append(Curve("epochs", chain, unit, "subtasks", points, most))
        name = f"driver CPU of a checkpoint's end and a start from it, operators={operators}"
        curves.append(Curve("epochs", name, kinds[0][1], "subtasks", tuple(starts)))
    return curves
