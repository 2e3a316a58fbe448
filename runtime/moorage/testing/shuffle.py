"""The way of rows to subtasks: what the planner has Spark do, done by Arrow.

Only what a job does to its inputs by `transform` is Spark's own, if there is a session. Decides
nothing of its own: which subtask a row goes to and in what order is as in `engine.plan`, so that a
function finds in a test what it finds in a job. Called by `InProcessJob` for each epoch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moorage.api.declarations import arrow_schema
from moorage.api.graph import Branch, Feed, OperatorNode
from moorage.api.misplaced import did_you_mean
from moorage.api.streams import DataStream
from moorage.engine.columns import (
    ACK,
    ACK_COLUMN,
    BROADCAST,
    GROUP_COLUMN,
    INPUT_COLUMN,
    KIND_COLUMN,
    MARK_COLUMN,
    ORDINAL_COLUMN,
    ROW,
    SOURCE_ORDER,
    START,
    TARGET_COLUMN,
    TIME_COLUMN,
    broadcast_column,
    side_column,
    stream_column,
)
from moorage.engine.output_types import column_of, misfit
from moorage.engine.plan import (
    TIES,
    EpochPlan,
    EpochPlanner,
    columns_of,
    has_inputs_column,
    is_timed,
)
from moorage.engine.subtask import stage_rows
from moorage.engine.subtask_plan import SubtaskPlan
from moorage.testing.environment import without_spark
from moorage_state.canonical.hashing import key_groups
from moorage_state.errors import UserError
from moorage_state.keygroups import owner

_MS = 1000
_EMPTY = pa.table({})
_Run = Callable[[SubtaskPlan, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def input_table(uid: str, schema: pa.Schema, rows: Sequence[Any]) -> pa.Table:
    """Rows that a test gives for an input: tuples in the order of its columns, or dicts.

    Raises:
        UserError: one is no row of this input.
    """
    if isinstance(rows, (Mapping, str)) or not hasattr(rows, "__iter__"):
        raise UserError(
            f"rows of an input are a list of tuples or dicts: input={uid} "
            f"columns={schema.names} got={rows!r:.100}; give a list"
        )
    tuples = [_as_tuple(uid, schema.names, row) for row in rows]
    columns = list(zip(*tuples, strict=True)) if tuples else [()] * len(schema.names)
    arrays = []
    for column, values in zip(schema, columns, strict=True):
        reason = misfit(column, values)
        try:
            arrays.append(column_of(column.type, () if reason else values))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            reason = str(error)
        if reason:
            raise UserError(
                f"a value does not fit its column: input={uid} column={column.name} "
                f"declared={column.type}: {reason}{_advice(column.type, reason)}"
            )
    return pa.Table.from_arrays(arrays, schema=schema)


def _advice(kind: pa.DataType, reason: str) -> str:
    if "; give" in reason:
        return ""
    if pa.types.is_timestamp(kind):
        return "; give a datetime with a time zone, as datetime(2026, 1, 2, tzinfo=UTC)"
    return "; give a value of this type"


def _as_tuple(uid: str, names: Sequence[str], row: Any) -> tuple[Any, ...]:
    if isinstance(row, dict) and not row.keys() - set(names):
        return tuple(row.get(name) for name in names)
    if isinstance(row, (tuple, list)) and len(row) == len(names):
        return tuple(row)
    raise UserError(
        f"a row of an input is a tuple of its columns in order, or a dict by their names: "
        f"input={uid} columns={list(names)} got={row!r:.200}{_strange(names, row)}"
    )


def _strange(names: Sequence[str], row: Any) -> str:
    """The first key of a dict that is no column, and which one may be meant."""
    found = [key for key in row if key not in names] if isinstance(row, dict) else []
    return f"; not a column: {found[0]!r}{did_you_mean(found[0], names)}" if found else ""


class Shuffle:
    """One attempt at one epoch over rows that are there, all subtasks one after the other.

    Args:
        run: runs a subtask over its rows.
        tables: by uid, the rows of inputs; of others none came.
        batch_rows: how many rows a subtask gets at once, at the most.
    """

    def __init__(
        self,
        planner: EpochPlanner,
        spec: EpochPlan,
        tables: Mapping[str, pa.Table],
        run: _Run,
        batch_rows: int,
    ) -> None:
        self._p = planner
        self._spec = spec
        self._tables = tables
        self._run = run
        self._batch_rows = batch_rows
        self._outputs: dict[str, pa.Table] = {}

    def acks(self) -> list[bytes]:
        """Run it; the acknowledgements, encoded."""
        found: list[bytes] = []
        for operator in self._p.graph.operators:
            plan = self._p.subtask_plan(self._spec, operator)
            made = [
                batch
                for subtask, batches in enumerate(self._batches(operator))
                for batch in self._run(plan, iter(batches))
            ]
            if plan.downstream:
                self._outputs[operator.uid] = pa.Table.from_batches(made)
            else:
                found += [raw for b in made for raw in b.column(ACK_COLUMN).to_pylist() if raw]
        return found + self._direct_sinks()

    # -- rows of one operator --------------------------------------------------------------

    def _batches(self, operator: OperatorNode) -> list[list[pa.RecordBatch]]:
        """By subtask, its rows as batches, what is no row first."""
        fed = [self._fed(operator, index) for index in range(len(operator.feeds))]
        heads, rows = map(_together, zip(*fed, strict=True))
        for_all = self._for_all(operator)
        rows = _sorted(rows, [GROUP_COLUMN, *operator.key_columns])
        count = self._p.parallelism
        owners = self._owners(rows)
        batches = []
        for subtask in range(count):
            start = pa.table({
                KIND_COLUMN: pa.array([START], pa.int8()),
                GROUP_COLUMN: pa.array([subtask], pa.int32()),
            })  # fmt: skip
            mine = rows.filter(pa.array(owners == subtask))
            acks = heads
            if heads.num_rows:
                acks = heads.filter(pc.equal(heads.column(TARGET_COLUMN), subtask))
            batches.append(self._cut([start, acks, for_all, mine]))
        return batches

    def _owners(self, rows: pa.Table) -> Any:
        groups = rows.column(GROUP_COLUMN).to_numpy()
        most, count = self._p.max_parallelism, self._p.parallelism
        return np.array([owner(int(g), count, most) for g in groups], dtype=np.int64)

    def _cut(self, parts: Sequence[pa.Table]) -> list[pa.RecordBatch]:
        together = _together(parts)
        unused = [n for n in (SOURCE_ORDER, TARGET_COLUMN) if n in together.column_names]
        made: list[pa.RecordBatch] = (
            together.drop_columns(unused).combine_chunks().to_batches(self._batch_rows)
        )
        return made

    def _fed(self, operator: OperatorNode, index: int) -> tuple[pa.Table, pa.Table]:
        """Acknowledgements and rows of one feed."""
        feed, heads = operator.feeds[index], _EMPTY
        if isinstance(feed.source, Branch):
            stream = self._rows(feed.source)
            kinds = pa.array(np.full(len(stream), ROW, np.int8))
            engine = _numbered(pa.table({KIND_COLUMN: kinds}))
        else:
            heads, stream, engine = self._sent(feed, feed.source)
            if not self._p.forwards(operator, feed):
                heads = _EMPTY
        engine = engine.append_column(GROUP_COLUMN, self._groups(operator, feed, stream))
        if is_timed(operator):
            engine = engine.append_column(
                TIME_COLUMN, _times(stream, feed.event_time, feed.event_time_shift_ms)
            )
        if has_inputs_column(operator):
            inputs = pa.array(np.full(len(stream), index, np.int32))
            engine = engine.append_column(INPUT_COLUMN, inputs)
        return heads, _beside(_row_columns(operator, feed, stream), engine)

    def _groups(self, operator: OperatorNode, feed: Feed, rows: pa.Table) -> pa.Array:
        groups = key_groups(operator.key_types, self._p.max_parallelism, self._p.key_hash)
        columns = [rows.column(name).to_pylist() for name in feed.keyed.columns]
        return pa.array(groups(zip(*columns, strict=True)), pa.int32())

    def _for_all(self, operator: OperatorNode) -> pa.Table:
        """The rows of a broadcast stream, in the order in which all subtasks see them."""
        branches = operator.broadcast_branches
        if not branches:
            return _EMPTY
        timed = any(b.event_time is not None for b in branches)
        parts = []
        for index, branch in enumerate(branches):
            rows = self._rows(branch)
            times = _times(rows, branch.event_time)
            rows = rows.rename_columns([broadcast_column(i) for i in range(rows.num_columns)])
            kinds = pa.array(np.full(len(rows), BROADCAST, np.int8))
            rows = rows.append_column(KIND_COLUMN, kinds)
            if timed:
                rows = rows.append_column(TIME_COLUMN, times)
            if len(branches) > 1:
                inputs = pa.array(np.full(len(rows), index, np.int32))
                rows = rows.append_column(INPUT_COLUMN, inputs)
            parts.append(rows)
        return _sorted(_numbered(pa.concat_tables(parts)), [])

    def _sent(self, feed: Feed, producer: OperatorNode) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Acknowledgements, and of the output that is read its rows and the engine's columns."""
        made, stream = self._outputs[producer.uid], feed.keyed.stream
        is_ack = pc.equal(made.column(KIND_COLUMN), pa.scalar(ACK, pa.int8()))
        heads = made.filter(is_ack).select([KIND_COLUMN, ACK_COLUMN, TARGET_COLUMN])
        rows = self._picked(stream, producer, made.filter(pc.invert(is_ack)))
        engine = rows.select([KIND_COLUMN, ORDINAL_COLUMN, MARK_COLUMN])
        engine = engine.rename_columns([KIND_COLUMN, SOURCE_ORDER, MARK_COLUMN])
        return heads, rows.select(stream.schema.names), engine

    def _picked(self, stream: DataStream, producer: OperatorNode, rows: pa.Table) -> pa.Table:
        outlets = self._p.outlets(producer)
        read = {s.name: side_column(i) for i, s in enumerate(outlets.sides) if s.read}
        engine = [KIND_COLUMN, ORDINAL_COLUMN, MARK_COLUMN]
        if stream.side_output is None:
            for column in read.values():
                rows = rows.filter(pc.is_null(rows.column(column)))
            return rows.select([*stream.schema.names, *engine])
        mine = read[stream.side_output]
        rows = rows.filter(pc.is_valid(rows.column(mine)))
        structs = rows.column(mine)
        own = {n: pc.struct_field(structs, [i]) for i, n in enumerate(stream.schema.names)}
        return pa.table({**own, **{name: rows.column(name) for name in engine}})

    def _rows(self, branch: Branch) -> pa.Table:
        uid, schema = branch.node.uid, branch.node.frame.schema
        found = self._tables.get(uid)
        if found is None:
            found = input_table(uid, arrow_schema(schema), [])
        if not branch.transforms:
            return found
        if self._p.spark is None:
            raise without_spark(f"input={uid} asked=transform")
        # All rows of the epoch, as a job has them: a DataFrame that is no stream.
        made = branch.apply(self._p.spark.createDataFrame(found, schema))
        return made.toArrow().cast(arrow_schema(made.schema))

    # -- sinks without an operator before them ---------------------------------------------

    def _direct_sinks(self) -> list[bytes]:
        found: list[bytes] = []
        spec = self._spec
        for node in self._p.graph.sinks:
            if not node.upstream.branches or node.upstream.operator is not None:
                continue
            rows = pa.concat_tables([self._rows(branch) for branch in node.upstream.branches])
            schema = arrow_schema(node.upstream.schema)
            batches = iter(rows.to_batches(self._batch_rows))
            ids = spec.lineage, spec.run, spec.epoch, node.uid
            for batch in stage_rows(*ids, node.sink, schema, batches):
                found += batch.column(ACK_COLUMN).to_pylist()
        return found


def _row_columns(operator: OperatorNode, feed: Feed, rows: pa.Table) -> pa.Table:
    """A stream's columns; of one of two its key under one name, and its rows as structs."""
    if operator.second is None:
        return rows.select(columns_of(operator))
    structs = rows.to_struct_array() if len(rows) else pa.array([], pa.struct(rows.schema))
    pairs = zip(feed.keyed.columns, operator.key_columns, strict=True)
    keys = {name: rows.column(mine) for mine, name in pairs}
    return pa.table({**keys, stream_column(feed.side): structs})


def _together(parts: Sequence[pa.Table]) -> pa.Table:
    """All rows, with nulls in the columns that theirs has not."""
    some = [part for part in parts if part.num_columns]
    return pa.concat_tables(some, promote_options="default") if some else _EMPTY


def _beside(one: pa.Table, other: pa.Table) -> pa.Table:
    columns = dict(zip(one.column_names, one.columns, strict=True))
    return pa.table({**columns, **dict(zip(other.column_names, other.columns, strict=True))})


def _times(rows: pa.Table, column: str | None, shift_ms: int = 0) -> pa.Array:
    """Milliseconds since 1970 of the event time column; null where none is declared."""
    if column is None:
        return pa.nulls(len(rows), pa.int64())
    stamps = rows.column(column).combine_chunks()
    if not pa.types.is_timestamp(stamps.type):
        return pc.add(stamps, shift_ms)
    micros = stamps.cast(pa.timestamp("us", stamps.type.tz)).cast(pa.int64())
    floored = np.floor_divide(micros.fill_null(0).to_numpy(), _MS)
    return pa.array(floored + shift_ms, mask=micros.is_null().to_numpy(zero_copy_only=False))


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.append_column(SOURCE_ORDER, pa.array(np.arange(len(rows), dtype=np.int64)))


def _sorted(rows: pa.Table, first: Sequence[str]) -> pa.Table:
    """Rows of a key together, in the order of ADR 0003."""
    columns: list[Any] = []
    for name in [*first, *(name for name in TIES if name in rows.column_names)]:
        column = rows.column(name)
        # Nulls first, as Spark has them.
        columns += [pc.is_valid(column)] if column.null_count else []
        columns.append(column)
    names = [str(number) for number in range(len(columns))]
    order = pc.sort_indices(
        pa.table(columns, names), sort_keys=[(name, "ascending") for name in names]
    )
    return rows.take(order)
