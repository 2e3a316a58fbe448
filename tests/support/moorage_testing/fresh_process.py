"""Functions and programs in processes of their own, of which nothing is left afterwards."""

import contextlib
import importlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

__all__ = [
    "call_in_process",
    "function_at",
    "kill_marked",
    "place_of",
    "short_folder",
    "signal_marked",
    "start_in_session",
]

BOOTSTRAP = "import sys; from moorage_testing.fresh_process import answer; answer(*sys.argv[1:])"
ANSWER = "answer.json"
_MARK = "MOORAGE_TEST_MARK"


@contextlib.contextmanager
def short_folder() -> Iterator[str]:
    """A folder for volumes, in which there are sockets: paths of those must be short.

    It lies where the folders of tests do, which is in memory where there is room.
    """
    where = os.environ.get("PYTEST_DEBUG_TEMPROOT", "/tmp")
    with TemporaryDirectory(prefix="moorage-", dir=where, ignore_cleanup_errors=True) as folder:
        yield folder


def start_in_session(
    command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """A program in a session and a process group of its own; what it prints is added to `log`.

    Args:
        environment: beside this process's own.
    """
    with log.open("ab") as stream:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def call_in_process(
    function: Callable[..., Any],
    *arguments: Any,
    folder: Path,
    timeout: float,
    environment: Mapping[str, str],
) -> Any:
    """What the function returns in a fresh process; whatever that left running is killed.

    Args:
        function: at the top level of a module that the process can import.
        arguments: what JSON can carry, as can what the function returns.
        folder: where the process runs; its output and its answer lie there.
        timeout: seconds.
        environment: beside this process's own; its PYTHONPATH leads here and to the function.
    """
    command = [sys.executable, "-c", BOOTSTRAP, place_of(function), json.dumps(arguments)]
    output = folder / "output"
    mark = secrets.token_hex(8)
    process = start_in_session(command, folder, output, {**environment, _MARK: mark})
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
    finally:
        kill_marked(mark)
        process.wait()
    result = folder / ANSWER
    if not result.exists():
        tail = output.read_text(errors="replace")[-8000:]
        # A summary of many tests shows the first line only, and the reason is in the last.
        last = tail.rstrip().rpartition("\n")[2][:300]
        pytest.fail(f"no answer: function={command[3]} exit={process.returncode} {last}\n{tail}")
    return json.loads(result.read_text())


def answer(place: str, arguments: str) -> None:
    """What the process of `call_in_process` runs; what still runs then is of no interest."""
    status = 1
    try:
        text = json.dumps(function_at(place)(*json.loads(arguments)))
        Path(ANSWER).write_text(text)
        status = 0
    except BaseException:  # noqa: BLE001 - told, and the end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def place_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__name__}"


def function_at(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def kill_marked(mark: str) -> None:
    """Kill every process with this mark in its environment: a JVM has a session of its own."""
    wanted = f"{_MARK}={mark}".encode()
    deadline = time.monotonic() + 30
    while members := [pid for pid in _processes() if wanted in _environment_of(pid)]:
        if time.monotonic() > deadline:
            pytest.fail(f"processes do not die: pids={members}")
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def signal_marked(mark: str, number: signal.Signals) -> None:
    """Send a signal to every process with this mark in its environment."""
    wanted = f"{_MARK}={mark}".encode()
    for pid in _processes():
        if wanted in _environment_of(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment_of(pid: int) -> list[bytes]:
    """What a process was started with; nothing if it has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
