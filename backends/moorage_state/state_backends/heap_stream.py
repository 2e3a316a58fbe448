r"""What `hashmap` wrote as snapshots in releases before it had a database: read, and never written.

Decides the layout, which is read by key groups: a restore of another parallelism reads those that
it needs and no others. Called by restores. Layout (integers big-endian)::

    magic "MOORHMS\0" (8) | format version (2) | block of the header | block of each key group
    block:      payload length (8) | payload | xxh3_64 of the payload (8)
    header:     msgpack [[name, kind, type, key type or nil, namespace type or nil, stamped,
                sweeps, leaves out expired], ...]
    key group:  msgpack [key group, [[number of the state, [[key, namespace or nil, kept], ...]]]]
    kept:       bytes of the value; of a list [value, ...]; of a map [[key, value], ...];
                of timers [time, ...]; where stamped, [milliseconds, bytes] in place of each value

Values have the bytes of `codecs`, keys those of `keys`.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

import msgspec
import xxhash

from moorage_state.deltas import Frame
from moorage_state.errors import CorruptState
from moorage_state.evolution import mark_of
from moorage_state.formats import UNREADABLE, require_known_format
from moorage_state.keyed.expiry import stamp_bytes
from moorage_state.keyed.many_timers import stored_timers
from moorage_state.keyed.namespaces import prefixed_with_length
from moorage_state.keyed.timers import TIMERS_STATE, TimeDomain
from moorage_state.keylayout import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    encode_time,
    key_prefix,
    state_id,
    timer_entry,
)
from moorage_state.state_backends.handles import KeyedStateHandle
from moorage_state.state_backends.streams import StreamStateHandle

FORMAT = 1

_MAGIC = b"MOORHMS\0"
_HEAD = struct.Struct(">8sH")
_LENGTH = struct.Struct(">Q")
_ADVICE = "restore an older checkpoint, or this object from a backup of the store"
_TIMER_STATES = tuple(f"\0timers-{domain.name.lower()}" for domain in TimeDomain)
_FIRST_EPOCH = encode_time(0)
_Entries = dict[bytes, bytes | None]


class HeapMeta(msgspec.Struct, frozen=True, array_like=True):
    """One state as the stream has it; `kind` is that of the descriptor, or timers."""

    name: str
    kind: Literal["value", "list", "map", "reducing", "aggregating", "timers"]
    type: str
    key_type: str | None = None
    namespace_type: str | None = None
    stamped: bool = False
    sweeps: bool = False
    """Whether what has expired may go without being read."""
    leaves_out_expired: bool = False
    """Whether snapshots are without it, also if nothing else cleans it up."""


def frames_of_stream(
    handle: KeyedStateHandle, first: int, last: int, generations: Mapping[str, int]
) -> Iterator[Frame]:
    """What has to be written to a database so that it holds these key groups of a stream.

    Args:
        generations: by state, of which type in its schema the values are; see `mark_of`.

    Raises: see `HeapReader`.
    """
    if handle.stream is None:
        return
    reader = HeapReader(handle.stream, handle.offsets, handle.start)
    makers = {meta.name: _Entry(meta, generations.get(meta.name, 0)) for meta in reader.states}
    for group, found in groupby(reader.groups(first, last), key=itemgetter(0)):
        entries: _Entries = {}
        timers: dict[bytes, tuple[list[int], list[int]]] = {}
        for _, meta, rows in found:
            if meta.kind == "timers":
                domain = _TIMER_STATES.index(meta.name)
                for raw, _, times in rows:
                    timers.setdefault(raw, ([], []))[domain].extend(times)
                continue
            put = makers[meta.name].put
            for raw, namespace, kept in rows:
                put(entries, key_prefix(group, raw), namespace, kept)
        for raw, times in timers.items():
            _put_timers(entries, group, raw, *map(sorted, times))
        keys = sorted(entries)
        if keys:
            yield Frame([], keys, [entries[key] for key in keys])


class _Entry:
    """Makes stored entries of the rows of one state."""

    def __init__(self, meta: HeapMeta, generation: int) -> None:
        self._sid = state_id(meta.name)
        self._kind = meta.kind
        self._stamped = meta.stamped
        self._mark = mark_of(generation)

    def put(self, entries: _Entries, prefix: bytes, namespace: bytes | None, kept: Any) -> None:
        """Add those of one row."""
        cell = prefix + self._sid
        if namespace is not None:
            cell += prefixed_with_length(namespace)
        if self._kind == "list":
            for ordinal, one in enumerate(kept):
                entries[cell + _FIRST_EPOCH + ordinal.to_bytes(4, "big")] = self._value(one)
        elif self._kind == "map":
            for raw, one in kept:
                entries[cell + raw] = self._value(one)
        else:
            entries[cell] = self._value(kept)

    def _value(self, kept: Any) -> bytes:
        if not self._stamped:
            return self._mark + bytes(kept)
        stamp_ms, raw = kept
        return stamp_bytes(stamp_ms) + self._mark + bytes(raw)


def _put_timers(
    entries: _Entries, group: int, raw: bytes, event: list[int], processing: list[int]
) -> None:
    cell = key_prefix(group, raw) + state_id(TIMERS_STATE)
    entries.update((cell + rest, value) for rest, value in stored_timers(event, processing))
    for kind, times in ((EVENT_TIMERS, event), (PROCESSING_TIMERS, processing)):
        entries.update(dict.fromkeys((timer_entry(group, t, raw, kind) for t in times), b""))


class HeapReader:
    """Reads a stream.

    Raises:
        CorruptState: the bytes are not what was written.
        NewerFormat: a newer Moorage wrote them.
        StoreUnavailable: the store does not answer.
    """

    def __init__(self, handle: StreamStateHandle, offsets: Sequence[int], start: int) -> None:
        self._handle = handle
        self._offsets = offsets
        self._start = start
        whole = offsets[0] if offsets else handle.size
        head = handle.read(0, whole)
        if len(head) < _HEAD.size or head[:8] != _MAGIC:
            raise self._corrupt("the stream is no snapshot of this kind")
        require_known_format("state", _HEAD.unpack_from(head)[1], FORMAT, handle.place)
        payload, _ = self._block(head, _HEAD.size)
        self.states: list[HeapMeta] = self._decoded(payload, list[HeapMeta])

    def groups(self, first: int, last: int) -> Iterator[tuple[int, HeapMeta, list[Any]]]:
        """Key group, state, and [key, namespace, kept] of all that lies in these key groups.

        `kept` is as it was written.
        """
        lower, upper = self._offsets[first - self._start], self._offsets[last + 1 - self._start]
        data = self._handle.read(lower, upper - lower) if upper > lower else b""
        at = 0
        while at < len(data):
            payload, at = self._block(data, at)
            group, found = self._decoded(payload, _Group)
            if not first <= group <= last:
                raise self._corrupt(f"a key group is in another's place: key_group={group}")
            for number, rows in found:
                yield group, self.states[number], rows

    def _block(self, data: bytes, at: int) -> tuple[bytes, int]:
        try:
            (length,) = _LENGTH.unpack_from(data, at)
            begin = at + _LENGTH.size
            payload = data[begin : begin + length]
            (digest,) = _LENGTH.unpack_from(data, begin + length)
        except (struct.error, OverflowError) as error:
            raise self._corrupt(f"a block is torn ({error})") from error
        if xxhash.xxh3_64_intdigest(payload) != digest:
            raise self._corrupt("a block has another checksum")
        return payload, begin + length + _LENGTH.size

    def _decoded(self, payload: bytes, kind: Any) -> Any:
        try:
            return msgspec.msgpack.decode(payload, type=kind)
        except UNREADABLE as error:
            raise self._corrupt(f"a block cannot be read ({error})") from error

    def _corrupt(self, what: str) -> CorruptState:
        return CorruptState(f"state cannot be read: {what}", self._handle.place, _ADVICE)


_Group = tuple[int, list[tuple[int, list[tuple[bytes, bytes | None, Any]]]]]
