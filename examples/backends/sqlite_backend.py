"""A state backend of one's own: each range is a table of keys and values in an SQLite file.

Named in a manifest as `sqlite_backend:SqliteStateBackend`, with this file beside the job file, in
its `pyFiles` or in its image. Needs the standard library alone. See docs/state-backends.md.
"""
# ruff: noqa: ARG002, D102  the protocols of moorage_state.database document the methods

import shutil
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from moorage_state.deltas import Frame
from moorage_state.errors import Bug, CorruptState, LocalDiskError, Retryable
from moorage_state.state_backends import StateBackend

FILE = "state.sqlite"
TABLE = "CREATE TABLE IF NOT EXISTS state (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
FIND = "SELECT key, value FROM state WHERE key"
SCAN = f"{FIND} >= ? AND key < ? ORDER BY key"
SIZE = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
PUT = "INSERT OR REPLACE INTO state VALUES (?, ?)"


@dataclass(frozen=True, slots=True)
class SqliteStateBackend(StateBackend):
    """State in SQLite; `state.backend.sqlite.cache-kib` is the cache of each database."""

    identifier: ClassVar[str] = "sqlite"
    cache_kib: int = 8192

    def open_database(
        self, path: Path, memory: Any, groups: Any = None, *, read_only: bool = False
    ) -> "SqliteDatabase":
        return SqliteDatabase(path, self.cache_kib, read_only=read_only)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Say what SQLite says in the words that the state server acts by."""
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise Bug(f"the database is closed: path={path} error={error}") from error
    except (sqlite3.OperationalError, OSError) as error:
        raise LocalDiskError(f"no use of the local volume: path={path} error={error}") from error
    except sqlite3.DatabaseError as error:
        raise CorruptState(f"damaged: {error}", str(path), "restore a checkpoint") from error


class View:
    """A `RangeView`: what one connection sees."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with translated(self.path):
            rows = [self.connection.execute(f"{FIND} = ?", (key,)).fetchone() for key in keys]
        return [row[1] if row else None for row in rows]

    @contextmanager
    def cursor(self, lower: bytes, upper: bytes) -> Iterator["Cursor"]:
        yield Cursor(self, lower, upper)


class Cursor:
    """A `RangeCursor`, which remembers a key and asks anew from there."""

    def __init__(self, view: View, lower: bytes, upper: bytes) -> None:
        self._view, self._lower, self._upper = view, lower, upper
        self._at: bytes | None = None

    def seek(self, key: bytes) -> bytes | None:
        with closing(self._rows(max(key, self._lower), self._upper)) as rows:
            self._at = next((found for found, _ in rows), None)
        return self._at

    def key(self) -> bytes | None:
        return self._at

    def take(self, end: bytes, entries: int, size: int) -> tuple[list[bytes], list[bytes], bool]:
        keys: list[bytes] = []
        values: list[bytes] = []
        begin, end = self._upper if self._at is None else self._at, min(end, self._upper)
        with closing(self._rows(begin, end)) as rows:
            for key, value in rows:
                if keys and (len(keys) >= entries or size <= 0):
                    self._at = key
                    return keys, values, False
                keys.append(key)
                values.append(value)
                size -= len(key) + len(value)
        self.seek(max(begin, end))
        return keys, values, True

    def take_keys(self, end: bytes, entries: int) -> list[bytes]:
        return self.take(end, entries, 1 << 62)[0]

    def _rows(self, begin: bytes, end: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        with translated(self._view.path):
            yield from self._view.connection.execute(SCAN, (begin, end))


class SqliteCopy(View):
    """A `PendingCopy`: a read transaction, which sees the state as it was when it began."""

    bytes = 0

    def view(self) -> View:
        return self

    def write(self, path: Path, stopped: Callable[[], bool]) -> None:
        def look(*_: int) -> None:
            if stopped():
                raise Retryable(f"the copy was stopped: path={path}")

        try:
            with translated(path):
                path.mkdir(parents=True)
                with closing(sqlite3.connect(path / FILE)) as target:
                    self.connection.backup(target, pages=1000, progress=look, sleep=0)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def drop(self) -> None:
        self.connection.close()


class SqliteDatabase(View):
    """A `RangeDatabase`. Readers see a fixed state beside what is written meanwhile (WAL)."""

    bounded = False  # the volume says when it is full

    def __init__(self, path: Path, cache_kib: int, *, read_only: bool) -> None:
        mode = "ro&immutable=1" if read_only else "rwc"
        self._address = f"{(path / FILE).absolute().as_uri()}?mode={mode}"
        # Nothing has to outlive this machine's power: a range comes from its checkpoint.
        pragmas = f"journal_mode=WAL; PRAGMA synchronous=OFF; PRAGMA cache_size=-{cache_kib}"
        with translated(path):
            path.mkdir(parents=True, exist_ok=True)
            super().__init__(path, self._connect("" if read_only else f"PRAGMA {pragmas}; {TABLE}"))

    def _connect(self, first: str) -> sqlite3.Connection:
        made = sqlite3.connect(self._address, 5.0, 0, None, check_same_thread=False, uri=True)
        return made.executescript(first).connection

    def _reader(self) -> sqlite3.Connection:
        with translated(self.path):
            self.connection.execute("SELECT 1")  # refused where the database was closed
            return self._connect("BEGIN; SELECT 1 FROM state LIMIT 1")  # what there is now

    @contextmanager
    def cursor(self, lower: bytes, upper: bytes) -> Iterator[Cursor]:
        with closing(self._reader()) as reader:
            yield Cursor(View(self.path, reader), lower, upper)

    @property
    def timers(self) -> Self:
        return self

    def apply(self, frames: Iterable[Frame], marker: Any = None, *, proven: bool = False) -> None:
        run, many = self.connection.execute, self.connection.executemany
        with translated(self.path), self.connection:  # commits, or rolls back
            run("BEGIN")
            for frame in frames:
                many("DELETE FROM state WHERE key >= ? AND key < ?", frame.ranges)
                last = dict(zip(frame.keys, frame.values, strict=True)).items()
                many("DELETE FROM state WHERE key = ?", [(k,) for k, v in last if v is None])
                many(PUT, [(k, v) for k, v in last if v is not None])
            many(PUT, [marker] if marker else [])

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.apply([Frame([(start, end)], [], [])])

    def make_room(self, frames: Callable[[], Iterable[Frame]], size: int) -> None: ...

    def flush(self) -> None: ...

    def checkpoint(self, path: Path) -> SqliteCopy:
        copy = SqliteCopy(self.path, self._reader())
        copy.bytes = self.size()
        return copy

    def properties(self) -> dict[str, int]:
        return {}

    def size(self) -> int:
        with translated(self.path):
            return int(self.connection.execute(SIZE).fetchone()[0])

    def close(self) -> None:
        self.connection.close()
