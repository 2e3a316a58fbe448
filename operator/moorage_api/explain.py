"""From plain data to a job, or to everything that is wrong with it in words a person can act on.

Called by the manifest loader. Messages name the field, what is wrong and what to write; they repeat
a value only where it is a number or a choice from a list, because any other text may be a secret.
"""

import copy
import difflib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from moorage_api.job import API_VERSION, KIND, StatefulSparkJob
from moorage_api.model import Model, Violation
from moorage_api.problems import field_name

Path = tuple[str | int, ...]

Unknown = Literal["refuse", "ignore"]
"""What becomes of fields that no model has: what a person wrote is refused, as it may be misspelt;
what an API server or another release handed over may be newer, and is passed over."""

_STAND_INS: dict[Path, Any] = {
    ("apiVersion",): API_VERSION,
    ("kind",): KIND,
    ("metadata", "name"): "job",
    ("spec", "application", "mainFile"): "job.py",
    ("spec", "scaling", "parallelism"): 1,
    ("spec", "state", "checkpointDir"): "memory://state",
}
"""What every job must say."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with its path still in parts, so that its line can be looked up."""

    path: Path
    reason: str
    fix: str


def judge(data: Any, unknown: Unknown = "refuse") -> StatefulSparkJob | list[Finding]:
    """Return the job that `data` describes, or every finding that keeps it from being one.

    A null is the same as a field left out, as on the API server.
    """
    if not isinstance(data, dict):
        return [Finding((), f"is {_kind_of(data)} and not a mapping", f"write a {KIND}")]
    data = _without_nulls(data)
    if data.get("kind", KIND) != KIND:
        return [Finding(("kind",), "is not a kind that this command knows", f"write {KIND}")]
    try:
        return _validate(data, unknown)
    except ValidationError as error:
        findings = [finding for details in error.errors() for finding in _translate(details)]
    return findings + _rules_beside(data, findings)


def what_is_right(data: Any, wrong: Collection[Path]) -> StatefulSparkJob | None:
    """The job without what is `wrong` with it, so that the rest can be checked all the same.

    What it cannot be without has a stand-in: who checks it must pass over problems of these fields.
    None if even so it is no job.
    """
    if not isinstance(data, dict):
        return None
    pruned = copy.deepcopy(_without_nulls(data))
    for path in wrong:
        _remove(pruned, path)
    for path, value in _STAND_INS.items():
        _put_where_missing(pruned, path, value)
    try:
        return _validate(pruned)
    except ValidationError:
        return None


def _put_where_missing(data: dict[str, Any], path: Path, value: Any) -> None:
    inner: Any = data
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            return
    inner.setdefault(path[-1], value)


def _validate(data: Mapping[str, Any], unknown: Unknown = "ignore") -> StatefulSparkJob:
    extra: Literal["ignore"] | None = "ignore" if unknown == "ignore" else None
    return StatefulSparkJob.model_validate(data, by_alias=True, by_name=False, extra=extra)


def _without_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    if isinstance(data, list):
        return [_without_nulls(value) for value in data]
    return data


def _rules_beside(data: Any, findings: list[Finding]) -> list[Finding]:
    """Find broken rules that the errors in `findings` hide."""
    # Rules across fields only run where every field is right. So the wrong ones are taken out and
    # the rest is judged again; a rule about a field that was taken out is not counted.
    pruned = copy.deepcopy(data)
    for finding in findings:
        _remove(pruned, finding.path)
    try:
        _validate(pruned)
    except ValidationError as error:
        hidden = [details for details in error.errors() if details["type"] == "moorage_rules"]
    else:
        hidden = []
    wrong = {finding.path for finding in findings}
    return [
        Finding((*details["loc"], *violation.paths[0]), violation.reason, violation.fix)
        for details in hidden
        for violation in details["ctx"]["violations"]
        if not any((*details["loc"], *path) in wrong for path in violation.paths)
    ]


def _remove(data: Any, path: Path) -> None:
    """Take out what stands at `path`; of a list all, because the other items would shift."""
    names = list(itertools.takewhile(lambda part: isinstance(part, str), path))
    for name in names[:-1]:
        data = data.get(name) if isinstance(data, dict) else None
    if names and isinstance(data, dict):
        data.pop(names[-1], None)


def _translate(details: ErrorDetails) -> Iterator[Finding]:
    path, context = details["loc"], details.get("ctx", {})
    if details["type"] == "moorage_rules":
        violations: list[Violation] = context["violations"]
        for violation in violations:
            yield Finding((*path, *violation.paths[0]), violation.reason, violation.fix)
        return
    if path[-1:] == ("[key]",):
        yield Finding(path[:-1], "is a key that is not text", "put the key in quotes")
        return
    reason, fix = _phrase(details["type"], path, details["input"], context)
    yield Finding(path, reason, fix or _describe(path))


_Phrase = tuple[str, str]


def _value(_path: Path, given: Any, context: dict[str, Any]) -> _Phrase:
    near = difflib.get_close_matches(str(given), context.get("choices", ()), n=1)
    return context["reason"], f"did you mean {near[0]}?" if near else context["fix"]


def _unknown(path: Path, _given: Any, _context: dict[str, Any]) -> _Phrase:
    name, parent = str(path[-1]), path[:-1]
    model = _model_at(parent)
    known = [_alias(n, f) for n, f in model.model_fields.items()] if model else []
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    by_case = {other.lower().replace("_", ""): other for other in known}
    if name.lower().replace("_", "") in by_case:
        near = [by_case[name.lower().replace("_", "")]]
    if near:
        return "is not a field", f"did you mean {near[0]}?"
    elsewhere = [p for p in _all_paths(StatefulSparkJob) if p[-1] == name]
    if elsewhere:
        return "is not a field", f"did you mean {field_name(elsewhere[0])}?"
    return "is not a field", f"remove it; known here: {', '.join(sorted(known))}"


def _missing(path: Path, _given: Any, _context: dict[str, Any]) -> _Phrase:
    return "is missing", f"add it: {_describe(path)}"


def _choice(_path: Path, given: Any, context: dict[str, Any]) -> _Phrase:
    choices = [part.strip(" '") for part in context["expected"].replace(" or ", ", ").split(",")]
    if not isinstance(given, str):
        return f"is {_kind_of(given)}", f"write {_one_of(choices)}"
    near = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
    lowered = {choice.lower(): choice for choice in choices}
    near = [lowered[given.lower()]] if given.lower() in lowered else near
    shown = (
        f"is not one of its values: {given!r}" if len(given) <= 40 else "is not one of its values"
    )
    return shown, f"did you mean {near[0]}?" if near else f"write {_one_of(choices)}"


def _text(_path: Path, given: Any, _context: dict[str, Any]) -> _Phrase:
    if isinstance(given, dict | list):
        return f"is {_kind_of(given)} and not text", "write one value"
    return f"is {_kind_of(given)} and not text", "put it in quotes"


def _whole(_path: Path, given: Any, _context: dict[str, Any]) -> _Phrase:
    if isinstance(given, str) and given.strip().lstrip("-").isdigit():
        return "is text and not a number", "take the quotes away"
    return f"is {_kind_of(given)} and not a whole number", "write a whole number"


_PHRASES: dict[str, Callable[[Path, Any, dict[str, Any]], _Phrase]] = {
    "extra_forbidden": _unknown,
    "int_type": _whole,
    "literal_error": _choice,
    "missing": _missing,
    "moorage_value": _value,
    "string_type": _text,
}
_PLAIN: dict[str, _Phrase] = {
    "bool_type": ("is {kind} and not a boolean", "write true or false, without quotes"),
    "dict_type": ("is {kind} and not a mapping", ""),
    "greater_than_equal": ("{given} is too small", "write {ge} or more"),
    "less_than_equal": ("{given} is too large", "write {le} or less"),
    "mapping_type": ("is {kind} and not a mapping", ""),
    "model_type": ("is {kind} and not a mapping", ""),
    "string_pattern_mismatch": ("does not have the form it needs", "it must match {pattern}"),
    "string_too_long": ("has {count} characters", "use {max_length} or less"),
    "string_too_short": ("is empty", ""),
    "too_long": ("has {count} entries", "use {max_length} or less"),
    "tuple_type": ("is {kind} and not a list", "write [a, b], or one '- a' per line"),
}


def _phrase(error: str, path: Path, given: Any, context: dict[str, Any]) -> _Phrase:
    if error in _PHRASES:
        return _PHRASES[error](path, given, context)
    count = len(given) if isinstance(given, Sized) else 0
    known = {**context, "given": given, "kind": _kind_of(given), "count": count}
    reason, fix = _PLAIN.get(error, ("cannot be used", ""))
    return reason.format_map(known), fix.format_map(known)


def _kind_of(value: Any) -> str:
    """Say what YAML made of a value."""
    if value is None:
        return "empty"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "text", dict: "a mapping"}
    return kinds.get(type(value), "a list" if isinstance(value, list) else "a date")


def _one_of(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def _alias(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _model_in(annotation: Any) -> type[Model] | None:
    """Return the model inside an annotation such as `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    inner = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in inner if model is not None), None)


def _field_at(path: Path) -> FieldInfo | None:
    model: type[Model] | None = StatefulSparkJob
    field: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            continue
        fields = {_alias(n, f): f for n, f in model.model_fields.items()} if model else {}
        field = fields.get(part)
        if field is None:
            return None
        model = _model_in(field.annotation)
    return field


def _model_at(path: Path) -> type[Model] | None:
    if not path:
        return StatefulSparkJob
    field = _field_at(path)
    return _model_in(field.annotation) if field else None


def _all_paths(model: type[Model], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        here = (*above, _alias(name, field))
        yield here
        inner = _model_in(field.annotation)
        if inner:
            yield from _all_paths(inner, here)


def _describe(path: Path) -> str:
    field = _field_at(path)
    text = (field.description or "").strip() if field else ""
    return text.rstrip(".") or "see docs/manifest.md"
