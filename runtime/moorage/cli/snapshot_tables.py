"""The text forms of the `snapshots` commands: results in, lines out."""

import json
from typing import Any

import msgspec
import typer

from moorage.cli.output import (
    age_text,
    complain,
    one_line,
    print_pairs,
    print_table,
    time_text,
)
from moorage.cli.progress import size_text
from moorage.offline.collecting import Collected
from moorage.offline.describing import Description, OperatorView
from moorage.offline.differing import Difference, StateDifference, type_text
from moorage.offline.listing import CheckpointRow, HistoryRow, Listing, SavepointRow
from moorage.offline.verifying import Verdict

__all__ = [
    "show_collected",
    "show_description",
    "show_difference",
    "show_listing",
    "show_verdict",
]

_MAX_TEXT = 60


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
    for warning in listing.warnings:
        complain(warning)


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
    for uid, at in found.watermarks.items():
        shown = time_text(at) if not isinstance(at, int) else str(at)
        pairs[f"watermark {uid}".rstrip()] = shown
    for name, value in found.source.items():
        pairs[f"source {name}"] = _short(value)
    for uid, staged in found.sinks.items():
        pairs[f"staged by {uid}"] = _staged(staged)
    print_pairs(pairs)
    for operator in found.operators:
        _operator(operator)


def show_verdict(verdict: Verdict) -> None:
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
        "damaged" if row.problem else _standing(row.standing),
        row.epoch,
        time_text(row.completed_at),
        age_text(row.age_seconds),
        None if size is None else size_text(size),
        None if row.new_bytes is None else size_text(row.new_bytes),
        row.files,
    )


def _standing(standing: str) -> str:
    return "retired, not deleted" if standing == "retired" else standing


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
