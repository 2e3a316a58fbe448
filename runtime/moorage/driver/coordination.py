"""Between a run and its coordinator: which tasks take part, who asked, and what they are told.

Decides which failures a job survives and which words a requester hears. Called by the checkpointer,
which speaks to the coordinator for all tasks, under the run's epoch lock.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from moorage.api.graph import JobGraph
from moorage.driver.lineage import make_directory
from moorage.driver.manifests import CheckpointReport, Work, savepoint_view, view_of
from moorage.driver.reporter import Reporter
from moorage.driver.requests import JobRequest, JobStopped, SavepointRequest
from moorage.driver.settings import JobSettings
from moorage.driver.views import CheckpointView, SavepointView
from moorage.engine.fleet import FleetUpload
from moorage_api.cron import next_tick
from moorage_state.coordinator import (
    AcknowledgeCheckpoint,
    CheckpointConfig,
    CheckpointCoordinator,
    CheckpointFailureManager,
    CheckpointFailureReason,
    CheckpointFuture,
    CheckpointIdCounter,
    CheckpointTracker,
    CompletedCheckpointStore,
    DeclineCheckpoint,
    SavepointFormat,
    TaskId,
    ToleranceAction,
)
from moorage_state.errors import (
    Bug,
    Fenced,
    MoorageError,
    Retryable,
    ServerGone,
    StaleLease,
    StoreDenied,
    StoreUnavailable,
    VersionGone,
)
from moorage_state.snapshots import LogWriter, SavepointStore

_YEAR_SECONDS = 365 * 86_400.0

DRIVER_TASK = TaskId("", 0)
"""Stands for the driver, so that a job without state has a task to wait for as well."""

_log = logging.getLogger(__name__)

_SUSPENDED = (
    CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
    CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
)

_OF_THE_STORE = (StoreUnavailable, StoreDenied)

_OF_A_PART = (
    CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
    CheckpointFailureReason.TASK_FAILURE,
    CheckpointFailureReason.UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE,
)
"""A decline carries its text alone; the error is known here."""


def new_coordinator(
    settings: JobSettings,
    graph: JobGraph,
    lineage: str,
    completed: CompletedCheckpointStore,
    ids: CheckpointIdCounter,
    tracker: CheckpointTracker,
    clock: Callable[[], float],
) -> CheckpointCoordinator:
    """The coordinator; its scheduler is not started.

    Args:
        ids: counts from above all ids that were ever used in the lineage.
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
        tracker=tracker,
    )


def calendar_of(settings: JobSettings) -> Callable[[float], float] | None:
    """The next time of `checkpoint.cron` (in UTC) after a given one, in seconds since 1970.

    None where an interval decides.
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
        # With a changelog one lists what the one before listed, so it has to be known.
        max_concurrent=1 if settings.changelog is not None else settings.max_concurrent,
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
    """Every range acknowledges its part, and the driver the whole."""
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
    """A range could not be brought to the store: the driver declines for it."""
    reason = reason_of_part(error, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION)
    message = DeclineCheckpoint(job, DRIVER_TASK, checkpoint_id, reason, str(error))
    coordinator.receive_decline_message(message)


def reason_of_part(
    error: MoorageError, default: CheckpointFailureReason
) -> CheckpointFailureReason:
    """Why a checkpoint fails when a part of it did.

    Args:
        default: what any other error means where it was raised.
    """
    match error:
        # No failures of checkpoints: neither counts towards those that are tolerated.
        case ServerGone() | VersionGone():
            return CheckpointFailureReason.TASK_FAILURE
        case StaleLease():
            return CheckpointFailureReason.UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE
        case _:
            return default


@dataclass(frozen=True, slots=True)
class Place:
    """Where a savepoint is to lie, and the savepoint if an earlier driver completed it there."""

    location: str
    completed: SavepointView | None = None


class Requesters:
    """The requests of one run, from their beginning to their answer."""

    def __init__(self, settings: JobSettings, writer: LogWriter, reporter: Reporter) -> None:
        self._settings = settings
        self._writer = writer
        self._reporter = reporter
        self._suspended: list[JobRequest] = []
        self._attempts: dict[str, str] = {}
        self._placing: list[JobRequest] = []
        self._last_error: MoorageError | None = None

    @property
    def finds_place(self) -> bool:
        """Whether a savepoint that was asked for waits for its place."""
        return bool(self._placing)

    def finding_place(self, request: SavepointRequest) -> Callable[[], "Place"]:
        """Return what looks where the savepoint is to lie; its result goes to `placed`."""
        self._placing.append(request)
        return partial(self._place_of, request)

    def placed(self, request: SavepointRequest, result: "Place | BaseException") -> str | None:
        """Where the savepoint is to lie; None if an earlier driver completed it, which is told.

        Raises MoorageError: it cannot lie there, or another one does.
        """
        if request not in self._placing:
            return None  # handed back meanwhile
        self._placing.remove(request)
        if isinstance(result, BaseException):
            raise result
        if result.completed is None:
            self._attempts[result.location] = request.attempt_id
            return result.location
        self._reporter.savepoint(result.completed)
        request.answer(result.completed)
        return None

    def _place_of(self, request: SavepointRequest) -> "Place":
        location = self._settings.savepoint_url(request.name)
        make_directory("state.savepointDir", self._settings.savepoint_dir)
        savepoint = SavepointStore(location, create=True)
        found = savepoint.completed_by(request.attempt_id)
        if found is None:
            return Place(location)
        if found.lineage != self._writer.lineage:
            savepoint.check_empty()
        return Place(location, savepoint_view(request.name, savepoint, found))

    def attempt_at(self, location: str | None) -> str:
        """The id of the request for the savepoint there; empty for a checkpoint."""
        return self._attempts.get(location or "", "")

    def answer(self, request: JobRequest, future: CheckpointFuture) -> None:
        """Tell who asked how it ended; what was given up with the run is kept for the next."""
        if was_suspended(future):
            self._suspended.append(request)
            return
        answer = answer_of(request, future, self._last_error)
        if isinstance(answer, SavepointView):
            self._reporter.savepoint(answer)
        request.answer(answer)

    def give_up_places(self) -> None:
        """The run ends: whose place is not found yet is suspended like those under way."""
        self._suspended, self._placing = self._suspended + self._placing, []

    def take_suspended(self) -> list[JobRequest]:
        """What was asked for and given up, for no fault of its own: the run ends, or the job."""
        self.give_up_places()
        suspended, self._suspended = self._suspended, []
        return suspended

    def note(self, error: MoorageError, checkpoint_id: int) -> None:
        """A part of a checkpoint failed."""
        self._last_error = error
        if isinstance(error, _OF_THE_STORE):
            self._reporter.storage(str(error))
        _log.error("checkpoint failed: checkpoint=%d: %s", checkpoint_id, error)

    def forget(self) -> None:
        """What failed before has nothing to do with what is taken next."""
        self._last_error = None

    def survivable(self, work: Work, error: BaseException) -> MoorageError:
        """The error, if the job can go on after it; else it is raised."""
        # A savepoint is what a person asked for: nothing that goes wrong with it ends the job.
        known = isinstance(error, MoorageError) and not isinstance(error, (Fenced, Bug))
        if isinstance(error, Fenced) or not (known or work.is_savepoint):
            raise error
        if not isinstance(error, MoorageError):
            error = Bug(f"a savepoint failed unexpectedly: {type(error).__name__}: {error}")
        # An upload that was stopped fails of that, and nobody has to hear of it.
        if not work.aborted or isinstance(error, _OF_THE_STORE):
            self.note(error, work.checkpoint_id)
        return error

    def why(self, future: CheckpointFuture) -> MoorageError:
        """Why the last checkpoint did not complete."""
        error = future.exception()
        if error is not None and self._last_error is None:
            return underneath(error)
        return self._last_error or Retryable(
            "the last checkpoint did not complete; the next run continues from the one before"
        )


def was_suspended(future: CheckpointFuture) -> bool:
    """Whether it failed for no fault of its own: the run ends, or the job stops."""
    error = future.exception()
    return error is not None and error.reason in _SUSPENDED


def answer_of(
    request: JobRequest, future: CheckpointFuture, last_error: MoorageError | None
) -> CheckpointView | SavepointView | MoorageError:
    """What the requester is told.

    Args:
        last_error: the latest that made a part of a checkpoint fail.
    """
    error = future.exception()
    if error is None:
        done = future.result()
        return _view(request, done.external_pointer, done.payload)
    return (last_error if error.reason in _OF_A_PART else None) or underneath(error)


def underneath(error: BaseException) -> MoorageError:
    """The error that a person should see."""
    cause = getattr(error, "cause", None)
    found = cause if isinstance(cause, MoorageError) else error
    return found if isinstance(found, MoorageError) else Bug(f"{type(error).__name__}: {error}")


def _view(
    request: JobRequest, url: str, report: CheckpointReport
) -> CheckpointView | SavepointView:
    if not isinstance(request, SavepointRequest):
        return view_of(report)
    return SavepointView(
        name=request.name,
        url=url,
        checkpoint_id=report.checkpoint_id,
        epoch=report.epoch,
        bytes_total=report.bytes_total,
        duration_seconds=report.seconds,
        manifest_digest=report.digest,
        max_parallelism=report.max_parallelism,
        completed_at=report.completed_at,
    )


def stopped(request: JobRequest) -> JobStopped:
    """What a requester is told when the job ends before it is done."""
    if not isinstance(request, SavepointRequest):
        kind = request.kind.lower()
        return JobStopped(f"the job was stopped before what was asked for was done: kind={kind}")
    return JobStopped(
        f"the job was stopped before the savepoint was complete: name={request.name}; to end a job "
        f"with one use --stop"
    )
