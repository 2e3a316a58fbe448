"""What becomes of a job's checkpoints when it ends: the manifest says so, and the driver acts."""

import contextlib
import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.checkpointed_job import OWNER
from msgspec.structs import replace

from moorage.driver.refusals import RestorePointNotFound
from moorage.driver.runner import _completed, _drive_run, _ended_well, _failed, run_job
from moorage.driver.settings import JobSettings
from moorage.driver.types import Orders, RunOptions, RunOutcome, RunResult
from moorage.engine.task_failures import SparkEnded, UserFunctionError
from moorage_api import StatefulSparkJob
from moorage_state.coordinator import (
    CheckpointRetentionPolicy,
    CompletedCheckpointStore,
    JobEnd,
)
from moorage_state.errors import StoreUnavailable, UserError
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Manifest,
    Owner,
    Run,
    retained,
)
from moorage_state.stores import LocalStore

AWAY = StoreUnavailable("away")
FAULT = UserFunctionError("count raised")


def failed_with(error):
    """What a run fails with that raises this."""

    def drive() -> None:
        raise error

    run: Any = SimpleNamespace(drive=drive)
    with pytest.raises(UserFunctionError) as told:
        _drive_run(run)
    return told.value


def caused_by_a_plain_one():
    """The job's own code, which called what refuses."""
    error = UserFunctionError("count raised")
    error.__cause__ = UserError("the lookup table is missing")
    return error


def job_of(tmp_path, checkpoint, **more):
    (tmp_path / "job.py").write_text("def build(env): pass\n")
    spec = {
        **more,
        "application": {"mainFile": f"local://{tmp_path}/job.py"},
        "scaling": {"parallelism": 1},
        "state": {"checkpointDir": f"file://{tmp_path}/state"},
        "checkpoint": checkpoint,
    }
    manifest = {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "StatefulSparkJob",
        "metadata": {"name": "clicks"},
        "spec": spec,
    }
    return StatefulSparkJob.model_validate(manifest)


def settings_of(tmp_path, checkpoint):
    return JobSettings.of(job_of(tmp_path, checkpoint), tmp_path)


@pytest.mark.parametrize(
    ("named", "policy"),
    [
        ("RetainOnCancellation", CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION),
        ("DeleteOnCancellation", CheckpointRetentionPolicy.RETAIN_ON_FAILURE),
        ("NoExternalizedCheckpoints", CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION),
    ],
)
def test_the_manifest_says_what_becomes_of_them(tmp_path, named, policy):
    checkpoint = {"externalizedCheckpointRetention": named}
    assert settings_of(tmp_path, checkpoint).retention is policy


def test_where_the_manifest_does_not_say_they_stay_at_every_end(tmp_path):
    assert settings_of(tmp_path, {}).retention is None


class Ended:
    """A job with two checkpoints, at its end."""

    def __init__(self, job: Any, policy: CheckpointRetentionPolicy | None) -> None:
        for item in "ab":
            job.commit(item)
            job.due()
            job.settle()
        self.log = job.writer
        self.said: list[str] = []
        completed = CompletedCheckpointStore(
            job.writer, CheckpointStore(job.objects), retention=policy
        )
        self.context: Any = SimpleNamespace(
            completed=completed,
            reporter=SimpleNamespace(message=self.said.append),
        )

    @property
    def left(self) -> int:
        return len(retained(self.log.entries))


@pytest.fixture
def ended(make_job):
    return lambda policy: Ended(make_job(), policy)


@pytest.mark.parametrize("policy", CheckpointRetentionPolicy)
def test_a_job_whose_input_ended_leaves_none(ended, policy):
    job = ended(policy)
    _ended_well(job.context, RunOutcome.FINISHED)
    assert job.left == 0
    (said,) = job.said
    assert "as checkpoint.externalizedCheckpointRetention says: checkpoints=2" in said


@pytest.mark.parametrize("policy", CheckpointRetentionPolicy)
def test_a_job_that_was_told_to_stop_goes_on_from_them(ended, policy):
    job = ended(policy)
    _ended_well(job.context, RunOutcome.STOPPED)
    assert (job.left, job.said) == (2, [])


@pytest.mark.parametrize(
    ("error", "orders", "left"),
    [
        (FAULT, None, 0),
        (SparkEnded("spark is gone"), None, 2),
        (StoreUnavailable("down"), None, 2),
        # What does not belong in its directory is no fault of the job's code.
        (failed_with(UserError("unexpected object in the log: move it away")), None, 2),
        (failed_with(caused_by_a_plain_one()), None, 0),
        # The operator starts it again.
        (FAULT, Orders("prod", "uid-1", "driver"), 2),
    ],
)
def test_a_job_ends_for_good_only_by_a_fault_of_its_own(ended, error, orders, left):
    job = ended(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
    _failed(job.context, RunOptions(orders=orders), error)
    assert job.left == left


@pytest.mark.parametrize(
    "policy",
    [
        CheckpointRetentionPolicy.RETAIN_ON_FAILURE,
        CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
    ],
)
def test_a_failed_job_keeps_what_it_may_need(ended, policy):
    job = ended(policy)
    _failed(job.context, RunOptions(), FAULT)
    assert job.left == 2


def test_a_store_that_is_down_changes_nothing_of_how_the_job_ended(ended, monkeypatch):
    job = ended(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)

    def away(_entry: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(job.log, "append", away)
    _ended_well(job.context, RunOutcome.FINISHED)
    assert job.left == 2
    (said,) = job.said
    assert said.startswith("checkpoints of the ended job could not be deleted: away; the next sta")


def test_a_driver_that_was_replaced_deletes_nothing_and_has_ended_all_the_same(make_job):
    played = make_job()
    job = Ended(played, CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
    LogWriter.claim(played.objects, OWNER, "the next")
    _failed(job.context, RunOptions(), FAULT)
    assert job.left == 2
    assert "another writer took over" in job.said[0]


def test_without_a_word_in_the_manifest_the_end_asks_nothing_of_the_store(make_job, monkeypatch):
    played = make_job()
    job = Ended(played, None)
    monkeypatch.setattr(CheckpointStore, "retire", None)
    _ended_well(job.context, RunOutcome.FINISHED)
    assert (job.left, job.said) == (2, [])


class Finished:
    """A job with two checkpoints that comes to its end in a pod that nobody hears of any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects = LocalStore(path / "state", create=True)
        self.writer = LogWriter.claim(
            self.objects, Owner("prod", "default", "clicks", "uid-1"), "d"
        )
        self.checkpoints = CheckpointStore(self.objects)
        self.writer.append(Run(self.writer.fence, 0))
        for number in (1, 2):
            made = replace(self.manifest(), checkpoint_id=number, epoch=number)
            self.checkpoints.complete(self.writer, made, made.created_at)

    def manifest(self) -> Manifest:
        return Manifest(
            kind="checkpoint",
            name="",
            lineage=self.writer.lineage,
            checkpoint_id=0,
            epoch=0,
            fence=self.writer.fence,
            run=0,
            created_at=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
            job_name="clicks",
            moorage_version="0",
            max_parallelism=128,
            key_hash="spark-xxhash64",
            operators={},
            source={},
            watermarks={},
            sinks={},
            extra={},
        )

    def end(self) -> None:
        policy = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
        CompletedCheckpointStore(self.writer, self.checkpoints, 1, policy).shutdown(JobEnd.FINISHED)

    def start(self, *, bounded: bool = True, **options: Any) -> RunResult:
        retention = {"externalizedCheckpointRetention": "RetainOnCancellation"}
        job = job_of(self.path, retention, bounded=bounded)
        orders = Orders("prod", "uid-1", "the next driver")
        given = RunOptions(orders=orders, **options)
        return run_job(job, self.path, given, lambda _progress: None)

    @property
    def left(self) -> list[str]:
        return [info.key for info in self.objects.list("chk-")]


@pytest.fixture
def finished(tmp_path):
    return Finished(tmp_path)


def test_the_next_driver_of_a_job_that_finished_unheard_says_so(finished):
    finished.end()
    for _ in range(2):
        result = finished.start()
        assert (result.outcome, result.already, result.epoch) == (RunOutcome.FINISHED, True, 2)
        assert result.restored_from is None


def test_the_next_driver_deletes_what_a_finished_one_had_no_time_for(finished, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "delete_many", lambda _store, keys: dict.fromkeys(keys, AWAY))
        with pytest.raises(StoreUnavailable):
            finished.end()
    assert len(finished.left) == 2
    assert finished.start().already
    assert finished.left == []


def test_a_finished_job_that_is_to_read_on_is_told_that_its_state_is_gone(finished):
    finished.end()
    with pytest.raises(RestorePointNotFound, match="every checkpoint of this lineage was retired"):
        finished.start(bounded=False)


def test_the_end_of_a_finished_job_is_told_when_its_checkpoints_are_gone(finished, monkeypatch):
    """Whoever ends the process on that word ends no deletion."""

    @contextlib.contextmanager
    def opened(settings: Any, _options: Any, writer: Any, store: Any, reporter: Any) -> Any:
        completed = _completed(settings, writer, store)
        yield SimpleNamespace(completed=completed, reporter=reporter)

    monkeypatch.setattr("moorage.driver.runner._context", opened)
    monkeypatch.setattr("moorage.driver.runner._drive", lambda *_args: (RunOutcome.FINISHED, None))
    left_then: list[list[str]] = []
    finished.start(ended=lambda _result: left_then.append(finished.left))
    assert left_then == [[]]
