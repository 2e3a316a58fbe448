"""What a window aggregate costs: the ready-made one, the same by hand, Spark's own, and a ceiling.

    python -m benchmarks.windows [--rows 100000] [--files 60] [--per-key 8 50] [--rounds 2]

Rows of ten-second windows come in files of two seconds each, in order; each file is an epoch.
Every run is a process of its own, pinned to two processors, in rounds of all ways; what counts is
processor time of the process and all that it started, for the second half of the files: before, the
JVM compiles what it runs, which is no cost of rows. The least of the rounds is taken. All results
are compared with those of pandas. The ceiling is what Spark needs to aggregate each file by itself:
nothing is kept from file to file, and there is no checkpoint. The exit status is 0 if the
ready-made one costs no more than Spark's own, and the one by hand at least 1.5 times as much.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cpu import tree_seconds
from benchmarks.machine import load

_ROOT = Path(__file__).parents[1]
_JOB = Path(__file__).parent / "jobs" / "windows.py"
WAYS = ("ready-made", "by-hand", "spark", "ceiling")
COLUMNS = "key long, at long, value long"
SIZE_MS, FILE_MS = 10_000, 2_000
_SEED, _MOST_VALUE, _FIRST_MTIME = 2013, 1000, 1_600_000_000
_BY_HAND, _SPARK = 1.5, 1.0
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_MANIFEST = """\
apiVersion: moorage.dev/v1alpha1
kind: StatefulSparkJob
metadata: {{name: bench}}
spec:
  application: {{mainFile: "local://{job}", args: ["{source}", "{target}", "{way}"]}}
  bounded: true
  scaling: {{parallelism: 2}}
  state: {{checkpointDir: "file://./checkpoints"}}
  checkpoint: {{interval: 10s, minPause: 1s}}
  driver: {{memory: 2Gi}}
"""


def generate(directory: Path, rows: int, files: int, keys: int) -> None:
    """Write the input."""
    directory.mkdir(parents=True)
    random = np.random.default_rng([_SEED, keys])
    known = random.integers(0, 2**62, keys)
    for number in range(files):
        columns = {
            "key": known[random.integers(0, keys, rows)],
            "at": np.sort(random.integers(number * FILE_MS, (number + 1) * FILE_MS, rows)),
            "value": random.integers(0, _MOST_VALUE, rows),
        }
        path = directory / f"{number:05d}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (_FIRST_MTIME + number, _FIRST_MTIME + number))


class Meter:
    """Processor time between the end of one epoch and that of another."""

    def __init__(self, files: int) -> None:
        self._first, self._last = files // 2, files
        self._marks: dict[int, float] = {}

    def done(self, epoch: int) -> None:
        """An epoch, counted from 1, has ended."""
        if epoch in (self._first, self._last) and epoch not in self._marks:
            self._marks[epoch] = tree_seconds(os.getpid()) or 0.0

    def microseconds(self, rows: int) -> float:
        """For each row."""
        spent = self._marks[self._last] - self._marks[self._first]
        return spent * 1e6 / (rows * (self._last - self._first))


def run_moorage(way: str, source: Path, work: Path, meter: Meter) -> None:
    """Run the job as `moorage run` would."""
    from moorage.driver.runner import run_job
    from moorage.driver.types import RunOptions
    from moorage_api import load_manifest

    manifest = work / "job.yaml"
    manifest.write_text(_MANIFEST.format(job=_JOB, source=source, target=work / "output", way=way))
    options = RunOptions(local_dir=work / "local", cores=2)
    run_job(load_manifest(manifest), work, options, lambda progress: meter.done(progress.epoch))


def _session(work: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(work / "spark-local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _totals(timed: Any) -> Any:
    from pyspark.sql import functions as sf

    totals = timed.groupBy("key", sf.window("at", f"{SIZE_MS} milliseconds")).agg(
        sf.count("*").alias("rows"), sf.sum("value").alias("total")
    )
    return totals.select("key", sf.col("window.start").alias("window_start"), "rows", "total")


def run_spark(source: Path, work: Path, meter: Meter) -> None:
    """Spark's `groupBy(window)`, with its RocksDB state store and its exactly-once sink."""
    from pyspark.sql import functions as sf

    spark = _session(work)
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(source))
    timed = rows.withColumn("at", sf.timestamp_millis("at")).withWatermark("at", "0 seconds")
    query = (
        _totals(timed)
        .writeStream.format("parquet")
        .option("path", str(work / "output"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    while query.isActive:
        last: Any = query.lastProgress
        if last is not None:
            meter.done(last["batchId"] + 1)
        time.sleep(0.02)
    if (error := query.exception()) is not None:
        raise error
    spark.stop()


def run_ceiling(source: Path, work: Path, meter: Meter) -> None:
    """Each file by itself, by Spark: parts of windows, which nobody puts together."""
    from pyspark.sql import functions as sf

    spark = _session(work)
    for number, file in enumerate(sorted(source.iterdir()), 1):
        rows = spark.read.schema(COLUMNS).parquet(str(file))
        timed = rows.withColumn("at", sf.timestamp_millis("at"))
        _totals(timed).write.mode("append").parquet(str(work / "output"))
        meter.done(number)
    spark.stop()


def check(source: Path, output: Path, *, parts: bool = False) -> int:
    """Compare what came out with what pandas makes of the same rows; returns how much it was.

    Args:
        parts: what came out are parts of windows, one for each file.
    """
    rows = pq.read_table(source).to_pandas()
    rows["start"] = rows["at"] // SIZE_MS * SIZE_MS
    grouped = rows.groupby(["key", "start"])["value"]
    right = pd.DataFrame({"rows": grouped.count(), "total": grouped.sum()})
    table = pq.read_table(output)
    start = table.column("window_start").cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    found = table.select(["key", "rows", "total"]).append_column("start", start).to_pandas()
    made = found.set_index(["key", "start"])[["rows", "total"]].sort_index()
    if parts:
        made = made.groupby(["key", "start"]).sum()
    # Spark's last windows stay open at the end of the input.
    right = right[
        right.index.get_level_values("start") <= made.index.get_level_values("start").max()
    ]
    if made.empty or not made.equals(right.sort_index().astype(made.dtypes.to_dict())):
        raise ValueError(f"wrong results: found={len(made)} right={len(right)}")
    return len(made)


def measure(way: str, rows: int, files: int, keys: int) -> float:
    """Run one way in a process of its own; microseconds for each row."""
    with tempfile.TemporaryDirectory(prefix="moorage-bench-") as directory:
        work = Path(directory)
        generate(work / "input", rows, files, keys)
        command = [sys.executable, "-m", "benchmarks.windows", "--way", way, "--work", directory]
        command += ["--rows", str(rows), "--files", str(files)]
        with (work / "log").open("wb") as log:
            status = subprocess.run(command, cwd=_ROOT, stdout=log, stderr=log, check=False)
        if status.returncode:
            raise RuntimeError(f"{way} failed:\n{(work / 'log').read_text()[-2000:]}")
        checked = check(work / "input", work / "output", parts=way == "ceiling")
        found = float(json.loads((work / "result").read_text()))
        print(f"  {way}: {found:.2f} us for each row, {checked} windows right", flush=True)
        return found


def _child(asked: argparse.Namespace) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    work, meter = Path(asked.work), Meter(asked.files)
    if asked.way == "spark":
        run_spark(work / "input", work, meter)
    elif asked.way == "ceiling":
        run_ceiling(work / "input", work, meter)
    else:
        run_moorage(asked.way, work / "input", work, meter)
    (work / "result").write_text(json.dumps(meter.microseconds(asked.rows)))


def main() -> int:
    """Measure all ways, or be one of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows in a file")
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--per-key", type=int, nargs="+", default=[8, 50], help="rows of a key")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        _child(asked)
        return 0
    good = True
    for per_key in asked.per_key:
        print(f"{per_key} rows of a key in a file, load {load():.1f}", flush=True)
        least = dict.fromkeys(WAYS, float("inf"))
        for _ in range(asked.rounds):
            for way in WAYS:
                took = measure(way, asked.rows, asked.files, asked.rows // per_key)
                least[way] = min(least[way], took)
        hand, spark, ceiling = (least[way] / least["ready-made"] for way in WAYS[1:])
        said = f"by hand {hand:.2f}, Spark's own {spark:.2f}, the ceiling {ceiling:.2f}"
        print(f"by the ready-made one: {said}", flush=True)
        good &= hand >= _BY_HAND and spark >= _SPARK
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
