"""The session under signals: a real process, a runner that stands in for Spark."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# `listens` decides whether the runner stops when it is asked to, `phase` what it has come to.
PROGRAM = """
import sys, time
from pathlib import Path
import moorage.cli.app as app
from moorage.driver.types import RunOutcome, JobProgress, RunResult

def runner(job, job_dir, options, listener):
    listener(JobProgress(epoch=1, epochs=1, phase="running"))
    listener(JobProgress(epoch=3, epochs=3, rows_total=9, phase={phase!r}, message="is there"))
    while True:
        if options.stop.wait(0.02) and {listens}:
            return RunResult(RunOutcome.STOPPED, epoch=3, rows_total=9, seconds=0.1)

app._driver = lambda: runner
{before}
sys.exit(app.run_app())
"""


# What a shell does with a command in the foreground of its terminal, its standard input.
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
PYTHONPATH = os.pathsep.join(str(ROOT / d) for d in ("backends", "operator", "runtime"))


@pytest.fixture
def start(job_file):
    """Start `moorage run` on the job file with a runner that listens, or does not, to `stop`.

    It has a session of its own, and with `terminal` that terminal, as its output too.
    """
    with contextlib.ExitStack() as stack:

        def begin(*within, listens=True, terminal=None, phase="running", before=""):
            program = PROGRAM.format(listens=listens, phase=phase, before=textwrap.dedent(before))
            command = [*within, sys.executable, "-c", program, "run", job_file, "--no-page"]
            if terminal is not None:
                command = [sys.executable, "-c", IN_TERMINAL, *command]
            output = subprocess.PIPE if terminal is None else terminal
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    text=True,
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": PYTHONPATH, "TERM": "xterm"},
                    stdin=subprocess.DEVNULL if terminal is None else terminal,
                    stdout=output,
                    stderr=output,
                )
            )
            stack.callback(process.kill)
            if process.stderr is not None:
                assert process.stderr.readline().startswith("running: epoch 1")
                assert process.stderr.readline() == "is there\n"
            return process

        yield begin


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the process", "to its group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_takes_a_last_checkpoint_and_is_a_success(start, number, send):
    process = start()
    send(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert f"{signal.Signals(number).name}: taking a last checkpoint" in err
    assert out.startswith("clicks stopped: 9 rows")


def test_timeout_which_signals_its_child_and_then_their_group_sends_one_signal(start):
    process = start("timeout", "--preserve-status", "600")
    process.terminate()  # which it passes on as it does when the time is up
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert out.startswith("clicks stopped: 9 rows")


SIGNAL_BEFORE_IT_TELLS = """
import os, signal
tell = app._tell
def told(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    tell(*given)
app._tell, app._SAME_SECONDS = told, {same}
"""


@pytest.mark.parametrize(
    ("same", "ended", "told"), [(600, 0, "clicks stopped: 9 rows"), (0, -signal.SIGTERM, "")]
)
def test_a_second_signal_within_a_second_is_the_first_after_the_job_stopped_too(
    start, same, ended, told
):
    process = start(before=SIGNAL_BEFORE_IT_TELLS.format(same=same))
    process.terminate()
    out, err = process.communicate(timeout=30)
    assert process.returncode == ended, err
    assert out.startswith(told)


def test_a_job_under_nohup_outlives_its_terminal(start):
    process = start("nohup")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "SIGTERM: taking a last checkpoint" in err
    assert "SIGHUP" not in err
    assert out.startswith("clicks stopped: 9 rows")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_within_a_second_is_the_first_and_a_later_one_ends_at_once(start, number):
    process = start(listens=False)
    began = time.monotonic()
    process.send_signal(number)
    assert "taking a last checkpoint" in process.stderr.readline()
    send_until_it_ends(process, number)
    assert time.monotonic() - began >= 1
    assert process.returncode == 130
    assert "no last checkpoint" in process.stderr.read()


def send_until_it_ends(process, number):
    began = time.monotonic()
    while process.poll() is None:
        assert time.monotonic() - began < 30
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.002)


def test_a_second_signal_in_the_last_deletions_of_a_finished_job_ends_it_as_finished(start):
    process = start(listens=False, phase="finished")
    process.send_signal(signal.SIGINT)
    assert "SIGINT: the job has finished, and what it does not keep" in process.stderr.readline()
    send_until_it_ends(process, signal.SIGINT)
    assert process.returncode == 0
    assert process.stdout.read().startswith("clicks finished: 9 rows in ")
    assert "its next start deletes what is left" in process.stderr.read()


def read_until(descriptor, text):
    """What a terminal shows, up to some text."""
    shown = b""
    while text not in shown:
        assert select.select([descriptor], [], [], 30)[0], shown
        shown += os.read(descriptor, 4096)
    return shown


def test_ctrl_c_in_a_terminal_takes_a_last_checkpoint(start):
    ours, theirs = pty.openpty()
    process = start(terminal=theirs)
    os.close(theirs)
    read_until(ours, b"epoch")
    os.write(ours, b"\x03")
    shown = read_until(ours, b"clicks stopped: 9 rows")
    assert b"SIGINT: taking a last checkpoint" in shown
    assert process.wait(30) == 0
    os.close(ours)


def test_closing_the_terminal_takes_a_last_checkpoint_and_is_a_success(start):
    ours, theirs = pty.openpty()
    process = start(terminal=theirs)
    os.close(theirs)
    read_until(ours, b"epoch")
    os.close(ours)
    assert process.wait(30) == 0
