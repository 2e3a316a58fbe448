"""`moorage report`, and the page of a run: what `moorage.page` draws, from the command line."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from moorage.driver.types import JobProgress, RunOptions, RunResult
from moorage.redaction import Redactor
from moorage_api import StatefulSparkJob
from moorage_state.errors import UserError

Runner = Callable[
    [StatefulSparkJob, Path, RunOptions, Callable[[JobProgress], None]],
    RunResult,
]


@contextmanager
def watched(
    runner: Runner, job: StatefulSparkJob, port: int | None, say: Callable[[str], None]
) -> Iterator[Runner]:
    """The runner, and meanwhile a page of what it reports; without a port the runner alone.

    Raises:
        UserError: the port cannot be listened on.
    """
    if port is None:
        yield runner
        return
    from moorage.page.history import RunHistory
    from moorage.page.render import rendered
    from moorage.page.server import PageServer
    from moorage.page.views import page_of_run

    history = RunHistory(job.name)
    clean = Redactor({**job.spec.spark_conf, **os.environ})

    def page(nonce: str) -> str:
        shown = page_of_run(history.facts(), datetime.now(UTC), clean)
        return rendered(shown, live=True, nonce=nonce)

    def run(
        job: StatefulSparkJob,
        directory: Path,
        options: RunOptions,
        heard: Callable[[JobProgress], None],
    ) -> RunResult:
        def both(progress: JobProgress) -> None:
            history(progress)
            heard(progress)

        return runner(job, directory, options, both)

    server = PageServer(page, port=port)
    try:
        say(f"page: {server.url}")
        yield run
    finally:
        server.close()


def report(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIR", help="A checkpoint directory (path or URL), or JOB.yaml."),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")
    ] = Path("report.html"),
) -> None:
    """Write what a store holds, without any job, as one HTML file that needs nothing else."""
    from moorage.offline.listing import list_snapshots
    from moorage.offline.lookup import directories_of
    from moorage.page.render import rendered
    from moorage.page.views import page_of_store

    now = datetime.now(UTC)
    found = list_snapshots(directories_of(directory), now)
    text = rendered(page_of_store(found, now, Redactor(os.environ)))
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"the report cannot be written: path={output} error={error.strerror}; name another "
            f"file with --output"
        ) from error
    typer.echo(str(output))
