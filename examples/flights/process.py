"""A `moorage run` that can be watched and killed, and that leaves nothing behind.

Decides how the job's process is started, read, killed and cleaned up after. Called by the demo;
knows nothing of flights.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from moorage_state.snapshots import Checkpoint, LineageLog
from moorage_state.stores import open_store

__all__ = [
    "END_SIGNALS",
    "JobFailed",
    "JobProcess",
    "Line",
    "last_checkpoint",
    "parse_line",
    "uninterrupted",
]

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# While Spark starts nothing is printed; on a busy machine that takes minutes.
_SILENCE_SECONDS = 300.0
_END_SECONDS = 20.0
_POLL_SECONDS = 0.05
_TAIL_LINES = 20
_MARK = "MOORAGE_DEMO"
_PROGRESS = re.compile(r"(\w+): epoch (\d+), ([\d,]+) rows(?:, (\d+) %)?, ")
_RESTORED = re.compile(r", restored from (chk-\d+)$")
_SUMMARY = re.compile(
    r"\S+ (finished): ([\d,]+) rows in (?:the )?[\d.]+ s(?: of this run)?, epoch (\d+),"
)


class JobFailed(Exception):
    """The job did not do what the demo needs of it; the message says what."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that `moorage run` printed.

    Attributes:
        text: the line.
        phase: what the job is at; empty where the line says nothing about that.
        epoch: the last committed epoch.
        rows: input rows that this run has processed.
        percent: how much of the input is done.
        restored_from: the checkpoint that the run began from.
    """

    text: str
    phase: str = ""
    epoch: int = 0
    rows: int = 0
    percent: int = 0
    restored_from: str | None = None


def parse_line(text: str) -> Line:
    """Read a line of `moorage run --plain`: progress, its last line that sums up, or another."""
    if summary := _SUMMARY.match(text):
        phase, rows, epoch = summary.groups()
        return Line(text, phase, int(epoch), _number(rows), 100)
    if progress := _PROGRESS.match(text):
        phase, epoch, rows, percent = progress.groups()
        restored = _RESTORED.search(text)
        start = restored.group(1) if restored else None
        return Line(text, phase, int(epoch), _number(rows), int(percent or 0), start)
    return Line(text)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def last_checkpoint(directory: Path) -> Checkpoint | None:
    """Return the newest completed checkpoint, as the log in the checkpoint directory has it."""
    if not directory.is_dir():
        return None
    entries = [entry for _, entry in LineageLog.open(open_store(f"file://{directory}")).read()]
    return next((e for e in reversed(entries) if isinstance(e, Checkpoint)), None)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Clean up in peace: a second Ctrl-C must not leave half of the work undone."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class JobProcess:
    """One run of a manifest, in a process group of its own; a context manager.

    Args:
        manifest: what to run.
        scratch: an existing directory for everything temporary; the demo removes it.
    """

    def __init__(self, manifest: Path, scratch: Path) -> None:
        self._mark = f"{_MARK}={scratch}"
        command = [
            sys.executable,
            "-m",
            "moorage.cli",
            "run",
            str(manifest),
            "--plain",
            "--no-page",
        ]
        command += ["--local-dir", str(scratch)]
        self._tail: list[str] = []
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **_environment(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        with uninterrupted():
            self.kill()
            self._process.stdout.close()

    def lines(self) -> Iterator[Line]:
        """Lines as they come, until the process and all it started have ended.

        Raises:
            JobFailed: nothing came for two minutes.
        """
        for text in self._read_lines():
            self._tail = [*self._tail[1 - _TAIL_LINES :], text]
            yield parse_line(text)

    def check(self) -> None:
        """Wait for the end of the process.

        Raises:
            JobFailed: it failed; the message has its last lines.
        """
        status = self._process.wait()
        if status != 0:
            last = "\n".join(self._tail)
            raise JobFailed(f"moorage run ended with status {status}; its last lines:\n{last}")

    def kill(self) -> None:
        """Kill the process group with SIGKILL, and wait until nothing of the job runs.

        State servers and Python workers are in groups of their own: they end by themselves when
        the driver is gone.

        Raises:
            JobFailed: something still ran after that; it was killed.
        """
        if self._process.returncode is None:  # its number is still its own
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        deadline = time.monotonic() + _END_SECONDS
        while (left := _marked(self._mark)) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if left:
            raise JobFailed(f"processes outlived the job by {_END_SECONDS:g} s: pids={left}")

    def _read_lines(self) -> Iterator[str]:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        pipe = self._process.stdout.fileno()
        rest = b""
        while True:
            if not select.select([pipe], [], [], _SILENCE_SECONDS)[0]:
                raise JobFailed(f"moorage run has printed nothing for {_SILENCE_SECONDS:g} s")
            piece = os.read(pipe, 65536)
            if not piece:
                break
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if rest:
            yield rest.decode(errors="replace")


def _environment(scratch: Path) -> dict[str, str]:
    """Keep temporary files in `scratch`, and mark every process that descends from this one.

    A killed JVM leaves its native libraries in its temporary directory and its counters in /tmp.
    Its optimising compiler costs more than it gains in a run of a minute on two cores.
    """
    java = f"-XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.io.tmpdir={scratch}"
    return {
        _MARK: str(scratch),
        "TMPDIR": str(scratch),
        "SPARK_LAUNCHER_OPTS": f"{os.environ.get('SPARK_LAUNCHER_OPTS', '')} {java}".strip(),
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {java}".strip(),
    }


def _marked(mark: str) -> list[int]:
    """Running processes that have `mark` in their environment."""
    wanted = mark.encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # Processes of others cannot be read; those that have ended have no environment left.
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
