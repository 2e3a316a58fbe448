"""From measurements to figures and goals. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.snapshots.job import Taken
from benchmarks.snapshots.params import (
    COPY_SHARE_GOAL,
    PAUSE_GOAL_SECONDS,
    UPLOAD_MEDIAN_GOAL,
    UPLOAD_WORST_GOAL,
)

__all__ = ["Goal", "Measured", "Transfer", "goals", "pauses", "upload_share"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One restore and one plain copy of the same bytes, one right after the other.

    Attributes:
        cache: whether the source lay in the page cache: `cold`, `warm`, or `unknown`.
        first: which of the two was first.
    """

    cache: str
    first: str
    restore_bytes: int
    restore_seconds: float
    copy_bytes: int
    copy_seconds: float

    @property
    def restore_rate(self) -> float:
        """Bytes per second."""
        return self.restore_bytes / self.restore_seconds

    @property
    def copy_rate(self) -> float:
        """Bytes per second."""
        return self.copy_bytes / self.copy_seconds

    @property
    def share(self) -> float:
        """The rate of the restore, as a share of that of the copy."""
        return self.restore_rate / self.copy_rate


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that was measured.

    Attributes:
        full: the first checkpoint, of which every file is uploaded.
        incremental: those that follow.
        checked_keys: keys that were read back after the last restore, and were right.
    """

    keys: int
    fill_seconds: float
    settle_seconds: float
    full: Taken
    incremental: tuple[Taken, ...]
    transfers: tuple[Transfer, ...]
    checked_keys: int

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit that the project has set itself, and what was measured.

    Attributes:
        at_least: the limit is the least that is good, else the first that is not.
    """

    name: str
    limit: float
    found: float
    unit: str
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the figure is on the good side of the limit."""
        return self.found >= self.limit if self.at_least else self.found < self.limit


def pauses(taken: Taken) -> list[float]:
    """The synchronous part of each subtask beyond its flush, in seconds."""
    return [sync.seconds - sync.flush_seconds for sync in taken.syncs]


def upload_share(taken: Taken) -> float:
    """What was uploaded, as a share of the checkpoint's full size."""
    return taken.bytes_uploaded / taken.bytes_total


def goals(measured: Measured) -> list[Goal]:
    """The goals: the pause by the longest of any, a restore by the median of its pairs."""
    every = [measured.full, *measured.incremental]
    shares: Sequence[float] = [upload_share(taken) for taken in measured.incremental]
    longest = max(pause for taken in every for pause in pauses(taken))
    return [
        Goal("pause of a subtask beyond its flush, longest", PAUSE_GOAL_SECONDS, longest, "s"),
        Goal("upload by full size, median", UPLOAD_MEDIAN_GOAL, median(shares), ""),
        Goal("upload by full size, worst", UPLOAD_WORST_GOAL, max(shares), ""),
        *_restore_goals(measured.transfers),
    ]


def _restore_goals(transfers: Sequence[Transfer]) -> list[Goal]:
    """One for each state of the page cache: a good one does not make up for the other."""
    shares: dict[str, list[float]] = {}
    for transfer in transfers:
        shares.setdefault(transfer.cache, []).append(transfer.share)
    return [
        Goal(
            f"restore by plain copy, page cache {cache}, median of {len(found)}",
            COPY_SHARE_GOAL,
            median(found),
            "",
            at_least=True,
        )
        for cache, found in shares.items()
    ]
