"""What goes wrong around one job, and what is right afterwards."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from moorage_testing.jobs import JobHome, kill_group, wait_until
from moorage_testing.oracle import expected, judge, newest_manifest

from moorage_state.snapshots import Fence, LineageLog
from moorage_state.stores import open_store

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

COUNTING_JOB = Path(__file__).parent / "counting_job.py"
# So that a job is not through before something goes wrong with it.
EPOCH = {"interval": "400ms"}
# So that it is not through either while another process begins and is refused, however slowly.
SLOW_EPOCH = {"interval": "3s"}


@pytest.fixture(scope="module")
def truth(small_event_files):
    return expected(small_event_files)


@pytest.fixture
def home(make_home, small_event_files):
    return make_home("job", small_event_files, epoch=EPOCH)


def children_of(process: subprocess.Popen, pattern: str) -> list[int]:
    """Pids in the job's process group or started by it whose command line matches."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == process.pid and re.search(pattern, command):
            found.append(int(entry.name))
    return found


@pytest.mark.soak
def test_ctrl_c_takes_a_last_checkpoint_and_the_next_run_goes_on_from_it(home, truth):
    process = home.start()
    home.wait_for_checkpoints(1)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 0, home.log()
    last = home.completed()[-1]
    assert newest_manifest(home.checkpoints).extra["finished"] is False
    text = home.run()
    assert f"chk-{last}" in text
    assert judge(home.path, truth) == []


@pytest.mark.soak
def test_a_killed_state_server_is_brought_back_without_a_restart_of_the_job(home, truth):
    process = home.start()
    home.wait_for_checkpoints(1)
    servers = wait_until(lambda: children_of(process, "moorage_state.server"), 30, "servers")
    os.kill(servers[0], signal.SIGKILL)
    home.wait_for_checkpoints(3)
    assert process.wait(120) == 0, home.log()
    assert judge(home.path, truth) == []


@pytest.mark.soak
def test_killed_python_workers_cost_an_attempt_and_nothing_else(home, truth):
    process = home.start()
    home.wait_for_checkpoints(1)
    java = wait_until(lambda: children_of(process, "java"), 30, "the JVM")
    daemons = [
        int(p.name)
        for p in Path("/proc").iterdir()
        if p.name.isdigit() and is_child_of(int(p.name), java[0])
    ]
    for pid in daemons:
        os.kill(pid, signal.SIGKILL)
    assert daemons
    assert process.wait(120) == 0, home.log()
    assert judge(home.path, truth) == []


def is_child_of(pid: int, parent: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return int(stat.rpartition(")")[2].split()[1]) == parent


@dataclass(frozen=True)
class Met:
    """A running job that a second run met and that was killed then; `left` of it still ran.

    What had been its newest checkpoint was damaged, and then it ran to its end.
    """

    pid: int
    refusal: str
    servers: list[int]
    left: list[int]
    damaged: Path
    newest: int
    last_run: str
    problems: list[str]


@pytest.fixture(scope="module")
def met(tmp_path_factory, small_event_files, truth):
    home = JobHome.make(
        tmp_path_factory.mktemp("met") / "job", COUNTING_JOB, small_event_files, epoch=SLOW_EPOCH
    )
    try:
        process = home.start()
        home.wait_for_checkpoints(2)
        # Of little state all files are in the manifest itself.
        wait_until(lambda: own_files(home), 60, "a checkpoint with files of its own")
        # On a busy machine it would else be through, and leave no newer checkpoint to begin with.
        os.kill(process.pid, signal.SIGSTOP)
        refusal = home.run(expect=4)
        servers = children_of(process, "moorage_state.server")
        assert process.poll() is None, f"it was through before it could be killed\n{home.log()}"
        os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while (left := alive(servers)) and time.monotonic() < deadline:
            time.sleep(0.02)
        kill_group(process)
        newest, damaged = home.completed()[-1], newest_file(home)
        flip_a_byte(damaged)
        home.write_manifest(COUNTING_JOB, epoch=EPOCH)
        last_run = home.run("--take-over")
        problems = judge(home.path, truth)
    finally:
        home.end()
    return Met(process.pid, refusal, servers, left, damaged, newest, last_run, problems)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_second_run_on_the_same_directory_is_refused_and_told_who_holds_it(met):
    assert str(met.pid) in met.refusal
    assert "--take-over" in met.refusal


def test_a_killed_job_leaves_no_process_behind(met):
    assert met.servers
    assert met.left == []


@pytest.mark.soak
def test_a_stalled_writer_appends_nothing_after_another_driver_took_over(home, truth):
    """The first driver stops between its last read of the log and its put."""
    stalled = home.start(MOORAGE_FAILPOINT="log.before_put:stop:4")
    wait_until(lambda: is_stopped(stalled.pid), 120, "the first driver to stop itself")
    home.run("--take-over")
    os.kill(stalled.pid, signal.SIGCONT)
    assert stalled.wait(60) == 6, home.log()
    entries = [e for _, e in LineageLog.open(open_store(f"file://{home.checkpoints}")).read()]
    second = next(i for i, e in enumerate(entries) if isinstance(e, Fence) and e.fence == 2)
    assert {getattr(e, "fence", 2) for e in entries[second:]} == {2}
    assert judge(home.path, truth) == []


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(bytes(data))


def stop_with_checkpoints(home, count: int) -> None:
    process = home.start()
    home.wait_for_checkpoints(count)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 0, home.log()


def own_files(home) -> list[str]:
    """The files that only the newest checkpoint has."""
    manifest = newest_manifest(home.checkpoints)
    return [f.key for f in manifest.files if f.key.startswith(f"chk-{manifest.checkpoint_id}/")]


def newest_file(home) -> Path:
    """One of them."""
    return home.checkpoints / own_files(home)[0]


def test_a_flipped_byte_in_the_newest_checkpoint_brings_the_older_one_and_is_said(met):
    assert met.damaged.name in met.last_run
    assert f"chk-{met.newest - 1}" in met.last_run
    assert met.problems == []


@pytest.mark.soak
def test_a_flipped_byte_is_an_error_where_no_older_checkpoint_may_take_its_place(home):
    home.write_manifest(COUNTING_JOB, restore={"maxFallbackAge": "0s"})
    stop_with_checkpoints(home, 2)
    damaged = newest_file(home)
    flip_a_byte(damaged)
    text = home.run(expect=5)
    assert damaged.name in text


@pytest.mark.soak
def test_another_parallelism_continues_from_the_same_checkpoint(home, truth):
    stop_with_checkpoints(home, 1)
    home.write_manifest(COUNTING_JOB, scaling={"parallelism": 3})
    stop_with_checkpoints(home, len(home.completed()) + 1)
    home.write_manifest(COUNTING_JOB, scaling={"parallelism": 1})
    home.run()
    assert judge(home.path, truth) == []


def test_a_full_local_volume_ends_the_job_and_loses_nothing(home, truth, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small volume needs root")
    small = tmp_path / "small"
    small.mkdir()
    process = home.start("--local-dir", str(small), within=with_a_volume_at(small))
    home.wait_for_checkpoints(1)
    fill(Path(f"/proc/{process.pid}/root{small}/filler"))
    assert process.wait(120) == 7, home.log()
    assert "full" in home.log() or "No space left" in home.log()
    assert not any(small.iterdir())
    home.run()
    assert judge(home.path, truth) == []


def with_a_volume_at(path: Path) -> list[str]:
    """Mounts 64 MB for the job alone: the mount is gone with its processes, whoever killed them."""
    script = 'mount -t tmpfs -o size=64m tmpfs "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(path)]


def fill(path: Path) -> None:
    """Leave no byte free on the volume."""
    with suppress(OSError), path.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 16))
