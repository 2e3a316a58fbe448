"""Bytes of a snapshot: streams to write them, and handles that say where they came to lie.

Decides that a stream which is closed without asking for its handle leaves nothing behind, and that
a handle's bytes are checked when they are read. Called by backends through a stream factory. Knows
no format.
"""

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

from moorage_state.errors import (
    CorruptState,
    LocalDiskError,
    MoorageError,
    StoreUnavailable,
)
from moorage_state.state_backends.futures import SnapshotCanceled
from moorage_state.stores import ObjectStore, open_store

_ADVICE = "restore an older checkpoint, or this object from a backup of the store"


class StreamStateHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bytes of one stream are: in the handle itself (`data`), or in an object of a store.

    `size` is in bytes, `sha256` the hex digest of all of them.
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

    @property
    def place(self) -> str:
        """For people: where the bytes are."""
        return f"{self.store_url}/{self.key}" if self.data is None else "(within the handle)"

    def discard(self) -> None:
        """Delete the object; idempotent."""
        if self.data is None:
            open_store(self.store_url).delete(self.key)


class CheckpointOutputStream:
    """Takes the bytes of one snapshot. `close` may come from another thread, to cancel.

    Args:
        store: where the object goes; None to keep all bytes for the handle.
        key: of the object; nobody else uses it.
        inline: up to so many bytes stay in the handle; more go through a local file.
        account: told of the size of every write before it is done; raises to refuse it.
    """

    def __init__(
        self,
        store: ObjectStore | None = None,
        key: str = "",
        inline: int = 0,
        account: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self._store = store
        self._key = key
        self._inline = inline
        self._account = account
        self._lock = threading.Lock()
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._closed = False
        self._buffer = bytearray()
        self._file: BinaryIO | None = None
        self._path: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def tell(self) -> int:
        """How many bytes were written."""
        return self._size

    def flush(self) -> None:
        """Nothing is durable before `close_and_get_handle`."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append; returns how many bytes.

        Raises:
            SnapshotCanceled: the stream was closed.
            StateSizeExceeded: they are more than the storage keeps.
            LocalDiskError: the local volume refuses.
        """
        with self._lock:
            self._require_open()
            self._account(len(data))
            self._append(data)
            self._sha256.update(data)
            self._size += len(data)
        return len(data)

    def close(self) -> None:
        """Give it up, unless a handle was given; idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._buffer = bytearray()
                self._drop_file()

    def close_and_get_handle(self) -> StreamStateHandle | None:
        """Make the bytes durable and say where they are; None if there are none.

        Raises:
            SnapshotCanceled: the stream was closed; nothing is left.
            StoreUnavailable: the store does not take them.
        """
        with self._lock:
            self._require_open()
            if self._file is None:
                self._closed = True
                data, self._buffer = bytes(self._buffer), bytearray()
                return self._handle(data=data) if data else None
            with self._disk_errors():
                self._file.close()
        return self._bring()

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        if self._store is None or (self._file is None and self._size + len(data) <= self._inline):
            self._buffer += data
            return
        with self._disk_errors():
            if self._file is None:
                descriptor, name = tempfile.mkstemp(prefix="snapshot-")
                self._path, self._file = Path(name), os.fdopen(descriptor, "wb")
                self._file.write(self._buffer)
                self._buffer = bytearray()
            self._file.write(data)

    def _bring(self) -> StreamStateHandle | None:
        """Put the file; a `close` meanwhile wins."""
        assert self._store is not None  # noqa: S101 - there is a store where there is a file
        assert self._path is not None  # noqa: S101
        try:
            self._store.put_file(self._key, self._path)
            self._check_stored(self._store)
            with self._lock:
                self._require_open()
                self._closed = True
        except BaseException:
            # Also where the put failed: its reply may have been lost.
            with suppress(MoorageError):
                self._store.delete(self._key)
            raise
        finally:
            self._drop_file()
        return self._handle(store_url=self._store.url, key=self._key)

    def _check_stored(self, store: ObjectStore) -> None:
        stored = store.head(self._key)
        if stored is None or stored.size != self._size:
            raise StoreUnavailable(
                f"store does not have what was written: key={self._key} bytes={self._size} "
                f"found={None if stored is None else stored.size}"
            )

    def _handle(self, **place: Any) -> StreamStateHandle:
        return StreamStateHandle(size=self._size, sha256=self._sha256.hexdigest(), **place)

    def _require_open(self) -> None:
        if self._closed:
            raise SnapshotCanceled("the stream of a snapshot was closed; take another snapshot")

    def _drop_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LocalDiskError(
                f"could not write a snapshot: path={self._path} error={error}; check space and "
                f"health of this volume"
            ) from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
