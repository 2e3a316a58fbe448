"""Look-ups beside a running job: `python -m benchmarks.lookups [--quick]`.

A driver as a cluster runs it (endpoint and state servers, with Spark on this machine) counts an
endless stream. In turns nobody asks, and somebody asks for so many keys a second in batches,
each due at its time whether the one before was answered or not: its latency counts from then.
Printed are what was answered, its latencies, and the processor time for a million rows of all the
job's processes with look-ups beside those without. The exit status is 1 where less than was asked
for was answered, 99 of a hundred questions took longer than 20 ms, or a row cost a tenth more.
"""

import argparse
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from benchmarks.cpu import tree_seconds
from benchmarks.machine import load
from moorage.queryable import QueryableStateClient

_ROOT = Path(__file__).parents[1]
_TOKEN = "a-token-of-the-benchmark"  # noqa: S105
_KEYS = 100_000
_THREADS = 2
_SECONDS = 8.0
"""Of one turn: short ones, since the machine is another one from minute to minute."""

_MOST_MS = 20.0
_MOST_RATIO = 1.10
_ANSWERED = 0.99
_T = TypeVar("_T")


@dataclass
class Window:
    """What the job did between two of its epochs, and what was asked meanwhile."""

    rows: int
    cpu_seconds: float
    seconds: float
    keys: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def cpu_per_million(self) -> float:
        """Processor seconds for a million rows."""
        return self.cpu_seconds / self.rows * 1e6


class Driver:
    """A job on this machine, as a driver's pod runs it."""

    def __init__(self, folder: Path, rate: int) -> None:
        (folder / "config").mkdir()
        for name in ("token", "control", "scrape"):
            (folder / name).write_text(_TOKEN + name)
        job = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkJob",
            "metadata": {"name": "looked-up", "namespace": "bench", "uid": "uid-1"},
            "spec": {
                "image": "none:1",
                "application": {
                    "mainFile": f"local://{_ROOT}/benchmarks/jobs/looked_up.py",
                    "args": [str(rate), str(_KEYS)],
                },
                "scaling": {"parallelism": 2},
                "state": {"checkpointDir": f"file://{folder}/checkpoints"},
            },
        }
        start = {"format": 1, "attempt": 1, "clusterId": "bench", "jobUid": "uid-1"}
        (folder / "config" / "job.yaml").write_text(yaml.safe_dump(job))
        (folder / "config" / "start.json").write_text(json.dumps(start))
        roots = [_ROOT, *(_ROOT / name for name in ("backends", "operator", "runtime"))]
        environment = {
            **os.environ,
            "MOORAGE_CONFIG_DIR": str(folder / "config"),
            "MOORAGE_TOKEN_FILE": str(folder / "token"),
            "MOORAGE_SCRAPE_FILE": str(folder / "scrape"),
            "MOORAGE_TERMINATION_LOG": str(folder / "end"),
            "MOORAGE_ENDPOINT_PORT": "0",
            "MOORAGE_ENDPOINT_HOST": "127.0.0.1",
            "MOORAGE_ENVIRONMENT": "local",
            "PYTHONPATH": os.pathsep.join(map(str, roots)),
            "TMPDIR": str(folder),
        }
        self._log = folder / "log"
        with self._log.open("w") as log:
            command = [sys.executable, "-m", "moorage.cluster"]
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log
            )
        self.port = self._until(self._listens)

    def client(self) -> QueryableStateClient:
        """Who only reads."""
        return QueryableStateClient(f"http://127.0.0.1:{self.port}", _TOKEN + "scrape")

    def boundary(self) -> tuple[int, float, float]:
        """When the next epoch is committed: rows so far, processor seconds, and the time."""
        before = self._state()["epoch"]
        state = self._until(lambda: now if (now := self._state())["epoch"] > before else None)
        return state["rowsTotal"], tree_seconds(self.process.pid) or 0.0, time.monotonic()

    def wait_for_rows(self) -> None:
        """Until every key has some."""
        self._until(lambda: self._state()["rowsTotal"] > 3 * _KEYS or None)

    def end(self) -> None:
        """End it, by force if need be."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _state(self) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            headers = {"Authorization": f"Bearer {_TOKEN}scrape"}
            connection.request("GET", "/state", headers=headers)
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        finally:
            connection.close()

    def _listens(self) -> int | None:
        said = [line for line in self._log.read_text().splitlines() if "endpoint_listens" in line]
        return int(said[0].partition("port=")[2].split()[0]) if said else None

    def _until(self, found: Callable[[], _T | None], seconds: float = 180.0) -> _T:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if (value := found()) is not None:
                return value
            time.sleep(0.05)
        raise RuntimeError(f"the job does not get on:\n{self._log.read_text()[-4000:]}")


class Asking:
    """Asks for so many keys a second, in batches, until it is told to stop."""

    def __init__(self, driver: Driver, rate: int, batch: int, seed: int) -> None:
        self._driver, self._batch = driver, batch
        self._every = batch * _THREADS / rate
        self._stop = threading.Event()
        self.latencies_ms: list[float] = []
        self.keys = 0
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(seed * _THREADS + n, n))
            for n in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Ask no more."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int, number: int) -> None:
        chance = random.Random(seed)  # noqa: S311  no secrets
        due = time.monotonic() + self._every * number / _THREADS
        with self._driver.client() as client:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                keys = [chance.randrange(_KEYS) for _ in range(self._batch)]
                found = client.get_many("totals", keys)
                with self._lock:
                    self.latencies_ms.append((time.monotonic() - due) * 1000)
                    self.keys += sum(one is not None for one in found)
                due += self._every


def measure(driver: Driver, seconds: float, asking: Callable[[], Asking] | None) -> Window:
    """One turn, from the end of an epoch to that of another."""
    asked = asking() if asking else None
    rows, cpu, began = driver.boundary()
    if asked is not None:
        asked.latencies_ms.clear()
        asked.keys = 0
    time.sleep(seconds)
    more_rows, more_cpu, ended = driver.boundary()
    window = Window(more_rows - rows, more_cpu - cpu, ended - began)
    if asked is not None:
        window.keys, window.latencies_ms = asked.keys, list(asked.latencies_ms)
        asked.end()
    return window


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lookups")
    parser.add_argument("--quick", action="store_true", help="to see that it works")
    parser.add_argument("--rate", type=int, default=10_000, help="keys a second")
    parser.add_argument("--batch", type=int, default=500, help="keys of one question")
    parser.add_argument("--rounds", type=int, default=10, help="pairs of turns")
    parser.add_argument("--rows", type=int, default=400_000, help="rows a second of the job")
    asked = parser.parse_args(arguments)
    rounds, seconds = (1, 5.0) if asked.quick else (asked.rounds, _SECONDS)
    print(f"load before: {load():.1f} on {os.cpu_count()} processors", flush=True)
    quiet: list[Window] = []
    busy: list[Window] = []
    with tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder:
        driver = Driver(Path(folder), asked.rows)
        try:
            driver.wait_for_rows()
            measure(driver, seconds, partial(Asking, driver, asked.rate, asked.batch, 0))
            for number in range(rounds):
                quiet.append(measure(driver, seconds, None))
                asking = partial(Asking, driver, asked.rate, asked.batch, number + 1)
                busy.append(measure(driver, seconds, asking))
                print(_line(quiet[-1], busy[-1]), flush=True)
        finally:
            driver.end()
    return _judge(quiet, busy, asked.rate)


def _line(quiet: Window, busy: Window) -> str:
    ratio = busy.cpu_per_million / quiet.cpu_per_million
    return (
        f"without: {quiet.rows / quiet.seconds:,.0f} rows/s, {quiet.cpu_per_million:.2f} CPU s per "
        f"million rows; with: {busy.rows / busy.seconds:,.0f} rows/s, {busy.cpu_per_million:.2f}; "
        f"ratio {ratio:.3f}; {busy.keys / busy.seconds:,.0f} keys/s, p50 "
        f"{statistics.median(busy.latencies_ms):.1f} ms, p99 {_p99(busy.latencies_ms):.1f} ms"
    )


def _judge(quiet: list[Window], busy: list[Window], rate: int) -> int:
    ratios = [b.cpu_per_million / q.cpu_per_million for q, b in zip(quiet, busy, strict=True)]
    latencies = [ms for window in busy for ms in window.latencies_ms]
    keys = sum(window.keys for window in busy) / sum(window.seconds for window in busy)
    ratio, p99 = statistics.median(ratios), _p99(latencies)
    kept = (keys >= rate * _ANSWERED, p99 < _MOST_MS, ratio <= _MOST_RATIO)
    print(f"answered: {keys:,.0f} keys/s of {rate:,} asked ({_said(kept[0])})")
    print(f"latency: p50 {statistics.median(latencies):.1f} ms, p99 {p99:.1f} ms, below ", end="")
    print(f"{_MOST_MS:g} ({_said(kept[1])})")
    print(
        f"the job's CPU per row: {ratio:.3f}x, {min(ratios):.3f} to {max(ratios):.3f}, at most ",
        end="",
    )
    print(f"{_MOST_RATIO:g} ({_said(kept[2])})")
    print(f"load after: {load():.1f}")
    return 0 if all(kept) else 1


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def _said(kept: bool) -> str:  # noqa: FBT001
    return "kept" if kept else "not kept"


if __name__ == "__main__":
    sys.exit(main())
