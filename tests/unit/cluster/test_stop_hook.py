"""An executor's stop hook of the image, beside a driver's endpoint and a stand-in for Java."""

import os
import socket
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from select import select
from signal import SIGKILL
from typing import Any

import pytest
from moorage_testing.tls import mount

from moorage_api.driver import ENDPOINT_PORT, HEALTH_PATH
from moorage_api.reserved import TLS_DIR

from .conftest import play

SCRIPT = Path(__file__).parents[3] / "runtime" / "image" / "decom.sh"
ASKS, HANDS_OVER = 5, 20
"""How often the driver is asked, and the seconds that Java has after that."""
JAVA = """
import sys
from signal import *
pthread_sigmask(SIG_BLOCK, [SIGPWR, SIGTERM])
print("runs", flush=True)
told = sigwait([SIGPWR, SIGTERM])
print(told.name, flush=True)
if "stays" in sys.argv:
    sigwait([SIGTERM])
"""


class Hook:
    """The script at work; it sleeps until a test lets it go on, so that no time is measured.

    What it looks at changes while it sleeps, or nobody could say which look sees the change.
    """

    def __init__(self, folder, port):
        self.folder, self.port = folder, port
        self.sleeps, self.turns = folder / "sleeps", folder / "turns"
        os.mkfifo(self.sleeps)
        os.mkfifo(self.turns)
        (folder / "sleep").write_text(f"#!/bin/sh\necho >{self.sleeps}\nread turn <{self.turns}\n")
        (folder / "sleep").chmod(0o755)
        (folder / "python").symlink_to(sys.executable)
        (folder / "proc").mkdir()
        self.java: Any = None
        self.process: Any = None

    def start_java(self, *arguments):
        program = self.folder / "java.py"
        program.write_text(JAVA)
        words = ["/opt/java/bin/java", "-I", program, "KubernetesExecutorBackend"]
        self.java = subprocess.Popen(
            [*words, *arguments], executable=sys.executable, stdout=subprocess.PIPE, text=True
        )
        assert self.java.stdout.readline() == "runs\n"
        (self.folder / "proc" / str(self.java.pid)).symlink_to(f"/proc/{self.java.pid}")

    def start(self, patience=60):
        """Begin.

        Args:
            patience: seconds for an answer; where there is one it may take as long as it takes.
        """
        text = SCRIPT.read_text()
        # All of a process table are others' executors as well, and the places are a pod's.
        for place, here in (
            ("/proc/", f"{self.folder}/proc/"),
            (TLS_DIR, f"{self.folder}/tls"),
            (f"host, {ENDPOINT_PORT}", f"host, {self.port}"),
            ("timeout=2", f"timeout={patience}"),
        ):
            assert place in text
            text = text.replace(place, here)
        assert f'"{HEALTH_PATH}"' in text
        script = self.folder / "decom.sh"
        script.write_text(text)
        self.process = subprocess.Popen(
            ["/bin/sh", script],
            env={
                "PATH": f"{self.folder}:{os.environ['PATH']}",
                "TMPDIR": str(self.folder),
                "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:7078",
            },
            start_new_session=True,
        )

    def turn(self, count=1):
        """Let it wake up so many times."""
        for _ in range(count):
            with self.asleep():
                pass

    @contextmanager
    def asleep(self):
        """It sleeps, and goes on when the block is left."""
        assert self._said() == b"\n", f"it has ended: status={self.process.poll()}"
        yield
        self.turns.write_text("\n")

    def _said(self):
        """What it writes before it sleeps; nothing if it ends instead."""
        sleeps = os.open(self.sleeps, os.O_RDONLY | os.O_NONBLOCK)
        ended = os.pidfd_open(self.process.pid)
        try:
            ready, _, _ = select([sleeps, ended], [], [])
            return os.read(sleeps, 1) if sleeps in ready else b""
        finally:
            os.close(sleeps)
            os.close(ended)

    def keeps_the_container(self):
        """Whether `outlive.sh` stays for it."""
        return (self.folder / "moorage-stop-hook").exists()

    def ended(self):
        """What Java was told by then; it has ended, by itself or now."""
        self.java.terminate()
        self.java.wait()
        return self.java.stdout.read().split()

    def close(self):
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, SIGKILL)  # with what it sleeps by
        for process in (self.process, self.java):
            if process is not None:
                process.kill()
                process.wait()
        if self.java is not None:
            self.java.stdout.close()


@pytest.fixture
def hook(tmp_path):
    made = []

    def make(port):
        made.append(Hook(tmp_path, port))
        return made[0]

    yield make
    for one in made:
        one.close()


def test_an_executor_whose_driver_goes_on_is_told_to_hand_over_and_waited_for(hook, played):
    hook = hook(played.endpoint.port)
    hook.start_java("stays")
    hook.start()
    hook.turn(ASKS)
    with hook.asleep():
        assert hook.ended() == ["SIGPWR"]
        assert hook.keeps_the_container()
    assert hook.process.wait() == 0
    assert not hook.keeps_the_container()


def test_an_executor_that_does_not_get_done_is_not_waited_for_any_longer(hook, played):
    hook = hook(played.endpoint.port)
    hook.start_java("stays")
    hook.start()
    hook.turn(ASKS + HANDS_OVER)
    assert hook.process.wait() == 0
    assert hook.java.poll() is None


@pytest.mark.parametrize("turns", [0, 1, ASKS - 1])
def test_an_executor_whose_driver_ends_too_is_left_alone_until_spark_ends_it(hook, played, turns):
    """Also where the driver hears of it a little later."""
    hook = hook(played.endpoint.port)
    hook.start_java()
    if turns == 0:
        played.requests.refuse("the driver is ending: signal=SIGTERM")
    hook.start()
    hook.turn(max(0, turns - 1))
    with hook.asleep():
        played.requests.refuse("the driver is ending: signal=SIGTERM")
    hook.turn(2 * ASKS)
    with hook.asleep():
        assert hook.ended() == ["SIGTERM"]
    assert hook.process.wait() == 0


def test_an_executor_that_does_not_see_its_driver_end_is_not_waited_for(hook, played):
    """As one whose Java just starts; Kubernetes tells it to end when the hook is over."""
    hook = hook(played.endpoint.port)
    hook.start_java()
    played.requests.refuse("the driver is ending: signal=SIGTERM")
    hook.start()
    hook.turn(ASKS)
    with hook.asleep():
        played.endpoint.close()
    assert hook.process.wait() == 0
    assert hook.java.poll() is None
    assert hook.ended() == ["SIGTERM"]


def test_a_driver_is_asked_by_tls_where_the_job_has_a_certificate(hook, tmp_path):
    with play(tls=mount(tmp_path / "tls"), seconds=1.0) as played:
        played.requests.refuse("the driver is ending: signal=SIGTERM")
        hook = hook(played.endpoint.port)
        hook.start_java()
        hook.start()
        hook.turn(ASKS + 1)
        with hook.asleep():
            assert hook.ended() == ["SIGTERM"]
        assert hook.process.wait() == 0


@pytest.fixture
def mute():
    """Who takes connections and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def test_a_driver_that_does_not_answer_is_asked_again_and_keeps_no_executor(hook, mute):
    hook = hook(mute)
    hook.start_java()
    hook.start(patience=0.1)
    hook.turn(ASKS)
    assert hook.java.wait() == 0
    assert hook.ended() == ["SIGPWR"]


def test_a_driver_that_is_gone_is_not_asked_again(hook, played):
    port = played.endpoint.port
    played.endpoint.close()
    hook = hook(port)
    hook.start_java()
    hook.start()
    assert hook.java.wait() == 0
    assert hook.ended() == ["SIGPWR"]


def test_where_no_java_is_left_there_is_nothing_to_wait_for(hook, played):
    hook = hook(played.endpoint.port)
    hook.start()
    assert hook.process.wait() == 0
