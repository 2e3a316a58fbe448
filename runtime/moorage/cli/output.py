"""How commands print what they found: aligned text, JSON or YAML on standard output.

JSON and YAML are one document whose first fields are `format` (the version of the form; fields may
be added under the same one) and `command`. What a store holds cannot bring control characters onto
a terminal.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from types import FrameType
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import typer
import yaml
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from moorage.cli.exit_codes import ExitCode
from moorage.redaction import redact
from moorage_state.errors import Bug

_FORMAT = 1

Output = Annotated[
    Literal["table", "json", "yaml"],
    typer.Option("--output", "-o", help="Text for people, or one document for programs."),
]

Where = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="DIR/chk-N, a savepoint's directory, or DIR or JOB.yaml for the restore point.",
        show_default=False,
    ),
]

_Cell = str | int | None
_T = TypeVar("_T")


def print_document(command: str, fields: object, output: Output) -> None:
    """Print one document; `fields` is a mapping or a dataclass."""
    plain = msgspec.to_builtins(fields, builtin_types=(datetime,))
    head = {"format": _FORMAT, "command": command}
    if clash := head.keys() & plain.keys():
        raise Bug(f"fields of a result hide those of the document: fields={sorted(clash)}")
    encoded = msgspec.json.encode(head | plain)
    if output == "yaml":
        # From the JSON, so that both have the same values, written in the same way.
        document = msgspec.json.decode(encoded)
        typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True).rstrip())
    else:
        typer.echo(msgspec.json.format(encoded, indent=2).decode())


def print_found(command: str, found: _T, output: Output, show: Callable[[_T], None]) -> None:
    """Print a result as a document, or let `show` print it for people."""
    if output == "table":
        show(found)
    else:
        print_document(command, found, output)


@dataclass(frozen=True, slots=True)
class SavepointFound:
    """What `savepoint` prints for programs, of a job on this machine and of one on a cluster.

    Attributes:
        done: whether it is complete; False of one that was only ordered.
        url: where it is or will be; None where nobody says.
        snapshot: its object on a cluster; None on one machine.
    """

    job: str
    done: bool
    name: str
    url: str | None
    snapshot: str | None = None
    checkpoint_id: int | None = None
    epoch: int | None = None
    bytes_total: int | None = None
    completed_at: datetime | str | None = None


def print_savepoint(found: SavepointFound, output: Output) -> None:
    """Print its address, or all of it for programs."""
    print_found("savepoint", found, output, lambda one: typer.echo(one_line(one.url or "")))


def print_table(header: Sequence[str], rows: Sequence[Sequence[_Cell]]) -> None:
    """Print columns, as `table_lines` has them."""
    for line in table_lines(header, rows):
        typer.echo(line)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[_Cell]]) -> Iterator[str]:
    """Columns as wide as their content; numbers to the right, `-` where there is nothing."""
    texts = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    numeric = [
        bool(rows) and all(isinstance(row[n], int | None) for row in rows)
        for n in range(len(header))
    ]
    for line in (header, *texts):
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        yield "  ".join(cells).rstrip()


def print_pairs(pairs: Mapping[str, _Cell]) -> None:
    """Print names and values, one a line."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        typer.echo(f"{name.ljust(width)}  {_cell(value)}".rstrip())


def one_line(text: str) -> str:
    """The text with everything escaped that is no printable character."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def complain(text: str) -> None:
    """Print a line to standard error."""
    typer.echo(redact(f"moorage: {one_line(text)}", os.environ), err=True)


@contextmanager
def progress_bar(label: str, unit: Literal["bytes", "ranges"]) -> Iterator[Callable[..., None]]:
    """A bar on a terminal, nothing elsewhere; gives a function of (how many more, of how many)."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda _more, _total: None
        return
    amount = DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)

        def advance(more: int, total: int) -> None:
            bar.update(task, advance=more, total=total)

        yield advance


@contextmanager
def waiting_bar() -> Iterator[Callable[..., None]]:
    """A bar on a terminal for what somebody else does, with what he says; lines elsewhere.

    Gives a function of (text, how many are done, of how many, more); without numbers the bar
    swings. A text is a line when it is new; `more` changes all the time, and is for the bar alone.
    """
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        told: list[str] = []

        def line(text: str, _done: int = 0, _of: int | None = None, _more: str = "") -> None:
            if told[-1:] != [text]:
                told.append(text)
                complain(text)

        yield line
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, count="")

        def show(text: str, done: int = 0, of: int | None = None, more: str = "") -> None:
            count = "" if of is None else f"{done}/{of}"
            told = one_line(text + more)
            bar.update(task, description=told, completed=done, total=of, count=count)

        yield show


@contextmanager
def stoppable(what_is_left: str) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a command in order; says `what_is_left`, done and not done."""
    with terminable():
        try:
            yield
        except KeyboardInterrupt:
            complain(f"interrupted; {what_is_left}")
            sys.stdout.flush()
            raise typer.Exit(ExitCode.INTERRUPTED) from None


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM be what Ctrl-C is: a KeyboardInterrupt, so that what was begun is ended."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: Any = None
    with suppress(ValueError):  # not the main thread: then signals are somebody else's
        before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _cell(cell: _Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else one_line(cell)
