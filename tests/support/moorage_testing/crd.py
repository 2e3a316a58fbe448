"""Judges objects by a CustomResourceDefinition as an API server does, as far as tests need it.

Fills in defaults, takes out what the schema does not know, checks the schema, and evaluates the CEL
rules, those about edits too. CEL itself is cel-python; quantities are added to it.
"""

import copy
import functools
import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import celpy
import jsonschema
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError
from jsonschema.protocols import Validator

from moorage_api.quantities import Quantity

__all__ = ["Judge", "nodes", "structural_faults"]

Schema = dict[str, Any]


class Judge:
    """One kind's definition, ready to judge its objects."""

    def __init__(self, crd: dict[str, Any]) -> None:
        version = crd["spec"]["versions"][0]
        self.schema: Schema = version["schema"]["openAPIV3Schema"]
        # cel-python raises the recursion limit at the first rule: not in the midst of a test.
        for _, node in nodes(self.schema):
            for rule in node.get("x-kubernetes-validations", []):
                _program(rule["rule"])
                _program(rule.get("messageExpression", "''"))

    def stored(self, given: Any) -> Any:
        """The object as the server would keep it: pruned, without nulls, with defaults."""
        kept = _pruned(self.schema, copy.deepcopy(given))
        # Of metadata the definition names little, and the server knows the rest itself.
        kept["metadata"] = given["metadata"]
        return _defaulted(self.schema, kept)

    def faults(self, new: Any, old: Any = None) -> list[str]:
        """Everything that the server would answer to a create, or to an edit of `old`.

        As there, rules are not looked at while a value has the wrong type, form or length. Of a
        rule that is broken the text is its messageExpression's, where it has one.
        """
        kept = self.stored(new)
        found = [
            f"{error.json_path}: {error.message}"
            for error in _validator(self.schema).iter_errors(kept)
        ]
        before = None if old is None else self.stored(old)
        return found or [
            f"{path}: {_told(rule, value, was)}"
            for path, rule, value, was in _broken(self.schema, kept, before, "")
        ]

    def broken(self, new: Any, old: Any = None) -> list[str]:
        """The plain messages of the rules that the object, or the edit of `old`, breaks."""
        before = None if old is None else self.stored(old)
        found = _broken(self.schema, self.stored(new), before, "")
        return [rule["message"] for _, rule, _, _ in found]


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every node of a schema with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def structural_faults(schema: Schema) -> list[str]:
    """What makes an API server refuse the definition itself."""
    faults = []
    for path, node in nodes(schema):
        either = node.get("x-kubernetes-int-or-string")
        if "type" not in node and not either:
            faults.append(f"{path}: no type")
        if either and node.get("anyOf") != [{"type": "integer"}, {"type": "string"}]:
            faults.append(f"{path}: int-or-string without its two types")
        unknown = set(node) - _KNOWN
        faults += [f"{path}: {key} is not structural" for key in sorted(unknown)]
        if "properties" in node and "additionalProperties" in node:
            faults.append(f"{path}: properties beside additionalProperties")
        if "anyOf" in node and not either:
            faults.append(f"{path}: anyOf outside int-or-string")
        if isinstance(node.get("exclusiveMinimum"), int | float):
            faults.append(f"{path}: exclusiveMinimum is a number")
        if node.get("type") == "array" and "items" not in node:
            faults.append(f"{path}: a list without items")
        missing = set(node.get("required", ())) - set(node.get("properties", {}))
        faults += [f"{path}: required {name} is no property" for name in sorted(missing)]
        faults += _list_map_faults(path, node)
        faults += _default_faults(path, node)
        faults += _rule_faults(path, node)
    return faults


_KNOWN = {
    "additionalProperties",
    "anyOf",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}


def _list_map_faults(path: str, node: Schema) -> Iterator[str]:
    keys = node.get("x-kubernetes-list-map-keys", [])
    if (node.get("x-kubernetes-list-type") == "map") != bool(keys):
        yield f"{path}: list-type map and its keys go together"
    for key in keys:
        inner = node["items"]["properties"].get(key, {})
        if key not in node["items"].get("required", []) and "default" not in inner:
            yield f"{path}: list-map key {key} is neither required nor has a default"


def _default_faults(path: str, node: Schema) -> Iterator[str]:
    """A default must hold by itself, and an object's rules run on it before it is filled in."""
    if "default" not in node:
        return
    if node["default"] is None:
        yield f"{path}: default is null"
    for error in _validator(_without_required(node)).iter_errors(node["default"]):
        yield f"{path}: default: {error.message}"
    own = {"type": node.get("type"), "x-kubernetes-validations": _lasting(node)}
    try:
        for place, rule, _, _ in _broken(own, node["default"], None, path):
            yield f"{path}: default: {place}: {rule['message']}"
    except CELEvalError as error:
        yield f"{path}: default: a rule cannot be evaluated on it: {error}"


def _without_required(node: Schema) -> Schema:
    return {key: value for key, value in node.items() if key != "required"}


def _lasting(node: Schema) -> list[Schema]:
    rules = node.get("x-kubernetes-validations", [])
    return [rule for rule in rules if "oldSelf" not in rule["rule"]]


def _rule_faults(path: str, node: Schema) -> Iterator[str]:
    for rule in node.get("x-kubernetes-validations", []):
        if path == "":
            yield "a rule at the root is judged at every write"
        if not rule.get("message") or "\n" in rule["message"]:
            yield f"{path}: a rule without a one-line message: {rule['rule']}"
        for expression in (rule["rule"], rule.get("messageExpression", "''")):
            try:
                _program(expression)
            except CELParseError as error:
                yield f"{path}: {expression} does not compile: {error}"
        steps = rule.get("fieldPath", "").split(".")[1:]
        place = node
        for step in steps:
            place = place.get("properties", {}).get(step, {})
        if steps and not place:
            yield f"{path}: fieldPath {rule['fieldPath']} is no field"


# -- defaults and unknown fields ---------------------------------------------------------------


def _pruned(schema: Schema, value: Any) -> Any:
    if isinstance(value, list):
        return [_pruned(schema.get("items", {}), inner) for inner in value]
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    rest = schema.get("additionalProperties")
    if "properties" not in schema and not rest:
        return value
    known = schema.get("properties", {})
    return {
        key: _pruned(known.get(key, rest or {}), inner)
        for key, inner in value.items()
        if inner is not None and (rest or key in known)
    }


def _defaulted(schema: Schema, value: Any) -> Any:
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name not in value and "default" in inner:
                value[name] = copy.deepcopy(inner["default"])
            if name in value:
                value[name] = _defaulted(inner, value[name])
    if isinstance(value, list):
        return [_defaulted(schema.get("items", {}), inner) for inner in value]
    return value


# -- the schema --------------------------------------------------------------------------------


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """As RE2: `$` is the end of the text, and not the place before a last line feed."""
    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value, re.ASCII):
        yield jsonschema.ValidationError(f"does not match {pattern}")


def _list_type(
    _: Any, kind: str, value: Any, schema: Schema
) -> Iterator[jsonschema.ValidationError]:
    if kind == "map" and isinstance(value, list):
        keys = schema["x-kubernetes-list-map-keys"]
        seen = [tuple(item.get(key) for key in keys) for item in value if isinstance(item, dict)]
        if len(set(seen)) < len(seen):
            yield jsonschema.ValidationError(f"two items of one key: {seen}")


def _date_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    return datetime.fromisoformat(value).tzinfo is not None


def _validator(schema: Schema) -> Validator:
    base = jsonschema.Draft202012Validator
    formats = jsonschema.FormatChecker(formats=())
    formats.checks("date-time", raises=ValueError)(_date_time)
    checks = {"pattern": _pattern, "x-kubernetes-list-type": _list_type}
    return jsonschema.validators.extend(base, checks)(schema, format_checker=formats)


# -- rules -------------------------------------------------------------------------------------


_Breach = tuple[str, dict[str, Any], Any, Any]


def _broken(schema: Schema, value: Any, old: Any, path: str) -> Iterator[_Breach]:
    """Rules that do not hold: the field's path, the rule, and the node's new and old value."""
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" in rule["rule"] and old is None:
            continue
        if not _holds(rule["rule"], value, old):
            yield f"{path}{rule.get('fieldPath', '')}", rule, value, old
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from _broken(inner, value[name], before.get(name), f"{path}.{name}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _broken(schema.get("items", {}), item, None, f"{path}[{index}]")


def _holds(rule: str, value: Any, old: Any) -> bool:
    try:
        return bool(_evaluated(rule, value, old))
    except CELEvalError:
        # As there: a rule that cannot be evaluated refuses the object.
        return False


def _told(rule: dict[str, Any], value: Any, old: Any) -> str:
    """What a person is told: the expression's text, or the plain one if there is none."""
    if "messageExpression" not in rule:
        return str(rule["message"])
    return str(_evaluated(rule["messageExpression"], value, old))


def _evaluated(expression: str, value: Any, old: Any) -> Any:
    names = {"self": json_to_cel(value)}
    if old is not None:
        names["oldSelf"] = json_to_cel(old)
    return _program(expression).evaluate(names)


@functools.cache
def _program(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule), functions=_FUNCTIONS)


class _Amount(celtypes.StringType):
    """A quantity as CEL's extension of Kubernetes has it."""

    @property
    def amount(self) -> Decimal:
        return Quantity(str(self)).value


def _quantity(text: Any) -> _Amount:
    return _Amount(str(Quantity(str(text))))


def _add(one: _Amount, other: Any) -> _Amount:
    return _Amount(format(one.amount + int(other), "f"))


def _compare(one: _Amount, other: _Amount) -> celtypes.IntType:
    return celtypes.IntType((one.amount > other.amount) - (one.amount < other.amount))


def _format(text: celtypes.StringType, values: celtypes.ListType) -> celtypes.StringType:
    """CEL's strings extension knows more; the definitions use %s and %d."""
    parts = re.split("%[sd]", text)
    shown = [_listed(one) if isinstance(one, list) else str(one) for one in values]
    if len(parts) != len(shown) + 1:
        raise CELEvalError(f"other values than places: text={text}")
    pieces = [part + value for part, value in zip(parts, [*shown, ""], strict=True)]
    return celtypes.StringType("".join(pieces))


def _listed(values: list[Any]) -> str:
    quoted = [f'"{value}"' for value in values]
    return f"[{', '.join(quoted)}]"


_FUNCTIONS: dict[str, Any] = {
    "quantity": _quantity,
    "add": _add,
    "compareTo": _compare,
    "format": _format,
}
