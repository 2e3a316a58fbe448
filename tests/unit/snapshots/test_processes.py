"""Writers in real processes: stalled, killed, and racing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moorage_state.errors import AlreadyExists
from moorage_state.failpoints import PLACES
from moorage_state.snapshots import (
    CheckpointStore,
    Fence,
    LineageLog,
    LogWriter,
    Manifest,
    Owner,
    Run,
    retained,
    sweep,
)
from moorage_state.stores import LocalStore

WRITER = Path(__file__).with_name("writer_process.py")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_writer() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, failpoint: str = "") -> "subprocess.Popen[str]":
        path = os.pathsep.join(sys.path)
        process = subprocess.Popen(
            [sys.executable, str(WRITER), *args],
            env={**os.environ, "PYTHONPATH": path, "MOORAGE_FAILPOINT": failpoint},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until_stopped(process: "subprocess.Popen[str]") -> None:
    state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert state is not None
    assert state.si_code == os.CLD_STOPPED, "the process ended in place of stopping"


@pytest.mark.scenario(35)
def test_a_writer_stalled_between_its_last_read_and_its_put_appends_nothing(
    start_writer: Start, directory: LocalStore, owner: Owner
) -> None:
    # Its puts are: the owner, the fence, the run.
    stalled = start_writer("claim", directory.url, "stalled", failpoint="log.before_put:stop:3")
    wait_until_stopped(stalled)
    second = LogWriter.claim(directory, owner, "second")
    second.append(Run(2, 0))
    before = LineageLog.open(directory).read()

    stalled.send_signal(signal.SIGCONT)
    output, _ = stalled.communicate(timeout=60)

    assert output.startswith("claimed 1\nfenced: another writer took over")
    assert "fence=2 holder='second' own_fence=1" in output
    assert LineageLog.open(directory).read() == before
    assert second.append(Run(2, 1)) == len(before) + 1


def test_a_writer_stalled_in_its_claim_gets_a_fence_of_its_own(
    start_writer: Start, directory: LocalStore, owner: Owner
) -> None:
    stalled = start_writer("claim", directory.url, "stalled", failpoint="log.before_put:stop:2")
    wait_until_stopped(stalled)
    second = LogWriter.claim(directory, owner, "second")
    second.append(Run(1, 0))
    stalled.send_signal(signal.SIGCONT)
    output, _ = stalled.communicate(timeout=60)
    assert output == "claimed 2\nappended\n"
    kinds = [entry for _, entry in LineageLog.open(directory).read()][1:]
    assert kinds == [Fence(1, "second"), Run(1, 0), Fence(2, "stalled"), Run(2, 0)]


@pytest.mark.parametrize("place", ["log.before_put", "log.after_put"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_writer_killed_at_any_put_leaves_a_log_to_go_on_with(
    start_writer: Start, directory: LocalStore, owner: Owner, place: str, nth: int
) -> None:
    killed = start_writer("claim", directory.url, "killed", failpoint=f"{place}:kill:{nth}")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    written = nth - (place == "log.before_put")
    assert len(LineageLog.open(directory).read()) == written
    successor = LogWriter.claim(directory, owner, "successor")
    assert successor.fence == (2 if written >= 2 else 1)
    successor.append(Run(successor.fence, 0))


NONE = timedelta(0)


def keys(store: LocalStore) -> set[str]:
    return {info.key for info in store.list("") if not info.key.startswith("log/")}


@pytest.mark.parametrize("place", ["complete.before_manifest", "complete.after_manifest"])
def test_a_stalled_writer_cannot_bring_a_retired_checkpoint_back(
    start_writer: Start,
    directory: LocalStore,
    owner: Owner,
    new_manifest: Callable[..., Manifest],
    place: str,
) -> None:
    stalled = start_writer("complete", directory.url, "stalled", failpoint=f"{place}:stop:1")
    wait_until_stopped(stalled)
    second = LogWriter.claim(directory, owner, "second")
    checkpoints = CheckpointStore(directory)
    first_id = checkpoints.next_id(second.entries)
    # Nothing tells the second writer of a checkpoint whose manifest is not there yet: same id.
    assert first_id == (1 if place == "complete.before_manifest" else 2)
    for checkpoint_id in (first_id, first_id + 1):
        last = new_manifest(checkpoint_id, writer=second, store=directory)
        checkpoints.complete(second, last, datetime.now(UTC))
    checkpoints.retire(second, 1)
    sweep(directory, second, age_floor=NONE)
    expected = {f"chk-{first_id + 1}/MANIFEST", *last.keys}
    assert keys(directory) == expected
    entries = second.entries

    stalled.send_signal(signal.SIGCONT)
    output, _ = stalled.communicate(timeout=60)

    assert output == "fenced: checkpoint=1\n"
    second.refresh()
    assert second.entries == entries
    assert [c.checkpoint_id for c in retained(entries)] == [first_id + 1]
    orphans = keys(directory) - expected
    assert orphans == ({"chk-1/MANIFEST"} if place == "complete.before_manifest" else set())
    loaded = checkpoints.load_latest(second.entries)
    assert loaded is not None
    assert loaded.manifest == last
    assert CheckpointStore(directory).next_id(second.entries) == first_id + 2
    CheckpointStore(directory).retire(second, 1)
    sweep(directory, second, age_floor=NONE)
    assert keys(directory) == expected


def test_an_orphan_of_a_stalled_writer_costs_its_successor_only_the_id(
    start_writer: Start, directory: LocalStore, owner: Owner, new_manifest: Callable[..., Manifest]
) -> None:
    stalled = start_writer(
        "complete", directory.url, "stalled", failpoint="complete.before_manifest:stop:1"
    )
    wait_until_stopped(stalled)
    second = LogWriter.claim(directory, owner, "second")
    checkpoints = CheckpointStore(directory)
    chosen = checkpoints.next_id(second.entries)
    stalled.send_signal(signal.SIGCONT)
    output, _ = stalled.communicate(timeout=60)
    assert output == "fenced: checkpoint=1\n"
    with pytest.raises(AlreadyExists):
        checkpoints.complete(second, new_manifest(chosen, writer=second), datetime.now(UTC))
    last = new_manifest(chosen + 1, writer=second, store=directory)
    checkpoints.complete(second, last, datetime.now(UTC))
    sweep(directory, second, age_floor=NONE)
    assert keys(directory) == {"chk-2/MANIFEST", *last.keys}


@pytest.mark.parametrize("place", sorted(p for p in PLACES if p.startswith("complete")))
def test_a_writer_killed_while_it_completes_leaves_a_checkpoint_or_garbage(
    start_writer: Start,
    directory: LocalStore,
    owner: Owner,
    new_manifest: Callable[..., Manifest],
    place: str,
) -> None:
    killed = start_writer("complete", directory.url, "killed", failpoint=f"{place}:kill:1")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    successor = LogWriter.claim(directory, owner, "successor")
    exists = [c.checkpoint_id for c in retained(successor.entries)]
    assert exists == ([1] if place == "complete.after_entry" else [])
    next_id = CheckpointStore(directory).next_id(successor.entries)
    last = new_manifest(next_id, writer=successor, store=directory)
    CheckpointStore(directory).complete(successor, last, datetime.now(UTC))
    sweep(directory, successor, age_floor=NONE)
    manifests = {f"chk-{checkpoint_id}/MANIFEST" for checkpoint_id in (*exists, next_id)}
    assert keys(directory) == {*manifests, *last.keys}


def test_racing_processes_leave_no_gap_and_share_no_fence(
    start_writer: Start, directory: LocalStore
) -> None:
    racers = [start_writer("race", directory.url, f"racer-{n}", "300") for n in range(2)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    appended = fenced = 0
    for racer in racers:
        output, _ = racer.communicate(timeout=120)
        assert racer.returncode == 0
        counts = [int(word) for word in output.split()]
        appended, fenced = appended + counts[0], fenced + counts[1]

    entries = [entry for _, entry in LineageLog.open(directory).read()]
    fences = [entry.fence for entry in entries if isinstance(entry, Fence)]
    assert fences == list(range(1, len(fences) + 1))
    assert sum(isinstance(entry, Run) for entry in entries) == appended
    assert fenced > 0, "the racers never met"
    holding = 0
    for entry in entries[1:]:
        assert isinstance(entry, Fence | Run)
        assert isinstance(entry, Fence) or entry.fence == holding
        holding = entry.fence
