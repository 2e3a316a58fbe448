"""Reads a StatefulSparkJob from a YAML file: a job, or one error with everything that is wrong."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from moorage_api.explain import judge, what_is_right
from moorage_api.job import StatefulSparkJob
from moorage_api.problems import ManifestError, Problem, field_name
from moorage_api.yamltree import MAX_BYTES, Document, parse

__all__ = ["Check", "load_manifest", "parse_manifest"]

Check = Callable[[StatefulSparkJob], Iterable[Problem]]
"""Says what else is wrong with a job that is one by its form: where it is to run, say."""

_LAST_PART = re.compile(r"(^|[.])[^.\[\]]+$|\[[^\[\]]*\]$")


def load_manifest(path: Path, *checks: Check) -> StatefulSparkJob:
    """Return the job that the file `path` describes.

    Args:
        checks: what else must be right.

    Raises:
        ManifestError: the file is missing, unreadable, not YAML or not a valid job, or a check
            finds something; all problems at once, in the order of the file.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        problem = Problem("", "does not exist", "check the path")
        raise ManifestError(str(path), [problem]) from error
    except IsADirectoryError as error:
        problem = Problem("", "is a directory", "name the YAML file in it")
        raise ManifestError(str(path), [problem]) from error
    except OSError as error:
        problem = Problem("", f"cannot be read: {error.strerror}", "check its permissions")
        raise ManifestError(str(path), [problem]) from error
    return parse_manifest(text, str(path), *checks)


def parse_manifest(text: bytes, source: str, *checks: Check) -> StatefulSparkJob:
    """Return the job that `text` describes; `source` names it in errors.

    Raises:
        ManifestError: as `load_manifest`.
    """
    document = parse(text)
    problems = list(document.problems)
    if document.data is None:
        raise ManifestError(source, problems or [Problem("", "is empty", "write a job")])
    verdict = judge(document.data)
    wrong: list[str] = []
    if isinstance(verdict, StatefulSparkJob):
        job: StatefulSparkJob | None = verdict
    else:
        wrong = [field_name(finding.path) for finding in verdict]
        job = what_is_right(document.data, [finding.path for finding in verdict])
        problems += [
            Problem(field_name(f.path), f.reason, f.fix, document.line(f.path)) for f in verdict
        ]
    if job is not None:
        problems += _found(job, checks, wrong, document)
    if problems or job is None:
        raise ManifestError(source, sorted(problems, key=lambda p: (p.line or 0, p.field)))
    return job


def _found(
    job: StatefulSparkJob, checks: Iterable[Check], wrong: Iterable[str], document: Document
) -> Iterator[Problem]:
    """What checks find, each once, but for fields that are wrong by themselves."""
    lines = {field_name(path): line for path, line in document.lines.items()}
    passed_over = set(wrong)
    for check in checks:
        for problem in check(job):
            names = list(_with_those_above(problem.field))
            if not passed_over.isdisjoint(names):
                continue
            passed_over.add(problem.field)
            line = next((lines[name] for name in names if name in lines), None)
            yield Problem(problem.field, problem.reason, problem.fix, line)


def _with_those_above(field: str) -> Iterator[str]:
    """`spec.application.env[0]`, `spec.application.env`, `spec.application`, `spec`."""
    while field:
        yield field
        field = _LAST_PART.sub("", field)
