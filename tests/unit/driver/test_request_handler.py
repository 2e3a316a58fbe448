"""What a running job does of what it is asked for; the query and its epochs are played."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError

from moorage.driver.environment import RangesMove, StoppedWaiting
from moorage.driver.query import Liveness
from moorage.driver.request_handler import RequestHandler
from moorage.driver.requests import (
    CheckpointRequest,
    JobRequest,
    Requests,
    RescaleRequest,
    SampleRequest,
    SavepointRequest,
    Stopped,
    StopRequest,
)
from moorage.driver.samples import OutputSamples
from moorage.driver.stream_run import StreamRun, Ticking
from moorage.driver.types import RunOutcome
from moorage.driver.views import (
    CheckpointView,
    ExecutorsView,
    SampleView,
    SavepointView,
    WatermarkView,
)
from moorage.engine.event_time import InputClock, JobClocks, Watermarks
from moorage.engine.range_access import ExecutorLost
from moorage.engine.samples import Sampling
from moorage.engine.task_failures import SparkEnded
from moorage_state.coordinator import CheckpointRetentionPolicy, CompletedCheckpointStore
from moorage_state.errors import Fenced, MoorageError, Retryable, StoreUnavailable, UserError
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    LineageLog,
    LogWriter,
    Owner,
    Released,
    Retire,
)
from moorage_state.stores import MemoryStore

from .test_restore_point import manifest as new_manifest
from .test_savepoints import NOW

LAST = CheckpointView(7, 41, NOW, 10, 10, 0.1)
VIEW = SavepointView("last", "s3://sp/last", 8, 41, 99, 1.5)


class Checkpoints:
    """A checkpointer that does what the test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.finish_error: MoorageError | None = None
        self.savepoint_answer: Any = VIEW
        self.suspended: list[JobRequest] = []
        self.broken = False
        self.takes_savepoint = False
        self.last = None
        self.job_ends: bool | None = None
        self.looked_within = threading.Event()

    def within_epoch(self) -> None:
        self.looked_within.set()

    def poll(self, *_args: Any) -> list[Any]:
        return []

    def checkpoint(self, request: CheckpointRequest, _at: Any) -> None:
        self.did.append("checkpoint")
        request.running()
        self.suspended.append(request)

    def savepoint(self, request: SavepointRequest, _at: Any) -> None:
        self.did.append(f"savepoint {request.name}")
        request.running()
        if self.savepoint_answer is None:
            self.suspended.append(request)
        else:
            request.answer(self.savepoint_answer)

    def wait(self, _at: Any, give_up: Any = None) -> list[Any]:
        if self.savepoint_answer is None:
            assert give_up()
        return []

    def finish(self, *_args: Any, **_kwargs: Any) -> list[Any]:
        self.did.append("finish")
        if self.finish_error is not None:
            error, self.finish_error = self.finish_error, None
            raise error
        return []

    def finish_chores(self, *, job_finished: bool) -> None:
        pass

    def go_on(self) -> None:
        self.did.append("go on")

    def abandon(self, *, job_ends: bool = False) -> None:
        self.job_ends = job_ends

    def take_suspended(self) -> list[JobRequest]:
        suspended, self.suspended = self.suspended, []
        return suspended


class Environment:
    """Remembers what it is scaled to."""

    def __init__(self) -> None:
        self.scaled: list[int] = []

    def scale(self, executors: int) -> None:
        if executors > 9:
            raise UserError("not so many")
        self.scaled.append(executors)

    def executors(self) -> ExecutorsView:
        return ExecutorsView()


class Reports:
    """Remembers phases."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.was_released = False
        self.clocks: list[int] = []
        self.marks: list[tuple[WatermarkView, ...]] = []
        self.progress = SimpleNamespace(last_checkpoint=LAST)

    def phase(self, phase: str, message: str = "") -> None:
        self.phases.append(f"{phase} {message}".strip())

    def clock(self, behind_ms: int) -> None:
        self.clocks.append(behind_ms)

    def watermarks(self, found: tuple[WatermarkView, ...]) -> None:
        self.marks.append(found)

    def released(self) -> None:
        self.was_released = True

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_kwargs: None


def raises(error: Exception) -> Any:
    """A function that does."""

    def refuse(*_arguments: Any) -> None:
        raise error

    return refuse


class Query:
    """A query that runs until it is stopped, and goes on for so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.stopped = False

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        self.looks -= 1
        return self.looks > 0 and not self.stopped

    def stop(self) -> None:
        self.stopped = True

    def exception(self) -> None:
        return None


class Spark:
    """Has nothing to say, and lets an epoch end that is cancelled."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.cancelled = threading.Event()

    def cancelAllJobs(self) -> None:  # noqa: N802 - Spark's name
        self.cancelled.set()


class Running:
    """A run whose stream does nothing."""

    def __init__(self, looks: int = 50, retention: CheckpointRetentionPolicy | None = None) -> None:
        self.store = MemoryStore(f"asked-{id(self)}")
        self.writer = LogWriter.claim(self.store, Owner("c", "n", "j", "u"), "test")
        self.requests, self.environment = Requests(), Environment()
        self.checkpoints, self.reports = Checkpoints(), Reports()
        self.stop = threading.Event()
        self.moves = False
        self.query = Query(looks)
        run: Any = object.__new__(StreamRun)
        self.spark = Spark()
        run._c = SimpleNamespace(
            spark=self.spark,
            settings=SimpleNamespace(
                parallelism=4,
                max_parallelism=16,
                declared_parallelism=4,
                rescales_live=False,
                bounded=False,
                epoch_seconds=9.0,
                in_one_epoch=False,
            ),
            fleet=SimpleNamespace(wants_to_move=self.wants_to_move, refuse_lost=lambda: None),
            standby=None,
            writer=self.writer,
            reporter=self.reports,
            stop=self.stop,
            requests=self.requests,
            environment=self.environment,
            completed=CompletedCheckpointStore(
                self.writer, CheckpointStore(self.store), retention=retention
            ),
        )
        run._lock = threading.RLock()
        run._failure = None
        run._halted = False
        run._runs_epoch, run._epoch_changes = False, threading.Lock()
        run._number = 0
        run._last_look = float("inf")
        spark: Any = self.spark
        run._liveness = Liveness(spark, self.reports.lives, meanwhile=run._within_epoch)
        run._lost = None
        run._batch_id, run._first_batch = 0, None
        run._ticking = Ticking(timers=False, epoch_seconds=9.0)
        run._runner = SimpleNamespace(
            epoch=41,
            watermarks=Watermarks({}, {}),
            next_timer=0,
            clock_behind_ms=0,
            processing_time=lambda: 0,
            run=self.epoch,
            sampling=None,
        )
        self.in_epoch = threading.Event()
        run._checkpointer = self.checkpoints
        run._handler = RequestHandler(
            run._c, run._checkpointer, run._boundary, run._last_checkpoint, run._sample
        )
        run._start_query = lambda: self.query
        run._spark_dir = Path("nowhere")
        run._callback = SimpleNamespace(let_go=lambda: None)
        self.run: StreamRun = run

    def drive(self) -> RunOutcome:
        return self.run.drive()

    def epoch(self, _frame: Any) -> None:
        """An epoch that lasts until it is cancelled, and dies of that."""
        self.in_epoch.set()
        assert self.spark.cancelled.wait(20)
        raise UserError("spark could not run the epoch: Job 3 cancelled")

    @contextmanager
    def epoch_under_way(self) -> Iterator[None]:
        """In another thread, as Spark runs it."""
        ended: list[str] = []

        def on_batch() -> None:
            with suppress(Exception):
                self.run._on_batch(cast("Any", None), 1)
            ended.append("ended")

        thread = threading.Thread(target=on_batch)
        thread.start()
        assert self.in_epoch.wait(20)
        yield
        thread.join()
        assert ended

    def wants_to_move(self, *, busy: bool) -> bool:
        return self.moves and not busy

    def ask(self, request: Any) -> Any:
        return self.requests.ask(request)

    def entries(self) -> list[Any]:
        return [entry for _, entry in LineageLog.open(self.store).read()]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr("moorage.driver.stream_run._POLL_SECONDS", 0)


@pytest.fixture
def running():
    return Running()


def test_a_stop_takes_a_last_checkpoint_and_ends(running):
    request = running.ask(StopRequest())
    assert running.drive() is RunOutcome.STOPPED
    assert running.checkpoints.did == ["finish"]
    assert (request.wait(0).checkpoint, request.wait(0).savepoint) == (LAST, None)
    assert running.checkpoints.job_ends
    assert not [e for e in running.entries() if isinstance(e, Released)]


@pytest.mark.parametrize("at_once", [True, False])
def test_to_stop_ends_the_wait_for_the_sinks_of_the_run_before(at_once):
    running: Any = Running()
    running.run._number = 1
    running.run._output = SimpleNamespace(restore=lambda *_args: repeat("waiting"))
    if at_once:
        running.ask(StopRequest(mode="None"))
    else:
        running.stop.set()
    with pytest.raises(StoppedWaiting):
        running.run._restore_sinks(None)


def test_a_run_without_input_tells_of_a_clock_that_went_back(running):
    running.run._runner.clock_behind_ms = 90_000
    running.ask(StopRequest())
    running.drive()
    assert set(running.reports.clocks) == {90_000}


def test_between_two_epochs_a_lost_executor_is_not_left_for_the_next_one_to_find(running):
    def refuse_lost() -> None:
        raise ExecutorLost("executor=1")

    running.run._c.fleet.refuse_lost = refuse_lost
    with pytest.raises(ExecutorLost, match="executor=1"):
        running.drive()
    assert running.query.stopped


def test_a_run_that_lost_an_executor_asks_no_more_whether_subtasks_should_move(running):
    """Whether a lost one is gone is asked of itself, and a host without an address answers late."""
    running.run._c.fleet.refuse_lost = raises(ExecutorLost("executor=1"))
    running.run._c.fleet.wants_to_move = lambda **_: pytest.fail("asked")
    with pytest.raises(ExecutorLost, match="executor=1"):
        running.drive()


def test_a_lost_executor_does_not_hide_what_ended_the_run_before(running):
    running.run._c.fleet.refuse_lost = lambda: running.run._failure or pytest.fail("not asked")
    running.checkpoints.poll = raises(Fenced("another writer"))
    running.run._lost = ExecutorLost("executor=1")
    with pytest.raises(Fenced):
        running.drive()


def test_where_nobody_can_tell_what_is_lost_a_stop_is_not_kept_from_its_checkpoint(running):
    running.run._c.fleet.refuse_lost = raises(UserError("spark has ended"))
    running.ask(StopRequest())
    assert running.drive() is RunOutcome.STOPPED
    assert running.checkpoints.did == ["finish"]


def test_after_a_failure_at_a_boundary_bounded_input_is_not_drained_any_further(running):
    epochs: list[str] = []

    def epoch(_frame: Any) -> None:
        epochs.append("epoch")
        running.run._failure = ExecutorLost("executor=1")

    run = running.run
    run._c.settings.bounded = True
    run._ticking = Ticking(timers=True, epoch_seconds=9.0)
    run._runner.run, run._committed = epoch, lambda _outcome, _began: None
    running.query.looks = 1
    with pytest.raises(ExecutorLost):
        running.drive()
    assert epochs == ["epoch"]


def test_a_stop_with_a_savepoint_publishes_first(running):
    request = running.ask(StopRequest("Savepoint", SavepointRequest("last", stop=True)))
    assert running.drive() is RunOutcome.STOPPED
    assert running.checkpoints.did == ["finish", "savepoint last"]
    assert request.wait(0).savepoint == VIEW


def test_the_release_is_the_last_thing_in_the_log(running):
    request = running.ask(StopRequest(release=True, request_id="r-1"))
    running.drive()
    assert running.entries()[-1] == Released(1, "asked to stop: request=r-1")
    assert request.wait(0).released
    assert running.reports.was_released


@pytest.mark.parametrize("policy", CheckpointRetentionPolicy)
def test_a_job_that_is_cancelled_keeps_its_checkpoints_only_if_they_are_to_outlive_that(policy):
    running = Running(retention=policy)
    made = new_manifest(running.writer, 1)
    CheckpointStore(running.store).complete(running.writer, made, NOW)
    last = SavepointRequest("last", stop=True)
    running.ask(StopRequest("Savepoint", last, release=True, request_id="r-1"))
    running.drive()
    kept = policy is CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
    kinds = [type(entry) for entry in running.entries()]
    assert kinds[-2:] == ([Checkpoint, Released] if kept else [Retire, Released])
    assert bool([info.key for info in running.store.list("chk-")]) == kept


def test_a_job_that_is_cancelled_keeps_the_checkpoint_that_it_was_stopped_with():
    running = Running(retention=CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
    made = new_manifest(running.writer, 1)
    CheckpointStore(running.store).complete(running.writer, made, NOW)
    running.ask(StopRequest("Checkpoint", release=True))
    running.drive()
    assert [type(entry) for entry in running.entries()][-2:] == [Checkpoint, Released]
    assert [info.key for info in running.store.list("chk-")]


def test_a_release_that_may_not_be_written_is_a_failure_and_the_job_has_ended(running, monkeypatch):
    def away(_entry: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(running.writer, "append", away)
    request = running.ask(StopRequest("Savepoint", SavepointRequest("last", stop=True), True))
    assert running.drive() is RunOutcome.STOPPED
    with pytest.raises(StoreUnavailable):
        request.wait(0)
    assert request.granted == Stopped(LAST, VIEW)  # the savepoint is there all the same
    assert not running.reports.was_released


def test_a_driver_that_was_replaced_releases_nothing(running):
    request = running.ask(StopRequest(release=True))
    LogWriter.claim(running.store, Owner("c", "n", "j", "u"), "the next")
    with pytest.raises(Fenced):
        running.drive()
    assert request.wait(0) is None
    assert not [e for e in running.entries() if isinstance(e, Released)]


def test_a_stop_at_once_takes_nothing_and_waits_for_no_epoch(running):
    with running.epoch_under_way():
        request = running.ask(StopRequest("None", release=True))
        assert running.drive() is RunOutcome.STOPPED
    assert running.checkpoints.did == []
    assert running.query.stopped
    assert request.wait(0).released


def test_within_an_epoch_and_only_there_uploads_that_ended_go_on(running):
    looked = running.checkpoints.looked_within
    running.run._within_epoch()
    assert not looked.is_set()
    with running.epoch_under_way():
        running.run._within_epoch()
        assert looked.is_set()
        running.spark.cancelled.set()
    looked.clear()
    running.run._within_epoch()
    assert not looked.is_set()


def test_what_goes_wrong_within_an_epoch_ends_the_run_and_not_who_waits(running):
    def broken():
        raise RuntimeError("can't start new thread")

    running.checkpoints.within_epoch = broken
    with running.epoch_under_way():
        running.run._within_epoch()
        running.spark.cancelled.set()
    with pytest.raises(MoorageError, match="can't start new thread"):
        running.drive()


def test_a_stop_at_once_waits_for_no_epoch_without_input(running, monkeypatch):
    monkeypatch.setattr(Ticking, "due", lambda *_: True)
    thread = threading.Thread(
        target=lambda: running.in_epoch.wait(20) and running.ask(StopRequest("None"))
    )
    thread.start()
    assert running.drive() is RunOutcome.STOPPED
    thread.join()
    assert running.checkpoints.did == []


def test_an_input_that_becomes_idle_while_no_epoch_runs_is_told(running):
    clocks = {"clicks": InputClock(0, idle_after_ms=100), "orders": InputClock(0, 100)}
    job, seconds, run = JobClocks(clocks, {}, {"pairs": frozenset(clocks)}), [0.0], running.run
    newest = {"clicks": 5_000, "orders": 3_000}
    run._runner.watermarks = Watermarks.at_first(job).after_epoch(newest, 0, 0)
    run._runner.processing_time = lambda: int(1_000 * seconds[0])
    run._ticking = Ticking(timers=False, epoch_seconds=0.0, clock=lambda: seconds[0])
    run._tick_when_idle()
    assert running.reports.marks == []
    seconds[0] = 30.0
    run._tick_when_idle()
    assert running.reports.marks == [(WatermarkView("pairs", 4_999, held_by=""),)]


@pytest.mark.parametrize("savepoint", [None, SavepointRequest("last", stop=True)])
def test_a_stop_whose_checkpoint_fails_lets_the_job_go_on(running, savepoint):
    running.checkpoints.finish_error = Retryable("the store is away")
    request = running.ask(StopRequest("Savepoint" if savepoint else "Checkpoint", savepoint))
    again = running.ask(StopRequest(request_id="again"))
    running.run._c.settings.bounded = True  # it goes on until its input ends
    assert running.drive() is RunOutcome.FINISHED
    with pytest.raises(UserError, match="stopped already"):
        again.wait(0)
    with pytest.raises(Retryable, match="away"):
        request.wait(0)
    assert running.checkpoints.did[:2] == ["finish", "go on"]
    assert any("goes on without" in phase for phase in running.reports.phases)


def test_a_signal_during_a_stop_with_a_savepoint_gives_the_savepoint_up(running):
    running.checkpoints.savepoint_answer = None
    request = running.ask(StopRequest("Savepoint", SavepointRequest("last", stop=True)))
    # The signal comes while the savepoint is on its way.
    running.checkpoints.wait = lambda *_args, **_kwargs: (running.stop.set(), [])[1]
    assert running.drive() is RunOutcome.STOPPED
    with pytest.raises(UserError, match="before the savepoint was complete"):
        request.wait(0)


def test_the_number_of_subtasks_needs_a_restart_and_executors_do_not(running):
    fewer = running.ask(RescaleRequest(parallelism=2))
    same = running.ask(RescaleRequest(parallelism=4, executors=3))
    many = running.ask(RescaleRequest(executors=10))
    running.ask(StopRequest())
    running.drive()
    assert fewer.error.code == "restart_needed"
    assert same.state == "Completed"
    assert many.error.code == "user_error"
    assert running.environment.scaled == [3]


def test_a_sample_is_told_from_the_boundary_on_at_which_it_was_asked_for(running):
    seen: list[SampleView] = []
    running.run._c.samples = OutputSamples()
    running.run._positions = SimpleNamespace(after=lambda batch: {"in": {"": batch}})
    running.reports.sample = seen.append
    running.ask(CheckpointRequest())
    running.run._between_epochs()
    assert (seen, running.run._runner.sampling) == ([], None)
    running.ask(CheckpointRequest(SampleRequest(20, ("at",), 60.0)))
    running.run._between_epochs()
    [view] = seen
    assert (view.percent, view.since_epoch, view.start) == (20, 41, {"in": {"": 0}})
    assert running.run._runner.sampling == Sampling(20, ("at",))


def test_what_was_asked_for_outlives_a_move_of_ranges(running):
    running.moves = True
    request = running.ask(CheckpointRequest())
    with pytest.raises(RangesMove):
        running.drive()
    assert running.checkpoints.job_ends is False
    assert request.state == "Pending"
    assert running.requests.take() == [request]


def test_ranges_wait_with_their_move_for_a_savepoint_that_is_being_taken(running):
    running.moves = running.checkpoints.takes_savepoint = True
    running.run._c.settings.bounded = True
    assert running.drive() is RunOutcome.FINISHED
    running.query = Query(50)
    running.checkpoints.takes_savepoint = False
    with pytest.raises(RangesMove):
        running.drive()


def test_a_stream_without_an_end_is_never_finished(running):
    running.query.looks = 0
    with pytest.raises(SparkEnded, match="ended by itself"):
        running.drive()
    assert "finished" not in running.reports.phases


@pytest.mark.parametrize("where", ["isActive", "exception"])
def test_a_query_that_nobody_answers_for_means_that_spark_has_ended(running, monkeypatch, where):
    def gone(_query: Any) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    running.query.looks = 0
    monkeypatch.setattr(Query, where, property(gone) if where == "isActive" else gone)
    with pytest.raises(SparkEnded, match="Answer from Java"):
        running.drive()


def test_a_stop_at_once_is_not_taken_up_at_a_boundary_as_another_stop(running):
    request = running.ask(StopRequest("None"))
    running.run._between_epochs()
    assert running.drive() is RunOutcome.STOPPED
    assert running.checkpoints.did == []
    assert request.state == "Completed"


def test_what_was_asked_for_and_not_done_is_answered_when_the_job_ends(running):
    request = running.ask(CheckpointRequest())
    running.ask(StopRequest())
    running.drive()
    with pytest.raises(UserError, match="the job was stopped"):
        request.wait(0)


def test_a_savepoint_of_the_command_line_may_end_the_job(running):
    request = running.ask(SavepointRequest("last", stop=True))
    assert running.drive() is RunOutcome.STOPPED
    assert request.wait(0) == VIEW
