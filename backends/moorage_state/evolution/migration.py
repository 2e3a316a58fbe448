"""What becomes of a value when its state's type changes: one function per pair of types.

Decides nothing: `compare` has said that nothing is lost. A migrated value equals what the codec of
the new type reads back for it. Called for values of earlier generations.
"""

import decimal
from collections.abc import Callable
from typing import Any

from moorage_state.codecs import decimal_fitter
from moorage_state.types import StateType, parse_type

__all__ = ["migration"]

_Migrate = Callable[[Any], Any]


def migration(written: str, declared: str) -> _Migrate:
    """A function from a value that `decoder(written)` gave to the value of type `declared`.

    The types are taken to be compatible.
    """
    old, new = parse_type(written), parse_type(declared)
    return _migrate(old, new) or _same


def _migrate(old: StateType, new: StateType) -> _Migrate | None:
    """None where a value stays what it is."""
    if new.name == "struct":
        return _struct(old, new)
    if new.name == "array":
        return _array(_migrate(old.children[0], new.children[0]))
    if new.name == "map":
        return _map(_migrate(old.children[1], new.children[1]))
    if old.bits is not None and new.name in {"float", "double"}:
        return _nullable(float)
    if new.name == "decimal" and old.ddl != new.ddl:
        fit = decimal_fitter(*new.params)
        return _nullable(lambda value: fit(decimal.Decimal(value)))
    return None


def _struct(old: StateType, new: StateType) -> _Migrate | None:
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


def _map(item: _Migrate | None) -> _Migrate | None:
    if item is None:
        return None
    return _nullable(lambda entries: {k: item(v) for k, v in entries.items()})


def _nullable(migrate: _Migrate) -> _Migrate:
    return lambda value: None if value is None else migrate(value)


def _same(value: Any) -> Any:
    return value
