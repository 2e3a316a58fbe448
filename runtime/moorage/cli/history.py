"""`moorage history`: what a job could go back to, newest first, by the names that `restore` takes.

The same form as that of `kubectl moorage history`. Reads the store alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from moorage.cli.output import Output, complain, print_document, print_table
from moorage.cli.snapshots import print_notes
from moorage.offline.listing import CheckpointRow, Listing, SavepointRow, list_snapshots
from moorage.offline.lookup import directories_of, of_a_job
from moorage.texts import since_text, size_text
from moorage_state.stores.addresses import child

_GONE = {"retired", "unfinished"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint or savepoint; the names of fields are those of `kubectl moorage history`.

    Attributes:
        name: what `moorage restore JOB.yaml` takes.
        path: its address.
        message: why it cannot be restored; or empty.
    """

    name: str
    type: str
    state: str
    path: str
    checkpointId: int | None  # noqa: N815 - as on a cluster
    epoch: int | None
    sizeBytes: int | None  # noqa: N815
    completedAt: datetime | None  # noqa: N815
    message: str = ""


def history(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB.yaml|DIR",
            help="A manifest, or a checkpoint directory.",
            show_default=False,
        ),
    ],
    *,
    output: Output = "table",
) -> None:
    """The checkpoints and savepoints of a job, newest first, by the names that restore takes."""
    now = datetime.now(UTC)
    entries, found = entries_of(job, now)
    for told in found.warnings:
        complain(told)
    if output != "table":
        print_document("history", {"snapshots": entries}, output)
        return
    header = ("NAME", "TYPE", "STATE", "EPOCH", "SIZE", "AGE", "PATH OR REASON")
    print_table(header, [_row(one, now) for one in entries])
    print_notes(found)


def entries_of(job: str, now: datetime) -> tuple[list[Entry], Listing]:
    """What a manifest's job, or a checkpoint directory, has, newest first; and all that was found.

    Raises:
        UserError: there is no checkpoint yet, or no such directory.
        ManifestError: the manifest is wrong.
        StoreUnavailable: the store does not answer.
    """
    with of_a_job(job):
        found = list_snapshots(directories_of(job), now)
    return sorted(_entries(found), key=lambda one: one.completedAt or now, reverse=True), found


def _entries(found: Listing) -> Iterator[Entry]:
    """All that are there, in whatever state; not what is under way, or about to be deleted."""
    for one in found.checkpoints:
        if one.standing not in _GONE:
            yield _checkpoint(one, child(found.directory, one.path))
    for save in found.savepoints:
        if save.standing not in _GONE:
            yield _savepoint(save)


def _checkpoint(one: CheckpointRow, path: str) -> Entry:
    state = "damaged" if one.problem else one.standing
    kept = (one.id, one.epoch, one.bytes, one.completed_at, one.problem)
    return Entry(one.path, "Checkpoint", state, path, *kept)


def _savepoint(one: SavepointRow) -> Entry:
    kept = (one.checkpoint_id, one.epoch, one.bytes, one.created_at, one.problem)
    return Entry(one.name, "Savepoint", one.standing, one.path, *kept)


def _row(one: Entry, now: datetime) -> tuple[str | int | None, ...]:
    age = None if one.completedAt is None else since_text(one.completedAt, now)
    size = None if one.sizeBytes is None else size_text(one.sizeBytes)
    return one.name, one.type, one.state, one.epoch, size, age, one.message or one.path
