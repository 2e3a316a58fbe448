"""What a failed Spark job means: from an exception's text back to the error a subtask raised.

Subtasks send `[moorage:<code>] message` through Spark, which keeps text only. Raised by the
subtask, read by the epoch runner and the driver; decides whether to try the epoch again, to rewind
the job, or to give up.
"""

import re
from collections.abc import Callable
from typing import ClassVar, TypeVar

from py4j.protocol import Py4JError, Py4JNetworkError

from moorage_state.errors import (
    LocalDiskError,
    MoorageError,
    Retryable,
    UserError,
    error_from_wire,
)

__all__ = [
    "SourceOffsetsLost",
    "SparkEnded",
    "SubtaskFailure",
    "UserFunctionError",
    "ask_spark",
    "failure_of",
]

_T = TypeVar("_T")

# With the class name before it: a mark in user data or in a trace's source lines is not ours.
_MARK = re.compile(r"(?:\A|SubtaskFailure: )\[moorage:([a-z_]+)\] (.*)", re.DOTALL)
_SPARK_TAIL = re.compile(
    r"\n\s*(at (org|java|scala)\.|Driver stacktrace:|JVM stacktrace:).*", re.DOTALL
)
_KNOWN_LOSSES = (
    "ExecutorLostFailure",
    "FetchFailed",
    # A lost shuffle came out otherwise when it was computed again, and part of it had been used.
    "with indeterminate output was failed and retried",
    "Python worker exited unexpectedly",
    "SparkContext was shut down",
    "EOFException",
    "SocketException",
    "Broken pipe",
)
_TRACE = "Traceback (most recent call last)"
# What Spark's own SQL says of data and of plans; the classes of its codes are the standard's.
_USERS = re.compile(r"AnalysisException|SQLSTATE: (0A|2[0-9]|42|54)")
# Without a trace of the job's own code these are peers, memory or time that were not there.
_LIKELY_LOSSES = (
    "Job aborted due to stage failure",
    "Failed to get broadcast_",
    "Futures timed out",
    "OutOfMemoryError",
    "RpcTimeoutException",
    "Connecting to /",
)
# Kafka's connector, and the client under it: the topic does not go back as far as the checkpoint.
_OFFSETS_LOST = (
    "KAFKA_DATA_LOSS",
    "Some data may have been lost because they are not available in Kafka any more",
    "OffsetOutOfRangeException",
)
# What stands before it is the same for every loss.
_LOSS_REASON = re.compile(r"Reason:\s*(.+?)\s*\.?\s*(?:SQLSTATE: \w+|\Z)", re.DOTALL)
_WRAPPING = ("An error occurred while calling", "An exception was thrown from the Python worker")


class SubtaskFailure(Exception):
    """Crosses from the Python worker to the driver as text: `[moorage:<code>] message`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"[moorage:{self.code}] {self.message}"


class UserFunctionError(UserError):
    """Code of the job raised; the message says where, on which key, and shows the trace."""

    code = "user_function"


class SourceOffsetsLost(UserError):
    """The source no longer has what the job must read next; another start would end alike."""

    code: ClassVar[str] = "source_offsets_lost"


class SparkEnded(MoorageError):
    """Spark ended by itself, for example because too many executors failed."""

    code: ClassVar[str] = "spark_ended"


def ask_spark(question: Callable[[], _T]) -> _T:
    """The answer of Spark's process in this pod.

    Raises:
        SparkEnded: it does not answer any more.
        MoorageError: the question failed otherwise.
    """
    try:
        return question()
    except (Py4JError, OSError) as error:
        raise failure_of(error) from error


def failure_of(error: BaseException) -> MoorageError:
    """The error that made a Spark action fail.

    A failure that no subtask reported (an executor was lost, a worker was killed) is `Retryable`;
    `SparkEnded` if Spark's process itself is gone.
    """
    if isinstance(error, MoorageError):
        return error
    text = str(error)
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        gist = _gist(text) or type(error).__name__
        return SparkEnded(f"spark's process has ended or does not answer: {gist}")
    match = _MARK.search(text)
    if match is None:
        return _unmarked(text)
    code, message = match.group(1), _SPARK_TAIL.sub("", match.group(2)).strip()
    if code == UserFunctionError.code:
        return UserFunctionError(message)
    if code in {"epoch_conflict", "epoch_incomplete"}:
        return Retryable(message)
    return error_from_wire({"code": code, "args": [message]})


def _unmarked(text: str) -> MoorageError:
    if "No space left on device" in text:
        return LocalDiskError(
            "a local volume is full (spark's or the state's own); make room and start again: "
            f"{_gist(text)}"
        )
    if any(sign in text for sign in _OFFSETS_LOST):
        return SourceOffsetsLost(
            f"the source no longer has what the job must read next, and nothing was skipped: "
            f"{_lost(text)}; restore from a newer point, or set spec.restore.onMissingOffsets: "
            f"Skip to go on with the earliest that is there (an input of env.from_spark: "
            f"failOnDataLoss in its own reader)"
        )
    if any(sign in text for sign in _KNOWN_LOSSES):
        return Retryable(_gist(text))
    users = _TRACE in text or _USERS.search(text)
    if not users and any(sign in text for sign in _LIKELY_LOSSES):
        return Retryable(_gist(text))
    return UserError(f"spark could not run the epoch: {_gist(text)}")


def _lost(text: str) -> str:
    """Which partition lost which offsets, in the words of Kafka's connector."""
    reason = _LOSS_REASON.search(_SPARK_TAIL.sub("", text))
    return " ".join(reason.group(1).split())[:500] if reason else _gist(text)


def _gist(text: str) -> str:
    """The line that says what happened: the last of a Python traceback, else the first."""
    lines = [line.strip(" :\t") for line in _SPARK_TAIL.sub("", text).splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        return f"{lines[-1][:500]}\n{text.strip()[:4000]}"
    telling = [line for line in lines if not line.startswith(_WRAPPING)]
    return next(iter(telling or lines), "")[:500]
