"""Descriptors: how a user names a piece of keyed state and says what it holds.

Called by user functions in ``open``; read by the keyed state store and written into manifests.
Types are Spark DDL ("long", "struct<n:long,name:string>"), so that state has a schema that other
tools can read. Knows no storage.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from moorage_state.types import parse_type

__all__ = [
    "ListStateDescriptor",
    "MapStateDescriptor",
    "StateDescriptor",
    "StateKind",
    "ValueStateDescriptor",
]

StateKind = Literal["value", "list", "map"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


def _check_name(name: str) -> None:
    given: Any = name
    if not isinstance(given, str) or not _NAME.match(given):
        raise ValueError(
            f"a state name starts with a letter or digit and has up to 63 letters, digits, "
            f"dots, dashes or underscores: name={name!r}"
        )


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor:
    """One value per key. `type` is a Spark DDL type.

    Raises:
        ValueError: for an illegal name or a type that is not known.
    """

    name: str
    type: str

    def __post_init__(self) -> None:
        _check_name(self.name)
        parse_type(self.type)

    @property
    def kind(self) -> StateKind:
        """How manifests name this kind of state."""
        return "value"


@dataclass(frozen=True, slots=True)
class ListStateDescriptor:
    """A list per key; `type` is the Spark DDL type of one element.

    Raises:
        ValueError: for an illegal name or a type that is not known.
    """

    name: str
    type: str

    def __post_init__(self) -> None:
        _check_name(self.name)
        parse_type(self.type)

    @property
    def kind(self) -> StateKind:
        """How manifests name this kind of state."""
        return "list"


@dataclass(frozen=True, slots=True)
class MapStateDescriptor:
    """A map per key; `key_type` must be a type that keys may have (no float, no container).

    Raises:
        ValueError: for an illegal name or a type that is not known.
    """

    name: str
    key_type: str
    type: str

    def __post_init__(self) -> None:
        _check_name(self.name)
        parse_type(self.type)
        if not parse_type(self.key_type).is_key:
            raise ValueError(
                f"a map state key cannot be of this type: name={self.name} "
                f"key_type={self.key_type}; use a string, integer, boolean, date, timestamp, "
                f"decimal or binary"
            )

    @property
    def kind(self) -> StateKind:
        """How manifests name this kind of state."""
        return "map"


StateDescriptor = ValueStateDescriptor | ListStateDescriptor | MapStateDescriptor
