"""What a test shows of an error that its author can mend: lines of the job and of the test.

Decides whose a line of code is, and which errors are told without the library's own. Called by the
plugin of pytest, and so imports neither Spark nor Arrow; knows nothing of pytest.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from types import TracebackType

from moorage_state.checks import StateTypeError
from moorage_state.errors import UserError

_OURS = frozenset({"moorage", "moorage_state"})
_LIBRARIES = _OURS | {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "msgspec"}
_TESTING = "moorage.testing."


def may_be_the_jobs(module: str) -> bool:
    """Whether a module of this name is neither Python's nor of what a job runs on."""
    package = module.partition(".")[0]
    return module == "__main__" or package not in sys.stdlib_module_names | _LIBRARIES


def behind(error: BaseException) -> BaseException | None:
    """What a trace shows as this error's cause, or as what was handled when it was raised."""
    handled = error.__cause__ is None and not error.__suppress_context__
    return error.__context__ if handled else error.__cause__


def shorten(error: BaseException) -> bool:
    """Leave of an error's traces, and of those behind it, only lines that may be the job's.

    One behind it that it was raised from by the library, and whose text it has, becomes one with
    it; so it is shown at the job's line. Every other one that tells more stays, as Spark's, which
    knows of columns the line that made them. Returns whether that was done: not for errors that
    are none of a job's author, nor for what came by another way than `moorage.testing`.
    """
    steps = list(_steps(error.__traceback__))
    ours = any(_module(step).startswith(_TESTING) for step in steps)
    if not ours or not isinstance(error, (UserError, StateTypeError)):
        return False
    said = _text(error)
    kept: list[tuple[BaseException, list[TracebackType]]] = [(error, steps)]
    seen: list[BaseException] = [error]
    # One may be named as its own cause.
    while (cause := behind(seen[-1])) is not None and not any(cause is one for one in seen):
        steps, text = list(_steps(cause.__traceback__)), _text(cause)
        known, by_us = text in said, seen[-1].__cause__ is cause and _ours(kept[-1][1])
        if known and by_us:
            kept[-1][1].extend(steps)
        elif not known or any(may_be_the_jobs(_module(step)) for step in steps):
            kept.append((cause, steps))
            said += f"\n{text}"
        seen.append(cause)
    following = [one for one, _ in kept[1:]]
    for (one, steps), cause in zip_longest(kept, following):
        one.__traceback__ = _of_the_jobs(steps)
        if behind(one) is not cause:
            one.__cause__ = cause
    return True


def _text(error: BaseException) -> str:
    """What it says, without the mark that takes it through Spark; its type if it says nothing."""
    mark = f"[moorage:{getattr(error, 'code', '')}] "
    return str(error).removeprefix(mark) or type(error).__name__


def _ours(steps: Sequence[TracebackType]) -> bool:
    """Whether the library raised it, and not code that it called."""
    return bool(steps) and _module(steps[-1]).partition(".")[0] in _OURS


def _of_the_jobs(steps: Sequence[TracebackType]) -> TracebackType | None:
    trace: TracebackType | None = None
    for step in reversed(steps):
        if may_be_the_jobs(_module(step)):
            trace = TracebackType(trace, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return trace


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _module(step: TracebackType) -> str:
    return str(step.tb_frame.f_globals.get("__name__", ""))
