"""Shows what a command found: once, or anew every two seconds until Ctrl-C.

On a terminal it is refreshed in place; elsewhere each look is a block of its own.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from moorage.cli.kubectl import Refused
from moorage.cli.output import Output, complain, one_line, print_document, terminable
from moorage.texts import time_text
from moorage_state.errors import Retryable

Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it anew every two seconds, until Ctrl-C.")
]
_EVERY_SECONDS = 2.0
_ENDLESS = 1 << 20
"""A line of a pipe is never broken."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a look found.

    Attributes:
        fields: for programs.
        gone: why there is nothing more to look at; empty while there is.
    """

    view: RenderableType
    fields: object
    gone: str = ""


Look = Callable[[int | None], Shown]
"""Looks once; given how many lines there are to show it, None for any number."""


def show(command: str, look: Look, output: Output, *, watch: bool) -> None:
    """Show what a look finds."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_ENDLESS)
    if not watch:
        _print(command, look(None), output, console)
        return
    with terminable():
        try:
            _again(command, look, output, console)
        except KeyboardInterrupt:
            return


def _again(command: str, look: Look, output: Output, console: Console) -> None:
    with ExitStack() as stack:
        live: Live | None = None
        if output == "table" and console.is_terminal and not console.is_dumb_terminal:
            live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")
        seen: Shown | None = None
        while True:
            trouble = ""
            try:
                seen = look(console.height - 2 if live else None)
            except (Refused, Retryable) as error:
                if seen is None:
                    raise
                trouble = f"not seen anew: {error}"
            if live is None:
                if trouble:
                    complain(trouble)
                else:
                    _print(command, seen, output, console, again=True)
            else:
                if not live.is_started:
                    stack.enter_context(live)  # what fails at once leaves nothing
                above = [Text(one_line(f"! {trouble}"), style="red")] if trouble else []
                live.update(Group(*above, seen.view), refresh=True)
            if seen.gone:
                break
            time.sleep(_EVERY_SECONDS)
    complain(seen.gone)


def _print(
    command: str, shown: Shown, output: Output, console: Console, *, again: bool = False
) -> None:
    if output != "table":
        if again and output == "yaml":
            typer.echo("---")
        print_document(command, shown.fields, output)
        return
    if again:
        typer.echo(f"-- {time_text(datetime.now(UTC))}")
    console.print(shown.view)
