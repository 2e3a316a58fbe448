"""YAML text as plain data plus the line of every field.

Called by the manifest loader only. It refuses what plain loading would hide or choke on: keys
given twice, several documents, aliases that refer to themselves or multiply without end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from moorage_api.problems import Problem, field_name

__all__ = ["MAX_BYTES", "Document", "parse"]

Path = tuple[str | int, ...]

# What fits into the annotation that kubectl apply keeps of an object.
MAX_BYTES = 262_144
_MAX_NODES = 50_000


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its data, where each path stands, and what was wrong besides."""

    data: Any
    lines: dict[Path, int]
    problems: tuple[Problem, ...]

    def line(self, path: Path) -> int | None:
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
        lines: dict[Path, int] = {}
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


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], doubled: list[Problem]) -> None:
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
