"""A job's checkpointer without Spark: its ranges upload, and its clock turns, on command."""

import threading
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from moorage.api.graph import SinkNode
from moorage.driver.checkpointer import Checkpointer
from moorage.driver.housekeeping import Housekeeper
from moorage.driver.manifests import Boundary
from moorage.driver.output import OutputKeeper, PendingSavepoint
from moorage.driver.reporter import Reporter
from moorage.driver.requests import SavepointRequest
from moorage.driver.types import JobProgress
from moorage.engine.event_time import Watermarks
from moorage.engine.fleet import FleetUpload, ServerShare
from moorage_state.coordinator import CompletedCheckpointStore
from moorage_state.errors import MoorageError
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Owner,
    PartEntry,
    RangeHandle,
    RangeInPart,
    Run,
    checkpoint_path,
    part_key,
)
from moorage_state.snapshots.parts import Part, encode_part, part_ref
from moorage_state.stores import MemoryStore
from moorage_testing.jobs import wait_until

__all__ = ["OWNER", "Fleet", "Job", "Output"]

OWNER = Owner("c", "n", "j", "u")

_HANDLE = RangeHandle(
    uid="count",
    start=0,
    end=127,
    epoch=1,
    digest="d",
    backend_uuid="b",
    files=[],
    bytes_total=0,
)


class Fleet:
    """Ranges that are uploaded when the test says so."""

    def __init__(self, objects: MemoryStore, run: str = "f1r0") -> None:
        self.objects = objects
        self.run = run
        self.gates: dict[int, threading.Event] = {}
        self.errors: dict[int, MoorageError] = {}
        self.snapshots: list[int] = []
        self.ways: list[str] = []
        self.built_on: list[int] = []
        self.materialized: list[int] = []
        self.dropped: list[int] = []
        self.completed: list[int] = []
        self.reads_from: frozenset[int] = frozenset()
        self.reads_elsewhere = False
        self.bases: dict[int, Any] = {}
        self.recovered = 0
        self.snapshot_error: MoorageError | None = None
        self.gated = False
        self.crowded = False

    def snapshot(self, checkpoint_id: int, way: str = "copy", base_id: int = 0) -> float:
        self.ways.append(way)
        self.built_on.append(base_id)
        if self.snapshot_error is not None:
            raise self.snapshot_error
        self.snapshots.append(checkpoint_id)
        self.gates[checkpoint_id] = threading.Event()
        if not self.gated:
            self.gates[checkpoint_id].set()
        return 0.01

    def upload(self, checkpoint_id: int, base: Any) -> FleetUpload:
        self.bases[checkpoint_id] = base
        assert self.gates[checkpoint_id].wait(20)
        if checkpoint_id in self.errors:
            raise self.errors[checkpoint_id]
        data = encode_part(Part([_HANDLE]))
        # Of a driver that was fenced and of its successor may be checkpoints of one id.
        ref = part_ref(part_key(checkpoint_id, self.run, "u"), data)
        self.objects.put(ref.key, data)
        entry = PartEntry(key=ref.key, size=ref.size, sha256=ref.sha256, files=0, bytes_total=0)
        place = RangeInPart("count", 0, 127, 0, ref, "count")
        share = ServerShare("host:1", 0.5, 1, 10, (("count", 0, 0),))
        return FleetUpload(
            {"count": [place]}, 1, 10, 0, parts=[entry], backend="rocksdb", shares=(share,)
        )

    def persist(self, _least_bytes: int) -> FleetUpload:
        return FleetUpload({}, objects=0, bytes_written=0, bytes_inline=0)

    def materialize(self, checkpoint_id: int) -> FleetUpload:
        self.materialized.append(checkpoint_id)
        if -checkpoint_id in self.errors:
            raise self.errors[-checkpoint_id]
        return FleetUpload({}, objects=1, bytes_written=10, bytes_inline=0)

    def save(self, checkpoint_id: int, *_args: Any, **_kwargs: Any) -> FleetUpload:
        self.upload(checkpoint_id, {})
        return FleetUpload({"count": [_HANDLE]}, objects=1, bytes_written=10, bytes_inline=0)

    def aborted(self, checkpoint_id: int) -> None:
        self.dropped.append(checkpoint_id)

    def abandon(self, checkpoint_ids: Iterable[int]) -> None:
        self.dropped += checkpoint_ids

    def complete(self, checkpoint_id: int, _epoch: int, _handles: Any) -> None:
        self.completed.append(checkpoint_id)

    def recover(self) -> None:
        self.recovered += 1


class Output:
    """Remembers what was published, by checkpoint."""

    def __init__(self) -> None:
        self.published: dict[int, list[Any]] = {}
        self.pending: Sequence[PendingSavepoint] = ()

    def publish(self, checkpoint_id: int, committables: Any) -> None:
        self.published[checkpoint_id] = [i for items in committables.values() for i in items]

    def retire(
        self, _run: int, _checkpoint_id: int, _epoch: int, pending: Sequence[PendingSavepoint]
    ) -> None:
        self.pending = pending

    @property
    def all(self) -> list[Any]:
        return [item for items in self.published.values() for item in items]


class Job:
    """A checkpointer with a clock that the test turns.

    Args:
        sinks: real ones, which then publish in place of a stand-in.
        goes_on: from the newest checkpoint, as with real sinks.
    """

    def __init__(
        self,
        objects: Any = None,
        sinks: Sequence[SinkNode] = (),
        *,
        goes_on: bool = False,
        **changes: Any,
    ) -> None:
        self.now = 100.0
        self.sinks = sinks
        self.epoch = 0
        self.objects = objects or MemoryStore("driver")
        self.writer = LogWriter.claim(self.objects, OWNER, "test")
        self.fleet, self.output = Fleet(self.objects, f"f{self.writer.fence}r0"), Output()
        self.said: list[str] = []
        self.seen: Any = None
        self.reporter = Reporter(self._heard)
        settings = {
            "name": "j",
            "interval_seconds": 10.0,
            "checkpoint_cron": None,
            "min_pause_seconds": 0.0,
            "timeout_seconds": 60.0,
            "max_concurrent": 1,
            "tolerable_failures": 1,
            "fail_on_tolerance": False,
            "incremental": True,
            "changelog": None,
            "publishes_commits": False,
            "in_one_epoch": False,
            "retain": 2,
            "retention": None,
            "parallelism": 1,
            "max_parallelism": 128,
            "key_hash": "spark-xxhash64",
            "restore": SimpleNamespace(uid_mapping={}, allow_non_restored=False),
            "savepoint_dir": "memory://",
            "savepoint_url": lambda name: f"memory://{name}",
        }
        operator = SimpleNamespace(uid="count", key_types=("bigint",), function=None)
        chosen = {**settings, **changes}
        checkpoints = CheckpointStore(self.objects)
        graph: Any = SimpleNamespace(operators=[operator], sinks=sinks)
        keeper = OutputKeeper(graph, checkpoints, self.writer) if sinks else self.output
        self.completed = CompletedCheckpointStore(
            self.writer, checkpoints, chosen["retain"], chosen["retention"]
        )
        self.housekeeper = Housekeeper(
            self.objects,
            self.writer,
            self.completed,
            keeper,  # type: ignore[arg-type]  # a stand-in
            chosen["retain"],
            lambda: self.now,
        )
        self.checkpointer = Checkpointer(
            SimpleNamespace(**chosen),  # type: ignore[arg-type]  # a stand-in
            graph,
            checkpoints,
            self.writer,
            self.fleet,  # type: ignore[arg-type]  # a stand-in
            0,
            completed=self.completed,
            housekeeper=self.housekeeper,
            output=keeper,  # type: ignore[arg-type]  # a stand-in
            reporter=self.reporter,
            clock=lambda: self.now,
        )
        newest = checkpoints.load_latest(self.writer.entries) if sinks or goes_on else None
        if newest is not None:
            path = checkpoint_path(newest.manifest.checkpoint_id)
            self.completed.begin_from(newest.manifest, path)
        found = self.checkpointer.restore(must_exist=False)
        begins = checkpoint_path(found.checkpoint_id) if found else None
        self.writer.append(Run(self.writer.fence, 0, begins))
        if isinstance(keeper, OutputKeeper):
            list(keeper.restore(0, found))
        self.epoch = found.epoch if found else 0
        self.checkpointer.begin()

    def _heard(self, progress: JobProgress) -> None:
        if progress.message and progress.message not in self.said[-1:]:
            self.said.append(progress.message)

    def boundary(self) -> Boundary:
        return Boundary(self.epoch, {}, Watermarks({}, {}), {})

    def commit(self, *items: str) -> None:
        """An epoch that stages `items`."""
        self.epoch += 1
        self.checkpointer.staged(self.epoch, {"out": [{"file": item} for item in items]})

    def savepoint(self, request: SavepointRequest) -> None:
        """Ask for a savepoint; it is begun, or answered, when this returns."""
        self.checkpointer.savepoint(request, self.boundary)
        looks = self.checkpointer._requesters
        wait_until(lambda: (self.poll(), not looks.finds_place)[1], 20, "its place")

    def poll(self) -> list[int]:
        reports = self.checkpointer.poll(self.epoch, self.boundary)
        return [report.checkpoint_id for report in reports]

    def within(self) -> None:
        """In the middle of an epoch, when whatever is under way is uploaded, or failed."""
        self.checkpointer._background.join(20)
        self.checkpointer.within_epoch()

    def settle(self) -> list[int]:
        """Poll until nothing is under way; ids that completed."""
        done: list[int] = []

        def quiet() -> bool:
            done.extend(self.poll())
            return not (self.checkpointer._works or self.checkpointer._requesters.finds_place)

        wait_until(quiet, 20, "the end of all checkpoints")
        return done

    def due(self) -> None:
        """Let the time of the next periodic checkpoint come."""
        self.now += 25.0
        self.poll()

    @property
    def files(self) -> list[str]:
        return sorted(item["file"] for item in self.output.all)

    def entries(self, kind: type) -> list[Any]:
        return [entry for entry in self.writer.entries if isinstance(entry, kind)]
