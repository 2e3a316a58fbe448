"""What a command looked at, what came out, and what to do about it: of `doctor` and `preflight`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import typer

from moorage.cli.output import one_line, print_table

Outcome = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what came out, and what to do about it (empty where all is well)."""

    check: str
    outcome: Outcome
    detail: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was looked at; `ok` if nothing failed."""

    ok: bool
    findings: Sequence[Finding]


def show(found: Findings) -> None:
    """For people: a table, and what to do below it."""
    print_table(
        ("CHECK", "RESULT", "DETAIL"),
        [(one.check, one.outcome, one.detail) for one in found.findings],
    )
    for one in found.findings:
        if one.todo:
            typer.echo(f"{one.check}: {one_line(one.todo)}")
