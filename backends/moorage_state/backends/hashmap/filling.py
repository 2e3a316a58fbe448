"""State from what a snapshot wrote: its own stream, or canonical entries. Called by restores.

Values stay the bytes that they are until somebody declares their state: nothing is loaded, least of
all a pickle, that the job does not ask for. But where subtasks differ in what they had declared,
they become here what they would be if all had declared the last type and time to live.
"""

import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from moorage_state.backends.handles import KeyedStateHandle
from moorage_state.backends.hashmap.format import TIMER_TABLES, HeapMeta, HeapReader
from moorage_state.backends.hashmap.registered import HeapStates
from moorage_state.backends.hashmap.tables import StateTable
from moorage_state.backends.merging import Convert, KnownStates
from moorage_state.deltas import Frame
from moorage_state.errors import CorruptState
from moorage_state.keyed.expiry import NEVER, split_stamp
from moorage_state.keyed.namespaces import split_namespace
from moorage_state.keyed.store import StateSchema
from moorage_state.keyed.timers import TIMERS_STATE, TimeDomain, unpack_timers
from moorage_state.keylayout import KEYED_STATE, state_id
from moorage_state.keys import KeyCodec

__all__ = ["fill_from_frames", "fill_from_stream"]

_HEAD = struct.Struct(">HBI")
_ID_BYTES = 4
_ADVICE = "restore another snapshot"


def fill_from_stream(
    states: HeapStates,
    known: KnownStates,
    handle: KeyedStateHandle,
    first: int,
    last: int,
    origin: int,
) -> None:
    """Put in the key groups `first` to `last` of a stream; `origin` is the range's first one."""
    if handle.stream is None:
        return
    reader = HeapReader(handle.stream, handle.offsets, handle.start)
    converters = known.converters(handle)
    timers = {meta.name for meta in TIMER_TABLES.values()}
    fillers = {
        meta.name: _RowFiller(
            states.table(meta) if meta.name in timers else states[meta.name].table,
            meta,
            _Values(states, known.schemas.get(meta.name), converters.get(meta.name)),
        )
        for meta in reader.states
    }
    for group, meta, rows in reader.groups(first, last):
        filler = fillers[meta.name]
        for raw, namespace, packed in rows:
            entry = raw if namespace is None else (raw, namespace)
            filler.put(group - origin, entry, packed)


def fill_from_frames(
    states: HeapStates,
    known: KnownStates,
    handle: KeyedStateHandle,
    frames: Iterable[Frame],
    origin: int,
) -> None:
    """Put in stored entries, in the order of their keys.

    Raises:
        CorruptState: an entry is not of a declared state.
    """
    converters = known.converters(handle)
    fillers = {
        state_id(schema.name): _EntryFiller(
            states[schema.name].table,
            schema,
            _Values(states, known.schemas[schema.name], converters.get(schema.name)),
            origin,
        )
        for schema in handle.states
    }
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


class _Values:
    """Makes of what one handle has for a value of one state what is kept for it.

    Args:
        schema: what holds for all handles; None for timers.
        convert: from the handle's type to that of `schema`; None where they are alike.
    """

    def __init__(
        self, states: HeapStates, schema: StateSchema | None, convert: Convert | None
    ) -> None:
        # A state that has no time to live any more may have old stamps, which say nothing now.
        self._stamped = schema is not None and bool(schema.ttl_ms)
        self._convert = convert
        self._now_ms = states.now_ms

    def kept(self, stamp_ms: int, raw: bytes) -> Any:
        """The bytes in the last type; with their stamp where the state has a time to live.

        What was written while there was none begins to live now.
        """
        if self._convert is not None:
            raw = self._convert(raw)
        if not self._stamped:
            return raw
        return (self._now_ms() if stamp_ms == NEVER else stamp_ms), raw


class _RowFiller:
    """Puts the rows of one state in a stream into its table."""

    def __init__(self, table: StateTable, meta: HeapMeta, values: _Values) -> None:
        self._table = table
        self._kind = meta.kind
        self._stamped = meta.stamped
        self._kept = values.kept
        self._map_key = KeyCodec([meta.key_type]).decode if meta.key_type is not None else None

    def put(self, group: int, entry: Any, packed: Any) -> None:
        if self._kind == "timers":
            self._table.own_map(group, entry).update(dict.fromkeys(packed, True))
        elif self._kind == "list":
            self._table.own_items(group, entry).extend(map(self._one, packed))
        elif self._map_key is not None:
            found = self._table.own_map(group, entry)
            for raw, value in packed:
                found[self._map_key(raw)[0]] = self._one(value)
        else:
            self._table.own(group)[entry] = self._one(packed)

    def _one(self, packed: Any) -> Any:
        return self._kept(*packed) if self._stamped else self._kept(NEVER, packed)


class _EntryFiller:
    """Puts the stored entries of one state into its table."""

    def __init__(
        self, table: StateTable, schema: StateSchema, values: _Values, origin: int
    ) -> None:
        self._table = table
        self._may_have_stamps = schema.ttl_ms is not None
        self._namespaced = bool(schema.namespace_types)
        self._kind = schema.kind
        self._kept = values.kept
        self._origin = origin
        self._map_key = KeyCodec([schema.key_type]).decode if schema.key_type else None

    def put(self, group: int, raw: bytes, rest: bytes, value: bytes) -> None:
        at = group - self._origin
        kept = self._kept(*(split_stamp(value) if self._may_have_stamps else (NEVER, value)))
        entry: Any = raw
        if self._namespaced:
            namespace, rest = split_namespace(rest)
            entry = (raw, namespace)
        if self._kind == "list":
            self._table.own_items(at, entry).append(kept)
        elif self._map_key is not None:
            self._table.own_map(at, entry)[self._map_key(rest)[0]] = kept
        else:
            self._table.own(at)[entry] = kept


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
