"""Tests that `moorage init` writes and that need Spark: they bring a session, and it ends."""

from pathlib import Path

import pytest
from moorage_testing.jobs import wait_until
from moorage_testing.processes import run_tests_of

from moorage.cli.init import write

pytestmark = pytest.mark.spark


def processes_that_name(folder):
    """Command lines with this folder in them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_the_run_tests_of_that_reads_kafka_pass_and_leave_no_spark(tmp_path):
    write("kafka-to-parquet", tmp_path / "job", "events")
    # Spark's log is below it, and so in the JVM's command line.
    done = run_tests_of(tmp_path / "job", f"--basetemp={tmp_path / 'base'}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert list((tmp_path / "base").glob("*/spark.log"))
    wait_until(lambda: not processes_that_name(tmp_path / "base"), what="Spark to end")
    written = {path.name for path in (tmp_path / "job").iterdir()} - {"__pycache__"}
    assert written == {
        *(".gitignore", "Dockerfile", "README.md", "job.py", "job.yaml", "test_job.py"),
    }
