"""`python -m benchmarks`: measures, prints tables, writes build/bench/results.{json,md}."""

import argparse
import datetime
import json
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks.machine import describe, load
from benchmarks.params import ENGINES, QUICK, SHAPES, EngineName, Parameters, ShapeName
from benchmarks.report import cost_line, goal_line, markdown, notes, run_line, tables
from benchmarks.request import EngineRun
from benchmarks.results import costs, failures, figures, goals
from benchmarks.schedule import measure, plan

_BUILD = Path(__file__).parents[1] / "build" / "bench"
_BUSY = 0.5

_Name = TypeVar("_Name", EngineName, ShapeName)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if every run gave a right answer, else 1."""
    asked = _parser().parse_args(arguments)
    params = _params(asked)
    planned = plan(params, _chosen(asked.shape, SHAPES), _chosen(asked.only, ENGINES))
    console = Console()
    # As for Ctrl-C: what runs is ended and the working directory is cleaned.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    machine = describe(datetime.datetime.now(datetime.UTC))
    if (busy := load()) > _BUSY:
        machine["load before"] = f"{busy:.1f}: the machine was not idle"
    work = _BUILD / "work"
    shutil.rmtree(work, ignore_errors=True)
    runs: list[EngineRun] = []
    try:
        for run in measure(params, planned, work, console.print):
            runs.append(run)
            console.print(f"{len(runs)}/{len(planned)} {run_line(run)}", soft_wrap=True)
    finally:
        if not asked.keep:
            _clean(work, keep_logs=bool(failures(runs)))
    for run in runs:
        machine |= run.versions
    _publish(console, params, runs, machine)
    return 1 if failures(runs) or not runs else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about 2 minutes; not to be quoted")
    parser.add_argument("--only", action="append", choices=ENGINES, help="an engine; repeatable")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="a shape; repeatable")
    parser.add_argument("--repeats", type=int, help="rounds")
    parser.add_argument("--rows", type=int, help="rows in a batch")
    parser.add_argument("--budget", type=float, help="seconds for everything")
    parser.add_argument("--keep", action="store_true", help="leave input and logs in build/bench")
    return parser


def _params(asked: argparse.Namespace) -> Parameters:
    base = QUICK if asked.quick else Parameters()
    changes = {"repeats": asked.repeats, "rows": asked.rows, "budget_seconds": asked.budget}
    return replace(base, **{name: value for name, value in changes.items() if value is not None})


def _chosen(asked: list[_Name] | None, known: Mapping[_Name, object]) -> list[_Name]:
    return [name for name in known if not asked or name in asked]


def _clean(work: Path, *, keep_logs: bool) -> None:
    if not keep_logs:
        shutil.rmtree(work, ignore_errors=True)
        return
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _publish(
    console: Console, params: Parameters, runs: Sequence[EngineRun], machine: dict[str, str]
) -> None:
    measured = figures(runs)
    for shape in tables(measured):
        console.print(shape)
    for goal in goals(measured):
        console.print(goal_line(goal))
    for cost in costs(measured):
        console.print(cost_line(cost))
    for failed in failures(runs):
        console.print(run_line(failed), style="red", soft_wrap=True)
    for note in notes(params):
        console.print(note)
    data = {
        "format": 1,
        "machine": machine,
        "parameters": asdict(params),
        "figures": [figure.to_json() for figure in measured],
        "runs": [run.to_json() for run in runs],
    }
    _BUILD.mkdir(parents=True, exist_ok=True)
    (_BUILD / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    (_BUILD / "results.md").write_text(markdown(params, runs, machine))
    console.print(f"written to {_BUILD / 'results.json'} and results.md")


if __name__ == "__main__":
    sys.exit(main())
