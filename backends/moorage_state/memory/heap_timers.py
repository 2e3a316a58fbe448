"""The index of timers in memory, over a database that keeps it as well.

Decides nothing but where timers are looked for: all writes go to the database, whose snapshots hold
everything, and those of timers to the index too. Called by whoever opens a range's database, where
`timer-service.factory` is HEAP.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from moorage_state.database import RangeDatabase, RangeView, StandingDatabase
from moorage_state.deltas import Frame
from moorage_state.keylayout import EVENT_TIMERS, PROCESSING_TIMERS
from moorage_state.memory.database import MemoryDatabase
from moorage_state.memory.limits import HeapBudget

_KINDS = {EVENT_TIMERS, PROCESSING_TIMERS}
_FIRST, _BEYOND = min(_KINDS), max(_KINDS) + 1
_KIND_AT = 2
_PAGE_ENTRIES, _PAGE_BYTES = 20_000, 8 << 20
_METADATA = b"\xff\xff"


class Below(RangeDatabase, StandingDatabase, Protocol):
    """What there can be timers in memory over."""


class HeapTimers:
    """See `RangeDatabase` and `StandingDatabase`; a snapshot of it is one of the database below."""

    def __init__(self, below: Below) -> None:
        self._below = below
        self.path: Path = below.path
        self.bounded = below.bounded
        self._index = MemoryDatabase(below.path, HeapBudget())
        for frame in _timers_of(below):
            self._index.apply([frame])
        # The very methods of the database: all reads of all states go through them.
        self.get, self.get_many, self.cursor = below.get, below.get_many, below.cursor
        self.make_room, self.flush = below.make_room, below.flush
        self.checkpoint, self.size = below.checkpoint, below.size
        self.standing = below.standing

    @property
    def timers(self) -> RangeView:
        """Where timers are looked for."""
        return self._index

    def apply(
        self,
        frames: Iterable[Frame],
        marker: tuple[bytes, bytes] | None = None,
        *,
        proven: bool = False,
    ) -> None:
        """See `RangeDatabase`: the index follows when the database has it all."""
        seen: list[Frame] = []

        def passing() -> Iterator[Frame]:
            for frame in frames:
                seen.append(_only_timers(frame))
                yield frame

        self._below.apply(passing(), marker, proven=proven)
        self._index.apply(seen)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete every key in [start, end)."""
        if start < end:
            self.apply([Frame([(start, end)], [], [])])

    def properties(self) -> dict[str, int]:
        """The database's, and how many timers are in memory."""
        return {**self._below.properties(), "heap-timers": self._index.properties()["entries"]}

    def close(self) -> None:
        """Close both."""
        self._index.close()
        self._below.close()


def _only_timers(frame: Frame) -> Frame:
    mine = [
        (key, value)
        for key, value in zip(frame.keys, frame.values, strict=True)
        if len(key) > _KIND_AT and key[_KIND_AT] in _KINDS
    ]
    return Frame(frame.ranges, [key for key, _ in mine], [value for _, value in mine])


def _timers_of(database: RangeDatabase) -> Iterator[Frame]:
    """All timers in a database, a page at a time; whatever else is there is passed over."""
    with database.cursor(b"", _METADATA) as cursor:
        found = cursor.seek(b"")
        while found is not None:
            group = found[:_KIND_AT]
            found = cursor.seek(group + bytes([_FIRST]))
            if found is None or found[:_KIND_AT] != group:
                continue
            complete = False
            while not complete:
                end = group + bytes([_BEYOND])
                keys, values, complete = cursor.take(end, _PAGE_ENTRIES, _PAGE_BYTES)
                if keys:
                    yield Frame([], keys, list(values))
            following = int.from_bytes(group, "big") + 1
            found = cursor.seek(following.to_bytes(_KIND_AT, "big"))
