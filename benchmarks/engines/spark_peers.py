"""Spark's own stateful operators on the benchmark's job, each as its documentation has it.

State in RocksDB with changelog checkpointing. Those that emit a row for each input row write them
with Spark's exactly-once Parquet sink; the others' rows go to the `noop` sink, which drops them:
that is in their favour. The answer is read from the state store when the query has ended.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.engines import processors
from benchmarks.engines.meter import Meter
from benchmarks.engines.outcome import Outcome
from benchmarks.inputs import COLUMNS
from benchmarks.params import Parameters
from benchmarks.request import Request
from benchmarks.window import Batch

__all__ = ["run"]

_POLL_SECONDS = 0.05
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def run(request: Request) -> Outcome:
    """Run the engine that the request names until its window is full."""
    spark = _session(request.params, request.work)
    checkpoint = request.work / "checkpoint"
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    frame = _FRAMES[request.engine](rows.parquet(str(request.source)))
    meter = Meter(request)
    writer = (
        frame.writeStream.format("parquet").option("path", str(request.work / "output"))
        if request.engine in _EVERY_ROW
        else frame.writeStream.format("noop").outputMode("update")
    )
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    _watch(query, meter)
    outcome = Outcome(
        steady=meter.steady,
        cpu_seconds=meter.cpu_seconds,
        batches=_committed(checkpoint),
        answer=_answer(spark, checkpoint, is_tws=request.engine.startswith("tws")),
        is_running=False,
        versions={"java": _java_version(spark)},
    )
    spark.stop()
    return outcome


def _session(params: Parameters, work: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(work / "spark-local"),
        "spark.sql.shuffle.partitions": str(params.parallelism),
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{params.parallelism}]").appName("bench")
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _watch(query: StreamingQuery, meter: Meter) -> None:
    """Feed the meter from the query's progress; stop the query when it is full."""
    seen = -1
    while True:
        active = query.isActive
        for progress in _news(query, seen):
            seen = progress["batchId"]
            if progress["numInputRows"]:
                took = progress["durationMs"]["triggerExecution"] / 1000
                meter.batch(Batch(progress["numInputRows"], took))
        if meter.full:
            query.stop()
        if (error := query.exception()) is not None and not meter.full:
            raise error
        if meter.full or not active:
            return
        time.sleep(_POLL_SECONDS)


def _news(query: StreamingQuery, seen: int) -> list[Any]:
    """Progress of batches after `seen`; all that is kept is only parsed where some was missed."""
    last: Any = query.lastProgress
    if last is None or last["batchId"] <= seen:
        return []
    if last["batchId"] == seen + 1:
        return [last]
    return [p for p in query.recentProgress if p["batchId"] > seen]


def _committed(checkpoint: Path) -> int:
    """How many batches Spark's commit log has: a batch that was stopped half-way has no entry."""
    return 1 + max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit())


def _answer(spark: SparkSession, checkpoint: Path, *, is_tws: bool) -> pd.DataFrame:
    reader = spark.read.format("statestore").option("path", str(checkpoint))
    if is_tws:
        reader = reader.option("stateVarName", processors.STATE)
    return reader.load().select("key.key", "value.count", "value.sum").toArrow().to_pandas()


def _java_version(spark: SparkSession) -> str:
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.System.getProperty("java.version"))


def _tws_rows(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithState(
        processors.CountAndSumRows(), processors.OUTPUT, "Append", "None"
    )


def _tws_rows_lean(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithState(
        processors.CountAndSumRowsLean(), processors.OUTPUT, "Update", "None"
    )


def _tws_pandas(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithStateInPandas(
        processors.CountAndSumPandas(), processors.OUTPUT, "Append", "None"
    )


def _jvm_agg(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(
        functions.count("*").alias("count"), functions.sum("value").alias("sum")
    )


_FRAMES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "tws-rows": _tws_rows,
    "tws-rows-lean": _tws_rows_lean,
    "tws-pandas": _tws_pandas,
    "jvm-agg": _jvm_agg,
}

_EVERY_ROW = ("tws-rows", "tws-pandas")
"""Engines that emit a row for each input row."""
