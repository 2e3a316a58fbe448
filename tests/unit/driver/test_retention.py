"""What becomes of a job's checkpoints when it ends: the manifest says so, and the driver acts."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moorage_testing.checkpointed_job import OWNER
from moorage_testing.manifests import checkpoint_manifest
from msgspec.structs import replace

from moorage.cli.app import _summary
from moorage.driver.refusals import RestorePointNotFound
from moorage.driver.runner import _completed, _drive_run, _ended_well, _failed, run_job
from moorage.driver.settings import JobSettings
from moorage.driver.types import JobProgress, Orders, RunOptions, RunOutcome, RunResult
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
from moorage_state.snapshots import Finished as FinishedEntry
from moorage_state.stores import LocalStore

AWAY = StoreUnavailable("away")
FAULT = UserFunctionError("count raised")


def failed_with(error):
    """What a run fails with that raises this."""

    def drive() -> None:
        raise error

    run: Any = SimpleNamespace(drive=drive)
    with pytest.raises(UserFunctionError) as told:
        _drive_run(context=cast("Any", None), run=run)
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
            standby=None,
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


LEFT = "checkpoints of the ended job could not be deleted: away; "
LEFT_IN_LOG = "the next start of the job goes on from what is left: checkpoints="


@pytest.fixture
def unreachable(ended, monkeypatch):
    """A job at its end, whose store went away after so many writes to the log."""

    def make(writes: int) -> Ended:
        job = ended(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
        append, left = job.log.append, list(range(writes))

        def appended(entry: Any) -> Any:
            if not left:
                away()
            left.pop()
            return append(entry)

        def away() -> None:
            raise StoreUnavailable("away")

        monkeypatch.setattr(job.log, "append", appended)
        monkeypatch.setattr(job.log, "refresh", away)
        return job

    return make


@pytest.mark.parametrize(("writes", "left"), [(0, 2), (1, 2), (2, 1), (3, 0)])
def test_what_is_left_of_a_finished_job_goes_with_the_next_start(unreachable, writes, left):
    job = unreachable(writes)
    _ended_well(job.context, RunOutcome.FINISHED)
    assert (job.left, job.said) == (left, [f"{LEFT}the next start of the job deletes what is left"])


@pytest.mark.parametrize(("writes", "left"), [(0, 2), (1, 1)])
def test_the_next_start_of_a_failed_job_goes_on_from_what_is_left(unreachable, writes, left):
    job = unreachable(writes)
    _failed(job.context, RunOptions(), FAULT)
    assert (job.left, job.said) == (left, [f"{LEFT}{LEFT_IN_LOG}{left}"])


def test_of_a_failed_job_whose_log_has_no_checkpoint_only_garbage_is_left(unreachable):
    job = unreachable(2)
    _failed(job.context, RunOptions(), FAULT)
    assert job.left == 0
    (said,) = job.said
    assert said.endswith(
        "; nobody can go on from them, and moorage snapshots gc --delete deletes what is left"
    )


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
        self.reports: list[JobProgress] = []
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
        return checkpoint_manifest(self.writer.lineage, 0, fence=self.writer.fence)

    def last_checkpoint(self) -> None:
        """The job's last one, which says that it has finished."""
        made = replace(self.manifest(), checkpoint_id=3, epoch=3, extra={"finished": True})
        self.checkpoints.complete(self.writer, made, made.created_at)

    def end(self) -> None:
        policy = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
        CompletedCheckpointStore(self.writer, self.checkpoints, 1, policy).shutdown(JobEnd.FINISHED)

    def start(self, *, bounded: bool = True, **options: Any) -> RunResult:
        retention = {"externalizedCheckpointRetention": "RetainOnCancellation"}
        job = job_of(self.path, retention, bounded=bounded)
        orders = Orders("prod", "uid-1", "the next driver")
        given = RunOptions(orders=orders, **options)
        return run_job(job, self.path, given, self.reports.append)

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


@pytest.mark.parametrize("before", [(), (FinishedEntry,)], ids=["nothing", "that it finished"])
def test_a_job_whose_checkpoints_the_next_driver_deletes_says_that_none_is_left(finished, before):
    """The driver before was killed when the log had got this far, and no checkpoint had gone."""
    finished.last_checkpoint()
    for entry in before:
        finished.writer.append(entry(finished.writer.fence))
    result = finished.start()
    assert (result.already, result.epoch, finished.left) == (True, 3, [])
    assert (result.restored_from, result.last_checkpoint) == (None, None)
    last = finished.reports[-1]
    assert (last.phase, last.epoch, last.restored, last.restored_from) == (
        "finished",
        3,
        None,
        None,
    )
    assert "its checkpoints were deleted" in last.message
    summary = _summary(job_of(finished.path, {}), result)
    assert "at epoch 3, and none of its checkpoints is kept" in summary
    assert "--restore" not in summary


def test_a_finished_job_whose_checkpoints_cannot_be_deleted_names_what_is_left(
    finished, monkeypatch
):
    finished.last_checkpoint()

    def away(*_args: Any, **_options: Any) -> None:
        raise AWAY

    monkeypatch.setattr(CheckpointStore, "retire", away)
    result = finished.start()
    assert (result.already, result.restored_from, len(finished.left)) == (True, "chk-3", 3)
    assert "go back with --restore chk-<id>" in _summary(job_of(finished.path, {}), result)


def test_a_finished_job_that_is_to_read_on_is_told_that_its_state_is_gone(finished):
    finished.end()
    with pytest.raises(RestorePointNotFound, match="every checkpoint of this lineage was retired"):
        finished.start(bounded=False)


def test_the_end_of_a_finished_job_is_told_when_its_checkpoints_are_gone(finished, monkeypatch):
    """Whoever ends the process on that word ends no deletion."""

    @contextlib.contextmanager
    def warm(*_args: Any) -> Any:
        yield SimpleNamespace(lead=lambda _writer: None)

    @contextlib.contextmanager
    def opened(settings: Any, _options: Any, writer: Any, store: Any, reporter: Any, _: Any) -> Any:
        completed = _completed(settings, writer, store)
        yield SimpleNamespace(completed=completed, reporter=reporter, standby=None)

    monkeypatch.setattr("moorage.driver.runner._warm", warm)
    monkeypatch.setattr("moorage.driver.runner._context", opened)
    monkeypatch.setattr("moorage.driver.runner._drive", lambda *_args: (RunOutcome.FINISHED, None))
    left_then: list[list[str]] = []
    finished.start(ended=lambda _result: left_then.append(finished.left))
    assert left_then == [[]]
