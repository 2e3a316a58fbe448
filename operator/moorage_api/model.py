"""What every model of the API has in common: strictness, names, and rules across fields.

A rule across fields is a `Violation` that a model's `_rules` yields. All violations of a model are
raised together, each with the fields it is about, so that a reader sees every one at once and a
manifest's line can be shown beside it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from moorage_api.problems import field_name

MAX_INT = 2**31 - 1
"""The greatest number of a field that needs no other bound."""

_Item = TypeVar("_Item")

# A YAML list becomes a tuple; what is in it stays strict.
Items = Annotated[tuple[_Item, ...], Field(strict=False)]
TextMapping = Mapping[str, str]
RawMapping = Mapping[str, Any]

ChangeKind = Literal["Ignore", "Live", "Rescale", "Upgrade", "Redeploy"]
"""What changing a field of a running job's spec means; see `moorage_api.changes`."""


@dataclass(frozen=True, slots=True)
class OnChange:
    """Annotates a field of the spec, and all below it that say nothing themselves."""

    kind: ChangeKind


@dataclass(frozen=True, slots=True)
class HashedAsAbsent:
    """Annotates a field that had this default once: stored specs have it written out."""

    value: Any


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule as the API server evaluates it; it stands beside the Python form in `_rules`."""

    rule: str  # in CEL; `self` is the model that declares it, with all defaults filled in
    message: str  # what is wrong and what to write
    # The manifest's field below the model that the message is about; empty for itself
    field: str = ""
    show: str = ""  # a CEL expression that gives a better message, if it can be evaluated

    def to_schema(self) -> dict[str, str]:
        """As an item of x-kubernetes-validations."""
        return {
            "rule": self.rule,
            "message": self.message,
            **({"messageExpression": self.show} if self.show else {}),
            **({"fieldPath": f".{self.field}"} if self.field else {}),
        }


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that does not hold."""

    # What it is about, as in the manifest (camelCase), below the model: a name, or a path of names.
    # The first one is shown.
    fields: tuple[str | tuple[str, ...], ...]
    reason: str  # what is wrong
    fix: str  # what to write instead

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The fields, each as a path."""
        return tuple((field,) if isinstance(field, str) else field for field in self.fields)

    @property
    def shown(self) -> str:
        """The first field, as a person reads it."""
        return field_name(self.paths[0])


class Model(BaseModel):
    """Frozen, strict, and closed: what is not a field is an error, `"8"` is not 8.

    Python code may use either spelling of a name; manifests only camelCase.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    cel: ClassVar[tuple[Cel, ...]] = ()
    """The rules across fields that the API server checks too."""

    def _rules(self) -> Iterator[Violation]:
        """Yield every rule across fields that does not hold; a model without rules has none."""
        yield from ()

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core)
        if cls.cel:
            rules = [rule.to_schema() for rule in cls.cel]
            handler.resolve_ref_schema(schema)["x-kubernetes-validations"] = rules
        return schema

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        refuse(self._rules())
        return self


def broken_rules(model: Model, *above: str) -> Iterator[tuple[tuple[str, ...], Violation]]:
    """Yield every rule across fields that does not hold, of all models in it, with their paths."""
    for violation in model._rules():  # noqa: SLF001 - of the class above
        yield above, violation
    for name in type(model).model_fields:
        inner = getattr(model, name)
        if isinstance(inner, Model):
            yield from broken_rules(inner, *above, name)


def refuse(violations: Iterable[Violation]) -> None:
    """Raise the error that carries `violations`; do nothing if there are none."""
    found = list(violations)
    if found:
        text = "; ".join(f"{violation.shown}: {violation.reason}" for violation in found)
        raise PydanticCustomError("moorage_rules", "{text}", {"text": text, "violations": found})
