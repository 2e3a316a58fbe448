"""Whether a Python value is of a declared type, and what is encoded for it.

Decides what is refused when a value is given to a state, and what counts as equal to a value of the
type: a NumPy scalar, a dict or a named tuple for a struct. Called by the value codecs.
"""

import datetime
import decimal
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from moorage_state.types import StateType

Check = Callable[[Any], Any]

EXACT: dict[str, type] = {
    "string": str,
    "boolean": bool,
    "binary": bytes,
    "date": datetime.date,
    "float": float,
    "double": float,
}

_ORDERED_TYPES = 64
"""How many types of tuples are remembered for one struct."""


class StateTypeError(TypeError):
    """A value given to a state is not of the state's declared type."""


def each_of(values: Any) -> Iterator[Any]:
    """The values that a state is given at once, one after the other."""
    try:
        return iter(values)
    except TypeError as error:
        raise StateTypeError(
            f"a state takes several values at once from a list, or what else gives one after the "
            f"other: got={values!r:.100} of type {type(values).__name__}; give [value] for one, "
            f"[] for none"
        ) from error


def entries_of(entries: Any) -> Iterable[tuple[Any, Any]]:
    """The entries that a map is given at once."""
    try:
        items: Iterable[tuple[Any, Any]] = entries.items()
    except AttributeError as error:
        raise StateTypeError(
            f"a map takes several entries at once from a dict: got={entries!r:.100} of type "
            f"{type(entries).__name__}; give {{key: value}}"
        ) from error
    return items


def decimal_fitter(precision: int, scale: int) -> Callable[[decimal.Decimal], decimal.Decimal]:
    """A function that gives a decimal exactly `scale` digits behind the point, and one zero.

    It raises `decimal.DecimalException` when digits would be lost.
    """
    quantum = decimal.Decimal((0, (1,), -scale))
    # One of our own: the thread's may be anything.
    context = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])

    def fit(value: decimal.Decimal) -> decimal.Decimal:
        fitted = value.quantize(quantum, context=context)
        return fitted or fitted.copy_abs()

    return fit


# Twice the digits of the widest: a sum of two never loses one.
_SUMS = decimal.Context(prec=76)


def added(one: Any, other: Any) -> Any:
    """The sum of two values; of decimals all digits, whatever the thread's context is.

    Python's own would keep the first 28 and say nothing.
    """
    if isinstance(one, decimal.Decimal) and isinstance(other, decimal.Decimal):
        return _SUMS.add(one, other)
    return one + other


def _refuse(value: Any, parsed: StateType, why: str = "") -> StateTypeError:
    return StateTypeError(
        f"{parsed.ddl} cannot hold {value!r:.100} of Python type {type(value).__name__}{why}"
    )


def check_of(parsed: StateType) -> Check:
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
    low, high = limits(bits)

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


def limits(bits: int) -> tuple[int, int]:
    """The least and the greatest integer of so many bits."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _exact_check(parsed: StateType) -> Check:
    python = EXACT[parsed.name]

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
    checks = [_nullable(check_of(child)) for child in parsed.children]
    names = parsed.fields
    known = set(names)
    defaults = tuple(zip(names, parsed.defaults, strict=True))
    in_order = scalars_check(parsed.children)
    ordered = ordered_types(parsed.python)

    def check(value: Any) -> Sequence[Any]:
        kind = type(value)
        if (kind is tuple or kind in ordered) and in_order(value):
            row: Sequence[Any] = value
            return row
        if kind is not tuple and isinstance(value, tuple):
            value = _by_name(value, parsed)
        if isinstance(value, dict):
            if not known.issuperset(value):
                raise _refuse(value, parsed, f": no field {sorted(map(str, set(value) - known))}")
            value = [value.get(name, default) for name, default in defaults]
        elif not isinstance(value, (tuple, list)) or len(value) != len(names):
            raise _refuse(value, parsed, f": give a dict or {len(names)} values")
        return tuple(check(item) for check, item in zip(checks, value, strict=True))

    return check


@lru_cache(maxsize=1024)
def ordered_types(row: Any) -> set[type]:
    """Types of tuples that have their values in the order of the fields of `row`."""
    # Named tuples of the same fields are added as they come, if there are not too many of them.
    return {tuple, row}


def _by_name(value: tuple[Any, ...], parsed: StateType) -> tuple[Any, ...] | dict[str, Any]:
    """A tuple that names its values as what is stored by these names; any other as it is.

    A named tuple does, and a Row of Spark whose fields have names. One may have another order.
    """
    kind, row = type(value), parsed.python
    names = getattr(kind, "_fields", None)
    if names is not None and tuple(names) in {parsed.fields, row._fields}:
        ordered = ordered_types(row)
        if len(ordered) < _ORDERED_TYPES:
            ordered.add(kind)
        return value
    if names is None:
        names = getattr(value, "__fields__", None)
    if names is None or kind in ordered_types(row):
        return value
    strange = sorted(set(names).difference(parsed.fields))
    if strange or len(set(names)) != len(value):
        why = f": no field {strange}" if strange else ": not one name for each value"
        advice = "; name its values as the fields are named, or give a plain tuple in their order"
        raise _refuse(value, parsed, why + advice)
    return dict(zip(names, value, strict=True))


def scalars_check(children: Sequence[StateType]) -> Callable[[tuple[Any, ...]], bool]:
    """The short way for the usual struct: says yes only where every field is plain and in range."""
    kinds: dict[str, Any] = {}
    if (terms := scalars_terms(children, kinds)) is None:
        return lambda _: False
    # Compiled, because it runs once for every row; the source holds numbers and nothing else.
    check: Callable[[tuple[Any, ...]], bool] = eval(  # noqa: S307 - of the text made here
        f"lambda v: {terms}", kinds
    )
    return check


def scalars_terms(children: Sequence[StateType], kinds: dict[str, Any]) -> str | None:
    """An expression of the tuple `v` and of what it adds to `kinds`; None if there is none."""
    terms = [f"len(v) == {len(children)}"]
    for i, child in enumerate(children):
        if child.bits is not None:
            low, high = limits(child.bits)
            terms.append(f"type(i := v[{i}]) is int and {low} <= i <= {high}")
        elif child.name in EXACT:
            kinds[f"k{i}"] = EXACT[child.name]
            terms.append(f"type(v[{i}]) is k{i}")
        else:
            return None
    return " and ".join(terms)


def _array_check(parsed: StateType) -> Check:
    check_item = _nullable(check_of(parsed.children[0]))

    def check(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise _refuse(value, parsed)
        return [check_item(item) for item in value]

    return check


def _map_check(parsed: StateType) -> Check:
    check_key = check_of(parsed.children[0])
    check_value = _nullable(check_of(parsed.children[1]))

    def check(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _refuse(value, parsed)
        return {check_key(k): check_value(v) for k, v in value.items()}

    return check
