r"""The bytes of a snapshot of objects: one stream for a range, key group after key group.

Decides the layout, which is read by key groups: a restore of another parallelism reads those that
it needs and no others. Written by the asynchronous part of a snapshot, beside the writer. Layout
(integers big-endian)::

    magic "MOORHMS\0" (8) | format version (2) | block of the header | block of each key group
    block:      payload length (8) | payload | xxh3_64 of the payload (8)
    header:     msgpack [[name, kind, type, key type or nil, namespace type or nil, stamped,
                sweeps, leaves out expired], ...]
    key group:  msgpack [key group, [[number of the state, [[key, namespace or nil, kept], ...]]]]
    kept:       bytes of the value; of a list [value, ...]; of a map [[key, value], ...];
                of timers [time, ...]; where stamped, [milliseconds, bytes] in place of each value

Values have the bytes of `codecs`, keys those of `keys`. What has expired is not written, unless
neither a sweep nor a snapshot may clean it up.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import xxhash

from moorage_state.backends.hashmap.expiring import is_expired
from moorage_state.backends.streams import CheckpointOutputStream, StreamStateHandle
from moorage_state.codecs import Encode, encoder
from moorage_state.errors import CorruptState
from moorage_state.formats import require_known_format
from moorage_state.keyed.timers import TimeDomain
from moorage_state.keys import KeyCodec

__all__ = [
    "TIMER_TABLES",
    "Captured",
    "HeapMeta",
    "HeapReader",
    "write_heap_snapshot",
]

FORMAT = 1

_MAGIC = b"MOORHMS\0"
_HEAD = struct.Struct(">8sH")
_LENGTH = struct.Struct(">Q")
_ADVICE = "restore an older checkpoint, or this object from a backup of the store"
_pack = msgspec.msgpack.encode


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


TIMER_TABLES = {
    domain: HeapMeta(f"\0timers-{domain.name.lower()}", "timers", "bigint") for domain in TimeDomain
}
"""What timers are kept as; no user's state can be named so."""


class Captured(NamedTuple):
    """A state at the moment of a snapshot: for each key group its objects by entry.

    Attributes:
        ttl_ms: the time to live; None or 0 for none.
        packed: whether values are the bytes that were restored, of a state that nobody declared.
    """

    meta: HeapMeta
    groups: Sequence[dict[Any, Any]]
    ttl_ms: int | None = None
    packed: bool = False

    @property
    def encode(self) -> Encode:
        """From what is kept for a value to its bytes."""
        return bytes if self.packed else encoder(self.meta.type, self.meta.name)

    def leaves_out(self, stamp_ms: int, now_ms: int) -> bool:
        """Whether snapshots at this time are without what was last used at `stamp_ms`."""
        if not self.ttl_ms or not (self.meta.sweeps or self.meta.leaves_out_expired):
            return False
        return is_expired(stamp_ms, self.ttl_ms, now_ms)


def write_heap_snapshot(
    stream: CheckpointOutputStream,
    states: Sequence[Captured],
    first_group: int,
    now_ms: int,
    check: Callable[[], None],
) -> tuple[int, ...]:
    """Write all states; returns where the key groups begin, and where the last one ends.

    Args:
        first_group: the key group that is the first of each state.
        check: asked between key groups; raises to stop.
    """
    stream.write(_HEAD.pack(_MAGIC, FORMAT))
    _write_block(stream, _pack([state.meta for state in states]))
    packers = [_Packer(state, now_ms) for state in states]
    count = len(states[0].groups) if states else 0
    offsets = [stream.tell()]
    for at in range(count):
        check()
        found = [[number, rows] for number, p in enumerate(packers) if (rows := p.rows(at))]
        if found:
            _write_block(stream, _pack([first_group + at, found]))
        offsets.append(stream.tell())
    return tuple(offsets)


def _write_block(stream: CheckpointOutputStream, payload: bytes) -> None:
    stream.write(_LENGTH.pack(len(payload)))
    stream.write(payload)
    stream.write(_LENGTH.pack(xxhash.xxh3_64_intdigest(payload)))


class _Packer:
    """Makes the rows of one state; only reads what the snapshot captured."""

    def __init__(self, state: Captured, now_ms: int) -> None:
        self._state = state
        self._groups = state.groups
        self._now_ms = now_ms
        self._stamped = state.meta.stamped
        kind = state.meta.kind
        self._encode = state.encode
        keep: dict[str, Callable[[Any], Any]] = {
            "list": self._list,
            "map": self._map,
            "timers": sorted,
        }
        self._keep = keep.get(kind, self._one)
        codec = KeyCodec([state.meta.key_type]) if state.meta.key_type is not None else None
        self._map_key = codec.encode if codec is not None else None

    def rows(self, at: int) -> list[Any]:
        rows = []
        for entry, kept in self._groups[at].items():
            key, namespace = entry if isinstance(entry, tuple) else (entry, None)
            packed = self._keep(kept)
            if packed is not None:
                rows.append((key, namespace, packed))
        return rows

    def _one(self, kept: Any) -> Any:
        if not self._stamped:
            return self._encode(kept)
        if self._state.leaves_out(kept[0], self._now_ms):
            return None
        return kept[0], self._encode(kept[1])

    def _list(self, kept: Any) -> Any:
        packed = [one for value in kept if (one := self._one(value)) is not None]
        return packed or None

    def _map(self, kept: Any) -> Any:
        encode_key: Any = self._map_key
        packed = [
            (encode_key((key,)), one)
            for key, value in kept.items()
            if (one := self._one(value)) is not None
        ]
        return packed or None


class HeapReader:
    """Reads a stream that `write_heap_snapshot` wrote.

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
        except msgspec.MsgspecError as error:
            raise self._corrupt(f"a block cannot be read ({error})") from error

    def _corrupt(self, what: str) -> CorruptState:
        return CorruptState(f"state cannot be read: {what}", self._handle.place, _ADVICE)


_Group = tuple[int, list[tuple[int, list[tuple[bytes, bytes | None, Any]]]]]
