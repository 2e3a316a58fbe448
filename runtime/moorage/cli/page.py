"""`moorage report`, `moorage ui`, and the page of a run: what `moorage.page` draws."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from moorage.cli.output import Output, print_found
from moorage.driver.types import JobProgress, RunOptions, RunResult
from moorage.redaction import Redactor
from moorage_api import StatefulSparkJob
from moorage_state.errors import UserError

if TYPE_CHECKING:
    from moorage.offline.description import Description
    from moorage.offline.listing import Listing

Runner = Callable[
    [StatefulSparkJob, Path, RunOptions, Callable[[JobProgress], None]],
    RunResult,
]
PAGE_PORT = 7780
_STORE_SECONDS = 60.0
"""What a store may take to be listed."""
Store = Annotated[
    str,
    typer.Argument(metavar="DIR", help="A checkpoint directory (path or URL), or JOB.yaml."),
]


def redactor_of(job: StatefulSparkJob) -> Redactor:
    """Takes out of texts about a job what is secret of its settings and variables, and of ours."""
    given = {variable.name: variable.value or "" for variable in job.spec.application.env}
    return Redactor({**job.spec.spark_conf, **os.environ, **given})


@contextmanager
def watched(
    runner: Runner, job: StatefulSparkJob, port: int | None, say: Callable[[str], None]
) -> Iterator[Runner]:
    """The runner, and meanwhile a page of what it reports; without a port the runner alone.

    Where the port cannot be had it says so: a job does not wait for somebody to look at it.
    """
    if port is None:
        yield runner
        return
    from moorage.driver.lookups import StateLookups
    from moorage.page.history import RunHistory
    from moorage.page.render import drawn_run
    from moorage.page.server import PageServer

    history, lookups = RunHistory(job.name), StateLookups()
    clean = redactor_of(job)

    def run(
        job: StatefulSparkJob,
        directory: Path,
        options: RunOptions,
        heard: Callable[[JobProgress], None],
    ) -> RunResult:
        def both(progress: JobProgress) -> None:
            history(progress)
            # Known once it is known what the run begins from: one that is refused has no page.
            if progress.configuration and not told:
                told.append(True)
                say(f"page: {server.url}")
            heard(progress)

        return runner(job, directory, replace(options, lookups=lookups), both)

    try:
        server = PageServer(partial(drawn_run, history, clean), port=port, lookups=lookups)
    except UserError as error:
        say(f"{error}; the job runs without it")
        yield runner
        return
    told: list[bool] = []
    try:
        yield run
    finally:
        server.close()


def report(
    directory: Store,
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
    output: Output = "table",
) -> None:
    """Write what a store holds, without any job, as one HTML file that needs nothing else."""
    from moorage.page.render import rendered
    from moorage.page.store_views import page_of_store

    now = datetime.now(UTC)
    text = rendered(page_of_store(*_look(directory, now), now, Redactor(os.environ)))
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"the report cannot be written: path={out} error={error.strerror}; name another "
            f"file with --out"
        ) from error
    print_found("report", {"file": str(out)}, output, lambda _: typer.echo(str(out)))


def ui(
    directory: Store,
    *,
    page: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="Where it is served.")
    ] = PAGE_PORT,
    output: Output = "table",
) -> None:
    """Show what a store holds, without any job, at http://localhost:7780 until Ctrl-C."""
    from moorage.page.render import drawn_store
    from moorage.page.server import PageServer

    look = partial(_look, directory)
    look(datetime.now(UTC))  # what is wrong with it is told here, and no page is served
    server = PageServer(
        partial(drawn_store, look, Redactor(os.environ)), port=page, seconds=_STORE_SECONDS
    )
    print_found("ui", {"url": server.url}, output, lambda _: typer.echo(server.url))
    try:
        _wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


def _look(directory: str, now: datetime) -> "tuple[Listing, Description | None]":
    """What lies there, and what its restore point holds if it can be read."""
    from moorage.offline.description import describe
    from moorage.offline.listing import list_snapshots
    from moorage.offline.lookup import directories_of, find, of_a_job

    directories = directories_of(directory)
    with of_a_job(directory):
        found = list_snapshots(directories, now)
    if not any(row.standing == "restore point" and not row.problem for row in found.checkpoints):
        return found, None
    return found, describe(find(directories.checkpoints))


def _wait() -> None:
    Event().wait()
