"""A struct type that changes as schema evolution allows, and what becomes of its values.

The model of the machines that change types of state over any backend.
"""

import datetime
from collections.abc import Callable
from typing import Any

from moorage_state.timetolive import StateTtlConfig

__all__ = ["HOW", "TTL", "Record", "plain"]

TTL = StateTtlConfig(datetime.timedelta(days=1))
HOW = ["add", "drop", "widen", "to double", "default", "reorder", "time to live"]
_WIDER = {"tinyint": "int", "int": "bigint", "float": "double"}


class Record:
    """A struct whose fields change; values are dicts by field.

    Attributes:
        fields: name, type and default of each.
        ttl: the time to live of the state that holds such values.
    """

    def __init__(self) -> None:
        self.fields: list[tuple[str, str, int | None]] = [
            ("a", "tinyint", None),
            ("b", "float", None),
        ]
        self.ttl: StateTtlConfig | None = None

    def ddl(self) -> str:
        """The type as it is declared."""

        def spell(name: str, kind: str, default: int | None) -> str:
            return f"{name}:{kind}" + (f" DEFAULT {default}" if default is not None else "")

        return f"struct<{','.join(spell(*field) for field in self.fields)}>"

    def change(self, how: str, n: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """Change the type, or what else is declared; gives what becomes of a value."""
        at = n % len(self.fields)
        name, kind, _ = self.fields[at]
        unused = sorted(set("abcd") - {field for field, *_ in self.fields})
        default = n if n % 3 else None
        if how == "add" and unused:
            self.fields.insert(at, (unused[0], "int", default))
            return lambda value: value | {unused[0]: default}
        if how == "drop" and len(self.fields) > 1:
            del self.fields[at]
            return lambda value: {k: v for k, v in value.items() if k != name}
        if how == "widen" and kind in _WIDER:
            self.fields[at] = (name, _WIDER[kind], None)
        elif how == "to double" and kind in ("tinyint", "int"):
            self.fields[at] = (name, "double", None)
            return lambda value: value | {name: None if value[name] is None else float(value[name])}
        elif how == "default" and kind in ("tinyint", "int"):
            self.fields[at] = (name, kind, default)
        elif how == "reorder":
            self.fields.append(self.fields.pop(at))
        elif how == "time to live":
            self.ttl = None if self.ttl else TTL
        return lambda value: value

    def new_value(self, n: int) -> dict[str, Any]:
        """A value of the type."""

        def of(kind: str) -> float:
            return n + 0.5 if kind in ("float", "double") else n

        return {name: None if n % 5 == 4 else of(kind) for name, kind, _ in self.fields}

    def ordered(self, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """With the fields in the order of the type."""
        return None if value is None else {field: value[field] for field, *_ in self.fields}


def plain(found: Any) -> dict[str, Any] | None:
    """A struct that was read, as a dict."""
    return None if found is None else found._asdict()
