"""The plan of one epoch: from the job's graph and a micro-batch to the acknowledgements' frame.

Decides how rows reach the subtask that owns their key and in what order they are processed. The
result is one lazy DataFrame whose single action runs the whole epoch. Called by the epoch runner.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import and_
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    StructField,
    StructType,
)

from moorage.api.aggregates import LocalAggregate
from moorage.api.declarations import arrow_schema
from moorage.api.functions import OutputTag
from moorage.api.graph import Branch, Feed, JobGraph, OperatorNode, SinkNode
from moorage.api.sinks import Sink
from moorage.api.streams import DataStream
from moorage.engine.columns import (
    ACK_COLUMN,
    BROADCAST,
    COUNT_COLUMN,
    GROUP_COLUMN,
    INPUT_COLUMN,
    KIND_COLUMN,
    MARK_COLUMN,
    NULLS_COLUMN,
    ORDINAL_COLUMN,
    OUTPUT_COLUMNS,
    ROW,
    SOURCE_ORDER,
    START,
    TARGET_COLUMN,
    TIME_COLUMN,
    broadcast_column,
    side_column,
    stream_column,
)
from moorage.engine.event_time import Watermarks, job_clocks
from moorage.engine.key_group_columns import key_group_column
from moorage.engine.local_aggregation import (
    LocalAggregation,
    added_columns,
    counted_by,
    local_of,
)
from moorage.engine.placement import Placement
from moorage.engine.range_access import LeasedRange
from moorage.engine.samples import Sampling
from moorage.engine.subtask import run_subtask, stage_rows
from moorage.engine.subtask_plan import OperatorStatePlan, SideOutputPlan, SubtaskPlan, Upstream
from moorage_state.keyed.schema import StateSchema
from moorage_state.keygroups import SPARK_XXHASH64

_T = TypeVar("_T")
_HASH = "_m_hash"
_TAG = "_m_tag"
TIES = (TIME_COLUMN, INPUT_COLUMN, SOURCE_ORDER)
"""The order of rows of one key; see ADR 0003."""

_MS = 1000
_ACK_SCHEMA = StructType([StructField(ACK_COLUMN, BinaryType())])
_ENGINE_FIELDS = [
    StructField(KIND_COLUMN, ByteType()),
    StructField(ORDINAL_COLUMN, LongType()),
    StructField(MARK_COLUMN, LongType()),
    StructField(TARGET_COLUMN, IntegerType()),
    StructField(ACK_COLUMN, BinaryType()),
]


def to_all(frames: Sequence[DataFrame], times: Sequence[Column], parallelism: int) -> DataFrame:
    """Rows for every subtask.

    Args:
        frames: the rows of each input, of one schema.
        times: the event time of each in milliseconds; none where none is declared.
    """
    several = len(frames) > 1
    parts = []
    for index, rows in enumerate(frames):
        columns = [
            sf.col(f"`{name}`").alias(broadcast_column(i)) for i, name in enumerate(rows.columns)
        ]
        columns.append(sf.lit(BROADCAST).cast("tinyint").alias(KIND_COLUMN))
        # Numbered before they are multiplied: all subtasks see one order.
        columns.append(sf.monotonically_increasing_id().alias(SOURCE_ORDER))
        if times:
            columns.append(times[index].alias(TIME_COLUMN))
        if several:
            columns.append(sf.lit(index).alias(INPUT_COLUMN))
        parts.append(rows.select(*columns))
    targets = sf.sequence(sf.lit(0), sf.lit(parallelism - 1))
    together = reduce(DataFrame.unionByName, parts)
    return together.select("*", sf.explode(targets).alias(TARGET_COLUMN))


@dataclass(frozen=True, slots=True)
class Outlets:
    """The outputs of one operator.

    Attributes:
        consumers: the operators that read any of them; each as often as it does.
        sinks: uids and sinks of the main output.
        main_read: whether an operator reads the main output.
        sides: its side outputs.
        fields: the columns that carry what operators read.
    """

    consumers: tuple[OperatorNode, ...]
    sinks: tuple[tuple[str, Sink], ...]
    main_read: bool
    sides: tuple[SideOutputPlan, ...]
    fields: tuple[StructField, ...]

    def pick(self, stream: DataStream) -> tuple[Column, list[Column]] | None:
        """Rows (acknowledgements with them) and columns of one output; None where it is all."""
        read = {s.name: side_column(i) for i, s in enumerate(self.sides) if s.read}
        if not read:
            return None
        engine = [sf.col(name) for name in OUTPUT_COLUMNS]
        if stream.side_output is None:
            rows = reduce(and_, (sf.col(column).isNull() for column in read.values()))
            return rows, [*(sf.col(f"`{n}`") for n in stream.schema.names), *engine]
        mine = read[stream.side_output]
        rows = (sf.col(KIND_COLUMN) != ROW) | sf.col(mine).isNotNull()
        own = [sf.col(f"{mine}.`{name}`").alias(name) for name in stream.schema.names]
        return rows, [*own, *engine]


def outlets_of(graph: JobGraph, operator: OperatorNode) -> Outlets:
    """The outputs of an operator, as the graph uses them."""
    reads = [(o, f.keyed.stream) for o in graph.operators for f in o.feeds]
    reads = [(reader, stream) for reader, stream in reads if stream.operator is operator]
    consumers = tuple(reader for reader, _ in reads)
    read = {stream.side_output for _, stream in reads}
    sides = tuple(
        SideOutputPlan(
            side.name,
            arrow_schema(side.schema),
            _sinks(graph, operator, side.name),
            side.name in read,
        )
        for side in operator.side_outputs
    )
    fields = [*operator.output.fields] if None in read else []
    for index, side in enumerate(operator.side_outputs):
        if side.name in read:
            columns = [StructField(f.name, f.dataType, True) for f in side.schema.fields]
            fields.append(StructField(side_column(index), StructType(columns)))
    return Outlets(
        consumers,
        _sinks(graph, operator, None),
        None in read,
        sides,
        tuple(StructField(f.name, f.dataType, True) for f in fields),
    )


def _sinks(
    graph: JobGraph, operator: OperatorNode, side_output: str | None
) -> tuple[tuple[str, Sink], ...]:
    return tuple(
        (s.uid, s.sink)
        for s in graph.sinks
        if s.upstream.operator is operator and s.upstream.side_output == side_output
    )


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What distinguishes one epoch from another."""

    lineage: str
    run: str
    epoch: int
    watermarks: Watermarks
    now_ms: int
    next_timers: Mapping[str, Sequence[int]]
    token: str
    ranges: Mapping[str, Sequence[LeasedRange]]
    schemas: Mapping[str, tuple[StateSchema, ...]]
    operator_states: Mapping[str, OperatorStatePlan] = field(default_factory=dict)
    added_up: Collection[str] = ()
    blank_columns_of: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class EpochFrame:
    """The lazy frame of acknowledgements, and what to unpersist once it was collected."""

    acks: DataFrame
    persisted: tuple[DataFrame, ...]


def tagged_union(graph: JobGraph) -> DataFrame:
    """All inputs as one streaming DataFrame.

    With one input it is the input itself; with several each row carries its input's position and
    its columns in a struct of its own.
    """
    inputs = graph.inputs
    if len(inputs) == 1:
        return inputs[0].frame
    parts = []
    for i, node in enumerate(inputs):
        columns = [sf.lit(i).alias(_TAG)]
        for k, other in enumerate(inputs):
            mine = sf.struct(*(sf.col(f"`{c}`") for c in node.frame.columns))
            value = mine if k == i else sf.lit(None).cast(other.frame.schema)
            columns.append(value.alias(f"_m_c{k}"))
        parts.append(node.frame.select(*columns))
    # One query, so that one offset log of Spark's aligns all inputs.
    return reduce(DataFrame.union, parts)


class EpochPlanner:
    """Plans epochs of one job; holds nothing that changes between epochs."""

    def __init__(
        self,
        spark: SparkSession,
        graph: JobGraph,
        placement: Placement,
        parallelism: int,
        max_parallelism: int,
        *,
        batch: bool = False,
        key_hash: str = SPARK_XXHASH64,
    ) -> None:
        self.batch = batch
        self.key_hash = key_hash
        self.spark = spark
        self.graph = graph
        self.clocks = job_clocks(graph)
        self.placement = placement
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        # Every expression and frame costs calls into the JVM, and while a plan is made no processor
        # works on rows: what is the same in each epoch is made once.
        self._made: dict[tuple[str, ...], Any] = {}

    def resized(self, parallelism: int) -> "EpochPlanner":
        """One for the same job with another number of subtasks."""
        return EpochPlanner(
            self.spark,
            self.graph,
            self.placement,
            parallelism,
            self.max_parallelism,
            batch=self.batch,
            key_hash=self.key_hash,
        )

    def once(self, key: tuple[str, ...], make: Callable[[], _T]) -> _T:
        """What `make` gave when it was first called under this key."""
        if key not in self._made:
            self._made[key] = make()
        made: _T = self._made[key]
        return made

    def plan(self, spec: EpochPlan, batch: DataFrame | None) -> EpochFrame:
        """The frame whose collection runs the epoch; `batch` is None between micro-batches."""
        return _Build(self, spec, batch).frame()

    def outlets(self, operator: OperatorNode) -> Outlets:
        """Who takes `operator`'s outputs."""
        return self.once((operator.uid, "outlets"), lambda: outlets_of(self.graph, operator))

    def subtask_plan(
        self, spec: EpochPlan, operator: OperatorNode, *, added_up: bool = False
    ) -> SubtaskPlan:
        """What the subtasks of `operator` are told; asks nothing of Spark.

        Args:
            added_up: its rows were, before they travelled.
        """
        outlets, clocks, upstreams = self.outlets(operator), self.clocks, self._upstreams(operator)
        watermark = spec.watermarks.of(operator.uid)
        before = spec.watermarks.before(operator.uid)
        return SubtaskPlan(
            uid=operator.uid,
            lineage=spec.lineage,
            run=spec.run,
            epoch=spec.epoch,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            function=operator.function,
            columns=added_columns(operator) if added_up else columns_of(operator),
            key_columns=operator.key_columns,
            key_types=operator.key_types,
            output=arrow_schema(operator.output),
            watermark=watermark,
            row_watermark=before if upstreams else watermark,
            ranges=spec.ranges[operator.uid],
            token=spec.token,
            inputs=tuple(clock or "" for clock in clocks.feeds[operator.uid]),
            per=self._per(operator),
            now_ms=spec.now_ms,
            next_timers=array("q", spec.next_timers.get(operator.uid, ())),
            timer_delay_ms=clocks.within_keys(operator.uid),
            downstream=bool(outlets.consumers),
            main_read=outlets.main_read,
            side_outputs=outlets.sides,
            time_columns=_time_columns(operator),
            null_keys_to=_name_of(operator.null_key),
            bad_times_to=_name_of(operator.bad_time),
            upstreams=upstreams,
            blank_columns_of=() if added_up else spec.blank_columns_of.get(operator.uid, ()),
            streams=_streams(operator),
            schemas=tuple(spec.schemas.get(operator.uid, ())),
            sinks=outlets.sinks,
            operator_state=spec.operator_states.get(operator.uid),
            batch=self.batch,
            sampling=spec.sampling,
        )

    def _upstreams(self, operator: OperatorNode) -> tuple[Upstream, ...]:
        several = len(operator.feeds) > 1
        return tuple(
            Upstream(f.producer.uid, f.keyed.stream.side_output or "", i if several else None)
            for i, f in enumerate(operator.feeds)
            if f.producer is not None
        )

    def _per(self, operator: OperatorNode) -> tuple[str, ...]:
        """By feed, where the column lies by whose values its clock counts."""
        per = self.clocks.per(operator.uid)
        if operator.second is None:
            return per
        return tuple(
            f"{stream_column(feed.side)}.{name}" if name else ""
            for feed, name in zip(operator.feeds, per, strict=True)
        )

    def forwards(self, operator: OperatorNode, feed: Feed) -> bool:
        """Whether this one, of all feeds that read its producer, passes acknowledgements on."""
        if feed.producer is None:
            return False
        first = next(f for f in operator.feeds if f.producer is feed.producer)
        chosen = self.outlets(feed.producer).consumers[0]
        return chosen is operator and first.side == feed.side


class _Build:
    """One epoch's plan while it is being put together."""

    def __init__(self, planner: EpochPlanner, spec: EpochPlan, batch: DataFrame | None) -> None:
        self._p = planner
        self._spec = spec
        self._batch = batch
        self._persisted: list[DataFrame] = []
        self._outputs: dict[str, DataFrame] = {}

    def frame(self) -> EpochFrame:
        leaves = []
        self._p.placement.look()
        self._share_batch()
        for operator in self._p.graph.operators:
            output = self._operator(operator)
            if not self._p.outlets(operator).consumers:
                leaves.append(output)
        if self._batch is not None:
            leaves += [self._direct_sink(s) for s in self._p.graph.sinks if s.upstream.branches]
        return EpochFrame(reduce(DataFrame.union, leaves), tuple(self._persisted))

    def _share_batch(self) -> None:
        """Keep the micro-batch where more than one consumer would read its source again."""
        graph = self._p.graph
        readers = [f.branch for o in graph.operators for f in o.feeds if f.branch is not None]
        readers += [branch for s in graph.sinks for branch in s.upstream.branches]
        readers += [branch for o in graph.operators for branch in o.broadcast_branches]
        if self._batch is not None and len(readers) > 1:
            self._batch = self._batch.persist()
            self._persisted.append(self._batch)

    def _operator(self, operator: OperatorNode) -> DataFrame:
        added = self._added_up(operator)
        parts = added or [self._fed(operator, index) for index in range(len(operator.feeds))]
        rows = reduce(_union, parts)
        if operator.broadcast is not None:
            rows = rows.unionByName(
                self._to_all(operator.broadcast.stream.branches), allowMissingColumns=True
            )
        form = "rows" if added is None else "added-up"
        starts = self._p.once((operator.uid, "starts", form), lambda: self._starts(rows.schema))
        order = self._p.once((operator.uid, "order", form), lambda: _order(operator, rows.columns))
        placed = self._p.placement.place(rows.unionByName(starts), self._p.parallelism)
        ordered = placed.sortWithinPartitions(*order).drop(_HASH, SOURCE_ORDER, TARGET_COLUMN)
        output = self._run(operator, ordered, added_up=added is not None)
        if len(self._p.outlets(operator).consumers) > 1:
            output = output.persist()
            self._persisted.append(output)
        self._outputs[operator.uid] = output
        return output

    def _run(self, operator: OperatorNode, ordered: DataFrame, *, added_up: bool) -> DataFrame:
        plan = self._p.subtask_plan(self._spec, operator, added_up=added_up)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return run_subtask(plan, batches)

        schema = _ACK_SCHEMA
        if plan.downstream:
            fields = self._p.outlets(operator).fields
            schema = StructType([*fields, *_ENGINE_FIELDS])
        return ordered.mapInArrow(run, schema)

    # -- rows on their way to a subtask ----------------------------------------------------

    def _fed(self, operator: OperatorNode, index: int) -> DataFrame:
        """The rows of one feed."""
        feed, key = operator.feeds[index], (operator.uid, "feed", str(index))
        make: Callable[[OperatorNode, int, Feed, StructType], list[Column]]
        if isinstance(feed.source, Branch):
            rows = feed.source.apply(self._input(feed.source))
            make = self._branch_columns
        else:
            rows = self._sent(operator, index, feed, feed.source)
            make = self._output_columns
        return rows.select(*self._p.once(key, lambda: make(operator, index, feed, rows.schema)))

    def _branch_columns(
        self,
        operator: OperatorNode,
        index: int,
        feed: Feed,
        schema: StructType,
        *,
        added: bool = False,
    ) -> list[Column]:
        group, digest = self._key_group(operator, feed)
        columns = [
            sf.lit(ROW).cast("tinyint").alias(KIND_COLUMN),
            group.alias(GROUP_COLUMN),
            digest.alias(_HASH),
            # The order of rows that were added up is that of none of them.
            *([] if added else [sf.monotonically_increasing_id().alias(SOURCE_ORDER)]),
            self._owner(group).alias(TARGET_COLUMN),
        ]
        # Columns that this operator has no use for are left out: they would cost as much as the
        # user's own on their way through shuffle, sort and Arrow.
        if is_timed(operator):
            time = sf.col(TIME_COLUMN) if added else _event_time(schema, feed.event_time)
            columns.append(time.alias(TIME_COLUMN))
        names = (*added_columns(operator), COUNT_COLUMN, NULLS_COLUMN)
        return [
            *(_named(names) if added else _row_columns(operator, feed, schema.names)),
            *columns,
            *_input_column(operator, index),
        ]

    def _added_up(self, operator: OperatorNode) -> list[DataFrame] | None:
        """The rows of all feeds, added up; None where they cannot be, or it would not help."""
        # With the backend batch the first epoch has all rows, and nothing is known of it.
        wanted = self._p.batch or operator.uid in self._spec.added_up
        local = local_of(operator) if wanted and self._batch is not None else None
        if local is None:
            return None
        once, watermark, found = self._p.once, self._spec.watermarks.of(operator.uid), []
        for index, feed in enumerate(operator.feeds):
            assert isinstance(feed.source, Branch)  # noqa: S101 - for mypy: `local_of` has looked
            rows, key = feed.source.apply(self._input(feed.source)), (operator.uid, str(index))
            how = partial(_local_aggregation, operator, feed, local, rows.schema)
            added = once((*key, "local"), how).added_up(rows, watermark)
            if added is None:
                return None
            make = partial(self._branch_columns, operator, index, feed, rows.schema, added=True)
            found.append(added.select(*once((*key, "added"), make)))
        return found

    def _to_all(self, branches: Sequence[Branch]) -> DataFrame:
        """The rows of a broadcast stream, once for each subtask."""
        frames = [branch.apply(self._input(branch)) for branch in branches]
        timed = any(branch.event_time is not None for branch in branches)
        times = [_event_time(f.schema, b.event_time) for f, b in zip(frames, branches, strict=True)]
        return to_all(frames, times if timed else [], self._p.parallelism)

    def _sent(
        self, operator: OperatorNode, index: int, feed: Feed, producer: OperatorNode
    ) -> DataFrame:
        """The rows of another operator's output, and acknowledgements."""
        outlets, rows = self._p.outlets(producer), self._outputs[producer.uid]
        key = (operator.uid, "pick", str(index))
        pick = self._p.once(key, lambda: outlets.pick(feed.keyed.stream))
        if pick is not None:
            wanted, taken = pick
            rows = rows.where(wanted).select(*taken)
        # Each acknowledgement takes one way.
        return rows if self._p.forwards(operator, feed) else rows.where(sf.col(KIND_COLUMN) == ROW)

    def _output_columns(
        self, operator: OperatorNode, index: int, feed: Feed, schema: StructType
    ) -> list[Column]:
        group, digest = self._key_group(operator, feed)
        is_row = sf.col(KIND_COLUMN) == ROW
        return [
            *_row_columns(operator, feed, feed.keyed.stream.schema.names),
            sf.col(KIND_COLUMN),
            sf.when(is_row, group).alias(GROUP_COLUMN),
            _event_time(schema, feed.event_time, feed.event_time_shift_ms).alias(TIME_COLUMN),
            sf.col(ACK_COLUMN),
            sf.when(is_row, digest).alias(_HASH),
            sf.col(ORDINAL_COLUMN).alias(SOURCE_ORDER),
            sf.col(MARK_COLUMN),
            sf.when(is_row, self._owner(group))
            .otherwise(sf.col(TARGET_COLUMN))
            .alias(TARGET_COLUMN),
            *_input_column(operator, index),
        ]

    def _input(self, branch: Branch) -> DataFrame:
        graph = self._p.graph
        if self._batch is None:
            return self._p.spark.createDataFrame([], branch.node.frame.schema)
        if len(graph.inputs) == 1:
            return self._batch
        index = graph.inputs.index(branch.node)
        return self._batch.where(sf.col(_TAG) == index).select(f"_m_c{index}.*")

    def _key_group(self, operator: OperatorNode, feed: Feed) -> tuple[Column, Column]:
        columns, types = feed.keyed.columns, operator.key_types
        digest = sf.xxhash64(*(sf.col(f"`{c}`") for c in columns))
        most = self._p.max_parallelism
        return key_group_column(self._p.key_hash, columns, types, digest, most), digest

    def _owner(self, group: Column) -> Column:
        share = group * sf.lit(self._p.parallelism) / sf.lit(self._p.max_parallelism)
        return sf.floor(share).cast("int")

    def _starts(self, schema: StructType) -> DataFrame:
        """One row per subtask that says which one it is."""
        parallelism = self._p.parallelism
        # So that subtasks without rows run too.
        ids = self._p.spark.range(0, parallelism, 1, 1)
        fixed = {
            KIND_COLUMN: sf.lit(START).cast("tinyint"),
            GROUP_COLUMN: sf.col("id").cast("int"),
            TARGET_COLUMN: sf.col("id").cast("int"),
        }
        return ids.select(
            *(fixed.get(f.name, sf.lit(None).cast(f.dataType)).alias(f.name) for f in schema.fields)
        )

    # -- sinks without an operator before them ---------------------------------------------

    def _direct_sink(self, node: SinkNode) -> DataFrame:
        parts = [b.apply(self._input(b)) for b in node.upstream.branches]
        rows = reduce(DataFrame.unionByName, parts)
        spec, uid, sink = self._spec, node.uid, node.sink
        schema = arrow_schema(node.upstream.schema)

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            ids = spec.lineage, spec.run, spec.epoch, uid
            return stage_rows(*ids, sink, schema, batches, spec.sampling)

        return rows.mapInArrow(stage, _ACK_SCHEMA)


def columns_of(operator: OperatorNode) -> tuple[str, ...]:
    """The columns that rows of an operator have in subtasks, beside the engine's own."""
    if operator.second is not None:
        return (*operator.key_columns, stream_column(0), stream_column(1))
    names, reads = tuple(operator.upstream.schema.names), operator.reads
    return names if reads is None else tuple(name for name in names if name in reads)


def _local_aggregation(
    operator: OperatorNode, feed: Feed, local: LocalAggregate, schema: StructType
) -> LocalAggregation:
    time = _event_time(schema, feed.event_time) if is_timed(operator) else None
    return LocalAggregation(counted_by(operator), time, local)


def is_timed(operator: OperatorNode) -> bool:
    """Whether rows of an operator have a column of times."""
    return any(feed.branch is None or feed.event_time is not None for feed in operator.feeds)


def has_inputs_column(operator: OperatorNode) -> bool:
    """Whether rows of an operator tell by which feed they came."""
    feeds = operator.feeds
    return len(feeds) > 1 or (feeds[0].branch is not None and is_timed(operator))


def _streams(operator: OperatorNode) -> tuple[tuple[str, ...], ...]:
    if operator.second is None:
        return ()
    return tuple(tuple(keyed.stream.schema.names) for keyed in operator.keyed_inputs)


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other, allowMissingColumns=True)


def _row_columns(operator: OperatorNode, feed: Feed, names: Sequence[str]) -> list[Column]:
    """A stream's columns; of one of two its key under one name, and its rows as structs."""
    if operator.second is None:
        return _named(columns_of(operator))
    columns = [sf.col(f"`{name}`") for name in names]
    pairs = zip(feed.keyed.columns, operator.key_columns, strict=True)
    keys = [sf.col(f"`{mine}`").alias(name) for mine, name in pairs]
    return [*keys, sf.struct(*columns).alias(stream_column(feed.side))]


def _named(names: Iterable[str]) -> list[Column]:
    return [sf.col(f"`{name}`") for name in names]


def _input_column(operator: OperatorNode, index: int) -> list[Column]:
    return [sf.lit(index).alias(INPUT_COLUMN)] if has_inputs_column(operator) else []


def _order(operator: OperatorNode, columns: Sequence[str]) -> list[Column]:
    """The order of rows within a subtask."""
    ties = [name for name in TIES if name in columns]
    names = (*operator.key_columns, *ties)
    # The hash brings the rows of a key together.
    first = [sf.col(_HASH).asc_nulls_first()]
    if operator.broadcast is not None:
        # Without a hash are starts, acknowledgements, and then the rows for all.
        first.append(sf.col(KIND_COLUMN).desc())
    return [*first, *(sf.col(f"`{name}`") for name in names)]


def _time_columns(operator: OperatorNode) -> tuple[str, ...]:
    return tuple(feed.event_time or "" for feed in operator.feeds)


def _name_of(aside: str | OutputTag) -> str:
    return aside.name if isinstance(aside, OutputTag) else ""


def _event_time(schema: StructType, column: str | None, shift_ms: int = 0) -> Column:
    """Milliseconds since 1970 of the event time column; null where none is declared."""
    if column is None:
        return sf.lit(None).cast("long")
    found = sf.col(f"`{column}`")
    if not isinstance(schema[column].dataType, LongType):
        found = sf.floor(sf.unix_micros(found) / sf.lit(_MS)).cast("long")
    return found + sf.lit(shift_ms).cast("long") if shift_ms else found
