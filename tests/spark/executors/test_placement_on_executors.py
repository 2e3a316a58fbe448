"""Where subtasks run on executors, one of which dies: a local cluster, once for all tests."""

import os
import signal
import time
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name everybody reads
from tests.spark.placed_tasks import (
    SUBTASKS,
    Pinned,
    Placing,
    executor_process,
    look,
    observe,
    partition_id,
    rows_for,
)

from moorage.engine.placement import ExecutorWatch

pytestmark = [pytest.mark.spark, pytest.mark.soak]


# --- what happens on the cluster ------------------------------------------------------------------


def dying_once(marker):
    """The first task to run subtask 0 takes its executor down."""

    def task(batches):
        if partition_id() == 0 and not Path(marker).exists():
            Path(marker).touch()
            os.kill(executor_process()[0], signal.SIGKILL)
            time.sleep(60)  # ends early: this process dies with the executor
        yield from look(batches)

    return task


def wait_for_executors(spark, count, without):
    deadline = time.monotonic() + 60
    while True:
        ids = {executor.id for executor in ExecutorWatch(spark.sparkContext).live()}
        if len(ids) == count and without not in ids:
            return sorted(ids)
        assert time.monotonic() < deadline, f"executors={ids}"
        time.sleep(0.05)


def scenario(spark):
    return {
        "assigned": follow_assignments(spark),
        "shapes": other_shapes(spark),
        "loss": lose_an_executor(spark),
    }


def follow_assignments(spark):
    answer = []
    for wanted in ("012012", "221100", "000012"):
        owners = dict(enumerate(wanted))
        placement = Pinned(spark.sparkContext, owners)
        answer += [observe(placement, rows_for(spark, 4)) for _ in range(2)]
    return answer


def other_shapes(spark):
    placement, df = Placing(spark.sparkContext), rows_for(spark, 4)
    answer = {"empty": observe(placement, df.where("1 = 0"))}
    names = spark.createDataFrame([(i, f"n{i}") for i in range(4)], "id long, name string")
    joined = df.join(F.broadcast(names), "id").select("_m_target", "id", "name")
    answer["joined"] = observe(placement, joined)

    first = placement.place(df, SUBTASKS).mapInArrow(lambda batches: batches, df.schema)
    second = first.withColumn("_m_target", (F.col("_m_target") + 1).cast("int"))
    answer["chained"] = observe(placement, second)
    answer["schema_kept"] = placement.place(df, SUBTASKS).schema == df.schema
    return answer


def lose_an_executor(spark):
    conf = spark.sparkContext._jsc.sc().conf()
    placement, df = Placing(spark.sparkContext), rows_for(spark, SUBTASKS)
    marker = str(Path.cwd() / "died")
    answer = {"before": observe(placement, df)}
    conf.set("spark.locality.wait", "1s")
    started = time.monotonic()
    answer["during"] = observe(placement, df, dying_once(marker))
    answer["seconds"] = time.monotonic() - started
    conf.set("spark.locality.wait", "60s")
    victim = answer["before"]["asked"][0]
    wait_for_executors(spark, 3, without=victim)
    answer["after"] = [observe(placement, df) for _ in range(3)]
    return answer


# --- the tests ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(local_cluster):
    # A machine under load takes its time: no subtask may give up its executor for that.
    return local_cluster(scenario, conf={"spark.locality.wait": "60s"})


def test_each_subtask_runs_where_it_is_assigned_epoch_after_epoch(cluster):
    wanted = ["012012", "012012", "221100", "221100", "000012", "000012"]
    for epoch, owners in zip(cluster["assigned"], wanted, strict=True):
        assert epoch["partitions"] == list(range(SUBTASKS))
        assert "".join(epoch["ran"]) == owners
        assert epoch["rows"] == [150, 150, 150, 150, 0, 0]
        assert epoch["targets"] == ["0", "1", "2", "3", "", ""]


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ("empty", [0, 0, 0, 0, 0, 0]),
        ("joined", [1, 1, 1, 1, 0, 0]),
        ("chained", [0, 150, 150, 150, 150, 0]),
    ],
)
def test_whatever_the_input_is_it_runs_where_it_is_assigned(cluster, shape, rows):
    epoch = cluster["shapes"][shape]
    assert epoch["partitions"] == list(range(SUBTASKS))
    assert epoch["ran"] == epoch["asked"]
    assert epoch["rows"] == rows


def test_placing_keeps_the_schema(cluster):
    assert cluster["shapes"]["schema_kept"]


def test_an_executor_killed_in_an_epoch_does_not_fail_or_stall_it(cluster):
    before, during = cluster["loss"]["before"], cluster["loss"]["during"]
    assert before["ran"] == before["asked"]
    assert during["rows"] == [100] * SUBTASKS
    assert cluster["loss"]["seconds"] < 60


def test_after_the_loss_of_an_executor_only_its_subtasks_have_moved(cluster):
    before = cluster["loss"]["before"]["ran"]
    for epoch in cluster["loss"]["after"]:
        assert epoch["ran"] == epoch["asked"]
        assert epoch["rows"] == [100] * SUBTASKS
        for was, runs in zip(before, epoch["ran"], strict=True):
            assert was in {runs, before[0]}
