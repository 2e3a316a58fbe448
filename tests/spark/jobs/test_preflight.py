"""A preflight's process, as the operator's pod starts it: what passes, what is said of the rest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from moorage_testing.jobs import write_events
from moorage_testing.savepoint_dirs import checkpoint, lineage
from moorage_testing.snapshot_worlds import job_meta, job_spec

from moorage_operator.lineages.pods import store_task_pod
from moorage_operator.lineages.requests import request_of
from moorage_operator.plan import StoreTask
from moorage_operator.ports import JobRefs
from moorage_state.stores import open_store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

COUNTING = Path(__file__).parents[2] / "chaos" / "counting_job.py"
ROOT = Path(__file__).parents[3]
PREFLIGHT = StoreTask("preflight-1", "Preflight")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Events, and a lineage with a checkpoint of another operator's state."""
    return made(tmp_path_factory.mktemp("preflight"))


def made(path, **changes):
    """The home with such a checkpoint."""
    write_events(path, files=1, rows=10, keys=2)
    store = open_store(f"file://{path}/state", create=True)
    checkpoint(store, lineage(store), 1, **changes)
    return path


def tried(home, job_file=COUNTING, store_task=PREFLIGHT, *, leave=False, **scaling):
    """The exit status and the answer of the pod's process."""
    spec = job_spec(
        application={"mainFile": f"local://{job_file}", "args": [str(home)]},
        state={"checkpointDir": f"file://{home}/state"},
        restore={"allowNonRestoredState": leave},
        upgrade={"mode": "LastCheckpoint", "preflight": True},
        scaling={"parallelism": 2, "maxParallelism": 16, **scaling},
    )
    job = JobRefs(job_meta(uid="job-uid"), spec)
    container = store_task_pod(job, request_of(job, store_task, "test"), 300)["spec"]["containers"]
    given = {one["name"]: one["value"] for one in container[0]["env"] if "value" in one}
    environ = {
        **os.environ,
        **given,
        "TMPDIR": str(home),
        "MOORAGE_TERMINATION_LOG": str(home / "message"),
        "PYTHONPATH": os.pathsep.join(str(ROOT / n) for n in ("backends", "runtime", "operator")),
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
    }
    assert container[0]["command"][3:] == ["python", "-m", "moorage.preflight"]
    command = [sys.executable, "-m", "moorage.preflight"]
    done = subprocess.run(command, env=environ, check=False, capture_output=True, timeout=150)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads((home / "message").read_text())


def test_a_job_that_could_start_passes_and_says_what_it_would_restore(home):
    before = sorted((home / "state").rglob("*"))
    status, answer = tried(home, leave=True)
    assert (status, answer["state"]) == (0, "Completed")
    assert answer["result"]["restore"] == "chk-1"
    assert "1 stateful operators, begins from chk-1" in answer["result"]["text"]
    assert "of whose objects none is missing (1)" in answer["result"]["text"]
    assert "drops state of counts" in answer["result"]["text"]
    # It takes hold of nothing: neither the lock nor the fence of what runs.
    assert sorted((home / "state").rglob("*")) == before
    assert not list(home.glob("moorage-preflight-*"))


def test_a_restore_point_that_lacks_an_object_is_refused_with_its_name(tmp_path):
    (lost,) = (made(tmp_path) / "state" / "chk-1").rglob("*CURRENT*")
    lost.unlink()
    status, answer = tried(tmp_path, leave=True)
    assert (status, answer["code"], answer["retryable"]) == (1, "restore_point_corrupt", False)
    assert f"file of the checkpoint is missing: path=file://{lost}" in answer["message"]


@pytest.mark.soak
def test_state_of_an_operator_that_has_another_uid_now_is_refused_as_by_a_start(home):
    status, answer = tried(home)
    assert (status, answer["code"], answer["retryable"]) == (1, "restore_point_incompatible", False)
    assert "no longer has: uids=['counts'] job=['count']" in answer["message"]
    assert "restore.uidMapping (counts: NEW_UID)" in answer["message"]


@pytest.mark.scenario(70)
@pytest.mark.soak
def test_output_that_another_sink_of_the_uid_staged_is_refused_as_by_a_start(tmp_path):
    staged = {"file": "part-1.parquet", "modified": 1, "bytes": 1, "rows": 1}  # of one on a store
    status, answer = tried(made(tmp_path, sinks={"out": [staged]}), leave=True)
    assert (status, answer["code"], answer["retryable"]) == (1, "restore_point_incompatible", False)
    assert "sink=out: the restore point covers output that a sink of another" in answer["message"]
    assert not (tmp_path / "out").exists()


def test_a_job_that_does_not_fit_its_restore_point_is_refused_before_spark_starts(home):
    status, answer = tried(home, maxParallelism=32)
    assert (status, answer["code"], answer["retryable"]) == (1, "restore_point_incompatible", False)
    assert "maxParallelism is fixed for a lineage: checkpoint=16 job=32" in answer["message"]


@pytest.mark.scenario(69)
def test_a_job_file_that_cannot_be_imported_is_refused_with_its_line(home):
    wrong = home / "wrong.py"
    wrong.write_text("import of_another_image\n\ndef build(env):\n    pass\n")
    status, answer = tried(home, wrong)
    assert (status, answer["code"]) == (1, "user_function")
    assert "line=1: ModuleNotFoundError: No module named 'of_another_image'" in answer["message"]


def test_a_restore_point_that_is_not_there_is_named(home):
    named = StoreTask("preflight-1", "Preflight", path=f"file://{home}/nothing")
    status, answer = tried(home, store_task=named)
    assert (status, answer["code"]) == (1, "restore_point_not_found")


def test_a_directory_that_has_lost_the_newest_checkpoint_is_no_empty_start(home):
    known = StoreTask("preflight-1", "Preflight", source=f"file://{home}/state/chk-7")
    status, answer = tried(home, store_task=known)
    assert (status, answer["code"]) == (1, "restore_point_not_found")
    assert "checkpoint=chk-7 newest there=chk-1" in answer["message"]
