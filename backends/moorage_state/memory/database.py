"""The state of one range in memory.

Called by the state server under the lock of the range. Decides what a snapshot costs: it keeps the
groups as they are, and whoever writes to a group that a snapshot has takes a copy of that group
first. So taking one costs the same whatever there is, and its files are written beside the epochs.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Self

from moorage_state.deltas import Frame
from moorage_state.errors import Bug, StateTooLarge
from moorage_state.memory.files import SNAPSHOT_FILE, HeapFile, wanted_groups, write_heap
from moorage_state.memory.groups import Group, run_of
from moorage_state.memory.limits import ENTRY_BYTES, HeapBudget
from moorage_state.memory.views import PREFIX, HeapCursor, HeapView

_NEVER = -1


class MemoryDatabase:
    """See `moorage_state.database.RangeDatabase`.

    Args:
        path: where a snapshot's file may lie, which is read; names the database in errors. Nothing
            is ever written there.
        budget: what the databases of this process share.
        within: the key groups to read, (first, last); all of them if not given.
        consume: delete the file when it was read.

    Raises:
        CorruptState: the file is damaged.
        StateTooLarge: what it holds is more than the budget has.
    """

    def __init__(
        self,
        path: Path,
        budget: HeapBudget,
        within: tuple[int, int] | None = None,
        *,
        consume: bool = False,
    ) -> None:
        self.path = path
        self.bounded = bool(budget.limit)
        self._budget = budget
        self._groups: dict[bytes, Group] = {}
        self._names: list[bytes] = []
        self._clock = count()
        self._now = next(self._clock)
        self._pins_lock = threading.Lock()
        self._pins: list[int] = []
        self._newest_pin = _NEVER
        self._root_pinned = False
        self._entries = 0
        self._bytes = 0
        self._copied = 0
        self._open = True
        file = path / SNAPSHOT_FILE
        if file.exists():
            try:
                self._load(file, within)
                if consume:
                    file.unlink()
            except BaseException:
                self.close()
                raise

    def get(self, key: bytes) -> bytes | None:
        """See `RangeView.get`."""
        return self._view().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `RangeView.get_many`."""
        return self._view().get_many(keys)

    @contextmanager
    def cursor(self, lower: bytes, upper: bytes) -> Iterator[HeapCursor]:
        """See `RangeView.cursor`."""
        view = self._view()
        pin = self._pin()
        try:
            with view.cursor(lower, upper) as cursor:
                yield cursor
        finally:
            self._unpin(pin)

    def apply(
        self,
        frames: Iterable[Frame],
        marker: tuple[bytes, bytes] | None = None,
        *,
        proven: bool = False,
    ) -> None:
        """See `RangeDatabase.apply`: unless `proven`, all are read before the first is written."""
        self._view()
        whole = frames if proven else list(frames)
        before = self._bytes
        try:
            for frame in whole:
                for start, end in frame.ranges:
                    self._delete_range(start, end)
                self._write(frame.keys, frame.values)
            if marker is not None:
                self._write([marker[0]], [marker[1]])
        except MemoryError as error:
            raise StateTooLarge(
                f"this process has no memory for more state: database={self.path} "
                f"bytes={self._bytes}; nothing is lost: give it more, or a "
                f"state.backend.hashmap.memory-limit below what it has"
            ) from error
        finally:
            self._budget.add(self._bytes - before)

    @property
    def timers(self) -> Self:
        """Where timers are looked for: here."""
        return self

    def make_room(self, frames: Callable[[], Iterable[Frame]], size: int) -> None:
        """See `RangeDatabase.make_room`."""
        if not self._budget.limit or self._budget.has_room(size + self._most_entries(size)):
            return
        grown = 0
        for frame in frames():
            grown += self._growth(frame)
        self._budget.check(grown, f"database={self.path}")

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete every key in [start, end)."""
        self.apply([Frame([(start, end)], [], [])])

    def flush(self) -> None:
        """Nothing: there are no files."""

    def checkpoint(self, path: Path) -> "HeapCopy":  # noqa: ARG002  told when it is written
        """See `RangeDatabase.checkpoint`: pins what there is."""
        view = self._view()
        return HeapCopy(view, self._bytes, self._pin(), self._unpin)

    def properties(self) -> dict[str, int]:
        """What there is, here and in the process, and what views of it cost."""
        return {
            "entries": self._entries,
            "bytes": self._bytes,
            "process-bytes": self._budget.used,
            "views": len(self._pins),
            "groups-copied": self._copied,
        }

    def size(self) -> int:
        """Bytes of keys, values and what keeps them."""
        return self._bytes

    def close(self) -> None:
        """Forget everything; copies that are being written keep what they need."""
        if self._open:
            self._open = False
            self._budget.add(-self._bytes)
            self._groups, self._names, self._bytes = {}, [], 0

    def _view(self) -> HeapView:
        if not self._open:
            raise Bug(f"the database is closed: path={self.path}")
        return HeapView(self.path, self._groups, self._names)

    # -- writing ---------------------------------------------------------------------------

    def _write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        entries = size = 0
        name, group = b"?", None
        for key, value in zip(keys, values, strict=True):
            if key[:PREFIX] != name or group is None:
                name = key[:PREFIX]
                group = self._own(name)
            if value is None:
                old = group.discard(key)
                if old >= 0:
                    entries -= 1
                    size -= len(key) + old
                continue
            old = group.put(key, value)
            if old < 0:
                entries += 1
                size += len(key) + len(value)
            else:
                size += len(value) - old
        self._count(entries, size)

    def _delete_range(self, start: bytes, end: bytes) -> None:
        if start >= end:
            return
        first, last = start[:PREFIX], end[:PREFIX]
        for name in self._names[bisect_left(self._names, first) :]:
            if name > last:
                break
            order = self._groups[name].ordered()
            for keys in order[run_of(order, start) :] if order else ():
                doomed = keys[bisect_left(keys, start) : bisect_left(keys, end)]
                if not doomed and keys[0] >= end:
                    break
                self._write(doomed, [None] * len(doomed))

    def _count(self, entries: int, size: int) -> None:
        self._entries += entries
        self._bytes += size + entries * ENTRY_BYTES

    def _own(self, name: bytes) -> Group:
        """The group, which no view has."""
        if self._root_pinned:
            self._groups, self._root_pinned = self._groups.copy(), False
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(self._now, {})
            # Another list: views go through the one that there was.
            self._names = self._names.copy()
            insort(self._names, name)
        elif group.born <= self._newest_pin:
            group = self._groups[name] = group.copy(self._now)
            self._copied += 1
        return group

    def _growth(self, frame: Frame) -> int:
        """By how much a frame makes the state larger."""
        last = dict(zip(frame.keys, frame.values, strict=True))
        grown = -sum(self._range_bytes(start, end, last) for start, end in frame.ranges)
        for (key, value), old in zip(last.items(), self.get_many(list(last)), strict=True):
            before = 0 if old is None else len(key) + len(old) + ENTRY_BYTES
            after = 0 if value is None else len(key) + len(value) + ENTRY_BYTES
            grown += after - before
        return grown

    def _range_bytes(self, start: bytes, end: bytes, besides: Mapping[bytes, object]) -> int:
        with self._view().cursor(start, end) as cursor:
            cursor.seek(start)
            keys, values, _ = cursor.take(end, self._entries, 1 << 62)
        return sum(
            len(key) + len(value) + ENTRY_BYTES
            for key, value in zip(keys, values, strict=True)
            if key not in besides
        )

    @staticmethod
    def _most_entries(size: int) -> int:
        """What the entries of a delta of `size` bytes may cost beside their bytes."""
        # Every key has more than four bytes: a key group, a kind, and what is stored under it.
        return size // 4 * ENTRY_BYTES

    # -- views -----------------------------------------------------------------------------

    def _pin(self) -> int:
        """Keep everything as it is for those who see this moment; `_unpin` ends it."""
        with self._pins_lock:
            pin = self._newest_pin = self._now
            self._pins.append(pin)
            self._now = next(self._clock)
        self._root_pinned = True
        return pin

    def _unpin(self, pin: int) -> None:
        with self._pins_lock:
            with suppress(ValueError):
                self._pins.remove(pin)
            self._newest_pin = max(self._pins, default=_NEVER)

    # -- files -----------------------------------------------------------------------------

    def _load(self, file: Path, within: tuple[int, int] | None) -> None:
        with HeapFile(file) as heap:
            for name, keys, values in heap.groups(wanted_groups(within)):
                size = sum(map(len, keys)) + sum(map(len, values))
                self._budget.check(size + len(keys) * ENTRY_BYTES, f"database={self.path}")
                self.apply([Frame([], keys, list(values))])
                if name not in self._groups:  # pragma: no cover - the file's own check
                    raise Bug(f"a group has entries of another: file={file} group={name!r}")


class HeapCopy:
    """See `moorage_state.database.PendingCopy`."""

    def __init__(self, view: HeapView, size: int, pin: int, unpin: Callable[[int], None]) -> None:
        self._view: HeapView | None = view
        self._size = size
        self._pin = pin
        self._unpin = unpin

    @property
    def bytes(self) -> int:
        """Bytes of the state in memory; the file has about a third of them less."""
        return self._size

    def view(self) -> HeapView:
        """See `PendingCopy.view`."""
        if self._view is None:
            raise Bug("a copy of state in memory is used after it was dropped")
        return self._view

    def write(self, path: Path, stopped: Callable[[], bool]) -> None:
        """See `PendingCopy.write`."""
        write_heap(self.view().groups(), path, stopped)

    def drop(self) -> None:
        """See `PendingCopy.drop`."""
        view, self._view = self._view, None
        if view is not None:
            self._unpin(self._pin)
