"""`moorage snapshots`: what a store holds, whether it is whole, and copies of it.

Decides arguments and forms of output; what they mean is `moorage.offline`. Works on a store alone.
"""

import json
import shlex
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer

from moorage.cli.completion import restore_points
from moorage.cli.exit_codes import ExitCode
from moorage.cli.output import (
    Output,
    Where,
    complain,
    one_line,
    print_document,
    print_found,
    print_pairs,
    print_table,
    progress_bar,
    stoppable,
)
from moorage.offline import description, difference, garbage, listing, savepoint_copy, verification
from moorage.offline.description import Description, OperatorView
from moorage.offline.difference import Difference, StateDifference, type_text
from moorage.offline.garbage import Collected
from moorage.offline.listing import CheckpointRow, HistoryRow, Listing, SavepointRow
from moorage.offline.lookup import SnapshotDirectories, directories_of, find, of_a_job
from moorage.offline.verification import Verification
from moorage.state.snapshot_path import Found
from moorage.texts import age_text, size_text, time_text
from moorage_api import Duration
from moorage_state.errors import UserError
from moorage_state.snapshots import checkpoint_id_of
from moorage_state.stores import open_store
from moorage_state.stores.addresses import address, child, parent_and_name

_MAX_TEXT = 60
_STANDINGS = {"retired": "retired, not deleted"}
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
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="chk-N or a savepoint in PATH.",
        show_default=False,
        autocompletion=restore_points,
    ),
]


def show_listing(listing: Listing) -> None:
    """Print the checkpoints, the savepoints and the history that there are."""
    if listing.checkpoints:
        header = ("CHECKPOINT", "STATE", "EPOCH", "COMPLETED", "AGE", "SIZE", "NEW", "FILES")
        print_table(header, [_checkpoint(row) for row in listing.checkpoints])
    if listing.savepoints:
        _gap(after=listing.checkpoints)
        header = ("SAVEPOINT", "STATE", "FORMAT", "EPOCH", "CREATED", "AGE", "SIZE", "FILES")
        print_table(header, [_savepoint(row) for row in listing.savepoints])
    if listing.history is not None:
        _gap(after=listing.checkpoints or listing.savepoints)
        print_table(("ENTRY", "AT", "KIND", "WHAT"), [_history(row) for row in listing.history])
    problems = [row.problem for row in listing.checkpoints]
    problems += [row.problem for row in listing.savepoints]
    for problem in filter(None, problems):
        complain(f"cannot be read: {problem}")
    for told in listing.warnings:
        complain(told)
    print_notes(listing)


def print_notes(listing: Listing) -> None:
    """Print what is no problem as a part of the answer, and not as a complaint beside it."""
    for note in listing.notes:
        typer.echo(f"({one_line(note)})")


def show_description(found: Description) -> None:
    """Print one snapshot."""
    taken = f"fence {found.fence}, run {found.run}, moorage {found.moorage_version}"
    pairs = {
        "path": found.path,
        "kind": f"{found.kind} {found.name}".rstrip(),
        "state": found.standing,
        "job": found.job,
        "lineage": found.lineage,
        "checkpoint": str(found.checkpoint_id),
        "epoch": str(found.epoch),
        "created": time_text(found.created_at),
        "taken by": f"{taken}, {found.holder}" if found.holder else taken,
        "size": f"{size_text(found.bytes)} in {found.files} files, {found.objects} objects",
        "format": found.state_format or None,
        "key groups": f"{found.max_parallelism}, by {found.key_hash}",
    }
    for name, at in description.clocks_of(found):
        pairs[name] = time_text(at) if not isinstance(at, int) else str(at)
    for name, value in found.source.items():
        pairs[f"source {name}"] = _short(value)
    for uid, staged in found.sinks.items():
        pairs[f"staged by {uid}"] = _staged(staged)
    print_pairs(pairs)
    for operator in found.operators:
        _operator(operator)


def show_verdict(verdict: Verification) -> None:
    """Print what was checked; and what is damaged, if anything is."""
    if verdict.damage:
        rows = [(one.path, one.problem, ", ".join(one.needed_by)) for one in verdict.damage]
        print_table(("OBJECT", "PROBLEM", "NEEDED BY"), rows)
        return
    how = "every byte of" if verdict.full else "existence and size of"
    log = f", and {verdict.log_entries} log entries" if verdict.log_entries else ""
    print_pairs(
        {
            "whole": verdict.path,
            "snapshots": ", ".join(verdict.snapshots) or None,
            "checked": f"{how} {verdict.objects} objects ({size_text(verdict.bytes)}){log}",
        }
    )


def show_difference(found: Difference, states: StateDifference | None) -> None:
    """Print what differs."""
    print_table(
        ("WHAT", "BEFORE", "AFTER"),
        [(c.what, _short(c.before), _short(c.after)) for c in found.changes],
    )
    _gap(after=True)
    files = found.files
    rows = [
        ("in both", files.both, size_text(files.both_bytes)),
        ("only before", files.only_before, size_text(files.only_before_bytes)),
        ("only after", files.only_after, size_text(files.only_after_bytes)),
    ]
    print_table(("FILES", "COUNT", "SIZE"), rows)
    if states is not None:
        _gap(after=True)
        row = (
            f"{states.uid}/{states.state}",
            states.added,
            states.removed,
            states.changed,
            states.same,
        )
        print_table(("KEYS OF", "ADDED", "REMOVED", "CHANGED", "SAME"), [row])


def show_collected(found: Collected) -> None:
    """Print the garbage and what became of it."""
    if found.objects:
        rows = [
            (one.key, size_text(one.bytes), age_text(one.age_seconds), one.reason)
            for one in found.objects
        ]
        print_table(("OBJECT", "SIZE", "AGE", "WHY"), rows)
        _gap(after=True)
    what = f"{len(found.objects)} objects, {size_text(found.bytes)}"
    older = f"older than {age_text(found.age_seconds)}"
    if found.dry_run:
        print_pairs({"garbage": f"{what}, {older}; nothing was deleted"})
    else:
        print_pairs({"garbage": f"{what}, {older}; {found.deleted} deleted"})


def _checkpoint(row: CheckpointRow) -> tuple[str | int | None, ...]:
    # Of what is not in any manifest only its own objects are known.
    size = row.own_bytes if row.bytes is None and row.standing != "gone" else row.bytes
    return (
        row.path,
        "damaged" if row.problem else _STANDINGS.get(row.standing, row.standing),
        row.epoch,
        time_text(row.completed_at),
        age_text(row.age_seconds),
        None if size is None else size_text(size),
        None if row.new_bytes is None else size_text(row.new_bytes),
        row.files,
    )


def _savepoint(row: SavepointRow) -> tuple[str | int | None, ...]:
    return (
        row.name,
        row.standing,
        row.format or None,
        row.epoch,
        time_text(row.created_at),
        age_text(row.age_seconds),
        None if row.bytes is None else size_text(row.bytes),
        row.files,
    )


def _history(row: HistoryRow) -> tuple[str | int | None, ...]:
    hidden = ("manifest_digest", "manifest_key")
    shown = {name: value for name, value in row.fields.items() if name not in hidden}
    what = " ".join(f"{name}={_short(value)}" for name, value in shown.items())
    return row.seq, time_text(row.at), row.kind, what


def _operator(operator: OperatorView) -> None:
    _gap(after=True)
    keys = ", ".join(operator.key_types)
    title = f"operator {operator.uid}: parallelism {operator.parallelism}, key {keys}"
    typer.echo(one_line(f"{title}, {size_text(operator.bytes)}"))
    for state in operator.states:
        typer.echo(one_line(f"  {state.name}  {type_text(state)}"))
    rows = [
        (f"  {r.start}-{r.end}", r.format, r.epoch, size_text(r.bytes), r.files, r.shared_files)
        for r in operator.ranges
    ]
    print_table(("  KEY GROUPS", "FORMAT", "EPOCH", "SIZE", "FILES", "SHARED"), rows)


def _staged(items: Any) -> str:
    rows = sum(item["rows"] for item in items if isinstance(item.get("rows"), int))
    return f"{len(items)} pieces" + (f", {rows:,} rows" if rows else "")


def _short(value: Any) -> str | None:
    """Any plain value in one short line."""
    if value is None:
        return None
    plain = msgspec.to_builtins(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _gap(*, after: object) -> None:
    if after:
        typer.echo()


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
        directories = SnapshotDirectories(directories.checkpoints, address(savepoints))
    with of_a_job(directory):
        found = listing.list_snapshots(directories, _now(), history=history)
    print_found("snapshots ls", found, output, show_listing)


@snapshots.command()
def show(path: Where, name: Name = None, *, output: Output = "table") -> None:
    """Show one checkpoint or savepoint: operators, states, ranges, inputs, staged output."""
    print_found("snapshots show", description.describe(find(path, name)), output, show_description)


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
        verdict = verification.verify(path, name, full=full, progress=bar)
    print_found("snapshots verify", verdict, output, show_verdict)
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
    found, keys = difference.diff(one, other), None
    if state is not None:
        from moorage.offline.state_difference import compare

        with stoppable("nothing was changed"):
            keys = compare(one, other, state)
    if output != "table":
        print_document("snapshots diff", {"difference": found, "state": keys}, output)
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
        found = garbage.collect(store, _now(), age=_age(age), delete=delete, watching=complain)
    print_found("snapshots gc", found, output, show_collected)


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

    It exists when its MANIFEST does, which is written last. After an interruption it is told which
    command goes on where this one stopped.
    """
    found = find(path)
    # A directory stands for another checkpoint as soon as its job, which runs, has completed one.
    whole = ("--full",) if full else ()
    again = shlex.join(("moorage", "snapshots", "copy", found.snapshot.path, target, *whole))
    left = f"the copy is not complete; to go on where it stopped: {again}"
    with stoppable(left), progress_bar("copying", "bytes") as bar:
        done = savepoint_copy.copy(found, target, full=full, progress=bar)
    print_found("snapshots copy", done, output, _show_copied)


def _beside(one: Found, before: str, after: str) -> Found:
    """The second of two; `chk-N` alone is in the directory of the first."""
    # Only a name: the directory is that of the first, so that it is typed once.
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


def _show_copied(done: savepoint_copy.Copied) -> None:
    resumed = f", {done.resumed_files} of them from before" if done.resumed_files else ""
    size = f"{size_text(done.bytes)} in {done.files} files{resumed}"
    print_pairs(
        {
            "copied": done.source,
            "to": done.path,
            "size": size if done.files else "all of it stands in the manifest",
        }
    )


def _now() -> datetime:
    return datetime.now(UTC)
