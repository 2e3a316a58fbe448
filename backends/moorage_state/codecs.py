"""Value codecs: Python values of a declared type to bytes and back.

Decides the byte layout of state values (MessagePack, a struct as an array of its fields in
declared order; see docs/formats-values.md) and refuses a value that is not of the declared type at
the moment it is written, not after a restore. Called by the keyed state store for every value that
is read or written.
"""

import datetime
import decimal
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from moorage_state.types import StateType, parse_type

__all__ = [
    "Check",
    "Decode",
    "Encode",
    "StateTypeError",
    "checker",
    "decimal_fitter",
    "decoder",
    "encoder",
    "opaque_decoder",
    "opaque_encoder",
    "plain_type",
    "settler",
]

Encode = Callable[[Any], bytes]
Settle = Callable[[Any], Any]
Decode = Callable[[bytes], Any]
Check = Callable[[Any], Any]

_EXACT: dict[str, type] = {
    "string": str,
    "boolean": bool,
    "binary": bytes,
    "date": datetime.date,
    "float": float,
    "double": float,
}

_PICKLE_PROTOCOL = 5
"""Fixed, because the bytes of a value must not depend on who writes it."""

_pack = msgspec.msgpack.Encoder(decimal_format="string").encode


class StateTypeError(TypeError):
    """A value given to a state is not of the state's declared type."""


def encoder(ddl: str, state: str = "") -> Encode:
    """A function from a value of type `ddl` to its bytes.

    Args:
        state: the name of the state that holds the values, for the error.

    Raises (the function): `StateTypeError`, naming the value's type and the declared one.
    """
    parsed = parse_type(ddl)
    if parsed.name == "pickle":
        return _pickler(state)
    check = _check(parsed)

    def encode(value: Any) -> bytes:
        try:
            return _pack(check(value))
        except (StateTypeError, UnicodeEncodeError) as error:
            raise _named(error, ddl, state) from None

    # Packing a string can fail, which only the long way explains.
    if parsed.name != "struct" or any(child.name == "string" for child in parsed.children):
        return encode
    return _scalars_encoder(parsed.children, encode) or encode


def checker(ddl: str, state: str = "") -> Check:
    """A function that refuses what `encoder(ddl)` refuses and gives what would be encoded."""
    check = _check(parse_type(ddl))

    def checked(value: Any) -> Any:
        try:
            return check(value)
        except StateTypeError as error:
            raise _named(error, ddl, state) from None

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

    For the usual struct, of scalars only, without encoding it.

    Raises (the function): `StateTypeError`, as `encoder(ddl)` would.
    """
    parsed = parse_type(ddl)
    encode, decode = encoder(ddl, state), decoder(ddl)
    if parsed.name != "struct":
        return lambda value: decode(encode(value))
    in_order = _scalars_check(parsed.children)
    row = parsed.python

    def settle(value: Any) -> Any:
        if isinstance(value, tuple) and in_order(value):
            return value if type(value) is row else tuple.__new__(row, value)
        return decode(encode(value))

    return settle


def plain_type(ddl: str) -> type | None:
    """The Python type whose values are read back just as they were written; None if there is none.

    Any other value may read back as another object: a dict as a named tuple, an int as a float, a
    timestamp in UTC.
    """
    parsed = parse_type(ddl)
    return int if parsed.bits is not None else _EXACT.get(parsed.name)


def decimal_fitter(precision: int, scale: int) -> Callable[[decimal.Decimal], decimal.Decimal]:
    """A function that gives a decimal exactly `scale` digits behind the point, and one zero.

    It does not depend on the thread's decimal context.

    Raises (the function): `decimal.DecimalException` when digits would be lost.
    """
    quantum = decimal.Decimal((0, (1,), -scale))
    context = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])

    def fit(value: decimal.Decimal) -> decimal.Decimal:
        fitted = value.quantize(quantum, context=context)
        return fitted or fitted.copy_abs()

    return fit


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


def _refuse(value: Any, parsed: StateType, why: str = "") -> StateTypeError:
    return StateTypeError(
        f"{parsed.ddl} cannot hold {value!r:.100} of Python type {type(value).__name__}{why}"
    )


def _check(parsed: StateType) -> Check:
    """A function that checks a value against `parsed` and gives what is encoded for it."""
    if parsed.name == "pickle":
        return lambda value: value
    if parsed.bits is not None:
        return _integer_check(parsed, parsed.bits)
    makers: dict[str, Callable[[StateType], Check]] = {
        "float": _float_check,
        "double": _float_check,
        "timestamp": _timestamp_check,
        "decimal": _decimal_check,
        "struct": _struct_check,
        "array": _array_check,
        "map": _map_check,
    }
    return makers.get(parsed.name, _exact_check)(parsed)


def _unboxed(value: Any) -> Any:
    """A NumPy scalar counts as the Python value in it."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _integer_check(parsed: StateType, bits: int) -> Check:
    low, high = _limits(bits)

    def check(value: Any) -> int:
        if type(value) is not int:
            value = _unboxed(value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise _refuse(value, parsed)
            value = int(value)
        if not low <= value <= high:
            raise _refuse(value, parsed, f": outside {low} to {high}")
        number: int = value
        return number

    return check


def _limits(bits: int) -> tuple[int, int]:
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _exact_check(parsed: StateType) -> Check:
    python = _EXACT[parsed.name]

    def check(value: Any) -> Any:
        if type(value) is not python:
            unboxed = _unboxed(value)
            if type(unboxed) is not python:
                raise _refuse(value, parsed)
            return unboxed
        return value

    return check


def _float_check(parsed: StateType) -> Check:
    def check(value: Any) -> float:
        if type(value) is float:
            return value
        value = _unboxed(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _refuse(value, parsed)
        try:
            return float(value)
        except OverflowError:
            raise _refuse(value, parsed, ": too large") from None

    return check


def _decimal_check(parsed: StateType) -> Check:
    fit = decimal_fitter(*parsed.params)

    def check(value: Any) -> decimal.Decimal:
        if type(value) is not decimal.Decimal:
            raise _refuse(value, parsed)
        try:
            fitted = fit(value)
        except decimal.DecimalException:
            raise _refuse(value, parsed, ": digits would be lost; round it first") from None
        if not fitted.is_finite():
            raise _refuse(value, parsed)
        return fitted

    return check


def _timestamp_check(parsed: StateType) -> Check:
    def check(value: Any) -> datetime.datetime:
        if not isinstance(value, datetime.datetime):
            raise _refuse(value, parsed)
        if value.tzinfo is None:
            raise _refuse(value, parsed, ": give it a time zone, for example datetime.timezone.utc")
        try:
            utc = value.astimezone(datetime.UTC)
        except OverflowError:
            raise _refuse(value, parsed, ": outside the years 1 to 9999 in UTC") from None
        return utc if type(utc) is datetime.datetime else _plain_datetime(utc)

    return check


def _plain_datetime(value: datetime.datetime) -> datetime.datetime:
    """Of a subclass such as pandas' Timestamp, whose nanoseconds are dropped."""
    day = (value.year, value.month, value.day)
    time = (value.hour, value.minute, value.second, value.microsecond)
    return datetime.datetime(*day, *time, tzinfo=datetime.UTC)


def _nullable(inner: Check) -> Check:
    return lambda value: None if value is None else inner(value)


def _struct_check(parsed: StateType) -> Check:
    checks = [_nullable(_check(child)) for child in parsed.children]
    names = parsed.fields
    known = set(names)
    defaults = tuple(zip(names, parsed.defaults, strict=True))
    in_order = _scalars_check(parsed.children)

    def check(value: Any) -> Sequence[Any]:
        if isinstance(value, tuple) and in_order(value):
            return value
        if isinstance(value, dict):
            if not known.issuperset(value):
                raise _refuse(value, parsed, f": no field {sorted(map(str, set(value) - known))}")
            value = [value.get(name, default) for name, default in defaults]
        elif not isinstance(value, (tuple, list)) or len(value) != len(names):
            raise _refuse(value, parsed, f": give a dict or {len(names)} values")
        return tuple(check(item) for check, item in zip(checks, value, strict=True))

    return check


def _scalars_check(children: Sequence[StateType]) -> Callable[[tuple[Any, ...]], bool]:
    """The short way for the usual struct: says yes only where every field is plain and in range.

    Compiled, because it runs once for every row; the source holds numbers and nothing else.
    """
    kinds: dict[str, Any] = {}
    if (terms := _scalars_terms(children, kinds)) is None:
        return lambda _: False
    check: Callable[[tuple[Any, ...]], bool] = eval(  # noqa: S307 - of the text made here
        f"lambda v: {terms}", kinds
    )
    return check


def _scalars_encoder(children: Sequence[StateType], long_way: Encode) -> Encode | None:
    """Check and packing of such a struct in one call; None where a field is no plain scalar."""
    kinds = {"pack": _pack, "long_way": long_way, "tuple": tuple}
    if (terms := _scalars_terms(children, kinds)) is None:
        return None
    encode: Encode = eval(  # noqa: S307 - of the text made here
        f"lambda v: pack(v) if isinstance(v, tuple) and {terms} else long_way(v)", kinds
    )
    return encode


def _scalars_terms(children: Sequence[StateType], kinds: dict[str, Any]) -> str | None:
    """An expression of the tuple `v` and of what it adds to `kinds`; None if there is none."""
    terms = [f"len(v) == {len(children)}"]
    for i, child in enumerate(children):
        if child.bits is not None:
            low, high = _limits(child.bits)
            terms.append(f"type(i := v[{i}]) is int and {low} <= i <= {high}")
        elif child.name in _EXACT:
            kinds[f"k{i}"] = _EXACT[child.name]
            terms.append(f"type(v[{i}]) is k{i}")
        else:
            return None
    return " and ".join(terms)


def _array_check(parsed: StateType) -> Check:
    check_item = _nullable(_check(parsed.children[0]))

    def check(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise _refuse(value, parsed)
        return [check_item(item) for item in value]

    return check


def _map_check(parsed: StateType) -> Check:
    check_key = _check(parsed.children[0])
    check_value = _nullable(_check(parsed.children[1]))

    def check(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _refuse(value, parsed)
        return {check_key(k): check_value(v) for k, v in value.items()}

    return check
