"""What a run asks of Spark's query, and of the graph that the query is made from.

Decides what it means when Spark does not answer. Called by the run; holds nothing itself.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from moorage.api.functions import KeyedProcessFunction
from moorage.api.graph import JobGraph
from moorage.driver.settings import JobSettings
from moorage.engine.plan import tagged_union
from moorage.engine.task_failures import ask_spark

__all__ = [
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
