"""Value codecs: Python values of a declared type to bytes and back.

Decides the byte layout of state values (MessagePack, a struct as an array of its fields in
declared order; see docs/formats-values.md) and refuses a value that is not of the declared type at
the moment it is written, not after a restore. Called by the keyed state store for every value that
is read or written.
"""

import pickle
from collections.abc import Callable
from typing import Any

import msgspec

from moorage_state.checks import (
    EXACT,
    Check,
    StateTypeError,
    check_of,
    limits,
    ordered_types,
    scalars_check,
    scalars_terms,
)
from moorage_state.types import StateType, parse_type

Encode = Callable[[Any], bytes]
Settle = Callable[[Any], Any]
Decode = Callable[[bytes], Any]

_PICKLE_PROTOCOL = 5
"""Fixed, because the bytes of a value must not depend on who writes it."""

_pack = msgspec.msgpack.Encoder(decimal_format="string").encode


def encoder(ddl: str, state: str = "") -> Encode:
    """A function from a value of type `ddl` to its bytes; `state` is whose they are, for the error.

    It raises `StateTypeError`, naming the value's type and the declared one.
    """
    parsed = parse_type(ddl)
    if parsed.name == "pickle":
        return _pickler(state)
    check = check_of(parsed)

    def encode(value: Any) -> bytes:
        try:
            return _pack(check(value))
        except (StateTypeError, UnicodeEncodeError) as error:
            refused = _named(error, ddl, state)
        # Here, and not above `from None`: that would hide what the caller handles.
        raise refused

    if parsed.bits is not None:
        return _integer_encoder(parsed.bits, encode)
    # Packing a string can fail, which only the long way explains.
    if parsed.name != "struct" or any(child.name == "string" for child in parsed.children):
        return encode
    return _scalars_encoder(parsed, encode) or encode


def _integer_encoder(bits: int, long_way: Encode) -> Encode:
    """Check and packing of a number in one call."""
    (low, high), pack = limits(bits), _pack

    def encode(value: Any) -> bytes:
        return pack(value) if type(value) is int and low <= value <= high else long_way(value)

    return encode


def checker(ddl: str, state: str = "") -> Check:
    """A function that refuses what `encoder(ddl)` refuses and gives what would be encoded."""
    check = check_of(parse_type(ddl))

    def checked(value: Any) -> Any:
        try:
            return check(value)
        except StateTypeError as error:
            refused = _named(error, ddl, state)
        raise refused

    return checked


def decoder(ddl: str) -> Decode:
    """A function from bytes that `encoder(ddl)` made to the value."""
    parsed = parse_type(ddl)
    if parsed.name == "pickle":
        return pickle.loads
    decode: Decode = msgspec.msgpack.Decoder(parsed.python).decode
    return decode


def opaque_encoder(ddl: str, state: str = "") -> Encode:
    """Like `encoder`, for who handles the bytes of pickled objects and must not load them."""
    return bytes if parse_type(ddl).name == "pickle" else encoder(ddl, state)


def opaque_decoder(ddl: str) -> Decode:
    """Like `decoder`, but pickled objects stay the bytes they are."""
    return bytes if parse_type(ddl).name == "pickle" else decoder(ddl)


def settler(ddl: str, state: str = "") -> Settle:
    """A function from a value that was written to what `decoder(ddl)` would read back for it.

    It raises `StateTypeError`, as `encoder(ddl)` would.
    """
    parsed = parse_type(ddl)
    encode, decode = encoder(ddl, state), decoder(ddl)
    if parsed.name != "struct":
        return lambda value: decode(encode(value))
    # The usual struct, of scalars only, is settled without encoding it.
    in_order, row = scalars_check(parsed.children), parsed.python
    ordered = ordered_types(row)

    def settle(value: Any) -> Any:
        kind = type(value)
        if kind is row and in_order(value):
            return value
        if kind in ordered and in_order(value):
            return tuple.__new__(row, value)
        return decode(encode(value))

    return settle


def plain_type(ddl: str) -> type | None:
    """The Python type whose values read back just as they were written; None if there is none."""
    parsed = parse_type(ddl)
    # Others may read back as another object: a dict as a named tuple, an int as a float, a
    # timestamp in UTC.
    return int if parsed.bits is not None else EXACT.get(parsed.name)


def changes_in_place(ddl: str) -> bool:
    """Whether values of this type can be changed by whoever has them: arrays, maps, any object."""
    return _changes_in_place(parse_type(ddl))


def _changes_in_place(parsed: StateType) -> bool:
    if parsed.name == "struct":
        return any(map(_changes_in_place, parsed.children))
    return parsed.name in {"array", "map", "pickle"}


def _pickler(state: str) -> Encode:
    def encode(value: Any) -> bytes:
        if value is None:
            raise _named(StateTypeError("pickle cannot hold None"), "pickle", state)
        try:
            return pickle.dumps(value, protocol=_PICKLE_PROTOCOL)
        except Exception as error:
            problem = StateTypeError(f"{value!r:.100} cannot be pickled: {error}")
            raise _named(problem, "pickle", state) from error

    return encode


def _named(error: Exception, ddl: str, state: str) -> StateTypeError:
    """The error as the person who wrote the function needs it: which state, declared as what."""
    where = f"state={state} " if state else ""
    return StateTypeError(f"a value is not of its state's type: {where}declared={ddl}: {error}")


def _scalars_encoder(parsed: StateType, long_way: Encode) -> Encode | None:
    """Check and packing of such a struct in one call; None where a field is no plain scalar."""
    ordered = ordered_types(parsed.python)
    kinds: dict[str, Any] = {
        "pack": _pack,
        "long_way": long_way,
        "ordered": ordered,
        "plain": tuple,
    }
    if (terms := scalars_terms(parsed.children, kinds)) is None:
        return None
    source = f"(type(v) is plain or type(v) in ordered) and {terms}"
    encode: Encode = eval(  # noqa: S307 - of the text made here
        f"lambda v: pack(v) if {source} else long_way(v)", kinds
    )
    return encode
