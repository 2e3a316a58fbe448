"""Whether values of one type can be read as another, and if not, why and what can be done.

Decides the outcome of a change of type; Flink's four outcomes. Nothing is ever lost or rounded in
silence, except what somebody takes out of the declaration: a field that is dropped. Every field,
element and map value may be null, so nullability never changes. Pure.

    same type                                          as is
    tinyint -> smallint -> int -> bigint               as is (the bytes are the same)
    float -> double                                    as is (a float is kept in 64 bits)
    decimal(p,s) -> decimal(p+n,s)                     as is
    decimal(p,s) -> decimal with as many digits before the point and more behind   migration
    integer -> double, float, where every value is exact                           migration
    integer -> decimal, where every value has room                                 migration
    struct: fields added, dropped, put in another order, or changed as above       migration
    array, map: as their elements and values; the key of a map never changes
    a default of a struct's field changed                                          reconfigured
    anything else                                                                  incompatible

And what becomes of a value (`migration`): it equals what the codec of the new type reads back.
"""

import decimal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from moorage_state.checks import decimal_fitter
from moorage_state.types import StateType, parse_type

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_EXACT_BITS = {"float": 24, "double": 53}


class SchemaOutcome(StrEnum):
    """What a change of type asks for."""

    AS_IS = "compatible as is"
    MIGRATION = "compatible after migration"
    RECONFIGURED = "compatible with the recorded defaults"
    INCOMPATIBLE = "incompatible"


class SchemaProblem(NamedTuple):
    """Why one place in a type cannot change so.

    `where` is the path of the field, `price.amount`; `[]` is an element of an array, `{}` a value
    of a map; empty for the value itself. Types are DDL.
    """

    where: str
    written: str
    declared: str
    advice: str

    def __str__(self) -> str:
        field = f"field={self.where} " if self.where else ""
        return f"{field}written={self.written} declared={self.declared}: {self.advice}"


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The outcome of a comparison; `problems` are not empty where it is INCOMPATIBLE."""

    outcome: SchemaOutcome
    problems: tuple[SchemaProblem, ...] = ()


def compare(written: str, declared: str) -> Compatibility:
    """Compare the type that values were written with to the declared one. Raises ValueError."""
    old, new = parse_type(written), parse_type(declared)
    found = tuple(_changes(old, new, ""))
    problems = tuple(change for change in found if isinstance(change, SchemaProblem))
    if problems:
        return Compatibility(SchemaOutcome.INCOMPATIBLE, problems)
    for outcome in (SchemaOutcome.MIGRATION, SchemaOutcome.RECONFIGURED):
        if outcome in found:
            return Compatibility(outcome)
    return Compatibility(SchemaOutcome.AS_IS)


_Changes = Iterator[SchemaOutcome | SchemaProblem]


def _changes(old: StateType, new: StateType, where: str) -> _Changes:
    """Everything that differs; nothing where values are read as they are."""
    if old.name == new.name == "struct":
        yield from _struct(old, new, where)
    elif old.name == new.name == "array":
        yield from _changes(old.children[0], new.children[0], f"{where}[]")
    elif old.name == new.name == "map":
        yield from _map(old, new, where)
    elif old.name == new.name == "decimal":
        yield from _decimal(old, new, where)
    elif old.name != new.name:
        yield from _scalar(old, new, where)


def _struct(old: StateType, new: StateType, where: str) -> _Changes:
    theirs = dict(zip(old.fields, old.children, strict=True))
    mine = dict(zip(new.fields, new.children, strict=True))
    kept = [name for name in new.fields if name in theirs]
    if not kept:
        advice = (
            f"no field has kept its name (written {list(old.fields)}, declared "
            f"{list(new.fields)}), and a new name is another field; keep the names, or give the "
            f"new state another name"
        )
        yield SchemaProblem(where, "struct", "struct", advice)
        return
    if old.fields != new.fields:
        yield SchemaOutcome.MIGRATION
    for name in kept:
        yield from _changes(theirs[name], mine[name], f"{where}.{name}" if where else name)
    before = dict(zip(old.fields, old.defaults, strict=True))
    after = dict(zip(new.fields, new.defaults, strict=True))
    # By spelling, for True is not the default 1.
    if any(repr(before[name]) != repr(after[name]) for name in kept):
        yield SchemaOutcome.RECONFIGURED


def _map(old: StateType, new: StateType, where: str) -> _Changes:
    if old.children[0] != new.children[0]:
        advice = "the key of a map never changes; add a map of another name and fill it"
        yield SchemaProblem(f"{where}{{key}}", old.children[0].ddl, new.children[0].ddl, advice)
    yield from _changes(old.children[1], new.children[1], f"{where}{{}}")


def _decimal(old: StateType, new: StateType, where: str) -> _Changes:
    (precision, scale), (wider, longer) = old.params, new.params
    if longer < scale or wider - longer < precision - scale:
        whole = precision - scale
        advice = (
            f"digits would be lost; it needs at least {whole} digits before the point and {scale} "
            f"behind it"
        )
        yield SchemaProblem(where, old.ddl, new.ddl, advice)
    elif longer != scale:
        yield SchemaOutcome.MIGRATION


def _scalar(old: StateType, new: StateType, where: str) -> _Changes:
    if old.bits is not None and new.bits is not None and new.bits > old.bits:
        return
    if (old.name, new.name) == ("float", "double"):
        return
    if old.bits is not None and old.bits - 1 <= _EXACT_BITS.get(new.name, 0):
        yield SchemaOutcome.MIGRATION
        return
    if old.bits is not None and new.name == "decimal":
        precision, scale = new.params
        if precision - scale >= _DIGITS[old.name]:
            yield SchemaOutcome.MIGRATION
            return
    yield SchemaProblem(where, old.ddl, new.ddl, _advice(old, new))


def _advice(old: StateType, new: StateType) -> str:
    if old.bits is not None and new.bits is not None:
        reason = "values would not fit"
    elif old.bits is not None and new.name in {*_EXACT_BITS, "decimal"}:
        reason = "large values would lose digits"
    elif (old.name, new.name) == ("double", "float"):
        reason = "values would lose digits"
    elif (old.name, new.name) == ("date", "timestamp"):
        reason = "a day is no point in time without a time zone"
    else:
        reason = f"a {old.name} has no one reading as a {new.name}"
    return (
        f"{reason}; keep the type and add a field (or a state) of the new one that your function "
        f"fills"
    )


_Migrate = Callable[[Any], Any]


def migration(written: str, declared: str) -> _Migrate:
    """A function from a value that `decoder(written)` gave to one of type `declared`."""
    old, new = parse_type(written), parse_type(declared)
    return _migrate(old, new) or _same


def _migrate(old: StateType, new: StateType) -> _Migrate | None:
    """None where a value stays what it is."""
    if new.name == "struct":
        return _struct_migration(old, new)
    if new.name == "array":
        return _array(_migrate(old.children[0], new.children[0]))
    if new.name == "map":
        return _map_migration(_migrate(old.children[1], new.children[1]))
    if old.bits is not None and new.name in {"float", "double"}:
        return _nullable(float)
    if new.name == "decimal" and old.ddl != new.ddl:
        fit = decimal_fitter(*new.params)
        return _nullable(lambda value: fit(decimal.Decimal(value)))
    return None


def _struct_migration(old: StateType, new: StateType) -> _Migrate | None:
    """Fields by name, in their new order and in the new type's named tuple."""
    row = new.python
    parts: list[tuple[int | None, Any]] = []
    for name, child, default in zip(new.fields, new.children, new.defaults, strict=True):
        if name not in old.fields:
            parts.append((None, default))
            continue
        at = old.fields.index(name)
        parts.append((at, _migrate(old.children[at], child) or _same))
    # One named tuple stands for decimals of any precision.
    if row is old.python and all(how is _same for _, how in parts):
        return None

    def migrate(value: Any) -> Any:
        return tuple.__new__(row, [how if at is None else how(value[at]) for at, how in parts])

    return _nullable(migrate)


def _array(item: _Migrate | None) -> _Migrate | None:
    return None if item is None else _nullable(lambda values: [item(v) for v in values])


def _map_migration(item: _Migrate | None) -> _Migrate | None:
    if item is None:
        return None
    return _nullable(lambda entries: {k: item(v) for k, v in entries.items()})


def _nullable(migrate: _Migrate) -> _Migrate:
    return lambda value: None if value is None else migrate(value)


def _same(value: Any) -> Any:
    return value
