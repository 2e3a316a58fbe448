"""How long epochs pause when a running job is rescaled: `python -m benchmarks.rescale`.

One job on this machine, with ten kilobytes of state for each key, under a steady load of rows that
rewrite some of it. When it has as much state as wanted and has gone on for a while, it is asked for
another number of subtasks. Told are the longest times from one committed epoch to the next, before
and around the rescale, and the bytes that ranges took from local files and from the store. The exit
status is 0 where epochs paused for at most five seconds, and the driver's process and Spark's
session are those from before.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.jobs.wide_values import VALUE_BYTES
from moorage.driver.requests import Requests, RescaleRequest
from moorage.driver.runner import run_job
from moorage.driver.types import JobProgress, RunOptions
from moorage.engine.fleet import RangeFleet
from moorage_api import StatefulSparkJob

_JOB = Path(__file__).parent / "jobs" / "wide_values.py"
_KEYS_A_FILE = 5_000
_LOAD_KEYS = 500
_WAIT_SECONDS = 1200.0
_MOST_SECONDS = 5.0


@dataclass
class _Run:
    """The job in a thread, its input, and what it said."""

    home: Path
    before: int
    cores: int
    requests: Requests = field(default_factory=Requests)
    stop: threading.Event = field(default_factory=threading.Event)
    epochs: list[tuple[float, int]] = field(default_factory=list)
    phases: list[tuple[float, str]] = field(default_factory=list)
    progress: JobProgress = field(default_factory=JobProgress)
    error: BaseException | None = None
    files: int = 0
    opened: list[tuple[str, int]] = field(default_factory=list)

    def listen(self, progress: JobProgress) -> None:
        """Take note of epochs and phases."""
        now = time.monotonic()
        if progress.epoch != self.progress.epoch:
            self.epochs.append((now, progress.epoch))
        if progress.phase != self.progress.phase:
            self.phases.append((now, progress.phase))
        self.progress = progress

    def go(self) -> None:
        """Run to the end."""
        spec = {
            "application": {"mainFile": f"local://{_JOB}", "args": [str(self.home / "in")]},
            "scaling": {"parallelism": self.before, "mode": "InPlaceParallelism"},
            "epoch": {"interval": "200ms"},
            "state": {"checkpointDir": f"file://{self.home}/store"},
            "checkpoint": {"interval": "5s"},
        }
        manifest = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkJob",
            "metadata": {"name": "rescale"},
            "spec": spec,
        }
        options = RunOptions(
            requests=self.requests,
            stop=self.stop,
            cores=self.cores,
            local_dir=self.home / "scratch",
        )
        try:
            run_job(StatefulSparkJob.model_validate(manifest), self.home, options, self.listen)
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            self.error = error

    def feed(self, keys: np.ndarray[Any, Any]) -> None:
        """One more file."""
        path = self.home / "in" / f"{self.files:06d}.parquet"
        hidden = path.with_name(f".{path.name}")
        pq.write_table(pa.table({"key": keys}), hidden)
        os.utime(hidden, (1.6e9 + self.files, 1.6e9 + self.files))
        hidden.rename(path)
        self.files += 1

    def wait(self, what: str, condition: Any) -> None:
        """Wait for `condition`; raises what the job died of."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not condition():
            if self.error is not None:
                raise self.error
            if time.monotonic() > deadline:
                raise TimeoutError(f"in vain for {what}: {self.progress}")
            time.sleep(0.05)


def measure(before: int, after: int, state_bytes: int, cores: int, steady: float) -> dict[str, Any]:
    """Run the job, rescale it, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="bench-rescale-") as folder:
        run = _Run(Path(folder), before, cores)
        for name in ("in", "store", "scratch"):
            (run.home / name).mkdir()
        keys = state_bytes * before // VALUE_BYTES
        thread = threading.Thread(target=run.go, daemon=True)
        opening = RangeFleet.open

        def opened(fleet: RangeFleet, *arguments: Any, **options: Any) -> Any:
            results = opening(fleet, *arguments, **options)
            run.opened.extend((one.source, one.bytes_restored) for one in results)
            return results

        setattr(RangeFleet, "open", opened)  # noqa: B010 - watched
        try:
            thread.start()
            return _measured(run, after, keys, steady)
        finally:
            setattr(RangeFleet, "open", opening)  # noqa: B010
            run.stop.set()
            thread.join(120)
            shutil.rmtree(run.home / "scratch", ignore_errors=True)


def _measured(run: _Run, after: int, keys: int, steady: float) -> dict[str, Any]:
    for first in range(0, keys, _KEYS_A_FILE):
        run.feed(np.arange(first, min(first + _KEYS_A_FILE, keys)))
    run.wait("the state", lambda: run.progress.rows_total >= keys)
    rng, loading = np.random.default_rng(1), threading.Event()

    def load() -> None:
        while not loading.wait(0.25):
            run.feed(rng.integers(0, keys, _LOAD_KEYS))

    loader = threading.Thread(target=load, daemon=True)
    loader.start()
    try:
        begin = time.monotonic()
        taken = run.progress.last_checkpoint
        run.wait("a steady while", lambda: time.monotonic() - begin >= steady)
        run.wait("a checkpoint under load", lambda: run.progress.last_checkpoint != taken)
        run.opened.clear()
        session = _session()
        asked = time.monotonic()
        request = run.requests.ask(RescaleRequest(parallelism=after))
        run.wait("the rescale", lambda: request.done)
        answered = time.monotonic()
        request.wait(0)
        run.wait("what follows", lambda: time.monotonic() - answered >= steady / 2)
    finally:
        loading.set()
        loader.join()
    return {
        "parallelism": [run.before, after],
        "state_bytes": run.progress.state_bytes,
        "steady_gap_seconds": _gap(run, begin, asked),
        "rescale_gap_seconds": _gap(run, asked, answered + 5.0),
        "request_seconds": round(answered - asked, 2),
        "gap_after_seconds": _gap(run, answered + 5.0, float("inf")),
        "local_bytes": sum(size for source, size in run.opened if source == "local"),
        "ranges_from_store": sum(source == "store" for source, _ in run.opened),
        "session_went_on": session == _session(),
        "phases": [(round(at - asked, 2), phase) for at, phase in run.phases if at >= asked],
    }


def _session() -> str:
    """The application that this process runs at Spark."""
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # noqa: SLF001
    return session.sparkContext.applicationId if session else ""


def _gap(run: _Run, since: float, until: float) -> float:
    """The longest time from one epoch to the next of which any part lies in between."""
    times = [at for at, _ in run.epochs]
    return round(
        max((b - a for a, b in pairwise(times) if b >= since and a <= until), default=0.0), 2
    )


def main() -> int:
    """Measure once and print; 0 if the limit is kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rescale")
    parser.add_argument("--from", dest="before", type=int, default=2)
    parser.add_argument("--to", dest="after", type=int, default=4)
    parser.add_argument("--state", type=int, default=1 << 30, help="bytes for each subtask before")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--steady", type=float, default=20.0, help="seconds of load before")
    asked = parser.parse_args()
    figures = measure(asked.before, asked.after, asked.state, asked.cores, asked.steady)
    figures["load"] = os.getloadavg()
    print(json.dumps(figures, indent=2))
    gap, went_on = figures["rescale_gap_seconds"], figures["session_went_on"]
    print(f"longest gap between epochs: {gap:.1f} s (at most {_MOST_SECONDS:g} s)")
    print(f"driver and session went on: {'yes' if went_on else 'no'} (yes)")
    return 0 if gap <= _MOST_SECONDS and went_on else 1


if __name__ == "__main__":
    sys.exit(main())
