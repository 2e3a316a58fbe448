"""What the page remembers of a run: the epochs of late, and the failures. Bounded.

Called by the driver's threads with each `JobProgress`, and by the page's thread for all of it.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from moorage.driver.types import JobProgress
from moorage.driver.views import FailureView

EPOCHS = 240
"""How many are remembered."""
FAILURES = 10


@dataclass(frozen=True, slots=True)
class EpochPoint:
    """One committed epoch."""

    epoch: int
    seconds: float
    rows: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run at one moment; epochs oldest first, failures newest first."""

    job: str
    progress: JobProgress
    epochs: Sequence[EpochPoint]
    failures: Sequence[FailureView]


class RunHistory:
    """A listener of a run."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._progress = JobProgress()
        self._epochs: deque[EpochPoint] = deque(maxlen=EPOCHS)
        self._failures: deque[FailureView] = deque(maxlen=FAILURES)

    def __call__(self, progress: JobProgress) -> None:
        """The driver's listener: nothing here waits."""
        with self._lock:
            before, self._progress = self._progress, progress
            if progress.epochs != before.epochs:
                point = EpochPoint(progress.epoch, progress.epoch_seconds, progress.epoch_rows)
                self._epochs.append(point)
            if progress.last_failure is not before.last_failure and progress.last_failure:
                self._failures.appendleft(progress.last_failure)

    def facts(self) -> RunFacts:
        """All of it, as it is now."""
        with self._lock:
            return RunFacts(self._job, self._progress, tuple(self._epochs), tuple(self._failures))
