"""Objects from what a snapshot wrote: its own stream, or canonical entries. Called by restores."""

import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from moorage_state.backends.handles import KeyedStateHandle
from moorage_state.backends.hashmap.format import TIMER_TABLES, HeapMeta, HeapReader, Unpacker
from moorage_state.backends.hashmap.registered import HeapStates
from moorage_state.backends.hashmap.tables import StateTable
from moorage_state.deltas import Frame
from moorage_state.errors import CorruptState, UserError
from moorage_state.evolution import reader_of
from moorage_state.keyed.expiry import NEVER, split_stamp
from moorage_state.keyed.namespaces import split_namespace
from moorage_state.keyed.store import StateSchema
from moorage_state.keyed.timers import TIMERS_STATE, TimeDomain, unpack_timers
from moorage_state.keys import KEYED_STATE, KeyCodec, state_id

__all__ = ["fill_from_frames", "fill_from_stream"]

_HEAD = struct.Struct(">HBI")
_ID_BYTES = 4
_ADVICE = "restore another snapshot"


def fill_from_stream(
    states: HeapStates, handle: KeyedStateHandle, first: int, last: int, origin: int
) -> None:
    """Put in the key groups `first` to `last` of a stream; `origin` is the range's first one."""
    if handle.stream is None:
        return
    reader = HeapReader(handle.stream, handle.offsets, handle.start)
    lives = {schema.name: schema.ttl_ms or 0 for schema in handle.states}
    tables = {meta.name: states.table(meta, lives.get(meta.name, 0)) for meta in reader.states}
    unpackers = {meta.name: Unpacker(meta) for meta in reader.states}
    for group, meta, rows in reader.groups(first, last):
        table, unpacker = tables[meta.name], unpackers[meta.name]
        for raw, namespace, packed in rows:
            entry = raw if namespace is None else (raw, namespace)
            _put(table, meta, unpacker, group - origin, entry, packed)


def _put(
    table: StateTable, meta: HeapMeta, unpacker: Unpacker, group: int, entry: Any, packed: Any
) -> None:
    if meta.kind == "list":
        table.own_items(group, entry).extend(map(unpacker.one, packed))
    elif meta.kind == "map":
        found = table.own_map(group, entry)
        for raw, value in packed:
            found[unpacker.map_key(raw)] = unpacker.one(value)
    elif meta.kind == "timers":
        table.own_map(group, entry).update(dict.fromkeys(packed, True))
    else:
        table.own(group)[entry] = unpacker.one(packed)


def fill_from_frames(
    states: HeapStates, handle: KeyedStateHandle, frames: Iterable[Frame], origin: int
) -> None:
    """Put in stored entries, in the order of their keys.

    Raises:
        CorruptState: an entry is not of a declared state.
    """
    fillers = {}
    for state in handle.states:
        if len(state.namespace_types) > 1:
            raise UserError(
                f"a state in memory has namespaces of one type: state={state.name} "
                f"types={','.join(state.namespace_types)}; restore with the rocksdb backend"
            )
        fillers[state_id(state.name)] = _Filler(states, state, origin)
    timers = _TimerFiller(states, origin)
    for frame in frames:
        for key, value in zip(frame.keys, frame.values, strict=True):
            group, kind, length = _HEAD.unpack_from(key)
            if kind != KEYED_STATE or value is None:
                continue  # indexes by time are made again
            at = _HEAD.size + length
            raw, sid, rest = key[_HEAD.size : at], key[at : at + _ID_BYTES], key[at + _ID_BYTES :]
            try:
                if sid == timers.sid:
                    timers.put(group, raw, value)
                else:
                    fillers[sid].put(group, raw, rest, value)
            except (KeyError, msgspec.MsgspecError) as error:
                raise CorruptState(
                    f"an entry is not of a declared state: operator={handle.operator} "
                    f"key_group={group} error={error}",
                    handle.store_url,
                    _ADVICE,
                ) from error


class _Filler:
    """Puts entries of one state into its table."""

    def __init__(self, states: HeapStates, schema: StateSchema, origin: int) -> None:
        self._may_have_stamps = schema.ttl_ms is not None
        # A state that has no time to live any more may have old stamps, which say nothing now.
        self._stamped = bool(schema.ttl_ms)
        self._namespaced = bool(schema.namespace_types)
        meta = HeapMeta(
            schema.name,
            schema.kind,
            schema.type,
            schema.key_type or None,
            schema.namespace_types[0] if schema.namespace_types else None,
            self._stamped,
            # A canonical file does not say; whoever asks for the state does.
            self._stamped,
        )
        self._table = states.table(meta, schema.ttl_ms or 0)
        self._kind = schema.kind
        self._origin = origin
        self._now_ms = states.now_ms
        self._decode = reader_of(schema.type, schema.earlier)
        self._map_key = KeyCodec([schema.key_type]).decode if schema.key_type else None

    def put(self, group: int, raw: bytes, rest: bytes, value: bytes) -> None:
        at, decoded = group - self._origin, self._decoded(value)
        entry: Any = raw
        if self._namespaced:
            namespace, rest = split_namespace(rest)
            entry = (raw, namespace)
        if self._kind == "list":
            self._table.own_items(at, entry).append(decoded)
        elif self._map_key is not None:
            self._table.own_map(at, entry)[self._map_key(rest)[0]] = decoded
        else:
            self._table.own(at)[entry] = decoded

    def _decoded(self, value: bytes) -> Any:
        if not self._may_have_stamps:
            return self._decode(value)
        stamp, payload = split_stamp(value)
        if not self._stamped:
            return self._decode(payload)
        # What was written while there was no time to live begins to live now.
        return (self._now_ms() if stamp == NEVER else stamp), self._decode(payload)


class _TimerFiller:
    """Puts the packed timers of keys into the tables of both domains."""

    def __init__(self, states: HeapStates, origin: int) -> None:
        self.sid = state_id(TIMERS_STATE)
        self._origin = origin
        self._tables = [states.table(TIMER_TABLES[domain]) for domain in TimeDomain]

    def put(self, group: int, raw: bytes, value: bytes) -> None:
        for table, times in zip(self._tables, unpack_timers(value), strict=True):
            if times:
                table.own_map(group - self._origin, raw).update(dict.fromkeys(times, True))
