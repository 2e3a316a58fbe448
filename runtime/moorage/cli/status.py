"""`moorage status`: jobs that run on this machine, and what lies in the store of one that does not.

Decides forms of output; a run is asked by its socket, a store is read.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moorage.cli.output import Output, complain, one_line, print_document, print_table
from moorage.texts import age_text, size_text, snapshot_size_text, watermark_text
from moorage_state.errors import MoorageError, UserError

if TYPE_CHECKING:
    from moorage.driver.run_status import RunStatus
    from moorage.driver.views import SubtaskView
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
    output: Output = "table",
) -> None:
    """How a job that runs on this machine is; or what is in its store, if it does not run."""
    now = datetime.now(UTC)
    if job is None:
        _all_jobs(now, output)
        return
    from moorage.driver.control import NotRunning, ask_for_status, control_path

    if (beside := Path(job) / "job.yaml").is_file():
        job = str(beside)
    try:
        found = ask_for_status(control_path(_checkpoint_dir(job)), _ANSWER_SECONDS)
    except NotRunning:
        _stored(job, now, output)
        return
    if output != "table":
        print_document("status", {"running": True, "run": found}, output)
        return
    for line in run_tree(found, now):
        typer.echo(one_line(line))


def _checkpoint_dir(job: str) -> str:
    """The directory as the run has it: that names its socket."""
    from moorage.driver.settings import JobSettings
    from moorage.offline.lookup import directories_of, names_manifest
    from moorage_api import load_manifest

    if not names_manifest(job):
        return directories_of(job).checkpoints
    manifest = Path(job)
    return JobSettings.of(load_manifest(manifest), manifest.absolute().parent).checkpoint_dir


def _all_jobs(now: datetime, output: Output) -> None:
    from moorage.driver.control import NotRunning, ask_for_status, control_sockets

    found: list[RunStatus] = []
    for path in control_sockets():
        try:
            found.append(ask_for_status(path, _ANSWER_SECONDS))
        except NotRunning:
            continue  # a run that was killed left its socket
        except MoorageError as error:
            complain(f"a job does not say how it is: socket={path}: {error}")
    if output != "table":
        print_document("status", {"jobs": found}, output)
        return
    if not found:
        typer.echo("no job runs on this machine as this user; see a store with: moorage status DIR")
        return
    header = ("NAME", "PHASE", "SUBTASKS", "EPOCH", "ROWS/S", "CHECKPOINT", "REWINDS", "DIRECTORY")
    print_table(header, [_row(one, now) for one in found])


def _row(found: "RunStatus", now: datetime) -> tuple[str | int | None, ...]:
    last = found.last_checkpoint
    return (
        found.job,
        found.phase,
        found.parallelism,
        found.epoch,
        round(found.rows_per_second),
        _age(last.completed_at, now) if last else None,
        found.rewinds,
        found.checkpoint_dir,
    )


def run_tree(found: "RunStatus", now: datetime) -> Iterator[str]:
    """The lines of a job that runs: what is wrong, who does what, what it could go back to."""
    yield f"{found.job}  {found.phase}"
    for text in (found.storage_error, found.message):
        if text:
            yield f"! {text}"
    if found.last_failure is not None:
        failure = found.last_failure
        yield f"! last failure of a checkpoint: {failure.code}: {failure.message}"
    rows = f"{found.rows:,} rows, {found.rows_per_second:,.0f} rows/s"
    odd = f", {found.late_rows:,} late" if found.late_rows else ""
    odd += f", {found.null_keys:,} with a null key" if found.null_keys else ""
    yield f"├─ stream: epoch {found.epoch}, {rows}{odd}, state {size_text(found.state_bytes)}"
    if found.epoch_began is not None:
        yield f"├─ epoch {found.epoch + 1} under way for {_age(found.epoch_began, now)}"
    for one in found.watermarks:
        yield f"├─ watermark of {one.uid}: {watermark_text(one.time_ms, one.held_by, now)}"
    yield f"├─ driver: process {found.pid}, began from {found.restored_from or 'nothing'}"
    yield from _servers(found.subtasks, found)
    counts = f"{found.completed_checkpoints} completed, {found.failed_checkpoints} failed"
    yield f"├─ rewinds: {found.rewinds}; checkpoints of this run: {counts}"
    last, savepoint = found.last_checkpoint, found.last_savepoint
    told = "none yet"
    if last is not None:
        told = f"{last.checkpoint_id}, {_age(last.completed_at, now)} ago, epoch {last.epoch}, "
        told += snapshot_size_text(last.bytes_total, last.bytes_uploaded)
    yield f"├─ checkpoint: {told}"
    told = "none by this run"
    if savepoint is not None:
        told = f"{savepoint.name}, epoch {savepoint.epoch}, {size_text(savepoint.bytes_total)}"
    yield f"└─ savepoint: {told}"


def _servers(subtasks: "Sequence[SubtaskView]", found: "RunStatus") -> Iterator[str]:
    """State servers, and below each the subtasks whose state it has."""
    places: dict[str, list[SubtaskView]] = {}
    for one in subtasks:
        if one.key_groups is not None:
            places.setdefault(one.place, []).append(one)
    groups = f"{found.parallelism} subtasks of {found.max_parallelism} key groups"
    yield f"├─ {groups}" + ("" if places else "; none has done anything yet")
    for number, (place, some) in enumerate(places.items(), 1):
        yield f"├─ state server {number}: {place}"
        for one in some:
            mark = "└─" if one is some[-1] else "├─"
            what = (
                f"key groups {one.key_groups[0]} to {one.key_groups[1]}" if one.key_groups else ""
            )
            rows = f"{one.rows_in:,} rows in, {one.rows_out:,} out"
            size = size_text(one.state_bytes)
            yield f"│  {mark} {one.uid} {one.subtask}: {what}, {rows}, state {size}"


def _stored(job: str, now: datetime, output: Output) -> None:
    """What a job that does not run here could go on from."""
    from moorage.offline.description import describe
    from moorage.offline.lookup import find

    point: Description | None = None
    problem = ""
    try:
        point = describe(find(job))
    except UserError as error:
        problem = str(error)
    if output != "table":
        fields = {"running": False, "restore_point": point, "problem": problem}
        print_document("status", fields, output)
        return
    for line in _stored_tree(job, point, problem, now):
        typer.echo(one_line(line))


def _stored_tree(
    job: str, point: "Description | None", problem: str, now: datetime
) -> Iterator[str]:
    if point is None:
        yield f"{job}  does not run on this machine as this user"
        yield f"└─ nothing to go on from: {problem}"
        return
    yield f"{point.job}  does not run on this machine as this user"
    taken = f"chk-{point.checkpoint_id}, {_age(point.created_at, now)} ago, epoch {point.epoch}"
    yield f"├─ it would go on from {taken}, {size_text(point.bytes)}"
    for operator in point.operators:
        yield f"├─ {operator.uid}: {operator.parallelism} subtasks, {size_text(operator.bytes)}"
    yield f"└─ more: moorage snapshots ls {job}"


def _age(moment: datetime, now: datetime) -> str:
    return age_text(max(0, int((now - moment).total_seconds()))) or ""
