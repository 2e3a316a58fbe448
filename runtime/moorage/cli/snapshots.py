"""`moorage snapshots`: what a store holds, whether it is whole, and copies of it.

Decides arguments and forms of output; what they mean is `moorage.offline`. Works on a store alone.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from moorage.cli.exit_codes import ExitCode
from moorage.cli.output import Output, complain, print_json, print_pairs, progress_bar, stoppable
from moorage.cli.progress import size_text
from moorage.cli.snapshot_tables import (
    show_collected,
    show_description,
    show_difference,
    show_listing,
    show_verdict,
)
from moorage.offline import collecting, copying, describing, differing, listing, verifying
from moorage.offline.places import Directories, Found, directories_of, find
from moorage_api import Duration
from moorage_state.errors import UserError
from moorage_state.snapshots import checkpoint_id_of
from moorage_state.stores import open_store
from moorage_state.stores.addresses import address, child, parent_and_name

__all__ = ["snapshots"]

snapshots = typer.Typer(
    help="List, check, compare, clean up and copy checkpoints and savepoints, without a job.",
    no_args_is_help=True,
)

Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR", help="A checkpoint directory (path or URL), or JOB.yaml.", show_default=False
    ),
]
Where = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="DIR/chk-N, a savepoint's directory, or DIR or JOB.yaml for the restore point.",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="chk-N or a savepoint in PATH.", show_default=False),
]


@snapshots.command("ls")
def list_command(
    directory: Directory,
    *,
    savepoints: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the savepoints are.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--all", help="Also show the lineage's log, and what is long gone.")
    ] = False,
    output: Output = "table",
) -> None:
    """List all checkpoints and savepoints."""
    directories = directories_of(directory)
    if savepoints is not None:
        directories = Directories(directories.checkpoints, address(savepoints))
    found = listing.list_snapshots(directories, _now(), history=history)
    _print("snapshots ls", found, output, show_listing)


@snapshots.command()
def show(path: Where, name: Name = None, *, output: Output = "table") -> None:
    """Show one checkpoint or savepoint: operators, states, ranges, inputs, staged output."""
    _print("snapshots show", describing.describe(find(path, name)), output, show_description)


@snapshots.command()
def verify(
    path: Where,
    name: Name = None,
    *,
    full: Annotated[bool, typer.Option("--full", help="Read and check every byte.")] = False,
    output: Output = "table",
) -> None:
    """Check that nothing a restore needs is missing or damaged; status 5 if something is.

    Of a checkpoint directory, its log and all its checkpoints are checked.
    """
    with (
        stoppable("nothing is known of what was not checked"),
        progress_bar("verifying", "bytes") as bar,
    ):
        verdict = verifying.verify(path, name, full=full, progress=bar)
    _print("snapshots verify", verdict, output, show_verdict)
    if verdict.damage:
        raise typer.Exit(ExitCode.CORRUPT)


@snapshots.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="DIR/chk-N, a savepoint, or DIR.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another, or chk-N beside A.")],
    *,
    state: Annotated[
        str | None,
        typer.Option(metavar="UID/STATE", help="Also read this state and compare its keys."),
    ] = None,
    output: Output = "table",
) -> None:
    """Show what differs between two checkpoints or savepoints."""
    one = find(before)
    other = _beside(one, before, after)
    found, keys = differing.diff(one, other), None
    if state is not None:
        from moorage.offline.comparing import compare

        with stoppable("nothing was changed"):
            keys = compare(one, other, state)
    if output == "json":
        print_json("snapshots diff", {"difference": found, "state": keys})
    else:
        show_difference(found, keys)


@snapshots.command()
def gc(
    directory: Directory,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would go (the default).")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it.")] = False,
    age: Annotated[
        str, typer.Option(metavar="24h", help="Only what was written longer ago than this.")
    ] = "24h",
    output: Output = "table",
) -> None:
    """Show, and with --delete delete, objects that no retained checkpoint needs.

    A running job cleans up by itself, so this is for directories of jobs that do not run. No fence
    is claimed, for that would end a running job. Instead the directory's lock is taken, which a
    run that is alive refuses. In a bucket a lock is no proof that nobody uploads: there the age
    must be 24h or more.
    """
    if dry_run and delete:
        raise UserError("--dry-run and --delete exclude each other; leave one out")
    store = open_store(directories_of(directory).checkpoints)
    with stoppable("what is left is found the next time"):
        found = collecting.collect(store, _now(), age=_age(age), delete=delete, watching=complain)
    _print("snapshots gc", found, output, show_collected)


@snapshots.command()
def copy(
    path: Where,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new directory, on any store.")],
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Read the copy back and check every byte.")
    ] = False,
    output: Output = "table",
) -> None:
    """Copy a checkpoint or savepoint to a savepoint's directory that needs nothing else.

    It exists when its MANIFEST does, which is written last. The same command, repeated after an
    interruption, goes on where it stopped.
    """
    left = "the copy is not complete; the same command goes on where it stopped"
    with stoppable(left), progress_bar("copying", "bytes") as bar:
        done = copying.copy(find(path), target, full=full, progress=bar)
    _print("snapshots copy", done, output, _show_copied)


def _beside(one: Found, before: str, after: str) -> Found:
    """The second of two; `chk-N` alone is in the directory of the first."""
    if checkpoint_id_of(after) is None or one.checkpoint is None:
        return find(after)
    directory = directories_of(before).checkpoints
    split = parent_and_name(directory)
    if split is not None and checkpoint_id_of(split[1]) is not None:
        directory = split[0]
    return find(child(directory, after))


def _age(text: str) -> timedelta:
    try:
        return Duration(text).timedelta
    except ValueError as error:
        raise UserError(f"--age {error}; write {Duration.example}") from error


def _show_copied(done: copying.Copied) -> None:
    resumed = f", {done.resumed_files} of them from before" if done.resumed_files else ""
    size = f"{size_text(done.bytes)} in {done.files} files{resumed}"
    print_pairs(
        {
            "copied": done.source,
            "to": done.path,
            "size": size if done.files else "all of it stands in the manifest",
        }
    )


def _print(command: str, found: Any, output: Output, show: Any) -> None:
    if output == "json":
        print_json(command, found)
    else:
        show(found)


def _now() -> datetime:
    return datetime.now(UTC)
