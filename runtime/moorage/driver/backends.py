"""Which state backend a job gets, and how it is tuned, from all places that may say so.

Decides that a manifest goes before the machine's defaults, and where the job's own code is looked
for. Called once, when a job's settings are resolved, and by checks before.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from moorage_state.import_path import after_standard_library
from moorage_state.state_backends import StateBackend, judge_job_backend
from moorage_state.tuning import Refusal, default_options

__all__ = ["chosen_backend", "judge_backend"]


def chosen_backend(
    backend: str,
    options: Mapping[str, str],
    code: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
) -> StateBackend:
    """The backend that `spec.state.backend` and `spec.state.options` name here.

    Args:
        code: where the job's own modules lie: folders and archives.

    Raises:
        IllegalConfigurationError: naming the key, its value and what is allowed.
    """
    judged = judge_backend(backend, options, code, environ)
    if isinstance(judged, StateBackend):
        return judged
    raise judged[0].error()


def judge_backend(
    backend: str,
    options: Mapping[str, str],
    code: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
) -> StateBackend | list[Refusal]:
    """What `chosen_backend` gives, or everything that is wrong with the options.

    Raises:
        IllegalConfigurationError: there is no such backend, or the machine's defaults are wrong.
    """
    defaults = default_options(environ)
    with _importing_from(code):
        return judge_job_backend(backend, options, defaults)


@contextmanager
def _importing_from(code: Sequence[Path]) -> Iterator[None]:
    before = list(sys.path)
    after_standard_library(str(path) for path in code)
    try:
        yield
    finally:
        sys.path[:] = before
