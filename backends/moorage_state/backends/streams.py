"""Bytes of a snapshot: streams to write them, and handles that say where they came to lie.

Decides that a stream which is closed without asking for its handle leaves nothing behind, and that
a handle's bytes are checked when they are read. Called by backends through a stream factory. Knows
no format.
"""

import hashlib
import io
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

import msgspec

from moorage_state.backends.futures import SnapshotCanceled
from moorage_state.errors import (
    CorruptState,
    LocalDiskError,
    MoorageError,
    StoreUnavailable,
    UserError,
)
from moorage_state.stores import ObjectStore, open_store

__all__ = [
    "CheckpointOutputStream",
    "FileOutputStream",
    "MemoryOutputStream",
    "StateSizeExceeded",
    "StreamStateHandle",
]

_ADVICE = "restore an older checkpoint, or this object from a backup of the store"


class StateSizeExceeded(UserError):
    """A subtask's state is larger than the driver keeps for it."""

    code = "state_size_exceeded"


class StreamStateHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bytes of one stream are: in the handle itself, or in an object of a store.

    Attributes:
        size: in bytes.
        sha256: hex digest of all the bytes.
        data: the bytes, where they travel with the handle.
        store_url: the address of the store, where they do not.
        key: of the object there.
    """

    size: int
    sha256: str
    data: bytes | None = None
    store_url: str = ""
    key: str = ""

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes, or a slice of them; the digest is checked only where all are read.

        Raises:
            CorruptState: they are not those that were written, or the slice is outside of them.
            ObjectNotFound: the object is gone.
            StoreUnavailable: the store does not answer.
        """
        end = self.size if length is None else offset + length
        if not 0 <= offset <= end <= self.size:
            raise CorruptState(
                f"a slice is outside of its stream: offset={offset} end={end} size={self.size}",
                self.place,
                _ADVICE,
            )
        if self.data is not None:
            found = self.data[offset:end]
        else:
            found = open_store(self.store_url).get(self.key, offset=offset, length=end - offset)
        whole = end - offset == self.size
        if len(found) != end - offset or (whole and _digest(found) != self.sha256):
            raise CorruptState("state is not what was written", self.place, _ADVICE)
        return found

    def open(self) -> BinaryIO:
        """All bytes as a stream; see `read`."""
        return io.BytesIO(self.read())

    @property
    def place(self) -> str:
        """For people: where the bytes are."""
        return f"{self.store_url}/{self.key}" if self.data is None else "(within the handle)"

    def discard(self) -> None:
        """Delete the object; idempotent."""
        if self.data is None:
            open_store(self.store_url).delete(self.key)


class CheckpointOutputStream(Protocol):
    """Takes the bytes of one snapshot. `close` may come from another thread, to cancel."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append; returns how many bytes.

        Raises:
            SnapshotCanceled: the stream was closed.
            StateSizeExceeded: they are more than the storage keeps.
            LocalDiskError: the local volume refuses.
        """
        ...

    def tell(self) -> int:
        """How many bytes were written."""
        ...

    def flush(self) -> None:
        """Nothing is durable before `close_and_get_handle`."""
        ...

    def close(self) -> None:
        """Give it up, unless a handle was given; idempotent."""
        ...

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """Make the bytes durable and say where they are; None if there are none.

        Raises:
            SnapshotCanceled: the stream was closed; nothing is left.
            StoreUnavailable: the store does not take them.
        """
        ...


class _Stream:
    """What both kinds share: counting, digest, and one end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._closed = False
        self._given = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def tell(self) -> int:
        """See `CheckpointOutputStream`."""
        return self._size

    def flush(self) -> None:
        """See `CheckpointOutputStream`."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """See `CheckpointOutputStream`."""
        with self._lock:
            self._require_open()
            self._append(data)
            self._sha256.update(data)
            self._size += len(data)
        return len(data)

    def close(self) -> None:
        """See `CheckpointOutputStream`."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._drop()

    def _require_open(self) -> None:
        if self._closed:
            raise SnapshotCanceled("the stream of a snapshot was closed; take another snapshot")

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        raise NotImplementedError

    def _drop(self) -> None:
        raise NotImplementedError


class MemoryOutputStream(_Stream):
    """Keeps the bytes for the handle itself.

    Args:
        limit: the most bytes that are taken.
        room: asked before every write whether so many more may come.
    """

    def __init__(self, room: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        self._room = room
        self._buffer = bytearray()

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        self._room(len(data))
        self._buffer += data

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """See `CheckpointOutputStream`."""
        with self._lock:
            self._require_open()
            self._closed = True
            data, self._buffer = bytes(self._buffer), bytearray()
        if not data:
            return None
        return StreamStateHandle(size=len(data), sha256=self._sha256.hexdigest(), data=data)

    def _drop(self) -> None:
        self._buffer = bytearray()


class FileOutputStream(_Stream):
    """Keeps a few bytes for the handle; more go through a local file into an object.

    Args:
        store: where the object goes.
        key: of the object; nobody else uses it.
        inline: up to so many bytes stay in the handle.
        directory: for the local file; the system's own place if None.
    """

    def __init__(
        self, store: ObjectStore, key: str, inline: int, directory: Path | None = None
    ) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._inline = inline
        self._directory = directory
        self._buffer = bytearray()
        self._file: BinaryIO | None = None
        self._path: Path | None = None

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        try:
            if self._file is None and len(self._buffer) + len(data) <= self._inline:
                self._buffer += data
                return
            if self._file is None:
                self._spill()
            if self._file is not None:
                self._file.write(data)
        except OSError as error:
            raise LocalDiskError(
                f"could not write a snapshot: path={self._path} error={error}; check space and "
                f"health of this volume"
            ) from error

    def _spill(self) -> None:
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            prefix="snapshot-", dir=self._directory, delete=False
        ) as made:
            self._path = Path(made.name)
        self._file = self._path.open("wb")
        self._file.write(self._buffer)
        self._buffer = bytearray()

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """See `CheckpointOutputStream`."""
        with self._lock:
            self._require_open()
            if self._file is None:
                self._closed = True
                return self._within_handle()
            try:
                self._file.close()
            except OSError as error:
                raise LocalDiskError(
                    f"could not write a snapshot: path={self._path} error={error}; check space "
                    f"and health of this volume"
                ) from error
            path, self._file = self._path, None
        return self._bring(path)

    def _within_handle(self) -> StreamStateHandle | None:
        data, self._buffer = bytes(self._buffer), bytearray()
        if not data:
            return None
        return StreamStateHandle(size=len(data), sha256=self._sha256.hexdigest(), data=data)

    def _bring(self, path: Path | None) -> StreamStateHandle:
        """Put the file; a `close` meanwhile wins."""
        assert path is not None  # noqa: S101 - there is a path where there is a file
        try:
            self._store.put_file(self._key, path)
            self._check_stored()
            with self._lock:
                self._require_open()
                self._closed = True
        except BaseException:
            with suppress(MoorageError):
                self._store.delete(self._key)
            raise
        finally:
            path.unlink(missing_ok=True)
        return StreamStateHandle(
            size=self._size,
            sha256=self._sha256.hexdigest(),
            store_url=self._store.url,
            key=self._key,
        )

    def _check_stored(self) -> None:
        stored = self._store.head(self._key)
        if stored is None or stored.size != self._size:
            raise StoreUnavailable(
                f"store does not have what was written: key={self._key} bytes={self._size} "
                f"found={None if stored is None else stored.size}"
            )

    def _drop(self) -> None:
        self._buffer = bytearray()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
