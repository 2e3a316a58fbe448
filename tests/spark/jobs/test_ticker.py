"""The ticker example: it runs as it stands, and its auditor sees what is wrong."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from moorage_testing.jobs import processes_of, wait_until

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


def ask(home):
    """What the ticker says of itself while it runs."""
    command = [sys.executable, "ask.py", "job.yaml"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def completed(home):
    store = open_store(f"file://{home}/checkpoints")
    return [e for _, e in LineageLog.open(store).read() if isinstance(e, Checkpoint)]


def begin(home, *within, terminal=None, meanwhile=lambda: None):
    """`moorage run` in a session of its own, which has taken one checkpoint more."""
    command = [*within, sys.executable, "-m", "moorage.cli", "run", "job.yaml", "--no-page"]
    before = len(completed(home)) if (home / "checkpoints" / "log").is_dir() else 0
    with (home / "run.log").open("a") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        if terminal is not None:
            command = [sys.executable, "-c", IN_TERMINAL, *command]
            streams = dict.fromkeys(streams, terminal)
        process = subprocess.Popen(command, cwd=home, start_new_session=True, **streams)
    try:
        wait_until(
            lambda: (
                meanwhile()
                or process.poll() is not None
                or ((home / "checkpoints" / "log").is_dir() and len(completed(home)) > before)
            ),
            120,
            "a checkpoint",
        )
    except BaseException:
        process.kill()
        raise
    return process


# What a shell does with a command in the foreground of its terminal, its standard input.
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def in_terminal(home):
    """A run in a terminal, and the end of that which people sit at."""
    screen, theirs = pty.openpty()
    os.set_blocking(screen, False)
    process = begin(home, terminal=theirs, meanwhile=lambda: watch(screen))
    os.close(theirs)
    yield process, screen
    with suppress(OSError):
        os.close(screen)


def watch(screen):
    """Read what a terminal shows, which would be full otherwise."""
    with suppress(OSError):
        while os.read(screen, 4096):
            pass


def ctrl_c(home):
    with in_terminal(home) as (process, screen):
        os.write(screen, b"\x03")
        wait_until(lambda: watch(screen) or process.poll() is not None, 60, "the end")
        return process.wait()


def close_terminal(home):
    with in_terminal(home) as (process, screen):
        os.close(screen)
        return process.wait(60)


def send(number, to):
    def way(home):
        process = begin(home)
        assert ask(home)["ticks"] > 0
        to(process.pid, number)
        return process.wait(60)

    return way


def to_everything(pid, number):
    for one in processes_of(pid):
        # Some that the JVM starts live for milliseconds.
        with suppress(ProcessLookupError):
            os.kill(one, number)


def by_timeout(home):
    process = begin(home, "timeout", "--preserve-status", "45")
    return process.wait(120)


def twice(home):
    """The second one comes later than a second; a stopped store keeps the first from ending."""
    process = begin(home)
    servers = [p for p in processes_of(process.pid) if is_server(p)]
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    wait_until(lambda: time.monotonic() - began > 1.5, 5, "a second")
    os.kill(process.pid, signal.SIGINT)
    status = process.wait(60)
    for pid in servers:
        os.kill(pid, signal.SIGCONT)
    return status


def is_server(pid):
    return b"moorage_state.server" in Path(f"/proc/{pid}/cmdline").read_bytes()


WAYS = {
    "SIGINT, ctrl-c in a terminal": (ctrl_c, 0),
    "SIGINT, to the process": (send(signal.SIGINT, os.kill), 0),
    "SIGTERM, to the process": (send(signal.SIGTERM, os.kill), 0),
    "SIGTERM, to its process group": (send(signal.SIGTERM, os.killpg), 0),
    "SIGTERM, by timeout": (by_timeout, 0),
    "SIGTERM, to every process": (send(signal.SIGTERM, to_everything), 0),
    "SIGHUP, by closing the terminal": (close_terminal, 0),
    "SIGHUP, to its process group": (send(signal.SIGHUP, os.killpg), 0),
    "SIGINT, again later": (twice, 130),
    "SIGQUIT, to its process group": (send(signal.SIGQUIT, os.killpg), -signal.SIGQUIT),
    "SIGKILL, to the process": (send(signal.SIGKILL, os.kill), -signal.SIGKILL),
}


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_ticker_counts_every_tick_whatever_signal_ends_it_and_however_that_is_sent(tmp_path):
    home = tmp_path / "ticker"
    shutil.copytree(TICKER, home)
    manifest = (home / "job.yaml").read_text().replace("interval: 10s", "interval: 2s")
    (home / "job.yaml").write_text(manifest)
    for name, (way, expected) in WAYS.items():
        before = (home / "run.log").read_text() if (home / "run.log").exists() else ""
        status = way(home)
        text = (home / "run.log").read_text().removeprefix(before)
        assert status == expected, f"{name}: {status}\n{text}"
        assert "Traceback" not in text, name
        wait_until(lambda: not left_of(str(home)), 30, f"helpers to end: {name}")
        epoch = completed(home)[-1].epoch
        if expected == 0:
            assert f"epoch {epoch}, checkpoint" in text or not text, name
    status, found = audit(home)
    assert (status, found["wrong_counters"], found["lost"], found["twice"]) == (0, 0, 0, 0)
    assert found["rows"] > 0
    first, *_ = sorted((home / "counts").glob("part-*.parquet"))
    first.unlink()
    status, found = audit(home)
    assert status == 1
    assert found["lost"] > 0


def left_of(home):
    """Processes that know of this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            with suppress(OSError):
                environment = (entry / "environ").read_bytes()
                if home.encode() in environment or home == str((entry / "cwd").readlink()):
                    found.append(int(entry.name))
    return found
