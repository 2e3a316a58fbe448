"""The process of a driver in a cluster, from its first line to its last word.

Decides what becomes of signals, of a lost fence and of every failure: an exit status, and a report
that the operator reads from the pod. The main thread waits; the job runs in a thread, the endpoint
in another. Called by `python -m moorage.cluster`.
"""

import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from moorage.cli.exit_codes import ExitCode, exit_code
from moorage.cluster.board import Board, DriverAttempt, error_code
from moorage.cluster.endpoint import Endpoint
from moorage.cluster.metrics import DriverMetrics
from moorage.cluster.orders import Mounted, OrdersRefused, Places, read_orders
from moorage.cluster.termination import Termination
from moorage.driver.lookups import StateLookups
from moorage.driver.requests import Requests
from moorage.driver.types import JobProgress, RunOptions, RunOutcome, RunResult
from moorage.page.history import RunHistory
from moorage.page.render import drawn_run
from moorage.redaction import RedactingFormatter, Redactor
from moorage_api import StatefulSparkJob
from moorage_api.driver import DriverEnd
from moorage_state.errors import Fenced, MoorageError

if TYPE_CHECKING:
    from moorage.driver.environment import JobEnvironment

_log = logging.getLogger("moorage.driver")
Runner = Callable[
    [StatefulSparkJob, Path, RunOptions, Callable[[JobProgress], None]],
    RunResult,
]
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_SECONDS = 1.0
_GIVE_WAY_SECONDS = 0.0005
"""After which a thread gives way to one that waits for Python's lock."""

_TEARDOWN_SECONDS = 8.0
"""For Spark and servers to end, once it is known how the job ended; a pod has a little more."""


class Interrupted(MoorageError):
    """The process was told to end at once, or its time to end was over."""

    code = "interrupted"


class EndpointLost(MoorageError):
    """The driver's endpoint ended by itself."""

    code = "endpoint_lost"


@dataclass(frozen=True, slots=True)
class _Signal:
    number: int


@dataclass(frozen=True, slots=True)
class _Ended:
    """How the job ended; `final` when nothing of it is left in this process."""

    result: RunResult | BaseException
    final: bool = True


class DriverProcess:
    """One attempt.

    Args:
        leave: ends the process with a status, whatever still runs in it.
        begun: called when the first run has begun, and the first one that leads after standing by.
    """

    def __init__(
        self,
        mounted: Mounted,
        places: Places,
        termination: Termination,
        redact: Redactor,
        runner: Runner,
        *,
        leave: Callable[[int], object] = os._exit,
        clock: Callable[[], float] = time.monotonic,
        teardown: float = _TEARDOWN_SECONDS,
        begun: Callable[[], object] = lambda: None,
    ) -> None:
        self._teardown = teardown
        self._begun = begun
        self._tell_begun = True
        self._mounted = mounted
        self._places = places
        self._termination = termination
        self._runner = runner
        self._leave = leave
        self._clock = clock
        self._events: queue.SimpleQueue[_Signal | _Ended] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._known = False
        self._cut_off = ""
        self._left = 0.0
        job, start = mounted.job, mounted.start
        namespace = job.metadata.namespace or ""
        attempt = DriverAttempt(
            number=start.attempt,
            job=job.name,
            namespace=namespace,
            job_uid=start.job_uid,
            checkpoint_dir=job.spec.state.checkpoint_dir,
        )
        self.requests = Requests()
        self._metrics = DriverMetrics(job.name, namespace)
        window = job.spec.scaling.autoscaler.window.seconds
        self.board = Board(
            attempt, self.requests, redact, observe=self._metrics, load_seconds=window
        )
        self._metrics.show(self.board)
        # Before there is a job: nobody may take it for the one that leads.
        self.board(JobProgress(standby=start.standby))
        self._lookups = StateLookups(self._metrics)
        self._history = RunHistory(job.name)
        self._draw = partial(drawn_run, self._history, redact)

    def run(self) -> int:
        """Run the job to its end and return the exit status; the report is written."""
        try:
            endpoint = Endpoint(
                self.board,
                self.requests,
                self._metrics,
                self._mounted.control,
                page=self._draw,
                lookups=self._lookups,
                scrape=self._mounted.scrape,
                tls=self._mounted.tls,
                port=self._places.port,
                host=self._places.host,
                lost=self._endpoint_lost,
            )
        except MoorageError as error:
            return self._end(error)
        _log.info("endpoint_listens: port=%d attempt=%d", endpoint.port, self.board.attempt.number)
        try:
            # Daemon: a Spark that hangs is not waited for.
            threading.Thread(target=self._work, name="moorage-job", daemon=True).start()
            result = self._wait()
            status = self._end(result)
            self.requests.refuse("the driver has ended")
            self._tear_down()
            return status
        finally:
            self.requests.close("the driver has ended")
            endpoint.close()

    def told_early(self, number: int) -> int:
        """Instead of `run`: a signal came before there was anything to stop."""
        return self._end(_told_early(number))

    def signalled(self, number: int, _frame: FrameType | None = None) -> None:
        """A signal came; may be called within a handler."""
        self._events.put(_Signal(number))

    # -- the job's thread ------------------------------------------------------------------

    def _work(self) -> None:
        result: RunResult | BaseException
        try:
            options = RunOptions(
                stop=self._stop,
                requests=self.requests,
                lookups=self._lookups,
                orders=self._mounted.orders,
                fenced=self._fenced,
                storage=self.board.storage,
                ended=self._job_ended,
                environment=_environment(self._mounted, self._places),
            )
            result = self._runner(self._mounted.job, Path.cwd(), options, self._heard)
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            result = error
        self._events.put(_Ended(result))

    def _job_ended(self, result: RunResult | BaseException) -> None:
        self._known = True
        self._events.put(_Ended(result, final=False))

    def _heard(self, progress: JobProgress) -> None:
        before = self.board.progress
        self.board(progress)
        self._history(progress)
        if progress.phase != before.phase:
            _log.info("phase: phase=%s epoch=%d", progress.phase, progress.epoch)
        if before.standby and not progress.standby:
            self._tell_begun = True
        if progress.phase == "running" and self._tell_begun:
            self._tell_begun = False
            self._begun()
        if progress.message and progress.message != before.message:
            _log.info("%s", progress.message)
        if progress.last_checkpoint != before.last_checkpoint and progress.last_checkpoint:
            done = progress.last_checkpoint
            _log.info("checkpoint: id=%d epoch=%d", done.checkpoint_id, done.epoch)

    def _fenced(self, reason: str) -> None:
        """Another driver goes on: nothing here may be waited for, and nothing more be written."""
        if self._known or self._has_finished:
            return  # who took over finds nothing to do
        error = Fenced(reason)
        if self._say(error):  # else the end is known already, and what it says holds
            self._leave(exit_code(error))

    def _endpoint_lost(self, reason: str) -> None:
        """Nobody can ask this driver for anything any more: another one must go on."""
        self._events.put(_Ended(EndpointLost(f"the endpoint has ended: {reason}")))

    # -- the main thread -------------------------------------------------------------------

    def _wait(self) -> RunResult | BaseException:
        deadline: float | None = None
        while True:
            event = self._next(deadline)
            match event:
                case _Ended(EndpointLost() as lost) if self._has_finished:
                    _log.warning("endpoint_not_needed_any_more: %s", lost)
                case _Ended(result, final):
                    self._left = 0.0 if final else self._teardown
                    return result
                case _Signal(number) if not self._has_begun:
                    # There is nothing to save, and Spark and executors take half a minute to come.
                    return _told_early(number)
                case _Signal(number) if deadline is None:
                    seconds = self._mounted.start.grace_seconds
                    deadline = self._clock() + seconds
                    name = signal.Signals(number).name
                    _log.info("stopping: signal=%s seconds=%g", name, seconds)
                    self.requests.refuse(f"the driver is ending: signal={name}")
                    self._stop.set()
                case _Signal(number):
                    name = signal.Signals(number).name
                    return self._interrupted(
                        f"told to end a second time, before the last checkpoint: signal={name}",
                        f"told to end a second time: signal={name}",
                    )
                case None:
                    seconds = self._mounted.start.grace_seconds
                    return self._interrupted(
                        f"the last checkpoint was not complete in time: seconds={seconds:g}",
                        f"the time to end was over: seconds={seconds:g}",
                    )

    @property
    def _has_begun(self) -> bool:
        """Whether the stream has run, or had nothing left to do."""
        return not self._tell_begun or self._has_finished

    @property
    def _has_finished(self) -> bool:
        """Whether all is checkpointed and published: what is left is to delete checkpoints."""
        return self.board.progress.phase == "finished"

    def _interrupted(self, running: str, finished: str) -> RunResult | Interrupted:
        """How a job ends that is not waited for any longer, and why: one at work, or finished."""
        if not self._has_finished:
            return Interrupted(f"{running}; the next start goes on from the one before")
        now = self.board.progress
        if self._mounted.job.spec.checkpoint.externalized_checkpoint_retention is not None:
            self._cut_off = (
                f"its checkpoints may not all be deleted, {finished}; the next start of the job "
                f"deletes what is left"
            )
        return RunResult(RunOutcome.FINISHED, now.epoch, now.rows_total, seconds=0.0)

    def _tear_down(self) -> None:
        """Give Spark and servers a little time to end; the report is written, whatever they do."""
        deadline = self._clock() + self._left
        while self._left and (event := self._next(deadline)) is not None:
            if isinstance(event, _Signal):
                return
            if event.final:
                if isinstance(event.result, BaseException):
                    _log.warning("teardown_failed: %s", event.result)
                return
        if self._left:
            _log.warning("teardown_not_waited_for: seconds=%g", self._left)

    def _next(self, deadline: float | None) -> _Signal | _Ended | None:
        """What happens next; None when the deadline comes first."""
        while True:
            left = _POLL_SECONDS if deadline is None else deadline - self._clock()
            if left <= 0:
                return None
            with suppress(queue.Empty):
                # Short waits: handlers of signals run between them.
                return self._events.get(timeout=min(left, _POLL_SECONDS))

    def _end(self, result: RunResult | BaseException) -> int:
        """Leave the report; returns the exit status."""
        self._say(result)
        return _status(result)

    def _say(self, result: RunResult | BaseException) -> bool:
        """Leave the report, unless there is one; returns whether this is the one."""
        if isinstance(result, BaseException):
            kind = "unexpected" if not isinstance(result, MoorageError) else error_code(result)
            trace = None if isinstance(result, MoorageError) else result
            _log.error("driver_failed: code=%s: %s", kind, result, exc_info=trace)
        try:
            return self._termination.write(self._report(result))
        except OSError as error:
            _log.error("last_words_not_written: %s", error)
            return True

    def _report(self, result: RunResult | BaseException) -> DriverEnd:
        now = self.board.progress
        end = DriverEnd(
            attempt=self.board.attempt.number,
            outcome="Failed",
            lineage=now.lineage,
            fence=now.fence,
            epoch=now.epoch,
            restored_from=self.board.restored_from(),
            last_checkpoint=self.board.last_checkpoint(),
            savepoint=self.board.stopped_with(),
            released=now.released,
        )
        if isinstance(result, BaseException):
            text = str(result) or type(result).__name__
            return end.model_copy(update={"code": error_code(result), "message": text})
        if result.outcome is RunOutcome.STOPPED:
            return end.model_copy(update={"outcome": "Stopped"})
        # What became of its checkpoints is the last that a finished job says.
        message = now.message or self._cut_off
        return end.model_copy(update={"outcome": "Finished", "message": message})


def main(early: Sequence[int] = ()) -> NoReturn:
    """Run the attempt that is mounted, and end the process with its status.

    Args:
        early: signals that came, and may come still, before the driver listens to them.
    """
    # Look-ups, scrapes and probes are answered beside the epoch's work, which is Python, too.
    sys.setswitchinterval(_GIVE_WAY_SECONDS)
    redact = Redactor(os.environ)
    _log_to_stderr(redact)
    termination = Termination(Path("/dev/termination-log"), redact)
    attempt = 0
    try:
        places = Places.of(os.environ)
        termination = Termination(places.termination, redact)
        mounted = read_orders(places)
        attempt = mounted.start.attempt
        redact = Redactor({**mounted.job.spec.spark_conf, **os.environ}, *mounted.secrets)
        _log_to_stderr(redact)
        termination = Termination(places.termination, redact)
        status = _attempted(mounted, places, termination, redact, early)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the operator must hear of it
        status = _not_begun(termination, attempt, error)
    _leave(status)


def _attempted(
    mounted: Mounted,
    places: Places,
    termination: Termination,
    redact: Redactor,
    early: Sequence[int],
) -> int:
    from moorage.driver import run_job

    driver = DriverProcess(mounted, places, termination, redact, run_job, begun=spare_collector)
    for number in _SIGNALS:
        signal.signal(number, driver.signalled)
    return driver.told_early(early[0]) if early else driver.run()


def spare_collector() -> None:
    """Have garbage looked for in what comes from now on: what was imported stays.

    A look at all that a driver imports holds up epochs and look-ups for a tenth of a second. Of one
    that stood by, the run that it did beside goes.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _not_begun(termination: Termination, attempt: int, error: BaseException) -> int:
    """The last words of a driver that could not say any by itself."""
    known = isinstance(error, OrdersRefused)
    attempt = error.attempt if isinstance(error, OrdersRefused) else attempt
    code, text = error_code(error), str(error) or type(error).__name__
    what = "orders_refused" if known else "driver_broken"
    _log.error("%s: code=%s: %s", what, code, text, exc_info=None if known else error)
    with suppress(OSError):
        termination.write(DriverEnd(attempt=attempt, outcome="Failed", code=code, message=text))
    return exit_code(error)


def _environment(mounted: Mounted, places: Places) -> "JobEnvironment | None":
    """Where the job runs: on executors, or (None) in this process."""
    if places.local:
        return None
    from moorage.cluster.environment import ClusterEnvironment, Pod

    pod = None if mounted.spark.get("spark.master", "").startswith("local") else Pod.of(os.environ)
    return ClusterEnvironment(mounted.spark, mounted.token, pod=pod, tls=mounted.tls)


def _told_early(number: int) -> Interrupted:
    return Interrupted(f"told to end before the job began: signal={signal.Signals(number).name}")


def _status(result: RunResult | BaseException) -> int:
    if isinstance(result, Interrupted):
        return ExitCode.INTERRUPTED
    return exit_code(result) if isinstance(result, BaseException) else ExitCode.OK


def _log_to_stderr(redact: Redactor) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(redact))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)


def _leave(status: int) -> NoReturn:
    """End now: threads that hang on a store or on Spark are not waited for."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)
