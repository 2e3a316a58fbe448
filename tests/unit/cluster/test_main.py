"""Whatever becomes of a job, its driver ends with a status and a report, in time."""

import asyncio
import base64
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml
from moorage_testing.jobs import wait_until

from moorage.cluster import main
from moorage.cluster.main import DriverProcess, spare_collector
from moorage.cluster.orders import read_orders
from moorage.cluster.termination import Termination
from moorage.driver.refusals import AdoptRequired, RestorePointCorrupt, RestorePointNotFound
from moorage.driver.requests import CheckpointRequest, JobEnding, Stopped, StopRequest
from moorage.driver.types import JobProgress, RunOptions, RunOutcome, RunResult
from moorage.driver.views import CheckpointView, SavepointView
from moorage.engine.task_failures import UserFunctionError
from moorage.http_server import HttpServer
from moorage.redaction import Redactor
from moorage_api.driver import DriverEnd
from moorage_state.errors import Bug, Fenced, LocalDiskError, StoreUnavailable

from .conftest import AT, TOKEN, mounted_files

DONE = RunResult(RunOutcome.FINISHED, 41, 10, 1.0)
STOPPED = RunResult(RunOutcome.STOPPED, 41, 10, 1.0)
LOCAL_DISK = ("Failed", "local_disk_error")
Play = Callable[[RunOptions, Callable[[JobProgress], None]], RunResult]


class DriverAttempt:
    """A driver whose job the test plays, run as its main thread runs it."""

    def __init__(self, driver: DriverProcess, end: Path, left: list[int]) -> None:
        self.driver = driver
        self.left = left
        self._end = end
        self._status: list[int] = []
        self._thread = threading.Thread(target=lambda: self._status.append(driver.run()))
        self._thread.start()

    def status(self) -> int:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self._status[0]

    def end(self) -> DriverEnd:
        return DriverEnd.model_validate_json(self._end.read_text())


@pytest.fixture
def attempt(mount) -> Callable[..., DriverAttempt]:

    def make(
        play: Play,
        grace: float = 60.0,
        port: int = 0,
        teardown: float = 20.0,
        retention: str | None = None,
        begun: Callable[[], object] = lambda: None,
    ) -> DriverAttempt:
        files = mounted_files()
        start = {**json.loads(files["start_json"]), "graceSeconds": grace}
        job = yaml.safe_load(files["job_yaml"])
        job["spec"]["checkpoint"] = {"externalizedCheckpointRetention": retention}
        places = mount(start_json=json.dumps(start), job_yaml=yaml.safe_dump(job))
        places = type(places)(
            places.config, places.token, places.termination, "127.0.0.1", port, local=True
        )
        redact, left = Redactor({"DB_PASSWORD": "open-sesame"}, TOKEN), list[int]()

        def runner(_job: Any, _dir: Path, options: RunOptions, listener: Any) -> RunResult:
            return play(options, listener)

        driver = DriverProcess(
            read_orders(places, {}),
            places,
            Termination(places.termination, redact),
            redact,
            runner,
            leave=left.append,
            teardown=teardown,
            begun=begun,
        )
        return DriverAttempt(driver, places.termination, left)

    return make


@pytest.fixture
def running(attempt) -> Callable[..., DriverAttempt]:
    """A driver whose stream runs."""

    def make(play: Play, **more: Any) -> DriverAttempt:
        at = threading.Event()

        def runs(options: RunOptions, listen: Callable[[JobProgress], None]) -> RunResult:
            listen(JobProgress(phase="running"))
            at.set()
            return play(options, listen)

        made = attempt(runs, **more)
        assert at.wait(20)
        return made

    return make


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Lets a job that hangs go on when the test ends."""
    made = threading.Event()
    yield made
    made.set()


def test_a_finished_job_says_what_it_did(attempt):
    def play(options: RunOptions, listen: Callable[[JobProgress], None]) -> RunResult:
        assert options.orders is not None
        assert options.environment is None
        view = CheckpointView(7, 41, AT, 10, 10, 0.1)
        listen(JobProgress(phase="running", lineage="lin", fence=2, epoch=41))
        listen(
            JobProgress(
                phase="finished",
                lineage="lin",
                fence=2,
                epoch=41,
                last_checkpoint=view,
                completed_checkpoints=1,
                message="checkpoints of the ended job could not be deleted",
            )
        )
        return DONE

    made = attempt(play)
    assert made.status() == 0
    end = made.end()
    assert (end.outcome, end.attempt, end.lineage, end.fence, end.epoch) == (
        "Finished",
        3,
        "lin",
        2,
        41,
    )
    assert end.message == "checkpoints of the ended job could not be deleted"
    assert end.last_checkpoint is not None
    assert end.last_checkpoint.path == "s3://state/clicks/chk-7"


def test_what_a_driver_did_beside_another_goes_when_it_leads():
    class Run:
        def __init__(self) -> None:
            self.itself = self

    run = Run()
    left = weakref.ref(run)
    try:
        spare_collector()
        del run
        gc.collect()
        assert left() is not None  # it was spared
        spare_collector()
        assert left() is None
    finally:
        gc.unfreeze()


def test_it_hears_once_more_that_the_job_has_begun_when_it_leads(attempt):
    told: list[str] = []

    def play(_options: RunOptions, listen: Callable[[JobProgress], None]) -> RunResult:
        for standby, phase in ((True, "running"), (False, "starting"), (False, "running")):
            for epoch in (1, 2):
                listen(JobProgress(phase=phase, standby=standby, epoch=epoch))
            told.append(phase)
        return DONE

    assert attempt(play, begun=lambda: told.append("begun")).status() == 0
    assert told == ["begun", "running", "starting", "begun", "running"]


def test_it_hears_once_that_the_job_has_begun(attempt):
    told = []

    def play(_options: RunOptions, listen: Callable[[JobProgress], None]) -> RunResult:
        for phase in ("starting", "running", "checkpointing", "running"):
            listen(JobProgress(phase=phase))
            told.append(phase)
        return DONE

    assert attempt(play, begun=lambda: told.append("begun")).status() == 0
    assert told == ["starting", "begun", "running", "checkpointing", "running"]


def test_the_page_shows_what_the_job_reports_and_no_secrets(attempt):
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def play(_options: RunOptions, listen: Callable[[JobProgress], None]) -> RunResult:
        listen(JobProgress(phase="running", epochs=1, epoch=41, message="refused: open-sesame"))
        with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as driver:
            driver.request("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"})
            seen.append(driver.getresponse().read().decode())
        return DONE

    assert attempt(play, port=port).status() == 0
    assert "<dt>Epoch</dt><dd>41</dd>" in seen[0]
    assert "refused: ***" in seen[0]
    assert "open-sesame" not in seen[0]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UserFunctionError("process failed: key=7"), 3, "user_function"),
        (StoreUnavailable("away"), 4, "store_unavailable"),
        (AdoptRequired("owner"), 4, "adopt_required"),
        (RestorePointNotFound("none"), 2, "restore_point_not_found"),
        (RestorePointCorrupt("damaged", "s3://x/y"), 5, "restore_point_corrupt"),
        (Fenced("taken over"), 6, "fenced"),
        (LocalDiskError("full"), 7, "local_disk_error"),
        (Bug("a rule"), 1, "bug"),
        (ZeroDivisionError("in somebody's library"), 1, "internal"),
        (KeyboardInterrupt(), 130, "internal"),
    ],
)
def test_every_failure_has_its_status_and_code(attempt, error, status, code):
    def play(*_args: Any) -> RunResult:
        raise error

    made = attempt(play)
    assert made.status() == status
    end = made.end()
    assert (end.outcome, end.code) == ("Failed", code)
    assert end.message


def test_no_secret_is_in_the_end(attempt):
    def play(*_args: Any) -> RunResult:
        spark = base64.b64encode(TOKEN.encode()).decode()
        raise ValueError(f"open-sesame {TOKEN} {spark} s3://me:mine@host")

    made = attempt(play)
    assert made.status() == 1
    assert made.end().message == "*** *** *** s3://***@host"


def test_a_signal_lets_the_job_take_its_last_checkpoint(running):
    made = running(lambda options, _listen: (options.stop.wait(20), STOPPED)[1])
    made.driver.signalled(signal.SIGTERM)
    assert made.status() == 0
    assert made.end().outcome == "Stopped"


def test_a_job_that_has_not_begun_is_not_waited_for(attempt, gate):
    made = attempt(lambda _options, _listen: (gate.wait(20), STOPPED)[1])
    made.driver.signalled(signal.SIGTERM)
    assert made.status() == 130
    assert (made.end().outcome, made.end().code) == ("Failed", "interrupted")
    assert "before the job began: signal=SIGTERM" in made.end().message
    assert not gate.is_set()


def test_after_the_signal_nothing_new_is_taken(running, gate):
    made = running(lambda _options, _listen: (gate.wait(20), STOPPED)[1])
    made.driver.signalled(signal.SIGTERM)
    wait_until(lambda: made.driver.requests._ended, 10, "the signal to be heard")
    with pytest.raises(JobEnding, match="SIGTERM"):
        made.driver.requests.ask(CheckpointRequest())
    gate.set()
    assert made.status() == 0


def test_a_second_signal_waits_for_nothing(running, gate):
    made = running(lambda _options, _listen: (gate.wait(20), STOPPED)[1])
    made.driver.signalled(signal.SIGTERM)
    made.driver.signalled(signal.SIGTERM)
    assert made.status() == 130
    assert (made.end().outcome, made.end().code) == ("Failed", "interrupted")
    assert not gate.is_set()


def test_the_time_for_the_last_checkpoint_is_limited(running, gate):
    made = running(lambda _options, _listen: (gate.wait(20), STOPPED)[1], grace=0.2)
    made.driver.signalled(signal.SIGTERM)
    assert made.status() == 130
    assert "not complete in time: seconds=0.2" in made.end().message


def test_a_last_checkpoint_that_is_complete_counts_though_spark_ends_slowly(running, gate):
    def play(options: RunOptions, _listen: Any) -> RunResult:
        options.stop.wait(20)
        options.ended(STOPPED)
        gate.wait(20)
        raise StoreUnavailable("what came of it later")

    made = running(play, grace=0.5, teardown=0.1)
    made.driver.signalled(signal.SIGTERM)
    assert made.status() == 0
    assert made.end().outcome == "Stopped"
    assert not gate.is_set()


@pytest.mark.parametrize(
    ("result", "said"), [(STOPPED, ("Stopped", "")), (LocalDiskError("full"), LOCAL_DISK)]
)
def test_spark_that_cannot_be_ended_changes_nothing_of_how_the_job_ended(attempt, result, said):
    def play(options: RunOptions, _listen: Any) -> RunResult:
        options.ended(result)
        raise RuntimeError("Answer from Java side is empty")

    made = attempt(play)
    assert made.status() == (0 if result is STOPPED else 7)
    assert (made.end().outcome, made.end().code) == said


@pytest.fixture
def deleting(attempt, gate):
    """A driver that has published all, and deletes checkpoints as long as the gate is shut."""

    def make(grace: float = 60.0) -> DriverAttempt:
        at = threading.Event()

        def play(options: RunOptions, listen: Callable[[JobProgress], None]) -> RunResult:
            listen(JobProgress(phase="finished", lineage="lin", epoch=41))
            at.set()
            gate.wait(20)
            options.ended(DONE)
            return DONE

        made = attempt(play, grace, retention="RetainOnCancellation")
        assert at.wait(20)
        return made

    return make


@pytest.mark.parametrize(
    ("signals", "why"),
    [
        (1, "the time to end was over: seconds=0.2"),
        (2, "told to end a second time: signal=SIGTERM"),
    ],
)
def test_a_finished_job_that_is_cut_off_has_finished(deleting, gate, signals, why):
    made = deleting(0.2 if signals == 1 else 60.0)
    for _ in range(signals):
        made.driver.signalled(signal.SIGTERM)
    assert made.status() == 0
    end = made.end()
    assert (end.outcome, end.code, end.epoch, gate.is_set()) == ("Finished", "", 41, False)
    assert end.message == (
        f"its checkpoints may not all be deleted, {why}; the next start of the job deletes what "
        f"is left"
    )


def test_a_finished_job_needs_no_endpoint_to_delete_its_checkpoints(deleting, gate):
    made = deleting()
    made.driver._endpoint_lost("the loop is broken")
    wait_until(made.driver._events.empty, 10, "that to be heard")
    gate.set()
    assert made.status() == 0
    assert (made.end().outcome, made.end().message) == ("Finished", "")


def test_without_its_endpoint_the_driver_ends(attempt, gate, monkeypatch):
    begun = threading.Event()

    async def broken(_server: HttpServer) -> None:
        await asyncio.to_thread(begun.wait, 20)
        raise RuntimeError("the loop is broken")

    def play(_options: RunOptions, _listen: Any) -> RunResult:
        begun.set()
        gate.wait(20)
        return STOPPED

    monkeypatch.setattr(HttpServer, "_serve", broken)
    made = attempt(play)
    assert made.status() == 1
    assert (made.end().code, gate.is_set()) == ("endpoint_lost", False)


def test_a_lost_fence_ends_the_process_before_anything_else(attempt, gate):
    at_that_moment: list[str] = []
    ready = threading.Event()

    def play(options: RunOptions, _listen: Any) -> RunResult:
        assert options.fenced is not None
        assert ready.wait(20)
        options.fenced("another driver: fence=5")
        at_that_moment.append(made.end().code)
        gate.wait(20)
        raise StoreUnavailable("what came of it later")

    made = attempt(play)
    ready.set()
    wait_until(lambda: at_that_moment, 10, "the report")
    assert (made.left, at_that_moment) == ([6], ["fenced"])
    gate.set()
    made.status()
    assert made.end().code == "fenced"
    assert "fence=5" in made.end().message


def test_who_still_waits_is_told_that_the_driver_has_ended(attempt, gate):
    made = attempt(lambda _options, _listen: (gate.wait(20), STOPPED)[1])
    request = made.driver.requests.ask(CheckpointRequest())
    gate.set()
    assert made.status() == 0
    with pytest.raises(JobEnding):
        request.wait(0)


def test_the_end_names_the_savepoint_that_the_job_was_stopped_with(attempt):
    savepoint = SavepointView("last", "s3://sp/last", 8, 41, 99, 1.5, "sha256:abc", 128, AT)

    def play(options: RunOptions, listen: Callable[[JobProgress], None]) -> RunResult:
        request = options.requests.ask(StopRequest(release=True))
        listen(JobProgress(released=True))
        request.answer(Stopped(None, savepoint, released=True))
        return STOPPED

    made = attempt(play)
    assert made.status() == 0
    end = made.end()
    assert end.released
    assert end.savepoint is not None
    assert end.savepoint.manifest_digest == "sha256:abc"


def test_a_port_that_is_taken_ends_the_driver_before_the_job(attempt):
    started: list[bool] = []

    def play(*_args: Any) -> RunResult:
        started.append(True)
        return DONE

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        made = attempt(play, port=taken.getsockname()[1])
        assert made.status() == 2
    assert "cannot listen" in made.end().message
    assert not started


@pytest.mark.parametrize("early", [[], [signal.SIGTERM]])
def test_before_there_is_a_driver_there_are_last_words_too(monkeypatch, mount, early):
    """Whether the process was told to end, or is broken."""
    left: list[int] = []
    places = mount()
    for name, path in (("CONFIG_DIR", "config"), ("TERMINATION_LOG", "termination")):
        monkeypatch.setenv(f"MOORAGE_{name}", str(getattr(places, path)))
    monkeypatch.setenv("MOORAGE_TOKEN_FILE", str(places.token))
    monkeypatch.setattr(main, "_leave", left.append)
    monkeypatch.setattr(main, "_log_to_stderr", lambda _redact: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(main.DriverProcess, "run", lambda _driver: 1 // 0)
    main.main(early)
    end = DriverEnd.model_validate_json(places.termination.read_text())
    code = "interrupted" if early else "internal"
    assert (end.outcome, end.attempt, end.code) == ("Failed", 3, code)
    assert left == [130 if early else 1]


def test_broken_orders_end_the_process_with_a_report(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "MOORAGE_CONFIG_DIR": str(tmp_path),
        "MOORAGE_TERMINATION_LOG": str(tmp_path / "end"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "moorage.cluster"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    end = DriverEnd.model_validate_json((tmp_path / "end").read_text())
    assert (end.outcome, end.code) == ("Failed", "bad_orders")
    assert "start.json" in end.message


# -- a fence that is lost at the end --------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False], ids=["the end is told", "all is published"])
def test_a_fence_that_is_lost_in_the_last_moment_is_no_failure(attempt, told):
    def play(options: RunOptions, listen: Callable[[JobProgress], None]) -> RunResult:
        assert options.fenced is not None
        if told:
            options.ended(DONE)
        else:
            listen(JobProgress(phase="finished"))
        options.fenced("another driver: fence=5")
        return DONE

    made = attempt(play)
    assert made.status() == 0
    assert (made.end().outcome, made.left) == ("Finished", [])


def test_a_fence_that_is_lost_after_the_end_changes_nothing(attempt):
    fenced: list[Callable[[str], object]] = []

    def play(options: RunOptions, _listen: Any) -> RunResult:
        assert options.fenced is not None
        fenced.append(options.fenced)
        return DONE

    made = attempt(play)
    assert made.status() == 0
    fenced[0]("too late")
    assert (made.end().outcome, made.left) == ("Finished", [])
