"""What is recorded of a state, and whether what is declared now goes on with what was written.

Called by the store when a state is registered, and by the driver, which merges what subtasks say.
"""

from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from moorage_state.codecs import Decode, Encode, Settle, plain_type, settler
from moorage_state.descriptors import MapStateDescriptor, StateDescriptor, StateKind
from moorage_state.errors import UserError
from moorage_state.evolution import declared_over, later_of, reader_of, writer_of
from moorage_state.timetolive import StateTtlConfig
from moorage_state.types import parse_type


class StateCodec(NamedTuple):
    """What a handle turns values of one state into bytes with.

    `encode` refuses what is not of the declared type. Values of exactly the type `plain` read back
    as they were given (None: there is no such type); `settle` gives what would be read back for
    any.
    """

    encode: Encode
    decode: Decode
    plain: Any
    settle: Settle


def codec_of(
    name: str, ddl: str, earlier: Sequence[str] = (), recorded: str | None = None
) -> StateCodec:
    """The codec of the state `name`, which is declared with type `ddl`.

    `earlier` are the types that stored values may still have; `recorded` is the one that they are
    read as.
    """
    # The recorded type may have other defaults than the declared one: those of when a field came.
    encode, decode = writer_of(ddl, earlier, name), reader_of(recorded or ddl, earlier)
    return StateCodec(encode, decode, plain_type(ddl), settler(ddl, name))


def _same(raw: Any) -> Any:
    return raw


RAW = StateCodec(_same, _same, bytes, _same)
"""Of who keeps values as the bytes that another codec made."""


_OF_TTL = tuple(field.name for field in fields(StateTtlConfig))


class StateSchema(msgspec.Struct, frozen=True):
    """What a manifest says of one state: enough to refuse a reader that would misread it.

    The fields are those of `snapshots.StateMeta`, with an empty `key_type` for other kinds than
    maps.
    """

    name: str
    kind: StateKind
    type: str
    key_type: str = ""
    earlier: tuple[str, ...] = ()
    ttl_ms: int | None = None
    namespace_types: tuple[str, ...] = ()
    indexed_ms: int | None = None
    cleanup_in_full_snapshot: bool = False


def schema_of(descriptor: StateDescriptor, namespace_types: tuple[str, ...] = ()) -> StateSchema:
    """The schema a descriptor declares, with types in canonical spelling."""
    key_type = ""
    if isinstance(descriptor, MapStateDescriptor):
        key_type = parse_type(descriptor.key_type).ddl
    ttl = descriptor.ttl
    return StateSchema(
        descriptor.name,
        descriptor.kind,
        parse_type(descriptor.type).ddl,
        key_type,
        ttl_ms=ttl.ttl_ms if ttl is not None else None,
        namespace_types=namespace_types,
        indexed_ms=ttl.ttl_ms if ttl is not None and ttl.cleanup_in_background else None,
        cleanup_in_full_snapshot=ttl is not None and ttl.cleanup_in_full_snapshot,
    )


def require_same(new: StateSchema, old: StateSchema, verb: str) -> None:
    """Raise `UserError` where two declarations differ; `verb` says what became of the old one."""
    if new != old:
        raise UserError(
            f"state {new.name!r} {verb} as {_spell(old)} and is now declared as {_spell(new)}; "
            f"give the new state another name, or keep the declared type"
        )


class Unstored(NamedTuple):
    """What a declaration says of a state that no schema does, because nothing stored depends on it.

    `reduce` is the name of the function, empty for one without: functions cannot be compared.
    """

    name: str
    ttl: StateTtlConfig | None
    reduce: str
    default: Any
    queryable: str


def unstored_of(descriptor: StateDescriptor) -> Unstored:
    """That of a descriptor."""
    reduce = getattr(descriptor, "reduce", "")
    named = reduce if isinstance(reduce, str) else ""
    default = getattr(descriptor, "default", None)
    return Unstored(descriptor.name, descriptor.ttl, named, default, descriptor.queryable_name)


def require_same_unstored(new: Unstored, old: Unstored) -> None:
    """Raise `UserError` where two declarations of one process, whose schemas are equal, differ."""
    if new == old:
        return
    pairs = [(name, _spelled(old.ttl, name), _spelled(new.ttl, name)) for name in _OF_TTL]
    if new.reduce and old.reduce:
        pairs.append(("reduce", old.reduce, new.reduce))
    pairs.append(("default", repr(old.default), repr(new.default)))
    pairs.append(("queryable", repr(old.queryable), repr(new.queryable)))
    differ = [f"{name}={one} and now {name}={other}" for name, one, other in pairs if one != other]
    if differ:
        raise UserError(
            f"state {new.name!r} was registered with {', '.join(differ)}; declare it alike "
            f"wherever it is asked for"
        )


def _spelled(ttl: StateTtlConfig | None, name: str) -> str:
    value = getattr(ttl, name, None)
    return value.name if isinstance(value, Enum) else str(value)


def merged_schema(one: StateSchema, other: StateSchema) -> StateSchema:
    """Of what two subtasks say of one state in one epoch, what holds; see `later_of`."""
    if one == other:
        return one
    types = (one.type, one.earlier), (other.type, other.earlier)
    ddl, earlier = later_of(one.name, *types)
    one = msgspec.structs.replace(one, type=ddl, earlier=earlier)
    later = _lived_as(msgspec.structs.replace(other, type=ddl, earlier=earlier), one)
    require_same(later, one, "is declared")
    return msgspec.structs.replace(
        later,
        ttl_ms=_longer(one.ttl_ms, other.ttl_ms),
        indexed_ms=_indexed_by_both(one.indexed_ms, other.indexed_ms),
        cleanup_in_full_snapshot=one.cleanup_in_full_snapshot and other.cleanup_in_full_snapshot,
    )


def continued(schema: StateSchema, written: StateSchema | None) -> StateSchema:
    """What is recorded of a state that is declared over what was written before, if anything."""
    if written is None:
        return schema
    schema = _stamped(schema, written)
    same = msgspec.structs.replace(schema, type=written.type, earlier=written.earlier)
    require_same(same, _lived_as(written, schema), "was written")
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
    if schema.ttl_ms is None:
        return schema if written.ttl_ms is None else msgspec.structs.replace(schema, ttl_ms=0)
    if schema.indexed_ms is None:
        return schema
    before = written.indexed_ms
    indexed_ms = max(before, schema.indexed_ms) if before else 0
    return msgspec.structs.replace(schema, indexed_ms=indexed_ms)


def _indexed_by_both(one: int | None, other: int | None) -> int | None:
    """By which time to live the index has what both have; nothing of whom it is not kept for."""
    if one is None and other is None:
        return None
    return max(one, other) if one and other else 0


def _lived_as(schema: StateSchema, other: StateSchema) -> StateSchema:
    """The schema with all that the other one says of how long state lives."""
    return msgspec.structs.replace(
        schema,
        ttl_ms=other.ttl_ms,
        indexed_ms=other.indexed_ms,
        cleanup_in_full_snapshot=other.cleanup_in_full_snapshot,
    )


def _spell(schema: StateSchema) -> str:
    inner = f"{schema.key_type}, {schema.type}" if schema.key_type else schema.type
    within = f" by namespace ({', '.join(schema.namespace_types)})"
    lives = f" with a time to live of {schema.ttl_ms} ms"
    lives += "" if schema.indexed_ms is not None else ", not cleaned up in the background"
    lives += ", cleaned up in full snapshots" if schema.cleanup_in_full_snapshot else ""
    return (
        f"{schema.kind}<{inner}>{within if schema.namespace_types else ''}"
        f"{lives if schema.ttl_ms else ''}"
    )
