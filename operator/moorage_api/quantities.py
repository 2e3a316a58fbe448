"""The two value types of the API that YAML has no word for: durations and quantities.

Both keep the text they were written as, so that a manifest survives a round trip unchanged, and
compare by what the text means: `Duration("60s") == Duration("1m")`.
"""

import functools
import re
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$"

# Longer texts are never meant; the bounds also keep the arithmetic below finite.
_MAX_TEXT = 32
_MAX_SECONDS = 10 * 365 * 24 * 3600

_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_FACTORS = {
    "m": Decimal("0.001"),
    "": Decimal(1),
    **{name: Decimal(1000) ** power for power, name in enumerate("kMGTPE", start=1)},
    **{f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", start=1)},
}


@functools.lru_cache(maxsize=8192)
def _meant(kind: type, text: str) -> Any:
    """The same texts stand in every manifest and every default."""
    return kind(text)


class _Text:
    """What the two types share: made from a string, written back as that string."""

    __slots__ = ()

    pattern: ClassVar[str]
    example: ClassVar[str]

    @classmethod
    def parse(cls, text: object) -> Self:
        """Return the value that `text` stands for; raises ValueError for anything else."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def text_schema(cls) -> JsonSchemaValue:
        """What the API server is given for its text."""
        return {"type": "string", "pattern": cls.pattern, "maxLength": _MAX_TEXT}

    @classmethod
    def least_rule(cls, minimum: object) -> dict[str, str]:
        """The rule "not below `minimum`" as the API server evaluates it."""
        raise NotImplementedError

    @classmethod
    def _validate(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        try:
            return cls.parse(value)
        except ValueError as error:
            raise PydanticCustomError(
                "moorage_value", "{reason}", {"reason": str(error), "fix": f"write {cls.example}"}
            ) from error


@functools.total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Duration(_Text):
    """A length of time as Go and Kubernetes write it: `60s`, `10m`, `1h30m`, `1.5s`, `250ms`.

    There are no days (Kubernetes knows none), no signs and no bare numbers.
    """

    text: str
    seconds: float = field(init=False)
    """The length in seconds."""

    pattern: ClassVar[str] = DURATION_PATTERN
    example: ClassVar[str] = "a number with a unit, such as 60s, 10m or 1h30m"

    def __post_init__(self) -> None:
        if len(self.text) > _MAX_TEXT or not re.fullmatch(self.pattern, self.text):
            raise ValueError(f"is not a duration: {_shown(self.text)}")
        parts = re.findall(r"([0-9.]+)(ms|s|m|h)", self.text)
        total = sum(Decimal(number) * _SECONDS[unit] for number, unit in parts)
        if total > _MAX_SECONDS:
            raise ValueError(f"is longer than ten years: {self.text}")
        object.__setattr__(self, "seconds", float(total))

    @classmethod
    def parse(cls, text: object) -> Self:
        """Return the duration that `text` is; raises ValueError for anything else."""
        if isinstance(text, int | float) and not isinstance(text, bool):
            raise ValueError(f"has no unit: {text}")  # noqa: TRY004 - a value error for pydantic
        if not isinstance(text, str):
            raise ValueError("is not a duration")  # noqa: TRY004
        found: Self = _meant(cls, text)  # type: ignore[arg-type]  # classes can be hashed
        return found

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _core: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        rule = {
            "rule": f"duration(self) <= duration('{_MAX_SECONDS // 3600}h')",
            "message": f"is longer than ten years; write {_MAX_SECONDS // 3600}h or less",
        }
        return {**cls.text_schema(), "x-kubernetes-validations": [rule]}

    @classmethod
    def least_rule(cls, minimum: object) -> dict[str, str]:
        """The rule "not below `minimum`" as the API server evaluates it."""
        return {
            "rule": f"duration(self) >= duration('{minimum}')",
            "message": f"is below {minimum}; write {minimum} or more",
        }

    @property
    def timedelta(self) -> timedelta:
        """The same length as the standard library has it."""
        return timedelta(seconds=self.seconds)

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Duration) and self.seconds == other.seconds

    def __lt__(self, other: "Duration") -> bool:
        return self.seconds < other.seconds

    def __hash__(self) -> int:
        return hash(self.seconds)


@functools.total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity(_Text):
    """An amount as Kubernetes writes it: `2Gi`, `500M`, `4`, `500m` (thousandths), `1.5`."""

    text: str
    value: Decimal = field(init=False)
    """The amount in its base unit: bytes, cores."""

    pattern: ClassVar[str] = QUANTITY_PATTERN
    example: ClassVar[str] = "an amount such as 2Gi, 500M, 4 or 500m"

    def __post_init__(self) -> None:
        if len(self.text) > _MAX_TEXT or not re.fullmatch(self.pattern, self.text):
            raise ValueError(f"is not a quantity: {_shown(self.text)}{_java_hint(self.text)}")
        digits = self.text.rstrip("mkKMGTPEi")
        amount = Decimal(digits) * _FACTORS[self.text[len(digits) :]]
        object.__setattr__(self, "value", amount)

    @classmethod
    def parse(cls, text: object) -> Self:
        """Return the quantity that `text` is; raises ValueError for anything else."""
        # The API server takes whole numbers without quotes, and no other numbers.
        if isinstance(text, int) and not isinstance(text, bool):
            return cls(str(text))
        if isinstance(text, float):
            raise ValueError(f'is a number that needs quotes: "{text}"')  # noqa: TRY004
        if not isinstance(text, str):
            raise ValueError("is not a quantity")  # noqa: TRY004
        found: Self = _meant(cls, text)  # type: ignore[arg-type]  # classes can be hashed
        return found

    @staticmethod
    def cel(field: str) -> str:
        """The CEL expression for the quantity in `field`, which may be a number without quotes.

        Not `quantity(string(x))`: the API server cannot bound what that costs, and refuses it.
        """
        return f"(type({field}) == int ? quantity('0').add({field}) : quantity({field}))"

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _core: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        either = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
        text = {name: value for name, value in cls.text_schema().items() if name != "type"}
        return {**either, "x-kubernetes-int-or-string": True, **text}

    @classmethod
    def least_rule(cls, minimum: object) -> dict[str, str]:
        """The rule "not below `minimum`" as the API server evaluates it."""
        return {
            "rule": f"{cls.cel('self')}.compareTo(quantity('{minimum}')) >= 0",
            "message": f"is below {minimum}; write {minimum} or more",
        }

    @property
    def bytes(self) -> int:
        """The amount as a whole number, rounded up."""
        return int(self.value.to_integral_value(rounding="ROUND_CEILING"))

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __lt__(self, other: "Quantity") -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        return hash(self.value)


@dataclass(frozen=True, slots=True)
class at_least:  # noqa: N801  reads as a function where it is used
    """The constraint "not below `minimum`" for an annotated duration or quantity."""

    minimum: Duration | Quantity

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core)
        rules = schema.setdefault("x-kubernetes-validations", [])
        if self._says_anything():
            rules.append(self.minimum.least_rule(self.minimum))
        return schema

    def _says_anything(self) -> bool:
        """No duration is below nothing."""
        return not (isinstance(self.minimum, Duration) and self.minimum.seconds == 0)

    def _check(self, value: Any) -> Any:
        if value < self.minimum:
            raise PydanticCustomError(
                "moorage_value",
                "{reason}",
                {
                    "reason": f"{value} is below {self.minimum}",
                    "fix": f"write {self.minimum} or more",
                },
            )
        return value


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _MAX_TEXT else f"{len(text)} characters"


def _java_hint(text: str) -> str:
    """Java's and common speech's units: `4g`, `512mb`, `16GB`."""
    match = re.fullmatch(r"([0-9]+)\s*([kmgtKMGT])[bB]?", text.strip())
    return f" (did you mean {match[1]}{match[2].upper()}i?)" if match else ""
