"""The index of timers in memory, over a database that keeps it as well.

Decides nothing but where timers are looked for: all writes go to the database, whose snapshots hold
everything, and those of timers to the index too. Called by whoever opens a range's database, where
`timer-service.factory` is HEAP.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from moorage_state.database import PendingCopy, RangeCursor, RangeDatabase, RangeView
from moorage_state.deltas import Frame
from moorage_state.keylayout import EVENT_TIMERS, PROCESSING_TIMERS
from moorage_state.memory.database import MemoryDatabase
from moorage_state.memory.limits import HeapBudget

_KINDS = {EVENT_TIMERS, PROCESSING_TIMERS}
_FIRST, _BEYOND = min(_KINDS), max(_KINDS) + 1
_KIND_AT = 2
_PAGE_ENTRIES, _PAGE_BYTES = 20_000, 8 << 20
_METADATA = b"\xff\xff"


class HeapTimers:
    """See `RangeDatabase`; a snapshot of it is one of the database below."""

    def __init__(self, below: RangeDatabase) -> None:
        self._below = below
        self.path: Path = below.path
        self.bounded = below.bounded
        self._index = MemoryDatabase(below.path, HeapBudget())
        for frame in _timers_of(below):
            self._index.apply([frame])

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

    def get(self, key: bytes) -> bytes | None:
        """See `RangeView.get`."""
        return self._below.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `RangeView.get_many`."""
        return self._below.get_many(keys)

    def cursor(self, lower: bytes, upper: bytes) -> AbstractContextManager[RangeCursor]:
        """See `RangeView.cursor`."""
        return self._below.cursor(lower, upper)

    def make_room(self, frames: Callable[[], Iterable[Frame]], size: int) -> None:
        """See `RangeDatabase.make_room`."""
        self._below.make_room(frames, size)

    def flush(self) -> None:
        """See `RangeDatabase.flush`."""
        self._below.flush()

    def checkpoint(self, path: Path) -> PendingCopy | None:
        """See `RangeDatabase.checkpoint`."""
        return self._below.checkpoint(path)

    def properties(self) -> dict[str, int]:
        """The database's, and how many timers are in memory."""
        return {**self._below.properties(), "heap-timers": self._index.properties()["entries"]}

    def size(self) -> int:
        """Bytes of the database; timers in memory are in it, too."""
        return self._below.size()

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
