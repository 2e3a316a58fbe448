"""From the end of a checkpoint that somebody asked for to the answer to the request.

Decides what a requester is told when a checkpoint or savepoint failed. Called by the checkpointer;
pure but for the answer itself.
"""

from moorage.driver.requests import JobStopped, Request, SavepointRequest
from moorage.driver.snapshot_writer import CheckpointReport, view_of
from moorage.driver.views import CheckpointView, SavepointView
from moorage_state.coordinator import CheckpointFailureReason, CheckpointFuture
from moorage_state.errors import Bug, MoorageError

__all__ = ["answer_of", "stopped", "underneath", "was_suspended"]

_SUSPENDED = (
    CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
    CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
)


_OF_A_PART = (
    CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
    CheckpointFailureReason.TASK_FAILURE,
    CheckpointFailureReason.UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE,
)
"""A decline carries its text alone; the error is known here."""


def was_suspended(future: CheckpointFuture) -> bool:
    """Whether it failed for no fault of its own: the run ends, or the job stops."""
    error = future.exception()
    return error is not None and error.reason in _SUSPENDED


def answer_of(
    request: Request, future: CheckpointFuture, last_error: MoorageError | None
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


def _view(request: Request, url: str, report: CheckpointReport) -> CheckpointView | SavepointView:
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


def stopped(request: Request) -> JobStopped:
    """What a requester is told when the job ends before it is done."""
    if not isinstance(request, SavepointRequest):
        kind = request.kind.lower()
        return JobStopped(f"the job was stopped before what was asked for was done: kind={kind}")
    return JobStopped(
        f"the job was stopped before the savepoint was complete: name={request.name}; to end a job "
        f"with one use --stop"
    )
