"""Output of other lineages in the folder of a sink: whether readers would see rows twice.

A lineage that begins with nothing reads the whole input again, so what another one published of it
would be there twice. One that begins with another's point goes on after it, so what that one
published up to there belongs to it, and what it published later does not. Decides by the names of
files. Called by both kinds of the file sink, before a run touches anything.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from moorage.api.sinks import SinkOrigin
from moorage.sinks.names import lineage_of, origin_of, run_age
from moorage_state.errors import UserError

__all__ = ["BESIDE_SUFFIX", "Neighbours", "OutputConflict", "neighbours_in"]

BESIDE_SUFFIX = ".beside"
"""Marks in a lineage's folder of records: the named lineage's output belongs beside its own."""


class OutputConflict(UserError):
    """The folder has output of another lineage that the job would write once more."""

    code: ClassVar[str] = "output_conflict"


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What readers see in a folder that is not of one lineage.

    Attributes:
        files: of other lineages, by lineage.
        strange: files that no job wrote.
    """

    files: dict[str, list[str]]
    strange: list[str]

    def require_admissible(
        self, where: str, lineage: str, origin: SinkOrigin | None, known: Collection[str]
    ) -> None:
        """Refuse what would be there twice.

        Args:
            where: names the folder, for people.
            origin: the point that the run begins with; None for nothing.
            known: lineages whose output was beside that of `origin`'s when that one began.

        Raises:
            OutputConflict: naming a lineage and what to do.
        """
        for other, files in sorted(self.files.items()):
            if origin is None or other not in {origin.lineage, *known}:
                begins = f"begins with a point of {origin.lineage}" if origin else "begins empty"
                raise _conflict(where, lineage, other, len(files), begins)
            if other == origin.lineage and (later := _later(files, origin)):
                begins = f"begins at epoch {origin.epoch} of it, before these files"
                raise _conflict(where, lineage, other, later, begins)


def neighbours_in(lineage: str, files: Iterable[str]) -> Neighbours:
    """Sort what readers see by who wrote it."""
    found = Neighbours({}, [])
    for file in files:
        other = lineage_of(file)
        if other is None:
            found.strange.append(file)
        elif other != lineage:
            found.files.setdefault(other, []).append(file)
    return found


def _later(files: Iterable[str], point: SinkOrigin) -> int:
    """How many files hold rows from after the point."""
    last = (run_age(point.run), point.epoch)
    origins = (origin_of(point.lineage, file) for file in files)
    return sum(1 for origin in origins if origin is not None and tuple(origin) > last)


def _conflict(where: str, lineage: str, other: str, files: int, begins: str) -> OutputConflict:
    return OutputConflict(
        f"the output folder has output of another lineage, and readers would see rows twice, for "
        f"this one {begins}: {where} lineage={lineage} other_lineage={other} files={files}; to go "
        f"on from there, name the checkpointDir of that lineage again, or restore its newest "
        f"checkpoint or savepoint; to begin anew, move the folder away or give the sink another "
        f"one; to have both in it, say FileSink(..., other_lineages='keep')"
    )
