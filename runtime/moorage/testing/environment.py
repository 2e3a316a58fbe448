"""`build(env)` without Spark: sources are the names and columns of what a test will give.

Called by the harnesses.
"""

from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from moorage.api.declarations import parse_output
from moorage.api.streams import DataStream, StreamEnvironment
from moorage_state.errors import UserError


class GivenRows:
    """Stands for a streaming DataFrame whose rows a test gives."""

    isStreaming = True  # noqa: N815 - Spark's name

    def __init__(self, uid: str, schema: StructType) -> None:
        self._uid = uid
        self.schema = schema
        self.columns = schema.names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UserError(
            f"this runs without Spark, whose DataFrame is asked for here: input={self._uid} "
            f"asked={name}; give the rows that transform makes as the input's"
        )


class TestEnvironment(StreamEnvironment):
    """The environment of a job that runs in this process."""

    __test__ = False  # no class of tests

    def __init__(self, args: tuple[str, ...] = ()) -> None:
        nothing: Any = None
        # Sinks resolve their paths, and are not opened; those of functions want a place to stage.
        super().__init__(nothing, args=args, base_dir=str(Path.cwd()), staging="memory://nowhere")

    def read_stream(
        self,
        uid: str,
        format: str,  # noqa: A002 - as in StreamEnvironment
        *,
        schema: str | StructType | None = None,
        path: str | None = None,  # noqa: ARG002
        **options: Any,  # noqa: ARG002
    ) -> DataStream:
        """See `StreamEnvironment.read_stream`; format, path and options do not matter.

        Raises:
            UserError: no columns are named, and nobody is there who would find them.
        """
        if schema is None:
            raise UserError(
                f"without Spark nobody finds the columns of a source; name them with schema: "
                f"uid={uid} format={format}"
            )
        columns = parse_output(uid, schema) if isinstance(schema, str) else schema
        frame: Any = GivenRows(uid, columns)
        return self.from_spark(uid, frame)
