"""Nexmark's queries as jobs: killed half way, gone on with another parallelism, and exact.

What each run prints, rows per second and processor time per row, is seen with `-s`.
"""

import importlib
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cpu import tree_seconds
from moorage_testing.jobs import JobHome, kill_group, wait_until
from moorage_testing.oracle import newest_manifest

pytestmark = [pytest.mark.spark, pytest.mark.soak]

NEXMARK = Path(__file__).parents[3] / "examples" / "nexmark"
EVENTS = 400_000
FILES = {"persons": 20, "auctions": 24, "bids": 24}
BEFORE, AFTER = 2, 3
_PROGRESS = re.compile(r"running: epoch \d+, ([\d,]+) rows")


@pytest.fixture(scope="module")
def modules():
    """How events are made, and the oracle; scripts beside each other and no package."""
    sys.path.insert(0, str(NEXMARK))
    try:
        yield importlib.import_module("events"), importlib.import_module("oracle")
    finally:
        sys.path.remove(str(NEXMARK))
        for name in ("events", "oracle"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def world(modules, tmp_path_factory):
    """The folder with the files of all events."""
    events, _ = modules
    folder = tmp_path_factory.mktemp("nexmark")
    events.write(events.generate(EVENTS), folder, FILES)
    return folder


def manifest(home: JobHome, query: str, parallelism: int) -> None:
    home.write_manifest(
        NEXMARK / "job.py",
        application={
            "mainFile": f"local://{NEXMARK}/job.py",
            "args": [query, str(home.path / "in"), str(home.out)],
        },
        scaling={"parallelism": parallelism},
    )


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
        time.sleep(0.05)
    assert process.returncode == 0, home.log()
    return samples


@pytest.mark.parametrize("query", [f"q{n}" for n in range(9)])
def test_a_query_is_exact_after_a_kill_with_another_parallelism(
    modules: Any, world: Any, tmp_path: Path, query: str
) -> None:
    _, oracle = modules
    folder = world
    home = JobHome.make(tmp_path / query, NEXMARK / "job.py", folder)
    try:
        manifest(home, query, BEFORE)
        first = home.start()
        wait_until(lambda: home.completed() or first.poll() is not None, 120, "a checkpoint")
        assert first.poll() is None, home.log()
        kept = home.wait_for_checkpoints(2)
        wait_until(lambda: len(home.completed()) > len(kept), 120, "another checkpoint")
        assert first.poll() is None, f"it ended before it was killed\n{home.log()}"
        kill_group(first)
        manifest(home, query, AFTER)
        samples = watch(home)
        assert "restored from" in home.log()
        operators = newest_manifest(home.checkpoints).operators
        assert {one.parallelism for one in operators.values()} <= {AFTER}
        status = oracle.main([query, str(home.path / "in"), str(home.out)])
        (began, cpu_before, early), (ended, cpu_after, late) = samples[0], samples[-1]
        assert status == 0
    finally:
        home.end()
    print(  # noqa: T201 - what was measured
        f"{query}: {late - early:,} rows, {(late - early) / (ended - began):,.0f} rows/s, "
        f"{(cpu_after - cpu_before) / (late - early) * 1e6:,.0f} us of processor per row"
    )
