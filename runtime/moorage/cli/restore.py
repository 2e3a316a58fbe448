"""What `moorage restore` does before it runs the job: what it goes back to, and the run that ends.

The restore point is found, told and agreed to first. The command itself runs the job.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from moorage.cli.checks import restore_url
from moorage.cli.output import Output, complain, one_line
from moorage.offline.lookup import find
from moorage_api import StatefulSparkJob
from moorage_state.errors import MoorageError, Retryable, UserError

if TYPE_CHECKING:
    from moorage.driver.run_status import RunStatus

_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 0.2


def goes_back_to(
    manifest: Path,
    job: StatefulSparkJob,
    snapshot: str,
    *,
    ask: bool,
    output: Output,
    timeout: float,
) -> str:
    """The restore point as a run is told it, once no other run is left.

    Args:
        ask: somebody is to agree to it.
        timeout: how many seconds a run has for its end.

    Raises:
        UserError: there is none of this name, or nobody can be asked.
        CorruptState: it is damaged.
        StoreUnavailable: the store does not answer.
        Retryable: the run has not ended in time.
        Abort: it was not agreed to.
    """
    chosen = restore_url(snapshot) or snapshot
    found = find(chosen) if "://" in chosen else find(str(manifest), chosen)
    if ask and output != "table":
        raise UserError(f"nobody is asked where a program reads: output={output}; add --yes")
    look = _look_at(manifest, job)
    running = look()
    if ask:
        ends = f" Its run ends: process {running.pid}." if running else ""
        what = f"{snapshot}, as of epoch {found.snapshot.manifest.epoch}"
        told = f"{job.name} goes back to {what}; what it did since is undone.{ends} Go on?"
        typer.confirm(one_line(told), abort=True)
    if running is not None:
        _end(running.pid, look, timeout)
    return chosen


def _look_at(manifest: Path, job: StatefulSparkJob) -> "Callable[[], RunStatus | None]":
    """A function that asks how the job's run on this machine is; None: there is none."""
    # Here, and not above: the rest works without what the driver needs.
    from moorage.driver.control import NotRunning, ask_for_status, control_path
    from moorage.driver.settings import JobSettings

    settings = JobSettings.of(job, manifest.absolute().parent)
    door = control_path(settings.checkpoint_dir)

    def look() -> "RunStatus | None":
        try:
            return ask_for_status(door, _ANSWER_SECONDS)
        except NotRunning:
            return None

    return look


def _end(process: int, look: "Callable[[], RunStatus | None]", timeout: float) -> None:
    """Have a run take a last checkpoint and end: what is undone can be gone back to."""
    complain(f"the run that goes on takes a last checkpoint and ends: process={process}")
    os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    # It hears nobody any more before it lets go of the directory, as the last thing.
    while _answers(look):
        if time.monotonic() > deadline:
            raise Retryable(
                f"the run has not ended in {timeout:g} s: process={process}; see what it says, or "
                f"end it with kill -9 and restore again"
            )
        time.sleep(_POLL_SECONDS)


def _answers(look: "Callable[[], RunStatus | None]") -> bool:
    try:
        return look() is not None
    except MoorageError:
        return True  # it is about to end, and may be asked once more
