"""The Spark data source `moorage-state`: state as a DataFrame, one task for each range.

    moorage.state.register(spark)
    spark.read.format("moorage-state").option("path", path).option("uid", uid)
        .option("state", state).load()

Executors fetch the files themselves: they need access to the store, and space for one range's files
each.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from moorage.state.reader import Selection, select, selected_rows
from moorage.state.snapshot_path import locate
from moorage_state.canonical import schema_of
from moorage_state.errors import UserError
from moorage_state.server.databases import owner_of
from moorage_state.snapshots import RangeHandle
from moorage_state.state_backends.state_backend import BUILT_IN
from moorage_state.stores.addresses import address

NAME = "moorage-state"

_OPTIONS = ("path", "uid", "state")


def register(spark: SparkSession) -> None:
    """Make the format `moorage-state` known to this session. Repeating it is harmless."""
    spark.dataSource.register(StateSource)


def frame(spark: SparkSession, path: str | Path, uid: str, state: str) -> DataFrame:
    """One state as a DataFrame."""
    # Its errors come when the frame is made, not when it is first used.
    _readable(select(locate(path), uid, state))
    register(spark)
    reader = spark.read.format(NAME).option("path", address(path))
    return reader.option("uid", uid).option("state", state).load()


class StateSource(DataSource):
    """What Spark asks of the format."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """The columns, as `moorage.state.read` describes them."""
        schema: StructType = from_arrow_schema(schema_of(_selection(self.options).meta))
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        """The reader of one query."""
        return _Reader(_selection(self.options))


class _Range(InputPartition):
    """One range: what one task reads."""

    def __init__(self, handle: RangeHandle) -> None:
        super().__init__(handle)


class _Reader(DataSourceReader):
    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def partitions(self) -> list[InputPartition]:
        return [_Range(handle) for handle in self._selection.handles]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from selected_rows(self._selection, partition.value)


def _selection(options: Mapping[str, Any]) -> Selection:
    missing = [name for name in _OPTIONS if not options.get(name)]
    if missing:
        raise UserError(f"format {NAME} needs the options path, uid and state: missing={missing}")
    return _readable(select(locate(options["path"]), options["uid"], options["state"]))


def _readable(selection: Selection) -> Selection:
    """Refuse what executors cannot open: a backend that is registered is so in one process."""
    for handle in selection.handles:
        if handle.format == "native" and (owner := owner_of(handle)) not in BUILT_IN:
            raise UserError(
                f"executors cannot open files of a state backend of one's own: written_by={owner} "
                f"path={selection.snapshot.path}; read them without spark= in a program that calls "
                f"register_backend of moorage_state.state_backends, or read a canonical savepoint"
            )
    return selection
