"""The session under signals: a real process, a runner that stands in for Spark."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# `listens` decides whether the runner stops when it is asked to.
PROGRAM = """
import sys, time
from pathlib import Path
import moorage.cli.app as app
from moorage.driver.types import Outcome, Progress, RunResult

def runner(job, job_dir, options, listener):
    listener(Progress(epoch=1, phase="running"))
    while True:
        if options.stop.wait(0.02) and {listens}:
            return RunResult(Outcome.STOPPED, epoch=3, rows_total=9, seconds=0.1)

app._driver = lambda: runner
sys.exit(app.run_app())
"""


@pytest.fixture
def start(job_file):
    """Start `moorage run` on the job file with a runner that listens, or does not, to `stop`."""
    started = []

    def begin(*, listens):
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(PROGRAM.format(listens=listens)),
                "run",
                job_file,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    str(ROOT / d) for d in ("backends", "operator", "runtime")
                ),
            },
        )
        started.append(process)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("running: epoch 1")
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_takes_a_last_checkpoint_and_is_a_success(start, number):
    process = start(listens=True)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert f"{signal.Signals(number).name}: taking a last checkpoint" in err
    assert out.startswith("clicks stopped: 9 rows")


def test_a_second_ctrl_c_ends_at_once_and_says_what_is_lost(start):
    process = start(listens=False)
    process.send_signal(signal.SIGINT)
    assert "taking a last checkpoint" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "no last checkpoint" in err
