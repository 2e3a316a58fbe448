"""The measured window of a run, with the processor time spent in it."""

import os

from benchmarks.cpu import tree_seconds
from benchmarks.params import ENGINES
from benchmarks.request import Request
from benchmarks.window import Batch, Window

__all__ = ["Meter"]


class Meter:
    """Takes batches as they end; says when to stop.

    Batches are to be reported at once: processor time is read at the report.
    """

    def __init__(self, request: Request) -> None:
        self._window = Window(request.params, ENGINES[request.engine].steady_batches)
        self._began: float | None = None
        self._ended: float | None = None

    def batch(self, batch: Batch) -> None:
        """A batch was committed."""
        if self.full:
            return
        was_warm = self._window.warm
        self._window.add(batch)
        if self._window.warm and not was_warm:
            self._began = tree_seconds(os.getpid())
        elif self._window.warm:
            self._ended = tree_seconds(os.getpid())

    @property
    def measuring(self) -> bool:
        """Whether steady batches are under way."""
        return self._window.warm and not self.full

    @property
    def full(self) -> bool:
        """Whether enough was measured."""
        return self._window.full

    @property
    def steady(self) -> list[Batch]:
        """The batches that count.

        Raises:
            RuntimeError: there are none; the input or the time was too short.
        """
        if not self._window.steady:
            raise RuntimeError("no steady batch: the input ended within the warm-up")
        return self._window.steady

    @property
    def cpu_seconds(self) -> float | None:
        """Processor time of this process and its descendants within the window."""
        if self._began is None or self._ended is None:
            return None
        return self._ended - self._began
