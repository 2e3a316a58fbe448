"""How long a lost executor holds a job up: `python -m benchmarks.recovery`.

Three contenders, one after the other, each in processes of its own on a `local-cluster` of Spark's
with three executors: Moorage with a changelog, Moorage without one, and Spark's
`transformWithState` with RocksDB and changelog checkpointing. Each keeps values of ten kilobytes,
is filled, goes on for a while under a steady load of rows that rewrite some, and has one executor
killed: its JVM, its Python workers, its state server, and its volume with it.

Checkpoints of Moorage are as far apart as they are by default, and the executor is lost when half
of that is over: what a job without a changelog has to compute again depends on it. It is lost just
after an epoch was committed: one that was half done may have all that it needed from that executor,
and end as if nothing were. Told are the seconds from the kill to the first epoch after that. For
Moorage with a changelog it counts once the driver has it in the log, so that it can never be
computed again (that is watched, since progress is told at the end of the next epoch); for the
others once the engine says that the epoch or batch is committed. And how many epochs that were
committed were computed again.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from moorage_testing.jobs import processes_of
from moorage_testing.quick_spark import spark_home
from moorage_testing.sidecars import Sidecars, executor_pid
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.engines.processors import KeepWideValues
from benchmarks.jobs.wide_values import VALUE_BYTES
from moorage.cluster.environment import ClusterEnvironment
from moorage.cluster.servers import Patience
from moorage.driver.runner import run_job
from moorage.driver.types import JobProgress, RunOptions
from moorage.engine.fleet import RangeFleet
from moorage_api import StatefulSparkJob
from moorage_state.snapshots import Checkpoint, Entry, LogWriter

_JOB = Path(__file__).parent / "jobs" / "wide_values.py"
_CONTENDERS = ("changelog", "plain", "spark")
_EXECUTORS, _SUBTASKS = 3, 6
_KEYS_A_FILE = 5_000
_LOAD_KEYS, _LOAD_SECONDS = 50, 0.5
_WAIT_SECONDS = 1800.0
_INTERVAL_SECONDS = 60
"""Between two checkpoints, as by default."""
_TOKEN = "benchmark"  # noqa: S105  of servers that live for minutes
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass
class _Input:
    """Files of keys, put one after the other."""

    folder: Path
    files: int = 0

    def put(self, keys: np.ndarray[Any, Any]) -> None:
        """One more file."""
        path = self.folder / f"{self.files:06d}.parquet"
        hidden = path.with_name(f".{path.name}")
        pq.write_table(pa.table({"key": keys}), hidden)
        os.utime(hidden, (1.6e9 + self.files, 1.6e9 + self.files))
        hidden.rename(path)
        self.files += 1


@dataclass
class _Seen:
    """What an engine committed, and when.

    Attributes:
        epochs: each commit that it told of; one that was told before was computed again.
        durable: those that can never be computed again.
    """

    epochs: list[tuple[float, int]] = field(default_factory=list)
    durable: list[tuple[float, int]] = field(default_factory=list)
    error: BaseException | None = None

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for it; raises what the engine died of."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not condition():
            if self.error is not None:
                raise self.error
            if time.monotonic() > deadline:
                raise TimeoutError(f"in vain for {what}: {self.epochs[-1:]}")
            time.sleep(0.02)

    def after(self, epoch: int, since: float, *, durable: bool) -> float:
        """When the first epoch beyond that one was there, 0 if none was."""
        seen = self.durable if durable else self.epochs
        return next((at for at, one in seen if one > epoch and at > since), 0.0)


class _Moorage:
    """A job of ours, with sidecars beside Spark's executors."""

    def __init__(self, home: Path, *, changelog: bool) -> None:
        self.seen = _Seen()
        self.opened: list[dict[str, int]] = []
        self.phases: list[tuple[float, str]] = []
        self._home, self.changelog = home, changelog
        self._stop = threading.Event()
        self._progress = JobProgress()
        volumes = home / "v"
        volumes.mkdir()
        self._sidecars = Sidecars(Path(os.environ["SPARK_HOME"]) / "work", volumes, _TOKEN)
        self._thread = threading.Thread(target=self._run, daemon=True)
        opening = RangeFleet.open

        def opened(fleet: RangeFleet, *arguments: Any, **options: Any) -> Any:
            results = opening(fleet, *arguments, **options)
            sums: dict[str, int] = {}
            for one in results:
                sums[one.source] = sums.get(one.source, 0) + one.bytes_restored
            self.opened.append(sums)
            return results

        setattr(RangeFleet, "open", opened)  # noqa: B010 - watched
        appending = LogWriter.append

        def appended(log: LogWriter, entry: Entry) -> int:
            number = appending(log, entry)
            if isinstance(entry, Checkpoint):
                self.seen.durable.append((time.monotonic(), entry.epoch))
            return number

        setattr(LogWriter, "append", appended)  # noqa: B010 - watched
        self._thread.start()

    def _run(self) -> None:
        spec: dict[str, Any] = {
            "application": {"mainFile": f"local://{_JOB}", "args": [str(self._home / "in")]},
            "scaling": {"parallelism": _SUBTASKS},
            "epoch": {"interval": "200ms"},
            "state": {"checkpointDir": f"file://{self._home}/store"},
            "checkpoint": {"interval": f"{_INTERVAL_SECONDS}s"},
        }
        if self.changelog:
            spec["state"]["changelog"] = True
            spec["state"]["options"] = {"state.changelog.periodic-materialize.interval": "60 s"}
            spec["sinks"] = {"publishWith": "commit"}
        manifest = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkJob",
            "metadata": {"name": "recovery"},
            "spec": spec,
        }
        ordered = {**_spark_conf(self._home), "spark.master": _master()}
        environment = ClusterEnvironment(
            ordered, _TOKEN, find=self._sidecars.find, patience=Patience()
        )
        options = RunOptions(
            environment=environment, stop=self._stop, local_dir=self._home / "scratch"
        )
        try:
            run_job(StatefulSparkJob.model_validate(manifest), self._home, options, self._listen)
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            self.seen.error = error

    def _listen(self, progress: JobProgress) -> None:
        now = time.monotonic()
        if progress.epochs != self._progress.epochs:
            self.seen.epochs.append((now, progress.epoch))
        if progress.phase != self._progress.phase or progress.message != self._progress.message:
            self.phases.append((now, f"{progress.phase} {progress.message or ''}"))
        self._progress = progress

    def kill(self) -> None:
        """Lose one executor and all that was on it."""
        victim = min(self._sidecars.processes)
        workers = processes_of(executor_pid(victim))[1:]
        self._sidecars.lose(victim)
        _end(workers)

    def close(self) -> None:
        """End it all."""
        self._stop.set()
        self._thread.join(120)
        with self._sidecars:
            pass


class _Spark:
    """Spark's own stateful operator on the same input."""

    phases: list[tuple[float, str]]

    def __init__(self, home: Path) -> None:
        self.seen = _Seen()
        self.opened: list[dict[str, int]] = []
        self.phases = []
        self._checkpoint = home / "store" / "query"
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        conf = {
            **_spark_conf(home),
            "spark.sql.shuffle.partitions": str(_SUBTASKS),
            "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        }
        builder: Any = SparkSession.builder.master(_master()).appName("recovery")
        self._session: SparkSession = builder.config(map=conf).getOrCreate()
        self._session.sparkContext.setLogLevel("ERROR")
        rows = self._session.readStream.schema("key long").option("maxFilesPerTrigger", 1)
        frame = rows.parquet(str(home / "in")).groupBy("key")
        told = frame.transformWithState(KeepWideValues(), "key long", "Update", "None")
        writer = told.writeStream.format("noop").outputMode("update")
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        self._query: StreamingQuery = writer.trigger(processingTime="200 milliseconds").start()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        newest = -1
        while not self._over.wait(0.02):
            with suppress(OSError):
                names = [path.name for path in (self._checkpoint / "commits").iterdir()]
                for number in sorted(int(name) for name in names if name.isdigit()):
                    if number > newest:
                        newest = number
                        self.seen.epochs.append((time.monotonic(), number))
            if not self._query.isActive:
                self.seen.error = self._query.exception() or RuntimeError("the query ended")
                return

    def kill(self) -> None:
        """Lose one executor."""
        pid = executor_pid("0")
        _end(processes_of(pid))

    def close(self) -> None:
        """End it all."""
        self._over.set()
        self._thread.join()
        self._query.stop()
        self._session.stop()


def _end(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _master() -> str:
    return f"local-cluster[{_EXECUTORS},1,1024]"


def _spark_conf(home: Path) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.local.dir": str(home / "local"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def measure(contender: str, state_bytes: int, steady: float) -> dict[str, Any]:
    """Fill one contender, kill an executor, and return the figures."""
    work = os.environ.get("MOORAGE_BENCH_DIR")
    # Sockets lie in volumes: the path has to be short.
    with tempfile.TemporaryDirectory(prefix="br-", dir=work, ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        for name in ("in", "store", "scratch"):
            (home / name).mkdir()
        os.environ["SPARK_HOME"] = str(spark_home(home / "spark"))
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        made: _Moorage | _Spark
        made = (
            _Spark(home)
            if contender == "spark"
            else _Moorage(home, changelog=contender == "changelog")
        )
        try:
            return {
                "contender": contender,
                **_measured(made, _Input(home / "in"), state_bytes, steady),
            }
        finally:
            made.close()
            shutil.rmtree(home / "store", ignore_errors=True)


def _measured(
    made: _Moorage | _Spark, given: _Input, state_bytes: int, steady: float
) -> dict[str, Any]:
    seen, keys = made.seen, state_bytes // VALUE_BYTES
    for first in range(0, keys, _KEYS_A_FILE):
        given.put(np.arange(first, min(first + _KEYS_A_FILE, keys)))
    filled = given.files
    seen.wait("the state", lambda: len(seen.epochs) >= filled)
    rng, over = np.random.default_rng(1), threading.Event()

    def load() -> None:
        while not over.wait(_LOAD_SECONDS):
            given.put(rng.integers(0, keys, _LOAD_KEYS))

    loader = threading.Thread(target=load, daemon=True)
    loader.start()
    try:
        begin = time.monotonic()
        seen.wait("a steady while", lambda: time.monotonic() - begin > steady)
        taken = len(seen.durable)
        is_ours = isinstance(made, _Moorage)
        if is_ours:
            seen.wait("a checkpoint", lambda: len(seen.durable) > taken)
        half = time.monotonic() + _INTERVAL_SECONDS / 2
        seen.wait("half of an interval", lambda: time.monotonic() > half)
        before = len(seen.epochs)
        seen.wait("the end of an epoch", lambda: len(seen.epochs) > before)
        killed, newest = time.monotonic(), seen.epochs[-1][1]
        logged = seen.durable[-1][1] if seen.durable else newest
        made.kill()
        changelog = isinstance(made, _Moorage) and made.changelog
        seen.wait("a new epoch", lambda: seen.after(newest, killed, durable=changelog))
        seen.wait("what follows", lambda: time.monotonic() - killed > steady)
    finally:
        over.set()
        loader.join()
    found = seen.after(newest, killed, durable=changelog)
    again = [one for at, one in seen.epochs if at > killed and one <= newest]
    # Whatever is committed for good at the kill must not come again.
    forbidden = [one for one in again if one <= (logged if is_ours else newest)]
    return {
        "seconds": round(found - killed, 2),
        "epochs_after": [(round(at - killed, 2), n) for at, n in seen.epochs if at > killed][:8],
        "in_the_log_after": [(round(at - killed, 2), n) for at, n in seen.durable if at > killed][
            :8
        ],
        "epoch_at_kill": newest,
        "in_the_log": logged,
        "computed_again": len(again),
        "committed_for_good_and_computed_again": len(forbidden),
        "opened": made.opened[-2:],
        "phases": [(round(at - killed, 2), text) for at, text in made.phases if at >= killed],
    }


def main() -> int:
    """Measure all three in turn and print; 0 where the goals are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery")
    parser.add_argument("--state-mb", type=int, default=200)
    parser.add_argument("--steady", type=float, default=15.0, help="seconds of load before")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=_CONTENDERS, action="append")
    parser.add_argument("--child", choices=_CONTENDERS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        found = measure(asked.child, asked.state_mb << 20, asked.steady)
        sys.stdout.write(f"FIGURES {json.dumps(found)}\n")
        sys.stdout.flush()
        return 0
    all_of: dict[str, list[float]] = {}
    kept = True
    for _ in range(asked.rounds):
        for contender in asked.only or _CONTENDERS:
            found = _child(contender, asked)
            print(json.dumps({**found, "load": os.getloadavg()}), flush=True)
            all_of.setdefault(contender, []).append(found["seconds"])
            kept &= not found["committed_for_good_and_computed_again"]
    medians = {contender: statistics.median(found) for contender, found in all_of.items()}
    ours = medians.get("changelog")
    for other, goal in (("plain", 1 / 3), ("spark", 1 / 5)):
        if ours is not None and other in medians:
            print(f"of {other}: {ours / medians[other]:.2f} by medians (at most {goal:.2f})")
            kept &= ours <= goal * medians[other]
    print(f"limits are {'kept' if kept else 'not kept'}")
    return 0 if kept else 1


def _child(contender: str, asked: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.recovery", "--child", contender]
    command += ["--state-mb", str(asked.state_mb), "--steady", str(asked.steady)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("FIGURES "))
    found: dict[str, Any] = json.loads(line.removeprefix("FIGURES "))
    return found


if __name__ == "__main__":
    sys.exit(main())
