"""The keyed state of one operator in one subtask during one epoch.

Decides when state is fetched and when changes leave for the state server. Called by the subtask
(`begin_chunk`, `switch_to`, `finish`) and, through the state handles, by user functions. It must
not know what a record is.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from moorage_state.deltas import encode_frame
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed.access import RangeAccess
from moorage_state.keyed.states import ListState, MapState, ValueState
from moorage_state.keys import state_id
from moorage_state.types import parse_type

__all__ = ["KeyedStateStore", "StateHandleBase", "StateSchema"]

_FRAME_ENTRIES = 50_000
_FRAME_BYTES = 8 << 20


class StateSchema(msgspec.Struct, frozen=True):
    """What a manifest says of one state: enough to refuse a reader that would misread it."""

    name: str
    kind: StateKind
    type: str
    key_type: str = ""


class StateHandleBase(Protocol):
    """What the store asks of a state handle."""

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        ...

    def flush(self) -> None:
        """Write what the current key changed, and forget the key."""
        ...


class _NoKey(list[StateHandleBase]):
    """Stands for the touched handles where there is no current key."""

    def append(self, _: StateHandleBase) -> None:
        raise RuntimeError(
            "state belongs to a key and there is none at this point: use states and timers "
            "in process and on_timer, not in open or close"
        )


class KeyedStateStore:
    """Keyed state of one subtask for one epoch; not thread-safe, not reusable.

    Attributes:
        touched: handles add themselves at their first use of the current key. A list and not a
            method, because it is done for every key.

    Args:
        access: the range at the version this epoch reads.
        epoch: the epoch, part of the position of what is appended to lists.
        known: schemas that the restored state or earlier epochs recorded, by state name.
    """

    def __init__(self, access: RangeAccess, epoch: int, known: Iterable[StateSchema] = ()) -> None:
        self.access = access
        self.epoch = epoch
        self.prefixes: list[bytes] = []
        self.index = 0
        self.prefix = b""
        self.appended = 0
        self.touched: list[StateHandleBase] = _NoKey()
        self._of_key: list[StateHandleBase] = []
        self._known = {s.name: s for s in known}
        self._schemas: dict[str, StateSchema] = {}
        self._handles: dict[str, Any] = {}
        self._attached: list[StateHandleBase] = []
        self._ids: dict[bytes, str] = {}
        self._ranges: list[tuple[bytes, bytes]] = []
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._bytes = 0
        self.frames = 0
        for name in self._known:
            self.claim_id(name)

    @property
    def schemas(self) -> list[StateSchema]:
        """Schemas of all states of the operator: those it registered and those from before."""
        return list({**self._known, **self._schemas}.values())

    def value_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """The handle of a value state. Raises `UserError` when the name is taken otherwise."""
        handle: ValueState = self._register(descriptor, ValueState)
        return handle

    def list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """The handle of a list state. Raises `UserError` when the name is taken otherwise."""
        handle: ListState = self._register(descriptor, ListState)
        return handle

    def map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """The handle of a map state. Raises `UserError` when the name is taken otherwise."""
        handle: MapState = self._register(descriptor, MapState)
        return handle

    def _register(self, descriptor: StateDescriptor, handle_class: Any) -> Any:
        schema = schema_of(descriptor)
        seen = self._schemas.get(schema.name)
        if seen is not None:
            _require_same(schema, seen, "was registered")
            return self._handles[schema.name]
        if schema.name in self._known:
            _require_same(schema, self._known[schema.name], "was written")
        handle = handle_class(self, self.claim_id(schema.name), descriptor)
        self._schemas[schema.name] = schema
        self._handles[schema.name] = handle
        self.attach(handle)
        return handle

    def attach(self, handle: StateHandleBase) -> None:
        """Have `handle` told of every new chunk."""
        self._attached.append(handle)

    def claim_id(self, name: str) -> bytes:
        """Reserve the stored id of a state name; raises `UserError` when two names collide."""
        sid = state_id(name)
        other = self._ids.setdefault(sid, name)
        if other != name:
            raise UserError(
                f"two state names of one operator have the same stored id: {other!r} and {name!r}; "
                f"rename one of them"
            )
        return sid

    def begin_chunk(self, prefixes: list[bytes]) -> None:
        """Say which keys come next; `switch_to` takes positions in this list.

        Keys in the order of their bytes are read and written fastest.

        When the chunk starts with the key that is current (its records run on), its pending
        changes stay in place, so the caller does not call `switch_to` for it again.
        """
        self.prefixes = prefixes
        self.index = 0
        for handle in self._attached:
            handle.new_chunk()

    def switch_to(self, index: int) -> None:
        """Make the key at `index` of the chunk the current one."""
        if self.touched:
            self.flush_key()
        self.index = index
        self.prefix = self.prefixes[index]
        self.touched = self._of_key

    def flush_key(self) -> None:
        """Encode what the current key changed."""
        for handle in self.touched:
            handle.flush()
        self.touched.clear()
        if len(self._keys) >= _FRAME_ENTRIES or self._bytes >= _FRAME_BYTES:
            self._send()

    def write(self, key: bytes, value: bytes | None) -> None:
        """Add a put, or a delete where `value` is None, to what is staged."""
        self._keys.append(key)
        self._values.append(value)
        self._bytes += len(key) + (len(value) if value is not None else 0)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Add the deletion of [start, end), which comes before this key's own writes."""
        self._ranges.append((start, end))
        self._bytes += len(start) + len(end)

    def finish(self) -> int:
        """Flush the last key and send what is left; returns the number of frames sent in all."""
        self.flush_key()
        self.prefix = b""
        self.touched = _NoKey()
        if self._keys or self._ranges:
            self._send()
        return self.frames

    def _send(self) -> None:
        self.access.stage(encode_frame(self._ranges, self._keys, self._values))
        self.frames += 1
        self._ranges, self._keys, self._values = [], [], []
        self._bytes = 0


def schema_of(descriptor: StateDescriptor) -> StateSchema:
    """The schema a descriptor declares, with types in canonical spelling."""
    key_type = ""
    if isinstance(descriptor, MapStateDescriptor):
        key_type = parse_type(descriptor.key_type).ddl
    return StateSchema(descriptor.name, descriptor.kind, parse_type(descriptor.type).ddl, key_type)


def _require_same(new: StateSchema, old: StateSchema, verb: str) -> None:
    if new != old:
        raise UserError(
            f"state {new.name!r} {verb} as {_spell(old)} and is now declared as {_spell(new)}; "
            f"give the new state another name, or keep the declared type"
        )


def _spell(schema: StateSchema) -> str:
    inner = f"{schema.key_type}, {schema.type}" if schema.key_type else schema.type
    return f"{schema.kind}<{inner}>"
