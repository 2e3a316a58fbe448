"""Key groups under Flink's hash, and vectorized functions, through Spark."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from moorage_testing.engine import Collect, Engine, input_stream, rows_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from moorage import KeyedBatchFunction, ValueStateDescriptor
from moorage.engine.key_group_columns import key_group_column
from moorage_state.canonical import key_groups
from moorage_state.keygroups import FLINK_MURMUR

pytestmark = pytest.mark.spark

EVENTS = "user string, n long"
SUMS = "user string, total long"


class Sums(KeyedBatchFunction):
    """The sum of a key's numbers so far, of the column of that name."""

    def __init__(self, column: str = "n") -> None:
        self.column = column

    def open(self, ctx: Any) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", "long"))

    def process_batch(self, keys: Any, table: Any, ctx: Any) -> Any:
        sums = np.add.reduceat(table.column(self.column).to_numpy(), ctx.starts)
        sums = sums + ctx.get_values(self.total).fill_null(0).to_numpy()
        ctx.put_values(self.total, pa.array(sums))
        return pa.table({"user": keys, "total": sums})


def summing(env: Any) -> None:
    stream = input_stream(env, "events", EVENTS)
    stream.key_by("user").process(Sums(), uid="sums", output=SUMS).sink_to(Collect(), uid="out")


def chained(env: Any) -> None:
    """A second operator, whose key groups are computed for the first one's output."""
    stream = input_stream(env, "events", EVENTS)
    first = stream.key_by("user").process(Sums(), uid="first", output=SUMS)
    second = first.key_by("user").process(Sums("total"), uid="second", output=SUMS)
    second.sink_to(Collect(), uid="out")


@pytest.mark.parametrize(
    ("ddl", "key"), [("string", "user-1"), ("bigint", 123456789012345), ("date", "2013-01-01")]
)
def test_the_engines_column_has_the_key_groups_of_single_keys(
    spark: SparkSession, ddl: str, key: Any
) -> None:
    frame = spark.range(1).select(sf.lit(key).cast(ddl).alias("k"))
    group = key_group_column(FLINK_MURMUR, ["k"], [ddl], sf.xxhash64("k"), 128)
    (row,) = frame.select("k", group.alias("g")).collect()
    assert [row.g] == key_groups([ddl], 128, FLINK_MURMUR)([(row.k,)])


def test_a_vectorized_job_under_flinks_hash_sums_over_epochs(
    spark: SparkSession, start: Callable[..., Engine]
) -> None:
    rows = [(f"user-{n % 10}", n) for n in range(40)]
    frame = spark.createDataFrame(rows, EVENTS)
    once = {f"user-{n}": sum(range(n, 40, 10)) for n in range(10)}
    engine = start(summing, key_hash=FLINK_MURMUR)
    assert dict(rows_of(engine.epoch(frame), "out")) == once
    assert engine.epoch(frame).acks
    assert engine.values("sums", "total") == {user: 2 * total for user, total in once.items()}


def test_the_output_of_a_vectorized_operator_reaches_the_next_one(
    spark: SparkSession, start: Callable[..., Engine]
) -> None:
    engine = start(chained, key_hash=FLINK_MURMUR)
    frame = spark.createDataFrame([("a", 1), ("a", 2), ("b", 5)], EVENTS)
    assert sorted(rows_of(engine.epoch(frame), "out")) == [("a", 3), ("b", 5)]
