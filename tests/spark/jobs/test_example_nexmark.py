"""Nexmark's queries as jobs: rescaled while they run, killed, gone on rescaled again, and exact.

Inputs have different speeds, each way: an epoch takes a file of each, and one has fewer files. Each
kill comes when rows were read that no checkpoint has. With bids ahead there are two: most of the
state is rows that wait for those of the other input then.

What each run prints, rows per second and processor time per row, is seen with `-s`.
"""

import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cpu import tree_seconds
from moorage_testing.example_scripts import scripts_of
from moorage_testing.jobs import JobHome, kill_group, wait_until
from moorage_testing.oracle import newest_manifest

# On a busy machine a query takes ten minutes.
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1500)]

NEXMARK = Path(__file__).parents[3] / "examples" / "nexmark"
EVENTS = 400_000
SPEEDS = {
    "bids-are-slow": {"persons": 24, "auctions": 36, "bids": 72},
    "bids-are-ahead": {"persons": 72, "auctions": 48, "bids": 24},
}
PATIENCE_SECONDS = 400
# Begins with, is given while it runs, and goes on with after it was killed.
FIRST, LIVE, LAST = 2, 4, 3
OF_TWO_INPUTS = {"q3", "q4", "q6", "q8"}
CASES = [
    (f"q{n}", speed)
    for n in range(9)
    for speed in SPEEDS
    if f"q{n}" in OF_TWO_INPUTS or speed == "bids-are-slow"
]
_EPOCH = re.compile(r"running: epoch (\d+), ")
_PROGRESS = re.compile(r"running: epoch \d+, ([\d,]+) rows")


@pytest.fixture(scope="module")
def modules():
    """How events are made, and the oracle; scripts beside each other and no package."""
    with scripts_of(NEXMARK) as load:
        yield load("events"), load("oracle")


@pytest.fixture(scope="module")
def worlds(modules, tmp_path_factory):
    """The folders with the files of all events, by speeds of the inputs."""
    events, _ = modules
    folder, seen = tmp_path_factory.mktemp("nexmark"), events.generate(EVENTS)
    for speed, files in SPEEDS.items():
        events.write(seen, folder / speed, files)
    return folder


def manifest(home: JobHome, query: str, parallelism: int) -> None:
    home.write_manifest(
        NEXMARK / "job.py",
        application={
            "mainFile": f"local://{NEXMARK}/job.py",
            "args": [query, str(home.path / "in"), str(home.out)],
        },
        scaling={"parallelism": parallelism, "mode": "InPlaceParallelism"},
    )


def parallelism_of(home: JobHome) -> set[int]:
    """Of the operators in the newest checkpoint; of q0, which has none, nothing."""
    return {one.parallelism for one in newest_manifest(home.checkpoints).operators.values()}


def wait_for_more(home: JobHome, process: subprocess.Popen) -> None:
    """Wait until two more checkpoints are complete; the job is not to end before."""
    known = len(home.completed())
    wait_until(
        lambda: len(home.completed()) > known + 1 or process.poll() is not None,
        PATIENCE_SECONDS,
        "two more checkpoints",
    )
    assert process.poll() is None, f"it ended too early\n{home.log()}"


def kill_beyond_a_checkpoint(home: JobHome, process: subprocess.Popen) -> None:
    """Kill the job after another two checkpoints, when an epoch more is done than the newest has.

    What runs goes back to that checkpoint, and reads rows once more.
    """
    wait_for_more(home, process)
    begins = len(home.log())

    def beyond() -> bool:
        told = _EPOCH.findall(home.log()[begins:])
        return bool(told) and int(told[-1]) > newest_manifest(home.checkpoints).epoch

    wait_until(lambda: beyond() or process.poll() is not None, PATIENCE_SECONDS, "another epoch")
    kill_group(process)
    assert process.returncode == -signal.SIGKILL, f"it ended too early\n{home.log()}"


def rescale(home: JobHome, parallelism: int) -> None:
    """Have the job run on with another number of subtasks."""
    command = [sys.executable, "-m", "moorage.cli", "rescale", "job.yaml", str(parallelism)]
    subprocess.run(command, cwd=home.path, check=True, timeout=PATIENCE_SECONDS)


def watch(home: JobHome) -> list[tuple[float, float, int]]:
    """Run to the end; whenever more rows are told, the time, the processor time and the rows."""
    begins = len(home.log())
    process = home.start()
    samples: list[tuple[float, float, int]] = []
    while process.poll() is None:
        told = _PROGRESS.findall(home.log()[begins:])
        rows = int(told[-1].replace(",", "")) if told else 0
        if rows > (samples[-1][2] if samples else 0):
            samples.append((time.monotonic(), tree_seconds(process.pid) or 0.0, rows))
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    assert process.returncode == 0, home.log()
    return samples


@pytest.mark.parametrize(("query", "speed"), CASES)
def test_a_query_is_exact_though_it_is_rescaled_killed_and_rescaled_again(
    modules: Any, worlds: Path, tmp_path: Path, query: str, speed: str
) -> None:
    _, oracle = modules
    home = JobHome.make(tmp_path / query, NEXMARK / "job.py", worlds / speed)
    try:
        manifest(home, query, FIRST)
        process = home.start()
        wait_for_more(home, process)
        stateful = bool(parallelism_of(home))
        if stateful:
            rescale(home, LIVE)
            wait_for_more(home, process)
            assert parallelism_of(home) == {LIVE}
            assert home.log().count("starting spark") == 1
        kill_beyond_a_checkpoint(home, process)
        manifest(home, query, LAST)
        if speed == "bids-are-ahead":
            kill_beyond_a_checkpoint(home, home.start())
            assert "restored from" in home.log()
        samples = watch(home)
        assert "restored from" in home.log()
        assert parallelism_of(home) == ({LAST} if stateful else set())
        assert oracle.main([query, str(home.path / "in"), str(home.out)]) == 0
    finally:
        home.end()
    (began, cpu_before, early), (ended, cpu_after, late) = samples[0], samples[-1]
    print(  # noqa: T201 - what was measured
        f"{query}: {late - early:,} rows, {(late - early) / (ended - began):,.0f} rows/s, "
        f"{(cpu_after - cpu_before) / (late - early) * 1e6:,.0f} us of processor per row"
    )
