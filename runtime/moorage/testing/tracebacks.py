"""What a test shows of an error that its author can mend: lines of the job and of the test.

Decides whose a line of code is, and which errors are told without the library's own. Called by the
plugin of pytest, and so imports neither Spark nor Arrow; knows nothing of pytest.
"""

import sys
from collections.abc import Iterator
from types import TracebackType

from moorage_state.checks import StateTypeError
from moorage_state.errors import UserError

_LIBRARIES = frozenset(
    {"moorage", "moorage_state", "pyspark", "py4j", "pyarrow", "numpy", "pandas", "msgspec"}
)
_TESTING = "moorage.testing."


def may_be_the_jobs(module: str) -> bool:
    """Whether a module of this name is neither Python's nor of what a job runs on."""
    package = module.partition(".")[0]
    return module == "__main__" or package not in sys.stdlib_module_names | _LIBRARIES


def shorten(error: BaseException) -> bool:
    """Leave of an error's traces, and of what caused it, only lines that may be the job's.

    They become one trace, without causes. Returns whether that was done: not for errors that are
    none of a job's author, nor for what came by another way than `moorage.testing`.
    """
    steps = list(_steps(error.__traceback__))
    ours = any(_module(step).startswith(_TESTING) for step in steps)
    if not ours or not isinstance(error, (UserError, StateTypeError)):
        return False
    told: list[BaseException] = [error]
    # One may be named as its own cause.
    while (cause := told[-1].__cause__) is not None and cause not in told:
        steps += _steps(cause.__traceback__)
        told.append(cause)
    trace: TracebackType | None = None
    for step in reversed(steps):
        if may_be_the_jobs(_module(step)):
            trace = TracebackType(trace, step.tb_frame, step.tb_lasti, step.tb_lineno)
    error.__traceback__, error.__cause__, error.__suppress_context__ = trace, None, True
    return True


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _module(step: TracebackType) -> str:
    return str(step.tb_frame.f_globals.get("__name__", ""))
