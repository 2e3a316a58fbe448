"""Stored entries as rows and back: what one entry of the database is in a canonical file.

Decides how the bytes behind a key and a state's id become columns, and that the way back gives the
same bytes. A key's packed timers become one row each; their index by time is not exported but made
again. Called by export and import for every entry. Knows neither files nor databases.

Operator and raw state are rows without key columns, named and kept apart from keyed ones;
namespaces and stamps are columns beside the values (`Namespaces`, `Stamps`).
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from moorage_state.canonical.file_schema import namespace_columns, schema_of
from moorage_state.canonicalspec import (
    EVENT_TIME,
    LAST_ACCESS,
    LIST_KINDS,
    OPERATOR_STATE_PREFIX,
    PROCESSING_TIME,
    SIDE_KINDS,
    TIMER_KINDS,
    FileMeta,
)
from moorage_state.codecs import Encode, opaque_encoder
from moorage_state.columnar.arrow import from_arrow, to_arrow
from moorage_state.errors import CorruptState
from moorage_state.evolution import mark_of, reader_of
from moorage_state.keyed.expiry import NEVER, due_time, has_expired, split_stamp, stamp_bytes
from moorage_state.keyed.many_timers import are_packed, entry_parts, stored_timers, unpack_timers
from moorage_state.keyed.namespaces import namespace_bytes, namespace_codec, split_namespace
from moorage_state.keyed.timers import TIMERS_STATE
from moorage_state.keylayout import (
    EVENT_TIMERS,
    KEY_AT,
    PROCESSING_TIMERS,
    decode_time,
    encode_time,
    expiry_entry,
    key_prefix,
    state_id,
    timer_entry,
)
from moorage_state.keys import KeyCodec
from moorage_state.operator_state.layout import (
    OPERATOR_STATE,
    RAW_KEYED_STATE,
    operator_prefix,
    raw_prefix,
)
from moorage_state.types import parse_type

SIDE_ENTRIES = frozenset({OPERATOR_STATE, RAW_KEYED_STATE})
"""The kinds of stored keys that belong to no key."""

_ID_AT = 3
_REST_AT = _ID_AT + 4
Stored = tuple[bytes, bytes, bytes]
"""A key, what follows the state's id in the stored key, and the value."""

Entries = tuple[list[bytes], list[bytes]]
"""Stored keys and their values."""

_ORDINAL_BYTES = 4
_POSITION_BYTES = 8 + _ORDINAL_BYTES
_ENTRY_BYTES = 128
_NOT_OF_THE_TYPE = (
    msgspec.MsgspecError,
    pa.ArrowException,
    struct.error,
    ArithmeticError,
    LookupError,
    TypeError,
)
_INDEX_OF = {EVENT_TIME: EVENT_TIMERS, PROCESSING_TIME: PROCESSING_TIMERS}
_PAGE = 20_000


def is_raw(meta: FileMeta) -> bool:
    """Whether the state's values are a user's own bytes, which are stored as they are."""
    return meta.kind in {"raw", "raw_keyed"}


def side_place(meta: FileMeta, sid: bytes) -> bytes:
    """What the stored keys of the state have behind their key group, up to their position."""
    kind = RAW_KEYED_STATE if meta.kind == "raw_keyed" else OPERATOR_STATE
    return bytes([kind]) + sid


def side_parts(stored: bytes) -> tuple[bytes, bytes]:
    """What `side_place` gives for the state of a stored key, and the position in it."""
    at = _ID_AT if stored[2] == RAW_KEYED_STATE else _REST_AT
    return stored[2:at], stored[at:]


def side_prefixes(meta: FileMeta, groups: Iterable[int]) -> Iterator[bytes]:
    """What the stored keys of rows with these key groups start with."""
    make = raw_prefix if meta.kind == "raw_keyed" else operator_prefix
    return map(make, groups)


class Namespaces:
    """The namespaces of one state."""

    def __init__(self, meta: FileMeta) -> None:
        self._columns = namespace_columns(meta)
        self._types = [parse_type(ddl) for ddl in meta.namespace_types]
        self._codec = namespace_codec(meta.namespace_types) if self._columns else None

    def split(self, rests: Sequence[bytes]) -> tuple[list[pa.Array], Sequence[bytes]]:
        """The columns, and what follows the namespace in each stored key; or ValueError."""
        if self._codec is None:
            return [], rests
        pairs = [split_namespace(rest) for rest in rests]
        known = {raw: self._codec.decode(raw) for raw in dict.fromkeys(raw for raw, _ in pairs)}
        by_column = zip(*(known[raw] for raw, _ in pairs), strict=True)
        columns = [to_arrow(t, found) for t, found in zip(self._types, by_column, strict=True)]
        return columns, [rest for _, rest in pairs]

    def of_rows(self, batch: pa.RecordBatch) -> list[bytes]:
        """What each row has behind its state's id."""
        if self._codec is None:
            return [b""] * batch.num_rows
        columns = [
            from_arrow(t, batch.column(name))
            for t, name in zip(self._types, self._columns, strict=True)
        ]
        rows: Iterator[tuple[Any, ...]] = zip(*columns, strict=True)
        return [namespace_bytes(self._codec, row) for row in rows]


class Stamps:
    """The stamps of one state's values."""

    def __init__(self, meta: FileMeta) -> None:
        self._meta = meta
        self._ttl_ms = meta.ttl_ms or 0

    def split(self, entries: Sequence[Stored]) -> tuple[list[int], list[Stored]]:
        """When each entry was last used, and the entries without stamps."""
        now_ms, ttl_ms = self._meta.now_ms, self._ttl_ms
        over_at = now_ms if self._meta.leaves_out_expired else 0
        times: list[int] = []
        kept: list[Stored] = []
        for key, rest, raw in entries:
            stamp, value = split_stamp(raw)
            # Only where they are to be left out.
            if over_at and has_expired(stamp, ttl_ms, over_at):
                continue
            # What was written while the state had no time to live begins its time now.
            times.append(now_ms if stamp == NEVER and now_ms and ttl_ms else stamp)
            kept.append((key, rest, value))
        return times, kept

    @staticmethod
    def put_back(batch: pa.RecordBatch, values: Sequence[bytes]) -> list[bytes]:
        """The values of the rows as they are stored."""
        times = batch.column(LAST_ACCESS).to_pylist()
        return [stamp_bytes(time) + value for time, value in zip(times, values, strict=True)]

    def index(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
        """The entries of the index that a sweep follows, for stored keys and values."""
        if not self._ttl_ms:
            return []
        cut = -_POSITION_BYTES if self._meta.kind == "list" else None
        found: dict[bytes, None] = {}
        for key, value in zip(keys, values, strict=True):
            stamp, _ = split_stamp(value)
            if stamp != NEVER:
                found[expiry_entry(key[:cut], due_time(stamp, self._ttl_ms))] = None
        return list(found)


def stored_id(meta: FileMeta) -> bytes:
    """The four bytes that stand for this state in stored keys; none for raw keyed streams."""
    if meta.kind in SIDE_KINDS:
        name = meta.state.removeprefix(OPERATOR_STATE_PREFIX)
        return b"" if meta.kind == "raw_keyed" else state_id(name)
    return state_id(TIMERS_STATE if meta.kind == "timers" else meta.state)


class RowBuffer:
    """Collects stored entries of one state in one key group; `bytes` is roughly what is held."""

    def __init__(self, meta: FileMeta) -> None:
        self.meta = meta
        self.schema: pa.Schema = schema_of(meta)
        self.bytes = 0
        self._entries: list[tuple[bytes, bytes, bytes]] = []
        self._namespaces = Namespaces(meta)
        self._stamps = Stamps(meta)
        self._codec = KeyCodec(meta.key_types)
        self._types = [parse_type(ddl) for ddl in meta.key_types]
        self._type = parse_type(meta.type)
        self._decode = bytes if is_raw(meta) else reader_of(meta.type, meta.earlier, opaque=True)

    def __len__(self) -> int:
        """How many entries are held."""
        return len(self._entries)

    def add(self, key: bytes, rest: bytes, value: bytes) -> None:
        """Add one entry: its key, what follows the state's id in the stored key, its value."""
        self._entries.append((key, rest, value))
        self.bytes += _ENTRY_BYTES + len(key) + len(rest) + len(value)

    def take(self, group: int) -> pa.RecordBatch:
        """Everything as rows of this key group; the buffer is empty afterwards.

        Raises ValueError where an entry is not of this state.
        """
        keys: Sequence[bytes]
        entries, times = self._entries, None
        self._entries = []
        self.bytes = 0
        if self.meta.ttl_ms is not None:
            times, entries = self._stamps.split(entries)
            if not entries:
                return pa.RecordBatch.from_pylist([], schema=self.schema)
        keys, rests, values = zip(*entries, strict=True)
        try:
            if self.meta.kind == "timers":
                keys, columns = self._timers(keys, rests, values)
            else:
                columns = self._columns(rests, values)
            if times is not None:
                columns.append(pa.array(times, pa.int64()))
            # Each key once: lists and maps have many entries of it.
            known = {raw: self._codec.decode(raw) for raw in dict.fromkeys(keys)}
            by_column = zip(*(known[raw] for raw in keys), strict=True)
            mine = [to_arrow(t, found) for t, found in zip(self._types, by_column, strict=True)]
        except _NOT_OF_THE_TYPE as error:
            raise ValueError(str(error)) from error
        groups = pa.array(np.full(len(keys), group, np.int32))
        return pa.RecordBatch.from_arrays([groups, *mine, *columns], schema=self.schema)

    def _columns(self, rests: Sequence[bytes], values: Sequence[bytes]) -> list[pa.Array]:
        column = to_arrow(self._type, list(map(self._decode, values)))
        namespaces, rests = self._namespaces.split(rests)
        return [*namespaces, *self._places(rests), column]

    def _places(self, rests: Sequence[bytes]) -> list[pa.Array]:
        """The columns that say where in a list or map a value is; none for a single value."""
        if self.meta.kind == "raw_keyed":
            return [pa.array([int.from_bytes(rest, "big") for rest in rests], pa.int64())]
        if self.meta.key_type is not None:
            codec = KeyCodec([self.meta.key_type])
            keys = [codec.decode(rest)[0] for rest in rests]
            return [to_arrow(parse_type(self.meta.key_type), keys)]
        size = _POSITION_BYTES if self.meta.kind in LIST_KINDS else 0
        strange = next((rest for rest in rests if len(rest) != size), None)
        if strange is not None:
            raise ValueError(f"a stored key ends with {len(strange)} bytes instead of {size}")
        if not size:
            return []
        epochs = [decode_time(rest[:-_ORDINAL_BYTES]) for rest in rests]
        ordinals = [int.from_bytes(rest[-_ORDINAL_BYTES:], "big") for rest in rests]
        return [pa.array(epochs, pa.int64()), pa.array(ordinals, pa.int64())]

    def _timers(
        self, keys: Sequence[bytes], rests: Sequence[bytes], values: Sequence[bytes]
    ) -> tuple[Sequence[bytes], list[pa.Array]]:
        """A key and a row for each timer: of the packed ones, and of those with an entry each."""
        owners, kinds, times = [], [], []
        for key, rest, value in zip(keys, rests, values, strict=True):
            if rest:
                domain, time = entry_parts(rest)
                owners.append(key)
                kinds.append(TIMER_KINDS[domain])
                times.append(time)
                continue
            if not are_packed(value):
                continue  # entries follow
            packed = unpack_timers(value)
            if not any(packed):
                raise ValueError("a key has a value for timers and no timers")
            for kind, found in zip(TIMER_KINDS, packed, strict=True):
                owners += [key] * len(found)
                kinds += [kind] * len(found)
                times += found
        return owners, [pa.array(kinds, pa.string()), pa.array(times, pa.int64())]


class RowReader:
    """Makes entries of the rows of one state; batches come in the order of the file.

    `generation` is which of the types that the state is known to have had is the file's, counted
    from the oldest; 0 where the state begins anew with it.
    """

    def __init__(self, meta: FileMeta, path: str = "", generation: int = 0) -> None:
        self._namespaces = Namespaces(meta)
        self._stamps = Stamps(meta)
        self._meta = meta
        self._path = path
        self._sid = stored_id(meta)
        self._types = [parse_type(ddl) for ddl in meta.key_types]
        self._codec = KeyCodec(meta.key_types)
        self._encode = bytes if is_raw(meta) else _encoder(meta, generation)
        self._map_keys = KeyCodec([meta.key_type]) if meta.key_type is not None else None

    def entries(
        self, batches: Iterable[pa.RecordBatch], *, indexed: bool = True
    ) -> Iterator[Entries]:
        """The entries of all batches; CorruptState where a row cannot be of this state.

        With `indexed` also the index of what expires, which follows the entries of a batch.
        """
        try:
            if self._meta.kind == "timers":
                yield from self._timers(batches)
                return
            for batch in batches:
                keys, values = self.of_batch(batch)
                yield keys, values
                if indexed and (index := self._stamps.index(keys, values)):
                    yield index, [b""] * len(index)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise CorruptState(
                f"a row is not of its state's type: state={self._meta.state} problem={error}",
                self._path,
                "use another savepoint",
            ) from error

    def of_batch(self, batch: pa.RecordBatch) -> Entries:
        """The entries of one batch; not for timers. Raises ValueError or TypeError."""
        sid = self._sid
        prefixes = self.prefixes(batch)
        values = from_arrow(parse_type(self._meta.type), batch.column("value"))
        raw = [self._encode(value) for value in values]
        if self._meta.ttl_ms is not None:
            raw = self._stamps.put_back(batch, raw)
        rests = self._rests(batch)
        if self._meta.namespace_types:
            spaces = self._namespaces.of_rows(batch)
            rests = [space + rest for space, rest in zip(spaces, rests, strict=True)]
        return [p + sid + rest for p, rest in zip(prefixes, rests, strict=True)], raw

    def prefixes(self, batch: pa.RecordBatch) -> list[bytes]:
        """What the stored keys of each row start with."""
        encode = self._codec.encode
        groups = batch.column("key_group").to_pylist()
        if self._meta.kind in SIDE_KINDS:
            return list(side_prefixes(self._meta, groups))
        return [key_prefix(g, encode(k)) for g, k in zip(groups, self._keys(batch), strict=True)]

    def _keys(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        columns = [from_arrow(t, batch.column(1 + n)) for n, t in enumerate(self._types)]
        return zip(*columns, strict=True)

    def _rests(self, batch: pa.RecordBatch) -> Sequence[bytes]:
        if self._map_keys is not None and self._meta.key_type is not None:
            keys = from_arrow(parse_type(self._meta.key_type), batch.column("map_key"))
            encode = self._map_keys.encode
            return [encode((key,)) for key in keys]
        if self._meta.kind == "raw_keyed":
            return [_ordinal(piece) for piece in batch.column("piece").to_pylist()]
        if self._meta.kind not in LIST_KINDS:
            return [b""] * batch.num_rows
        epochs = batch.column("list_epoch").to_pylist()
        ordinals = batch.column("list_ordinal").to_pylist()
        return [
            encode_time(epoch) + _ordinal(ordinal)
            for epoch, ordinal in zip(epochs, ordinals, strict=True)
        ]

    def _timers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Entries]:
        """What is stored for the timers of each key, and one index entry for each timer."""
        keys: list[bytes] = []
        values: list[bytes] = []
        # Rows of one key lie together, also over the border of two batches.
        for prefix, found in groupby(self._timer_rows(batches), key=itemgetter(0)):
            timers = [(kind, time) for _, kind, time in found]
            if timers != sorted(set(timers)):
                raise ValueError(f"timers of a key are out of order or doubled: {timers[:9]}")
            group, key = int.from_bytes(prefix[:2], "big"), prefix[KEY_AT:]
            by_kind = ([t for k, t in timers if k == one] for one in TIMER_KINDS)
            for rest, value in stored_timers(*by_kind):
                keys.append(prefix + self._sid + rest)
                values.append(value)
            keys += [timer_entry(group, time, key, _INDEX_OF[kind]) for kind, time in timers]
            values += [b""] * len(timers)
            if len(keys) >= _PAGE:
                yield keys, values
                keys, values = [], []
        if keys:
            yield keys, values

    def _timer_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, str, int]]:
        for batch in batches:
            kinds, times = batch.column("kind").to_pylist(), batch.column("time").to_pylist()
            if strange := set(kinds) - _INDEX_OF.keys():
                raise ValueError(f"timers of a kind that this moorage does not know: {strange}")
            yield from zip(self.prefixes(batch), kinds, times, strict=True)


def _encoder(meta: FileMeta, generation: int) -> Encode:
    encode, mark = opaque_encoder(meta.type, meta.state), mark_of(generation)
    return (lambda value: mark + encode(value)) if mark else encode


def _ordinal(number: int) -> bytes:
    try:
        return number.to_bytes(_ORDINAL_BYTES, "big")
    except OverflowError as error:
        raise ValueError(f"list_ordinal is outside 0 to 4294967295: {number}") from error
