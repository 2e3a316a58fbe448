"""The names of output files: where a file comes from can be read off its name.

    part-<lineage>-f<fence>r<run>-<epoch, 12 digits>-<producer>-<subtask>-<attempt>.<extension>

A file in a partition has its directories in front. Names decide what a driver that woke up late may
touch (never files of newer runs), and tell whether readers of a folder would see rows twice.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from uuid import uuid4

from moorage.api.sinks import Committable, SinkOrigin, SinkRetire, StageId
from moorage_state.errors import Bug, Fenced, UserError

Age = tuple[int, int]
"""The fence and the number of a run; later runs compare greater."""

_RUN = re.compile(r"f(\d+)r(\d+)")
_LINEAGE = re.compile(r"part-(.+?)-f\d+r\d+-\d{12}-")
_ORIGIN = re.compile(r"f(\d+)r(\d+)-(\d{12})-")
RUN_SUFFIX = ".run"
BESIDE_SUFFIX = ".beside"
"""Marks in a lineage's folder of records: the named lineage's output belongs beside its own."""


class Origin(NamedTuple):
    """The run and the epoch that staged a file."""

    run: Age
    epoch: int


def file_name(stage: StageId, extension: str) -> str:
    """A name that no other attempt has, and no other file of this one."""
    return (
        f"part-{stage.lineage}-{stage.run}-{stage.epoch:012d}-{stage.producer}-"
        f"{stage.subtask:05d}-{uuid4().hex[:12]}.{extension}"
    )


def origin_of(lineage: str, file: str) -> Origin | None:
    """Where a file of the lineage comes from; None for files of others."""
    name, prefix = file.rpartition("/")[2], f"part-{lineage}-"
    match = _ORIGIN.match(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return Origin((int(match[1]), int(match[2])), int(match[3])) if match else None


def lineage_of(file: str) -> str | None:
    """The lineage that a file is of; None for what no job wrote."""
    match = _LINEAGE.match(file.rpartition("/")[2])
    return match[1] if match else None


def age_of(token: str) -> Age | None:
    """The age of a run token; None for any other text."""
    match = _RUN.fullmatch(token)
    return (int(match[1]), int(match[2])) if match else None


def run_age(token: str) -> Age:
    """The age of a run token; any other text is a bug."""
    age = age_of(token)
    if age is None:
        raise Bug(f"not a run token: run={token}")
    return age


def is_not_newer(lineage: str, file: str, own: Age) -> bool:
    """Whether a file is of this run of the lineage or an older one."""
    origin = origin_of(lineage, file)
    return origin is not None and origin.run <= own


def newer_run(marks: Iterable[str], own: Age) -> str:
    """The newest run that left its mark among these names; "" if none is newer than `own`."""
    runs = (name.removesuffix(RUN_SUFFIX) for name in marks if name.endswith(RUN_SUFFIX))
    return max((run for run in runs if (age_of(run) or own) > own), default="")


def older_marks(marks: Iterable[str], own: Age) -> list[str]:
    """The marks of runs before `own`."""
    runs = ((name, age_of(name.removesuffix(RUN_SUFFIX))) for name in marks)
    return [name for name, age in runs if name.endswith(RUN_SUFFIX) and age and age < own]


def taken_over(where: str, newer: str, own: str) -> Fenced:
    """What a run is told whose output belongs to a newer one."""
    return Fenced(
        f"a newer run took over the output: {where} run={newer} own={own}; end this process, the "
        f"other one goes on"
    )


def lost(point: SinkRetire, file: str) -> bool:
    """Whether no checkpoint to come can cover a staged file: an attempt that lost made it."""
    origin, own = origin_of(point.lineage, file), run_age(point.run)
    if origin is None or origin.run > own:
        return False
    return origin.run < own or origin.epoch <= point.epoch


IF_MISSING = (
    "put it back from a copy, or restore an older checkpoint; where the sink has another place or "
    "another kind than before, give it another uid"
)
"""What to do about output that a restore point covers and that is nowhere."""


def require_kind(where: str, committables: Iterable[Committable], mark: str) -> None:
    """Refuse output that a sink of another kind staged under the same uid; ours has `mark`."""
    others = [item for item in committables if not {"file", mark} <= item.keys()]
    if others:
        raise UserError(
            f"the restore point covers output that a sink of another kind staged under this uid; "
            f"give this one another uid: {where} staged={others[0].get('file', sorted(others[0]))}"
        )


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
        self, where: str, lineage: str, origin: SinkOrigin | None, marks: Iterable[str]
    ) -> None:
        """Refuse what would be there twice.

        Args:
            where: names the folder, for people.
            origin: the point that the run begins with; None for nothing.
            marks: the names in the folder of records of `origin`'s lineage.

        Raises:
            OutputConflict: naming a lineage and what to do.
        """
        # What was beside the origin's output when that one began, is beside ours.
        known = {n.removesuffix(BESIDE_SUFFIX) for n in marks if n.endswith(BESIDE_SUFFIX)}
        for other, files in sorted(self.files.items()):
            # Who begins with nothing reads the whole input again; who begins with another's point
            # goes on after it: what that one published up to there belongs to it, what came later
            # does not.
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
