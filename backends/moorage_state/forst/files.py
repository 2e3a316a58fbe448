"""Which SST files of the open databases are on the volume, and which are ghosts.

A ghost is a file that was truncated in place: RocksDB keeps its descriptor, a read of it fails and
names it, and its bytes are written back into the same inode. A file is made one only if the last
completed checkpoint lists it. Decides what goes when the volume gets full, and verifies the digest
of whatever comes back. Called by `ForStDatabase`, fetches run beside it. Thread-safe: one lock for
who is where, held while a file is truncated and never while one is fetched.
"""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from moorage_state import failpoints
from moorage_state.database import StoredFile, StoredFiles
from moorage_state.errors import CorruptState, LocalDiskError, ObjectNotFound, disk_errors
from moorage_state.snapshots import FileRef
from moorage_state.stores import ObjectStore

_FETCHERS = 8
_SPARE_BYTES = 1 << 20
"""What no fetch may use up of a volume: RocksDB's MANIFEST and logs have to be written."""

_REMEMBERED_FILES = 20_000
_LINKED = ".linked"
_ADVICE = "restore an older checkpoint, or this object from a backup of the store"


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How much of the volume the files of one process may have.

    Attributes:
        size: bytes of files, 0 for as many as the volume has.
        reserve: bytes of the volume that stay free.
        access_before_promote: batches that must have read a file before it counts as often used.
        promote_limit: how often a file may lose that again before it does not count so any more.
    """

    size: int = 0
    reserve: int = 256 << 20
    access_before_promote: int = 6
    promote_limit: int = 3


@dataclass(slots=True, eq=False)
class CachedFile:
    """A file of an open database that the store has, too.

    Attributes:
        place: where the store has it, by the last completed checkpoint.
        present: whether its bytes are here; else it is a ghost.
        evictable: whether it may become one: compactions that start by themselves read the others.
        near: another link of the file it was made from, which may have the bytes.
        pins: reads and compactions that count on it.
        queued: whether it is to be fetched before anybody asks for it.
        arrival: its fetch, while it runs.
    """

    owner: "DatabaseFiles"
    place: StoredFile
    present: bool
    evictable: bool = False
    near: Path | None = None
    pins: int = 0
    accesses: int = 0
    demotions: int = 0
    queued: bool = False
    arrival: Future[None] | None = None

    @property
    def ref(self) -> FileRef:
        """As its checkpoint lists it."""
        return self.place.ref

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.owner.path / self.ref.name

    @property
    def may_go(self) -> bool:
        """Whether nobody counts on it."""
        return not self.pins and self.owner.may_go(self.ref.name)


class FileCache:
    """The files of all databases of one process. Made once in each.

    Files are evicted by least recent use. Those that were read by many batches are in a list of
    their own, of half the cache at most, which a scan over everything does not wash out.

    Args:
        free: bytes that are free on the volume of a path.
    """

    def __init__(self, limits: CacheLimits, free: Callable[[Path], int] | None = None) -> None:
        self._limits = limits
        self._free = free or _free_bytes
        self.lock = threading.Lock()
        self._refilling = threading.Lock()
        self._cold: OrderedDict[CachedFile, None] = OrderedDict()
        self._hot: OrderedDict[CachedFile, None] = OrderedDict()
        self._hot_bytes = 0
        self._local: dict[DatabaseFiles, int] = {}
        self._pool: ThreadPoolExecutor | None = None
        # What no completed checkpoint lists.
        self._unsaved: dict[DatabaseFiles, int] = {}
        self.hits = 0
        self.misses = 0
        self.evictions = 0

    @property
    def used(self) -> int:
        """Bytes of files on the volume."""
        return sum(self._local.values())

    @property
    def remaining(self) -> int:
        """Bytes until something is evicted, 0 where only the volume is the limit."""
        return max(0, self._limits.size - self.used) if self._limits.size else 0

    def share(self, path: Path) -> int:
        """Bytes that one database may have, if all have as many."""
        with self.lock:
            used, databases = self.used, max(1, len(self._local))
        room = max(0, used + self._free(path) - self._limits.reserve)
        return min(room, self._limits.size or room) // databases

    def crowded(self, path: Path) -> bool:
        """Whether a volume has more of what no checkpoint lists than there is room for besides."""
        with self.lock:
            unsaved = sum(self._unsaved.values())
            may_go = sum(file.ref.size for files in (self._cold, self._hot) for file in files)
        return unsaved > may_go + max(0, self._free(path) - self._limits.reserve)

    def fetch(self, file: CachedFile) -> None:
        """Have the bytes of `file` here; returns when they are.

        Raises:
            CorruptState: the store's object is missing or damaged; names it.
            StoreUnavailable: the store does not answer.
            LocalDiskError: there is no room, even without everything that can be evicted.
        """
        with self.lock:
            file.queued = False
            if file.present:
                return
            arrival, mine = file.arrival, file.arrival is None
            if arrival is None:
                arrival = file.arrival = Future()
        if not mine:
            arrival.result()
            return
        try:
            data = _read(file)
            failpoints.hit("forst.before_refill")
            self._refill(file, data)
        except BaseException as error:
            with self.lock:
                file.arrival = None
            arrival.set_exception(error)
            raise
        arrival.set_result(None)

    def prefetch(self, files: Iterable[CachedFile]) -> None:
        """Begin to fetch; what fails is met by who needs it."""
        for file in files:
            if file.present or file.queued or file.arrival is not None:
                continue
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_FETCHERS, "forst-fetch")
            file.queued = True
            self._pool.submit(self._fetch_queued, file)

    def touch(self, file: CachedFile) -> None:
        """A batch has read `file`."""
        with self.lock:
            self._touch(file)

    def make_room(self, size: int, path: Path) -> None:
        """Evict until `size` bytes more fit; LocalDiskError if the volume cannot hold them."""
        with self.lock:
            self.trim(path, size)
            free = self._free(path)
        if free < size + _SPARE_BYTES:
            raise LocalDiskError(
                f"the volume is full of state that is not in the store yet: path={path} "
                f"free={free} needed={size + _SPARE_BYTES}; use a larger volume, or take "
                f"checkpoints more often"
            )

    def note(self, files: "DatabaseFiles", local: int, unsaved: int) -> None:
        """The files of one database take `local` bytes; what is above the limit goes.

        Args:
            unsaved: how many of them no completed checkpoint lists.
        """
        with self.lock:
            self._local[files], self._unsaved[files] = local, unsaved
            self.trim(files.path)

    def trim(self, path: Path, size: int = 0) -> None:
        """Evict until `size` bytes more fit, as far as that goes; under the lock."""
        while self._is_short(size, path) and self._evict_one():
            pass

    def admit(self, file: CachedFile) -> None:
        """Count a file that may be evicted; under the lock."""
        if file.present and file.evictable and file not in self._hot:
            self._cold.setdefault(file)

    def forget(self, file: CachedFile) -> None:
        """A file is none of an open database any more; under the lock."""
        self._cold.pop(file, None)
        if file in self._hot:
            del self._hot[file]
            self._hot_bytes -= file.ref.size

    def drop(self, files: "DatabaseFiles") -> None:
        """A database was closed."""
        with self.lock:
            for file in files.files.values():
                self.forget(file)
            self._local.pop(files, None)
            self._unsaved.pop(files, None)

    def evict(self, chosen: Callable[[CachedFile], bool]) -> int:
        """Make ghosts of those files that are chosen and not in use; how many."""
        with self.lock:
            found = [f for f in (*self._cold, *self._hot) if f.may_go and chosen(f)]
            for file in found:
                self._truncate(file)
        return len(found)

    def _fetch_queued(self, file: CachedFile) -> None:
        # Who needed it may have fetched it, and it may have gone again.
        if file.queued:
            # Whoever needs the file asks for it again, and hears what is wrong.
            with suppress(Exception):
                self.fetch(file)

    def _refill(self, file: CachedFile, data: bytes) -> None:
        # One after the other: two that looked for room at once would both take the same, and what
        # is being written can make no room for a third.
        with self._refilling:
            self.make_room(len(data), file.path.parent)
            try:
                write_in_place(file.path, data)
            except FileNotFoundError:
                # Its database was closed, or compacted it away.
                data = b""
            with self.lock:
                file.arrival = None
                if data:
                    file.present = True
                    if self._local.get(file.owner) is not None:
                        self._local[file.owner] += len(data)
                    self.misses += 1
                    if file.owner.files.get(file.ref.name) is file:
                        self.admit(file)

    def _is_short(self, size: int, path: Path) -> bool:
        limits = self._limits
        if limits.size and self.used + size > limits.size:
            return True
        return limits.reserve > 0 and self._free(path) - size < limits.reserve

    def _evict_one(self) -> bool:
        """Make a ghost of the file that was not read for longest; under the lock."""
        for files in (self._cold, self._hot):
            for file in files:
                if file.may_go:
                    self._truncate(file)
                    return True
        return False

    def lost(self, file: CachedFile) -> None:
        """A file has become a ghost; under the lock."""
        self.forget(file)
        file.accesses = 0
        file.present = False
        if file.owner in self._local:
            self._local[file.owner] -= file.ref.size

    def _truncate(self, file: CachedFile) -> None:
        failpoints.hit("forst.before_evict")
        with disk_errors("evict a file", file.path), suppress(FileNotFoundError):
            os.truncate(file.path, 0)
        self.lost(file)
        self.evictions += 1

    def _touch(self, file: CachedFile) -> None:
        self.hits += 1
        file.accesses += 1
        if file in self._hot:
            self._hot.move_to_end(file)
            return
        if file not in self._cold:
            return
        limits = self._limits
        if file.accesses < limits.access_before_promote or file.demotions >= limits.promote_limit:
            self._cold.move_to_end(file)
            return
        del self._cold[file]
        self._hot[file] = None
        self._hot_bytes += file.ref.size
        while self._hot_bytes > max(limits.size, self.used) // 2 and len(self._hot) > 1:
            self._demote(next(iter(self._hot)))

    def _demote(self, file: CachedFile) -> None:
        self.forget(file)
        file.accesses, file.demotions = 0, file.demotions + 1
        self._cold[file] = None


class DatabaseFiles:
    """The SST files of one open database that the store has.

    Args:
        path: the database's directory.
        copy: it is one of a copy, see `detach`; nothing is compacted there, so that all may go.

    """

    def __init__(
        self, path: Path, cache: FileCache, stored: StoredFiles, *, copy: bool = False
    ) -> None:
        self.path = path
        self.cache = cache
        self.files: dict[str, CachedFile] = {}
        self._copy = copy
        self._stored = stored
        # By each copy that is read: what it has from the store, so that this may go here.
        self._frozen: list[dict[str, StoredFile]] = []
        self._places: OrderedDict[str, StoredFile] = OrderedDict()
        self._remember(stored)
        with disk_errors("look at a database's files", path):
            for name, place in self._places.items():
                self._add(path / name, place)

    @property
    def ghosts(self) -> list[CachedFile]:
        """The files that are not here."""
        return [file for file in self.files.values() if not file.present]

    def look(self, sizes: Mapping[str, int], bottom: Collection[str]) -> None:
        """Take note of the database's files, by name, and of those of its last level."""
        with self.cache.lock:
            for name in [name for name in self.files if name not in sizes]:
                self.cache.forget(self.files.pop(name))
            for name, file in self.files.items():
                file.evictable = self._copy or name in bottom
                self.cache.admit(file)
            ghosts = sum(f.ref.size for f in self.files.values() if not f.present)
            unsaved = sum(size for name, size in sizes.items() if name not in self.files)
        self.cache.note(self, sum(sizes.values()) - ghosts, unsaved)

    def located(
        self, stored: StoredFiles, sizes: Mapping[str, int], bottom: Collection[str]
    ) -> None:
        """A checkpoint is complete: what it lists may go, and comes back from there."""
        self._remember(stored)
        with self.cache.lock:
            for frozen in self._frozen:
                frozen.update((name, stored[name]) for name in frozen.keys() & stored.keys())
            for name, place in stored.items():
                if name not in sizes or not name.endswith(".sst"):
                    continue
                file = self.files.get(name)
                if file is None:
                    self.files[name] = CachedFile(self, place, present=True)
                else:
                    file.place = place
        self.look(sizes, bottom)

    @contextmanager
    def whole(self, path: Path) -> Iterator[None]:
        """Have the bytes of `path`, a file of a copy, here for the length of the with block.

        Raises what `FileCache.fetch` raises.
        """
        place = self._places.get(path.name)
        if place is None:
            yield
            return
        file = self.files.get(path.name)
        with ExitStack() as stack:
            if file is not None:
                stack.enter_context(self.held([file]))
            with disk_errors("look at a file of a copy", path):
                here = path.stat().st_size == place.ref.size
            if not here:
                # The database has it no more, perhaps since a moment: the copy alone needs it.
                files = DatabaseFiles(path.parent, self.cache, {})
                stack.enter_context(files.held([CachedFile(files, place, present=False)]))
            yield

    @contextmanager
    def freeze(self) -> Iterator[StoredFiles]:
        """See `StoredDatabase.frozen`."""
        with self.cache.lock:
            stored = dict(self._places)
            self._frozen.append(stored)
        try:
            yield stored
        finally:
            with self.cache.lock:
                self._frozen = [one for one in self._frozen if one is not stored]

    def newest_place(self, file: CachedFile) -> StoredFile:
        """Where the store has a file by now; whoever froze it for a copy hears of it, too."""
        return self._stored.get(file.ref.name, file.place) if self._copy else file.place

    def may_go(self, name: str) -> bool:
        """Whether every copy that is read has it from the store; under the lock."""
        return all(name in stored for stored in self._frozen)

    def look_again(self, file: CachedFile) -> None:
        """Notice that a file lacks bytes which should be here: someone else may have its inode."""
        where = disk_errors("look at a database's file", file.path)
        with where, self.cache.lock, suppress(FileNotFoundError):
            if file.present and file.path.stat().st_size < file.ref.size:
                self.cache.lost(file)

    @contextmanager
    def held(self, files: Collection[CachedFile]) -> Iterator[None]:
        """Fetch `files`, which stay for the length of the with block."""
        self.pin(files)
        try:
            self.cache.prefetch(files)
            for file in files:
                self.cache.fetch(file)
            yield
        finally:
            self.unpin(files)

    def pin(self, files: Iterable[CachedFile]) -> None:
        """Keep files from becoming ghosts."""
        with self.cache.lock:
            for file in files:
                file.pins += 1

    def unpin(self, files: Collection[CachedFile]) -> None:
        """Undo `pin`; what was too much for the cache goes."""
        if not files:
            return
        with self.cache.lock:
            for file in files:
                file.pins -= 1
            self.cache.trim(self.path)

    def close(self) -> None:
        """The database is closed; idempotent."""
        self.cache.drop(self)

    def _add(self, path: Path, place: StoredFile) -> None:
        near = path.with_suffix(_LINKED)
        with suppress(FileNotFoundError):
            here = path.stat().st_size == place.ref.size
            self.files[path.name] = CachedFile(
                self, place, present=here, near=near if near.exists() else None
            )

    def _remember(self, stored: StoredFiles) -> None:
        for name, place in stored.items():
            if name.endswith(".sst"):
                self._places[name] = place
                self._places.move_to_end(name)
        while len(self._places) > max(_REMEMBERED_FILES, 2 * len(stored)):
            self._places.popitem(last=False)


def _read(file: CachedFile) -> bytes:
    """The bytes of a ghost, as its checkpoint says. Raises as `read_stored`."""
    if file.near is not None:
        # The digest tells whether a database has made a ghost of it meanwhile.
        with suppress(OSError):
            data = file.near.read_bytes()
            if _is_right(data, file.ref):
                return data
    while True:
        place = file.place
        try:
            return read_stored(*place)
        except CorruptState:
            # A newer checkpoint has it elsewhere, and the older one may be gone since.
            file.place = file.owner.newest_place(file)
            if file.place is place:
                raise


def detach(path: Path, stored: StoredFiles) -> None:
    """Give a copy in `path`, before it is opened, inodes of its own for what the store has.

    Those that it was linked from may become ghosts at any time.
    """
    with disk_errors("prepare a copy", path):
        for name in stored:
            file = path / name
            if name.endswith(".sst") and file.exists() and file.stat().st_nlink > 1:
                file.replace(file.with_suffix(_LINKED))
                file.touch()


def read_stored(store: ObjectStore, ref: FileRef) -> bytes:
    """The bytes of a file in a store, which are those that its checkpoint says.

    Raises CorruptState, StoreUnavailable.
    """
    where = f"{store.url}/{ref.key}" if ref.key else f"{ref.name}, inline in the manifest"
    for _ in range(2):  # one bad read on the way condemns nothing
        try:
            data = (
                ref.inline
                if ref.inline is not None
                else store.get(ref.key, offset=ref.offset, length=ref.size)
            )
        except ObjectNotFound as error:
            raise CorruptState("object of a checkpoint is missing", where, _ADVICE) from error
        if len(data) == ref.size and _is_right(data, ref):
            return data
    raise CorruptState(f"object of a checkpoint is damaged: file={ref.name}", where, _ADVICE)


def write_in_place(path: Path, data: bytes) -> None:
    """Give a ghost its bytes, in the inode that RocksDB has open; a ghost again after an error."""
    try:
        with disk_errors("refill a file", path), path.open("r+b", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
    except LocalDiskError as error:
        with suppress(OSError):
            os.truncate(path, 0)
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        raise


def _is_right(data: bytes, ref: FileRef) -> bool:
    if ref.xxh3:
        return xxhash.xxh3_128_hexdigest(data) == ref.xxh3
    return hashlib.sha256(data).hexdigest() == ref.sha256


def _free_bytes(path: Path) -> int:
    with disk_errors("ask for free space", path):
        found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
