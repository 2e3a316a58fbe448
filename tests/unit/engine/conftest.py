"""A subtask without Spark: record batches by hand, against a real state server."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

from moorage.api.functions import NO_WATERMARK
from moorage.engine.acks import Ack, decode_ack
from moorage.engine.columns import (
    ACK,
    ACK_COLUMN,
    BROADCAST,
    GROUP_COLUMN,
    INPUT_COLUMN,
    KIND_COLUMN,
    MARK_COLUMN,
    ROW,
    START,
    TIME_COLUMN,
    broadcast_column,
)
from moorage.engine.range_access import LeasedRange, ServerDoor
from moorage.engine.subtask import run_subtask
from moorage.engine.subtask_plan import SubtaskPlan
from moorage_state.server.client import StateClient
from moorage_state.server.group import ServerGroup
from moorage_state.server.operations import Lease, RangeSpec, Version

# A busy machine is no failure.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

RUN = "f1r0"
STREAM = pa.schema([("user", pa.string()), ("n", pa.int64())])
SIDES = [(broadcast_column(0), pa.string()), (broadcast_column(1), pa.int64())]
OUTPUT = pa.schema([("user", pa.string()), ("n", pa.int64())])
ENGINE = [
    (KIND_COLUMN, pa.int8()),
    (GROUP_COLUMN, pa.int32()),
    (TIME_COLUMN, pa.int64()),
    (INPUT_COLUMN, pa.int32()),
    (MARK_COLUMN, pa.int64()),
    (ACK_COLUMN, pa.binary()),
]


@dataclass
class Done:
    """What one attempt yielded: its acknowledgement and, for a downstream operator, its rows."""

    ack: Ack
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)


class Operator:
    """One operator with one subtask on a range of 128 key groups, epoch after epoch."""

    def __init__(self, group: ServerGroup, uid: str, store_url: str) -> None:
        self.client = group.connect(0)
        self.uid = uid
        self.lease = Lease(uid, 0, RUN)
        self.version = Version(0, "")
        self.address, self.token = group.addresses[0], group.token
        self.schemas: tuple[Any, ...] = ()
        self.client.open_range(RangeSpec(uid, 0, 127), RUN, None, [], store_url)

    def plan(self, function: Any, **changes: Any) -> SubtaskPlan:
        plan = SubtaskPlan(
            uid=self.uid,
            lineage="lin",
            run=RUN,
            epoch=self.version.epoch + 1,
            parallelism=1,
            max_parallelism=128,
            function=function,
            columns=("user", "n"),
            key_columns=("user",),
            key_types=("string",),
            output=OUTPUT,
            watermark=NO_WATERMARK,
            row_watermark=changes.get("watermark", NO_WATERMARK),
            ranges=(LeasedRange(self.lease, ServerDoor(self.address), self.version),),
            token=self.token,
            inputs=("clicks",),
            schemas=self.schemas,
            timer_delay_ms=None if "upstreams" in changes else 0,
        )
        return replace(plan, **changes)

    def attempt(
        self,
        function: Any,
        batches: Sequence[pa.RecordBatch],
        *,
        start: bool = True,
        **changes: Any,
    ) -> Done:
        """Run the subtask over its start row and `batches`; commits nothing."""
        plan = self.plan(function, **changes)
        schema = batches[0].schema if batches else pa.schema([*STREAM, *ENGINE])
        given = [heads(schema, start=[0]), *batches] if start else list(batches)
        out = list(run_subtask(plan, iter(given)))
        *data, last = out
        ack = decode_ack(last.column(ACK_COLUMN)[0].as_py())
        names = plan.output.names if plan.main_read else []
        rows = [tuple(row[n] for n in names) for b in data for row in b.to_pylist()]
        return Done(ack, rows, out)

    def commit(self, done: Done) -> Done:
        """Make an attempt's delta the state that the next epoch reads."""
        self.version = Version(done.ack.epoch, done.ack.delta)
        self.client.range(self.lease).commit(*self.version)
        self.schemas = tuple(done.ack.schemas)
        return done

    def epoch(self, function: Any, batches: Sequence[pa.RecordBatch] = (), **changes: Any) -> Done:
        """An attempt and its commit; its rows come back as if an operator read them."""
        return self.commit(self.attempt(function, batches, **({"downstream": 1} | changes)))


def heads(
    schema: pa.Schema, *, start: Sequence[int] = (), acks: Sequence[bytes] = ()
) -> pa.RecordBatch:
    """Start rows and acknowledgement rows, as they come before the data."""
    rows: list[dict[str, Any]] = [{KIND_COLUMN: START, GROUP_COLUMN: i} for i in start]
    rows += [{KIND_COLUMN: ACK, ACK_COLUMN: raw} for raw in acks]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def group_of(key: Any) -> int:
    """Any function of the key will do; rows come sorted by it."""
    return sum(str(key).encode()) % 128


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerGroup]:
    with ServerGroup(1, tmp_path_factory.mktemp("state")) as group:
        yield group


_uids = count()


@pytest.fixture
def new_operator(servers: ServerGroup, tmp_path: Path) -> Iterator[Callable[[], Operator]]:
    made: list[Operator] = []

    def make() -> Operator:
        made.append(Operator(servers, f"op{next(_uids)}", f"file://{tmp_path}"))
        return made[-1]

    yield make
    for one in made:
        one.client.release_range(one.lease)
        one.client.close()


@pytest.fixture
def operator(new_operator: Callable[[], Operator]) -> Operator:
    return new_operator()


@pytest.fixture
def batch() -> Callable[..., pa.RecordBatch]:
    """Rows `(user, n)` or `(user, n, event time)`, of one input, in the order given."""

    def make(
        *rows: tuple[Any, ...], stream: pa.Schema = STREAM, key: int = 0, source: int = 0
    ) -> pa.RecordBatch:
        width = len(stream)
        data = [
            dict(zip(stream.names, row, strict=False))
            | {
                KIND_COLUMN: ROW,
                GROUP_COLUMN: group_of(row[key]),
                TIME_COLUMN: row[width] if len(row) > width else None,
                INPUT_COLUMN: source,
                MARK_COLUMN: 0,
            }
            for row in rows
        ]
        return pa.RecordBatch.from_pylist(data, schema=pa.schema([*stream, *ENGINE]))

    return make


@pytest.fixture
def mixed(batch: Callable[..., pa.RecordBatch]) -> Callable[..., pa.RecordBatch]:
    """Broadcast rows `(rule, factor)` or `(rule, factor, time)`, then keyed rows, in one batch."""

    def make(broadcast: Sequence[tuple[Any, ...]], *keyed: tuple[Any, ...]) -> pa.RecordBatch:
        rows = batch(*keyed) if keyed else batch(("x", 0)).slice(0, 0)
        schema = pa.schema([*rows.schema, *SIDES])
        sides = [
            {
                KIND_COLUMN: BROADCAST,
                TIME_COLUMN: row[2] if len(row) > 2 else None,
                broadcast_column(0): row[0],
                broadcast_column(1): row[1],
            }
            for row in broadcast
        ]
        return pa.RecordBatch.from_pylist([*sides, *rows.to_pylist()], schema=schema)

    return make


@pytest.fixture
def head() -> Callable[..., pa.RecordBatch]:
    def make(
        start: Sequence[int] = (), acks: Sequence[bytes] = (), stream: pa.Schema = STREAM
    ) -> pa.RecordBatch:
        return heads(pa.schema([*stream, *ENGINE]), start=start, acks=acks)

    return make


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[StateClient]:
    """The connections that subtasks open from here on."""
    opened: list[StateClient] = []
    connect = StateClient.connect

    def recording(address: str, token: str, **names: Any) -> StateClient:
        opened.append(connect(address, token, **names))
        return opened[-1]

    monkeypatch.setattr(StateClient, "connect", recording)
    return opened
