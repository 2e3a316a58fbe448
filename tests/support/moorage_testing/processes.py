"""Python programs in processes of their own, which are gone when a test ends."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Processes", "run_tests_of", "said", "started_processes"]


class Processes:
    """Starts programs and remembers them."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(self, program: Path, *args: str, failpoint: str = "") -> "subprocess.Popen[str]":
        """Run `program` with pipes, able to import what this process can."""
        process = subprocess.Popen(
            [sys.executable, str(program), *args],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "MOORAGE_FAILPOINT": failpoint,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process


@contextmanager
def started_processes() -> Iterator[Processes]:
    """Give something to start processes with; in the end all of them are dead."""
    processes = Processes()
    try:
        yield processes
    finally:
        for process in processes.started:
            process.kill()
            process.communicate()


def said(output: str) -> list[dict[str, Any]]:
    """The whole lines of JSON in what a process wrote, even if it died while it wrote."""
    return [json.loads(line) for line in output.splitlines(keepends=True) if line.endswith("}\n")]


def run_tests_of(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the tests of a job in its folder, as if they were the only ones on this machine."""
    # Each job has a module `job` of its own.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "moorage.testing.plugin"]
    command += ["-p", "no:cacheprovider", "--import-mode=prepend", "--rootdir", str(folder)]
    return subprocess.run(
        [*command, *arguments, str(folder)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
