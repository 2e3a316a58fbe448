"""Settings that save work, where that depends on the job."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from moorage.api.graph import KeyedInput
from moorage.driver.session import spare_byte_counts

LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"


def _schema(*kinds: Any) -> StructType:
    return StructType([StructField(f"c{i}", kind) for i, kind in enumerate(kinds)])


def _set(operator: StructType, sink: StructType, conf: dict[str, str]) -> dict[str, str]:
    """What `spare_byte_counts` sets for a job of one operator and one sink."""
    done: dict[str, str] = {}
    read: Any
    spark: Any = SimpleNamespace(conf=SimpleNamespace(set=done.__setitem__))
    read, sent = (SimpleNamespace(schema=schema) for schema in (operator, sink))
    graph: Any = SimpleNamespace(
        operators=[SimpleNamespace(keyed_inputs=(KeyedInput(read, ("c0",)),))],
        sinks=[SimpleNamespace(upstream=sent)],
    )
    settings: Any = SimpleNamespace(spark_conf=conf)
    spare_byte_counts(spark, graph, settings)
    return done


def test_bytes_are_not_counted_where_all_rows_are_narrow() -> None:
    narrow = _schema(LongType(), LongType())
    assert _set(narrow, narrow, {}) == {LIMIT: "2147483647"}


@pytest.mark.parametrize(
    "wide",
    [
        _schema(LongType(), StringType()),
        _schema(ArrayType(LongType())),
        _schema(*[LongType()] * 65),
    ],
)
def test_bytes_are_counted_where_any_row_may_be_wide(wide: StructType) -> None:
    narrow = _schema(LongType())
    assert _set(wide, narrow, {}) == {}
    assert _set(narrow, wide, {}) == {}


def test_a_limit_of_bytes_that_the_job_names_stays() -> None:
    assert _set(_schema(LongType()), _schema(LongType()), {LIMIT: "1000"}) == {}
