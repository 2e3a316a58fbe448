"""State in Spark: the data source, savepoints out of DataFrames, and Spark's own key groups."""

import datetime
import decimal
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from moorage_testing.pages import blocks
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from moorage import MapStateDescriptor, ValueStateDescriptor
from moorage.state import OperatorTables, read, register, write_savepoint
from moorage_state.canonical import key_groups
from moorage_state.canonical.hashing import spark_xxhash64
from moorage_state.errors import UserError

pytestmark = pytest.mark.spark

PAGE = "docs/state-reader.md"
D = decimal.Decimal
KEYS: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [0, -1, 127, -128],
    "smallint": [0, -1, 32767, -32768],
    "int": [0, -1, 2**31 - 1, -(2**31)],
    "bigint": [0, -1, 2**63 - 1, -(2**63)],
    "string": ["", "a", "é", "🦀" * 20, "\0", "x" * 31, "x" * 32, "x" * 33, "x" * 1000],
    "binary": [b"", b"\0", bytes(range(256)), b"1234567", b"12345678"],
    "date": [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)],
    "timestamp": [
        datetime.datetime(1901, 1, 1, tzinfo=UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime.datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "decimal(9,2)": [D("0.00"), D("-0.01"), D("9999999.99"), D("-9999999.99")],
    "decimal(18,0)": [D(10**18 - 1), D(-(10**18) + 1), D(0)],
    "decimal(38,10)": [
        D("0E-10"),
        D("1.28"),
        D("-1.28"),
        D("0.0000000127"),
        D("0.0000000128"),
        D("-0.0000000128"),
        D("-0.0000000129"),
        D("9" * 28 + "." + "9" * 10),
        D("-" + "9" * 28 + "." + "9" * 10),
    ],
}


@pytest.mark.parametrize("ddl", KEYS)
def test_every_key_type_has_the_key_groups_that_the_engine_gives_it(
    spark: SparkSession, ddl: str
) -> None:
    rows = [(value, n) for n, value in enumerate(KEYS[ddl])]
    schema = f"k {ddl}, n int"
    digest = sf.xxhash64("k")
    group = sf.pmod(digest, sf.lit(300)).cast("int")
    both = sf.xxhash64("k", "n")
    frame = spark.createDataFrame(rows, schema).select("n", digest, group, both)
    found = {n: tuple(rest) for n, *rest in frame.collect()}
    one, two = spark_xxhash64([ddl]), spark_xxhash64([ddl, "int"])
    (groups,) = [key_groups([ddl], 300)((value,) for value, _ in rows)]
    assert found == {n: (one((v,)), groups[n], two((v, n))) for v, n in rows}


@pytest.fixture
def savepoint(spark: SparkSession, tmp_path: Path) -> str:
    """Written out of DataFrames."""
    totals = spark.range(500).selectExpr(
        "concat('user-', id) AS user", "named_struct('n', id, 'at', timestamp_seconds(id)) AS value"
    )
    days = spark.range(20).selectExpr(
        "concat('user-', id) AS user",
        "date '2026-01-01' AS map_key",
        "array(id / 2, null) AS value",
    )
    tables = OperatorTables(
        states=[
            (ValueStateDescriptor("total", "struct<n:bigint,at:timestamp>"), totals),
            (MapStateDescriptor("days", "date", "array<double>"), days),
        ],
        key_types=["string"],
        key=["user"],
    )
    return write_savepoint(tmp_path / "sp", {"visits": tables}, parallelism=3)


def test_the_data_source_gives_what_arrow_gives(spark: SparkSession, savepoint: str) -> None:
    register(spark)
    reader = spark.read.format("moorage-state").option("path", savepoint)
    frame = reader.option("uid", "visits").option("state", "total").load()
    assert frame.columns == ["key_group", "key", "value"]
    assert frame.rdd.getNumPartitions() == 3
    table = read(savepoint, "visits", "total")
    found = {row["key"]: row["value"].n for row in frame.collect()}
    assert found == {row["key"]: row["value"]["n"] for row in table.to_pylist()}
    assert len(found) == 500


def test_spark_queries_state_of_any_kind(spark: SparkSession, savepoint: str) -> None:
    total = read(savepoint, "visits", "total", spark=spark)
    days = read(savepoint, "visits", "days", spark=spark)
    joined = days.join(total, "key").where(
        total.value.n == sf.col("map_key").isNotNull().cast("int")
    )
    assert [row["key"] for row in joined.collect()] == ["user-1"]
    same = "key_group = pmod(xxhash64(key), 128) AND value.at = timestamp_seconds(value.n)"
    assert total.where(same).count() == 500
    assert read(savepoint, "visits", "_timers", spark=spark).count() == 0
    one = read(savepoint, "visits", "total", keys=["user-7"], spark=spark)
    assert [row["value"].n for row in one.collect()] == [7]


def test_a_repair_reads_changes_and_writes_dataframes(
    spark: SparkSession, savepoint: str, tmp_path: Path
) -> None:
    total = read(savepoint, "visits", "total", spark=spark)
    fixed = total.where("value.n % 2 = 0")
    descriptor = ValueStateDescriptor("total", "struct<n:bigint,at:timestamp>")
    path = write_savepoint(
        tmp_path / "fixed",
        {"visits": OperatorTables(states=[(descriptor, fixed)])},
        base=savepoint,
    )
    assert read(path, "visits", "total").num_rows == 250
    before, after = (read(p, "visits", "days") for p in (savepoint, path))
    assert isinstance(before, pa.Table)
    assert before.equals(after)


def test_wrong_options_are_refused_in_words(spark: SparkSession, savepoint: str) -> None:
    register(spark)
    with pytest.raises(PySparkException, match="needs the options path, uid and state"):
        spark.read.format("moorage-state").option("path", savepoint).load()
    with pytest.raises(UserError, match="no such state"):
        read(savepoint, "visits", "other", spark=spark)


def test_the_examples_of_the_documentation_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark, "savepoints": f"{tmp_path}/savepoints"}
    for block in blocks(PAGE, "python"):
        exec(compile(block.code, PAGE, "exec"), names)  # noqa: S102 - the page is the test
