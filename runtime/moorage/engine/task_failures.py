"""What a failed Spark job means: from an exception's text back to the error a subtask raised.

Subtasks send `[moorage:<code>] message` through Spark, which keeps text only. Raised by the
subtask, read by the epoch runner and the driver; decides whether to try the epoch again, to rewind
the job, or to give up.
"""

import dis
import errno
import inspect
import os
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, TracebackType
from typing import Any, ClassVar, TypeVar

from py4j.protocol import Py4JError, Py4JNetworkError

import moorage
import moorage_state
from moorage.api.declarations import first_line
from moorage.api.functions import innermost
from moorage.api.misplaced import did_you_mean
from moorage_state.checks import StateTypeError
from moorage_state.errors import (
    LocalDiskError,
    MoorageError,
    Retryable,
    StaleLease,
    UserError,
    VersionGone,
    VersionMismatch,
    error_from_wire,
)
from moorage_state.keyed.value_states import OverCell

GOT_OVER = (Retryable, StaleLease, VersionGone, VersionMismatch)
"""What a job gets over by itself: with another attempt, or a rewind."""

_T = TypeVar("_T")
# With the class name before it: a mark in user data or in a trace's source lines is not ours.
_MARK = re.compile(
    r"(?:\A|(?:SubtaskFailure|SourceFailure|OffsetsLost): )\[moorage:([a-z_]+)\] (.*)", re.DOTALL
)
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
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
# Ours, and what dataclasses generate of ours, which has no file.
_OURS = (
    *(f"{folder}{os.sep}" for folder in (Path(moorage.__file__).parent, moorage_state.__path__[0])),
    "<string>",
)
_METHODS = (
    *("process", "process_element", "process_element1", "process_element2"),
    *("process_broadcast_element", "process_batch", "join", "co_group", "on_timer", "on_timers"),
)
_WRITING = frozenset({"add", "add_all", "put", "put_all", "update"})
_FRAMES = 5


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


class RunRefused(UserFunctionError):
    """What the job met when it ran is wrong, and not its code: rows, or what lies in a directory.

    It is the job's failure, and not the manifest's; but no reason to delete state.
    """


class SourceOffsetsLost(UserError):
    """The source no longer has what the job must read next; another start would end alike."""

    code: ClassVar[str] = "source_offsets_lost"


class SparkEnded(MoorageError):
    """Spark ended by itself, for example because too many executors failed."""

    code: ClassVar[str] = "spark_ended"


def with_causes(error: BaseException) -> str:
    """What an error says, and the first line of each that caused it."""
    said, told, cause = str(error), [error], error.__cause__
    # One may be named as its own cause.
    while cause is not None and not any(cause is one for one in told):
        said += f"; because of {type(cause).__name__}: {first_line(cause)}"
        told.append(cause)
        cause = cause.__cause__
    return said


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

    A failure that no subtask reported is `Retryable`; `SparkEnded` if Spark's process is gone.
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


def failure_in(function: Any, exc: Exception, where: str) -> SubtaskFailure:
    """What the driver is told: of an error in the job's code where, what, and its trace."""
    frames, written = _frames_of_the_job(exc), innermost(function)
    if type(exc) is UserError:
        return SubtaskFailure(exc.code, f"{exc} ({_place(written, frames) or where})")
    if isinstance(exc, MoorageError):
        return SubtaskFailure(exc.code, str(exc))
    if isinstance(exc, OSError) and exc.errno in _DISK_ERRORS:
        return SubtaskFailure(LocalDiskError.code, str(exc))
    if isinstance(exc, StateTypeError) and not frames:
        # Found when the key was done: a trace would show nothing but our own lines.
        place = " or ".join(_writing_lines(written, exc.__traceback__)) or _place(written, frames)
        words = f"{where}: {type(exc).__name__}: {exc}{_in_brackets(place)}"
        return SubtaskFailure(UserFunctionError.code, words)
    place = "" if frames else _in_brackets(_place(written, frames))  # else the trace shows it
    words = f"{where}: {type(exc).__name__}: {exc}{_hint(exc)}{place}"
    return SubtaskFailure(UserFunctionError.code, f"{words}\n{_trace(exc, frames)}")


def _in_brackets(place: str) -> str:
    return f" ({place})" if place else ""


def _frames_of_the_job(exc: Exception) -> list[traceback.FrameSummary]:
    """From the function's first frame to the last that is not ours, which is the one to look at."""
    frames = traceback.extract_tb(exc.__traceback__)
    theirs = [at for at, frame in enumerate(frames) if not frame.filename.startswith(_OURS)]
    return frames[theirs[0] : theirs[-1] + 1] if theirs else []


def _place(function: Any, frames: Sequence[traceback.FrameSummary]) -> str:
    """The line that raised it; of what was found when rows left the function, its methods.

    Empty where the job's author wrote none, as of windows that aggregate.
    """
    if frames:
        return f"file={frames[-1].filename} line={frames[-1].lineno} in {frames[-1].name}"
    kind, methods = type(function), _methods_of(type(function))
    found = [(name, code) for name in _METHODS if (code := _code_of(methods.get(name)))]
    return " or ".join(
        f"file={code.co_filename} line={code.co_firstlineno} in {kind.__name__}.{name}"
        for name, code in found
        if not code.co_filename.startswith(_OURS)
    )


def _methods_of(kind: type) -> dict[str, object]:
    """What runs by each name: what a class overrides does not."""
    found: dict[str, object] = {}
    for one in reversed(kind.__mro__):
        found |= vars(one)
    return found


def _writing_lines(function: Any, trace: TracebackType | None) -> list[str]:
    """Where the function writes to the handle that raised, if that is an attribute of it.

    Looked up in the compiled methods: their source is not on every machine that runs them.
    """
    handles: list[object] = []
    while trace is not None:
        if (raising := trace.tb_frame.f_locals.get("self")) is not None:
            handles.append(raising)
        trace = trace.tb_next
    try:
        methods = _methods_of(type(function))
        attributes = object.__getattribute__(function, "__dict__").items()
        names = {name for name, mine in attributes if _is_one(mine, handles)}
    except Exception:  # noqa: BLE001 - whatever an object says of itself, the error is told
        return []
    return [
        f"file={code.co_filename} line={line} in {code.co_name}"
        for code in map(_code_of, methods.values())
        if code is not None
        for line in _writes_in(code, names)
    ]


# Types are compared, and no attribute is asked for, not even by `isinstance`: an object of the job
# may answer with code of its own, such as one that connects when it is first used.
def _is_one(mine: object, handles: Collection[object]) -> bool:
    """Whether this is one of the handles, or wraps one."""
    inner = mine.cell if issubclass(type(mine), OverCell) else mine  # type: ignore[attr-defined]  # it is one
    return any(one is mine or one is inner for one in handles)


def _code_of(method: object) -> CodeType | None:
    return method.__code__ if type(method) is FunctionType else None


def _writes_in(code: CodeType, names: Collection[str]) -> Iterator[int]:
    """The lines with a call such as `self.name.update(...)`."""
    before: object = None
    for step in dis.get_instructions(code):
        if before in names and step.argval in _WRITING and step.positions is not None:
            yield step.positions.lineno or code.co_firstlineno
        before = step.argval


def _hint(exc: Exception) -> str:
    """The columns that a row has, where one is asked for that it has not."""
    if not isinstance(exc, AttributeError):
        return ""
    columns = inspect.getattr_static(type(exc.obj), "_fields", None)
    if type(columns) is not tuple or not columns:
        return ""
    meant = did_you_mean(exc.name, columns)
    return f"; columns of the row are {', '.join(columns)}{meant}"


def _trace(exc: Exception, frames: Sequence[traceback.FrameSummary]) -> str:
    shown = frames or traceback.extract_tb(exc.__traceback__)
    lines = traceback.format_list(list(shown)[-_FRAMES:])
    return "".join([*lines, *traceback.format_exception_only(exc)])
