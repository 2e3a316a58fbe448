"""The recipes for databases and tables: exactly once, through crashes and drivers that wake late.

With MOORAGE_TEST_POSTGRES=postgresql://... the one for databases on a Postgres of yours, too.
"""

import importlib
import os
import sqlite3
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from moorage.api.foreach_sinks import ForeachCheckpoint
from moorage.api.sinks import CheckpointInfo, SinkContext, SinkRestore, StageId
from moorage_state import failpoints
from moorage_state.errors import UserError
from moorage_state.stores import MemoryStore

RECIPES = Path(__file__).parents[3] / "examples" / "sinks"
SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
LINEAGE = "0f3c"


class Database:
    """SQLite: what Postgres would do but for its marks."""

    def __init__(self, folder):
        self.path = folder / "counts.db"
        with sqlite3.connect(self.path) as database:
            database.execute("CREATE TABLE counts (user text, n bigint)")

    def connect(self):
        return sqlite3.connect(self.path, timeout=0.1)

    def function(self):
        return importlib.import_module("database_sink").rows_into(self.connect, "counts")

    @property
    def rows(self):
        with sqlite3.connect(self.path) as database:
            return sorted(database.execute("SELECT user, n FROM counts"))


class Postgres:
    """A server that somebody runs."""

    def __init__(self, _folder):
        self.uri = os.environ.get("MOORAGE_TEST_POSTGRES", "")
        if not self.uri:
            pytest.skip("MOORAGE_TEST_POSTGRES names no server")
        with self.connect() as database:
            database.execute("DROP TABLE IF EXISTS counts, moorage_published")
            database.execute('CREATE TABLE counts ("user" text, n bigint)')

    def connect(self):
        return importlib.import_module("psycopg").connect(self.uri, options="-c lock_timeout=100")

    def function(self):
        recipe = importlib.import_module("database_sink")
        return recipe.rows_into(self.connect, "counts", mark="%s")

    @property
    def rows(self):
        with self.connect() as database:
            return sorted(database.execute('SELECT "user", n FROM counts').fetchall())


class Delta:
    """A table of Delta Lake in a directory."""

    def __init__(self, folder):
        pytest.importorskip("deltalake")
        self.path = str(folder / "counts")

    def function(self):
        return importlib.import_module("delta_sink").rows_into(self.path)

    @property
    def rows(self):
        from deltalake import DeltaTable

        table = DeltaTable(self.path).to_pyarrow_table()
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture(params=[Database, Delta, Postgres])
def target(request, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPES))
    yield request.param(tmp_path)
    for name in ("database_sink", "delta_sink"):
        sys.modules.pop(name, None)


@pytest.fixture
def sink(target):
    MemoryStore.forget("recipes")
    context = SinkContext("counts", "", "memory://recipes", SCHEMA)
    yield ForeachCheckpoint(target.function()).bind(context)
    MemoryStore.forget("recipes")


def stage(sink, *rows, epoch=1):
    writer = sink.open_writer(StageId(LINEAGE, "f1r0", epoch, "count", 0), SCHEMA)
    columns = dict(zip(SCHEMA.names, map(list, zip(*rows, strict=True)), strict=True))
    writer.write(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))
    return writer.finish()


def test_each_checkpoint_adds_its_rows(sink, target):
    first = stage(sink, ("a", 1), ("b", 1)) + stage(sink, ("a", 2), epoch=2)
    sink.publish(LINEAGE, 1, first)
    sink.publish(LINEAGE, 2, stage(sink, ("a", 3), epoch=3))
    assert target.rows == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


@pytest.mark.parametrize("place", ["sink.before_call", "sink.after_call", "sink.recorded"])
def test_a_driver_that_ends_anywhere_in_a_publication_leaves_each_row_once(
    sink, target, monkeypatch, place
):
    items = stage(sink, ("a", 1))

    def hit(name):
        if name == place:
            raise InterruptedError(name)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", hit)
        with pytest.raises(InterruptedError):
            sink.publish(LINEAGE, 7, items)
    sink.restore(SinkRestore(LINEAGE, "f2r0", (7,), items, None))
    assert target.rows == [("a", 1)]


def test_rows_that_end_in_an_error_leave_nothing(sink, target):
    sink.publish(LINEAGE, 1, stage(sink, ("a", 1)))
    rows = pa.table({"user": ["b"], "n": [1]}, schema=SCHEMA)

    def broken():
        yield rows
        raise ConnectionError("staged rows cannot be read")

    with pytest.raises(Exception, match="staged rows cannot be read"):
        target.function()(broken(), CheckpointInfo(LINEAGE, 2))
    assert target.rows == [("a", 1)]


def test_of_two_drivers_at_once_one_publishes(sink, target):
    sink.publish(LINEAGE, 1, stage(sink, ("a", 1)))
    rows = pa.table({"user": ["b"], "n": [1]}, schema=SCHEMA)
    publish, info = target.function(), CheckpointInfo(LINEAGE, 2)
    refused = []

    def late():
        """Asked for rows when it has begun; meanwhile its successor publishes them."""
        try:
            publish(iter([rows]), info)
        except Exception as error:  # noqa: BLE001 - the database's own
            refused.append(error)
        yield rows

    try:
        publish(late(), info)
    except Exception as error:  # noqa: BLE001 - the table's own
        refused.append(error)
    assert len(refused) == 1  # databases let the second wait in vain, Delta refuses the first
    publish(iter([rows]), info)
    assert target.rows == [("a", 1), ("b", 1)]


def test_what_the_database_says_of_rows_it_does_not_take_reaches_people(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPES))
    MemoryStore.forget("recipes")
    connect = Database(tmp_path).connect
    function = importlib.import_module("database_sink").rows_into(connect, "nowhere")
    context = SinkContext("counts", "", "memory://recipes", SCHEMA)
    sink = ForeachCheckpoint(function).bind(context)
    with pytest.raises(UserError, match="no such table: nowhere"):
        sink.publish(LINEAGE, 1, stage(sink, ("a", 1)))
    MemoryStore.forget("recipes")
