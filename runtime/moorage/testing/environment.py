"""`build(env)` without Spark: sources are the names and columns of what a test will give.

Called by the harnesses.
"""

from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from moorage.api.declarations import columns_of, first_line
from moorage.api.streams import DataStream, StreamEnvironment, refuse_cleaning
from moorage.kafka.source import NAME as MOORAGE_KAFKA
from moorage.kafka.source import columns_of_records
from moorage_state.errors import UserError

_KAFKA = ("kafka", MOORAGE_KAFKA)


def _no_spark(what: str, name: str) -> Any:
    """What is said where Spark is asked for something; Python's own questions get no answer."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise UserError(
        f"this runs without Spark, which is asked for something here: {what} asked={name}; put "
        f"such code into a function that is tested with a session of Spark, or run the job with "
        f"moorage run and bounded: true"
    )


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

    def __init__(self, args: tuple[str, ...] = ()) -> None:
        session: Any = _NoSession()
        # Sinks resolve their paths, and are not opened; those of functions want a place to stage.
        super().__init__(session, args=args, base_dir=str(Path.cwd()), staging="memory://nowhere")

    def read_stream(
        self,
        uid: str,
        format: str,  # noqa: A002 - as in StreamEnvironment
        *,
        schema: str | StructType | None = None,
        path: str | None = None,  # noqa: ARG002
        **options: Any,
    ) -> DataStream:
        """See `StreamEnvironment.read_stream`; format, path and options do not matter.

        Of Kafka the columns are known.

        Raises:
            UserError: no columns are named, and nobody is there who would find them.
        """
        refuse_cleaning(uid, options)
        if schema is None and format in _KAFKA:
            headers = str(options.get("includeHeaders", "false")).lower() == "true"
            schema = columns_of_records(headers=headers)
        if schema is None:
            raise UserError(
                f"without Spark nobody finds the columns of a source; name them with schema: "
                f"uid={uid} format={format}"
            )
        frame: Any = GivenRows(uid, self._columns(uid, schema))
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
