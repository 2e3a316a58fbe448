"""The same job over every state backend, in processes of its own."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from moorage_testing.jobs import JobHome, kill_group, write_events
from moorage_testing.oracle import expected, judge, newest_manifest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

TOTALS = Path(__file__).parent / "totals_job.py"
COUNTING = Path(__file__).parents[2] / "chaos" / "counting_job.py"
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


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap", "batch"])
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
        assert rows(home.out) == truth(events)[0]


def test_state_in_memory_survives_the_death_of_its_job(job, events):
    home = job("killed", file=COUNTING, state={"backend": "hashmap"})
    process = home.start()
    home.wait_for_checkpoints(2)
    kill_group(process)
    home.run()
    assert judge(home.path, expected(events)) == []
    handles = newest_manifest(home.checkpoints).operators["count"].subtasks
    assert {ref.name for handle in handles for ref in handle.files} == {"state.heap"}


def test_a_job_changes_its_backend_over_a_checkpoint(job, events):
    home = job("changed", file=COUNTING, state={"backend": "rocksdb"})
    process = home.start()
    home.wait_for_checkpoints(2)
    kill_group(process)
    place = {"checkpointDir": f"file://{home.checkpoints}", "backend": "hashmap"}
    home.write_manifest(COUNTING, state=place)
    home.run()
    assert judge(home.path, expected(events)) == []


def test_batch_refuses_a_restore_point_with_state(job):
    home = job("refused", file=COUNTING, state={"backend": "rocksdb"})
    process = home.start()
    home.wait_for_checkpoints(2)
    kill_group(process)
    home.write_manifest(
        COUNTING, state={"checkpointDir": f"file://{home.checkpoints}", "backend": "batch"}
    )
    log = home.run(expect=2)
    assert "the backend batch reads no state" in log


def test_a_wrong_option_is_told_before_anything_starts(job):
    options = {"state.backend.rocksdb.writebuffer.size": "lots"}
    home = job("wrong", state={"options": options})
    log = home.run(expect=2)
    assert "key=state.backend.rocksdb.writebuffer.size value='lots'" in log.replace("\n", " ")
    assert not home.checkpoints.exists()
