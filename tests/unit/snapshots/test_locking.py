import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from moorage_state.errors import UserError
from moorage_state.snapshots import LockHolder
from moorage_state.snapshots.run_lock import DirectoryLock

HOLD = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from moorage_state.snapshots.run_lock import DirectoryLock, LockHolder
holder = LockHolder.current("trains", datetime(2026, 1, 2, tzinfo=UTC))
lock = DirectoryLock.acquire(Path(sys.argv[1]), holder)
if sys.argv[2] == "plain" or os.fork() == 0:
    print(os.getpid(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def me(start: datetime) -> LockHolder:
    return LockHolder.current("flights", start)


def hold(directory: Path, how: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOLD, str(directory), how],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def other(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = hold(tmp_path, "plain")
    assert process.stdout is not None
    assert process.stdout.readline().strip() == str(process.pid)
    yield process
    process.kill()
    process.communicate()


def test_a_second_run_is_refused_and_told_who_holds_the_lock(
    tmp_path: Path, me: LockHolder, other: "subprocess.Popen[str]"
) -> None:
    with pytest.raises(UserError) as caught:
        DirectoryLock.acquire(tmp_path, me)
    text = str(caught.value)
    assert re.search(
        rf"in use .*directory={tmp_path} holder: pid={other.pid} host=\S+ job=trains since=2026-01",
        text,
    )
    assert "--take-over" in text


def test_the_lock_is_free_when_its_process_is_killed(
    tmp_path: Path, me: LockHolder, other: "subprocess.Popen[str]"
) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait(timeout=60)
    with DirectoryLock.acquire(tmp_path, me):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_forked_child_does_not_keep_the_lock_alive(tmp_path: Path, me: LockHolder) -> None:
    process = hold(tmp_path, "fork")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.wait(timeout=60)
        DirectoryLock.acquire(tmp_path, me).release()
    finally:
        process.communicate()


def test_a_started_child_does_not_keep_the_lock_alive(tmp_path: Path, me: LockHolder) -> None:
    lock = DirectoryLock.acquire(tmp_path, me)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        lock.release()
        DirectoryLock.acquire(tmp_path, me).release()
        child.communicate()


def test_taking_over_replaces_the_lock_for_everybody_after(
    tmp_path: Path, me: LockHolder, other: "subprocess.Popen[str]"
) -> None:
    lock = DirectoryLock.acquire(tmp_path, me, take_over=True)
    with pytest.raises(UserError, match=f"pid={os.getpid()}"):
        DirectoryLock.acquire(tmp_path, me)
    other.communicate("go on\n", timeout=60)
    with pytest.raises(UserError, match=f"pid={os.getpid()}"):
        DirectoryLock.acquire(tmp_path, me)
    lock.release()
    DirectoryLock.acquire(tmp_path, me).release()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_lock_on_a_file_that_was_replaced_meanwhile_is_not_enough(
    tmp_path: Path, me: LockHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    replaced: list[int] = []

    def replace_first(descriptor: int, operation: int) -> None:
        if not replaced:
            replaced.append((tmp_path / ".fresh").write_text("new"))
            (tmp_path / ".fresh").rename(tmp_path / ".lock")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replace_first)
    with (
        DirectoryLock.acquire(tmp_path, me),
        pytest.raises(UserError, match=f"pid={os.getpid()}"),
    ):
        DirectoryLock.acquire(tmp_path, me)


def test_taking_over_a_free_lock_is_plain_locking(tmp_path: Path, me: LockHolder) -> None:
    with (
        DirectoryLock.acquire(tmp_path, me, take_over=True),
        pytest.raises(UserError, match="in use"),
    ):
        DirectoryLock.acquire(tmp_path, me)


def test_a_lock_is_released_once_and_can_be_taken_again(tmp_path: Path, me: LockHolder) -> None:
    lock = DirectoryLock.acquire(tmp_path, me)
    lock.release()
    lock.release()
    with DirectoryLock.acquire(tmp_path, me):
        pass


def test_a_holder_that_is_still_writing_its_name_is_unknown(tmp_path: Path, me: LockHolder) -> None:
    with DirectoryLock.acquire(tmp_path, me):
        (tmp_path / ".lock").write_text('{"pid": 1')
        with pytest.raises(UserError, match="holder: unknown"):
            DirectoryLock.acquire(tmp_path, me)


def test_a_directory_that_cannot_be_locked_is_named(tmp_path: Path, me: LockHolder) -> None:
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(UserError, match=f"directory={directory}"):
            DirectoryLock.acquire(directory, me)
