"""What becomes of a job's checkpoints when it ends: the manifest says so, and the driver acts."""

from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.checkpointed_job import OWNER

from moorage.driver.environment import SparkEnded
from moorage.driver.runner import _drive_run, _ended_well, _failed
from moorage.driver.settings import JobSettings
from moorage.driver.types import Orders, RunOptions, RunOutcome
from moorage.engine.task_failures import UserFunctionError
from moorage_api import StatefulSparkJob
from moorage_state.coordinator import CheckpointRetentionPolicy, CompletedCheckpointStore
from moorage_state.errors import StoreUnavailable, UserError
from moorage_state.snapshots import CheckpointStore, LogWriter, retained

FAULT = UserFunctionError("count raised")


def refused_by_the_store():
    """As a run fails that meets what does not belong in its directory."""

    def drive() -> None:
        raise UserError("unexpected object in the log: path=log/.DS_Store; move it away")

    run: Any = SimpleNamespace(drive=drive)
    try:
        _drive_run(run)
    except UserFunctionError as error:
        return error
    raise AssertionError


def settings_of(tmp_path, checkpoint):
    (tmp_path / "job.py").touch()
    spec = {
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
    return JobSettings.of(StatefulSparkJob.model_validate(manifest), tmp_path)


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
        (refused_by_the_store(), None, 2),
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
    assert job.said == ["checkpoints of the ended job could not be deleted: away"]


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
