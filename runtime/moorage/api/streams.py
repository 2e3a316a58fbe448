"""Streams of a job: what user code reads, transforms, keys, processes and sends to sinks.

Called by user code, which begins with a `StreamEnvironment`; each call adds to the job's graph,
reads no data and starts nothing.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from moorage.api.broadcast import BroadcastStream
from moorage.api.connected_streams import Connecting, check_function
from moorage.api.declarations import (
    arrow_schema,
    check_columns,
    check_event_time,
    check_per,
    check_readable,
    check_sendable,
    first_line,
    parse_duration,
    parse_output,
    refuse_stateful,
    side_outputs_of,
)
from moorage.api.file_sink import FileSink
from moorage.api.foreach_sinks import (
    CheckpointFunction,
    EpochFunction,
    ForeachCheckpoint,
    ForeachEpoch,
)
from moorage.api.functions import KeyedProcessFunction, OutputTag, undeclared
from moorage.api.graph import (
    Branch,
    InputNode,
    JobGraph,
    KeyedInput,
    OperatorNode,
    SinkNode,
    Transform,
    maker,
)
from moorage.api.misplaced import absent, absent_of_env, absent_of_keyed, did_you_mean
from moorage.api.ready_made import ReadyMade
from moorage.api.sinks import Sink, SinkContext
from moorage.api.windowed_stream import WindowedStream
from moorage.api.windows import Trigger, WindowAssigner, windowing
from moorage.kafka.client import check_client, consumer_config
from moorage.kafka.options import SourceOptions
from moorage.kafka.source import NAME as MOORAGE_KAFKA
from moorage.kafka.source import register as register_kafka
from moorage_state.descriptors import MapStateDescriptor
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain
from moorage_state.keys import KeyCodec

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_BYTES_PER_RECORD = 64
_NO_SOURCE = (
    "Failed to find data source",
    "Failed to find the data source",
    "DATA_SOURCE_NOT_FOUND",
)
_FILE_FORMATS = {"parquet", "json", "csv", "text", "orc", "xml", "avro"}


class DataStream:
    """A stream of rows: from inputs, or from a stateful operator.

    Attributes:
        side_output: name of the operator's side output that it is; None for the main output.
        event_time: of an operator's output, the column of event time.
        event_time_shift_ms: what is added to it.
        window_start: of windows' results, the column that holds when their windows began.
    """

    def __init__(
        self,
        env: "StreamEnvironment",
        *,
        schema: StructType,
        branches: tuple[Branch, ...] = (),
        operator: OperatorNode | None = None,
        event_time: str | None = None,
        side_output: str | None = None,
        event_time_shift_ms: int = 0,
        window_start: str | None = None,
    ) -> None:
        self.env = env
        self.schema = schema
        self.branches = branches
        self.operator = operator
        self.event_time = event_time
        self.side_output = side_output
        self.event_time_shift_ms = event_time_shift_ms
        self.window_start = window_start

    if not TYPE_CHECKING:  # type checkers go on refusing what is not there

        def __getattr__(self, name: str) -> Any:
            # Not as an attribute: one that is not there yet would be asked for here again.
            operator = vars(self).get("operator")
            changed_in = operator.changed_in if operator is not None else ""
            raise absent(self, name, KeyedStream, 'key_by("column")', changed_in)

    def transform(self, function: Transform) -> "DataStream":
        """Apply stateless Spark code (`DataFrame -> DataFrame`): select, where, joins with tables.

        Raises:
            UserError: after a stateful operator, and for Spark's own stateful operations.
        """
        if self.operator is not None:
            raise UserError(
                f"transform works on inputs, before the first stateful operator; "
                f"{self.operator.changed_in}"
            )
        first = self.branches[0]
        frame = function(first.apply(first.node.frame))
        refuse_stateful(frame, "transform")
        schema = frame.schema
        check_columns(schema, "transform")
        for branch in self.branches:
            if branch.event_time is not None and branch.event_time not in schema.names:
                raise UserError(
                    f"transform drops the event time column; keep it, or declare event time after "
                    f"it: column={branch.event_time}"
                )
            if branch.event_time is not None:
                check_event_time(schema, branch.event_time)
            if branch.per:
                check_per(schema, branch.per)
        branches = tuple(
            replace(
                b,
                transforms=(*b.transforms, function),
                made_by=self._made_by(b, schema, function),
            )
            for b in self.branches
        )
        return DataStream(self.env, schema=schema, branches=branches)

    def _made_by(
        self, branch: Branch, schema: StructType, function: Transform
    ) -> dict[str, object]:
        """Of each column that the input does not have by itself, what made it."""
        # One that keeps its name counts as the one that it was, whatever is done to it.
        mine = maker(function, self.schema.names)
        made_by = dict.fromkeys(set(schema.names).difference(self.schema.names), mine)
        return made_by | {n: f for n, f in branch.made_by.items() if n in schema.names}

    def with_event_time(
        self,
        column: str,
        max_delay: str = "0s",
        idle_after: str | None = None,
        per: str | None = None,
    ) -> "DataStream":
        """Declare the column that holds a row's event time; timers and order follow it.

        Args:
            column: a timestamp, or a long of milliseconds since 1970 UTC.
            max_delay: how far out of order rows of an input may come: "500ms", "10s", "5m",
                "2h", "1d". The watermark stays that far behind the newest event time.
            idle_after: when an input brought no row for so long, it no longer holds the watermark
                back, until it brings one; rows that are late then, are. None: it always holds it.
            per: a column of text or integers that says which part of the source a row is from, such
                as Kafka's `partition`. The input is as far as the slowest of its values, and
                `idle_after` is for each of them. None: the input is as far as its newest row.

        Raises:
            UserError: for a column that is not there or of no such type, an `idle_after` of
                nothing, or the start of windows that have ended.
        """
        check_event_time(self.schema, column)
        if column == self.window_start and self.operator is not None:
            raise UserError(
                f"when a window's result comes, the watermark is past its start, so windows would "
                f"drop it as late: operator={self.operator.uid} column={column}; leave "
                f"with_event_time out: its time is the last millisecond of its window"
            )
        delay = parse_duration(max_delay)
        idle = self._idle_limit(idle_after)
        if self.operator is not None and delay:
            raise UserError(
                f"the delay of event time is declared on inputs; leave out max_delay on the output "
                f"of an operator: operator={self.operator.uid} max_delay={max_delay}"
            )
        if per is not None and self.operator is not None:
            raise UserError(
                f"by which column event time counts is declared on inputs; leave out per on the "
                f"output of an operator: operator={self.operator.uid} per={per}"
            )
        if per is not None:
            check_per(self.schema, per)
        branches = tuple(
            replace(b, event_time=column, max_delay_ms=delay, idle_after_ms=idle, per=per or "")
            for b in self.branches
        )
        return DataStream(
            self.env,
            schema=self.schema,
            branches=branches,
            operator=self.operator,
            event_time=column,
            side_output=self.side_output,
        )

    def timed_by(
        self, column: str | None, *, shift_ms: int = 0, window_start: str | None = None
    ) -> "DataStream":
        """An operator's output whose event time is known without being declared.

        Args:
            column: what it lies in; None where it is not known.
            shift_ms: what is added to it.
            window_start: see above.
        """
        return DataStream(
            self.env,
            schema=self.schema,
            operator=self.operator,
            event_time=column,
            event_time_shift_ms=shift_ms,
            window_start=window_start,
        )

    def get_side_output(self, tag: OutputTag) -> "DataStream":
        """The rows that the operator sent to a side output, as a stream like any other.

        Raises:
            UserError: the stream is not what `process` gave, or its operator does not declare it.
        """
        given: Any = tag
        if self.operator is None or not isinstance(given, OutputTag):
            raise UserError(
                f"get_side_output takes an OutputTag, of the stream that process(...) gave: "
                f"got={given!r}"
            )
        sides = {side.name: side for side in self.operator.side_outputs}
        if tag.name not in sides:
            raise undeclared(f"operator={self.operator.uid}", tag.name, sides)
        schema = sides[tag.name].schema
        return DataStream(self.env, schema=schema, operator=self.operator, side_output=tag.name)

    def _idle_limit(self, idle_after: str | None) -> int | None:
        if idle_after is None:
            return None
        if self.operator is not None:
            raise UserError(
                f"idle_after is declared on inputs; leave it out on the output of an operator: "
                f"operator={self.operator.uid} idle_after={idle_after}"
            )
        if (limit := parse_duration(idle_after)) == 0:
            raise UserError(
                f"an input is idle after some time without rows, such as '1m': "
                f"idle_after={idle_after!r}"
            )
        return limit

    @property
    def has_event_time(self) -> bool:
        """Whether every row has an event time, as `with_event_time` declares it."""
        if self.operator is not None:
            return self.event_time is not None
        return all(branch.event_time is not None for branch in self.branches)

    def union(self, *others: "DataStream") -> "DataStream":
        """Rows of several input streams of one schema as one stream.

        Raises:
            UserError: for other schemas, or a stream that comes from a stateful operator.
        """
        branches = self.branches
        for other in others:
            if not isinstance(other, DataStream):
                raise UserError(
                    f"union takes other streams: got={type(other).__name__}; give each as an "
                    f"argument of its own, before key_by, as in a.union(b, c)"
                )
            if self.operator is not None or other.operator is not None:
                raise UserError("union joins inputs; the output of a stateful operator cannot be")
            if other.schema.simpleString() != self.schema.simpleString():
                raise UserError(
                    f"union needs one schema: {self.schema.simpleString()} is not "
                    f"{other.schema.simpleString()}"
                )
            branches += other.branches
        return DataStream(self.env, schema=self.schema, branches=branches)

    def key_by(self, *columns: str) -> "KeyedStream":
        """Partition by key; state and timers of what follows belong to one key each.

        Raises:
            UserError: for columns that are not there, there twice or of a type that no key can
                have, and when any column of the stream has a name that PySpark cannot pass on.
        """
        missing = [c for c in columns if c not in self.schema.names]
        if missing or not columns:
            meant = did_you_mean(missing[0], self.schema.names) if missing else ""
            raise UserError(
                f"key_by needs columns of the stream: missing={missing} columns={self.schema.names}"
                f"{meant}"
            )
        if len({*columns}) < len(columns):
            raise UserError(f"key_by names a column twice; name each once: columns={columns}")
        check_readable(self.schema, "key_by")
        types = tuple(self.schema[c].dataType.simpleString() for c in columns)
        try:
            KeyCodec(types)
        except ValueError as exc:
            raise UserError(f"cannot key by these columns: columns={columns}: {exc}") from exc
        return KeyedStream(self, columns, types)

    def broadcast(self, *descriptors: MapStateDescriptor) -> BroadcastStream:
        """The stream as one whose rows every subtask sees, for `KeyedStream.connect`."""
        return BroadcastStream(self, descriptors)

    def sink_to(self, sink: Sink, *, uid: str) -> "DataStream":
        """Send the stream's rows to a sink; returns the same stream.

        Raises:
            UserError: for a uid that is taken, what is no sink, or a directory that another sink
                of the job writes to.
        """
        self.env.claim_uid(uid)
        if not hasattr(sink, "open_writer"):
            raise UserError(f"sink_to takes a sink such as FileSink(path): uid={uid} got={sink!r}")
        # Before it is checked that it can be sent: what is sent is what `bind` returns.
        if (bind := getattr(sink, "bind", None)) is not None:
            schema = arrow_schema(self.schema)
            sink = bind(SinkContext(uid, self.env.base_dir, self.env.staging, schema))
        check_sendable("sink", uid, sink)
        self.env.claim_directory(uid, sink)
        self.env.graph.sinks.append(SinkNode(uid, self, sink))
        return self

    def foreach_epoch(self, function: EpochFunction, *, uid: str) -> "DataStream":
        """Call `function(table, EpochInfo)` on the driver with the rows of each epoch.

        Called when the epoch is committed, with one Arrow table, and not for epochs without rows.
        A large table is mapped from a local file: the driver's memory need not hold the epoch, as
        long as the function goes through `table.to_batches()`.

        At least once: after a failure the job goes back to its last checkpoint, and the rows since
        come again, under another run and maybe in other epochs. An exception ends the run.

        Raises:
            UserError: see `sink_to`.
        """
        return self.sink_to(ForeachEpoch(function), uid=uid)

    def foreach_checkpoint(self, function: CheckpointFunction, *, uid: str) -> "DataStream":
        """Call `function(tables, CheckpointInfo)` on the driver when a checkpoint completed.

        `tables` iterates over Arrow tables with all rows since the checkpoint before; it is read
        once, and not called for without rows. After a crash within the call it is called again
        with the same id and rows: exactly once for a function that is idempotent by
        ``(lineage, checkpoint_id)``. An exception ends the run; the next one calls again.

        Raises:
            UserError: see `sink_to`.
        """
        return self.sink_to(ForeachCheckpoint(function), uid=uid)


class KeyedStream(ReadyMade, Connecting):
    """A stream partitioned by key.

    Attributes:
        stream: the stream.
        columns: those that are the key.
        types: of these columns, as DDL.
        beside: the broadcast stream that it is connected with.
        second: the keyed stream that it is connected with.
    """

    def __init__(
        self,
        stream: DataStream,
        columns: tuple[str, ...],
        types: tuple[str, ...],
        beside: BroadcastStream | None = None,
        second: KeyedInput | None = None,
    ) -> None:
        self.stream = stream
        self.columns = columns
        self.types = types
        self.beside = beside
        self.second = second

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            operator = vars(vars(self).get("stream", self)).get("operator")
            changed_in = operator.changed_in if operator is not None else ""
            raise absent_of_keyed(self, name, DataStream, changed_in)

    def window(
        self,
        assigner: WindowAssigner,
        *,
        trigger: Trigger | None = None,
        allowed_lateness: str = "0s",
        late: str | OutputTag = "drop",
    ) -> WindowedStream:
        """Put the rows of each key into windows, of which `aggregate` and others make results.

        Args:
            assigner: `Tumbling`, `Sliding`, `Session`, `Count` or `Global`.
            trigger: when a window gives a result; None: at its end, or when a `Count` is full.
            allowed_lateness: for how much longer than its end the watermark a window is kept:
                rows that come meanwhile count, and each gives another result.
            late: what happens to rows that come when it is gone: "drop", or a tag sends them to
                that side output.

        Raises:
            UserError: for what is none of these, windows of event time over a stream that declares
                none, or lateness where no row can be late.
        """
        found = windowing(assigner, trigger, allowed_lateness, late)
        if found.assigner.domain is TimeDomain.EVENT_TIME and not self.stream.has_event_time:
            raise UserError(
                f"windows of event time need a stream that declares it: window={assigner!r}; call "
                f"with_event_time(column) before key_by, or take time='processing'"
            )
        return WindowedStream(self, found)

    def process(
        self,
        function: KeyedProcessFunction,
        *,
        uid: str,
        output: str,
        null_key: str | OutputTag = "fail",
        bad_time: str | OutputTag = "fail",
        side_outputs: Sequence[OutputTag] = (),
    ) -> DataStream:
        """Apply a keyed process function.

        Args:
            function: the function; it is pickled, so it holds configuration, not resources.
            uid: the operator's stable name; its state is found again under it.
            output: DDL of the rows the function yields.
            null_key: what happens to rows whose key is null: "fail" stops the job and says how
                many there are, "drop" drops them, a tag sends them to that side output.
            bad_time: the same for rows of an input that declares event time and whose time is
                null, such as text that is no time; "fail" names the first one's key.
            side_outputs: tags of what the function sends beside its output: with
                ``yield tag, row`` or `ctx.output`, for `get_side_output`.

        Raises:
            UserError: for a uid that is taken, a bad DDL, another `null_key` or `bad_time`, or tags
                that do not fit.
        """
        self.stream.env.claim_uid(uid)
        check_function(uid, function, self)
        check_sendable("operator", uid, function)
        odd = {"null_key": null_key, "bad_time": bad_time}
        sides = side_outputs_of(uid, side_outputs, odd, self.stream.schema)
        schema = parse_output(uid, output)
        node = OperatorNode(
            uid,
            self.stream,
            self.columns,
            self.types,
            function,
            schema,
            null_key,
            self.beside,
            sides,
            bad_time,
            self.second,
        )
        self.stream.env.graph.operators.append(node)
        return DataStream(self.stream.env, schema=schema, operator=node)


class StreamEnvironment:
    """What `build(env)` is given: the way to sources, and the Spark session behind it.

    Attributes:
        spark: the session, for static tables and whatever `read_stream` does not cover.
        args: `application.args` of the manifest.
        graph: what was described so far.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        base_dir: str = "",
        staging: str = "",
        max_records_per_epoch: int | None = None,
        skip_missing_offsets: bool = False,
        args: tuple[str, ...] = (),
    ) -> None:
        self.spark = spark
        self.args = args
        self.base_dir = base_dir
        self.staging = staging
        self.graph = JobGraph()
        self._uids: set[str] = set()
        self._max_records = max_records_per_epoch
        self._skip_missing_offsets = skip_missing_offsets

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent_of_env(self, name)

    def read_stream(
        self,
        uid: str,
        format: str,  # noqa: A002 - what Spark calls it
        *,
        schema: str | StructType | None = None,
        path: str | None = None,
        **options: Any,
    ) -> DataStream:
        """A stream from any Spark streaming source.

        Args:
            uid: the input's stable name; checkpoints keep its offsets under it.
            format: the Spark source: "parquet", "json", "kafka", "rate-micro-batch", ...; or
                "moorage-kafka", which needs no jar, but the package confluent-kafka.
            schema: DDL or StructType, where the source needs one.
            path: for file sources; relative to the job file's directory.
            options: the source's own options. Where none limits how much one epoch takes, the
                job's `epoch.maxRecordsPerEpoch` is rendered into the source's option for it.

        Raises:
            UserError: for a uid that is taken or illegal, a source Spark does not know, or one
                that takes away files which a restore reads again.
        """
        where = self._resolve(path) if path is not None else None
        refuse_cleaning(uid, options)
        kind = str(format).lower()  # Spark knows its sources in any case
        options = self._limited(kind, self._lossy(kind, options))
        if format == MOORAGE_KAFKA and (schema is not None or path is not None):
            raise UserError(f"kafka has columns of its own, and no path: uid={uid} format={format}")
        found = self._open_kafka(uid, options) if format == MOORAGE_KAFKA else format
        try:
            reader = self.spark.readStream.format(found)
            if schema is not None:
                reader = reader.schema(schema)
            for name, value in options.items() if found == format else ():
                reader = reader.option(name, value)
            frame = reader.load(where) if where is not None else reader.load()
        except Exception as exc:
            declared = f" path={where}" if where is not None else ""
            declared += f" schema={schema!r:.200}" if isinstance(schema, str) else ""
            raise UserError(
                f"spark cannot open this input: uid={uid} format={format}{declared}: "
                f"{first_line(exc)}{_missing_connector(format, exc)}{_missing_folder(exc)}"
            ) from exc
        files = where if kind in _FILE_FORMATS else None
        stream = self.from_spark(uid, frame, files=files)
        node = stream.branches[0].node
        node.source = format
        given = {name.lower(): str(value) for name, value in options.items()}
        node.nested = given.get("recursivefilelookup", "").lower() == "true"
        node.name_filter = given.get("pathglobfilter")
        return stream

    def from_spark(self, uid: str, frame: DataFrame, *, files: str | None = None) -> DataStream:
        """A stream from a streaming DataFrame that reads exactly one source.

        Raises:
            UserError: for a uid that is taken or illegal, a DataFrame that is not streaming or
                that uses Spark's own stateful operations.
        """
        self.claim_uid(uid)
        if not frame.isStreaming:
            raise UserError(f"this input is not a stream; use spark.readStream: uid={uid}")
        check_columns(frame.schema, f"input {uid}")
        refuse_stateful(frame, f"input {uid}")
        node = InputNode(uid, frame, files)
        self.graph.inputs.append(node)
        return DataStream(self, branches=(Branch(node),), schema=frame.schema)

    def claim_uid(self, uid: str) -> None:
        """Reserve a uid; raises `UserError` when it is illegal or taken."""
        given: Any = uid
        if not isinstance(given, str) or not _UID.match(given):
            raise UserError(
                f"a uid starts with a letter or digit and has up to 63 letters, digits, dots, "
                f"dashes or underscores: uid={uid!r}"
            )
        if uid in self._uids:
            raise UserError(f"two things in the job have the same uid; rename one: uid={uid}")
        self._uids.add(uid)

    def claim_directory(self, uid: str, sink: Sink) -> None:
        """Refuse a file sink on the directory of another, or of an input."""
        if not isinstance(sink, FileSink):
            return
        for source in self.graph.inputs:
            if source.files is not None and _same_folder(source.files, sink):
                raise UserError(
                    f"a sink writes where an input of the job reads, which would read it again and "
                    f"again; give it a directory of its own: uids={[source.uid, uid]} "
                    f"path={sink.path}"
                )
        for node in self.graph.sinks:
            # Each would take back what the other published.
            if isinstance(node.sink, FileSink) and node.sink.path == sink.path:
                raise UserError(
                    f"two sinks of the job write to one directory; give each its own: "
                    f"uids={[node.uid, uid]} path={sink.path}"
                )

    def _open_kafka(self, uid: str, options: dict[str, Any]) -> str:
        """The format of this input. What is wrong is told here, where the job's line is known."""
        try:
            parsed = SourceOptions.parse(options)
            check_client(consumer_config(parsed.client))
        except UserError as error:
            raise UserError(f"{error}: uid={uid} format={MOORAGE_KAFKA}") from error
        return register_kafka(self.spark, uid, parsed)

    def _resolve(self, path: str) -> str:
        if _URL.match(path) or path.startswith("/") or not self.base_dir:
            return path
        return f"{self.base_dir}/{path}"

    def _lossy(self, source: str, options: dict[str, Any]) -> dict[str, Any]:
        """Options that let Kafka's gaps be skipped, where the manifest says so and they do not."""
        given = "failondataloss" in (name.lower() for name in options)
        kafka = source in {"kafka", MOORAGE_KAFKA}
        if not kafka or given or not self._skip_missing_offsets:
            return options
        return {**options, "failOnDataLoss": "false"}

    def _limited(self, source: str, options: dict[str, Any]) -> dict[str, Any]:
        """Options with the job's record limit rendered into the source's own option."""
        if source in _FILE_FORMATS:
            return self._limited_files(options)
        names = {
            "kafka": "maxOffsetsPerTrigger",
            MOORAGE_KAFKA: "maxOffsetsPerTrigger",
            "rate-micro-batch": "rowsPerBatch",
        }
        name = names.get(source)
        given = {option.lower() for option in options}
        if name is None or name.lower() in given or self._max_records is None:
            return options
        return {**options, name: self._max_records}

    def _limited_files(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options with the record limit as a number of bytes."""
        limits = {"maxfilespertrigger", "maxbytespertrigger"}
        if self._max_records is None or limits.intersection(name.lower() for name in options):
            return options
        # Spark limits files by number or bytes, not by rows: as many as about hold the records.
        return {**options, "maxBytesPerTrigger": self._max_records * _BYTES_PER_RECORD}


def _same_folder(files: str, sink: FileSink) -> bool:
    """Whether files that Spark reads lie where the sink puts its own."""
    local = files.removeprefix("file://")
    return os.path.normpath(local) == sink.path or files.rstrip("/") == sink.reader_url


def _missing_connector(source: str, error: Exception) -> str:
    """How to get a source that Spark does not come with, if that is what is wrong."""
    if not any(sign in str(error) for sign in _NO_SOURCE):
        return ""
    known = [*sorted(_FILE_FORMATS), "kafka", MOORAGE_KAFKA, "rate", "rate-micro-batch", "socket"]
    if source not in known and (meant := did_you_mean(source, known)):
        return meant
    packages = {"kafka": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"}
    wanted = packages.get(source, f"the Maven coordinates of the connector of {source}")
    without = f"; or, without a jar, use format={MOORAGE_KAFKA!r}" if source == "kafka" else ""
    return f"; set in the manifest sparkConf: {{spark.jars.packages: {wanted!r}}}{without}"


def _missing_folder(error: Exception) -> str:
    absent = "[PATH_NOT_FOUND]" in str(error)
    return "; make that folder, also if nothing is in it yet, or correct the path" if absent else ""


def refuse_cleaning(uid: str, options: Mapping[str, Any]) -> None:
    """Raise UserError for an input whose files go once read, of whatever format they are.

    Spark counts an epoch's files as done; here only a checkpoint makes them so.
    """
    given = {name.lower(): str(value).lower() for name, value in options.items()}
    if given.get("cleansource", "off") != "off":
        raise UserError(
            f"spark would take files away that a restore reads again: uid={uid} "
            f"cleanSource={given['cleansource']}; leave cleanSource out, and delete what is older "
            f"than the oldest checkpoint that you go back to"
        )
