"""The names of output files: where a file comes from can be read off its name.

    part-<lineage>-f<fence>r<run>-<epoch, 12 digits>-<producer>-<subtask>-<attempt>.<extension>

A file in a partition has its directories in front. Names decide what a driver that woke up late
may touch: never files of newer runs.
"""

import re
from typing import NamedTuple
from uuid import uuid4

from moorage.api.sinks import SinkRetire, StageId
from moorage_state.errors import Bug

__all__ = ["Age", "Origin", "age_of", "file_name", "lineage_of", "lost", "origin_of", "run_age"]

Age = tuple[int, int]
"""The fence and the number of a run; later runs compare greater."""

_RUN = re.compile(r"f(\d+)r(\d+)")
_LINEAGE = re.compile(r"part-(.+?)-f\d+r\d+-\d{12}-")
_ORIGIN = re.compile(r"f(\d+)r(\d+)-(\d{12})-")


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
    """The age of a run token. Raises Bug for any other text."""
    age = age_of(token)
    if age is None:
        raise Bug(f"not a run token: run={token}")
    return age


def lost(point: SinkRetire, file: str) -> bool:
    """Whether no checkpoint to come can cover a staged file: an attempt that lost made it."""
    origin, own = origin_of(point.lineage, file), run_age(point.run)
    if origin is None or origin.run > own:
        return False
    return origin.run < own or origin.epoch <= point.epoch
