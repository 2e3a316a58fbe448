"""Values that are kept as objects: checked when they come, and never shared with whoever has them.

Decides what has to be copied. A snapshot is written later than it is taken, so no object in it may
be one that a user can change in place: what comes is detached from the giver unless it cannot be
changed anyway, and so is what is given out.
"""

from collections.abc import Callable
from typing import Any

from moorage_state.codecs import checker, decoder, encoder
from moorage_state.types import StateType, parse_type

__all__ = ["Copy", "Settle", "copier", "settler"]

Settle = Callable[[Any], Any]
Copy = Callable[[Any], Any]

_SIMPLE = {
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "boolean",
    "binary",
    "date",
    "decimal",
    "timestamp",
}


def settler(ddl: str, state: str) -> Settle:
    """A function from a value that is given to the object that is kept for it.

    It reads back as it would after a restore, and shares nothing that can be changed.

    Raises (the function): `StateTypeError`, as the codec would.
    """
    parsed = parse_type(ddl)
    if parsed.name == "float":
        # What is stored may have fewer digits.
        return _through_bytes(ddl, state)
    if parsed.name in _SIMPLE:
        return checker(ddl, state)
    if parsed.name == "string":
        return _text_settler(ddl, state)
    return _through_bytes(ddl, state)


def copier(ddl: str, state: str) -> Copy | None:
    """A function that gives an equal object to whoever asks; None where nobody can change it."""
    return _copier(parse_type(ddl), ddl, state)


def _through_bytes(ddl: str, state: str) -> Settle:
    encode, decode = encoder(ddl, state), decoder(ddl)
    return lambda value: decode(encode(value))


def _text_settler(ddl: str, state: str) -> Settle:
    long_way = _through_bytes(ddl, state)

    def settle(value: Any) -> Any:
        # Half of a surrogate pair is text that cannot be stored.
        return value if type(value) is str and value.isascii() else long_way(value)

    return settle


def _copier(parsed: StateType, ddl: str, state: str) -> Copy | None:
    if parsed.name in _SIMPLE or parsed.name == "string":
        return None
    if parsed.name == "struct":
        return _struct_copier(parsed, state)
    if parsed.name not in ("array", "map"):
        return _through_bytes(ddl, state)
    inner = _copier(parsed.children[-1], parsed.children[-1].ddl, state)
    if parsed.name == "array":
        return list if inner is None else lambda value: [_none_or(inner, one) for one in value]
    if inner is None:
        return dict
    return lambda value: {key: _none_or(inner, one) for key, one in value.items()}


def _struct_copier(parsed: StateType, state: str) -> Copy | None:
    inner = [_copier(child, child.ddl, state) for child in parsed.children]
    if not any(inner):
        return None
    copies = [one or _same for one in inner]

    def copy(value: Any) -> Any:
        return type(value)(*map(_none_or, copies, value))

    return copy


def _same(value: Any) -> Any:
    return value


def _none_or(copy: Copy, value: Any) -> Any:
    return None if value is None else copy(value)
