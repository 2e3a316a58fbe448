"""Runs a job to its end under a terminal's rules: progress, Ctrl-C, a second Ctrl-C.

The job runs in a thread of its own. So the main thread is always free to take a signal at once, and
Spark, which installs its own Ctrl-C handler when it is started from the main thread, cannot.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from moorage.cli.progress import Display
from moorage.driver.types import Progress, RunOptions, RunResult
from moorage_api import StatefulSparkJob

__all__ = ["Runner", "run_session"]

Runner = Callable[
    [StatefulSparkJob, Path, RunOptions, Callable[[Progress], None]],
    RunResult,
]

# SIGHUP: the terminal was closed; SIGTERM: a shutdown, `kill`, `docker stop`.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OUTPUTS = (1, 2)
_POLL_SECONDS = 0.2
_SAME_SECONDS = 1.0
"""Two signals so close are one: `timeout` signals us and then our group, a shell and the kernel
both tell of a closed terminal, and service managers send SIGTERM and SIGHUP together."""


def run_session(
    runner: Runner, job: StatefulSparkJob, job_dir: Path, options: RunOptions, display: Display
) -> RunResult:
    """Run `job` and return how it ended; must be called from the main thread.

    The first signal sets `options.stop`. A second one, a second or more later, raises
    KeyboardInterrupt here while the runner still works: the caller must end the process. Errors of
    the runner are raised as they are.
    """
    box: list[RunResult | BaseException] = []

    def work() -> None:
        try:
            box.append(runner(job, job_dir, options, display))
        except BaseException as error:  # noqa: BLE001 - carried to the main thread and raised there
            box.append(error)

    thread = threading.Thread(target=work, name="moorage-driver", daemon=True)
    with display, _signals_stop(options.stop, display):
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
    outcome = box[0]
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _let_go(terminals: list[int]) -> None:
    """Have what goes to a terminal that was closed go nowhere: it must not fail the job's end."""
    for number in terminals:
        if not os.isatty(number):
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, number)
            os.close(nowhere)


@contextmanager
def _signals_stop(stop: threading.Event, display: Display) -> Iterator[None]:
    first: float | None = None
    terminals = [number for number in _OUTPUTS if os.isatty(number)]

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is not None:
            if now - first < _SAME_SECONDS:
                return
            raise KeyboardInterrupt
        first = now
        stop.set()
        _let_go(terminals)
        again = "press Ctrl-C again" if number == signal.SIGINT else "send a second signal"
        name = signal.Signals(number).name
        display.say(f"{name}: taking a last checkpoint; {again} to quit without it")

    # One that was ignored already stays so: that is what `nohup` asks for.
    taken = [n for n in _SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
