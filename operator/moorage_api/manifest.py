"""Reads a StatefulSparkJob from a YAML file: a job, or one error with everything that is wrong.

The text becomes plain data plus the line of every field. What plain loading would hide or choke on
is refused: keys given twice, several documents, aliases that refer to themselves or multiply
without end.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from moorage_api.explain import judge, what_is_right
from moorage_api.job import StatefulSparkJob
from moorage_api.problems import ManifestError, Problem, field_name

FieldPath = tuple[str | int, ...]

# What fits into the annotation that kubectl apply keeps of an object.
MAX_BYTES = 262_144
_MAX_NODES = 50_000
_NAMED = 5
"""How many files are named where a path leads to no manifest."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its data, where each path stands, and what was wrong besides."""

    data: Any
    lines: dict[FieldPath, int]
    problems: tuple[Problem, ...]

    def line(self, path: FieldPath) -> int | None:
        """Return the line of `path`, or of the nearest thing above it that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


class _Unusable(Exception):
    """The text has no usable tree; carries the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def parse(text: bytes) -> Document:
    """Parse one YAML document. Never raises for bad text: the problems say what is wrong."""
    try:
        node = _compose(text)
        _measure(node, {}, set())
        lines: dict[FieldPath, int] = {}
        doubled: list[Problem] = []
        _walk(node, (), lines, doubled)
        data = _construct(node)
    except _Unusable as error:
        return Document(None, {}, (error.problem,))
    except RecursionError:
        return Document(None, {}, (_too_deep(),))
    return Document(data, lines, tuple(doubled))


def _compose(text: bytes) -> yaml.Node:
    if len(text) > MAX_BYTES:
        raise _Unusable(Problem("", f"has {len(text)} bytes", f"keep it under {MAX_BYTES}"))
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise _Unusable(_syntax_problem(error)) from error
    if not nodes or all(_is_empty(node) for node in nodes):
        raise _Unusable(Problem("", "is empty", "write a StatefulSparkJob"))
    if len(nodes) > 1:
        line = nodes[1].start_mark.line + 1
        fix = "keep one job per file, without '---' between documents"
        raise _Unusable(Problem("", f"has {len(nodes)} documents", fix, line))
    return nodes[0]


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _syntax_problem(error: yaml.YAMLError) -> Problem:
    """Say where and what, without the excerpt: the text may hold secrets."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem("", "is not text that YAML knows", "save it as UTF-8")
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    column = f" at column {mark.column + 1}" if mark else ""
    what = (error.problem or "cannot be read").splitlines()[0]
    if "cannot start any token" in what and "\\t" in what:
        what, fix = "a tab where spaces are needed", "indent with spaces"
    else:
        fix = "correct the indentation, colon, quote or bracket here or on the line before"
    return Problem("", f"is not YAML: {what}{column}", fix, line)


def _too_deep() -> Problem:
    return Problem("", "is nested too deeply", "write a StatefulSparkJob")


def _measure(node: yaml.Node, sizes: dict[int, int], open_nodes: set[int]) -> int:
    """Return how many nodes `node` is when its aliases are written out."""
    if id(node) in open_nodes:
        fix = "write the value out in place of the alias"
        raise _Unusable(Problem("", "has an alias inside itself", fix, node.start_mark.line + 1))
    if id(node) not in sizes:
        open_nodes.add(id(node))
        total = 1 + sum(_measure(child, sizes, open_nodes) for child in _children(node))
        open_nodes.discard(id(node))
        if total > _MAX_NODES:
            line = node.start_mark.line + 1
            raise _Unusable(Problem("", "has too many values", "use fewer aliases or fields", line))
        sizes[id(node)] = total
    return sizes[id(node)]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _walk(
    node: yaml.Node, path: FieldPath, lines: dict[FieldPath, int], doubled: list[Problem]
) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*path, index), lines, doubled)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            here, line = (*path, name), key.start_mark.line + 1
            if name in seen:
                reason = f"is given twice, first on line {lines[here]}"
                doubled.append(Problem(field_name(here), reason, "keep one", line))
            seen.add(name)
            lines.setdefault(here, line)
            _walk(value, here, lines, doubled)


def _construct(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise _Unusable(_syntax_problem(error)) from error
    except (ValueError, OverflowError) as error:
        # ValueError: a date such as 2024-99-99, an integer of thousands of digits.
        fix = "put it in quotes"
        raise _Unusable(Problem("", "holds a date or number that does not exist", fix)) from error
    finally:
        loader.dispose()


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
        problem = Problem("", "does not exist", f"check the path{_there(path.parent)}")
        raise ManifestError(str(path), [problem]) from error
    except IsADirectoryError as error:
        problem = Problem("", "is a directory", f"name the YAML file in it{_there(path)}")
        raise ManifestError(str(path), [problem]) from error
    except OSError as error:
        problem = Problem("", f"cannot be read: {error.strerror}", "check its permissions")
        raise ManifestError(str(path), [problem]) from error
    if path.suffix == ".py":
        # Its text may happen to be YAML: what is found in it would mislead.
        fix = f"name the manifest that has it as spec.application.mainFile{_there(path.parent)}"
        problem = Problem("", "is a file of Python and not a manifest", fix)
        raise ManifestError(str(path), [problem])
    return parse_manifest(text, str(path), *checks)


def _there(folder: Path) -> str:
    """Which files may have been meant."""
    try:
        there = sorted(one.name for one in folder.glob("*.y*ml"))
    except OSError:
        return ""
    more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    if not there:
        return "; `moorage init DIR` writes one to begin with"
    return f"; there is {', '.join(there[:_NAMED])}{more}"


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
