"""Values of state as text and JSON, and text as keys.

Pure. JSON has no times, decimals, bytes, or numbers that are not finite: those are strings (ISO
8601 in UTC; digits; hexadecimal digits; NaN, Infinity, -Infinity).
"""

import datetime
import decimal
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moorage_state.checks import StateTypeError, limits
from moorage_state.codecs import checker
from moorage_state.errors import UserError
from moorage_state.types import StateType, parse_type

_READERS = 256
_TRUE = {"true": True, "false": False}
_EXAMPLES = {
    "boolean": "true or false",
    "date": "2026-01-31",
    "timestamp": "2026-01-31T12:00:00Z (with a time zone)",
    "binary": "hexadecimal digits such as 00ff",
    "decimal": "12.50",
}


def json_value(parsed: StateType, value: Any) -> Any:
    """Plain JSON of a value that was read from an Arrow column of this type."""
    if value is None:
        return None
    if parsed.name == "array":
        return [json_value(parsed.children[0], item) for item in value]
    if parsed.name == "map":
        pairs = value.items() if isinstance(value, Mapping) else value
        kind, inner = parsed.children
        return {show_value(kind, key): json_value(inner, item) for key, item in pairs}
    if parsed.name == "struct":
        items = value.values() if isinstance(value, Mapping) else value
        fields = zip(parsed.fields, parsed.children, items, strict=True)
        return {name: json_value(child, item) for name, child, item in fields}
    return _scalar(value)


def show_value(parsed: StateType, value: Any) -> str:
    """One value as text: strings as they are, everything nested as JSON."""
    plain = json_value(parsed, value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def parse_key(key_types: Sequence[str], text: str) -> tuple[Any, ...]:
    """The key that a person typed: the value itself, or a JSON array of several columns."""
    if len(key_types) == 1:
        return (parse_value(key_types[0], text, "key"),)
    form = f"a JSON array of {len(key_types)} values, of types {list(key_types)}"
    try:
        items = json.loads(text, parse_float=decimal.Decimal)
    except (ValueError, RecursionError) as error:
        raise UserError(f"key has several columns: key={text!r:.100}; write {form}") from error
    if not isinstance(items, list) or len(items) != len(key_types):
        raise UserError(f"key has another number of columns: key={text!r:.100}; write {form}")
    return tuple(map(_typed, key_types, items))


def typed_key_reader(key_types: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads a key that JSON has: the value itself, or an array of several columns."""
    readers = [_typed_reader(ddl, "key") for ddl in key_types]
    single = readers[0] if len(readers) == 1 else None

    def key(item: Any) -> tuple[Any, ...]:
        if single is not None and type(item) is not list:
            return (single(item),)
        items = item if isinstance(item, list) else [item]
        if len(items) != len(readers):
            raise UserError(
                f"key has another number of columns: key={item!r:.100}; give {len(readers)} of "
                f"types {list(key_types)}"
            )
        return tuple(read(one) for read, one in zip(readers, items, strict=True))

    return key


def parse_value(ddl: str, text: str, what: str) -> Any:
    """The value of type `ddl` that `text` writes; refuses others and says what to write."""
    return _value_reader(ddl, what)(text)


@functools.lru_cache(_READERS)
def _value_reader(ddl: str, what: str) -> Callable[[str], Any]:
    """`parse_value` of one type: look-ups read many keys of it."""
    parsed = parse_type(ddl)
    check, read = checker(ddl), _reader(parsed)

    def value(text: str) -> Any:
        try:
            return check(read(text))
        except (ValueError, KeyError, ArithmeticError, StateTypeError) as error:
            example = _EXAMPLES.get(parsed.name, "a whole number" if parsed.bits else "it in UTF-8")
            raise UserError(
                f"{what} is not of its type: {what}={text!r:.100} type={parsed.ddl}; write "
                f"{example}"
            ) from error

    return value


def _typed(ddl: str, item: Any) -> Any:
    """A value out of JSON."""
    return typed_value(ddl, item, "key")


def typed_value(ddl: str, item: Any, what: str) -> Any:
    """The value of type `ddl` that JSON has, as text where JSON has no such type."""
    return _typed_reader(ddl, what)(item)


@functools.lru_cache(_READERS)
def _typed_reader(ddl: str, what: str) -> Callable[[Any], Any]:
    """`typed_value` of one type."""
    parsed, read = parse_type(ddl), _value_reader(ddl, what)
    # Only the types that JSON has may stand for themselves.
    natural = {"boolean": bool, "string": str}.get(parsed.name)
    low, high = limits(parsed.bits) if parsed.bits is not None else (0, -1)

    def value(item: Any) -> Any:
        if type(item) is int and low <= item <= high:
            return item
        if isinstance(item, str):
            return read(item)
        wrong = natural is not None and not isinstance(item, natural)
        if wrong or not isinstance(item, (bool, int, decimal.Decimal)):
            raise UserError(f"{what} is not of its type: value={item!r:.100} type={parsed.ddl}")
        return read(str(item).lower() if isinstance(item, bool) else str(item))

    return value


def _reader(parsed: StateType) -> Callable[[str], Any]:
    readers: dict[str, Callable[[str], Any]] = {
        "string": _string,
        "boolean": lambda text: _TRUE[text.lower()],
        "date": datetime.date.fromisoformat,
        "timestamp": _timestamp,
        "binary": bytes.fromhex,
        "decimal": decimal.Decimal,
    }
    return int if parsed.bits else readers[parsed.name]


def _string(text: str) -> str:
    """Text that can be stored."""
    # An argument's bytes that are not UTF-8 arrive as characters that nothing can store.
    text.encode()
    return text


def _timestamp(text: str) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("a time without a time zone")
    return found.astimezone(datetime.UTC)


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return value.hex() if isinstance(value, bytes) else value
