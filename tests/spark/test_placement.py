"""Where subtasks run in a session on this machine, and what Spark lets us say about it."""

import logging

import pytest
from tests.spark.placed_tasks import SEEN, SUBTASKS, look, observe, rows_for

from moorage.engine.placement import AnchoredPlacement, LocalPlacement

pytestmark = pytest.mark.spark


def test_a_local_session_places_by_partition_alone(spark):
    placement = LocalPlacement()
    epoch = observe(placement, rows_for(spark, 4))
    assert epoch["partitions"] == list(range(SUBTASKS))
    assert epoch["targets"] == ["0", "1", "2", "3", "", ""]


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("kind", ["false condition", "no rows"])
def test_empty_input_still_runs_every_subtask(spark, kind, parallelism):
    df = rows_for(spark, 1).where("1 = 0")
    if kind == "no rows":
        df = spark.createDataFrame([], df.schema)
    placed = LocalPlacement().place(df, parallelism).mapInArrow(look, SEEN)
    assert [row.partition for row in sorted(placed.collect())] == list(range(parallelism))


def test_this_spark_keeps_the_anchors_preference(spark, caplog):
    with caplog.at_level(logging.WARNING):
        placement = AnchoredPlacement(spark.sparkContext)
    assert placement._usable
    assert not caplog.records


def test_where_spark_has_no_such_union_it_says_so_and_still_places_rows(spark, caplog):
    class WithoutUnion(AnchoredPlacement):
        def _union(self, *_):
            raise TypeError("'JavaPackage' object is not callable")

    placement = WithoutUnion(spark.sparkContext)
    assert "placement.unavailable" in caplog.text
    assert observe(placement, rows_for(spark, 4))["targets"] == ["0", "1", "2", "3", "", ""]


def test_a_host_that_spark_cannot_name_gives_no_preference(spark):
    placement = AnchoredPlacement(spark.sparkContext)
    anchor = placement._empty_rdd([None, "hdfs_cache_executor_10.0.0.7_3"])
    union = placement._union(anchor, placement._empty_rdd([None, None]), 2)
    found = [str(union.preferredLocations(p).mkString(",")) for p in union.partitions()]
    assert found == ["", "executor_10.0.0.7_3"]
