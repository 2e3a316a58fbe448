"""The Spark data source `moorage-kafka`: Kafka's topics as a stream, without Spark's connector.

Spark keeps the offsets, as it does for every source, and they go into checkpoints from there; no
consumer group has a part in it. The reader lives in a Python process beside the driver's JVM and is
asked once an epoch; `read` runs in tasks, one for each partition with new records. Made known to a
session by `StreamEnvironment.read_stream`, as one format for each input that has its options in it:
options that are given to Spark are shown in its plans, and some of these are secrets.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moorage.kafka.client import (
    Brokers,
    OffsetsLost,
    SourceFailure,
    consumer_config,
    failure_of,
    is_gone,
    library,
)
from moorage.kafka.offsets import (
    OffsetJson,
    Offsets,
    Partition,
    Slice,
    as_json,
    dealt,
    from_json,
    gone,
    planned,
)
from moorage.kafka.options import EARLIEST, LATEST, SourceOptions
from moorage_state.errors import Retryable, UserError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.1 asks for the latest offset and nothing else
    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow = None  # type: ignore[assignment,misc]  # not there

__all__ = ["NAME", "KafkaReader", "KafkaSource", "columns_of_records", "register"]

NAME = "moorage-kafka"

_log = logging.getLogger(__name__)

_BATCH_ROWS = 8192
_POLL_SECONDS = 0.1
# A broker that has just started does not know all topics yet, and says that they are not there.
_PATIENCE_SECONDS = 30.0
_ASK_AGAIN_SECONDS = 0.5

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_ARROW = pa.schema([
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
])  # fmt: skip


def register(spark: SparkSession, uid: str, options: SourceOptions) -> str:
    """Make an input's source known to this session; returns the format to read."""
    found = {"given": options, "format": f"{NAME}-{uid}", "__module__": "__main__"}
    # Of no module that could be imported: it is sent to Spark's processes as it is.
    spark.dataSource.register(type("KafkaInput", (KafkaSource,), found))
    return f"{NAME}-{uid}"


def columns_of_records(*, headers: bool) -> StructType:
    """The columns of a record, those of Spark's connector."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if headers:
        pair = [StructField("key", StringType()), StructField("value", BinaryType())]
        fields.append(StructField("headers", ArrayType(StructType(pair))))
    return StructType(fields)


class KafkaSource(DataSource):
    """What Spark asks of the format."""

    given: ClassVar[SourceOptions]
    format: ClassVar[str] = NAME

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return cls.format

    def schema(self) -> StructType:
        """The columns."""
        return columns_of_records(headers=self.given.headers)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's
        """The reader of one query."""
        return KafkaReader(self.given)


class _Slice(InputPartition):
    """What one task reads."""

    def __init__(self, slice_: Slice) -> None:
        super().__init__(slice_)


class KafkaReader(DataSourceStreamReader, SupportsTriggerAvailableNow or object):  # type: ignore[misc]  # see the import
    """Where a stream stands, and what the next epoch takes.

    Args:
        brokers: makes what it asks; connected when it is first needed, and never in a task.
    """

    def __init__(
        self, options: SourceOptions, brokers: Callable[[SourceOptions], Brokers] = Brokers
    ) -> None:
        self._options = options
        self._make_brokers = brokers
        self._connected: Brokers | None = None
        self._final: Offsets | None = None
        # Where each partition that this query has seen stood last, and which of them are missed:
        # those are told, and not waited for again.
        self._known: Offsets = {}
        self._missed: set[Partition] = set()
        # Whether all that the options name was looked for; a topic may go later.
        self._begun = False

    def __getstate__(self) -> dict[str, object]:
        """Tasks read; they ask nothing."""
        return {**self.__dict__, "_connected": None, "_make_brokers": None}

    # -- beside the driver -----------------------------------------------------------------

    def initialOffset(self) -> OffsetJson:  # noqa: N802 - Spark's
        """Where a stream begins that no checkpoint has an offset for."""
        brokers, starting = self._brokers, self._options.starting
        partitions = self._partitions(lambda found: not self._lacking(found))
        if lacking := self._lacking(partitions):
            # Not a topic that comes later: a name that is wrong would wait for ever, in silence.
            raise self._misnamed(lacking)
        self._begun = True
        if isinstance(starting, int):
            at = {EARLIEST: brokers.earliest, LATEST: brokers.latest}[starting](partitions)
        else:
            at = self._given(starting, partitions)
        self._known = at | self._known  # Spark 4.1 asks for the end of an epoch first
        return as_json(at)

    def _misnamed(self, lacking: list[str]) -> SourceFailure:
        return SourceFailure(
            UserError.code,
            f"no partition of these is there: missing={lacking} "
            f"topics={list(self._options.topics)}; create them, or mend subscribe or assign",
        )

    def _given(self, starting: dict[str, dict[int, int]], partitions: set[Partition]) -> Offsets:
        given = {(t, p): offset for t, each in starting.items() for p, offset in each.items()}
        if given.keys() != partitions:
            raise SourceFailure(
                UserError.code,
                f"startingOffsets must name each partition once: "
                f"missing={sorted(partitions - given.keys())} "
                f"unknown={sorted(given.keys() - partitions)}",
            )
        ends = {
            EARLIEST: self._brokers.earliest([at for at, n in given.items() if n == EARLIEST]),
            LATEST: self._brokers.latest([at for at, n in given.items() if n == LATEST]),
        }
        return {at: ends[n][at] if n in ends else n for at, n in given.items()}

    def getDefaultReadLimit(self) -> "ReadLimit":  # noqa: N802 - Spark's
        """How much an epoch takes, unless the trigger says otherwise."""
        limit = self._options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(  # noqa: N802 - Spark's
        self, start: OffsetJson | None = None, limit: "ReadLimit | None" = None
    ) -> OffsetJson:
        """The end of the next epoch.

        Spark 4.1 passes neither argument, and asks alike for an epoch and for the end of a bounded
        run: it gets all there is.
        """
        begin = from_json(start or {})
        latest = self._latest(begin)
        if limit is None or not isinstance(limit, ReadMaxRows):
            return as_json(latest)
        return as_json(dealt(self._from_first(begin, latest), latest, limit.max_rows))

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802 - Spark's
        """How far the topics go, for the query's progress."""
        return as_json(self._final or self._brokers.latest(self._brokers.partitions()))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """From now on the stream ends where the topics end now."""
        found = self._partitions(lambda found: self._whole(self._known, found))
        self._known = self._final = self._brokers.latest(found)

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        """One slice for each partition with records."""
        until = from_json(end)
        slices, lost = planned(self._from_first(from_json(start), until), until)
        self._tell(lost)
        return [_Slice(one) for one in slices]

    def commit(self, end: OffsetJson) -> None:
        """Nothing: offsets are in checkpoints."""

    def stop(self) -> None:
        """The query has ended."""
        if self._connected is not None:
            self._connected.close()

    @property
    def _brokers(self) -> Brokers:
        if self._connected is None:
            self._connected = self._make_brokers(self._options)
        return self._connected

    def _latest(self, begin: Offsets) -> Offsets:
        """The ends of all partitions; one that is gone is told.

        Where that is well, it stays where it is for as long as the options name it: without its
        place it would be new, and read once more, should it come back.
        """
        known = begin or self._known  # Spark 4.1 gives no start
        if self._begun and self._final is not None and known.keys() <= self._final.keys():
            return self._final
        found = self._partitions(lambda found: self._whole(known, found))
        if not self._begun:
            self._begun = True
            if begin:
                self._check_added(self._lacking(found | begin.keys()))
        if self._options.fail_on_data_loss:
            self._tell(gone(known, found))
        kept = {at: known[at] for at in known.keys() - found if self._options.names(*at)}
        self._tell(gone(kept, self._missed))
        self._missed = set(kept)
        self._known = kept | self._brokers.latest(found)
        if self._final is None:
            return self._known
        # What was missing when a bounded run began ends where it ends now.
        late = {at: self._known[at] for at in known.keys() & self._known.keys()}
        self._final = late | self._final
        return self._final

    def _check_added(self, lacking: list[str]) -> None:
        """What an upgrade names beside a checkpoint is there, as in a new stream."""
        if lacking and self._options.fail_on_data_loss:
            raise self._misnamed(lacking)
        for one in lacking:  # deleted, it may be, and let go of at an earlier start
            _log.warning("kafka_data_loss: nothing of %s is there", one)

    def _from_first(self, begin: Offsets, end: Offsets) -> Offsets:
        """Where an epoch begins: in a partition that is new, at the first record it has left."""
        first = self._brokers.earliest(end.keys() - begin.keys())
        # If that is behind the end by now, the next epoch finds what is lost.
        return {at: min(offset, end[at]) for at, offset in first.items()} | begin

    def _whole(self, known: Offsets, found: set[Partition]) -> bool:
        """Whether all that is known is there, and at first all that is named."""
        there = known.keys() - self._missed <= found
        return there and (self._begun or not self._lacking(found | known.keys()))

    def _lacking(self, found: set[Partition]) -> list[str]:
        """What the options name that is not there: topics, or partitions of `assign`."""
        named = {(t, p) for t, each in self._options.assigned.items() for p in each}
        if named:
            return [f"{topic}-{partition}" for topic, partition in sorted(named - found)]
        return sorted(set(self._options.topics) - {topic for topic, _ in found})

    def _partitions(self, whole: Callable[[set[Partition]], bool]) -> set[Partition]:
        """All partitions; asked for again, for a while, as long as some are missing."""
        seconds = min(_PATIENCE_SECONDS, self._options.timeout_ms / 1000)
        deadline = time.monotonic() + seconds
        while not whole(found := self._brokers.partitions()) and time.monotonic() < deadline:
            time.sleep(_ASK_AGAIN_SECONDS)
        return found

    def _tell(self, lost: list[str]) -> None:
        if lost and self._options.fail_on_data_loss:
            raise OffsetsLost("; ".join(lost))
        for one in lost:
            _log.warning("kafka_data_loss: %s", one)

    # -- in a task -------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one slice, in the order of their offsets."""
        part, kafka = partition.value, library()
        try:
            yield from _records(self._options, part, kafka)
        except kafka.KafkaException as error:
            where = f"topic={part.topic} partition={part.partition}"
            raise failure_of(error.args[0], where) from error


def _records(options: SourceOptions, part: Slice, kafka: Any) -> Iterator[pa.RecordBatch]:
    consumer = kafka.Consumer({**consumer_config(options.client), "logger": _log})
    with closing(consumer):
        at = part.start
        consumer.assign([kafka.TopicPartition(part.topic, part.partition, at)])
        deadline = time.monotonic() + options.timeout_ms / 1000
        while at < part.end:
            messages = consumer.consume(min(_BATCH_ROWS, part.end - at), _POLL_SECONDS)
            rows, found = [], at
            for message in messages:
                if (error := message.error()) is None:
                    rows.append(message)
                    found = message.offset() + 1
                elif error.name() == "_PARTITION_EOF":
                    # Behind the last record lie the marks of transactions, which nobody is given.
                    found = max(found, message.offset())
                else:
                    found = _beyond(options, consumer, kafka, part, found, error)
            if found > at:
                at, deadline = found, time.monotonic() + options.timeout_ms / 1000
            elif time.monotonic() > deadline:
                raise SourceFailure(
                    Retryable.code,
                    f"kafka brought nothing in time: topic={part.topic} "
                    f"partition={part.partition} offset={at} end={part.end} "
                    f"milliseconds={options.timeout_ms}",
                )
            if rows := [row for row in rows if row.offset() < part.end]:
                yield _batch(options, rows)


def _beyond(
    options: SourceOptions, consumer: Any, kafka: Any, part: Slice, at: int, error: Any
) -> int:
    """The offset to go on with after an error; the end of the slice if nothing is left of it."""
    where = f"topic={part.topic} partition={part.partition} offset={at}"
    if error.name() == "_AUTO_OFFSET_RESET":
        here = kafka.TopicPartition(part.topic, part.partition)
        low = int(consumer.get_watermark_offsets(here, options.timeout_ms / 1000)[0])
        lost = (
            f"partition {part.topic}-{part.partition} has nothing at offset {at}, the next to "
            f"read; the earliest is {low}"
        )
        following = min(max(low, at), part.end)
    elif is_gone(error):
        lost, following = f"partition {part.topic}-{part.partition} is gone: {where}", part.end
    else:
        raise failure_of(error, where)
    if options.fail_on_data_loss:
        raise OffsetsLost(lost)
    _log.warning("kafka_data_loss: %s", lost)
    if following < part.end:
        consumer.assign([kafka.TopicPartition(part.topic, part.partition, following)])
    return following


def _batch(options: SourceOptions, rows: list[Any]) -> pa.RecordBatch:
    stamps = [row.timestamp() for row in rows]  # (0 none, 1 of the producer, 2 of the log; ms)
    millis = pa.array([ms if kind else None for kind, ms in stamps], pa.int64())
    columns = [
        pa.array([row.key() for row in rows], pa.binary()),
        pa.array([row.value() for row in rows], pa.binary()),
        pa.array([row.topic() for row in rows], pa.string()),
        pa.array([row.partition() for row in rows], pa.int32()),
        pa.array([row.offset() for row in rows], pa.int64()),
        millis.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
        pa.array([kind - 1 for kind, _ in stamps], pa.int32()),
    ]
    schema = _ARROW
    if options.headers:
        found = [_pairs(row.headers()) for row in rows]
        columns.append(pa.array(found, pa.list_(_HEADER)))
        schema = schema.append(pa.field("headers", pa.list_(_HEADER)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _pairs(headers: list[tuple[str, bytes | None]] | None) -> list[Mapping[str, Any]] | None:
    if headers is None:
        return None
    return [{"key": key, "value": value} for key, value in headers]
