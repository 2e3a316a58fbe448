"""Which state backend a job gets, and how it is tuned, from all places that may say so.

Decides that a manifest goes before the machine's defaults, and where the job's own code is looked
for. Called once, when a job's settings are resolved, and by checks before.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from moorage_api.state import DEFAULT_BACKEND
from moorage_state.errors import IllegalConfigurationError
from moorage_state.import_path import after_standard_library
from moorage_state.state_backends import StateBackend, judge_job_backend
from moorage_state.tuning import Refusal, default_options

__all__ = ["DEFAULT_VARIABLE", "chosen_backend", "judge_backend", "or_default"]

DEFAULT_VARIABLE = "MOORAGE_STATE_BACKEND"
"""The state backend of jobs that have no state yet and whose manifest names none."""


def or_default(backend: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The name of a backend; None stands for the machine's default."""
    return backend or environ.get(DEFAULT_VARIABLE, "").strip() or DEFAULT_BACKEND


def chosen_backend(
    backend: str | None,
    options: Mapping[str, str],
    code: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
) -> StateBackend:
    """The backend that `spec.state.backend` and `spec.state.options` name here.

    Args:
        backend: its name; None for the machine's default.
        code: where the job's own modules lie: folders and archives.

    Raises:
        IllegalConfigurationError: naming the key, its value and what is allowed.
    """
    judged = judge_backend(backend, options, code, environ)
    if isinstance(judged, StateBackend):
        return judged
    raise judged[0].error()


def judge_backend(
    backend: str | None,
    options: Mapping[str, str],
    code: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
) -> StateBackend | list[Refusal]:
    """What `chosen_backend` gives, or everything that is wrong with the options.

    Raises:
        IllegalConfigurationError: there is no such backend, or the machine's defaults are wrong.
    """
    defaults = default_options(environ)
    try:
        with _importing_from(code):
            return judge_job_backend(or_default(backend, environ), options, defaults)
    except IllegalConfigurationError as error:
        if backend is not None:
            raise
        raise IllegalConfigurationError(
            f"this machine's default cannot be used: variable={DEFAULT_VARIABLE}: {error}"
        ) from error


@contextmanager
def _importing_from(code: Sequence[Path]) -> Iterator[None]:
    before = list(sys.path)
    after_standard_library(str(path) for path in code)
    try:
        yield
    finally:
        sys.path[:] = before
