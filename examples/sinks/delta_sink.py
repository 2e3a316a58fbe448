"""Rows into a table of Delta Lake, exactly once: a function for `foreach_checkpoint`.

    from delta_sink import rows_into

    counts.foreach_checkpoint(rows_into("s3://lake/counts", storage_options={...}), uid="counts")

Needs `pip install deltalake`; no Spark has a part in it. A checkpoint is one commit of the table,
which also keeps the checkpoint's id as the version of an application, as Delta's protocol has it
for this. Of two commits of one application at the same time Delta refuses one, so a driver that
woke up late writes nothing.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from moorage import CheckpointInfo


def rows_into(
    path: str, *, name: str = "", storage_options: dict[str, str] | None = None
) -> Callable[[Iterator[pa.Table], CheckpointInfo], None]:
    """A function that appends rows to a table; it is made where it is not.

    Args:
        path: of the table.
        name: tells sinks of one job apart that write to the same table.
        storage_options: for the table's store, as deltalake takes them.
    """

    def publish(tables: Iterator[pa.Table], info: CheckpointInfo) -> None:
        application = f"moorage-{info.lineage}-{name}"
        options: dict[str, Any] = {"storage_options": storage_options}
        if not DeltaTable.is_deltatable(path, **options):
            first = next(tables)
            # Made before anything is in it, so that the first rows are a commit as all others are.
            DeltaTable.create(path, first.schema, mode="ignore", **options)
            tables = _again(first, tables)
        table = DeltaTable(path, **options)
        # Read from the version that the commit is checked against.
        done = table.transaction_version(application)
        if done is not None and done >= info.checkpoint_id:
            return
        first = next(tables)
        rows = (batch for one in _again(first, tables) for batch in one.to_batches())
        write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(first.schema, rows),
            mode="append",
            commit_properties=CommitProperties(
                app_transactions=[Transaction(application, info.checkpoint_id)]
            ),
        )

    return publish


def _again(first: pa.Table, others: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from others
