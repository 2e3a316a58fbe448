"""A job of joins that is killed, and goes on with another number of subtasks."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from moorage_testing.jobs import JobHome, kill_group, wait_until
from moorage_testing.oracle import newest_manifest

# Without Spark the suite does the same by tests/unit/engine; this is half a minute of its time, and
# ten of them on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1500)]

JOB = Path(__file__).with_name("joins_job.py")
KEYS = range(30)
PATIENCE_SECONDS = 400


def bring(folder: Path, rows: list[dict[str, int]]) -> None:
    folder.mkdir(exist_ok=True)
    half = folder / ".rows.json"
    half.write_text("\n".join(map(json.dumps, rows)))
    half.rename(folder / f"{len(list(folder.iterdir()))}.json")


def rows(home: JobHome, name: str) -> list[tuple[Any, ...]]:
    folder = home.path / name
    table = pq.read_table(folder).to_pylist() if folder.exists() else []
    return sorted(tuple(row.values()) for row in table)


def ends(*times: int) -> list[datetime]:
    """The ends of the windows of 20 ms, one each 10 ms, that hold all these times."""
    holding = range(10, 100, 10)
    found = [end for end in holding if all(end - 20 <= time < end for time in times)]
    return [datetime.fromtimestamp((1_000 + end) / 1000, UTC) for end in found]


def test_what_was_waiting_is_joined_once_after_a_kill_with_another_number_of_subtasks(tmp_path):
    home = JobHome.make(tmp_path / "job", JOB, tmp_path, bounded=False)
    try:
        for name in ("orders", "payments"):
            bring(home.path / name, [])
        bring(home.path / "orders", [{"id": k, "amount": k, "at": 1_000 + k} for k in KEYS])
        first = home.start()
        wait_until(
            lambda: len(rows(home, "seen")) == len(KEYS), PATIENCE_SECONDS, "orders in a checkpoint"
        )
        kill_group(first)
        home.write_manifest(JOB, scaling={"parallelism": 3})
        paid = [{"order": k, "paid": k, "at": 1_000 + k + by} for k in KEYS for by in (10, 11)]
        bring(home.path / "payments", paid)
        home.run()
        assert rows(home, "paid") == [(k, 100 * k, k, 1_010 + k) for k in KEYS]
        assert rows(home, "both") == [(k, k, 100 * k) for k in KEYS]
        pairs = [(k, 100 * k, k, end) for k in KEYS for at in (10, 11) for end in ends(k, k + at)]
        assert rows(home, "by-column") == rows(home, "by-row") == sorted(pairs)
        assert len(pairs) > len(KEYS)
        operators = newest_manifest(home.checkpoints).operators
        assert {one.parallelism for one in operators.values()} == {3}
    finally:
        home.end()
