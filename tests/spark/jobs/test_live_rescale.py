"""Another number of subtasks while a job runs: nothing is lost, counted twice, or started anew."""

import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from moorage_testing.batches import KEYS, add_batch, counted, start_and_wait, stop
from moorage_testing.jobs import JobHome, processes_of, wait_until
from moorage_testing.oracle import newest_manifest, stored_values

from moorage.driver.views import CheckpointTimes
from moorage.state import read
from moorage_state.keygroups import range_of
from moorage_state.snapshots import LineageLog, Rescaled, Run
from moorage_state.stores import open_store

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(400)]

JOB = Path(__file__).with_name("live_job.py")
GROUPS = 16


@pytest.fixture
def home(tmp_path):
    add_batch(tmp_path / "events", 0)
    home = JobHome.make(tmp_path / "job", JOB, tmp_path / "events")
    args = [str(home.path), str(tmp_path / "events")]
    home.write_manifest(
        JOB,
        bounded=False,
        epoch={"interval": "200ms"},
        application={"mainFile": f"local://{JOB}", "args": args},
        scaling={"parallelism": 2, "maxParallelism": GROUPS, "mode": "InPlaceParallelism"},
    )
    yield home
    home.end()


def rescale(home: JobHome, parallelism: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "moorage.cli", "rescale", "job.yaml", str(parallelism)]
    return subprocess.Popen(command, cwd=home.path, stdout=subprocess.DEVNULL)


def fed_until(home: JobHome, asked: subprocess.Popen, number: int) -> int:
    """Bring batches until who asked has an answer, and two more; the number of the next one."""
    events = home.path.parent / "events"

    def counted_or_answered(rows: int) -> bool:
        return asked.poll() is not None or set(counted(home).values()) == {rows}

    while asked.poll() is None:
        add_batch(events, number)
        number += 1
        wait_until(partial(counted_or_answered, 2 * number), 120, "load")
    assert asked.returncode == 0, home.log()
    for _ in range(2):
        add_batch(events, number)
        number += 1
    wait_until(lambda: set(counted(home).values()) == {2 * number}, 120, "what came after")
    return number


def operator(home: JobHome):
    return newest_manifest(home.checkpoints).operators["count"]


def check_subtasks(home: JobHome, parallelism: int, rows_per_key: int) -> None:
    """State of subtasks is there once, under the subtasks that there are."""
    starts = {range_of(i, parallelism, GROUPS).start for i in range(parallelism)}
    assert operator(home).parallelism == parallelism
    seen = read(home.checkpoints, "count", "_operator.seen").to_pylist()
    found = sorted((row["value"]["key"], row["value"]["n"]) for row in seen)
    assert found == [(key, n + 1) for key in KEYS for n in range(rows_per_key)]
    assert {row["key_group"] for row in seen} <= starts
    totals = read(home.checkpoints, "count", "_operator.totals").to_pylist()
    assert sum(row["value"] for row in totals) == rows_per_key * len(KEYS)
    assert {row["key_group"] for row in totals} == starts


def spark_log(process: subprocess.Popen) -> str:
    """What a job's Spark logged so far."""
    commands = ""
    for pid in processes_of(process.pid):
        # Some that the JVM starts live for milliseconds.
        with suppress(OSError):
            commands += Path(f"/proc/{pid}/cmdline").read_text() + " "
    [file] = set(re.findall(r"-Dmoorage\.log=([^\s\0]+)", commands))
    return Path(file).read_text()


def test_a_job_goes_from_two_to_four_to_three_subtasks_under_load(home):
    process = start_and_wait(home, 2)
    number = 1
    for parallelism in (4, 3):
        number = fed_until(home, rescale(home, parallelism), number)
        check_subtasks(home, parallelism, 2 * number)
    rows = 2 * number
    wait_until(
        lambda: set(stored_values(home.checkpoints, "count", "fired", "long").values()) == {rows},
        120,
        "a timer for each row",
    )
    assert "terminated with error" not in spark_log(process), "nothing failed"
    stop(home, process)
    published = [
        tuple(row.values())
        for path in home.out.glob("*.parquet")
        for row in pq.read_table(path, columns=["key", "n", "what"]).to_pylist()
    ]
    assert set(Counter(published).values()) == {1}
    expected = {(k, n + 1, what) for k in KEYS for n in range(rows) for what in ("row", "timer")}
    assert set(published) == expected

    entries = [
        entry for _, entry in LineageLog.open(open_store(f"file://{home.checkpoints}")).read()
    ]
    decided = [entry for entry in entries if isinstance(entry, Rescaled)]
    assert [(one.run, one.parallelism, one.declared) for one in decided] == [(1, 4, 2), (2, 3, 2)]
    runs = [entry for entry in entries if isinstance(entry, Run)]
    assert [(run.fence, run.restored_from) for run in runs[1:]] == [
        (1, f"chk-{one.checkpoint_id}") for one in decided
    ], "the same driver goes on, from the checkpoint that was named"
    assert home.log().count("starting spark") == 1
    assert "rewinding" not in home.log()

    times = msgspec.convert(newest_manifest(home.checkpoints).extra["times"], CheckpointTimes)
    assert times.upload_seconds >= max(one.seconds for one in times.servers) > 0

    # The manifest says two as before: what was decided since still holds.
    add_batch(home.path.parent / "events", number)
    stop(home, start_and_wait(home, rows + 2))
    check_subtasks(home, 3, rows + 2)
