"""`build(env)` for a test: sources are the names and columns of what the test will give.

Without a session of Spark whatever asks for one is refused; with one, sources are streaming
DataFrames that nobody starts. Called by the harnesses.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from moorage.api.declarations import columns_of, first_line
from moorage.api.streams import DataStream, StreamEnvironment, refuse_cleaning
from moorage.kafka.source import NAME as MOORAGE_KAFKA
from moorage.kafka.source import columns_of_records
from moorage_state.errors import UserError

_KAFKA = ("kafka", MOORAGE_KAFKA)
_GIVE = (
    "give a whole job a session of Spark, run_job(build, inputs, spark=moorage_spark) in a test "
    "with the fixture moorage_spark; a harness takes the stream behind transform"
)


def without_spark(what: str) -> UserError:
    """What is raised where Spark is asked for something and there is none."""
    return UserError(f"this runs without Spark, which is asked for something here: {what}; {_GIVE}")


def _no_spark(what: str, name: str) -> Any:
    """What is said where Spark is asked for something; Python's own questions get no answer."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise without_spark(f"{what} asked={name}")


@contextmanager
def columns_explained() -> Iterator[None]:
    """Say what to do where an expression of Spark's is made while no Spark runs."""
    try:
        yield
    except AssertionError as error:
        # All that PySpark has to say of it; where a job asserts something itself, that stands.
        if error.args or SparkSession.getActiveSession() is not None:
            raise
        raise without_spark("an expression of pyspark.sql.functions") from error


class GivenRows:
    """Stands for a streaming DataFrame whose rows a test gives."""

    isStreaming = True  # noqa: N815 - Spark's name

    def __init__(self, uid: str, schema: StructType) -> None:
        self._uid = uid
        self.schema = schema
        self.columns = schema.names

    def __getattr__(self, name: str) -> Any:
        return _no_spark(f"input={self._uid}", name)


class _NoSession:
    """Stands for the session of Spark."""

    def __getattr__(self, name: str) -> Any:
        return _no_spark("env.spark", name)


class TestEnvironment(StreamEnvironment):
    """The environment of a job that runs in this process."""

    __test__ = False  # no class of tests

    def __init__(self, args: tuple[str, ...] = (), spark: SparkSession | None = None) -> None:
        session: Any = spark or _NoSession()
        self._session = spark
        # Sinks resolve their paths, and are not opened; those of functions want a place to stage.
        super().__init__(session, args=args, base_dir=str(Path.cwd()), staging="memory://nowhere")

    def read_stream(
        self,
        uid: str,
        format: str,  # noqa: A002 - as in StreamEnvironment
        *,
        schema: str | StructType | None = None,
        path: str | None = None,
        **options: Any,
    ) -> DataStream:
        """See `StreamEnvironment.read_stream`; format, path and options do not matter.

        Of Kafka the columns are known. Those of other sources Spark finds, if it is there.

        Raises:
            UserError: no columns are named, and nobody is there who would find them.
        """
        refuse_cleaning(uid, options)
        if schema is None and format in _KAFKA:
            headers = str(options.get("includeHeaders", "false")).lower() == "true"
            schema = columns_of_records(headers=headers)
        if schema is None and self._session is not None:
            return super().read_stream(uid, format, path=path, **options)
        if schema is None:
            raise UserError(
                f"without Spark nobody finds the columns of a source; name them with schema: "
                f"uid={uid} format={format}"
            )
        columns = self._columns(uid, schema)
        frame: Any = GivenRows(uid, columns)
        if self._session is not None:
            # A stream to those who look at its plan, of a source that needs nothing to be there.
            rows = self._session.readStream.format("rate").load()
            frame = rows.select(*(sf.lit(None).cast(f.dataType).alias(f.name) for f in columns))
        return self.from_spark(uid, frame)

    def _columns(self, uid: str, schema: Any) -> StructType:
        why = ""
        try:
            found = columns_of(schema) if isinstance(schema, str) else schema
        except Exception as error:  # noqa: BLE001 - whatever a reader of DDL says of it
            found, why = None, f": {first_line(error)}"
        if not isinstance(found, StructType) or not found.fields:
            raise UserError(
                f"cannot read the columns of an input; write DDL such as 'user string, n long', or "
                f"give a StructType: uid={uid} schema={schema!r:.200}{why}"
            )
        return found
