"""A database some of whose files are in the store alone.

Decides what is fetched for a read, and before it; which files may go; and which slice of the last
level is compacted when. The first two levels, and what no checkpoint has yet, are always here:
RocksDB compacts those by itself. Called by the range, under its lock.
"""

import logging
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from operator import le
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from moorage_state import failpoints
from moorage_state.database import CROWDED, RangeCursor, StoredFiles
from moorage_state.deltas import Frame
from moorage_state.errors import CorruptState, LocalDiskError, Retryable, StoreUnavailable
from moorage_state.forst.compaction import Window, chosen_slice, pressure
from moorage_state.forst.files import CachedFile, DatabaseFiles, FileCache
from moorage_state.rocks.sliced import LAST_LEVEL, LevelFile, SlicedDatabase

_log = logging.getLogger(__name__)

_NAMED = re.compile(r"(\d+\.sst)")

_AHEAD = 8
"""Files that are fetched before they are needed."""

_FEW_KEYS = 4
"""Of a file that is away, so few are looked for first: its filter may say that there are none."""

_CHUNK_ENTRIES, _CHUNK_BYTES = 2048, 1 << 20
"""What a cursor takes at once, so that one file after the other has to be here."""

_TRIES = 3

_SLICES_AT_ONCE = 2
"""Slices that are compacted after one epoch: the next one waits for it."""

_WAITS_ABOVE = 2.0
"""How much too large the second level is when an epoch waits for what a compaction reads."""

_AFTER_FAILURE_SECONDS = 60.0
"""Until an epoch tries again to compact what the store, or the volume, did not let it."""

T = TypeVar("T")


class Segment(NamedTuple):
    """Keys, by their places in sorted order, and the file of the last level that may have them."""

    first: int
    end: int
    file: CachedFile | None


class ForStDatabase:
    """Implements `RangeDatabase` and `StoredDatabase` over a `SlicedDatabase`.

    Attributes:
        writes: how often it was written to.

    Args:
        stored: where those files are that are not here.
        copy: it is a copy that is only read; see `DatabaseFiles`.
        clock: monotonic seconds.
    """

    bounded = False

    def __init__(
        self,
        database: SlicedDatabase,
        cache: FileCache,
        stored: StoredFiles,
        *,
        copy: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path: Path = database.path
        self._database = database
        self._cache = cache
        self._files = DatabaseFiles(database.path, cache, stored, copy=copy)
        self.writes = 0
        self._clock = clock
        self._window: Window | None = None
        self._waits_from = clock()
        self._last: list[LevelFile] = []
        self._firsts: list[bytes] = []
        # RocksDB tries for ever to flush to a volume that is full.
        database.before_writes(partial(cache.make_room, path=database.path))
        self._look()
        # Every read needs them.
        first = [file.name for file in database.files() if file.level == 0]
        cache.prefetch(file for file in self._known(first) if not file.present)

    def get(self, key: bytes) -> bytes | None:
        """See `RangeView`."""
        return self.reading(lambda: self._database.get(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `RangeView`: from the files that are here first, while the others are fetched."""
        if not self._last or not keys:
            return self.reading(lambda: self._database.get_many(keys))
        if all(map(le, keys, islice(keys, 1, None))):
            return self._get_sorted(keys)
        order = sorted(range(len(keys)), key=keys.__getitem__)
        found: list[bytes | None] = [None] * len(keys)
        for at, value in zip(order, self._get_sorted([keys[at] for at in order]), strict=True):
            found[at] = value
        return found

    @contextmanager
    def cursor(self, lower: bytes, upper: bytes) -> Iterator[RangeCursor]:
        """See `RangeView`."""
        cursor = _Cursor(self, lower, upper)
        try:
            yield cursor
        finally:
            cursor.drop()

    def inner_cursor(self, lower: bytes, upper: bytes) -> AbstractContextManager[RangeCursor]:
        """A cursor that fails at what is not here."""
        return self._database.cursor(lower, upper)

    @property
    def timers(self) -> Self:
        """Where timers are looked for: here."""
        return self

    def apply(
        self,
        frames: Iterable[Frame],
        marker: tuple[bytes, bytes] | None = None,
        *,
        proven: bool = False,
    ) -> None:
        """See `RangeDatabase`; the volume must have room for the write buffers, too."""
        self.writes += 1
        self._database.apply(frames, marker, proven=proven)
        self._count()
        self._compact()

    def make_room(self, frames: Callable[[], Iterable[Frame]], size: int) -> None:
        """Nothing: the volume says when it is full, and nothing is lost by that."""

    def delete_range(self, start: bytes, end: bytes) -> None:
        """See `RangeDatabase`."""
        self.writes += 1
        self._database.delete_range(start, end)

    def flush(self) -> None:
        """See `RangeDatabase`. Other threads run meanwhile."""
        self._cache.make_room(self._database.buffered(), self.path)
        self._database.flush()
        self._count()

    def checkpoint(self, path: Path) -> None:
        """Hard-link a copy into `path`: of a file that is away, one that is away."""
        self._database.checkpoint(path)

    def properties(self) -> dict[str, int]:
        """RocksDB's counters, and those of the cache of files, which is one for all ranges."""
        cache = self._cache
        return {
            **self._database.properties(),
            "file-cache-hit": cache.hits,
            "file-cache-miss": cache.misses,
            "file-cache-evict": cache.evictions,
            "file-cache-used-bytes": cache.used,
            "file-cache-remaining-bytes": cache.remaining,
            CROWDED: int(cache.crowded(self.path)),
        }

    def size(self) -> int:
        """Bytes of state, wherever they are."""
        return self._database.size()

    def close(self) -> None:
        """See `RangeDatabase`."""
        self._files.close()
        self._database.close()

    def located(self, stored: StoredFiles) -> None:
        """See `StoredDatabase`."""
        files = self._database.files()
        sizes = {file.name: file.size for file in files}
        self._files.located(stored, sizes, {f.name for f in files if f.level == LAST_LEVEL})
        self._note(files)

    def whole(self, path: Path) -> AbstractContextManager[None]:
        """See `StoredDatabase`."""
        return self._files.whole(path)

    def frozen(self) -> AbstractContextManager[StoredFiles]:
        """See `StoredDatabase`."""
        return self._files.freeze()

    def evict(self, chosen: Callable[[str], bool] = lambda _: True) -> int:
        """Make ghosts of the files that are chosen by name, as far as they may; how many."""
        files = self._files
        return self._cache.evict(lambda file: file.owner is files and chosen(file.ref.name))

    def ahead(self, key: bytes, upper: bytes) -> None:
        """Fetch the files that a walk from `key` to `upper` comes to next."""
        at = max(0, bisect_right(self._firsts, key) - 1)
        names = (f.name for f in self._last[at : at + _AHEAD // 2] if f.first < upper)
        self._cache.prefetch(self._known(names))

    def reading(self, action: Callable[[], T]) -> T:
        """What `action` reads; files that it misses are fetched, and kept until it is through."""
        held: list[CachedFile] = []
        try:
            while True:
                try:
                    return action()
                except CorruptState as error:
                    file = self._missed(error)
                    if file is None or file in held:
                        raise  # no ghost: nobody truncates what the store does not have, or is held
                    self._files.pin([file])
                    held.append(file)
                    self._files.look_again(file)
                    self._cache.fetch(file)
        finally:
            self._files.unpin(held)

    def _missed(self, error: CorruptState) -> CachedFile | None:
        named = _NAMED.search(str(error))
        return self._files.files.get(named[1]) if named and error.path == str(self.path) else None

    def _get_sorted(self, keys: Sequence[bytes]) -> list[bytes | None]:
        segments = self._segments(keys)
        here = [one for one in segments if one.file is None or one.file.present]
        away = [one for one in segments if one.file is not None and not one.file.present]
        if not away:
            for one in segments:
                if one.file is not None:
                    self._cache.touch(one.file)
            return self.reading(lambda: self._database.get_many(keys))
        found: list[bytes | None] = [None] * len(keys)
        many = [one for one in away if one.end - one.first > _FEW_KEYS]
        self._fetch_ahead(many)
        for one in _joined(here):
            self._fill(found, keys, one)
        for one in here:
            if one.file is not None:
                self._cache.touch(one.file)
        missed = [
            one
            for one in away
            if one.end - one.first <= _FEW_KEYS and not self._found(found, keys, one)
        ]
        many += missed
        for at, one in enumerate(many):
            self._fetch_ahead(many[at:])
            self._fill(found, keys, one)
        return found

    def _fetch_ahead(self, segments: Sequence[Segment]) -> None:
        files = [one.file for one in segments[:_AHEAD] if one.file]
        if files:
            # More than half of what there is room for would go before it is read.
            fit = self._cache.share(self.path) // (2 * max(file.ref.size for file in files))
            self._cache.prefetch(files[: max(1, fit)])

    def _found(self, found: list[bytes | None], keys: Sequence[bytes], one: Segment) -> bool:
        """Read keys of a file that is away, if its filter says that it has none of them."""
        try:
            found[one.first : one.end] = self._database.get_many(keys[one.first : one.end])
        except CorruptState as error:
            if self._missed(error) is None:
                raise
            return False
        return True

    def _fill(self, found: list[bytes | None], keys: Sequence[bytes], one: Segment) -> None:
        asked = keys[one.first : one.end]
        if one.file is None:
            found[one.first : one.end] = self.reading(lambda: self._database.get_many(asked))
            return
        with self._files.held([one.file]):
            found[one.first : one.end] = self.reading(lambda: self._database.get_many(asked))
        self._cache.touch(one.file)

    def _segments(self, keys: Sequence[bytes]) -> list[Segment]:
        """The sorted `keys`, by the files of the last level."""
        segments: list[Segment] = []
        at = 0
        while at < len(keys):
            file = bisect_right(self._firsts, keys[at]) - 1
            following = self._firsts[file + 1] if file + 1 < len(self._firsts) else None
            end = len(keys) if following is None else bisect_left(keys, following, at)
            known = None
            if file >= 0 and keys[at] <= self._last[file].last:
                known = self._files.files.get(self._last[file].name)
            segments.append(Segment(at, end, known))
            at = end
        return segments

    def _compact(self) -> None:
        """Bring a slice of the second level down, where it has become too large.

        What it reads is fetched beside the epochs; nothing that is wrong with that, or with room
        for it, is a reason why a write should fail.
        """
        if not self._database.by_itself:
            if missing := self._upper_ghosts():
                # Not all at once: what is read meanwhile is fetched besides.
                self._cache.prefetch(missing[:_AHEAD])
                return
            self._database.compact_by_itself()
        for _ in range(_SLICES_AT_ONCE if self._clock() >= self._waits_from else 0):
            files = self._database.files()
            if (high := pressure(files, self._cache.share(self.path))) <= 1:
                break
            chosen = chosen_slice(files, self._window)
            self._window = chosen.window
            missing = [f for f in self._known(f.name for f in chosen.inputs) if not f.present]
            if missing and high < _WAITS_ABOVE:
                self._cache.prefetch(missing)
                break
            try:
                self.compact_slice()
            except (StoreUnavailable, LocalDiskError) as error:
                self._waits_from = self._clock() + _AFTER_FAILURE_SECONDS
                _log.warning("forst.compaction-put-off path=%s error=%s", self.path, error)

    def compact_slice(self) -> None:
        """Compact the slice that most of the second level lies in.

        Raises LocalDiskError: RocksDB could not, or there is no room; StoreUnavailable.
        """
        with self._files.held(self._upper_ghosts()):
            self._look()
        self._database.compact_by_itself()
        for _ in range(_TRIES):
            # Else what comes from there reaches further than it is known to.
            self.flush()
            self._database.drain()
            chosen = chosen_slice(self._database.files(), self._window)
            if not any(file.level < LAST_LEVEL for file in chosen.inputs):
                self._window = None
                return
            with self._files.held(self._known(file.name for file in chosen.inputs)):
                # Old and new files are here at the same time.
                self._cache.make_room(sum(file.size for file in chosen.inputs), self.path)
                failpoints.hit("forst.before_compaction")
                done = self._database.compact(chosen.first, chosen.last, anew=chosen.anew)
                failpoints.hit("forst.after_compaction")
                self._look()
            if done:
                self._window = None
                return
        raise LocalDiskError(f"compactions fail: path={self.path}; check this volume's health")

    def _upper_ghosts(self) -> list[CachedFile]:
        return [file for file in self._files.ghosts if not file.evictable]

    def _known(self, names: Iterable[str]) -> list[CachedFile]:
        found = (self._files.files.get(name) for name in names)
        return [file for file in found if file is not None]

    def _look(self) -> None:
        files = self._database.files()
        sizes = {file.name: file.size for file in files}
        self._files.look(sizes, {file.name for file in files if file.level == LAST_LEVEL})
        self._note(files)

    def _note(self, files: list[LevelFile]) -> None:
        self._last = sorted((f for f in files if f.level == LAST_LEVEL), key=lambda f: f.first)
        self._firsts = [file.first for file in self._last]

    def _count(self) -> None:
        away = sum(file.ref.size for file in self._files.ghosts)
        local = max(0, self._database.size() - away)
        saved = sum(file.ref.size for file in self._files.files.values()) - away
        self._cache.note(self._files, local, max(0, local - saved))


def _joined(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Neighbours as one."""
    begun: Segment | None = None
    for one in segments:
        if begun is not None and begun.end == one.first:
            begun = Segment(begun.first, one.end, None)
            continue
        if begun is not None:
            yield begun
        begun = Segment(one.first, one.end, None)
    if begun is not None:
        yield begun


class _Cursor:
    """A cursor that fetches what it comes to. See `RangeCursor`.

    An iterator of RocksDB that met a file which could not be opened fails there for ever, so
    another one takes its place. It has the same view as long as nothing was written.
    """

    __slots__ = ("_database", "_inner", "_lower", "_open", "_upper", "_writes")

    def __init__(self, database: ForStDatabase, lower: bytes, upper: bytes) -> None:
        self._database = database
        self._lower = lower
        self._upper = upper
        self._writes = database.writes
        self._begin()

    def seek(self, key: bytes) -> bytes | None:
        """See `RangeCursor`."""
        return self._again(lambda: self._inner.seek(key), lambda: None)

    def key(self) -> bytes | None:
        """See `RangeCursor`."""
        return self._inner.key()

    def take(self, end: bytes, entries: int, size: int) -> tuple[list[bytes], list[bytes], bool]:
        """See `RangeCursor`."""
        keys: list[bytes] = []
        values: list[bytes] = []
        while True:
            most, room = min(_CHUNK_ENTRIES, entries - len(keys)), min(_CHUNK_BYTES, size)
            more, their, complete = self._from_here(partial(self._take, end, most, room))
            keys += more
            values += their
            size -= sum(map(len, more)) + sum(map(len, their))
            if complete or len(keys) >= entries or size <= 0:
                return keys, values, complete
            # A long walk.
            self._database.ahead(keys[-1], min(end, self._upper))

    def take_keys(self, end: bytes, entries: int) -> list[bytes]:
        """See `RangeCursor`."""
        keys: list[bytes] = []
        while len(keys) < entries:
            asked = min(_CHUNK_ENTRIES, entries - len(keys))
            more = self._from_here(partial(self._take_keys, end, asked))
            keys += more
            if len(more) < asked:
                break
        return keys

    def _take(self, end: bytes, most: int, room: int) -> tuple[list[bytes], list[bytes], bool]:
        return self._inner.take(end, most, room)

    def _take_keys(self, end: bytes, most: int) -> list[bytes]:
        keys = self._inner.take_keys(end, most)
        # The entry that it stands at now may lie in a file that is not here.
        self._inner.key()
        return keys

    def _from_here(self, action: Callable[[], T]) -> T:
        """What `action` takes; it begins at the same entry however often it is done."""
        here = self._inner.key()
        return self._again(action, lambda: here is not None and self._inner.seek(here))

    def _again(self, action: Callable[[], T], back: Callable[[], object]) -> T:
        begun = False

        def attempt() -> T:
            nonlocal begun
            if begun:
                self._renew()
                back()
            begun = True
            return action()

        return self._database.reading(attempt)

    def _renew(self) -> None:
        if self._database.writes != self._writes:
            raise Retryable(
                f"a scan came to a file that is not here, after a write: "
                f"path={self._database.path}; begin it again"
            )
        self.drop()
        self._begin()

    def _begin(self) -> None:
        self._open = self._database.inner_cursor(self._lower, self._upper)
        self._inner = self._open.__enter__()

    def drop(self) -> None:
        """Let go of the database."""
        self._open.__exit__(None, None, None)
