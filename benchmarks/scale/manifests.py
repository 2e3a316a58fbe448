"""A checkpoint, the retirement of the one before, and a restore: the driver's work against files.

The driver's own code: `RangeFleet`, the encoding of calls and answers, `ManifestMaker`, the log and
`CheckpointStore`. State servers answer what they would, without files: which parts they wrote, and
what they added and lost. The objects in the store are empty but for what the driver writes, so that
whoever reads a part fails. Each size is measured in a process of its own.
"""

import datetime
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from benchmarks.scale.curve import Curve
from moorage.driver.manifests import Boundary, ManifestMaker, ranges_of
from moorage.engine.event_time import Watermarks
from moorage.engine.fleet import FleetUpload, RangeFleet
from moorage.engine.range_access import ServerDoor
from moorage_state.keygroups import KeyGroupRange
from moorage_state.server.operations import (
    OpenResult,
    Version,
    WrittenPart,
    WrittenRange,
)
from moorage_state.server.wire import OPERATIONS
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Owner,
    PartEntry,
    Root,
    Run,
    part_key,
)
from moorage_state.stores import LocalStore

__all__ = ["Driver", "Shape", "Spent", "driver", "measure"]

_OPERATORS = ("read", "join", "count")
_OF_A_SERVER = 4
_FILES_OF_A_SERVER = 1600
_MAX_PARALLELISM = 32_768
_NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
_UNITS = ("ms of CPU", "requests", "messages", "MB of memory")
_STEPS = ("checkpoint", "retirement", "restore")


@dataclass(frozen=True, slots=True)
class Shape:
    """Files over servers, of which so many changed since the checkpoint before."""

    files: int
    servers: int
    changed: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What one step cost the driver: seconds of CPU, store requests, messages to servers."""

    cpu: float
    requests: int
    messages: int


class _Counting:
    """A store, and how many requests were made of it."""

    def __init__(self, inner: LocalStore) -> None:
        self._inner = inner
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def asked(*given: Any, **options: Any) -> Any:
            self.requests += 1
            return found(*given, **options)

        return asked


class _Servers:
    """State servers that answer without files; calls and answers are encoded and decoded."""

    def __init__(self, shape: Shape, store: LocalStore) -> None:
        self._shape = shape
        self._store = store
        self.messages = 0
        self._written: dict[int, list[bytes]] = {}

    def place(self, groups: Sequence[KeyGroupRange], _checkpoint_id: int) -> list[int]:
        return [subtask % self._shape.servers for subtask in range(len(groups))]

    def door(self, index: int) -> ServerDoor:
        return ServerDoor(f"tcp:10.0.{index >> 8}.{index & 255}:7071", f"{index:032x}-0.0")

    def connect(self, index: int) -> Any:
        def upload_many(run: str, checkpoint_id: int, *given: Any) -> WrittenPart:
            operation = OPERATIONS["upload_many"]
            operation.encode_request((run, checkpoint_id, *given))
            self.messages += 1
            answer = bytearray(self._written[checkpoint_id][index])
            written: WrittenPart = operation.decode_result(answer)
            return written

        return SimpleNamespace(upload_many=upload_many, close=lambda: None)

    def gone(self) -> frozenset[int]:
        return frozenset()

    def exchange(self, calls: Mapping[int, Any], **_options: Any) -> dict[int, Any]:
        """See `server.client.exchange`."""
        answers = {}
        for index, (_, some) in calls.items():
            self.messages += 1
            results: list[Any] = []
            for call in some:
                lease = () if call.lease is None else (call.lease,)
                OPERATIONS[call.operation].encode_request((*lease, *call.arguments))
                opened = OpenResult(Version(1, ""), "local", 0, 0.0)
                results.append(opened if call.operation == "open_range" else 1)
            answers[index] = SimpleNamespace(results=results, error=None)
        return answers

    def write(self, checkpoint_id: int, ranges: Mapping[int, list[WrittenRange]]) -> None:
        """Have the objects of a checkpoint there, and the answers that tell of them."""
        self._written[checkpoint_id] = [
            self._answer(checkpoint_id, index, ranges[index])
            for index in range(self._shape.servers)
        ]

    def _answer(self, checkpoint_id: int, index: int, ranges: list[WrittenRange]) -> bytes:
        changed = self._shape.changed // self._shape.servers
        files = self._shape.files // self._shape.servers
        added, lost = (
            [f"shared/{index:032x}-{n:06d}.sst-{of:016x}-{of:032x}" for n in range(changed)]
            for of in (checkpoint_id, checkpoint_id - 1)
        )
        key = part_key(checkpoint_id, "f1r0", f"{index:032x}")
        for there in (key, *added):
            self._store.put(there, b"")
        first = checkpoint_id == 1
        size = sum(one.bytes_total for one in ranges)
        part = PartEntry(
            key=key,
            size=files * 160,
            sha256=f"{index:064x}",
            files=files,
            bytes_total=size,
            added=[] if first else added,
            lost=[] if first else lost,
        )
        written = WrittenPart(part, ranges, "rocksdb", changed + 1, size, 0)
        return msgspec.msgpack.encode(written)


class Driver:
    """A driver between such servers and a store, after its first checkpoint."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        store = LocalStore(folder, create=True)
        self.store: Any = _Counting(store)
        self.servers = _Servers(shape, store)
        servers: Any = self.servers
        parallelism = _OF_A_SERVER * shape.servers
        self.fleet = RangeFleet(
            servers,
            _OPERATORS,
            parallelism,
            _MAX_PARALLELISM,
            self.store.url,
            exchange=self.servers.exchange,
        )
        self.writer = LogWriter.claim(self.store, Owner("c", "n", "scale", "u"), "benchmark")
        self.writer.append(Run(self.writer.fence, 0))
        self.checkpoints = CheckpointStore(self.store)
        self._maker = _maker(self.writer, parallelism)
        self.fleet.open("f1r0", 0, {}, 0)
        ranges: dict[int, list[WrittenRange]] = {}
        for (uid, subtask), item in self.fleet._ranges.items():  # noqa: SLF001  as servers have them
            server = subtask % shape.servers
            size = 1_000_000 + subtask
            written = WrittenRange(uid, item.spec.start, item.spec.end, size)
            ranges.setdefault(server, []).append(written)
        for checkpoint_id in (1, 2):
            self.servers.write(checkpoint_id, ranges)
        self.base: Root | None = None
        self.checkpoint(1)

    def checkpoint(self, checkpoint_id: int) -> Spent:
        """From the copies on the servers to what their next epoch is told."""

        def take() -> None:
            base = ranges_of(self.base) if self.base else {}
            uploaded: FleetUpload = self.fleet.upload(checkpoint_id, base)
            boundary = Boundary(checkpoint_id, {}, Watermarks({}, {}), {})
            root = self._maker.make(checkpoint_id, boundary, uploaded, {}, self.base)
            self.checkpoints.complete(self.writer, root, _NOW)
            self.fleet.complete(checkpoint_id, checkpoint_id, uploaded.handles)
            self.base = root

        return self._spent(take)

    def retire(self) -> Spent:
        """Let go of all but the newest checkpoint."""
        return self._spent(lambda: self.checkpoints.retire(self.writer, 1))

    def restore(self) -> Spent:
        """Another run: from the log to open ranges."""

        def begin() -> None:
            loaded = CheckpointStore(self.store).load_latest(self.writer.entries, None, "manifest")
            assert loaded is not None
            root = loaded.manifest
            self.fleet.open("f1r1", root.epoch, ranges_of(root), root.checkpoint_id)

        return self._spent(begin)

    def _spent(self, action: Callable[[], object]) -> Spent:
        requests, messages = self.store.requests, self.servers.messages
        began = time.process_time()
        action()
        cpu = time.process_time() - began
        return Spent(cpu, self.store.requests - requests, self.servers.messages - messages)


def _maker(writer: LogWriter, parallelism: int) -> ManifestMaker:
    settings: Any = SimpleNamespace(
        name="scale",
        max_parallelism=_MAX_PARALLELISM,
        key_hash="spark-xxhash64",
        parallelism=parallelism,
        in_one_epoch=False,
        restore=SimpleNamespace(uid_mapping={}),
    )
    operators = [
        SimpleNamespace(uid=uid, key_types=("bigint",), function=None) for uid in _OPERATORS
    ]
    graph: Any = SimpleNamespace(operators=operators)
    return ManifestMaker(settings, graph, writer, 0)


@contextmanager
def driver(shape: Shape) -> Iterator[Driver]:
    """A driver of a job of this shape, after its first checkpoint."""
    with tempfile.TemporaryDirectory(prefix="moorage-scale-") as folder:
        yield Driver(shape, Path(folder))


def _measured(shape: Shape) -> dict[str, tuple[float, ...]]:
    """By step: its costs in the order of `_UNITS`."""
    with driver(shape) as one:
        costs: dict[str, tuple[float, ...]] = {}
        steps: dict[str, Callable[[], Spent]] = {
            "checkpoint": lambda: one.checkpoint(2),
            "retirement": one.retire,
            # The fastest of a few: collections of garbage come at whichever time.
            "restore": lambda: min((one.restore() for _ in range(5)), key=lambda it: it.cpu),
        }
        for step, action in steps.items():
            spent = action()
            # Of the whole process so far, with what stands in for servers.
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            costs[step] = (1000 * spent.cpu, spent.requests, spent.messages, memory)
    return costs


def measure(*, quick: bool) -> list[Curve]:
    """Curves of a job that grows, and of one in which files alone grow."""
    servers = (10, 30) if quick else (10, 100, 1000)
    grown = [Shape(n * _FILES_OF_A_SERVER, n, n * _FILES_OF_A_SERVER // 200) for n in servers]
    files = (16_000, 48_000) if quick else (16_000, 160_000, 1_600_000)
    filled = [Shape(n, 10, 80) for n in files]
    curves = []
    for name, shapes, most in (("and servers", grown, 1.1), ("on 10 servers", filled, 0.1)):
        costs = []
        for shape in shapes:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                costs.append((shape.files, pool.apply(_measured, (shape,))))
        for at, unit in enumerate(_UNITS):
            for step in _STEPS:
                points = tuple((float(size), cost[step][at] + 0.0) for size, cost in costs)
                # What takes no time is noise.
                asked = None if unit == "ms of CPU" and most < 1 else most
                curves.append(Curve("manifests", step, unit, f"files {name}", points, asked))
    return curves
