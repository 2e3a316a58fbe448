"""The ticker example: it runs as it stands, and its auditor sees what is wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from moorage_testing.jobs import wait_until

from moorage_state.snapshots import Checkpoint, LineageLog
from moorage_state.stores import open_store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

TICKER = Path(__file__).parents[3] / "examples" / "ticker"


def audit(home):
    done = subprocess.run(
        [sys.executable, "audit.py", f"{home}/checkpoints", f"{home}/counts"],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def completed(home):
    store = open_store(f"file://{home}/checkpoints")
    return [e for _, e in LineageLog.open(store).read() if isinstance(e, Checkpoint)]


@pytest.mark.soak
def test_the_ticker_counts_every_tick_and_its_auditor_sees_one_that_is_missing(tmp_path):
    home = tmp_path / "ticker"
    shutil.copytree(TICKER, home)
    manifest = (home / "job.yaml").read_text().replace("interval: 10s", "interval: 2s")
    (home / "job.yaml").write_text(manifest)
    command = [sys.executable, "-m", "moorage.cli", "run", "job.yaml"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, cwd=home, stdout=log, stderr=log) as process,
    ):
        try:
            wait_until(
                lambda: (home / "checkpoints" / "log").is_dir() and len(completed(home)) >= 2,
                120,
                "two checkpoints",
            )
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(60) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
    status, found = audit(home)
    assert (status, found["wrong_counters"], found["lost"], found["twice"]) == (0, 0, 0, 0)
    assert found["rows"] > 0
    first, *_ = sorted((home / "counts").glob("part-*.parquet"))
    first.unlink()
    status, found = audit(home)
    assert status == 1
    assert found["lost"] > 0
