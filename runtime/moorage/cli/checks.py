"""What a manifest must be to be run, here or on a cluster: the checks of `validate` and of `run`.

What they find is told at once, with what is wrong with the form. Reads the job's files, and imports
none but a state backend's factory, which alone knows what it makes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from moorage.driver.job_source import NO_BUILD, ODD_BUILD, fault_of, hiding_files
from moorage.driver.settings import judge_backend
from moorage_api import (
    Check,
    Problem,
    StatefulSparkJob,
    cluster_problems,
    load_manifest,
    local_run_report,
)
from moorage_api.problems import field_name
from moorage_state.errors import IllegalConfigurationError, UserError
from moorage_state.stores.addresses import address
from moorage_state.tuning import judge_options

Place = Literal["local", "cluster"]

_FOR_CLUSTER = "(for a cluster: moorage validate --for cluster)"


def checked_job(manifest: Path, place: Place) -> StatefulSparkJob:
    """The job of a manifest that can be run at `place`; refuses it with all its problems."""
    checks = _local(manifest.absolute().parent) if place == "local" else _CLUSTER
    return load_manifest(manifest, *checks)


def namespace_of(job: StatefulSparkJob, asked: str | None) -> str | None:
    """The namespace that the manifest or the command names; None where neither does."""
    if asked and job.namespace and job.namespace != asked:
        raise UserError(
            f"the job is of another namespace: manifest={job.namespace} asked={asked}; "
            f"leave out --namespace, or correct metadata.namespace"
        )
    return asked or job.namespace


def restore_url(restore: str | None) -> str | None:
    """Give a plain path the form that the driver knows; names and URLs have it."""
    if restore is None or "://" in restore:
        return restore
    if "/" not in restore and not Path(restore).exists():
        return restore  # `chk-N`, or a savepoint's name
    return address(restore)


def _local(folder: Path) -> tuple[Check, ...]:
    return (
        lambda job: local_run_report(job).unsupported,
        lambda job: _files(job, folder),
        lambda job: _backend(job, folder),
    )


def _files(job: StatefulSparkJob, folder: Path) -> Iterator[Problem]:
    application = job.spec.application
    main_file = application.main_path(folder)
    if not main_file.is_file():
        yield _absent("spec.application.mainFile", main_file)
    else:
        yield from _source(main_file)
    # Python would import that file in place of the package, in the driver and in every worker.
    for path in hiding_files([main_file.parent]):
        reason = f"has a file beside it that hides the package {path.stem}: {path}"
        yield Problem("spec.application.mainFile", reason, "rename that file")
        break
    for index, name in enumerate(application.py_files):
        path = folder / name.removeprefix("local://")
        if not path.exists():
            yield _absent(f"spec.application.pyFiles[{index}]", path)


def _source(path: Path) -> Iterator[Problem]:
    field = "spec.application.mainFile"
    try:
        fault = fault_of(path)
    except OSError as error:
        yield Problem(field, f"cannot be read: {path}: {error.strerror}", "check its permissions")
        return
    if fault is None:
        return
    if fault.odd_build:
        yield Problem(field, f"has a build that takes no env: {path}:{fault.line}", ODD_BUILD)
        return
    if fault.cause is None:
        yield Problem(field, f"defines no build(env): {path}", NO_BUILD)
        return
    where = f"{path}:{fault.line}" if fault.line else str(path)
    what = fault.cause.msg if isinstance(fault.cause, SyntaxError) else str(fault.cause)
    yield Problem(field, f"is not Python: {where}: {what}", "correct it there")


def _absent(field: str, path: Path) -> Problem:
    reason = f"is not a file on this machine: {path}"
    return Problem(field, reason, f"write its path relative to the manifest {_FOR_CLUSTER}")


def _backend(job: StatefulSparkJob, folder: Path) -> Iterator[Problem]:
    state = job.spec.state
    try:
        judged = judge_backend(
            state.backend,
            state.options,
            [
                job.spec.application.main_path(folder).parent,
                *(folder / name for name in job.spec.application.import_paths),
            ],
        )
    except IllegalConfigurationError as error:
        reason, _, fix = str(error).rpartition("; ")
        yield Problem("spec.state.backend", reason, fix)
        return
    yield from _options(judged)


def _cluster_options(job: StatefulSparkJob) -> Iterator[Problem]:
    # A backend of one's own is in the image, and is asked there what it is told. A job that names
    # none may have one by the cluster's default.
    state = job.spec.state
    own = "state.backend." if state.backend is None or state.names_own_backend else ""
    yield from _options(judge_options(state.options, own=own))


def undecided_options(job: StatefulSparkJob) -> list[str]:
    """Settings of a valid job's backend that the cluster's default has, or nothing has."""
    state = job.spec.state
    judged = judge_options(state.options) if state.backend is None else []
    return [one.key for one in judged] if isinstance(judged, list) else []


def _options(judged: object) -> Iterator[Problem]:
    if isinstance(judged, list):
        for one in judged:
            field = ("spec", "state", "options", *filter(None, [one.key]))
            yield Problem(field_name(field), one.reason, one.fix)


_CLUSTER: tuple[Check, ...] = (cluster_problems, _cluster_options)
