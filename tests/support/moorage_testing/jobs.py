"""Jobs in processes of their own: started, killed, waited for."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from moorage_testing.fresh_process import start_in_session

__all__ = [
    "JobHome",
    "is_running",
    "kill_group",
    "pace_of",
    "processes_of",
    "wait_until",
    "write_events",
]

T = TypeVar("T")

RUN_TIMEOUT = 300.0
_START_SECONDS = 20.0


@dataclass
class JobHome:
    """One job's directory: input, output, checkpoints, manifest and logs."""

    path: Path
    processes: list[subprocess.Popen] = field(default_factory=list)

    @classmethod
    def make(cls, path: Path, job: Path, events: Path, **spec: object) -> "JobHome":
        """A home over `events`; `spec` replaces top-level fields of the manifest's spec."""
        path.mkdir(parents=True)
        (path / "in").symlink_to(events)
        (path / "scratch").mkdir()
        home = cls(path)
        home.write_manifest(job, **spec)
        return home

    def write_manifest(self, job: Path, **spec: object) -> None:
        """(Re)write the job's manifest."""
        standard = {
            "bounded": True,
            "application": {"mainFile": f"local://{job}", "args": [str(self.path)]},
            "scaling": {"parallelism": 2},
            "epoch": {"interval": "0s"},
            "state": {"checkpointDir": f"file://{self.path}/checkpoints"},
            "checkpoint": {"interval": "1s", "minPause": "100ms", "retain": {"count": 100}},
        }
        manifest = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkJob",
            "metadata": {"name": "counting"},
            "spec": {**standard, **spec},
        }
        (self.path / "job.yaml").write_text(yaml.safe_dump(manifest))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def out(self) -> Path:
        return self.path / "out"

    def start(
        self, *arguments: str, within: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen:
        """`moorage run` in a process group of its own; its terminal goes to `run.log`.

        `within` is a command that prepares something and becomes the one that follows it.
        """
        command = [*within, sys.executable, "-m", "moorage.cli", "run", "job.yaml", "--plain"]
        if "--page" not in arguments:
            command.append("--no-page")  # there is one port, and many tests
        if "--local-dir" not in arguments:
            command += ["--local-dir", str(self.path / "scratch")]
        # Short runs: the second compiler would cost more than it saves.
        # Told to abort, a process that hangs says where.
        settings = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1", "PYTHONFAULTHANDLER": "1"}
        environment = {**settings, **environment}
        log = self.path / "run.log"
        process = start_in_session([*command, *arguments], self.path, log, environment)
        self.processes.append(process)
        return process

    def run(self, *arguments: str, expect: int = 0, **environment: str) -> str:
        """`moorage run` to its end; returns what it printed this time."""
        before = len(self.log())
        process = self.start(*arguments, **environment)
        try:
            status = process.wait(RUN_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            error.add_note(f"{_abort(process)}\n{self.log()[before:]}")
            raise
        text = self.log()[before:]
        assert status == expect, f"exit status {status}, expected {expect}\n{self.log()}"
        return text

    def log(self) -> str:
        path = self.path / "run.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def completed(self) -> list[int]:
        """Ids of the completed checkpoints in the lineage's log, oldest first."""
        found = []
        for entry in sorted((self.checkpoints / "log").glob("*.json")):
            match = re.search(r'"checkpoint_id":(\d+)', text := entry.read_text())
            if match and '"kind":"checkpoint"' in text:
                found.append(int(match.group(1)))
        return found

    def wait_for_checkpoints(self, count: int) -> list[int]:
        """Wait until `count` checkpoints are complete."""
        return wait_until(
            lambda: ids if len(ids := self.completed()) >= count else None,
            120,
            f"{count} checkpoints; so far:\n{self.log()}",
        )

    def end(self) -> None:
        """Kill what still runs and remove everything."""
        for process in self.processes:
            started = processes_of(process.pid)
            kill_group(process)
            # What has a session of its own sees that the job is gone.
            wait_until(partial(_have_ended, started), 30, "helpers to end")
        shutil.rmtree(self.path, ignore_errors=True)


def _abort(process: subprocess.Popen) -> str:
    """Have a job's processes say where they are, as they end; returns which there were."""
    found = []
    for pid in reversed(processes_of(process.pid)):
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200])
            # Java says it and goes on.
            os.kill(pid, signal.SIGQUIT if "java" in found[-1].split(" ")[0] else signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    return "\n".join(found)


def kill_group(process: subprocess.Popen) -> None:
    """SIGKILL for the job and everything it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    return _parent_of(pid) is not None


def _have_ended(pids: list[int]) -> bool:
    return not any(map(is_running, pids))


def _parent_of(pid: int) -> int | None:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)


def processes_of(root: int) -> list[int]:
    """A process and everything it started that runs, at any depth."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {pid: _parent_of(pid) for pid in pids}
    found = [root]
    for one in found:
        found += [pid for pid, parent in parents.items() if parent == one]
    return found


def wait_until(
    condition: Callable[[], T | None],
    timeout: float = 30.0,
    what: str | Callable[[], str] = "it to come true",
    every: float = 0.02,
) -> T:
    """The first true value of `condition`, or a failure that says what was waited for.

    Args:
        timeout: seconds.
        what: for the failure; a function is asked when it has come to that.
        every: seconds between two looks: more, where one is work for the machine.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(every)
    said = what if isinstance(what, str) else what()
    return pytest.fail(f"waited {timeout:g} s in vain for {said}")


def pace_of(start_seconds: float) -> float:
    """By what pauses are to be longer where a job took so long to start; 1 where it was in time.

    On a machine that has other things to do, faults at the usual pace would let nothing happen
    between them.
    """
    return max(1.0, start_seconds / _START_SECONDS)


def write_events(home: Path, files: int = 20, rows: int = 100_000, keys: int = 50_000) -> None:
    """Parquet files whose modification times are their order."""
    target = home / "in"
    target.mkdir(parents=True)
    rng = np.random.default_rng(20130101)
    for i in range(files):
        table = pa.table(
            {"key": rng.integers(0, keys, rows), "value": rng.integers(-1000, 1000, rows)}
        )
        path = target / f"{i:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_600_000_000 + i, 1_600_000_000 + i))
