"""What the subtasks of one snapshot had declared, made one: they need not have declared the same.

A state may be declared at its first use, so when its type changes one subtask may have declared the
new one and another not yet. Decides which type holds for all, and of which type the values of each
handle are. Called by restores, which bring all values to one understanding of them.

RocksDB's own files say of each value what type wrote it. The other formats hold values of the last
type only; what their handles say of earlier types tells no more than which type came later, and is
forgotten as soon as no handle has values of it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from moorage_state.backends.handles import KeyedStateHandle
from moorage_state.codecs import opaque_encoder
from moorage_state.evolution import mark_of, reader_of
from moorage_state.keyed.store import StateSchema, merged_schema

__all__ = ["Convert", "KnownStates", "known_states"]

Convert = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class KnownStates:
    """What holds for all subtasks.

    Attributes:
        schemas: by name; `earlier` are the types that restored values may still have.
    """

    schemas: Mapping[str, StateSchema]
    _forgotten: Mapping[str, int]

    def generations(self, handle: KeyedStateHandle) -> dict[str, int]:
        """For each state of a handle, the type of its values, where they are all of the last one.

        Given as which of the types in `schemas` it is, counted from the oldest.
        """
        return {s.name: len(s.earlier) - self._forgotten[s.name] for s in handle.states}

    def converters(self, handle: KeyedStateHandle) -> dict[str, Convert]:
        """For each state of such a handle that differs: from its values' bytes to the last type's.

        Pickled objects are not loaded.
        """
        return {
            name: _converter(self.schemas[name], generation)
            for name, generation in self.generations(handle).items()
            if generation < len(self.schemas[name].earlier)
        }


def known_states(handles: Iterable[KeyedStateHandle]) -> KnownStates:
    """What the subtasks of one snapshot had declared, together.

    Args:
        handles: all that there are of the snapshot, so that every subtask comes to the same.

    Raises:
        UserError: they declared what excludes each other.
    """
    schemas: dict[str, StateSchema] = {}
    forgotten: dict[str, int] = {}
    for handle in handles:
        for schema in handle.states:
            name, other = schema.name, schemas.get(schema.name)
            schemas[name] = schema if other is None else merged_schema(other, schema)
            oldest = 0 if handle.backend == "rocksdb" else len(schema.earlier)
            forgotten[name] = min(oldest, forgotten.get(name, oldest))
    kept = {name: _later_than(schema, forgotten[name]) for name, schema in schemas.items()}
    return KnownStates(kept, forgotten)


def _later_than(schema: StateSchema, forgotten: int) -> StateSchema:
    if not forgotten:
        return schema
    return msgspec.structs.replace(schema, earlier=schema.earlier[forgotten:])


def _converter(schema: StateSchema, generation: int) -> Convert:
    read = reader_of(schema.type, schema.earlier, opaque=True)
    write, mark = opaque_encoder(schema.type, schema.name), mark_of(generation)
    return lambda raw: write(read(mark + raw))
