"""`python -m benchmarks.snapshots`: measures, prints tables, writes snapshots.json."""

import argparse
import datetime
import json
import shutil
import signal
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.machine import describe, load
from benchmarks.snapshots.figures import Measured, goals
from benchmarks.snapshots.measuring import measure
from benchmarks.snapshots.params import QUICK, Size, parse_size
from benchmarks.snapshots.report import (
    checkpoint_table,
    goal_line,
    notes,
    to_json,
    transfer_table,
)
from moorage_state.errors import MoorageError
from moorage_state.stores import open_store
from moorage_state.stores.addresses import child

_BUILD = Path(__file__).parents[2] / "build" / "bench"
_BUSY = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0 if every goal was reached, else 1."""
    asked = _parser().parse_args(arguments)
    size = QUICK if asked.quick else Size(state_bytes=asked.state)
    if asked.checkpoints:
        size = replace(size, checkpoints=asked.checkpoints)
    # As for Ctrl-C: the servers are ended and the working directory is cleaned.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    machine = describe(datetime.datetime.now(datetime.UTC))
    if (busy := load()) > _BUSY:
        machine["load before"] = f"{busy:.1f}: the machine was not idle"
    name = f"snapshots-{uuid.uuid4().hex[:8]}"
    work = Path(asked.work).absolute() / name
    work.mkdir(parents=True)
    url = (work / "store").as_uri() if asked.store == "file" else child(asked.store, name)
    machine["store"] = asked.store.partition("://")[0]
    console = Console()
    try:
        measured = measure(size, url, work, lambda line: console.print(line, soft_wrap=True))
    finally:
        _clean(url, work)
    return _publish(console, size, machine, measured)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshots", description=__doc__)
    parser.add_argument("--state", type=parse_size, default="4GB", help="keys and values, as 4GB")
    parser.add_argument("--quick", action="store_true", help="256 MB; not to be quoted")
    parser.add_argument("--checkpoints", type=int, help="how many follow the full one")
    parser.add_argument("--store", default="file", help="file, or the s3:// address of a directory")
    parser.add_argument("--work", default=str(_BUILD), help="where to work: six times the state")
    return parser


def _clean(url: str, work: Path) -> None:
    if url.startswith("s3://"):
        with suppress(MoorageError):
            store = open_store(url)
            for info in list(store.list("")):
                store.delete(info.key)
    shutil.rmtree(work, ignore_errors=True)


def _publish(console: Console, size: Size, machine: dict[str, str], measured: Measured) -> int:
    console.print(checkpoint_table(measured))
    console.print(transfer_table(measured))
    for note in notes(size):
        console.print(note)
    judged = goals(measured)
    for goal in judged:
        console.print(goal_line(goal), soft_wrap=True)
    path = _BUILD / "snapshots.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(size, machine, measured), indent=1) + "\n")
    console.print(
        f"{measured.checked_keys:,} keys were right after each restore; written to {path}"
    )
    return 0 if all(goal.reached for goal in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
