"""Types of state and keys, written as Spark DDL and understood without Spark.

Decides which types state may have and what Python object stands for each. Called by descriptors,
value codecs and key codecs. A struct reads back as a named tuple; a timestamp as an aware
``datetime`` in UTC. A field of a struct may have a default, ``"n:long DEFAULT 0"``: what stands for
it in values that were written before there was such a field. ``"pickle"`` is any Python object.
"""

import datetime
import decimal
import math
import re
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Optional

_INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "bool": "boolean",
}
_SCALARS: dict[str, Any] = {
    **dict.fromkeys(_INTEGERS, int),
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes,
    "boolean": bool,
    "date": datetime.date,
    "timestamp": datetime.datetime,
    "decimal": decimal.Decimal,
}
_KEY_NAMES = {*_INTEGERS, "string", "binary", "boolean", "date", "timestamp", "decimal"}
_TOKEN = re.compile(
    r"\s*([A-Za-z_][A-Za-z0-9_]*|`[^`]+`|'(?:[^']|'')*'|-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|[<>,:()])"
)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PICKLE = "pickle"
_MAX_DEPTH = 32
_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class StateType:
    """A parsed type.

    Attributes:
        name: the canonical Spark name of the outermost type ("bigint", "array", "struct", ...).
        python: what ``msgspec`` encodes and decodes for it.
        children: element type; key and value type; or the types of a struct's fields.
        params: precision and scale of a decimal.
        defaults: of a struct, the default of each field; None where it has none.
    """

    name: str
    python: Any
    children: tuple["StateType", ...] = ()
    fields: tuple[str, ...] = field(default=())
    params: tuple[int, ...] = ()
    defaults: tuple[Any, ...] = ()

    @property
    def bits(self) -> int | None:
        """Width of an integer type, else None."""
        return _INTEGERS.get(self.name)

    @property
    def is_key(self) -> bool:
        """Whether a key may have this type: one value, one canonical byte string."""
        return self.name in _KEY_NAMES

    @property
    def ddl(self) -> str:
        """The canonical spelling, in which two equal types are equal strings."""
        if self.name == "struct":
            parts = zip(self.fields, self.children, self.defaults, strict=True)
            return f"struct<{','.join(f'{quoted(n)}:{c.ddl}{_spelled(d)}' for n, c, d in parts)}>"
        if self.children:
            return f"{self.name}<{','.join(c.ddl for c in self.children)}>"
        if self.params:
            return f"{self.name}({','.join(map(str, self.params))})"
        return self.name


def parse_type(ddl: str) -> StateType:
    """Parse a Spark DDL type: ``"long"``, ``"array<string>"``, ``"struct<a:long,b:string>"``.

    A list of columns (``"a long, b string"``) is a struct of them. The name of a field may stand in
    backticks, and does where it is no plain word (``"`user-id` long"``). A field whose name Python
    does not allow in a named tuple (``from``, ``_id``) is read by its position.

    Raises:
        ValueError: with the text, the place and the types there are.
    """
    given: Any = ddl
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"a state type is a Spark DDL string such as 'long': type={ddl!r}")
    return _parse(ddl)


def quoted(name: str) -> str:
    """The name of a field as DDL has it: in backticks where it is no plain word."""
    return name if _PLAIN.fullmatch(name) else f"`{name}`"


def type_of(
    fields: Sequence[str], children: Sequence[StateType], defaults: Sequence[Any]
) -> StateType:
    """The struct type of these fields."""
    record = _record(tuple(fields), tuple(child.python for child in children))
    return StateType("struct", record, tuple(children), tuple(fields), (), tuple(defaults))


def _spelled(default: Any) -> str:
    """A default as it is written behind its field; nothing for None."""
    if default is None:
        return ""
    if isinstance(default, bool):
        text = str(default).lower()
    elif isinstance(default, (int, float, decimal.Decimal)):
        text = format(default, "f") if isinstance(default, decimal.Decimal) else repr(default)
    else:
        text = default if isinstance(default, str) else default.isoformat()
        text = "'" + text.replace("'", "''") + "'"
    return f" DEFAULT {text}"


@lru_cache(maxsize=1024)
def _parse(ddl: str) -> StateType:
    return _Parser(ddl).whole()


class _Parser:
    """Recursive descent over the tokens of one DDL string."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"unexpected character {text[at:].strip()[:1]!r}")
            self._tokens.append(match.group(1))
            at = match.end()
        self._at = 0
        self._depth = 0

    def whole(self) -> StateType:
        columns = len(self._tokens) > 1 and self._tokens[1] not in "<>,:()"
        columns = columns or (len(self._tokens) > 2 and self._tokens[1] == ":")
        parsed = self._struct(end=None) if columns else self._type()
        if self._at != len(self._tokens):
            raise self._error(f"did not expect {self._tokens[self._at]!r}")
        if parsed.name == _PICKLE:
            return parsed
        self._refuse_pickle(parsed)
        return parsed

    def _refuse_pickle(self, parsed: StateType) -> None:
        for child in parsed.children:
            if child.name == _PICKLE:
                raise self._error(f"pickle is a whole value and no part of a {parsed.name}")
            self._refuse_pickle(child)

    def _type(self) -> StateType:
        word = self._next("a type").lower()
        name = _ALIASES.get(word, word)
        if name == "decimal":
            return self._decimal()
        if name in _SCALARS:
            return StateType(name, _SCALARS[name])
        if name == _PICKLE:
            return StateType(name, object)
        if name in {"array", "map", "struct"}:
            return self._nested(name)
        names = [*_SCALARS, *_ALIASES, _PICKLE]
        near = "".join(f"did you mean {n}? " for n in get_close_matches(word, names, 1))
        known = ", ".join([*names, "array<t>", "map<k,v>", "struct<name:t,...>"])
        raise self._error(f"unknown type {word!r}; {near}known types: {known}")

    def _nested(self, name: str) -> StateType:
        self._expect("<")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"nested more than {_MAX_DEPTH} deep")
        parsed = self._struct(end=">") if name == "struct" else self._container(name)
        self._depth -= 1
        return parsed

    def _decimal(self) -> StateType:
        params: tuple[int, ...] = (10, 0)
        if self._peek() == "(":
            self._next("(")
            precision = self._number()
            scale = 0
            if self._peek() == ",":
                self._next(",")
                scale = self._number()
            self._expect(")")
            params = (precision, scale)
            if not 1 <= precision <= _MAX_PRECISION or scale > precision:
                raise self._error(
                    f"a decimal has 1 to {_MAX_PRECISION} digits, and no more behind the point "
                    f"than in all"
                )
        return StateType("decimal", decimal.Decimal, params=params)

    def _container(self, name: str) -> StateType:
        first = self._type()
        if name == "array":
            self._expect(">")
            items = list[Optional[first.python]]  # type: ignore[name-defined]  # noqa: UP045 - runtime type
            return StateType("array", items, (first,))
        self._expect(",")
        second = self._type()
        self._expect(">")
        if not first.is_key:
            raise self._error(f"a map key cannot be {first.ddl}")
        python = dict[first.python, Optional[second.python]]  # type: ignore[name-defined]  # noqa: UP045 - runtime type
        return StateType("map", python, (first, second))

    def _struct(self, end: str | None) -> StateType:
        names: list[str] = []
        types: list[StateType] = []
        defaults: list[Any] = []
        while True:
            names.append(self._field_name())
            if self._peek() == ":":
                self._next(":")
            types.append(self._type())
            defaults.append(self._default(types[-1]))
            if self._peek() != ",":
                break
            self._next(",")
        if end is not None:
            self._expect(end)
        if len(set(names)) != len(names):
            raise self._error("a struct has two fields of one name")
        return type_of(names, types, defaults)

    def _default(self, parsed: StateType) -> Any:
        word = (self._peek() or "").upper()
        if word == "NOT":
            raise self._error("every field may be null; leave out 'NOT NULL'")
        if word != "DEFAULT":
            return None
        self._next("DEFAULT")
        text = self._next("a default")
        try:
            return _literal(parsed, text)
        except (ValueError, KeyError, ArithmeticError):
            raise self._error(f"{text} is no default of a {parsed.ddl}") from None

    def _field_name(self) -> str:
        word = self._next("a field name")
        if word.startswith("`"):
            return word[1:-1]
        if not word.isidentifier():
            raise self._error(f"expected a field name, not {word!r}")
        return word

    def _number(self) -> int:
        word = self._next("a number")
        if not word.isdigit():
            raise self._error(f"expected a number, not {word!r}")
        return int(word)

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, what: str) -> str:
        token = self._peek()
        if token is None:
            raise self._error(f"ended where {what} was expected")
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        got = self._next(repr(token))
        if got != token:
            raise self._error(f"expected {token!r}, not {got!r}")

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"cannot read the state type: {reason}: type={self._text!r}")


def _literal(parsed: StateType, text: str) -> Any:
    """The value that a default writes; raises where it writes none of this type."""
    if text.upper() == "NULL":
        return None
    quoted = text.startswith("'")
    inner = text[1:-1].replace("''", "'") if quoted else text
    if quoted != (parsed.name in _QUOTED):
        raise ValueError(text)
    value = _LITERALS[parsed.name](inner)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(text)
    if parsed.bits is not None and not -(1 << parsed.bits - 1) <= value < 1 << parsed.bits - 1:
        raise ValueError(text)
    if parsed.name == "decimal":
        precision, scale = parsed.params
        context = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])
        return value.quantize(decimal.Decimal((0, (1,), -scale)), context=context)
    return value


def _instant(text: str) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(text)
    return found.astimezone(datetime.UTC)


_QUOTED = {"string", "date", "timestamp"}
_LITERALS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(_INTEGERS, int),
    "float": float,
    "double": float,
    "decimal": decimal.Decimal,
    "string": str,
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "date": datetime.date.fromisoformat,
    "timestamp": _instant,
}


@lru_cache(maxsize=1024)
def _record(names: tuple[str, ...], types: tuple[Any, ...]) -> Any:
    """A named tuple class whose fields msgspec checks; every field may be None."""
    # One class for all structs of these fields, however they are spelled and wherever they lie, so
    # that values of one are at once known as values of the other.
    plain: Any = namedtuple("Struct", names, rename=True)  # type: ignore[misc]  # noqa: PYI024 - names come at run time
    fields: tuple[str, ...] = plain._fields
    plain.__annotations__ = {
        name: Optional[python]  # noqa: UP045 - a runtime type, not an annotation
        for name, python in zip(fields, types, strict=True)
    }
    return plain
