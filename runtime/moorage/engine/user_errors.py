"""What is told of an error in the code of a job: where in that code, and what the names there are.

Decides which frames of a trace are the job's, and what a person needs beside Python's own words.
Called by the subtask, in the worker that ran the function.
"""

import errno
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from types import CodeType
from typing import Any

import moorage
import moorage_state
from moorage.engine.failures import SubtaskFailure, UserFunctionError
from moorage_state.errors import LocalDiskError, MoorageError, UserError

__all__ = ["failure_in"]

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
# Ours, and what dataclasses generate of ours, which has no file.
_OURS = (str(Path(moorage.__file__).parent), str(Path(moorage_state.__path__[0])), "<string>")
_METHODS = ("process", "process_element", "process_batch")
_FRAMES = 5


def failure_in(function: Any, exc: Exception, where: str) -> SubtaskFailure:
    """What the driver is told: for an error in the job's code where, what, and that code's trace.

    Args:
        where: operator, subtask and key.
    """
    frames = _frames_of_the_job(exc)
    if type(exc) is UserError:
        return SubtaskFailure(exc.code, f"{exc} ({_place(function, frames)})")
    if isinstance(exc, MoorageError):
        return SubtaskFailure(exc.code, str(exc))
    if isinstance(exc, OSError) and exc.errno in _DISK_ERRORS:
        return SubtaskFailure(LocalDiskError.code, str(exc))
    place = "" if frames else f" ({_place(function, frames)})"  # else the trace shows it
    words = f"{where}: {type(exc).__name__}: {exc}{_hint(exc)}{place}"
    return SubtaskFailure(UserFunctionError.code, f"{words}\n{_trace(exc, frames)}")


def _frames_of_the_job(exc: Exception) -> list[traceback.FrameSummary]:
    """From the function's first frame to the last that is not ours, which is the one to look at."""
    frames = traceback.extract_tb(exc.__traceback__)
    theirs = [at for at, frame in enumerate(frames) if not frame.filename.startswith(_OURS)]
    return frames[theirs[0] : theirs[-1] + 1] if theirs else []


def _place(function: Any, frames: Sequence[traceback.FrameSummary]) -> str:
    """The line that raised it; of what was found when rows left the function, its first line."""
    if frames:
        return f"file={frames[-1].filename} line={frames[-1].lineno} in {frames[-1].name}"
    name = type(function).__name__
    for method in _METHODS:
        code = getattr(type(function).__dict__.get(method), "__code__", None)
        if isinstance(code, CodeType):
            return f"file={code.co_filename} line={code.co_firstlineno} in {name}.{method}"
    return f"in {name}"


def _hint(exc: Exception) -> str:
    """The columns that a row has, where one is asked for that it has not."""
    columns = getattr(getattr(exc, "obj", None), "_fields", None)
    if not isinstance(exc, AttributeError) or not columns:
        return ""
    near = get_close_matches(str(exc.name), columns, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"; columns of the row are {', '.join(columns)}{meant}"


def _trace(exc: Exception, frames: Sequence[traceback.FrameSummary]) -> str:
    shown = frames or traceback.extract_tb(exc.__traceback__)
    lines = traceback.format_list(list(shown)[-_FRAMES:])
    return "".join([*lines, *traceback.format_exception_only(exc)])
