"""Snapshots of one range: local copies, when they are made and when they are dropped.

A copy of RocksDB's files is there when the snapshot is taken (they are hard-linked); that of state
in memory is written by whoever needs it first, beside running epochs.

Decides which local copies stay: the newest completed one, later ones, and those that are being
uploaded. Called by `OpenRange`, `take` under the range's lock; and by `uploads` beside running
epochs.
"""

import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import xxhash

from moorage_state.database import PendingCopy, RangeDatabase
from moorage_state.errors import Retryable
from moorage_state.progress import advance, bytes_below, watching
from moorage_state.server.api import RangeSpec, Version
from moorage_state.server.directory import RangeDirectory, disk_errors
from moorage_state.snapshots import FileRef

__all__ = ["FileHashes", "Linked", "Snapshots", "Taken", "digests_of", "is_right"]

_PIECE_BYTES = 1 << 20


class Digests(NamedTuple):
    """What is recorded of a file's bytes; digests are hex."""

    size: int
    sha256: str
    xxh3: str


def digests_of(path: Path) -> Digests:
    """Size and both digests of a file, read once."""
    sha256, xxh3, size = hashlib.sha256(), xxhash.xxh3_128(), 0
    for piece in _pieces(path):
        sha256.update(piece)
        xxh3.update(piece)
        size += len(piece)
    return Digests(size, sha256.hexdigest(), xxh3.hexdigest())


def is_right(path: Path, ref: FileRef) -> bool:
    """Whether a file holds the bytes that a manifest says, by the faster digest where there is one.

    Raises:
        OSError: it cannot be read.
    """
    if path.stat().st_size != ref.size:
        return False
    digest = xxhash.xxh3_128() if ref.xxh3 else hashlib.sha256()
    for piece in _pieces(path):
        digest.update(piece)
    return digest.hexdigest() == (ref.xxh3 or ref.sha256)


def _pieces(path: Path) -> Iterator[memoryview]:
    buffer = bytearray(_PIECE_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            advance()
            yield view[:count]


class FileHashes:
    """Digests of a database's SST files, which never change, by name. Thread-safe."""

    def __init__(self, known: Iterable[FileRef] = ()) -> None:
        self._known = {
            ref.name: Digests(ref.size, ref.sha256, ref.xxh3)
            for ref in known
            if ref.shared and ref.xxh3
        }

    def of(self, path: Path) -> Digests:
        """Size and digests of the file; computed once per SST file."""
        size = path.stat().st_size
        known = self._known.get(path.name)
        if known is not None and known.size == size:
            return known
        found = digests_of(path)
        if path.suffix == ".sst":
            self._known[path.name] = found
        return found


@dataclass(slots=True)
class Taken:
    """A local copy at `version`, in the directory `path`; `cancel` ends its upload.

    `used` tells that an upload of it has ended; until then a later checkpoint does not drop it.
    `pending` is what the files are to be written from, until its first upload ends.
    """

    version: Version
    path: Path
    cancel: threading.Event = field(default_factory=threading.Event)
    uploading: bool = False
    used: bool = False
    pending: PendingCopy | None = None

    def let_go(self) -> None:
        """Drop what the files were to be written from."""
        if self.pending is not None:
            self.pending.drop()
            self.pending = None


class Linked(NamedTuple):
    """A local copy that was taken: the bytes of all its files, and how long the flush took."""

    bytes: int
    flush_seconds: float


class Snapshots:
    """The snapshots of one open range.

    Args:
        hashes: knows the digests of its files.
        label: the backend whose files they are, as handles name it; empty for the built-in ones.
    """

    def __init__(
        self,
        spec: RangeSpec,
        directory: RangeDirectory,
        backend_uuid: str,
        hashes: FileHashes,
        label: str = "",
    ) -> None:
        self.spec = spec
        self.label = label
        self.backend_uuid = backend_uuid
        self.hashes = hashes
        self._directory = directory
        self._lock = threading.Lock()
        self._taken: dict[int, Taken] = {}
        self._newest_complete = 0

    def take(self, database: RangeDatabase, checkpoint_id: int, version: Version) -> Linked:
        """Take a copy of `database`, which is at `version`.

        Repeating it for the same version is harmless.
        """
        path = self._directory.checkpoint(checkpoint_id)
        with self._lock:
            taken = self._taken.get(checkpoint_id)
        if taken is not None and taken.version == version:
            if taken.pending is not None:
                return Linked(taken.pending.bytes, 0.0)
            if path.exists():
                return Linked(_bytes_in(path), 0.0)
        if taken is not None:
            taken.let_go()
        self._directory.drop_checkpoints(lambda other: other == checkpoint_id)
        unfinished = path.with_suffix(".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        # The hard links are made under the GIL, a flush is not: heartbeats go on during it.
        began = time.monotonic()
        database.flush()
        flushed = time.monotonic()
        pending = database.checkpoint(unfinished)
        if pending is None:
            _name(unfinished, path)
        with self._lock:
            self._taken[checkpoint_id] = Taken(version, path, pending=pending)
        return Linked(pending.bytes if pending else _bytes_in(path), flushed - began)

    def scratch(self, checkpoint_id: int) -> Path:
        """A directory for an export; what a crash leaves there goes when the range is opened."""
        return self._directory.root / f"import-export-{checkpoint_id}"

    @contextmanager
    def uploading(self, checkpoint_id: int) -> Iterator[Taken]:
        """The snapshot, whose files stay for the length of the with block.

        Raises:
            Retryable: it is not here, was aborted, or is being uploaded already.
        """
        with self._lock:
            taken = self._taken.get(checkpoint_id)
            if taken is None or taken.cancel.is_set() or taken.uploading:
                state = "not here" if taken is None else "aborted or being uploaded"
                raise Retryable(
                    f"no snapshot to upload ({state}): uid={self.spec.uid} "
                    f"start={self.spec.start} checkpoint={checkpoint_id}; take another one"
                )
            taken.uploading = True
        try:
            _write(taken)
            yield taken
        finally:
            self._uploaded(checkpoint_id, taken)

    def complete(self, checkpoint_id: int) -> Version | None:
        """Keep this local copy and drop the older ones; the version it holds, None if not here."""
        with self._lock:
            taken = self._taken.get(checkpoint_id)
            if taken is None:
                return None
            self._newest_complete = max(self._newest_complete, checkpoint_id)
            awaited = {key for key, other in self._taken.items() if not other.used}
            awaited.discard(checkpoint_id)
            known = set(self._taken)
        # What is not known was restored from elsewhere, under an id of another lineage.
        self._drop(
            lambda other: (
                other not in awaited and (other < self._newest_complete or other not in known)
            )
        )
        return taken.version

    def aborted(self, checkpoint_id: int) -> None:
        """Stop the upload of this snapshot and drop its local copy; idempotent."""
        with self._lock:
            taken = self._taken.get(checkpoint_id)
            if taken is None or checkpoint_id == self._newest_complete:
                return
            taken.cancel.set()
        self._drop(lambda other: other == checkpoint_id)

    def busy(self) -> bool:
        """Whether an upload is running."""
        with self._lock:
            return any(taken.uploading for taken in self._taken.values())

    def close(self) -> None:
        """Stop all uploads."""
        with self._lock:
            for taken in self._taken.values():
                taken.cancel.set()
                if not taken.uploading:
                    taken.let_go()

    def _uploaded(self, checkpoint_id: int, taken: Taken) -> None:
        with self._lock:
            taken.uploading, taken.used = False, True
            if taken.path.exists() or taken.cancel.is_set():
                taken.let_go()
            useless = taken.cancel.is_set() or checkpoint_id < self._newest_complete
        if useless:
            self._drop(lambda other: other == checkpoint_id)

    def _drop(self, choose: Callable[[int], bool]) -> None:
        """Drop the chosen local copies, those being uploaded only when that ends."""
        with self._lock:
            kept = {key for key, taken in self._taken.items() if taken.uploading}
            dropped = [key for key in self._taken if key not in kept and choose(key)]
            for key in dropped:
                self._taken.pop(key).let_go()
        with disk_errors("drop a local checkpoint", self._directory.root):
            self._directory.drop_checkpoints(lambda other: choose(other) and other not in kept)


def _write(taken: Taken) -> None:
    """Have the files there, if they are not yet; an earlier upload may have written them."""
    if taken.pending is None or taken.path.exists():
        return
    unfinished = taken.path.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    with watching(partial(bytes_below, unfinished)):
        taken.pending.write(unfinished, taken.cancel.is_set)
    _name(unfinished, taken.path)


def _name(unfinished: Path, path: Path) -> None:
    with disk_errors("name a local checkpoint", path):
        unfinished.replace(path)


def _bytes_in(path: Path) -> int:
    with disk_errors("read a local checkpoint", path):
        return sum(file.stat().st_size for file in path.iterdir())
