"""A coordinator for one run of a job: which tasks take part in its checkpoints, and when.

Called by the checkpointer, once per run.
"""

import time
from collections.abc import Callable

from moorage.driver.settings import JobSettings
from moorage.driver.watching import CheckpointWatch, WatchedStats
from moorage.graph import JobGraph
from moorage_state.coordinator import (
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureManager,
    CheckpointRetentionPolicy,
    CompletedCheckpointStore,
    CountingIdCounter,
    TaskId,
    ToleranceAction,
)
from moorage_state.snapshots import LogWriter

__all__ = ["DRIVER_TASK", "checkpoint_config", "new_coordinator"]

DRIVER_TASK = TaskId("", 0)
"""Stands for the driver, so that a job without state has a task to wait for as well."""


def new_coordinator(
    settings: JobSettings,
    graph: JobGraph,
    writer: LogWriter,
    next_id: int,
    watch: CheckpointWatch,
    clock: Callable[[], float],
) -> CheckpointCoordinator:
    """The coordinator; its scheduler is not started.

    Args:
        next_id: above all ids that were ever used in the lineage.
        clock: seconds on a clock that only goes forward.
    """
    tasks = [DRIVER_TASK] + [
        TaskId(operator.uid, i) for operator in graph.operators for i in range(settings.parallelism)
    ]
    return CheckpointCoordinator(
        writer.lineage,
        checkpoint_config(settings),
        tasks,
        tasks,
        tasks,
        CountingIdCounter(next_id),
        CompletedCheckpointStore(settings.retain),
        CheckpointFailureManager(settings.tolerable_failures),
        clock,
        wall_clock=time.time,
        stats=WatchedStats(watch),
    )


def checkpoint_config(settings: JobSettings) -> CheckpointConfig:
    """The coordinator's settings for a job."""
    return CheckpointConfig(
        interval=settings.interval_seconds,
        timeout=settings.timeout_seconds,
        max_concurrent=settings.max_concurrent,
        min_pause=settings.min_pause_seconds,
        tolerable_failures=settings.tolerable_failures,
        retention=CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
        on_tolerance_exceeded=(
            ToleranceAction.FAIL_JOB if settings.fail_on_tolerance else ToleranceAction.DEGRADE
        ),
        coalesce_periodic=True,
    )
