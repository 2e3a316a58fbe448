"""Why checkpoints fail, which failures count, and when there are too many in a row.

The names of the reasons are Flink's, old and new; two of them are one reason. What counts towards
the number of tolerable failures is decided here and nowhere else.
"""

from dataclasses import dataclass
from enum import Enum

from moorage_state.coordinator.properties import CheckpointProperties
from moorage_state.errors import (
    Fenced,
    LocalDiskError,
    MoorageError,
    Retryable,
    StaleLease,
    UserError,
)


class CheckpointFailureReason(Enum):
    """A reason; each member's docstring is the situation in Moorage that raises it.

    Attributes:
        message: for people.
        pre_flight: raised before any task heard of the checkpoint, so never a task's fault.
        counts: one more failure in a row, to be compared with the tolerable number.
    """

    message: str
    pre_flight: bool
    counts: bool

    PERIODIC_SCHEDULER_SHUTDOWN = (
        "the periodic scheduler is stopped",
        True,
        False,
        "A periodic request reaches the coordinator while its scheduler is stopped.",
    )
    TOO_MANY_CHECKPOINT_REQUESTS = (
        "too many requests are queued",
        True,
        False,
        "The queue holds 1,000 requests and this one is the last in its order.",
    )
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (
        "the pause after the last checkpoint is not over; it is tried again when it is",
        True,
        False,
        "A periodic request comes less than checkpoint.minPause after the last completion.",
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = (
        "not all tasks are running",
        True,
        False,
        "A key-group range is not leased to any state server.",
    )
    IO_EXCEPTION = (
        "the checkpoint could not be triggered: input or output failed",
        True,
        True,
        "The checkpoint's id or place in the store could not be claimed.",
    )
    BLOCKING_OUTPUT_EXIST = (
        "a task with a blocking output is running",
        True,
        False,
        "The job runs on the batch backend, whose state lives for one key at a time.",
    )
    CHECKPOINT_ASYNC_EXCEPTION = (
        "the asynchronous part failed on a task",
        False,
        True,
        "A state server could not upload the files of a range.",
    )
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = (
        "another task that writes to the same file failed",
        False,
        False,
        "Small files of several ranges are packed into one object, and another range failed it.",
    )
    CHECKPOINT_EXPIRED = (
        "the checkpoint did not complete in time",
        False,
        True,
        "The time of checkpoint.timeout passed since the trigger.",
    )
    CHECKPOINT_SUBSUMED = (
        "a newer checkpoint completed first",
        False,
        False,
        "A newer checkpoint of the same run completed while this one was pending.",
    )
    CHECKPOINT_DECLINED = (
        "a task declined the checkpoint",
        False,
        True,
        "A state server refuses for a reason of its own.",
    )
    CHECKPOINT_DECLINED_TASK_NOT_READY = (
        "a task is not ready",
        False,
        False,
        "A state server is still restoring the range.",
    )
    CHECKPOINT_DECLINED_TASK_CLOSING = (
        "a task is closing",
        False,
        False,
        "A state server drains before it ends.",
    )
    CHECKPOINT_DECLINED_SUBSUMED = (
        "a task saw the barrier of a newer checkpoint",
        False,
        False,
        "A state server was asked for a newer checkpoint before this request reached it.",
    )
    CHECKPOINT_DECLINED_TIME_OUT = (
        "the barrier did not come in time",
        False,
        False,
        "No epoch boundary came within the alignment timeout.",
    )
    CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED = (
        "more would have to be buffered for the alignment than is allowed",
        False,
        False,
        "The staged writes of a range are over their byte limit.",
    )
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = (
        "the checkpoint was cancelled upstream",
        False,
        False,
        "The driver gave up the epoch whose boundary the checkpoint waited for.",
    )
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = (
        "an input ended during the checkpoint",
        False,
        False,
        "A bounded query reached its end before the boundary.",
    )
    CHECKPOINT_COORDINATOR_SHUTDOWN = (
        "the coordinator is shut down",
        False,
        False,
        "The job reached its end: finished, cancelled or failed.",
    )
    CHECKPOINT_COORDINATOR_SUSPEND = (
        "the coordinator is suspended",
        False,
        False,
        "Another driver claimed a higher fence, or the scheduler was stopped for a rewind.",
    )
    JOB_FAILOVER_REGION = (
        "a part of the job restarts",
        False,
        False,
        "A retried Spark stage aborted the epoch.",
    )
    TASK_FAILURE = (
        "a task failed",
        False,
        False,
        "An executor or a state server was lost while the checkpoint was pending.",
    )
    TASK_CHECKPOINT_FAILURE = (
        "the synchronous part failed on a task",
        False,
        False,
        "A state server could not hard-link the files of a range.",
    )
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = (
        "a message is from, or for, a task that is not known",
        False,
        False,
        "A message comes under a stale lease, or a state server no longer holds the range.",
    )
    FINALIZE_CHECKPOINT_FAILURE = (
        "the checkpoint could not be finalized",
        False,
        True,
        "The manifest or its entry in the lineage's log could not be written.",
    )
    TRIGGER_CHECKPOINT_FAILURE = (
        "the checkpoint could not be triggered",
        False,
        False,
        "An error that nothing else here names, while triggering.",
    )
    TASK_FAILURE_DURING_CHECKPOINT = TASK_FAILURE

    def __init__(self, message: str, pre_flight: bool, counts: bool, situation: str) -> None:  # noqa: FBT001 - a row of the table above
        self.message = message
        self.pre_flight = pre_flight
        self.counts = counts
        self.__doc__ = situation


class CheckpointException(MoorageError):
    """A checkpoint did not complete.

    Attributes:
        reason: why.
        cause: what was raised underneath, if anything was.
    """

    code = "checkpoint_failed"

    def __init__(
        self,
        reason: CheckpointFailureReason | str,
        message: str = "",
        cause: BaseException | None = None,
    ) -> None:
        self.reason = CheckpointFailureReason[reason] if isinstance(reason, str) else reason
        self.cause = cause
        # Names and texts only: the arguments cross process boundaries.
        super().__init__(self.reason.name, message)

    def __str__(self) -> str:
        name, message = self.args
        return f"{message or self.reason.message}: reason={name}"


def reason_of(
    error: BaseException,
    default: CheckpointFailureReason = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE,
) -> CheckpointFailureReason:
    """Return the reason that an error stands for, looking through the chain of its causes."""
    chain = list(_chain(error))
    # Input and output first, wherever in the chain: what was raised over them knows less.
    for one in chain:
        if isinstance(one, (OSError, Retryable, LocalDiskError)):
            return CheckpointFailureReason.IO_EXCEPTION
    for one in chain:
        match one:
            case CheckpointException():
                return one.reason
            case StaleLease():
                return CheckpointFailureReason.UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE
            case Fenced():
                return CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
    return default


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = getattr(error, "cause", None) or error.__cause__
    return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failure leads to.

    Attributes:
        exceeded: it was one more than is tolerated; the counter starts again at 0.
        must_fail: the job has to fail whatever is tolerated.
    """

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
        *,
        on_task: bool = False,
    ) -> Verdict:
        """Judge a failure.

        Args:
            checkpoint_id: None if it failed before it had one.
            on_task: a task said so; else it failed in the coordinator.
        """
        on_task = on_task and not exception.reason.pre_flight
        if on_task and properties.is_synchronous:
            # Its tasks wait for an end of the job that does not come.
            return Verdict(must_fail=True)
        if not on_task and properties.is_savepoint:
            # The business of who asked for it; on a task it counts like any other.
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
        exceeded = self.count > self._tolerable
        if exceeded:
            self._clear()
        return Verdict(exceeded=exceeded)

    def _clear(self) -> None:
        self.count = 0
        self._counted.clear()
