"""Loading the user's job file and calling its `build(env)`.

Decides what a legal job file is. Called once per start, and by a preflight: `check_job_file`
before Spark is started, which takes long, and `build_graph` with Spark's session.
"""

import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from moorage.api.graph import JobGraph
from moorage.api.misplaced import Misplaced, miscalled
from moorage.api.streams import StreamEnvironment
from moorage.driver.job_source import NO_BUILD, ODD_BUILD, fault_of, hiding_files, unread_files
from moorage.driver.settings import JobSettings
from moorage.engine.task_failures import UserFunctionError
from moorage_state.errors import MoorageError, UserError
from moorage_state.import_path import after_standard_library

_MODULE = "moorage_job"
_MISSING_UID = "required keyword-only argument: 'uid'"
_NO_UID = "; a uid is a name of its own in the job, under which its state is found after a change"
_NO_MODULE = "; install it where the job runs, or put it beside the job file"


def check_job_file(path: Path) -> None:
    """Find without running the file what would keep it from being built.

    Raises:
        UserFunctionError: it is not Python.
        UserError: it has no `build`, or none that takes env. A file that gets names in ways that
            cannot be read off it passes, and `build_graph` sees.
    """
    fault = fault_of(path)
    if fault is None:
        return
    if fault.cause is not None:
        raise _not_imported(path, fault.cause) from fault.cause
    if fault.odd_build:
        raise UserError(
            f"build of the job file cannot be called with env: file={path} line={fault.line}; "
            f"{ODD_BUILD}"
        )
    raise _no_build(path)


def check_folders(path: Path, py_files: Sequence[Path] = ()) -> list[str]:
    """Find files of the job that are named like something else; gives what a person should know.

    Raises UserError: one hides a package that the job's processes need.
    """
    folders = [path.parent, *py_files]
    if hiding := hiding_files(folders):
        raise UserError(
            f"a file beside the job hides a package that its processes need: file={hiding[0]} "
            f"package={hiding[0].stem}; rename the file"
        )
    return [
        f"a file is named like a module of the standard library, which is imported in its place: "
        f"file={one}; rename it if the job is to import it"
        for one in unread_files(folders, path)
    ]


def stream_environment(settings: JobSettings, spark: SparkSession) -> StreamEnvironment:
    """What `build(env)` of a job with these settings is given."""
    return StreamEnvironment(
        spark,
        base_dir=str(settings.main_file.parent),
        staging=settings.checkpoint_dir,
        max_records_per_epoch=None if settings.in_one_epoch else settings.max_records_per_epoch,
        skip_missing_offsets=settings.restore.skip_missing_offsets,
        args=settings.args,
    )


def build_graph(path: Path, env: StreamEnvironment, py_files: Sequence[Path] = ()) -> JobGraph:
    """Run `build(env)` of the job file; returns the checked graph.

    Raises:
        UserFunctionError: the file raised when it was imported or built.
        UserError: it has no `build`, or describes no legal job.
    """
    module = _import(path, py_files)
    build = getattr(module, "build", None)
    if not callable(build):
        raise _no_build(path)
    try:
        build(env)
    except UserError as exc:
        if type(exc) not in {UserError, Misplaced}:
            raise
        raise UserError(f"{exc} (file={path}{_line_of(exc, path)})") from exc
    except MoorageError:
        raise
    except Exception as exc:
        no_uid = _NO_UID if _MISSING_UID in str(exc) else ""
        if (told := miscalled(exc)) is not None:
            raise UserError(f"{told}{no_uid} (file={path}{_line_of(exc, path)})") from exc
        raise UserFunctionError(
            f"build(env) failed: file={path}{_line_of(exc, path)}: {type(exc).__name__}: {exc}"
            f"{no_uid}"
        ) from exc
    env.graph.check()
    return env.graph


def _import(path: Path, py_files: Sequence[Path]) -> ModuleType:
    """Import the file under a name of its own; its functions travel to executors by value."""
    after_standard_library([str(path.parent), *map(str, py_files)])
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise UserError(f"the job file is not a Python file: file={path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except MoorageError:
        raise
    except Exception as exc:
        raise _not_imported(path, exc) from exc
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # pyspark's copy has no types
    return module


def _no_build(path: Path) -> UserError:
    return UserError(f"the job file defines no build(env): file={path}; {NO_BUILD}")


def _not_imported(path: Path, error: Exception) -> UserFunctionError:
    absent = isinstance(error, ModuleNotFoundError)
    return UserFunctionError(
        f"the job file cannot be imported: file={path}{_line_of(error, path)}: "
        f"{type(error).__name__}: {error}{_NO_MODULE if absent else ''}"
    )


def _line_of(error: BaseException, path: Path) -> str:
    """The last line of the job file that the error passed through."""
    if isinstance(error, SyntaxError):
        return f" line={error.lineno}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path
    ]
    return f" line={lines[-1]}" if lines else ""
