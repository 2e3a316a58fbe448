"""The same job over every state backend, in processes of its own."""

import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from moorage_testing.jobs import JobHome, kill_group, write_events
from moorage_testing.oracle import newest_manifest

from moorage_state.server import UploadLimits
from moorage_state.snapshots import FileRef

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

TOTALS = Path(__file__).parent / "totals_job.py"
KEYS = 300


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    home = tmp_path_factory.mktemp("events")
    write_events(home, files=4, rows=2_000, keys=KEYS)
    return home / "in"


@pytest.fixture
def job(tmp_path, events):
    """Makes homes of jobs; nothing of them is left when the test ends."""
    made = []

    def make(name, file=TOTALS, state=None, **spec):
        place = {"checkpointDir": f"file://{tmp_path / name}/checkpoints"}
        made.append(
            JobHome.make(tmp_path / name, file, events, state=place | (state or {}), **spec)
        )
        return made[-1]

    yield make
    for home in made:
        home.end()


def rows(folder):
    tables = [pq.read_table(path).to_pylist() for path in sorted(folder.glob("part-*.parquet"))]
    return sorted(tuple(row.values()) for table in tables for row in table)


def truth(events):
    """Rows of both sinks, of the files alone."""
    tables = [pq.read_table(path) for path in sorted(events.glob("*.parquet"))]
    keys = np.concatenate([table["key"].to_numpy() for table in tables])
    values = np.concatenate([table["value"].to_numpy() for table in tables])
    totals = sorted(
        (int(key), int((keys == key).sum()), int(values[keys == key].sum()), int(max(mine)))
        for key in np.unique(keys)
        if len(mine := values[keys == key])
    )
    return totals, sorted(Counter(count for _, count, _, _ in totals).items())


@pytest.mark.parametrize(
    "backend",
    [
        # These two over one another, and killed in between, are below.
        pytest.param("rocksdb", marks=pytest.mark.soak),
        pytest.param("hashmap", marks=pytest.mark.soak),
        "forst",
        "batch",
    ],
)
def test_every_backend_gives_the_same_answer(job, events, backend):
    home = job(backend, state={"backend": backend})
    log = home.run()
    assert (rows(home.out), rows(home.path / "counts")) == truth(events)
    assert "finished" in log
    epochs = newest_manifest(home.checkpoints).epoch
    # A file at a time, and time is drained; or all of it at once, whatever the source says.
    assert epochs == 1 if backend == "batch" else epochs >= 4
    if backend == "batch":
        assert len(home.completed()) == 1
        assert "nothing is left to do" in home.run()
        shutil.rmtree(home.checkpoints)
        refusal = home.run(expect=2)
        assert "other_lineage=" in refusal
        assert "other_lineages='keep'" in refusal
        assert (rows(home.out), rows(home.path / "counts")) == truth(events)
        assert home.completed() == []
        assert rows(home.out) == truth(events)[0]


@dataclass(frozen=True)
class Course:
    """One job over one backend after the other, twice killed in between.

    Attributes:
        refusal: what a run with the backend batch said.
        files: the files of state, over RocksDB and in memory, where the driver keeps them.
        answer: the rows of both sinks in the end.
        truth: what they ought to be.
    """

    refusal: str
    files: list[list[FileRef]]
    answer: tuple[list, list]
    truth: tuple[list, list]


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    base = tmp_path_factory.mktemp("changed")
    write_events(base, files=14, rows=500, keys=KEYS)
    place = {"checkpointDir": f"file://{base}/job/checkpoints"}
    spec = {"state": {**place, "backend": "rocksdb"}, "epoch": {"interval": "300ms"}}
    home = JobHome.make(base / "job", TOTALS, base / "in", **spec)
    try:
        files = [run_and_kill(home, 2)]
        home.write_manifest(TOTALS, state={**place, "backend": "batch"})
        refusal = home.run(expect=2)
        home.write_manifest(TOTALS, **(spec | {"state": {**place, "backend": "jobmanager"}}))
        files.append(run_and_kill(home, len(home.completed()) + 1))
        home.run()
        answer = rows(home.out), rows(home.path / "counts")
        return Course(refusal, files, answer, truth(base / "in"))
    finally:
        home.end()


def run_and_kill(home, checkpoints):
    """The files of state in the newest checkpoint of a run that is killed then."""
    process = home.start()
    home.wait_for_checkpoints(checkpoints)
    assert process.poll() is None, "it ended before it was killed"
    kill_group(process)
    return totals_files(home)


def totals_files(home):
    handles = newest_manifest(home.checkpoints).operators["totals"].subtasks
    return [ref for handle in handles for ref in handle.files]


def names(files):
    return {ref.name for ref in files}


@pytest.mark.soak
def test_a_job_changes_its_backend_over_a_checkpoint(changed):
    over_rocksdb, in_memory = changed.files
    assert "state.heap" not in names(over_rocksdb)
    assert names(in_memory) == {"state.heap"}
    assert changed.answer == changed.truth


@pytest.mark.soak
def test_a_killed_job_goes_on_from_state_that_lies_in_the_manifest_alone(changed):
    on_files, with_the_driver = changed.files
    assert any(ref.key for ref in on_files)
    assert all(ref.inline and not ref.key for ref in with_the_driver)
    # Too large for what `rocksdb` and `hashmap` put there.
    assert max(ref.size for ref in with_the_driver) > UploadLimits().inline_range
    assert changed.answer == changed.truth


@pytest.mark.soak
def test_batch_refuses_a_restore_point_with_state(changed):
    assert "the backend batch reads no state" in changed.refusal


STRANGER = {"backend": "sqlite_backend:SqliteStateBackend"}
BACKENDS = Path(__file__).parents[3] / "examples" / "backends"


@dataclass(frozen=True)
class Visit:
    """A job over a backend that it brings: killed, rescaled, and brought to RocksDB.

    Attributes:
        files: the files of state at the kill, and at another parallelism.
        subtasks: how many handles there were then.
        refusal: what a start with RocksDB over its last checkpoint said.
        answer: the rows of both sinks in the end, over RocksDB.
        truth: what they ought to be.
    """

    files: list[list[FileRef]]
    subtasks: int
    refusal: str
    answer: tuple[list, list]
    truth: tuple[list, list]


@pytest.fixture(scope="module")
def visited(tmp_path_factory):
    base = tmp_path_factory.mktemp("visited")
    write_events(base, files=30, rows=300, keys=KEYS)
    place = {
        "checkpointDir": f"file://{base}/job/checkpoints",
        "savepointDir": f"file://{base}/job/savepoints",
    }
    application = {
        "mainFile": f"local://{TOTALS}",
        "args": [str(base / "job")],
        "pyFiles": [f"local://{BACKENDS}"],
    }
    common = {"application": application, "epoch": {"interval": "500ms"}}
    own = common | {"state": place | STRANGER}
    home = JobHome.make(base / "job", TOTALS, base / "in", **own)
    try:
        files = [run_and_kill(home, 2)]
        home.write_manifest(TOTALS, **own, scaling={"parallelism": 3})
        process = home.start()
        home.wait_for_checkpoints(len(home.completed()) + 1)
        command = [sys.executable, "-m", "moorage.cli", "savepoint", "job.yaml", "over", "--stop"]
        address = subprocess.run(
            command, cwd=home.path, capture_output=True, text=True, timeout=120, check=True
        ).stdout.strip()
        assert process.wait(120) == 0, home.log()
        handles = newest_manifest(home.checkpoints).operators["totals"].subtasks
        files.append(totals_files(home))
        rocksdb = common | {"state": place | {"backend": "rocksdb"}}
        home.write_manifest(TOTALS, **rocksdb)
        refusal = home.run(expect=2)
        home.run("--restore", address)
        answer = rows(home.out), rows(home.path / "counts")
        return Visit(files, len(handles), refusal, answer, truth(base / "in"))
    finally:
        home.end()


@pytest.mark.soak
def test_a_backend_that_a_job_brings_keeps_its_state_in_its_own_files(visited):
    assert [names(files) for files in visited.files] == [{"state.sqlite"}, {"state.sqlite"}]
    assert visited.subtasks == 3


@pytest.mark.soak
def test_a_job_with_a_backend_of_its_own_is_killed_rescaled_and_brought_to_rocksdb(visited):
    assert visited.answer == visited.truth


@pytest.mark.soak
def test_the_checkpoint_of_a_backend_of_ones_own_is_not_opened_by_rocksdb(visited):
    assert "written_by=sqlite opened_by=rocksdb" in visited.refusal
    assert "take a canonical savepoint, and restore from that" in visited.refusal


def test_a_backend_that_is_not_there_is_named_before_anything_starts(job):
    home = job("absent", state={"backend": "no_such_module:Backend"})
    log = home.run(expect=2)
    assert "spec.state.backend (line " in log
    assert "there is no module no_such_module" in log
    assert not home.checkpoints.exists()


def test_a_wrong_option_is_told_before_anything_starts(job):
    options = {"state.backend.rocksdb.writebuffer.size": "lots"}
    home = job("wrong", state={"options": options})
    log = home.run(expect=2)
    assert "spec.state.options['state.backend.rocksdb.writebuffer.size'] (line " in log
    assert "has a wrong value: 'lots'; write a size like 64mb" in log
    assert not home.checkpoints.exists()
