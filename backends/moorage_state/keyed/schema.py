"""What is recorded of a state, and whether what is declared now goes on with what was written.

Called by the store when a state is registered, and by the driver, which merges what subtasks say.
"""

import msgspec

from moorage_state.descriptors import MapStateDescriptor, StateDescriptor, StateKind
from moorage_state.errors import UserError
from moorage_state.evolution import declared_over, later_of
from moorage_state.types import parse_type

__all__ = ["StateSchema", "continued", "merged_schema", "require_same", "schema_of"]


class StateSchema(msgspec.Struct, frozen=True):
    """What a manifest says of one state: enough to refuse a reader that would misread it.

    Attributes:
        earlier: the types that stored values may still have, oldest first.
        ttl_ms: the time to live that was declared last, 0 for none; None where no stored value has
            a stamp, because none was ever declared.
        namespace_types: the types of what the state has besides the key; empty for most states.
    """

    name: str
    kind: StateKind
    type: str
    key_type: str = ""
    earlier: tuple[str, ...] = ()
    ttl_ms: int | None = None
    namespace_types: tuple[str, ...] = ()


def schema_of(descriptor: StateDescriptor, namespace_types: tuple[str, ...] = ()) -> StateSchema:
    """The schema a descriptor declares, with types in canonical spelling."""
    key_type = ""
    if isinstance(descriptor, MapStateDescriptor):
        key_type = parse_type(descriptor.key_type).ddl
    return StateSchema(
        descriptor.name,
        descriptor.kind,
        parse_type(descriptor.type).ddl,
        key_type,
        ttl_ms=descriptor.ttl.ttl_ms if descriptor.ttl is not None else None,
        namespace_types=namespace_types,
    )


def require_same(new: StateSchema, old: StateSchema, verb: str) -> None:
    """Raise `UserError` where two declarations differ; `verb` says what became of the old one."""
    if new != old:
        raise UserError(
            f"state {new.name!r} {verb} as {_spell(old)} and is now declared as {_spell(new)}; "
            f"give the new state another name, or keep the declared type"
        )


def merged_schema(one: StateSchema, other: StateSchema) -> StateSchema:
    """Of what two subtasks say of one state in one epoch, what holds; see `later_of`."""
    if one == other:
        return one
    types = (one.type, one.earlier), (other.type, other.earlier)
    ddl, earlier = later_of(one.name, *types)
    ttl_ms = _longer(one.ttl_ms, other.ttl_ms)
    one = msgspec.structs.replace(one, ttl_ms=ttl_ms)
    other = msgspec.structs.replace(other, ttl_ms=ttl_ms)
    later = msgspec.structs.replace(other, type=ddl, earlier=earlier)
    require_same(later, msgspec.structs.replace(one, type=ddl, earlier=earlier), "is declared")
    return later


def continued(schema: StateSchema, written: StateSchema | None) -> StateSchema:
    """What is recorded of a state that is declared over what was written before, if anything."""
    if written is None:
        return schema
    schema = _stamped(schema, written)
    same = msgspec.structs.replace(schema, type=written.type, earlier=written.earlier)
    require_same(same, msgspec.structs.replace(written, ttl_ms=schema.ttl_ms), "was written")
    if schema.type == written.type:
        return same
    ddl, earlier = declared_over(schema.name, written.type, written.earlier, schema.type)
    return msgspec.structs.replace(schema, type=ddl, earlier=earlier)


def _longer(one: int | None, other: int | None) -> int | None:
    """The longer time to live; None, which says that nothing has a stamp, gives way."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other) if one and other else 0


def _stamped(schema: StateSchema, written: StateSchema) -> StateSchema:
    """The schema with the time to live that goes for values some of which are written already."""
    if written.ttl_ms is not None and schema.ttl_ms is None:
        return msgspec.structs.replace(schema, ttl_ms=0)
    return schema


def _spell(schema: StateSchema) -> str:
    inner = f"{schema.key_type}, {schema.type}" if schema.key_type else schema.type
    within = f" by namespace ({', '.join(schema.namespace_types)})"
    return f"{schema.kind}<{inner}>{within if schema.namespace_types else ''}"
