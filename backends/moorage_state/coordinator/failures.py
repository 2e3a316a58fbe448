"""Failures in a row: which count, and when they are too many."""

from dataclasses import dataclass

from moorage_state.coordinator.messages import TaskId
from moorage_state.coordinator.properties import CheckpointProperties
from moorage_state.coordinator.reasons import CheckpointException
from moorage_state.errors import UserError

__all__ = ["CheckpointFailureManager", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failure leads to.

    Attributes:
        counted: it was one more in a row.
        exceeded: it was one more than is tolerated; the counter starts again at 0.
        must_fail: the job has to fail whatever is tolerated.
    """

    counted: bool = False
    exceeded: bool = False
    must_fail: bool = False


class CheckpointFailureManager:
    """Counts failures in a row.

    Args:
        tolerable_failures: how many are borne; 0: the first that counts is one too many; None: any
            number, and none is counted.
    """

    def __init__(self, tolerable_failures: int | None = 0) -> None:
        if tolerable_failures is not None and tolerable_failures < 0:
            raise UserError(f"failures cannot be below 0: tolerable_failures={tolerable_failures}")
        self._tolerable = tolerable_failures
        self._counted: set[int] = set()
        self._last_success = 0
        self.count = 0

    def failed(
        self,
        properties: CheckpointProperties,
        exception: CheckpointException,
        checkpoint_id: int | None = None,
        task: TaskId | None = None,
    ) -> Verdict:
        """Judge a failure.

        On the coordinator a savepoint's failure is its requester's business. On a task it counts
        like any other, and the savepoint that the job stops with fails the job: its tasks wait
        for an end that does not come.

        Args:
            checkpoint_id: None if it failed before it had one.
            task: where it failed; None for the coordinator.
        """
        on_task = task is not None and not exception.reason.pre_flight
        if on_task and properties.is_synchronous:
            return Verdict(must_fail=True)
        if not on_task and properties.is_savepoint:
            return Verdict()
        return self._check(exception, checkpoint_id)

    def succeeded(self, checkpoint_id: int) -> None:
        """Clear the counter, if it is a newer checkpoint than the last that completed."""
        if checkpoint_id > self._last_success:
            self._last_success = checkpoint_id
            self._clear()

    def _check(self, exception: CheckpointException, checkpoint_id: int | None) -> Verdict:
        if self._tolerable is None or not exception.reason.counts:
            return Verdict()
        if checkpoint_id is not None:
            if checkpoint_id <= self._last_success or checkpoint_id in self._counted:
                return Verdict()
            self._counted.add(checkpoint_id)
        self.count += 1
        if self.count <= self._tolerable:
            return Verdict(counted=True)
        self._clear()
        return Verdict(counted=True, exceeded=True)

    def _clear(self) -> None:
        self.count = 0
        self._counted.clear()
