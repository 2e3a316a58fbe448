"""The job as a graph: what `build(env)` describes and the engine plans epochs from.

Decides what a legal input is, and that uids and directories are taken once. Called by user code
(`env`); the streams that it gives are in `moorage.streams`, what the engine reads in
`moorage.nodes`. Building a graph reads no data and starts nothing.
"""

import re
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from moorage.declared import check_columns, first_line, refuse_stateful
from moorage.nodes import (
    Branch,
    InputNode,
    JobGraph,
    OperatorNode,
    SinkNode,
    Transform,
)
from moorage.sinks import FileSink, Sink
from moorage.streams import DataStream, KeyedStream
from moorage_state.errors import UserError

__all__ = [
    "Branch",
    "DataStream",
    "InputNode",
    "JobGraph",
    "KeyedStream",
    "OperatorNode",
    "SinkNode",
    "StreamEnvironment",
    "Transform",
]

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_BYTES_PER_RECORD = 64
_NO_SOURCE = (
    "Failed to find data source",
    "Failed to find the data source",
    "DATA_SOURCE_NOT_FOUND",
)
_FILE_FORMATS = {"parquet", "json", "csv", "text", "orc"}


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
            format: the Spark source: "parquet", "json", "kafka", "rate-micro-batch", ...
            schema: DDL or StructType, where the source needs one.
            path: for file sources; relative to the job file's directory.
            options: the source's own options. Where none limits how much one epoch takes, the
                job's `epoch.maxRecordsPerEpoch` is rendered into the source's option for it.

        Raises:
            UserError: for a uid that is taken or illegal, or a source Spark does not know.
        """
        where = self._resolve(path) if path is not None else None
        try:
            reader = self.spark.readStream.format(format)
            if schema is not None:
                reader = reader.schema(schema)
            for name, value in self._limited(format, self._lossy(format, options)).items():
                reader = reader.option(name, value)
            frame = reader.load(where) if where is not None else reader.load()
        except Exception as exc:
            declared = f" path={where}" if where is not None else ""
            declared += f" schema={schema!r:.200}" if isinstance(schema, str) else ""
            raise UserError(
                f"spark cannot open this input: uid={uid} format={format}{declared}: "
                f"{first_line(exc)}{_missing_connector(format, exc)}"
            ) from exc
        files = where if format in _FILE_FORMATS else None
        return self.from_spark(uid, frame, files=files)

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
        """Refuse a file sink on the directory of another: each takes back what it published."""
        if not isinstance(sink, FileSink):
            return
        for node in self.graph.sinks:
            if isinstance(node.sink, FileSink) and node.sink.path == sink.path:
                raise UserError(
                    f"two sinks of the job write to one directory; give each its own: "
                    f"uids={[node.uid, uid]} path={sink.path}"
                )

    def _resolve(self, path: str) -> str:
        if _URL.match(path) or path.startswith("/") or not self.base_dir:
            return path
        return f"{self.base_dir}/{path}"

    def _lossy(self, source: str, options: dict[str, Any]) -> dict[str, Any]:
        """Options that let Kafka's gaps be skipped, where the manifest says so and they do not."""
        given = "failondataloss" in (name.lower() for name in options)
        if source != "kafka" or given or not self._skip_missing_offsets:
            return options
        return {**options, "failOnDataLoss": "false"}

    def _limited(self, source: str, options: dict[str, Any]) -> dict[str, Any]:
        """Options with the job's record limit rendered into the source's own option."""
        if source in _FILE_FORMATS:
            return self._limited_files(options)
        names = {"kafka": "maxOffsetsPerTrigger", "rate-micro-batch": "rowsPerBatch"}
        name = names.get(source)
        if name is None or name in options or self._max_records is None:
            return options
        return {**options, name: self._max_records}

    def _limited_files(self, options: dict[str, Any]) -> dict[str, Any]:
        """Spark limits files by number or bytes: as many as about hold the records."""
        limits = {"maxfilespertrigger", "maxbytespertrigger"}
        if self._max_records is None or limits.intersection(name.lower() for name in options):
            return options
        return {**options, "maxBytesPerTrigger": self._max_records * _BYTES_PER_RECORD}


def _missing_connector(source: str, error: Exception) -> str:
    """How to get a source that Spark does not come with, if that is what is wrong."""
    if not any(sign in str(error) for sign in _NO_SOURCE):
        return ""
    packages = {"kafka": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"}
    wanted = packages.get(source, f"the Maven coordinates of the connector of {source}")
    return f"; set in the manifest sparkConf: {{spark.jars.packages: {wanted!r}}}"
