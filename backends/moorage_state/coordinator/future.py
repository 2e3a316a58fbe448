"""A result that comes later, without threads."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from moorage_state.coordinator.reasons import CheckpointException
from moorage_state.errors import Bug

if TYPE_CHECKING:
    from moorage_state.coordinator.pending import CompletedCheckpoint

__all__ = ["CheckpointFuture"]

_log = logging.getLogger(__name__)


class CheckpointFuture:
    """The end of one requested checkpoint. It completes once, either way.

    The coordinator completes it at the end of the call that decided it, so a callback finds the
    coordinator at rest and may call it.
    """

    def __init__(self) -> None:
        self._result: CompletedCheckpoint | None = None
        self._error: CheckpointException | None = None
        self._callbacks: list[Callable[[CheckpointFuture], object]] = []

    @property
    def done(self) -> bool:
        """Whether the checkpoint completed or failed."""
        return self._result is not None or self._error is not None

    def result(self) -> "CompletedCheckpoint":
        """Return the completed checkpoint.

        Raises:
            CheckpointException: it failed.
            Bug: it is not done.
        """
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise Bug("the checkpoint is not done; wait for its callback")
        return self._result

    def exception(self) -> CheckpointException | None:
        """Return why it failed; None if it completed or is not done."""
        return self._error

    def add_done_callback(self, callback: Callable[["CheckpointFuture"], object]) -> None:
        """Call `callback` with this future once it is done; at once if it is."""
        if self.done:
            self._call(callback)
        else:
            self._callbacks.append(callback)

    def complete(self, result: "CompletedCheckpoint | CheckpointException") -> None:
        """End it. Called by the coordinator only; a second time is a Bug."""
        if self.done:
            raise Bug("a checkpoint ends once")
        if isinstance(result, CheckpointException):
            self._error = result
        else:
            self._result = result
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[["CheckpointFuture"], object]) -> None:
        try:
            callback(self)
        except Exception:  # noqa: BLE001 - a listener's fault must not stop the coordinator
            _log.exception("a listener of a checkpoint failed")
