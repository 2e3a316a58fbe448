"""What a shell completes: names of jobs and snapshots, in `moorage` and in `kubectl moorage`.

Typer answers shells for `moorage`, and asks here which checkpoints and savepoints a job has. For
the plugin kubectl's completion asks `kubectl_complete-moorage`, beside it on the PATH.

kubectl (1.26 and later) calls it with the words after `kubectl moorage`, the last of which is to be
completed, and reads a choice a line, with what it is after a tab, and then `:` and what a shell is
to do. Names of jobs and snapshots are asked of the cluster; where that does not answer there are
none.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

import typer

from moorage.cli.kubectl import JOBS, SNAPSHOTS, Cluster, Refused, kubectl_of
from moorage.cli.output import one_line

_SECONDS = 3.0
"""For names: who has pressed the key waits."""

_NO_FILES = 4
"""Cobra's word to a shell: where nothing fits there are no names of files either."""


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The jobs of the namespace that begin so."""
    return _names(ctx, JOBS, incomplete)


def snapshot_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The snapshots of the namespace that begin so; of the job's alone, if it is said already."""
    job = ctx.params.get("job")
    return _names(ctx, SNAPSHOTS, incomplete, f"moorage.dev/job={job}" if job else "")


def _names(ctx: typer.Context, kind: str, incomplete: str, selector: str = "") -> list[str]:
    given = ctx.params
    cluster = Cluster(kubectl_of(given.get("context"), given.get("namespace"), _SECONDS))
    try:
        names = [str(one["metadata"]["name"]) for one in cluster.list(kind, selector)]
    except (Refused, OSError, ValueError, KeyError, subprocess.SubprocessError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def restore_points(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """What a job can go back to that begins so, newest first, with what it is.

    The job is that of the manifest, or the directory, which is said before.
    """
    # While an option waits for its value, click has arguments unnamed.
    where = ctx.params.get("manifest") or ctx.params.get("path") or next(iter(ctx.args), None)
    found: list[tuple[str, str]] = []
    if where is None:
        return found

    def read() -> None:
        # Here, and not above: what kubectl asks needs none of it.
        from moorage.cli.history import entries_of

        # What is wrong with the manifest or its store the command says; a key is answered or not.
        with suppress(Exception):
            now = datetime.now(UTC)
            found.extend(
                (one.name, f"{one.type}, epoch {one.epoch}")
                for one in entries_of(str(where), now)[0]
                if one.name.startswith(incomplete) and not one.message
            )

    # A store that does not answer is asked for minutes, with nobody who could end it.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(_SECONDS)
    return [] if reader.is_alive() else found


RestorePoint = Annotated[
    str | None,
    typer.Option(
        metavar="chk-N|NAME|PATH",
        help="Begin from this checkpoint or savepoint.",
        autocompletion=restore_points,
    ),
]
"""What a start is told to begin from."""


def choices(app: typer.Typer, words: Sequence[str]) -> Iterator[str]:
    """The lines for kubectl: what the last of the words may become."""
    *before, incomplete = words or ("",)
    for one in _items(typer.main.get_command(app), before, incomplete):
        about = one_line((one.help or "").strip())
        yield f"{one.value}\t{about}" if about else str(one.value)
    yield f":{_NO_FILES}"


def _items(group: Any, before: Sequence[str], incomplete: str) -> Sequence[Any]:
    # Typer brings a click of its own by now, and an earlier one the real: only what both have is
    # asked here, which leaves the way through the words to us.
    if not before:
        with group.make_context("kubectl moorage", [], resilient_parsing=True) as ctx:
            return [*group.shell_complete(ctx, incomplete)]
    command = group.commands.get(before[0])
    if command is None:
        return ()
    with command.make_context(before[0], [*before[1:]], resilient_parsing=True) as ctx:
        if (option := _open_option(command, before[-1])) is not None:
            return [*option.shell_complete(ctx, incomplete)]
        if incomplete.startswith("-"):
            return [*command.shell_complete(ctx, incomplete)]
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        free = (one for one in arguments if ctx.params.get(one.name) is None)
        return [*one.shell_complete(ctx, incomplete)] if (one := next(free, None)) else ()


def _open_option(command: Any, word: str) -> Any:
    """The option that waits for its value."""
    options = (one for one in command.params if one.param_type_name == "option")
    return next((one for one in options if word in one.opts and not one.is_flag), None)


def main() -> NoReturn:
    """The console script `kubectl_complete-moorage`."""
    # Here: the plugin's arguments are completed by what stands above.
    from moorage.cli.cluster_jobs import plugin

    for line in choices(plugin, sys.argv[1:]):
        typer.echo(line)
    sys.exit(0)
