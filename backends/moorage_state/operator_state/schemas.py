"""What is known of one operator state apart from its content: name, mode and types.

Decides which redeclarations are refused. Written into acknowledgements and, as `OperatorStateMeta`,
into manifests. Operator states have names of their own: a keyed state of the same operator may be
named alike.
"""

from typing import Literal

import msgspec

from moorage_state.descriptors import ListStateDescriptor, MapStateDescriptor
from moorage_state.errors import UserError
from moorage_state.types import parse_type

OperatorStateMode = Literal["split", "union", "broadcast", "raw", "raw_keyed"]

RAW_OPERATOR = "_raw_operator"
"""The name of an operator's raw streams; no user's state can be named so."""

RAW_KEYED = "_raw_keyed"
"""The name of the raw streams of its key groups."""

_WORDS = {
    "split": "list state",
    "union": "union list state",
    "broadcast": "broadcast state",
    "raw": "raw operator state",
    "raw_keyed": "raw keyed state",
}


class OperatorStateSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operator state.

    Attributes:
        mode: how it is distributed: `split` and `union` lists, `broadcast` maps, and the raw
            streams of the operator (`raw`) and of its key groups (`raw_keyed`).
        type: Spark DDL of an element, or of a map's value.
        key_type: Spark DDL of a map's key; empty for the rest.
    """

    name: str
    mode: OperatorStateMode
    type: str
    key_type: str = ""


RAW_OPERATOR_STREAMS = OperatorStateSchema(RAW_OPERATOR, "raw", "binary")
RAW_KEYED_STREAMS = OperatorStateSchema(RAW_KEYED, "raw_keyed", "binary")


def list_schema(
    descriptor: ListStateDescriptor, mode: Literal["split", "union"]
) -> OperatorStateSchema:
    """The schema of a list state, its type in canonical spelling.

    Raises:
        UserError: it is declared with a time to live.
    """
    _refuse_ttl(descriptor)
    return OperatorStateSchema(descriptor.name, mode, parse_type(descriptor.type).ddl)


def map_schema(descriptor: MapStateDescriptor) -> OperatorStateSchema:
    """The schema of a broadcast state, its types in canonical spelling.

    Raises:
        UserError: it is declared with a time to live.
    """
    _refuse_ttl(descriptor)
    types = parse_type(descriptor.type).ddl, parse_type(descriptor.key_type).ddl
    return OperatorStateSchema(descriptor.name, "broadcast", *types)


def require_same(new: OperatorStateSchema, old: OperatorStateSchema, verb: str) -> None:
    """Refuse another mode or type under a known name; `verb`: as the old one "was registered".

    Raises:
        UserError: naming the state, both declarations and what to do.
    """
    if new != old:
        raise UserError(
            f"operator state {new.name!r} {verb} as {_spell(old)} and is now declared as "
            f"{_spell(new)}; give the new state another name, or declare it as before"
        )


def _refuse_ttl(descriptor: ListStateDescriptor | MapStateDescriptor) -> None:
    if descriptor.ttl is not None:
        raise UserError(
            f"operator state has no time to live: state={descriptor.name} "
            f"ttl={descriptor.ttl.ttl}; declare it without, and remove what is old yourself, or "
            f"keep it as keyed state"
        )


def _spell(schema: OperatorStateSchema) -> str:
    inner = f"{schema.key_type}, {schema.type}" if schema.key_type else schema.type
    return f"{_WORDS[schema.mode]}<{inner}>"
