"""The journeys of `docs/architecture.md`, walked: which modules of the product each one enters.

A trace is taken with `sys.setprofile` of what really runs: a subtask against a state server, a
driver's run with its ranges served in this process, an operator in a world of stand-ins. Nothing
but Spark, Kubernetes and sockets is left out.
"""

import sys
import threading
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from moorage.api.functions import NO_WATERMARK, KeyedProcessFunction
from moorage.driver import stream_run
from moorage.driver.checkpointer import Checkpointer
from moorage.driver.context import DriverContext
from moorage.driver.housekeeping import Housekeeper
from moorage.driver.manifests import Boundary
from moorage.driver.output import OutputKeeper
from moorage.driver.reporter import Reporter
from moorage.driver.restore_point import choose
from moorage.driver.settings import JobSettings
from moorage.driver.stream_run import StreamRun
from moorage.engine.columns import (
    ACK_COLUMN,
    GROUP_COLUMN,
    INPUT_COLUMN,
    KIND_COLUMN,
    ROW,
    START,
    TIME_COLUMN,
)
from moorage.engine.event_time import Watermarks, job_clocks
from moorage.engine.fleet import RangeFleet
from moorage.engine.kv_states import KvStateLocationRegistry
from moorage.engine.range_access import LeasedRange, ServerDoor
from moorage.engine.subtask import run_subtask
from moorage.engine.subtask_plan import SubtaskPlan
from moorage_api import StatefulSparkJob
from moorage_state.coordinator import CompletedCheckpointStore
from moorage_state.deltas import encode_frame
from moorage_state.keygroups import KeyGroupRange
from moorage_state.server import RangeHost, RangeSpec, Version
from moorage_state.server.exchange import Answer
from moorage_state.server.operations import Call
from moorage_state.snapshots import CheckpointStore, LogWriter, Owner
from moorage_state.stores import LocalStore
from moorage_testing.jobs import wait_until

__all__ = ["PRODUCT", "ROOT", "DriverWorld", "Subtasks", "Trace"]

ROOT = Path(__file__).parents[3]
PRODUCT = ("backends", "operator", "runtime")
_ENGINE = [
    (KIND_COLUMN, pa.int8()),
    (GROUP_COLUMN, pa.int32()),
    (TIME_COLUMN, pa.int64()),
    (INPUT_COLUMN, pa.int32()),
    (ACK_COLUMN, pa.binary()),
]
_INTERVAL_SECONDS = 1
_MADE = {"<module>", "__init__", "__post_init__"}
_PREFIXES = tuple(f"{ROOT / folder}/" for folder in PRODUCT)


class Trace:
    """The modules of the product whose code runs while it is on, in the order they are entered."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self._on = False

    @contextmanager
    def installed(self) -> Iterator["Trace"]:
        """Watch this thread and those that it starts; `on` says what counts."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def on(self) -> Iterator[None]:
        """What runs within, counts."""
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def begin(self) -> None:
        """From here on what runs counts; so does what is running already."""
        frame: FrameType | None = sys._getframe(1)
        around = []
        while frame is not None:
            around.append(frame)
            frame = frame.f_back
        for one in reversed(around):
            self._add(one)
        self._on = True

    def end(self) -> None:
        """Nothing counts from here on."""
        self._on = False

    def _see(self, frame: FrameType, event: str, _arg: Any) -> None:
        # Commits of the epochs before are applied beside it all, whenever it comes to that.
        if self._on and event == "call" and threading.current_thread().name != "apply":
            self._add(frame)

    def _add(self, frame: FrameType) -> None:
        name = frame.f_code.co_filename
        # What is imported or made meanwhile is no step of a journey: only what is done, is.
        if name.startswith(_PREFIXES) and frame.f_code.co_name not in _MADE:
            self.modules[name.removeprefix(f"{ROOT}/")] = None


class _Here:
    """State servers of which there is one, in this process."""

    def __init__(self, host: RangeHost) -> None:
        self._host = host

    def place(self, groups: Sequence[KeyGroupRange], _checkpoint_id: int) -> list[int]:
        return [0] * len(groups)

    def door(self, _index: int) -> ServerDoor:
        return ServerDoor("here")

    def connect(self, _index: int) -> Any:
        return self._host

    def ensure_alive(self, well: Container[int] = ()) -> list[int]:  # noqa: ARG002
        return []

    def gone(self) -> frozenset[int]:
        return frozenset()

    def refuse_lost(self) -> None:
        """None is."""

    def wants_to_move(self, *, busy: bool = False) -> bool:  # noqa: ARG002
        return False


def _exchange(asked: Any, **_names: Any) -> dict[int, Answer]:
    """In place of messages: the calls themselves."""

    def carry_out(host: RangeHost, call: Call) -> Any:
        where: Any = host if call.lease is None else host.range(call.lease)
        return getattr(where, call.operation)(*call.arguments)

    return {
        index: Answer([carry_out(host, call) for call in calls])
        for index, (host, calls) in asked.items()
    }


class Subtasks:
    """The subtask of an operator, on a range in this process."""

    def __init__(self, folder: Path) -> None:
        self._host = RangeHost(folder)
        spec = RangeSpec("count", 0, 127)
        self._lease = spec.lease("f1r0")
        self._host.open_range(spec, "f1r0", None, [], "memory://journeys")

    def run(self, function: KeyedProcessFunction, keys: Sequence[str]) -> None:
        """An epoch with one row for each key."""
        stream = pa.schema([("key", pa.string())])
        schema = pa.schema([*stream, *_ENGINE])
        rows: list[dict[str, Any]] = [{KIND_COLUMN: START, GROUP_COLUMN: 0}]
        rows += [{"key": key, KIND_COLUMN: ROW, GROUP_COLUMN: n} for n, key in enumerate(keys)]
        plan = SubtaskPlan(
            uid="count",
            lineage="lin",
            run="f1r0",
            epoch=1,
            parallelism=1,
            max_parallelism=128,
            function=function,
            columns=("key",),
            key_columns=("key",),
            key_types=("string",),
            output=pa.schema([("key", pa.string()), ("n", pa.int64())]),
            watermark=NO_WATERMARK,
            row_watermark=NO_WATERMARK,
            ranges=(LeasedRange(self._lease, ServerDoor("here"), Version(0, "")),),
            token="",
            inputs=("clicks",),
            downstream=True,
        )
        list(run_subtask(plan, iter([pa.RecordBatch.from_pylist(rows, schema=schema)])))

    def connect(self, _door: ServerDoor, _token: str) -> Any:
        """In place of a connection: what takes calls here, and has nothing to close."""
        return _Connection(self._host)


class _Connection:
    def __init__(self, host: RangeHost) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def close(self) -> None:
        pass


class DriverWorld:
    """A job's driver without Spark: runs of one operator with one range, on one lineage."""

    def __init__(self, folder: Path) -> None:
        for name in ("state", "scratch"):
            (folder / name).mkdir()
        (folder / "job.py").touch()
        self._folder = folder
        self._objects = LocalStore(folder / "state")
        self._store = CheckpointStore(self._objects)
        self._writer = LogWriter.claim(self._objects, Owner("c", "n", "clicks", "u"), "test")
        self._settings = JobSettings.of(_manifest(folder), folder)
        self._graph: Any = SimpleNamespace(
            inputs=[], operators=[_operator()], sinks=[], unread=list
        )
        self._hosts = 0
        self._now = 0.0

    def begin(self) -> StreamRun:
        """A run on a host that `found` made: from the newest checkpoint, or empty."""
        choice = choose(self._store, self._writer.entries, self._settings)
        self._context.completed.begin_from(choice.manifest, choice.path or "", own=True)
        # By a clock that stands: else it would hang on the machine what a boundary has to do.
        timed = partial(Checkpointer, clock=lambda: self._now)
        with patch.object(stream_run, "Checkpointer", timed):
            return StreamRun(self._context, self._hosts - 1, choice)

    def found(self) -> None:
        """A new host, which has nothing, and what a driver has before its first run."""
        self._hosts += 1
        host = RangeHost(self._folder / f"host-{self._hosts}")
        fleet = RangeFleet(_Here(host), ["count"], 1, 128, self._objects.url, exchange=_exchange)
        self.host, self.fleet = host, fleet
        given: Any = SimpleNamespace(clocks=job_clocks(self._graph))
        nothing: Any = None
        completed = CompletedCheckpointStore(self._writer, self._store)
        output = OutputKeeper(self._graph, self._store, self._writer)
        self._context = DriverContext(
            settings=self._settings,
            spark=nothing,
            graph=self._graph,
            planner=given,
            fleet=fleet,
            kv_states=KvStateLocationRegistry.of(self._graph),
            token="",
            writer=self._writer,
            store=self._store,
            scratch=self._folder / "scratch",
            reporter=Reporter(lambda _progress: None),
            stop=threading.Event(),
            requests=nothing,
            environment=nothing,
            output=output,
            completed=completed,
            directories=(),
            housekeeper=Housekeeper(self._objects, self._writer, completed, output, 1),
        )

    def commit(self, epoch: int) -> None:
        """An epoch that writes one entry, applied: else the next step of a journey would do it."""
        (leased,) = self.fleet.leased("count")
        opened = self.host.range(leased.lease)
        frame = encode_frame([], [b"\x00\x01\x01key"], [b"value"])
        opened.stage(epoch, "a", frame, 0)
        prepared = opened.prepare(epoch, "a", leased.version.digest, 1)
        self.fleet.commit(epoch, {("count", 0): prepared.digest})
        opened.apply_pending()

    def checkpoint(self, run: StreamRun, epoch: int) -> None:
        """Wait until a checkpoint of this epoch is completed; at the first boundary none is due."""
        boundary = Boundary(epoch, {}, Watermarks({}, {}), {})
        run.checkpointer.staged(epoch, {})

        def completed() -> bool:
            return bool(run.checkpointer.poll(epoch, lambda: boundary))

        assert not completed()
        self._now += _INTERVAL_SECONDS
        wait_until(completed, 30, "a checkpoint")


def _operator() -> Any:
    stream = SimpleNamespace(branches=(), event_time=None, operator=None)
    operator = SimpleNamespace(
        uid="count",
        key_types=("bigint",),
        key_columns=("key",),
        function=KeyedProcessFunction(),
        upstream=stream,
        broadcast=None,
        broadcast_branches=(),
        feeds=(),
    )
    operator.chain = (operator,)
    return operator


def _manifest(folder: Path) -> StatefulSparkJob:
    spec = {
        "application": {"mainFile": f"local://{folder}/job.py"},
        "scaling": {"parallelism": 1, "maxParallelism": 128},
        "state": {"checkpointDir": f"file://{folder}/state"},
        "checkpoint": {"interval": f"{_INTERVAL_SECONDS}s", "minPause": "0s"},
    }
    job = {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "StatefulSparkJob",
        "metadata": {"name": "clicks"},
        "spec": spec,
    }
    return StatefulSparkJob.model_validate(job)
