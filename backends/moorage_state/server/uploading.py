"""The asynchronous part of a checkpoint: the snapshots of a server's ranges come to the store.

Decides what happens in which order and what it costs. A file is skipped only where the base has
its content, never because the store seems to have it: only a manifest keeps an object alive. All
names are new, so nothing is written over, and an upload that fails leaves only garbage. Called by
`RangeHost`, beside running epochs.
"""

import hashlib
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from moorage_state import failpoints
from moorage_state.errors import LocalDiskError, Retryable, StoreUnavailable
from moorage_state.progress import carried
from moorage_state.server.api import Uploaded, UploadLimits
from moorage_state.server.checkpointing import Snapshots, Taken
from moorage_state.server.directory import disk_errors
from moorage_state.server.packing import LocalFile, Pack, UploadPlan, plan_upload
from moorage_state.snapshots import (
    FileRef,
    RangeHandle,
    private_key,
    private_pack_key,
    shared_key,
    shared_pack_key,
)
from moorage_state.stores import ObjectStore

__all__ = ["Names", "UploadPart", "upload"]

_UPLOAD_THREADS = 4

T = TypeVar("T")
U = TypeVar("U")
_Place = tuple[str, int]
"""The key of an object, and an offset in it."""
_Places = dict[tuple[bool, int, str] | LocalFile, _Place]
"""Where each packed content, and each file that is an object of its own, lies."""


@dataclass(frozen=True, slots=True)
class UploadPart:
    """The snapshots of one range, and the files of its base."""

    snapshots: Snapshots
    base_files: list[FileRef]


def upload(
    parts: Sequence[UploadPart],
    run: str,
    checkpoint_id: int,
    store: ObjectStore,
    limits: UploadLimits,
    *,
    names: "Names | None" = None,
) -> Uploaded:
    """Bring the snapshots of all `parts` to the store; see `StateApi.upload_many`.

    Args:
        names: keys of the objects; those of a checkpoint if not given.
    """
    with ExitStack() as stack:
        taken = [stack.enter_context(p.snapshots.uploading(checkpoint_id)) for p in parts]
        pool = stack.enter_context(ThreadPoolExecutor(_UPLOAD_THREADS, "upload"))
        files = _each(pool, _files_of, list(zip(count(), parts, taken)))
        plan = plan_upload(files, [part.base_files for part in parts], limits)
        names = names or CheckpointNames(run, checkpoint_id)
        transfer = _Transfer(parts, taken, names, store)
        places = transfer.carry_out(pool, plan)
        handles = [
            _handle(part.snapshots, at, [_ref(file, plan, places, names) for file in group])
            for part, at, group in zip(parts, taken, files, strict=True)
        ]
    return Uploaded(
        handles, transfer.objects, transfer.bytes, sum(file.size for file in plan.inline)
    )


class Names(Protocol):
    """The keys of an upload's objects; none is ever used twice.

    Attributes:
        shares: whether later checkpoints may reference its SST files.
    """

    shares: bool

    def pack(self, number: int, size: int, *, shared: bool) -> str:
        """Of an object with several small files."""
        ...

    def alone(self, snapshots: Snapshots, file: LocalFile) -> str:
        """Of an object that is one file."""
        ...


class CheckpointNames:
    """In the lineage's directory."""

    shares = True

    def __init__(self, run: str, checkpoint_id: int) -> None:
        self._run = run
        self._checkpoint_id = checkpoint_id
        self._id = uuid.uuid4().hex

    def pack(self, number: int, size: int, *, shared: bool) -> str:
        """See `Names`."""
        if shared:
            return shared_pack_key(self._id, number, size)
        return private_pack_key(self._checkpoint_id, self._run, self._id, number, size)

    def alone(self, snapshots: Snapshots, file: LocalFile) -> str:
        """See `Names`."""
        name = file.path.name
        if file.shared:
            return shared_key(snapshots.backend_uuid, name, file.sha256, self._id)
        uid, start, end = snapshots.spec.uid, snapshots.spec.start, snapshots.spec.end
        return private_key(self._checkpoint_id, self._run, uid, start, end, name, self._id)


class _Transfer:
    """One upload, and what it has written."""

    def __init__(
        self,
        parts: Sequence[UploadPart],
        taken: Sequence[Taken],
        names: Names,
        store: ObjectStore,
    ) -> None:
        self._parts = parts
        self._taken = taken
        self._names = names
        self._store = store
        self._lock = threading.Lock()
        self.objects = 0
        self.bytes = 0

    def carry_out(self, pool: ThreadPoolExecutor, plan: UploadPlan) -> _Places:
        """Write all objects."""
        places: _Places = {}
        for packed in _each(pool, self._put_pack, list(enumerate(plan.packs))):
            places.update(packed)
        alone = _each(pool, self._put_alone, plan.alone)
        places.update(zip(plan.alone, alone, strict=True))
        return places

    def _put_pack(self, numbered: tuple[int, Pack]) -> _Places:
        number, pack = numbered
        key = self._names.pack(number, pack.size, shared=pack.shared)
        places: _Places = {}
        pieces, offset = [], 0
        for file in pack.files:
            places[file.content] = (key, offset)
            pieces.append(_read_checked(file))
            offset += file.size
        self._put(key, pack.size, lambda: self._store.put(key, b"".join(pieces)))
        return places

    def _put_alone(self, file: LocalFile) -> _Place:
        key = self._names.alone(self._parts[file.part].snapshots, file)
        self._put(key, file.size, lambda: self._store.put_file(key, file.path))
        return key, 0

    def _put(self, key: str, size: int, write: Callable[[], None]) -> None:
        if any(taken.cancel.is_set() for taken in self._taken):
            raise Retryable(f"upload was stopped: key={key}; the checkpoint is not completed")
        failpoints.hit("upload.before_object")
        write()
        stored = self._store.head(key)
        if stored is None or stored.size != size:
            found = None if stored is None else stored.size
            raise StoreUnavailable(
                f"store does not have what was uploaded: key={key} bytes={size} found={found}"
            )
        with self._lock:
            self.objects += 1
            self.bytes += size
        failpoints.hit("upload.after_object")


def _files_of(item: tuple[int, UploadPart, Taken]) -> list[LocalFile]:
    number, part, taken = item
    with disk_errors("read a local checkpoint", taken.path):
        paths = sorted(path for path in taken.path.iterdir() if not _is_empty_log(path))
        found = [(path, *part.snapshots.hashes.of(path)) for path in paths]
    return [LocalFile(number, *fields) for fields in found]


def _is_empty_log(path: Path) -> bool:
    """RocksDB's own log is unused; it leaves an empty file."""
    return path.suffix == ".log" and path.stat().st_size == 0


def _read_checked(file: LocalFile) -> bytes:
    """The bytes of a small file, which must be those that its digest was made of."""
    with disk_errors("read a local checkpoint", file.path):
        data = file.path.read_bytes()
    if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
        raise LocalDiskError(
            f"a file of a local checkpoint changed: path={file.path} bytes={len(data)} "
            f"expected={file.size}; check this volume's health"
        )
    return data


def _ref(
    file: LocalFile,
    plan: UploadPlan,
    places: _Places,
    names: Names,
) -> FileRef:
    known = plan.known.get(file)
    inline = _read_checked(file) if file in plan.inline else None
    if known is not None:
        key, offset = known.key, known.offset
    elif inline is not None:
        key, offset = "", 0
    else:
        key, offset = places[file] if file in places else places[file.content]
    return FileRef(
        name=file.path.name,
        key=key,
        offset=offset,
        size=file.size,
        sha256=file.sha256,
        xxh3=file.xxh3,
        shared=file.shared and names.shares,
        inline=inline,
    )


def _handle(snapshots: Snapshots, taken: Taken, files: list[FileRef]) -> RangeHandle:
    return RangeHandle(
        uid=snapshots.spec.uid,
        start=snapshots.spec.start,
        end=snapshots.spec.end,
        epoch=taken.version.epoch,
        digest=taken.version.digest,
        backend_uuid=snapshots.backend_uuid,
        files=files,
        bytes_total=sum(ref.size for ref in files),
        backend=snapshots.label or msgspec.UNSET,
    )


def _each(pool: ThreadPoolExecutor, action: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """The results in order; the first error stops what has not begun."""
    pending = [pool.submit(carried(action), item) for item in items]
    try:
        return [future.result() for future in pending]
    except BaseException:
        for future in pending:
            future.cancel()
        raise
