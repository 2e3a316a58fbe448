"""What a run asks of Spark's query, and when it runs an epoch without it.

Decides what it means when Spark does not answer; and that a job without input neither misses its
timers nor keeps two processors busy. Called by the run.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from moorage.api.functions import KeyedProcessFunction
from moorage.api.graph import JobGraph
from moorage.driver.settings import JobSettings
from moorage.engine.event_time import Watermarks
from moorage.engine.plan import tagged_union
from moorage.engine.subtask_plan import NEVER, UNKNOWN
from moorage.engine.task_failures import ask_spark

__all__ = [
    "Ticking",
    "counting_consumers",
    "end",
    "error_of",
    "has_timers",
    "is_active",
    "start_query",
]

_log = logging.getLogger(__name__)


def start_query(
    graph: JobGraph,
    settings: JobSettings,
    name: str,
    folder: Path,
    on_batch: Callable[[DataFrame, int], None],
) -> StreamingQuery:
    """Start Spark's query over all inputs of the job; its micro-batches go to `on_batch`.

    Args:
        folder: where Spark keeps its own log of the query.
    """
    writer = tagged_union(graph).writeStream.foreachBatch(on_batch)
    writer = writer.option("checkpointLocation", str(folder))
    if settings.in_one_epoch:
        # Spark calls it outdated because it minds no limit of a source, which is the point.
        writer = writer.trigger(once=True)
    elif settings.bounded:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{int(settings.epoch_seconds * 1000)} milliseconds")
    return writer.queryName(name).start()


def is_active(query: StreamingQuery) -> bool:
    """Whether it runs. Raises SparkEnded where there is nobody to ask."""
    return ask_spark(lambda: query.isActive)


def error_of(query: StreamingQuery) -> Exception | None:
    """Why it ended; None if it runs, or was told to end. Raises as `is_active`."""
    return ask_spark(query.exception)


def end(query: StreamingQuery) -> None:
    """Tell it to end; an error is only logged, since something else ended the run already."""
    try:
        if query.isActive:
            query.stop()
    except Exception as error:  # noqa: BLE001 - it must not hide why the run ends
        _log.warning("query_not_stopped: %s: %s", type(error).__name__, error)


def has_timers(graph: JobGraph) -> bool:
    """Whether any of its functions fires timers."""
    base = KeyedProcessFunction.on_timer
    return any(type(o.function).on_timer is not base for o in graph.operators)


def counting_consumers(graph: JobGraph) -> frozenset[str]:
    """Uids of consumers that together read each input about once: their rows are the input's."""
    seen: set[str] = set()
    chosen: set[str] = set()
    consumers = [(o.uid, (*o.upstream.branches, *o.broadcast_branches)) for o in graph.operators]
    consumers += [(s.uid, s.upstream.branches) for s in graph.sinks]
    for uid, branches in consumers:
        inputs = {branch.node.uid for branch in branches}
        if inputs - seen:
            seen |= inputs
            chosen.add(uid)
    return frozenset(chosen)


_REST_SECONDS = 0.2
"""The least time between an epoch and a tick, however short the job's interval is."""

_QUIET_SECONDS = 1.0
"""Beyond the interval: when Spark has brought nothing for so long, its sources have nothing."""


class Ticking:
    """Says when an epoch without input is due: for timers, where no row comes that brings one.

    Between two of them lies at least the job's epoch interval, and data goes first.

    Args:
        timers: whether any function of the job has timers.
        epoch_seconds: the job's epoch interval.
        clock: seconds that never go back.
    """

    def __init__(
        self, *, timers: bool, epoch_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timers = timers
        self._interval = max(epoch_seconds, _REST_SECONDS)
        self._clock = clock
        self._last = clock()

    def epoch_ended(self) -> None:
        """An epoch has just been committed."""
        self._last = self._clock()

    @property
    def quiet(self) -> bool:
        """Whether the sources seem to have nothing to read."""
        return self._clock() - self._last > _QUIET_SECONDS + self._interval

    def due(self, watermarks: Watermarks, next_timer: int, now_ms: int) -> bool:
        """Whether to run an epoch without input.

        Args:
            next_timer: the earliest processing-time timer; NEVER or UNKNOWN where that is so.
            now_ms: processing time.
        """
        if not self.timers:
            return False
        if next_timer not in {NEVER, UNKNOWN} and next_timer <= now_ms:
            return self._clock() - self._last >= self._interval
        return self.quiet and (next_timer == UNKNOWN or watermarks.advanced)
