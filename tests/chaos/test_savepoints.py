"""Savepoints of running jobs: taken when asked, moved elsewhere, restored, gone on from."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from moorage_testing.batches import (
    KEYS,
    UNBOUNDED,
    add_batch,
    counted,
    published,
    run_until,
    start_and_wait,
    stop,
)

from moorage_state.snapshots import SavepointStore

COUNTING_JOB = Path(__file__).parent / "counting_job.py"

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "events"
    for number in (0, 1):
        add_batch(path, number)
    return path


def reading(folder: Path, path: Path) -> dict[str, object]:
    args = [str(path), str(folder)]
    return {**UNBOUNDED, "application": {"mainFile": f"local://{COUNTING_JOB}", "args": args}}


def with_savepoints(folder: Path, path: Path) -> dict[str, object]:
    return {
        **reading(folder, path),
        "state": {
            "checkpointDir": f"file://{path}/checkpoints",
            "savepointDir": f"file://{path}/savepoints",
        },
    }


def savepoint(home, name: str, *arguments: str, expect: int = 0) -> str:
    command = [sys.executable, "-m", "moorage.cli", "savepoint", "job.yaml", name, *arguments]
    done = subprocess.run(
        command, cwd=home.path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == expect, f"{done.stderr}\n{home.log()}"
    return done.stdout.strip() if expect == 0 else done.stderr


@pytest.mark.soak
@pytest.mark.parametrize(
    "restored",
    [
        pytest.param([("readable", 3)], id="canonical"),
        pytest.param([("own-files", 1)], id="native"),
    ],
)
def test_savepoints_of_a_running_job_restore_elsewhere_at_another_parallelism(
    make_home, tmp_path, folder, restored
):
    home = make_home("job", folder, **with_savepoints(folder, tmp_path / "job"))
    process = start_and_wait(home, 4)
    canonical = savepoint(home, "readable")
    native = savepoint(home, "own-files", "--native")
    assert "is not empty" in savepoint(home, "readable", expect=2)
    add_batch(folder, 2)
    stop(home, process)
    assert "does not run on this machine" in savepoint(home, "late", expect=2)
    moved = tmp_path / "moved"
    for address in (canonical, native):
        shutil.move(address.removeprefix("file://"), moved / address.rpartition("/")[2])
    for name, subtasks in restored:
        SavepointStore(f"file://{moved}/{name}").verify(full=True)
        spec = reading(folder, tmp_path / name)
        other = make_home(name, folder, **spec, scaling={"parallelism": subtasks})
        run_until(other, 6, "--restore", f"file://{moved}/{name}")
        assert published(other) == [(key, n) for key in KEYS for n in (5, 6)]


def test_a_job_stops_with_a_savepoint_and_goes_back_and_on_from_it(make_home, tmp_path, folder):
    home = make_home("job", folder, **with_savepoints(folder, tmp_path / "job"))
    process = start_and_wait(home, 4)
    address = savepoint(home, "before", "--stop")
    assert process.wait(60) == 0, home.log()
    assert published(home) == [(key, n) for key in KEYS for n in range(1, 5)]
    add_batch(folder, 2)
    run_until(home, 6)
    add_batch(folder, 3)
    spec = with_savepoints(folder, tmp_path / "job")
    home.write_manifest(COUNTING_JOB, **spec, scaling={"parallelism": 3})
    run_until(home, 8, "--restore", address)
    assert f"restored from {address}" in home.log()
    assert set(counted(home).values()) == {8}
    assert published(home) == [(key, n) for key in KEYS for n in range(1, 9)]
