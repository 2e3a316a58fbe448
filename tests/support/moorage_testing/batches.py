"""Unbounded counting jobs that are fed batch by batch, two rows for each of five keys."""

import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moorage_testing.jobs import JobHome, wait_until
from moorage_testing.oracle import newest_manifest, stored_values

__all__ = [
    "KEYS",
    "UNBOUNDED",
    "add_batch",
    "counted",
    "published",
    "run_until",
    "start_and_wait",
    "stop",
]

KEYS = range(5)
UNBOUNDED = {"bounded": False, "epoch": {"interval": "100ms"}}


def add_batch(folder: Path, number: int) -> None:
    """Put the file with this number into the job's input, whole or not at all."""
    folder.mkdir(exist_ok=True)
    keys = [key for key in KEYS for _ in range(2)]
    # Spark lists neither dots nor underscores: a job that runs must not take the half of it.
    half = folder / f".{number}.parquet"
    pq.write_table(pa.table({"key": keys, "value": [1] * len(keys)}), half)
    os.utime(half, (1_600_000_000 + number, 1_600_000_000 + number))
    half.rename(folder / f"{number}.parquet")


def counted(home: JobHome) -> dict[int, object]:
    """The counts in the newest checkpoint."""
    if not home.completed():
        return {}
    return stored_values(home.checkpoints, "count", "count", "long")


def start_and_wait(home: JobHome, rows_per_key: int, *arguments: str):
    """Run until a checkpoint of this run holds so many rows of each key; the running process."""
    fence = newest_manifest(home.checkpoints).fence if home.completed() else 0
    process = home.start(*arguments)

    def reached() -> bool:
        if process.poll() is not None:
            pytest.fail(home.log())
        if not home.completed() or newest_manifest(home.checkpoints).fence == fence:
            return False
        return set(counted(home).values()) == {rows_per_key}

    wait_until(reached, 120, f"{rows_per_key} rows per key; so far {counted(home)}")
    return process


def stop(home: JobHome, process) -> int:
    """Ctrl-C; the id of the newest checkpoint."""
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 0, home.log()
    return newest_manifest(home.checkpoints).checkpoint_id


def run_until(home: JobHome, rows_per_key: int, *arguments: str) -> int:
    """`start_and_wait`, then `stop`."""
    return stop(home, start_and_wait(home, rows_per_key, *arguments))


def published(home: JobHome) -> list[tuple[int, int]]:
    """All published rows as (key, count), in order."""
    rows = pq.read_table(home.out, columns=["key", "count"]).to_pydict()
    return sorted(zip(rows["key"], rows["count"], strict=True))
