"""Plain Spark reads exactly the committed rows of a file sink, whatever else lies in the folder."""

import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from moorage.api.file_sink import FileSink
from moorage.api.sinks import SinkRestore, StageId
from moorage.sinks import metadata_log

pytestmark = pytest.mark.spark

LINEAGE = "0f3c"
SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.string())])
DAYS = ["2026-01-01", "a b/c:%", None, "ü=1", ""]


def stage(sink: FileSink, numbers, *, run="f1r0", epoch=1, schema=SCHEMA, row=None):
    writer = sink.open_writer(StageId(LINEAGE, run, epoch, "count", 0), schema)
    rows = [row(n) if row else {"n": n, "day": DAYS[n % len(DAYS)]} for n in numbers]
    writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    return writer.finish()


def restore(sink: FileSink, history, items, run):
    return sink.restore(SinkRestore(LINEAGE, run, tuple(history), items))


def expected(numbers):
    return sorted((n, DAYS[n % len(DAYS)] or None) for n in numbers)


@pytest.mark.parametrize("commit", ["list", "rename"])
def test_spark_reads_the_committed_rows_of_partitions_back_and_forth(
    spark, tmp_path, commit, monkeypatch
):
    monkeypatch.setattr(metadata_log, "GROW_BYTES", 100)
    sink = FileSink(tmp_path / "out put", partition_by=["day"], commit=commit)

    def read():
        frame = spark.read.schema("n long, day string").parquet(sink.path)
        return sorted((row.n, row.day) for row in frame.collect())

    restore(sink, [], [], "f1r0")
    items = {n: stage(sink, range(5 * n, 5 * n + 5)) for n in range(1, 4)}
    for n, staged in items.items():
        sink.publish(LINEAGE, n, staged)
    stage(sink, range(100, 105))  # an attempt that lost
    assert read() == expected(range(5, 20))
    restore(sink, [1], items[1], "f2r0")
    assert read() == expected(range(5, 10))
    items[5] = stage(sink, range(50, 55), run="f2r0")
    sink.publish(LINEAGE, 5, items[5])
    assert read() == expected([*range(5, 10), *range(50, 55)])
    restore(sink, [1, 2, 3], items[3], "f3r0")
    assert read() == expected(range(5, 20))
    # Past compact entries at growing intervals, read with other settings than ours.
    for n in range(6, 90):
        sink.publish(LINEAGE, n, stage(sink, [100 + n], run="f3r0", epoch=n))
        if n % 12 == 0:
            settings = "spark.sql.streaming.fileSink.log.compactInterval"
            spark.conf.set(settings, ("1", "7", "10", "1000")[n // 12 % 4])
            assert read() == expected([*range(5, 20), *range(106, 101 + n)])
    spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")


def test_spark_reads_json_lines_as_the_rows_that_were_written(spark, tmp_path):
    ddl = (
        "n long, day string, at timestamp, on date, price decimal(10,2), ratio double, raw binary,"
        " tags array<double>, by_name map<string,double>, inner struct<a: double, b: string>"
    )
    schema = pa.schema(
        [
            *SCHEMA,
            ("at", pa.timestamp("us", tz="UTC")),
            ("on", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("ratio", pa.float64()),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.float64())),
            ("by_name", pa.map_(pa.string(), pa.float64())),
            ("inner", pa.struct([("a", pa.float64()), ("b", pa.string())])),
        ]
    )

    def row(n):
        return {
            "n": n,
            "day": "é\u2028\n\"'",
            "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC),
            "on": datetime.date(2026, 1, n),
            "price": Decimal("-12345678.90"),
            "ratio": float("-inf") if n == 1 else 1e-300,
            "raw": b"\x00\xff",
            "tags": [0.1, None, float("inf")],
            "by_name": [("a b", 2.5), ("c", None)],
            "inner": {"a": 1.25, "b": None},
        }

    sink = FileSink(Path(tmp_path, "json"), "json", partition_by=["n"], commit="list")
    nothing = dict.fromkeys(schema.names) | {"n": 3}
    items = stage(sink, [1, 2, 3], schema=schema, row=lambda n: row(n) if n < 3 else nothing)
    sink.publish(LINEAGE, 1, items)
    frame = spark.read.schema(ddl).json(sink.path)
    found = sorted((r.asDict(recursive=True) for r in frame.collect()), key=lambda r: r["n"])
    for seen in found:
        at = seen.pop("at")
        seen["at"] = at.astimezone(datetime.UTC) if at else None
        seen["raw"] = bytes(seen["raw"]) if seen["raw"] is not None else None
    wanted = [row(1) | {"by_name": dict(row(1)["by_name"])}]
    wanted.append(row(2) | {"by_name": dict(row(2)["by_name"])})
    assert found == [*wanted, nothing]
