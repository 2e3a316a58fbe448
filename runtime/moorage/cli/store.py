"""`moorage store`: whether a store does what checkpoints and savepoints rely on."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from moorage.cli.exit_codes import ExitCode, exit_code
from moorage.cli.output import Output, complain, print_document, print_pairs, print_table, stoppable
from moorage.offline.lookup import directories_of
from moorage.offline.store_check import StoreReport, check_store
from moorage_state.stores import open_store

store = typer.Typer(
    help="Try whether a store can hold checkpoints and savepoints.", no_args_is_help=True
)


@store.callback()
def _group() -> None:
    """A group with one command keeps the command's name."""


@store.command()
def check(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A directory (path or URL), or JOB.yaml.")
    ],
    *,
    output: Output = "table",
) -> None:
    """Try writing, creating once, large objects, listing and deleting; leave nothing behind."""
    with stoppable("what was tried may be left below probe/ and can be deleted"):
        found = check_store(
            open_store(directories_of(directory).checkpoints), lambda: datetime.now(UTC)
        )
    if output != "table":
        print_document("store check", _fields(found), output)
    else:
        _show(found)
    if found.failed:
        errors = [one.error for one in found.failed if one.error is not None]
        raise typer.Exit(exit_code(errors[0]) if errors else ExitCode.BAD_INPUT)


def _fields(found: StoreReport) -> dict[str, object]:
    return {
        "path": found.path,
        "ok": not found.failed,
        "clock_ahead_seconds": found.clock_ahead_seconds,
        "checks": [
            {
                "name": one.name,
                "ok": not one.problem,
                "problem": one.problem,
                "seconds": one.seconds,
            }
            for one in found.checks
        ],
    }


def _show(found: StoreReport) -> None:
    print_table(
        ("CHECK", "RESULT", "TIME"),
        [
            (one.name, "failed" if one.problem else "ok", f"{one.seconds:.3f} s")
            for one in found.checks
        ],
    )
    ahead = found.clock_ahead_seconds
    if ahead is not None:
        print_pairs({"this machine's clock before the store's": f"{ahead:+.1f} s"})
    for one in found.failed:
        complain(f"{one.name}: {one.problem}")
