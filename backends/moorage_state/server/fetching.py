"""Bytes of a checkpoint's files: from a local copy, from objects of the store, or inline.

Decides how the files of one handle come into a directory with few requests (neighbouring slices of
one object are fetched together) and when they may be trusted: only with the size and digest that
the manifest says. Called by `restore`, under the lock of the range's directory.
"""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from moorage_state.errors import CorruptState, ObjectNotFound
from moorage_state.progress import carried
from moorage_state.server.directory import disk_errors, link_or_copy
from moorage_state.server.local_snapshots import is_right
from moorage_state.snapshots import FileRef
from moorage_state.stores import ObjectStore

__all__ = ["fetch_all", "is_whole", "link_all"]

_TRANSFERS = 4
_ADVICE = "restore an older checkpoint, or this object from a backup of the store"

_JOINED_BYTES = 8 << 20
"""Slices of one object are fetched together up to this size; it is held in memory."""

_GAP_BYTES = 64 << 10
"""Unwanted bytes between two slices that are worth less than another request."""


def fetch_all(store: ObjectStore, files: list[FileRef], target: Path) -> None:
    """Write every file into the directory `target`, which exists, and check its bytes.

    Raises:
        CorruptState: an object is missing or damaged; names it.
        StoreUnavailable: the store does not answer.
        LocalDiskError: the volume is full.
    """
    with ThreadPoolExecutor(_TRANSFERS, "download") as pool:
        pending = [pool.submit(carried(_fetch), store, group, target) for group in _joined(files)]
        try:
            for future in pending:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def is_whole(directory: Path, files: list[FileRef]) -> bool:
    """Whether every file is there with the right bytes."""

    def is_there(ref: FileRef) -> bool:
        try:
            return is_right(directory / ref.name, ref)
        except OSError:
            return False

    if not directory.is_dir():
        return False
    with ThreadPoolExecutor(_TRANSFERS, "verify") as pool:
        return all(pool.map(carried(is_there), files))


def link_all(source: Path, files: list[FileRef], target: Path) -> None:
    """Make the directory `target` of the same files as `source`. Raises OSError."""
    target.mkdir(parents=True)
    for ref in files:
        link_or_copy(source / ref.name, target / ref.name)


def _joined(files: Iterable[FileRef]) -> list[list[FileRef]]:
    """Group files that one request brings: neighbouring slices of an object, inline ones alone."""
    groups: list[list[FileRef]] = []
    for ref in sorted(files, key=lambda ref: (ref.key, ref.offset)):
        first, last = (groups[-1][0], groups[-1][-1]) if groups else (None, None)
        if (
            first is not None
            and last is not None
            and ref.inline is None
            and ref.key == first.key
            and ref.offset - (last.offset + last.size) <= _GAP_BYTES
            and ref.offset + ref.size - first.offset <= _JOINED_BYTES
        ):
            groups[-1].append(ref)
        else:
            groups.append([ref])
    return groups


def _fetch(store: ObjectStore, group: list[FileRef], target: Path) -> None:
    first = group[0]
    if first.inline is not None:
        _write(store, first, first.inline, target)
    elif len(group) == 1:
        _fetch_one(store, first, target / first.name)
    else:
        length = max(ref.offset + ref.size for ref in group) - first.offset
        try:
            data = store.get(first.key, offset=first.offset, length=length)
        except ObjectNotFound as error:
            raise _missing(store, first) from error
        for ref in group:
            begin = ref.offset - first.offset
            _write(store, ref, data[begin : begin + ref.size], target)


def _fetch_one(store: ObjectStore, ref: FileRef, path: Path) -> None:
    try:
        store.get_to_file(ref.key, path, offset=ref.offset, length=ref.size)
    except ObjectNotFound as error:
        raise _missing(store, ref) from error
    with disk_errors("read a downloaded file", path):
        size, right = path.stat().st_size, is_right(path, ref)
    if not right:
        raise _damaged(store, ref, size)


def _write(store: ObjectStore, ref: FileRef, data: bytes, target: Path) -> None:
    if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise _damaged(store, ref, len(data))
    with disk_errors("write a file of a checkpoint", target / ref.name):
        (target / ref.name).write_bytes(data)


def _damaged(store: ObjectStore, ref: FileRef, size: int) -> CorruptState:
    what = "holds other bytes" if size == ref.size else f"has {size} bytes, not {ref.size}"
    return CorruptState(
        f"object of a checkpoint is damaged: file={ref.name} {what}", _where(store, ref), _ADVICE
    )


def _missing(store: ObjectStore, ref: FileRef) -> CorruptState:
    return CorruptState("object of a checkpoint is missing", _where(store, ref), _ADVICE)


def _where(store: ObjectStore, ref: FileRef) -> str:
    return f"{store.url}/{ref.key}" if ref.key else f"{ref.name}, inline in the manifest"
