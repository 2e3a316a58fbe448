"""A finished benchmark as text: Markdown for files, the same table for the terminal. Pure."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from benchmarks.params import ENGINES, SHAPES, Parameters
from benchmarks.request import EngineRun
from benchmarks.results import Cost, Figure, Goal, Spread, costs, figures, goals

__all__ = ["cost_line", "goal_line", "markdown", "notes", "run_line", "tables"]

_HEADINGS = (
    "engine",
    "rows/s",
    "low-high",
    "Moorage is",
    "CPU s/M rows",
    "by CPU",
    "runs",
)


def run_line(run: EngineRun) -> str:
    """One line for a run that has just ended."""
    name = f"{ENGINES[run.engine].title}, {SHAPES[run.shape].title}"
    if run.error:
        return f"{name}: no figure: {run.error}"
    figure = figures([run])[0]
    return (
        f"{name}: {figure.rate.median:,.0f} rows/s in {figure.batches} batches; answer right on "
        f"{run.checked_rows:,} rows, {run.checked_keys:,} keys; took {run.seconds:.0f} s; load "
        f"before {run.load:.1f}"
    )


def tables(measured: Sequence[Figure]) -> list[Table]:
    """The figures for the terminal, a table for each shape."""
    made = []
    for shape in SHAPES.values():
        rows = [_cells(f) for f in measured if f.shape == shape.name]
        if not rows:
            continue
        one = Table(title=shape.title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
        for i, heading in enumerate(_HEADINGS):
            one.add_column(heading, justify="left" if i == 0 else "right", no_wrap=i == 0)
        for row in rows:
            one.add_row(*row)
        made.append(one)
    return made


def markdown(params: Parameters, runs: Sequence[EngineRun], machine: Mapping[str, str]) -> str:
    """The whole report: where it ran, figures by shape, goals, every run, how to read it."""
    measured = figures(runs)
    blocks = ["# Count and sum per key"]
    blocks.append("\n".join(f"- {name}: {value}" for name, value in machine.items()))
    for shape in SHAPES.values():
        rows = [_cells(f) for f in measured if f.shape == shape.name]
        if rows:
            blocks += [f"## {shape.title.capitalize()}", _markdown_table(_HEADINGS, rows)]
    lines = [*map(goal_line, goals(measured)), *map(cost_line, costs(measured))]
    blocks.append("\n".join(f"- {line}" for line in lines))
    blocks += ["## How to read it", *notes(params)]
    blocks += ["## Every run", "\n".join(f"- {run_line(run)}" for run in runs)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def goal_line(goal: Goal) -> str:
    """Whether a goal was reached, as a sentence."""
    return (
        f"goal {'reached' if goal.reached else 'missed'}: {goal.ratio:.1f} times "
        f"{ENGINES[goal.engine].title} with {SHAPES[goal.shape].title}; the goal is "
        f"{goal.at_least:g}"
    )


def cost_line(cost: Cost) -> str:
    """Whether a limit is kept, as a sentence."""
    return (
        f"limit {'kept' if cost.kept else 'not kept'}: {ENGINES[cost.engine].title} takes "
        f"{cost.ratio:.3f} times the processor time for a row, with {SHAPES[cost.shape].title}; "
        f"at most {cost.at_most:g}"
    )


def notes(params: Parameters) -> list[str]:
    """What a reader must know to read the figures right."""
    width = params.parallelism
    return [
        (
            f"All engines read the same Parquet files of {params.rows:,} rows, one per batch, with "
            f"{width} task slots, {width} shuffle partitions or subtasks, and all their processes "
            f"on {width} processors; each run is a fresh process."
        ),
        (
            f"Measured are the batches that begin after {params.warmup_files} of "
            f"{params.warmup_rows:,} rows and after {params.warmup_seconds:g} s, for "
            f"{params.steady_seconds:g} s or longer; a run's figure is the rows of those batches "
            f"by their time. For Spark a batch's time is triggerExecution of its progress; for "
            f"Moorage it is all the wall-clock time between two committed epochs."
        ),
        (
            f"Moorage takes a checkpoint every {params.checkpoint_seconds} s into a file:// store, "
            f"Spark's operators write a changelog with each batch. Moorage and "
            f"transformWithState write one row for each input row through their exactly-once "
            f"Parquet sinks; what emits per key, and the aggregation, emit one row for each key "
            f"and batch, which goes to the noop sink."
        ),
        (
            "Ratios are of runs of the same round. No figure is shown unless the answer of the "
            "whole run, warm-up included, was equal to that of pandas."
        ),
    ]


def _cells(figure: Figure) -> list[str]:
    cpu = figure.cpu_per_million
    return [
        ENGINES[figure.engine].title,
        f"{figure.rate.median:,.0f}",
        _range(figure.rate.low / 1000, figure.rate.high / 1000, "k", 1),
        _times(figure.ratio),
        f"{cpu.median:.1f}" if cpu else "",
        _times(figure.cpu_ratio),
        str(figure.runs),
    ]


def _times(ratio: Spread | None) -> str:
    """A ratio and, of several rounds, its range."""
    if ratio is None:
        return ""
    digits = 2 if ratio.median < 3 else 1
    between = _range(ratio.low, ratio.high, "", digits)
    return f"{ratio.median:.{digits}f}x" + (f" ({between})" if between else "")


def _range(low: float, high: float, unit: str, digits: int) -> str:
    """Nothing where both are the same, so for a single run."""
    return "" if low == high else f"{low:.{digits}f}-{high:.{digits}f}{unit}"


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [headings, rule, *rows])
