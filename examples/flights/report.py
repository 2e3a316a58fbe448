"""What the demo has to tell in the end, as tables.

Pure functions: results in, renderables out. Called by the demo.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from oracle import Comparison
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["Left", "Step", "differences", "samples", "steps", "verdict"]

_SHOWN_AIRCRAFT = 10
_SAMPLES = {
    "most flights": "departures",
    "most delay": "delay",
    "longest run": "longest_late_run",
    "most absences": "absences",
}


@dataclass(frozen=True, slots=True)
class Step:
    """Something the demo did.

    Attributes:
        name: what.
        rows: how many rows it went through.
        seconds: how long it took, with everything.
        rate: rows per second once the stream was running; 0 where that says nothing.
        first_epoch: where it ran the job, its first epoch, else 0.
        last_epoch: where it ran the job, its last epoch, else 0.
    """

    name: str
    rows: int
    seconds: float
    rate: float = 0.0
    first_epoch: int = 0
    last_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """What a killed job has left on disk.

    Attributes:
        checkpoint_id: its latest completed checkpoint.
        epoch: the last epoch in it.
        published: entries that can be read.
        staged: files with output of epochs that no checkpoint covers.
    """

    checkpoint_id: int
    epoch: int
    published: int
    staged: int


def steps(laid_out: Step, first: Step, left: Left, second: Step, checked: Step) -> Table:
    """What was done, and how fast."""
    table = _table("What happened", "step", numbers=("epochs", "rows", "seconds", "rows/s"))
    table.caption = "rows/s: once the stream was running; seconds: with everything"
    table.caption_justify = "left"
    replayed = max(0, first.rows + second.rows - laid_out.rows)
    table.add_row(*_cells(laid_out))
    table.add_row(*_cells(first))
    table.add_row(
        f"back to checkpoint {left.checkpoint_id}",
        _epochs(1, left.epoch),
        f"{laid_out.rows - second.rows:,}",
    )
    table.add_row(*_cells(second))
    table.add_row(
        "  done before the kill, and again",
        _epochs(second.first_epoch, first.last_epoch),
        f"{replayed:,}",
    )
    table.add_row(*_cells(checked))
    return table


def _cells(step: Step) -> tuple[str, ...]:
    rate = f"{step.rate:,.0f}" if step.rate else ""
    epochs = _epochs(step.first_epoch, step.last_epoch) if step.first_epoch else ""
    return step.name, epochs, f"{step.rows:,}", f"{step.seconds:.1f}", rate


def _epochs(first: int, last: int) -> str:
    return f"{first} to {last}" if last >= first else "none"


def _table(title: str, *texts: str, numbers: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.title, table.title_style, table.title_justify = f"\n{title}", "bold", "left"
    for name in texts:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def differences(comparison: Comparison) -> Table:
    """How what was published differs from what is right."""
    table = _table("Published and expected", "entries", numbers=["number"])
    table.add_row("expected", f"{comparison.expected:,}")
    table.add_row("published", f"{comparison.published:,}")
    table.add_row("not published", _should_be_none(comparison.missing))
    table.add_row("published, but not expected", _should_be_none(comparison.surplus))
    table.add_row("published twice", _should_be_none(comparison.twice))
    table.add_row("different", _should_be_none(comparison.different), end_section=True)
    table.add_row("aircraft compared", f"{comparison.aircraft:,}")
    table.add_row("aircraft that differ", _should_be_none(len(comparison.wrong_aircraft)))
    return table


def _should_be_none(number: int) -> Text:
    return Text(f"{number:,}", style="bold red" if number else "bold green")


def samples(logbooks: pd.DataFrame) -> Table:
    """A few aircraft of the published result, each first in something."""
    numbers = ("flights", "hours late", "late run", "absences")
    table = _table("Some aircraft at the end of 2013", "", "aircraft", "last to", numbers=numbers)
    table.caption = "late run: delayed departures in a row; absences: of more than ten days"
    table.caption_justify = "left"
    for reason, column in _SAMPLES.items() if len(logbooks) else ():
        row = logbooks.loc[logbooks[column].idxmax()]
        hours = f"{row.delay / 60:.0f}"
        figures = (row.departures, hours, row.longest_late_run, row.absences)
        table.add_row(reason, row.tailnum, row.last_dest, *map(str, figures))
    return table


def verdict(comparison: Comparison) -> RenderableType:
    """The outcome in words."""
    if comparison.equal:
        return Text(
            f"\nAll {comparison.aircraft:,} aircraft are right, and every entry was published "
            f"exactly once: the kill has left no trace.",
            style="bold green",
        )
    wrong = comparison.wrong_aircraft
    more = f" and {len(wrong) - _SHOWN_AIRCRAFT:,} more" if len(wrong) > _SHOWN_AIRCRAFT else ""
    lines = [
        f"\n{len(wrong):,} aircraft are WRONG: {', '.join(wrong[:_SHOWN_AIRCRAFT])}{more}",
        *comparison.examples,
    ]
    return Text("\n".join(lines), style="bold red")
