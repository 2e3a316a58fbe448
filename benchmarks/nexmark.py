"""Nexmark's queries: rows per second and processor time, beside Spark's own where it has them.

    python -m benchmarks.nexmark [--events 1200000] [--files 24] [--only q5]

Moorage's are those of examples/nexmark; Spark's are in jobs/nexmark_spark.py. Every run is a
process of its own, pinned to two processors; the first third of the files is warm-up. What each run
found is held against the oracle of the example: one with a wrong row has no figure, and the exit
status is 1.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.cpu import tree_seconds
from benchmarks.jobs.nexmark_spark import SPARK
from benchmarks.machine import load

_ROOT = Path(__file__).parents[1]
EXAMPLE = _ROOT / "examples" / "nexmark"
WAYS = ("moorage", "spark")
QUERIES = [f"q{n}" for n in range(9)]
READS: dict[str, tuple[str, ...]] = dict.fromkeys(QUERIES, ("bids",))
READS |= {"q3": ("persons", "auctions"), "q8": ("persons", "auctions")}
READS |= {"q4": ("auctions", "bids"), "q6": ("auctions", "bids")}
# Where in a row the time of its window stands.
WINDOW_AT = {"q5": 0, "q7": 0, "q8": 2}
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_MANIFEST = """\
apiVersion: moorage.dev/v1alpha1
kind: StatefulSparkJob
metadata: {{name: bench}}
spec:
  application: {{mainFile: "local://{job}", args: ["{query}", "{source}", "{target}"]}}
  bounded: true
  scaling: {{parallelism: 2}}
  epoch: {{interval: 0s}}
  state: {{checkpointDir: "file://./checkpoints"}}
  checkpoint: {{interval: 10s, minPause: 1s}}
  driver: {{memory: 2Gi}}
"""


class Meter:
    """Time and processor time between the ends of two epochs."""

    def __init__(self, files: int) -> None:
        self._first, self._last = files // 3, files
        self._marks: dict[int, tuple[float, float]] = {}

    def done(self, epoch: int) -> None:
        """An epoch, counted from 1, has ended."""
        if epoch in (self._first, self._last) and epoch not in self._marks:
            self._marks[epoch] = time.monotonic(), tree_seconds(os.getpid()) or 0.0

    def spent(self) -> dict[str, float]:
        """Seconds, and seconds of processor, from the one to the other."""
        (began, before), (ended, after) = self._marks[self._first], self._marks[self._last]
        return {"seconds": ended - began, "processor": after - before}


def example(name: str) -> Any:
    """A module of examples/nexmark, which is no package."""
    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))
    return importlib.import_module(name)


def run_moorage(query: str, source: Path, work: Path, done: Callable[[int], None]) -> None:
    """Run the job as `moorage run` would."""
    from moorage.driver.runner import run_job
    from moorage.driver.types import RunOptions
    from moorage_api import load_manifest

    manifest, target = work / "job.yaml", work / "output"
    job = EXAMPLE / "job.py"
    manifest.write_text(_MANIFEST.format(job=job, query=query, source=source, target=target))
    options = RunOptions(local_dir=work / "local", cores=2)
    run_job(load_manifest(manifest), work, options, lambda progress: done(progress.epoch))


def run_spark(query: str, source: Path, work: Path, done: Callable[[int], None]) -> None:
    """Spark's own, with its RocksDB state store and its exactly-once sink."""
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as sf

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
    spark = builder.getOrCreate()
    schemas = example("queries").SCHEMAS

    def read(name: str) -> DataFrame:
        rows = spark.readStream.schema(schemas[name]).option("maxFilesPerTrigger", 1)
        timed = rows.parquet(f"{source}/{name}").withColumn("time", sf.timestamp_millis("at"))
        return timed.withWatermark("time", "2 seconds")

    started = (
        SPARK[query](read)
        .writeStream.format("parquet")
        .option("path", str(work / "output"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    while started.isActive:
        last: Any = started.lastProgress
        if last is not None:
            done(last["batchId"] + 1)
        time.sleep(0.02)
    if (error := started.exception()) is not None:
        raise error
    last = started.lastProgress
    done(last["batchId"] + 1)
    spark.stop()


def right_rows(way: str, query: str, output: Path, answers: Mapping[str, Any]) -> int:
    """How many rows came out; an error where one is not as it is defined."""
    found = [tuple(row.values()) for row in pq.read_table(output).to_pylist()]
    expected = answers[query]
    if way == "spark" and query in WINDOW_AT:
        place = WINDOW_AT[query]
        newest = max(row[place] for row in found)
        expected = [row for row in expected if row[place] <= newest]
    if not found or (wrong := example("oracle").differences(query, found, expected)):
        raise ValueError(f"wrong rows: way={way} query={query} found={len(found)} {wrong[:3]}")
    return len(found)


def measure(way: str, query: str, source: Path, files: int) -> tuple[dict[str, float], Path]:
    """Run one query one way, in a process of its own; what it took, and its folder."""
    work = Path(tempfile.mkdtemp(prefix=f"{way}-{query}-", dir=source.parent))
    command = [sys.executable, "-m", "benchmarks.nexmark", "--way", way, "--only", query]
    command += ["--files", str(files), "--work", str(work)]
    with (work / "log").open("wb") as log:
        status = subprocess.run(command, cwd=_ROOT, stdout=log, stderr=log, check=False).returncode
    if status:
        raise RuntimeError(f"{way} {query} failed:\n{(work / 'log').read_text()[-2000:]}")
    return json.loads((work / "result").read_text()), work


def _child(way: str, query: str, files: int, work: Path) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    meter = Meter(files)
    run = run_spark if way == "spark" else run_moorage
    run(query, work.parent / "input", work, meter.done)
    (work / "result").write_text(json.dumps(meter.spent()))


def _rows(source: Path, query: str, files: int) -> int:
    """Rows in the files that count."""
    return sum(
        pq.read_metadata(path).num_rows
        for name in READS[query]
        for path in sorted((source / name).glob("*.parquet"))[files // 3 :]
    )


def main() -> int:
    """Measure all, or be one of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("--events", type=int, default=1_200_000)
    parser.add_argument("--files", type=int, default=24, help="of each input; one is an epoch's")
    parser.add_argument("--only", action="append", choices=QUERIES, help="a query; repeatable")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        _child(asked.way, asked.only[0], asked.files, asked.work)
        return 0
    print(f"{asked.events:,} events in {asked.files} files, load {load():.1f}", flush=True)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="moorage-nexmark-") as directory:
        source = Path(directory) / "input"
        events = example("events").generate(asked.events)
        example("events").write(events, source, dict.fromkeys(events, asked.files))
        answers = {
            query: example("oracle").answer(query, events) for query in asked.only or QUERIES
        }
        for query in answers:
            rows = _rows(source, query, asked.files)
            for way in WAYS:
                if way == "spark" and query not in SPARK:
                    print(f"{query} {way:8} cannot say it", flush=True)
                    continue
                try:
                    took, work = measure(way, query, source, asked.files)
                    found = right_rows(way, query, work / "output", answers)
                except (RuntimeError, ValueError) as error:
                    print(f"{query} {way:8} {error}", flush=True)
                    wrong += 1
                    continue
                print(
                    f"{query} {way:8} {rows / took['seconds']:>10,.0f} rows/s "
                    f"{took['processor'] / rows * 1e6:>7.1f} us of processor per row, "
                    f"{found:,} rows right",
                    flush=True,
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
