"""A job's epochs in this process: the engine's own, with Spark's shuffle done by Arrow.

`InProcessJob` runs the graph that a `build(env)` described. The epoch runner, the subtasks, the
ranges and the checkpoints are those of jobs; only the way of rows to subtasks (`Shuffle`) and of
subtasks to state (a host of this process) are its own. Called by the harnesses and by `run_job`;
knows nothing of pytest.
"""

import shutil
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, NoReturn, Self
from weakref import WeakValueDictionary, finalize

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from moorage.api.declarations import arrow_schema
from moorage.api.functions import KeyedProcessFunction
from moorage.api.graph import JobGraph
from moorage.api.misplaced import did_you_mean
from moorage.api.sinks import StageId
from moorage.api.windows import go_on_with_windows, stored_windows
from moorage.engine.acks import EpochOutcome, decode_ack
from moorage.engine.columns import ACK_COLUMN
from moorage.engine.epoch import EpochRunner, RunIdentity
from moorage.engine.event_time import JobClocks, Watermarks
from moorage.engine.fleet import RangeFleet
from moorage.engine.kept_functions import forget
from moorage.engine.operator_states import OperatorMove, OperatorStates, redistribute
from moorage.engine.placement import LocalPlacement
from moorage.engine.plan import EpochFrame, EpochPlan, EpochPlanner
from moorage.engine.range_access import BoundRange, ServerConnection, ServerDoor
from moorage.engine.subtask import run_subtask
from moorage.engine.subtask_plan import NEVER, SubtaskPlan
from moorage.engine.task_failures import SubtaskFailure, UserFunctionError, failure_of
from moorage.testing.shuffle import Shuffle, input_table
from moorage.testing.tracebacks import behind
from moorage_state.errors import MoorageError, UserError
from moorage_state.keyed.schema import StateSchema
from moorage_state.keygroups import MAX_PARALLELISM_LIMIT, KeyGroupRange, range_of
from moorage_state.operator_state import OperatorStateSchema
from moorage_state.server.exchange import InProcessClient
from moorage_state.server.host import RangeHost
from moorage_state.server.operations import Lease
from moorage_state.state_backends import HashMapStateBackend
from moorage_state.stores.memory import MemoryStore

_DOOR = ServerDoor("in process")
LAST_MS = (1 << 62) - 1
"""The last time, in milliseconds, that a test may give."""

_names = count()
_runs = count(1)


def require_whole(name: str, value: Any, least: int, most: int) -> None:
    """Raise UserError for what is no whole number from `least` to `most`."""
    # True and False are numbers to Python, and never what was meant.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        fix = "one"
        if isinstance(value, datetime):
            fix = "milliseconds since 1970 UTC: int(moment.timestamp() * 1000)"
        raise UserError(
            f"{name} is a whole number from {least} to {most}: {name}={value!r:.80}; give {fix}"
        )


class InProcessServers:
    """One host of this process that serves all ranges; see `engine.range_access.Servers`."""

    def __init__(self, host: RangeHost) -> None:
        self._host = host

    def place(self, groups: Sequence[KeyGroupRange], checkpoint_id: int) -> list[int]:  # noqa: ARG002
        """All on the one there is."""
        return [0] * len(groups)

    def door(self, index: int) -> ServerDoor:  # noqa: ARG002
        """A name for it: nothing is opened."""
        return _DOOR

    def connect(self, index: int) -> ServerConnection:  # noqa: ARG002
        """The host itself."""
        return InProcessClient.of(self._host)

    def ensure_alive(self, well: Container[int] = ()) -> list[int]:  # noqa: ARG002
        """It ends with this process."""
        return []

    def gone(self) -> frozenset[int]:
        """None is."""
        return frozenset()

    def refuse_lost(self) -> None:
        """None is."""

    def wants_to_move(self, *, busy: bool = False) -> bool:  # noqa: ARG002
        """Never."""
        return False


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Snapshot:
    """A checkpoint of a harness, from which the same or another one goes on.

    Attributes:
        epoch: the last epoch that it contains.
        handles: by operator uid, where its files lie in the store at `url`.
        key_types: by operator uid, the types of its key.
    """

    checkpoint_id: int
    epoch: int
    parallelism: int
    max_parallelism: int
    now_ms: int
    url: str
    watermarks: Watermarks = field(repr=False)
    handles: Mapping[str, Sequence[Any]] = field(repr=False)
    key_types: Mapping[str, tuple[str, ...]] = field(repr=False)
    schemas: Mapping[str, tuple[StateSchema, ...]] = field(repr=False)
    operator_states: Mapping[str, tuple[OperatorStateSchema, ...]] = field(repr=False)
    windows: Mapping[str, list[list[str]]] = field(default_factory=dict, repr=False)


class Collector:
    """A sink that keeps the rows of an epoch's last attempt until they are taken."""

    def __init__(self) -> None:
        self._staged: dict[int, list[pa.RecordBatch]] = {}

    def open_writer(self, stage: StageId, schema: pa.Schema) -> "_Writer":  # noqa: ARG002
        """See `Sink`; an attempt takes the place of the one before."""
        batches = self._staged[stage.subtask] = []
        return _Writer(batches)

    def publish(self, lineage: str, checkpoint_id: int, committables: list[dict[str, Any]]) -> int:  # noqa: ARG002
        """Nothing: rows are taken when their epoch is committed."""
        return 0

    def restore(self, point: Any) -> list[str]:  # noqa: ARG002
        """Nothing was staged."""
        return []

    def by_subtask(self) -> dict[int, list[dict[str, Any]]]:
        """The rows of the last attempt, which stay."""
        return {n: [r for b in some for r in b.to_pylist()] for n, some in self._staged.items()}

    def take(self) -> list[pa.RecordBatch]:
        """What came since the last call, in the order of subtasks."""
        staged, self._staged = self._staged, {}
        return [batch for _, batches in sorted(staged.items()) for batch in batches]

    def __reduce__(self) -> tuple[Any, ...]:
        # Everything that a job is told is checked to be such as can be sent; in one process what
        # comes out is this one again.
        _collectors[id(self)] = self
        return _collector, (id(self),)


_collectors: WeakValueDictionary[int, Collector] = WeakValueDictionary()


def _collector(number: int) -> Collector:
    return _collectors[number]


@dataclass(slots=True)
class _Writer:
    """Of one attempt."""

    batches: list[pa.RecordBatch]

    def write(self, batch: pa.RecordBatch) -> None:
        """See `SinkWriter`."""
        self.batches.append(batch)

    def finish(self) -> list[dict[str, Any]]:
        """See `SinkWriter`: rows do not travel in acknowledgements, which know JSON alone."""
        return []

    def abort(self) -> None:
        """See `SinkWriter`."""
        self.batches.clear()


class StagedFrames:
    """What one attempt at an epoch staged: by lease, its frames in order."""

    def __init__(self) -> None:
        self.frames: dict[Lease, list[bytes]] = {}

    def client(self, host: RangeHost) -> InProcessClient:
        """A way to the host on which this sees what is staged."""
        watched = InProcessClient.of(host)
        open_range = watched.range

        def range_of_lease(lease: Lease, /) -> Any:
            return _WatchedRange(open_range(lease), self.frames.setdefault(lease, []))

        watched.range = range_of_lease  # type: ignore[method-assign]  # of this one object
        return watched


class _WatchedRange:
    def __init__(self, opened: Any, frames: list[bytes]) -> None:
        self._opened = opened
        self._frames = frames

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def stage(self, epoch: int, attempt: str, frame: bytes, seq: int, /) -> None:
        """See `RangeApi.stage`."""
        self._frames.append(frame)
        self._opened.stage(epoch, attempt, frame, seq)


class _Store:
    """A store in memory that ends with the last snapshot in it."""

    def __init__(self) -> None:
        self._name = f"in-process-{next(_names)}"
        self.url = f"memory://{self._name}"
        self._held = 0

    def hold(self, snapshot: Snapshot) -> None:
        """Keep the store for as long as this is there."""
        self._held += 1
        finalize(snapshot, self._let_go)

    def _let_go(self) -> None:
        self._held -= 1
        if not self._held:
            MemoryStore.forget(self._name)


Unpickle = Callable[[bytes], KeyedProcessFunction]
"""Makes of a pickled function the instance of one subtask."""

Attempt = Callable[[Unpickle], tuple[list[bytes], StagedFrames]]
"""Runs an attempt at an epoch."""


def _once(attempt: Attempt) -> list[bytes]:
    return attempt(cloudpickle.loads)[0]


class InProcessPlanner(EpochPlanner):
    """Plans epochs whose frame runs in this process when it is collected.

    Attributes:
        rehearse: runs the attempts at each epoch and gives the acknowledgements of the last.
        batch_rows: how many rows a subtask gets at once, at the most.
    """

    batch_rows = 1024
    rehearse: Callable[[Attempt], list[bytes]] = staticmethod(_once)

    def __init__(
        self,
        graph: JobGraph,
        host: RangeHost,
        parallelism: int,
        max_parallelism: int,
        spark: SparkSession | None,
    ) -> None:
        session: Any = spark
        super().__init__(session, graph, LocalPlacement(), parallelism, max_parallelism)
        self._host = host

    def plan(self, spec: EpochPlan, batch: Any) -> EpochFrame:
        """See `EpochPlanner.plan`; `batch` has tables by uid of their input."""
        dumps: Callable[[Any], bytes] = cloudpickle.dumps
        # Before any attempt: a clock that one of them moves cannot be pickled by its name.
        pickled = {operator.uid: dumps(operator.function) for operator in self.graph.operators}

        def attempt(unpickle: Unpickle) -> tuple[list[bytes], StagedFrames]:
            staged = StagedFrames()

            def run(
                plan: SubtaskPlan, batches: Iterator[pa.RecordBatch]
            ) -> Iterator[pa.RecordBatch]:
                # An instance for each subtask and epoch, as executors make them.
                mine = unpickle(pickled[plan.uid])
                return run_subtask(
                    replace(plan, function=mine), batches, lambda *_: staged.client(self._host)
                )

            return Shuffle(self, spec, batch or {}, run, self.batch_rows).acks(), staged

        frame: Any = _Frame(lambda: self.rehearse(attempt))
        return EpochFrame(frame, ())


@dataclass(frozen=True, slots=True)
class _Frame:
    """Stands for the frame of acknowledgements."""

    run: Callable[[], list[bytes]]

    def collect(self) -> list[dict[str, bytes]]:
        return [{ACK_COLUMN: raw} for raw in self.run()]


class InProcessJob:
    """Epochs of a graph, from empty state or from a snapshot; a context manager.

    Args:
        clock: processing time in milliseconds.
        clocks: how event time is told, where it is not as the graph says.
        restore: a snapshot of a job with operators of the same uids.
        spark: runs what the graph's inputs are transformed by.
    """

    def __init__(
        self,
        graph: JobGraph,
        *,
        clock: Callable[[], int],
        parallelism: int = 1,
        max_parallelism: int = 128,
        clocks: JobClocks | None = None,
        restore: Snapshot | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        graph.check()
        require_whole("max_parallelism", max_parallelism, 1, MAX_PARALLELISM_LIMIT)
        require_whole("parallelism", parallelism, 1, max_parallelism)
        if restore is not None:
            require_snapshot(restore)
            _require_fitting(restore, graph, max_parallelism)
        self.graph = graph
        self._token = "in-process"  # noqa: S105 - nobody asks for it
        self.lineage = f"in-process-{next(_names)}"
        directory = Path(tempfile.mkdtemp(prefix="moorage-test-"))
        self._host = RangeHost(directory, HashMapStateBackend())
        self._end = finalize(self, _end, self._host, directory, self.lineage)
        try:
            self.planner = InProcessPlanner(graph, self._host, parallelism, max_parallelism, spark)
            self.planner.clocks = clocks or self.planner.clocks
            uids = [operator.uid for operator in graph.operators]
            self._stores = _Store()
            self._url = self._stores.url
            servers = InProcessServers(self._host)
            self.fleet = RangeFleet(servers, uids, parallelism, max_parallelism, self._url)
            self._snapshots = 0
            self.runner = self._begin(uids, clock, restore)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and delete its files; idempotent. Snapshots stay."""
        self._end()

    def epoch(self, rows: Mapping[str, Sequence[Any]]) -> EpochOutcome:
        """Run and commit an epoch over the rows of inputs, by uid.

        Raises:
            UserError: a row is not of its input; or see `EpochRunner.run`.
            Exception: what code of the job raised, with a note where.
        """
        nodes = {node.uid: node for node in self.graph.inputs}
        if strange := sorted(rows.keys() - nodes.keys()):
            raise UserError(
                f"the job has no such input: inputs={strange} has={sorted(nodes)}"
                f"{did_you_mean(strange[0], nodes)}"
            )
        tables: Any = {
            uid: input_table(uid, arrow_schema(nodes[uid].frame.schema), some)
            for uid, some in rows.items()
        }
        try:
            return self.runner.run(tables)
        except UserFunctionError as error:
            _raise_of_the_job(error, error.__cause__)

    def snapshot(self) -> Snapshot:
        """A checkpoint of what is committed."""
        self._snapshots += 1
        self.fleet.snapshot(self._snapshots)
        upload = self.fleet.upload(self._snapshots, {})
        runner, planner = self.runner, self.planner
        taken = Snapshot(
            self._snapshots,
            runner.epoch,
            planner.parallelism,
            planner.max_parallelism,
            runner.now_ms,
            self._url,
            runner.watermarks,
            dict(upload.handles),
            {operator.uid: operator.key_types for operator in self.graph.operators},
            dict(runner.schemas),
            dict(runner.operator_states.schemas),
            {operator.uid: stored_windows(operator.function) for operator in self.graph.operators},
        )
        # The store of a job's snapshots is there for as long as any of them is.
        self._stores.hold(taken)
        return taken

    def declared(self) -> dict[str, tuple[StateSchema, ...]]:
        """By operator uid, the states that are known when functions are open and have no row yet.

        An attempt without rows and time is made for it, of which nothing stays.

        Raises:
            UserError: a function cannot read what is there.
            Exception: what code of the job raised, with a note where.
        """
        runner, identity = self.runner, self._identity
        uids = [operator.uid for operator in self.graph.operators]
        nothing_due = (NEVER,) * self.planner.parallelism
        plan = EpochPlan(
            lineage=identity.lineage,
            run=identity.run,
            epoch=runner.epoch + 1,
            watermarks=Watermarks.at_first(self.planner.clocks),
            now_ms=0,
            next_timers=dict.fromkeys(uids, nothing_due),
            token=identity.token,
            ranges={uid: self.fleet.leased(uid) for uid in uids},
            schemas=runner.schemas,
            operator_states=runner.operator_states.plans(self.graph),
        )
        try:
            rows = self.planner.plan(plan, {}).acks.collect()
        except SubtaskFailure as failure:
            _raise_of_the_job(failure_of(failure), failure)
        acks = [decode_ack(row[ACK_COLUMN]) for row in rows]
        return {ack.uid: tuple(ack.schemas) for ack in acks}

    def ranges(self, uid: str) -> list[BoundRange]:
        """By subtask, the range of an operator at its committed version, to be read."""
        epoch, client = self.runner.epoch + 1, InProcessClient.of(self._host)
        return [BoundRange(client, leased, epoch, "reads") for leased in self.fleet.leased(uid)]

    def _begin(
        self, uids: list[str], clock: Callable[[], int], restore: Snapshot | None
    ) -> EpochRunner:
        # What is restored says whose it was, and that was another run.
        run = f"f{next(_runs)}r0"
        self._identity = identity = RunIdentity(self.lineage, run, self._token)
        graph, planner, fleet = self.graph, self.planner, self.fleet
        empty = Watermarks.at_first(planner.clocks)
        if restore is None:
            fleet.open(run, 0, {}, 0)
            return EpochRunner(
                graph, planner, fleet, planner.parallelism, identity,
                epoch=0, watermarks=empty, schemas={}, clock=clock,
            )  # fmt: skip
        for operator in graph.operators:
            go_on_with_windows(operator.function, restore.windows.get(operator.uid, ()))
        fleet.open(run, restore.epoch, restore.handles, restore.checkpoint_id, restore.url)
        epoch = self._redistributed(uids, restore)
        kept = restore.watermarks
        marks = replace(empty, inputs=kept.inputs, floors=kept.floors, drained=kept.drained)
        states = OperatorStates(
            dict(restore.operator_states), frozenset(restore.handles), restore.checkpoint_id
        )
        return EpochRunner(
            graph, planner, fleet, planner.parallelism, identity,
            epoch=epoch, watermarks=marks, schemas=restore.schemas, operator_states=states,
            now_ms=restore.now_ms, restored=True, clock=clock,
        )  # fmt: skip

    def _redistributed(self, uids: list[str], restore: Snapshot) -> int:
        before = [
            range_of(n, restore.parallelism, restore.max_parallelism).start
            for n in range(restore.parallelism)
        ]
        moves = {uid: OperatorMove(s, before) for uid, s in restore.operator_states.items()}
        return redistribute(
            self.fleet,
            self._token,
            uids,
            self.planner.parallelism,
            self.planner.max_parallelism,
            moves={uid: move for uid, move in moves.items() if uid in uids},
            epoch=restore.epoch,
            connect=lambda *_: InProcessClient.of(self._host),
        )


def require_snapshot(given: Any) -> None:
    """Raise UserError for what is no snapshot."""
    if not isinstance(given, Snapshot):
        raise UserError(
            f"what is restored is what snapshot() gave: got={type(given).__name__}; give that"
        )


def _require_fitting(restore: Snapshot, graph: JobGraph, max_parallelism: int) -> None:
    if restore.max_parallelism != max_parallelism:
        raise UserError(
            f"a snapshot is restored with the max_parallelism that it was taken with: "
            f"snapshot={restore.max_parallelism} now={max_parallelism}; give "
            f"max_parallelism={restore.max_parallelism}"
        )
    now = {operator.uid: operator.key_types for operator in graph.operators}
    if now != dict(restore.key_types):
        raise UserError(
            f"a snapshot is restored into an operator of its uid and key types: "
            f"snapshot={dict(restore.key_types)} now={now}; give the uid and key_by that it was "
            f"taken with"
        )


def _end(host: RangeHost, directory: Path, lineage: str) -> None:
    forget(lineage)
    host.close()
    shutil.rmtree(directory, ignore_errors=True)


def _raise_of_the_job(error: MoorageError, cause: BaseException | None) -> NoReturn:
    """Raise what the job's own code raised, with a note that says on what; else the error itself.

    What the job raised it from, or while handling what, stays with it.
    """
    failure = cause
    while failure is not None and not isinstance(failure, SubtaskFailure):
        failure = failure.__cause__
    own = failure.__cause__ if failure is not None else None
    if not isinstance(error, UserFunctionError) or own is None:
        raise error from cause
    with suppress(AttributeError):
        own.add_note(str(error).partition("\n")[0])
    raise own from behind(own)
