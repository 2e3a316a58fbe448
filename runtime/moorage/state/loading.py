"""Rows into a scratch database, which sorts them; refuses two rows for one place.

Decides what a duplicate is: two values of a key, two entries of a map under one key, two elements
of a list at one position, two timers of a key at one time. Called by the writer, batch by batch,
so that what is written may be larger than memory.
"""

from collections.abc import Iterable
from itertools import chain, pairwise

import pyarrow as pa

from moorage_state.canonical import SIDE_KINDS, TIMER_KINDS, FileMeta, RowReader, stored_id
from moorage_state.database import RangeDatabase
from moorage_state.deltas import Frame
from moorage_state.errors import UserError
from moorage_state.keyed.timers import pack_timers, unpack_timers
from moorage_state.keys import KeyCodec

__all__ = ["Loader"]

_KEY_AT = 7


class Loader:
    """Puts the rows of one state into a database; every batch has the columns of its file."""

    def __init__(self, database: RangeDatabase, meta: FileMeta) -> None:
        self._database = database
        self._meta = meta
        self._sid = stored_id(meta)
        self._reader = RowReader(meta)
        self._codec = KeyCodec(meta.key_types)

    def load(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add all rows.

        Raises:
            UserError: a value is not of the state's type, or a place is taken.
        """
        add = self._add_timers if self._meta.kind == "timers" else self._add
        for batch in batches:
            try:
                add(batch)
            except (ValueError, TypeError, ArithmeticError) as error:
                raise UserError(
                    f"a row cannot be state: {self._where()} problem={error}"
                ) from error

    def _add(self, batch: pa.RecordBatch) -> None:
        keys, values = self._reader.of_batch(batch)
        ordered = sorted(keys)
        for one, other in pairwise(ordered):
            if one == other:
                raise self._doubled(one)
        found = self._database.get_many(ordered)
        for key, value in zip(ordered, found, strict=True):
            if value is not None:
                raise self._doubled(key)
        self._database.apply([Frame([], keys, list(values))])

    def _add_timers(self, batch: pa.RecordBatch) -> None:
        """Only the packed timers; the export does not read their index."""
        added: dict[bytes, tuple[list[int], list[int]]] = {}
        kinds, times = batch.column("kind").to_pylist(), batch.column("time").to_pylist()
        if strange := set(kinds).difference(TIMER_KINDS):
            raise ValueError(f"kind of a timer is one of {TIMER_KINDS}: got={sorted(strange)}")
        for prefix, kind, time in zip(self._reader.prefixes(batch), kinds, times, strict=True):
            mine = added.setdefault(prefix + self._sid, ([], []))
            mine[TIMER_KINDS.index(kind)].append(time)
        keys = sorted(added)
        packed: list[bytes | None] = []
        for key, before in zip(keys, self._database.get_many(keys), strict=True):
            known = unpack_timers(before) if before is not None else ([], [])
            merged = [sorted(chain(*both)) for both in zip(added[key], known, strict=True)]
            if any(len(set(times)) != len(times) for times in merged):
                raise self._doubled(key)
            packed.append(pack_timers(*merged))
        self._database.apply([Frame([], keys, packed)])

    def _doubled(self, entry: bytes) -> UserError:
        if self._meta.kind in SIDE_KINDS:
            return UserError(f"two rows have one place: {self._where()}; leave one of them")
        at = _KEY_AT + int.from_bytes(entry[3:_KEY_AT], "big")
        key = self._codec.decode(entry[_KEY_AT:at])
        what = {
            "value": "a key has two values",
            "reducing": "a key has two values",
            "aggregating": "a key has two accumulators",
            "map": "a key has two values under one map key",
            "list": "a key has two list elements at one position",
            "timers": "a key has two timers of one time",
        }[self._meta.kind]
        return UserError(f"{what}: {self._where()} key={key!r:.200}; leave one of them")

    def _where(self) -> str:
        return f"uid={self._meta.uid} state={self._meta.state}"
