"""Counts clicks of each user, into a table of SQLite, exactly once: database_sink.py publishes.

Arguments: the folder with clicks as JSON lines, and the file of the database.
"""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from database_sink import rows_into

from moorage import (
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)


class Count(KeyedProcessFunction):
    """How many clicks a user has made so far."""

    def open(self, ctx: RuntimeContext) -> None:
        """Name the state."""
        self.clicks = ctx.get_state(ValueStateDescriptor("clicks", "long"))

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """One click."""
        del row
        clicks = (self.clicks.value() or 0) + 1
        self.clicks.update(clicks)
        yield ctx.key, clicks


def database(name: str) -> Callable[[], sqlite3.Connection]:
    """What opens the database, which lies beside this file, and makes its table once."""

    def connect() -> sqlite3.Connection:
        opened = sqlite3.connect(Path(__file__).parent / name)
        opened.execute("CREATE TABLE IF NOT EXISTS counts (user text, clicks bigint)")
        return opened

    return connect


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    source, name = env.args
    clicks = env.read_stream("clicks", "json", schema="user string, page string", path=source)
    counts = clicks.key_by("user").process(Count(), uid="count", output="user string, clicks long")
    counts.foreach_checkpoint(rows_into(database(name), "counts"), uid="counts")
