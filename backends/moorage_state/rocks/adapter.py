"""One RocksDB database: batched reads and writes, scans that never end silently.

Called by the state server under the lock of the range. Decides how the binding is used safely:
raw bytes only, no WAL, iterators wrapped with their status check, every dependent object dropped
before the file lock counts as released. Errors of the binding are plain `Exception`s; here they
become `CorruptState` or `LocalDiskError`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import le
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import rocksdict

from moorage_state.deltas import Frame
from moorage_state.errors import Bug, CorruptState, LocalDiskError, MoorageError
from moorage_state.rocks.options import ProcessMemory, to_options
from moorage_state.tuning import RocksOptions

# Most that one call writes: it holds Python's lock, about a millisecond for so much.
_BATCH_BYTES = 256 << 10
_BATCH_ENTRIES = 512

# A multi-get holds no GIL while it looks up: slices let other threads in between, and this size
# was the fastest of 1 000 to 200 000 keys.
_SLICE = 4096

_LOOK_SECONDS = 0.01
# After which it has everything flushed instead: that waits without Python's lock.
_LOOKS = 50
# Times its size, what a batch may take of a write buffer.
_OVERHEAD = 3

_LISTED_OPEN = 16

# What a snapshot says of a key that it has not.
_ABSENT = "key not found"

_ACCESS = {False: rocksdict.AccessType.read_write, True: rocksdict.AccessType.read_only}

PROPERTIES = (
    "rocksdb.live-sst-files-size",
    "rocksdb.cur-size-all-mem-tables",
    "rocksdb.estimate-num-keys",
    "rocksdb.background-errors",
    "rocksdb.is-write-stopped",
    "rocksdb.num-running-compactions",
    "rocksdb.num-running-flushes",
    "rocksdb.estimate-pending-compaction-bytes",
    "rocksdb.estimate-table-readers-mem",
)


class Cursor:
    """A forward iterator over a view of the database that is fixed when the cursor is made.

    Every run to the end checks the iterator's status: RocksDB ends an iteration over a damaged
    file as if there were no more keys.

    Raises (every method): `CorruptState` or `LocalDiskError`.
    """

    __slots__ = ("_it", "_lower", "_path")

    def __init__(self, iterator: rocksdict.RdictIter, path: Path, lower: bytes) -> None:
        self._it = iterator
        self._path = path
        self._lower = lower

    def seek(self, key: bytes) -> bytes | None:
        """Go to the first entry at or after `key` and return its key, None at the end."""
        with translated(self._path):
            # A seek below the lower bound finds what lies below it.
            self._it.seek(max(key, self._lower))
        return self.key()

    def key(self) -> bytes | None:
        """The key at the cursor, None at the end."""
        if self._it.valid():
            key: bytes = self._it.key()
            return key
        self._check()
        return None

    def take(self, end: bytes, entries: int, size: int) -> tuple[list[bytes], list[bytes], bool]:
        """Entries from the cursor on, up to the key `end` (excluded), and whether all are there.

        Stops after `entries` entries, or when keys and values reach `size` bytes; at least one
        entry is returned if there is one.
        """
        keys: list[bytes] = []
        values: list[bytes] = []
        valid, get_key, get_value = self._it.valid, self._it.key, self._it.value
        advance = self._it.next
        total = 0
        while valid():
            key = get_key()
            if key >= end:
                return keys, values, True
            if len(keys) >= entries or total >= size:
                return keys, values, False
            value = get_value()
            keys.append(key)
            values.append(value)
            total += len(key) + len(value)
            advance()
        self._check()
        return keys, values, True

    def take_keys(self, end: bytes, entries: int) -> list[bytes]:
        """At most `entries` keys from the cursor on, up to `end` (excluded)."""
        keys: list[bytes] = []
        while len(keys) < entries:
            key = self.key()
            if key is None or key >= end:
                break
            keys.append(key)
            self._it.next()
        return keys

    def drop(self) -> None:
        """Let go of the database; the cursor must not be used any more."""
        del self._it

    def _check(self) -> None:
        with translated(self._path):
            self._it.status()


class Buffered(Protocol):
    """What it needs of the binding's database."""

    def property_int_value(self, name: str) -> int | None:
        """A property."""
        ...

    def flush(self) -> None:
        """Write out all buffers, and wait for that with Python's lock free."""
        ...


class WriteRoom:
    """When one database takes a write without making it wait.

    The binding's `write` holds Python's lock also while RocksDB makes it wait. So before a batch
    this waits with the lock free: until RocksDB would not stop the write, and what it asks for
    where it only slows writes down.

    Args:
        sleep: waits for seconds, with Python's lock free.
    """

    def __init__(
        self,
        options: RocksOptions,
        memory: ProcessMemory,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self._buffer = options.write_buffer_bytes
        self._most_full = options.max_write_buffers - 1
        self._budget = memory.write_buffers if options.shared_memory else None
        self._room = 0

    def wait(self, database: Buffered, size: int) -> None:
        """Wait until `database`, always the same one, takes a batch of `size` bytes at once.

        It is not kept, as that would keep its file lock. Raises what a flush raises, when the
        database cannot write any more.
        """
        # Asked as seldom as can be: a property takes the database's mutex, which is held while
        # RocksDB writes its log.
        if size > self._room or self._is_short_of_memory():
            self._make_room(database, size)
        self._room -= size

    def _make_room(self, database: Buffered, size: int) -> None:
        for _ in range(_LOOKS):
            if self._has_room(database, size):
                break
            self._sleep(_LOOK_SECONDS)
        else:
            database.flush()
            self._room = 0
        if rate := _of(database, "actual-delayed-write-rate"):
            # RocksDB counts the time that has passed, so the write itself does not wait any more;
            # and what comes next is to wait again.
            self._sleep(size / rate)
            self._room = 0

    def _has_room(self, database: Buffered, size: int) -> bool:
        """Whether no buffer gets full that would stop writes; notes how much fits until then."""
        if _of(database, "is-write-stopped"):
            return False
        full = _of(database, "num-immutable-mem-table")
        active = _of(database, "cur-size-active-mem-table")
        left = (self._most_full - full) * self._buffer + self._buffer - self._buffer // 8 - active
        self._room = max(0, left // _OVERHEAD)
        # Buffers of a process that has used up much of its budget are full earlier.
        return full < self._most_full or (size <= self._room and not self._is_short_of_memory())

    def _is_short_of_memory(self) -> bool:
        budget = self._budget
        return budget is not None and 2 * budget.get_usage() > budget.get_buffer_size()


class Standing:
    """Implements `StandingView` by a snapshot of RocksDB's; its iterators show later writes."""

    def __init__(self, database: rocksdict.Rdict, path: Path) -> None:
        self.path = path
        with translated(path):
            self._snapshot: rocksdict.Snapshot | None = database.snapshot()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys` in their order, None where absent."""
        read = self._held().__getitem__
        found: list[bytes | None] = []
        # After a key that is not there it goes on behind it: what came before stays found.
        left = iter(keys)
        with translated(self.path):
            while len(found) < len(keys):
                try:
                    found += map(read, left)
                except Exception as error:  # the binding raises nothing narrower
                    if str(error) != _ABSENT:
                        raise
                    found.append(None)
        return found

    def drop(self) -> None:
        """Let go of it, which keeps the database's file lock."""
        self._snapshot = None

    def _held(self) -> rocksdict.Snapshot:
        if self._snapshot is None:
            raise Bug(f"the view of a database is dropped: path={self.path}")
        return self._snapshot


class Database:
    """An open database. Not thread-safe: the caller holds the lock of the range.

    Every method may raise `CorruptState` (damaged or missing files) or `LocalDiskError` (the
    volume refuses); after either the database must be closed and rebuilt.

    Args:
        read_only: nothing is written to the database and no compaction starts. RocksDB still
            leaves a log of its own in the directory.
    """

    def __init__(
        self, path: Path, options: RocksOptions, memory: ProcessMemory, *, read_only: bool = False
    ) -> None:
        self.path = path
        self.bounded = False
        self._written = 0
        self._write = rocksdict.WriteOptions()
        # A property of the class, although the binding's type stub declares a method.
        setattr(self._write, "disable_wal", True)  # noqa: B010
        given = to_options(options, memory)
        with translated(path):
            # Named for the column family too: the binding takes its options, those of tables and
            # their cache included, from the OPTIONS file of a directory that is there already.
            self._db: rocksdict.Rdict | None = rocksdict.Rdict(
                str(path),
                given,
                column_families={"default": given},
                access_type=_ACCESS[read_only](),
            )
            self._db.set_write_options(self._write)
        self._room = WriteRoom(options, memory)
        # A part of a write buffer, so that what is still to come of it fits the next one.
        self._batch_bytes = min(_BATCH_BYTES, options.write_buffer_bytes // 8)
        self._get: Callable[[bytes], bytes | None] = self._db.get

    def get(self, key: bytes) -> bytes | None:
        """The value of one key, None when absent."""
        # Asked for every record by state in process: the with block alone would cost a read.
        try:
            return self._get(key)
        except Exception:  # the binding raises nothing narrower
            with translated(self.path):
                raise

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys` in their order, None where absent; keys in order cost least."""
        get = self._open().get
        found: list[bytes | None] = []
        with translated(self.path):
            for at in range(0, len(keys), _SLICE):
                found += get(list(keys[at : at + _SLICE]))  # type: ignore[arg-type]  # its stubs know one key only
        return found

    @contextmanager
    def cursor(self, lower: bytes, upper: bytes) -> Iterator[Cursor]:
        """A cursor within [lower, upper), dropped at the end of the with block."""
        bounds = rocksdict.ReadOptions()
        bounds.set_iterate_lower_bound(lower)
        bounds.set_iterate_upper_bound(upper)
        with translated(self.path):
            cursor = Cursor(self._open().iter(bounds), self.path, lower)
        try:
            yield cursor
        finally:
            # An iterator that lives on keeps the database's file lock.
            cursor.drop()

    def standing(self) -> Standing:
        """See `StandingDatabase`."""
        return Standing(self._open(), self.path)

    def apply(
        self,
        frames: Iterable[Frame],
        marker: tuple[bytes, bytes] | None = None,
        *,
        proven: bool = False,
    ) -> None:
        """Write all frames, and the `marker` entry after them, once there is room for them.

        An error raised by `frames` passes through and nothing is written, unless they are `proven`:
        then a batch is written before the next is made. Other threads run between batches and while
        RocksDB has to catch up. What fails or is killed half way leaves a part: a database is
        rebuilt then, and nobody else reads it meanwhile.
        """
        batches = self._batches(frames, marker)
        for batch in batches if proven else list(batches):
            with translated(self.path):
                size = batch.size_in_bytes()
                self._wait(size)
                self._written += size
                self._open().write(batch, self._write)

    def _batches(
        self, frames: Iterable[Frame], marker: tuple[bytes, bytes] | None
    ) -> Iterator[rocksdict.WriteBatch]:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for frame in frames:
            with translated(self.path):
                pieces = list(_pieces(frame, self._batch_bytes))
            for piece in pieces:
                full = batch.len() + piece.operations > _BATCH_ENTRIES
                if full or batch.size_in_bytes() >= self._batch_bytes:
                    yield batch
                    batch = rocksdict.WriteBatch(raw_mode=True)
                with translated(self.path):
                    _add(batch, piece)
        if marker is not None:
            batch.put(*marker)
        yield batch

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete every key in [start, end)."""
        if start < end:
            self.apply([Frame([(start, end)], [], [])])

    def flush(self) -> None:
        """Bring everything written so far to files. Other threads run meanwhile."""
        with translated(self.path):
            self._open().flush()
        self._written = 0

    @property
    def timers(self) -> Self:
        """Where timers are looked for: here."""
        return self

    def make_room(self, frames: Callable[[], Iterable[Frame]], size: int) -> None:
        """Nothing: the volume says when it is full, and nothing is lost by that."""

    def checkpoint(self, path: Path) -> None:
        """Hard-link a consistent copy into `path`, which must not exist; all of it is there then.

        The binding blocks every Python thread for the length of this call, flush included:
        `flush` first keeps that to a few milliseconds.
        """
        with translated(self.path):
            rocksdict.Checkpoint(self._open()).create_checkpoint(str(path))

    def properties(self) -> dict[str, int]:
        """RocksDB's counters, without the `rocksdb.` prefix; costs microseconds."""
        read = self._open().property_int_value
        with translated(self.path):
            found = [(name, read(name)) for name in PROPERTIES]
        return {name.removeprefix("rocksdb."): value for name, value in found if value is not None}

    def size(self) -> int:
        """Bytes of live SST files; until there is one, of what was written.

        Buffers are not added to files: most of what they hold replaces what is there, and they come
        in pieces of a megabyte, however little is in them.
        """
        files = self.properties()["live-sst-files-size"]
        return files or self._written

    def close(self) -> None:
        """Close and release the file lock; idempotent."""
        if self._db is None:
            return
        database, self._db = self._db, None
        # A bound method, which would keep the file lock.
        self._get = self._refuse
        with translated(self.path):
            database.close()

    def _wait(self, size: int) -> None:
        """Wait until a batch of `size` bytes can be written."""
        self._room.wait(self._buffers(), size)

    def _buffers(self) -> Buffered:
        return self._open()

    def _open(self) -> rocksdict.Rdict:
        if self._db is None:
            raise self._closed()
        return self._db

    def _refuse(self, _key: bytes) -> bytes | None:
        raise self._closed()

    def _closed(self) -> Bug:
        return Bug(f"the database is closed: path={self.path}")


class StoredFile(NamedTuple):
    """An SST file as a database lists it, with its least and its greatest key."""

    name: str
    level: int
    first: bytes
    last: bytes


def files_of(path: Path) -> list[StoredFile]:
    """The SST files of a copy, none of which needs to be there; bounds include deleted ranges.

    Raises:
        CorruptState: this is no copy of a database.
        LocalDiskError: the volume refuses.
    """
    options = rocksdict.Options(raw_mode=True)
    # With a limit RocksDB opens files when they are read.
    options.set_max_open_files(_LISTED_OPEN)
    options.set_paranoid_checks(False)
    with translated(path):
        database = rocksdict.Rdict(
            str(path),
            options,
            column_families={"default": options},
            access_type=_ACCESS[True](),
        )
        try:
            return [
                StoredFile(
                    found["name"].removeprefix("/"),
                    found["level"],
                    found["start_key"],
                    found["end_key"],
                )
                for found in database.live_files()
            ]
        finally:
            database.close()


def _pieces(frame: Frame, most: int) -> Iterator[Frame]:
    """The frame in parts of about so many bytes at most, to be written one after the other."""
    keys, values = _in_key_order(frame)
    size = sum(map(len, keys)) + sum(map(len, filter(None, values)))
    step = max(1, min(_BATCH_ENTRIES, len(keys) * most // max(size, most)))
    yield Frame(frame.ranges, keys[:step], values[:step])
    for at in range(step, len(keys), step):
        yield Frame([], keys[at : at + step], values[at : at + step])


def _add(batch: rocksdict.WriteBatch, frame: Frame) -> None:
    put, delete = batch.put, batch.delete
    for start, end in frame.ranges:
        batch.delete_range(start, end)
    if None in frame.values:
        for key, value in zip(frame.keys, frame.values, strict=True):
            if value is None:
                delete(key)
            else:
                put(key, value)
    else:
        deque(map(put, frame.keys, frame.values), maxlen=0)


def _in_key_order(frame: Frame) -> tuple[list[bytes], list[bytes | None]]:
    """The writes of a frame by key, those of one key in the order they were made.

    RocksDB's write buffer takes neighbours one after the other at half the price.
    """
    keys = frame.keys
    if all(map(le, keys, islice(keys, 1, None))):
        return keys, frame.values
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return [keys[i] for i in order], [frame.values[i] for i in order]


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise what the binding raises as an error of Moorage's that names `path`."""
    try:
        yield
    except MoorageError:
        raise
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise Bug(f"the database was given something else than bytes: path={path}") from error
    except Exception as error:  # the binding raises nothing narrower
        raise _translate(str(error), path) from error


def _translate(text: str, path: Path) -> MoorageError:
    # A file that is listed but missing is damage, although RocksDB calls it an IO error; so is a
    # copy without the file that it begins with.
    missing = "No such file" in text and (".sst" in text or "CURRENT" in text)
    if text.startswith("Corruption") or missing:
        return CorruptState(
            f"the local database is damaged ({text})",
            str(path),
            "open the range again: it is rebuilt from its last checkpoint",
        )
    if text.startswith(("Invalid argument", "Not implemented")):
        return Bug(f"the database refused a call: path={path} error={text}")
    return LocalDiskError(
        f"the local database could not read or write: path={path} error={text}; "
        f"check free space and health of this volume"
    )


def _of(database: Buffered, name: str) -> int:
    return database.property_int_value(f"rocksdb.{name}") or 0
