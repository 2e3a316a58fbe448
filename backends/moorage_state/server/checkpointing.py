"""Snapshots of one range: hard-linked local copies, their upload, and when they are dropped.

Decides which files a checkpoint has to upload: those whose content no file of the base (a
retained checkpoint that was notified complete) has. A file is never skipped because the store
seems to have it: only a manifest keeps it alive. Called by `OpenRange`; `take` under the range's
lock, the rest beside running epochs.
"""

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from moorage_state.errors import Retryable, StoreUnavailable
from moorage_state.rocks import Database
from moorage_state.server.api import RangeSpec, Version
from moorage_state.server.directory import RangeDirectory, disk_errors
from moorage_state.snapshots import FileRef, RangeHandle, private_key, shared_key
from moorage_state.stores import ObjectStore

__all__ = ["FileHashes", "Snapshots", "sha256_of"]

_UPLOAD_THREADS = 4


def sha256_of(path: Path) -> str:
    """The hex digest of a file's bytes, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileHashes:
    """Digests of a database's SST files, which never change, by name. Thread-safe."""

    def __init__(self, known: Iterable[FileRef] = ()) -> None:
        self._known = {ref.name: (ref.size, ref.sha256) for ref in known if ref.shared}

    def of(self, path: Path) -> tuple[int, str]:
        """Size and sha256 of the file; computed once per SST file."""
        size = path.stat().st_size
        known = self._known.get(path.name)
        if known is not None and known[0] == size:
            return known
        found = (size, sha256_of(path))
        if path.suffix == ".sst":
            self._known[path.name] = found
        return found


@dataclass(slots=True)
class _Taken:
    version: Version
    cancel: threading.Event = field(default_factory=threading.Event)
    uploading: bool = False


class Snapshots:
    """The snapshots of one open range."""

    def __init__(
        self,
        spec: RangeSpec,
        run: str,
        directory: RangeDirectory,
        backend_uuid: str,
        hashes: FileHashes,
    ) -> None:
        self._spec = spec
        self._run = run
        self._directory = directory
        self._backend_uuid = backend_uuid
        self._hashes = hashes
        self._lock = threading.Lock()
        self._taken: dict[int, _Taken] = {}
        self._newest_complete = 0

    def take(self, database: Database, checkpoint_id: int, version: Version) -> int:
        """Hard-link `database`, which is at `version`; the number of bytes of all files.

        Repeating it for the same version is harmless.
        """
        path = self._directory.checkpoint(checkpoint_id)
        with self._lock:
            taken = self._taken.get(checkpoint_id)
        if taken is not None and taken.version == version and path.exists():
            return _bytes_in(path)
        self._directory.drop_checkpoints(lambda other: other == checkpoint_id)
        unfinished = path.with_suffix(".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        # The hard links are made under the GIL, a flush is not: heartbeats go on during it.
        database.flush()
        database.checkpoint(unfinished)
        with disk_errors("name a local checkpoint", path):
            unfinished.replace(path)
        with self._lock:
            self._taken[checkpoint_id] = _Taken(version)
        return _bytes_in(path)

    def upload(
        self, checkpoint_id: int, store: ObjectStore, base_files: list[FileRef]
    ) -> RangeHandle:
        """Bring a snapshot to the store; see `StateApi.upload`."""
        with self._lock:
            taken = self._taken.get(checkpoint_id)
            if taken is None or taken.cancel.is_set() or taken.uploading:
                state = "not here" if taken is None else "aborted or being uploaded"
                raise Retryable(
                    f"no snapshot to upload ({state}): uid={self._spec.uid} "
                    f"start={self._spec.start} checkpoint={checkpoint_id}; take another one"
                )
            taken.uploading = True
        try:
            files = self._upload_files(checkpoint_id, taken, store, base_files)
        finally:
            self._uploaded(checkpoint_id, taken)
        return RangeHandle(
            uid=self._spec.uid,
            start=self._spec.start,
            end=self._spec.end,
            epoch=taken.version.epoch,
            digest=taken.version.digest,
            backend_uuid=self._backend_uuid,
            files=files,
            bytes_total=sum(ref.size for ref in files),
        )

    def complete(self, checkpoint_id: int) -> Version | None:
        """Keep this local copy and drop the older ones; the version it holds, None if not here."""
        with self._lock:
            taken = self._taken.get(checkpoint_id)
            if taken is None:
                return None
            self._newest_complete = max(self._newest_complete, checkpoint_id)
        self._drop(lambda other: other < self._newest_complete)
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

    def _uploaded(self, checkpoint_id: int, taken: _Taken) -> None:
        with self._lock:
            taken.uploading = False
            useless = taken.cancel.is_set() or checkpoint_id < self._newest_complete
        if useless:
            self._drop(lambda other: other == checkpoint_id)

    def _drop(self, choose: Callable[[int], bool]) -> None:
        """Drop the chosen local copies, those being uploaded only when that ends."""
        with self._lock:
            kept = {key for key, taken in self._taken.items() if taken.uploading}
            self._taken = {
                key: taken for key, taken in self._taken.items() if key in kept or not choose(key)
            }
        with disk_errors("drop a local checkpoint", self._directory.root):
            self._directory.drop_checkpoints(lambda other: choose(other) and other not in kept)

    def _upload_files(
        self, checkpoint_id: int, taken: _Taken, store: ObjectStore, base_files: list[FileRef]
    ) -> list[FileRef]:
        root = self._directory.checkpoint(checkpoint_id)
        reusable = {(ref.size, ref.sha256): ref for ref in base_files if ref.shared}

        def bring(path: Path) -> FileRef:
            with disk_errors("read a local checkpoint", path):
                size, sha256 = self._hashes.of(path)
            shared = path.suffix == ".sst"
            known = reusable.get((size, sha256)) if shared else None
            key = known.key if known is not None else self._key(checkpoint_id, path.name, sha256)
            if known is None:
                self._put(store, key, path, size, taken)
            return FileRef(name=path.name, key=key, size=size, sha256=sha256, shared=shared)

        with disk_errors("list a local checkpoint", root):
            paths = sorted(path for path in root.iterdir() if not _is_empty_log(path))
        with ThreadPoolExecutor(_UPLOAD_THREADS, "upload") as pool:
            pending = [pool.submit(bring, path) for path in paths]
            try:
                return [future.result() for future in pending]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _key(self, checkpoint_id: int, name: str, sha256: str) -> str:
        if name.endswith(".sst"):
            return shared_key(self._backend_uuid, name, sha256)
        spec = self._spec
        # The digest keeps a second upload, of a range that was opened again, from writing over
        # what the first one left under the same names.
        unique = f"{name}-{sha256[:16]}"
        return private_key(checkpoint_id, self._run, spec.uid, spec.start, spec.end, unique)

    def _put(self, store: ObjectStore, key: str, path: Path, size: int, taken: _Taken) -> None:
        if taken.cancel.is_set():
            raise Retryable(f"upload was stopped: path={path}; the checkpoint is not completed")
        store.put_file(key, path)
        stored = store.head(key)
        if stored is None or stored.size != size:
            found = None if stored is None else stored.size
            raise StoreUnavailable(
                f"store does not have what was uploaded: key={key} bytes={size} found={found}"
            )


def _is_empty_log(path: Path) -> bool:
    """RocksDB's own log is unused; it leaves an empty file."""
    return path.suffix == ".log" and path.stat().st_size == 0


def _bytes_in(path: Path) -> int:
    with disk_errors("read a local checkpoint", path):
        return sum(file.stat().st_size for file in path.iterdir())
