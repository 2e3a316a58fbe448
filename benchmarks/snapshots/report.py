"""The measurement as a table for the terminal, sentences, and JSON. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.snapshots.figures import Goal, Measured, Transfer, goals, pauses, upload_share
from benchmarks.snapshots.job import Taken
from benchmarks.snapshots.params import Size

__all__ = ["checkpoint_table", "goal_line", "notes", "to_json", "transfer_table"]


def checkpoint_table(measured: Measured) -> Table:
    """A row for each checkpoint; the first is full."""
    table = _table(
        "checkpoints",
        "checkpoint",
        "flush ms",
        "beyond it ms",
        "apply ms",
        "uploaded MB",
        "of MB",
        "share",
        "objects",
        "upload s",
    )
    for taken in (measured.full, *measured.incremental):
        table.add_row(*_checkpoint_cells(taken))
    return table


def transfer_table(measured: Measured) -> Table:
    """A row for each pair of a restore and a copy."""
    table = _table("restore", "page cache", "first", "restore MB/s", "copy MB/s", "share")
    for transfer in measured.transfers:
        table.add_row(*_transfer_cells(transfer))
    return table


def goal_line(goal: Goal) -> str:
    """Whether a goal was reached, as a sentence."""
    sign = "at least" if goal.at_least else "under"
    return (
        f"goal {'reached' if goal.reached else 'missed'}: {goal.name}: {_shown(goal, goal.found)}; "
        f"the goal is {sign} {_shown(goal, goal.limit)}"
    )


def notes(size: Size) -> list[str]:
    """What a reader must know to read the figures right."""
    return [
        (
            f"{size.keys:,} keys of 8 bytes with values of 100 bytes that do not compress, written "
            f"in random order; {size.changed:.0%} of them, chosen anew at random, change before "
            f"each checkpoint but the first. {size.subtasks} subtasks, a state server for each, "
            f"RocksDB as Moorage sets it up by default, compaction on and never waited for between "
            f"checkpoints; before the first one it has settled."
        ),
        (
            "'flush' and 'beyond it' are the longest of any subtask, as the server measures them. "
            "'apply' is how long the last epoch's writes were waited for before: any next read "
            "waits for them, with a checkpoint or without."
        ),
        (
            "A restore is measured from the request until all ranges can be read, every byte's "
            "digest checked, in new servers with an empty directory. The copy is of the same "
            "objects with as many threads. For 'cold' both are preceded by dropping the objects "
            "from the page cache, for 'warm' by reading them into it."
        ),
    ]


def to_json(size: Size, machine: Mapping[str, str], measured: Measured) -> dict[str, Any]:
    """Everything, for a file."""
    return {
        "format": 1,
        "machine": dict(machine),
        "parameters": asdict(size),
        "goals": [{**asdict(goal), "reached": goal.reached} for goal in goals(measured)],
        "measured": measured.to_json(),
    }


def _checkpoint_cells(taken: Taken) -> list[str]:
    return [
        str(taken.checkpoint_id),
        f"{max(sync.flush_seconds for sync in taken.syncs) * 1e3:.0f}",
        f"{max(pauses(taken)) * 1e3:.1f}",
        f"{taken.apply_seconds * 1e3:.0f}",
        f"{taken.bytes_uploaded / 1e6:,.1f}",
        f"{taken.bytes_total / 1e6:,.1f}",
        f"{upload_share(taken):.1%}",
        str(taken.objects),
        f"{taken.upload_seconds:.1f}",
    ]


def _transfer_cells(transfer: Transfer) -> list[str]:
    return [
        transfer.cache,
        transfer.first,
        f"{transfer.restore_rate / 1e6:,.0f}",
        f"{transfer.copy_rate / 1e6:,.0f}",
        f"{transfer.share:.2f}",
    ]


def _shown(goal: Goal, figure: float) -> str:
    if goal.unit == "s":
        return f"{figure * 1e3:.1f} ms"
    return f"{figure:.2f} times" if goal.at_least else f"{figure:.1%}"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
