"""Whoever runs for long is as large in the end as early on: nothing is left behind by an epoch.

A driver and its executors tick through thousands of epochs over the same keys. Their memory, open
files and threads, local disk and objects in the store are looked at all the while.
"""

import json
import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from moorage_testing.fresh_process import kill_marked, short_folder, start_in_session
from moorage_testing.jobs import processes_of, wait_until
from moorage_testing.quick_spark import spark_home

pytestmark = [pytest.mark.chaos, pytest.mark.soak, pytest.mark.timeout(0)]

LIFE = Path(__file__).with_name("cluster_life.py")
JOB = Path(__file__).with_name("ticking_job.py")
EPOCHS = int(os.environ.get("MOORAGE_TEST_EPOCHS", "2000"))
SAMPLES = 100
EPOCH_SECONDS = 10.0
"""Longer for one, and the job is stuck."""
CHANGELOG: dict[str, Any] = {
    "changelog": True,
    "options": {"state.changelog.periodic-materialize.interval": "10 s"},
}
STATES: dict[str, dict[str, Any]] = {
    "rocksdb": {"backend": "rocksdb"},
    "hashmap": {"backend": "hashmap"},
    "forst": {"backend": "forst"},
    "changelog": {"backend": "rocksdb", **CHANGELOG},
}
KINDS = {
    "moorage_state.server.sidecar": "sidecars",
    "moorage_state.server": "servers",
    "cluster_life.py": "driver",
    "CoarseGrainedExecutorBackend": "executors",
    "org.apache.spark.deploy.SparkSubmit": "jvm",
    "worker_daemon": "workers",
    "pyspark.daemon": "workers",
}


@dataclass(frozen=True)
class Growth:
    """How much more of something there may be at the end: a part of it, and so much in any case."""

    part: float
    least: float


MIB = 1 << 20
MAY_GROW = {
    "rss": Growth(0.1, 8 * MIB),
    "files": Growth(0.1, 10),
    "threads": Growth(0.1, 10),
    "disk": Growth(0.2, 4 * MIB),
    "objects": Growth(0.2, 30),
    "heap": Growth(0.1, 8 * MIB),
}
"""By the last word of a figure's name."""


def kind_of(pid: int) -> str:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        return next((kind for sign, kind in KINDS.items() if sign in command), "others")
    return "others"


def figures_of(root: int) -> dict[str, float]:
    """Of the process and all that it started: memory, open files and threads of each kind."""
    found: dict[str, float] = {}
    for pid in processes_of(root):
        kind = kind_of(pid)
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            rss = re.search(r"VmRSS:\s+(\d+)", status)
            threads = re.search(r"Threads:\s+(\d+)", status)
            if rss is None or threads is None:
                continue
            files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            # A JVM takes the memory that it may; what it holds is another figure.
            if kind not in ("jvm", "executors"):
                found[f"{kind} rss"] = found.get(f"{kind} rss", 0) + int(rss[1]) * 1024
            found[f"{kind} files"] = found.get(f"{kind} files", 0) + files
            found[f"{kind} threads"] = found.get(f"{kind} threads", 0) + int(threads[1])
    return found


def bytes_below(*folders: Path) -> int:
    total = 0
    for folder in folders:
        for directory, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError):
                    total += (Path(directory) / name).lstat().st_blocks * 512
    return total


@dataclass
class Run:
    """A driver that ticks."""

    home: Path
    volumes: Path
    pid: int

    @property
    def epoch(self) -> int:
        if (ended := (self.home / "faults.log")).exists():
            pytest.fail(f"the driver ended: {ended.read_text()}")
        with suppress(OSError, ValueError):
            return int(json.loads((self.home / "progress").read_text())["epoch"])
        return 0

    def wait_for(self, epoch: int) -> None:
        seconds = EPOCH_SECONDS * EPOCHS / SAMPLES + 120
        wait_until(lambda: self.epoch >= epoch, seconds, f"epoch {epoch}, after {self.epoch}")

    def sample(self) -> dict[str, float]:
        """What there is of everything."""
        store = self.home / "store"
        figures = figures_of(self.pid)
        figures["local disk"] = bytes_below(
            self.volumes, self.home / "local", self.home / "scratch", self.home / "spark"
        )
        # Entries of the log stay until there are 4,096 of them, and one says what they said.
        log = len(list((store / "log").glob("*")))
        figures["objects"] = sum(len(names) for _, _, names in os.walk(store)) - log
        with suppress(OSError, IndexError):
            figures["jvm heap"] = int((self.home / "heap.log").read_text().split()[-1])
        return figures


@contextmanager
def ticking(home: Path, state: Mapping[str, Any]) -> Iterator[Run]:
    """A driver with two executors; nothing that it started is left in the end."""
    mark = uuid.uuid4().hex
    (home / "store").mkdir()
    with short_folder() as volumes:
        environment = {
            "SPARK_HOME": str(spark_home(home / "spark")),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "MOORAGE_TEST_VOLUMES": volumes,
            "MOORAGE_TEST_MARK": mark,
        }
        orders = {
            "job": str(JOB),
            "seed": 1,
            "executors": 2,
            "parallelism": 2,
            "state": {"checkpointDir": f"file://{home}/store", **state},
            "spec": {},
            "faults": False,
            # A cache of blocks that is full before the first sample that counts.
            "memory": 8,
        }
        command = [sys.executable, str(LIFE), str(home), json.dumps(orders)]
        process = start_in_session(command, home, home / "life.log", environment)
        try:
            yield Run(home, Path(volumes), process.pid)
        finally:
            kill_marked(mark)
            process.wait()


def grown(samples: list[dict[str, float]]) -> list[str]:
    """Figures of the last quarter that are above those of the second."""
    quarter = len(samples) // 4
    found = []
    for name in sorted(set().union(*samples)):
        early, late = (
            median(sample.get(name, 0) for sample in part)
            for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        may = MAY_GROW[name.split()[-1]]
        sys.stdout.write(f"{name}: {early:,.0f} -> {late:,.0f}\n")
        if late - early > max(may.part * early, may.least):
            found.append(f"{name}: {early:,.0f} -> {late:,.0f}")
    return found


@pytest.mark.parametrize("state", STATES)
def test_after_two_thousand_epochs_everything_is_as_large_as_after_five_hundred(tmp_path, state):
    samples: list[dict[str, float]] = []
    with ticking(tmp_path, STATES[state]) as run:
        for epoch in range(EPOCHS // SAMPLES, EPOCHS + 1, EPOCHS // SAMPLES):
            run.wait_for(epoch)
            samples.append(run.sample())
            sys.stdout.write(f"{epoch} {json.dumps(samples[-1])}\n")
    assert grown(samples) == [], (tmp_path / "messages.log").read_text()[-3000:]
