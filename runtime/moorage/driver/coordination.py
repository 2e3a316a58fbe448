"""The coordinator of one run: which tasks take part in its checkpoints, and who hears of them.

Called by the checkpointer, which speaks to the coordinator for all of its tasks.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from moorage.api.graph import JobGraph
from moorage.driver.requests import SavepointRequest
from moorage.driver.settings import JobSettings
from moorage.driver.snapshot_writer import CheckpointReport, Work
from moorage.driver.views import FailureView, SavepointView
from moorage.engine.fleet import FleetUpload
from moorage_api.cron import next_tick
from moorage_state.coordinator import (
    AcknowledgeCheckpoint,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointException,
    CheckpointFailureManager,
    CheckpointFailureReason,
    CheckpointFuture,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    CountingIdCounter,
    DeclineCheckpoint,
    PendingCheckpoint,
    SavepointFormat,
    TaskId,
    ToleranceAction,
)
from moorage_state.errors import MoorageError, ServerGone, StaleLease, VersionGone

__all__ = [
    "DRIVER_TASK",
    "CheckpointWatch",
    "Unwatched",
    "WatchedCheckpoints",
    "acknowledge",
    "calendar_of",
    "checkpoint_config",
    "decline",
    "new_coordinator",
    "reason_of_part",
    "trigger_savepoint",
]

_YEAR_SECONDS = 365 * 86_400.0

DRIVER_TASK = TaskId("", 0)
"""Stands for the driver, so that a job without state has a task to wait for as well."""


class CheckpointWatch(Protocol):
    """Hears of checkpoints and savepoints; see `moorage.driver.reporter.Reporter`."""

    def began(self, checkpoint_id: int, triggered_at: float, *, savepoint: bool) -> None:
        """One was triggered, at a time in seconds since 1970."""

    def completed(self, report: CheckpointReport, *, savepoint: bool) -> None:
        """It exists."""

    def failed(
        self, checkpoint_id: int | None, failure: FailureView, at: float, *, counts: bool
    ) -> None:
        """It failed, perhaps before it had an id; `counts` as one more failure in a row."""

    def savepoint(self, view: SavepointView) -> None:
        """The newest savepoint."""

    def storage(self, error: str) -> None:
        """Why the store cannot be used at the moment."""


class Unwatched:
    """Nobody listens."""

    def began(self, checkpoint_id: int, triggered_at: float, *, savepoint: bool) -> None:
        """See `CheckpointWatch`."""

    def completed(self, report: CheckpointReport, *, savepoint: bool) -> None:
        """See `CheckpointWatch`."""

    def failed(
        self, checkpoint_id: int | None, failure: FailureView, at: float, *, counts: bool
    ) -> None:
        """See `CheckpointWatch`."""

    def savepoint(self, view: SavepointView) -> None:
        """See `CheckpointWatch`."""

    def storage(self, error: str) -> None:
        """See `CheckpointWatch`."""


class WatchedCheckpoints:
    """The coordinator's `CheckpointTracker`."""

    def __init__(self, watch: CheckpointWatch) -> None:
        self._watch = watch

    def pending(self, checkpoint: PendingCheckpoint) -> None:
        """A checkpoint was begun."""
        self._watch.began(
            checkpoint.checkpoint_id,
            checkpoint.timestamp,
            savepoint=checkpoint.properties.is_savepoint,
        )

    def completed(self, checkpoint: CompletedCheckpoint) -> None:
        """A checkpoint exists."""
        self._watch.completed(checkpoint.payload, savepoint=checkpoint.properties.is_savepoint)

    def failed(self, checkpoint_id: int | None, failure: CheckpointException, at: float) -> None:
        """A checkpoint failed; without an id, before it was begun."""
        view = FailureView(failure.reason.name, str(failure))
        self._watch.failed(checkpoint_id, view, at, counts=failure.reason.counts)


def new_coordinator(
    settings: JobSettings,
    graph: JobGraph,
    lineage: str,
    completed: CompletedCheckpointStore,
    ids: CountingIdCounter,
    watch: CheckpointWatch,
    clock: Callable[[], float],
) -> CheckpointCoordinator:
    """The coordinator; its scheduler is not started.

    Args:
        completed: the checkpoints of the lineage, and what the run begins from.
        ids: counts from above all ids that were ever used in the lineage.
        clock: seconds on a clock that only goes forward.
    """
    tasks = [DRIVER_TASK] + [
        TaskId(operator.uid, i) for operator in graph.operators for i in range(settings.parallelism)
    ]
    return CheckpointCoordinator(
        lineage,
        checkpoint_config(settings),
        tasks,
        tasks,
        tasks,
        ids,
        completed,
        CheckpointFailureManager(settings.tolerable_failures),
        clock,
        wall_clock=time.time,
        next_time=calendar_of(settings),
        tracker=WatchedCheckpoints(watch),
    )


def calendar_of(settings: JobSettings) -> Callable[[float], float] | None:
    """The next time of `checkpoint.cron` (in UTC) after a given one, in seconds since 1970.

    None where an interval decides. An expression that matches no day is looked at once a year.
    """
    cron = settings.checkpoint_cron
    if cron is None or settings.in_one_epoch:
        return None

    def following(after: float) -> float:
        due = next_tick(cron, "UTC", datetime.fromtimestamp(after, UTC))
        return due.timestamp() if due is not None else after + _YEAR_SECONDS

    return following


def checkpoint_config(settings: JobSettings) -> CheckpointConfig:
    """The coordinator's settings for a job."""
    return CheckpointConfig(
        interval=None if settings.in_one_epoch else settings.interval_seconds,
        timeout=settings.timeout_seconds,
        max_concurrent=settings.max_concurrent,
        min_pause=settings.min_pause_seconds,
        tolerable_failures=settings.tolerable_failures,
        retention=settings.retention,
        on_tolerance_exceeded=(
            ToleranceAction.FAIL_JOB if settings.fail_on_tolerance else ToleranceAction.DEGRADE
        ),
        coalesce_periodic=True,
    )


def trigger_savepoint(
    coordinator: CheckpointCoordinator, request: SavepointRequest, location: str
) -> CheckpointFuture:
    """Ask for the savepoint, in its place."""
    savepoint_format = SavepointFormat(request.format)
    if not request.stop:
        return coordinator.trigger_savepoint(location, savepoint_format)
    return coordinator.trigger_synchronous_savepoint(
        terminate=False, location=location, savepoint_format=savepoint_format
    )


def acknowledge(
    coordinator: CheckpointCoordinator, job: str, work: Work, result: FleetUpload
) -> None:
    """Every range acknowledges its part, and the driver the whole.

    Args:
        job: the lineage.
    """
    for uid, handles in result.handles.items():
        for i, handle in enumerate(sorted(handles, key=lambda handle: handle.start)):
            coordinator.receive_acknowledge_message(
                AcknowledgeCheckpoint(job, TaskId(uid, i), work.checkpoint_id, handle)
            )
    coordinator.receive_acknowledge_message(
        AcknowledgeCheckpoint(job, DRIVER_TASK, work.checkpoint_id)
    )


def decline(
    coordinator: CheckpointCoordinator, job: str, checkpoint_id: int, error: MoorageError
) -> None:
    """A range could not be brought to the store: the driver declines for it.

    Args:
        job: the lineage.
    """
    reason = reason_of_part(error, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION)
    message = DeclineCheckpoint(job, DRIVER_TASK, checkpoint_id, reason, str(error))
    coordinator.receive_decline_message(message)


def reason_of_part(
    error: MoorageError, default: CheckpointFailureReason
) -> CheckpointFailureReason:
    """Why a checkpoint fails when a part of it did.

    A server that is gone, or that no longer serves the run, is no failure of checkpoints: it does
    not count towards those that are tolerated.

    Args:
        default: what any other error means where it was raised.
    """
    match error:
        case ServerGone() | VersionGone():
            return CheckpointFailureReason.TASK_FAILURE
        case StaleLease():
            return CheckpointFailureReason.UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE
        case _:
            return default
