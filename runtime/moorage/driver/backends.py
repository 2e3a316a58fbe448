"""Which state backend a job gets, and how it is tuned, from all places that may say so.

Decides that a manifest goes before the machine's defaults, and what a factory that the job names
may choose. Called once, when a job's settings are resolved.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from moorage_state.errors import IllegalConfigurationError
from moorage_state.import_path import after_standard_library
from moorage_state.tuning import (
    BackendOptions,
    Kind,
    Refusal,
    default_options,
    judge_options,
    kind_of_backend,
)

__all__ = ["backend_options", "judge_backend"]


def backend_options(
    backend: str,
    options: Mapping[str, str],
    code: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
) -> BackendOptions:
    """What `spec.state.backend` and `spec.state.options` mean here.

    A full name `a.module.Class` is that of a factory, which is imported.

    Args:
        code: where the job's own modules lie.

    Raises:
        IllegalConfigurationError: naming the key, its value and what is allowed.
    """
    judged = judge_backend(backend, options, code, environ)
    if isinstance(judged, BackendOptions):
        return judged
    raise judged[0].error()


def judge_backend(
    backend: str,
    options: Mapping[str, str],
    code: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
) -> BackendOptions | list[Refusal]:
    """What `backend_options` gives, or everything that is wrong with the options.

    Raises:
        IllegalConfigurationError: there is no such backend, or the machine's defaults are wrong.
    """
    defaults = default_options(environ)
    kind = backend
    if "." in backend:
        with _importing_from(code):
            kind = _of_factory(backend, {**defaults, **options})
    return judge_options(kind, options, defaults)


@contextmanager
def _importing_from(code: Sequence[Path]) -> Iterator[None]:
    before = list(sys.path)
    after_standard_library(str(path) for path in code)
    try:
        yield
    finally:
        sys.path[:] = before


def _of_factory(name: str, options: Mapping[str, str]) -> Kind:
    """The backend of ours that a factory chooses: state servers keep no other."""
    from moorage_state.backends import (
        BatchExecutionStateBackend,
        EmbeddedRocksDBStateBackend,
        HashMapStateBackend,
        load_state_backend,
    )

    made = load_state_backend({"state.backend": name, **options}).backend
    known: dict[type, Kind] = {
        HashMapStateBackend: "hashmap",
        EmbeddedRocksDBStateBackend: "rocksdb",
        BatchExecutionStateBackend: "batch",
    }
    for kind, found in known.items():
        if isinstance(made, kind):
            return kind_of_backend(found)
    raise IllegalConfigurationError(
        f"a state backend that no state server can keep: key=state.backend value={name!r} "
        f"made={type(made).__name__}; have its create_from_config return one of "
        f"{', '.join(kind.__name__ for kind in known)}"
    )
