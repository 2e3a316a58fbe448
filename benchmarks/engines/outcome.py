"""What an engine hands back before its answer is checked."""

from dataclasses import dataclass, field

import pandas as pd

from benchmarks.window import Batch

__all__ = ["Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that ended well.

    Attributes:
        batches: how many were committed.
        answer: columns key, count, sum: the last state of every key, or all that was emitted.
        is_running: whether `answer` is all that was emitted, one row for each input row.
        rows: input rows that the engine says it has taken; None if it does not say.
        checkpoints: those completed in the measured window; None where there are none.
    """

    steady: list[Batch]
    cpu_seconds: float | None
    batches: int
    answer: pd.DataFrame
    is_running: bool
    rows: int | None = None
    checkpoints: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
