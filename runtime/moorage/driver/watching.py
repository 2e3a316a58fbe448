"""What becomes of checkpoints, told to whoever shows it.

The coordinator tells what happens to each checkpoint; this passes it on in the words of people.
Called by the checkpointer.
"""

from typing import Protocol

from moorage.driver.snapshot_writer import CheckpointReport
from moorage.driver.views import FailureView, SavepointView
from moorage_state.coordinator import (
    CheckpointException,
    CompletedCheckpoint,
    PendingCheckpoint,
)

__all__ = ["CheckpointWatch", "Unwatched", "WatchedCheckpoints"]


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
