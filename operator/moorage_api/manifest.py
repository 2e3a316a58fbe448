"""Reads a StatefulSparkJob from a YAML file: a job, or one error with everything that is wrong."""

from pathlib import Path

from moorage_api.explain import judge
from moorage_api.job import StatefulSparkJob
from moorage_api.problems import ManifestError, Problem, field_name
from moorage_api.yamltree import MAX_BYTES, parse

__all__ = ["load_manifest", "parse_manifest"]


def load_manifest(path: Path) -> StatefulSparkJob:
    """Return the job that the file `path` describes.

    Raises:
        ManifestError: the file is missing, unreadable, not YAML or not a valid job; all problems
            at once, in the order of the file.
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
    return parse_manifest(text, str(path))


def parse_manifest(text: bytes, source: str) -> StatefulSparkJob:
    """Return the job that `text` describes; `source` names it in errors.

    Raises:
        ManifestError: as `load_manifest`.
    """
    document = parse(text)
    problems = list(document.problems)
    if document.data is None:
        raise ManifestError(source, problems or [Problem("", "is empty", "write a job")])
    verdict = judge(document.data)
    if isinstance(verdict, StatefulSparkJob) and not problems:
        return verdict
    if not isinstance(verdict, StatefulSparkJob):
        problems += [
            Problem(field_name(f.path), f.reason, f.fix, document.line(f.path)) for f in verdict
        ]
    raise ManifestError(source, sorted(problems, key=lambda p: (p.line or 0, p.field)))
