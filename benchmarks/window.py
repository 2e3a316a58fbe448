"""Which batches of a run count: the rule that is the same for every engine. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.params import Parameters

__all__ = ["Batch", "Window", "rate"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    Attributes:
        rows: input rows.
        seconds: how long it took, with everything that belongs to it.
    """

    rows: int
    seconds: float


class Window:
    """Tells warm-up from steady batches while they come, and when there are enough.

    A batch is steady if it is none of the first `warmup_files` and began `warmup_seconds` or more
    after the first one. There are enough when the steady ones took `steady_seconds` together and
    are `steady_batches` or more.
    """

    def __init__(self, params: Parameters, steady_batches: int | None = None) -> None:
        self._params = params
        self._least = params.steady_batches if steady_batches is None else steady_batches
        self._elapsed = 0.0
        self._count = 0
        self.steady: list[Batch] = []

    def add(self, batch: Batch) -> None:
        """Take note of the next batch, which has ended."""
        if self.warm:
            self.steady.append(batch)
        self._elapsed += batch.seconds
        self._count += 1

    @property
    def warm(self) -> bool:
        """Whether the batch that begins now is a steady one."""
        params = self._params
        return self._count >= params.warmup_files and self._elapsed >= params.warmup_seconds

    @property
    def full(self) -> bool:
        """Whether enough was measured."""
        measured = sum(b.seconds for b in self.steady)
        return measured >= self._params.steady_seconds and len(self.steady) >= self._least


def rate(batches: Sequence[Batch]) -> float:
    """Rows per second of all `batches` together."""
    return sum(b.rows for b in batches) / sum(b.seconds for b in batches)
