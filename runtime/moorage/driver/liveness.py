"""Whether anything gets on, also while an epoch takes long.

Decides what counts as a sign of life: within an epoch, that one of Spark's tasks ended or a stage
began; between epochs, that Spark waits for its next trigger because there is nothing to do. What
cannot be seen is no sign. Called by the thread of a run that waits for its query.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Liveness", "Lock", "Told"]

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 5.0
_T = TypeVar("_T")


class Lock(Protocol):
    """What an epoch holds."""

    def acquire(self, *, timeout: float) -> bool:
        """Whether it was had in time."""

    def release(self) -> None:
        """Give it back."""


class Told(Protocol):
    """Hears of signs; see `moorage.driver.reporter.Reporter.lives`."""

    def __call__(self, *, tasks: int = 0, moved: bool = True) -> None:
        """So many tasks run; whether anything got on since the last time."""


class Liveness:
    """Looks at Spark every few seconds, and tells what has moved."""

    def __init__(
        self, spark: SparkSession, tell: Told, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spark = spark
        self._tell = tell
        self._clock = clock
        self._last = clock()
        self._seen: frozenset[tuple[int, ...]] = frozenset()

    @contextmanager
    def watching(self, lock: Lock, query: StreamingQuery) -> Iterator[None]:
        """Hold the lock that an epoch holds; while that is waited for, look into the epoch."""
        while not lock.acquire(timeout=_EVERY_SECONDS):
            self.within()
        try:
            self.between(query)
            yield
        finally:
            lock.release()

    def within(self) -> None:
        """Look at the tasks of the epoch under way."""
        found = self._look(self._stages)
        if found is not None:
            seen, tasks = found
            moved, self._seen = seen != self._seen, seen
            self._tell(tasks=tasks, moved=moved)

    def between(self, query: StreamingQuery) -> None:
        """Between two epochs, and not too often: whether Spark has nothing to do."""
        now = self._clock()
        if now - self._last < _EVERY_SECONDS:
            return
        self._last = now
        if self._look(lambda: query.status["isTriggerActive"]) is False:
            self._tell()

    def _stages(self) -> tuple[frozenset[tuple[int, ...]], int]:
        """What changes when a task ends, and how many tasks run."""
        tracker = self._spark.sparkContext.statusTracker()
        known = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        stages = [stage for stage in known if stage is not None]
        done = frozenset(
            (one.stageId, one.currentAttemptId, one.numCompletedTasks) for one in stages
        )
        return done, sum(one.numActiveTasks for one in stages)

    def _look(self, at: Callable[[], _T]) -> _T | None:
        try:
            return at()
        except Exception as error:  # noqa: BLE001  a look must not end the run
            _log.debug("spark was not looked at: %s: %s", type(error).__name__, error)
            return None
