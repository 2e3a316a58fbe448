"""`moorage status`: jobs that run on this machine, and what lies in the store of one that does not.

Decides what is shown; a run is asked by its socket, a store is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from moorage.cli.job_tree import (
    DriverBranch,
    JobTree,
    by_place,
    drawn,
    run_facts,
    run_troubles,
    workers_at,
)
from moorage.cli.output import Output, complain, table_lines
from moorage.cli.watch import Shown, Watch, show
from moorage.texts import since_text, size_text, snapshot_size_text
from moorage_state.errors import MoorageError, UserError

if TYPE_CHECKING:
    from moorage.driver.run_status import RunStatus
    from moorage.offline.description import Description

_ANSWER_SECONDS = 5.0


def status(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB.yaml|DIR]",
            help="A manifest, a folder with job.yaml, or a checkpoint directory; or all jobs here.",
            show_default=False,
        ),
    ] = None,
    *,
    watch: Watch = False,
    output: Output = "table",
) -> None:
    """How a job that runs on this machine is; or what is in its store, if it does not run."""
    if job is None:
        show("status", _all_jobs, output, watch=watch)
        return
    if (beside := Path(job) / "job.yaml").is_file():
        job = str(beside)
    show("status", _OneJob(job, _checkpoint_dir(job)).look, output, watch=watch)


@dataclass(slots=True)
class _OneJob:
    """A job of this machine, looked at once or again and again."""

    job: str
    checkpoint_dir: str
    ran: str = ""
    """Its name, once it was seen to run."""

    def look(self, room: int | None) -> Shown:
        from moorage.driver.control import NotRunning, ask_for_status, control_path

        now = datetime.now(UTC)
        try:
            found = ask_for_status(control_path(self.checkpoint_dir), _ANSWER_SECONDS)
        except NotRunning:
            stored = _stored(self.job, now)
            end = f"{self.ran} runs no more" if self.ran else "there is no run to watch"
            return Shown(stored.view, stored.fields, f"{end}: job={self.job}")
        self.ran = found.job
        return Shown(drawn(run_tree(found, now), room), {"running": True, "run": found})


def _checkpoint_dir(job: str) -> str:
    """The directory as the run has it: that names its socket."""
    from moorage.driver.settings import JobSettings
    from moorage.offline.lookup import directories_of, names_manifest
    from moorage_api import load_manifest

    if not names_manifest(job):
        return directories_of(job).checkpoints
    manifest = Path(job)
    return JobSettings.of(load_manifest(manifest), manifest.absolute().parent).checkpoint_dir


def _all_jobs(_room: int | None) -> Shown:
    from moorage.driver.control import NotRunning, ask_for_status, control_sockets

    found: list[RunStatus] = []
    for path in control_sockets():
        try:
            found.append(ask_for_status(path, _ANSWER_SECONDS))
        except NotRunning:
            continue  # a run that was killed left its socket
        except MoorageError as error:
            complain(f"a job does not say how it is: socket={path}: {error}")
    text = "no job runs on this machine as this user; see a store with: moorage status DIR"
    if found:
        header = (
            *("NAME", "PHASE", "SUBTASKS", "EPOCH", "ROWS/S", "CHECKPOINT", "REWINDS"),
            "DIRECTORY",
        )
        now = datetime.now(UTC)
        text = "\n".join(table_lines(header, [_row(one, now) for one in found]))
    return Shown(Text(text), {"jobs": found})


def _row(found: "RunStatus", now: datetime) -> tuple[str | int | None, ...]:
    last = found.last_checkpoint
    return (
        found.job,
        found.phase,
        found.parallelism,
        found.epoch,
        round(found.rows_per_second),
        since_text(last.completed_at, now) if last else None,
        found.rewinds,
        found.checkpoint_dir,
    )


def run_tree(found: "RunStatus", now: datetime) -> JobTree:
    """A job that runs: what is wrong, who does what, what it could go back to."""
    last, savepoint = found.last_checkpoint, found.last_savepoint
    counts = f"{found.completed_checkpoints} completed, {found.failed_checkpoints} failed"
    taken, kept = "none yet", "none by this run"
    if last is not None:
        taken = (
            f"{last.checkpoint_id}, {since_text(last.completed_at, now)} ago, epoch {last.epoch}, "
        )
        taken += snapshot_size_text(last.bytes_total, last.bytes_uploaded)
    if savepoint is not None:
        kept = f"{savepoint.name}, epoch {savepoint.epoch}, {size_text(savepoint.bytes_total)}"
    driver = f"driver: process {found.pid}, began from {found.restored_from or 'nothing'}"
    return JobTree(
        title=f"{found.job}  {found.phase}",
        wrong=tuple(run_troubles(found)),
        facts=tuple(run_facts(found, now)),
        drivers=(DriverBranch(driver, workers_at(by_place(found.subtasks))),),
        ends=(
            f"rewinds: {found.rewinds}; checkpoints of this run: {counts}",
            f"checkpoint: {taken}",
            f"savepoint: {kept}",
        ),
    )


def _stored(job: str, now: datetime) -> Shown:
    """What a job that does not run here could go on from."""
    from moorage.offline.description import describe
    from moorage.offline.lookup import find

    point: Description | None = None
    problem = ""
    try:
        point = describe(find(job))
    except UserError as error:
        problem = str(error)
    name = point.job if point else job
    tree = JobTree(
        f"{name}  does not run on this machine as this user",
        facts=tuple(_goes_on_from(job, point, now)) if point else (),
        ends=() if point else (f"nothing to go on from: {problem}",),
    )
    return Shown(drawn(tree), {"running": False, "restore_point": point, "problem": problem})


def _goes_on_from(job: str, point: "Description", now: datetime) -> Iterator[str]:
    taken = (
        f"chk-{point.checkpoint_id}, {since_text(point.created_at, now)} ago, epoch {point.epoch}"
    )
    yield f"it would go on from {taken}, {size_text(point.bytes)}"
    for operator in point.operators:
        yield f"{operator.uid}: {operator.parallelism} subtasks, {size_text(operator.bytes)}"
    yield f"more: moorage snapshots ls {job}"
