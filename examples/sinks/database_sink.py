"""Rows into a table of SQLite or Postgres, exactly once: a function for `foreach_checkpoint`.

    from database_sink import rows_into

    def connect():
        return sqlite3.connect("/data/counts.db")      # or: psycopg.connect(os.environ["DSN"])

    write = rows_into(connect, "counts", mark="?")          # Postgres: mark="%s"
    counts.foreach_checkpoint(write, uid="counts")

The rows of a checkpoint and the note that they are there are one transaction of the database. The
note is a row with a primary key: a driver that woke up late, and publishes what its successor has
published, waits for the other's transaction or meets its row, and leaves again.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from moorage import CheckpointInfo

NOTES = "moorage_published"


def rows_into(
    connect: Callable[[], Any], table: str, *, mark: str = "?"
) -> Callable[[Iterator[pa.Table], CheckpointInfo], None]:
    """A function that appends rows to a table, whose columns have the names of theirs.

    Args:
        connect: opens a connection (DB-API 2.0) that begins transactions by itself.
        table: it must be there. The notes' table is made where it is not.
        mark: what stands for a value in the database's SQL.
    """

    def publish(tables: Iterator[pa.Table], info: CheckpointInfo) -> None:
        with closing(connect()) as database:
            cursor = database.cursor()
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {NOTES} (sink text, lineage text, "
                f"checkpoint_id bigint, PRIMARY KEY (sink, lineage, checkpoint_id))"
            )
            cursor.execute(
                f"INSERT INTO {NOTES} VALUES ({mark}, {mark}, {mark}) "  # noqa: S608 - marks
                f"ON CONFLICT DO NOTHING",
                (table, info.lineage, info.checkpoint_id),
            )
            if cursor.rowcount == 0:
                return  # it is there already, and all its rows with it
            for rows in tables:
                names = ", ".join(f'"{name}"' for name in rows.schema.names)
                marks = ", ".join([mark] * rows.num_columns)
                values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
                # Names are the job's own, never a row's.
                insert = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608
                cursor.executemany(insert, list(values))
            database.commit()

    return publish
