"""Namespaces and stamps as columns: what some states have in a file besides their values.

Decides the columns `namespace` (or `namespace_1`, ...) and `last_access`, and the way back to
stored bytes. What has expired at the time of the snapshot does not come into a file where that is
declared. Called for the rows of states that were declared with namespaces or with a time to live.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from moorage_state.canonical.layout import namespace_columns
from moorage_state.canonicalspec import LAST_ACCESS, FileMeta
from moorage_state.columnar.arrow import from_arrow, to_arrow
from moorage_state.keyed.expiry import NEVER, due_time, has_expired, split_stamp, stamp_bytes
from moorage_state.keyed.namespaces import namespace_bytes, namespace_codec, split_namespace
from moorage_state.keylayout import expiry_entry
from moorage_state.types import parse_type

__all__ = ["Namespaces", "Stamps"]

Stored = tuple[bytes, bytes, bytes]
"""A key, what follows the state's id in the stored key, and the value."""


class Namespaces:
    """The namespaces of one state."""

    def __init__(self, meta: FileMeta) -> None:
        self._columns = namespace_columns(meta)
        self._types = [parse_type(ddl) for ddl in meta.namespace_types]
        self._codec = namespace_codec(meta.namespace_types) if self._columns else None

    def split(self, rests: Sequence[bytes]) -> tuple[list[pa.Array], Sequence[bytes]]:
        """The columns, and what follows the namespace in each stored key.

        Raises:
            ValueError: when a stored key has no namespace.
        """
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
        """When each entry was last used, and the entries without stamps.

        Those that have expired only where they are not to be left out. What was written while the
        state had no time to live begins its time now.
        """
        now_ms, ttl_ms = self._meta.now_ms, self._ttl_ms
        over_at = now_ms if self._meta.leaves_out_expired else 0
        times: list[int] = []
        kept: list[Stored] = []
        for key, rest, raw in entries:
            stamp, value = split_stamp(raw)
            if over_at and has_expired(stamp, ttl_ms, over_at):
                continue
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


_POSITION_BYTES = 12
