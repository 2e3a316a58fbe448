"""Canonical files of a subtask's state, from any backend into any storage.

Decides where the files of a snapshot lie and that with the driver's storage they travel within the
handle. Called by the asynchronous part of savepoints, and by restores.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from moorage_state.backends.handles import KeyedStateHandle
from moorage_state.backends.storage import CheckpointStreamFactory
from moorage_state.canonical import (
    CanonicalSpec,
    export_range,
    frames_of,
    handle_of,
    upload_files,
)
from moorage_state.canonical.export import ExportedFile
from moorage_state.database import RangeView
from moorage_state.deltas import Frame
from moorage_state.errors import LocalDiskError, MoorageError
from moorage_state.server.fetching import fetch_all
from moorage_state.snapshots import FileRef, RangeHandle, savepoint_key
from moorage_state.stores import MemoryStore, open_store

__all__ = ["frames_in", "inlined", "scratch", "write_canonical"]


@contextmanager
def scratch(directory: Path | None) -> Iterator[Path]:
    """A directory for the length of the with block."""
    try:
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="moorage-", dir=directory))
    except OSError as error:
        raise LocalDiskError(
            f"could not make a directory: within={directory or tempfile.gettempdir()} "
            f"error={error}; check space and health of this volume"
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def write_canonical(
    view: RangeView,
    spec: CanonicalSpec,
    factory: CheckpointStreamFactory,
    local_dir: Path | None,
    check: Callable[[], None],
) -> RangeHandle:
    """Write the files of `view` and bring them to the storage; what an error leaves is deleted.

    Args:
        check: asked between steps; raises to stop.
    """
    with scratch(local_dir) as directory:
        files = export_range(view, spec, directory)
        check()
        if factory.inline_bytes is None:
            return handle_of(spec, [_inline(file, factory) for file in files])
        store = factory.store
        prefix = factory.prefix
        try:
            handle = handle_of(spec, upload_files(files, spec, store, prefix=prefix))
            check()
        except BaseException:
            _delete(factory, spec, files)
            raise
    return handle


def frames_in(
    handle: KeyedStateHandle, first: int, last: int, local_dir: Path | None
) -> Iterator[Frame]:
    """The entries of the key groups `first` to `last`, as they are stored.

    Raises:
        CorruptState: an object is missing or damaged.
        StoreUnavailable: the store does not answer.
    """
    if handle.range is None:
        return
    # What is inline needs no store; any will do.
    store = open_store(handle.store_url) if handle.store_url else MemoryStore("inline")
    with scratch(local_dir) as directory:
        fetch_all(store, handle.range.files, directory)
        files = [
            (directory / ref.name, f"{handle.store_url}/{ref.key or '(within the handle)'}")
            for ref in handle.range.files
        ]
        yield from frames_of(files, max(first, handle.start), min(last, handle.end))


def inlined(handle: RangeHandle, store: MemoryStore) -> RangeHandle:
    """The handle with all bytes in it that are objects of `store`."""
    files = [
        ref
        if ref.inline is not None
        else msgspec.structs.replace(
            ref,
            key="",
            offset=0,
            shared=False,
            inline=store.get(ref.key, offset=ref.offset, length=ref.size),
        )
        for ref in handle.files
    ]
    return msgspec.structs.replace(handle, files=files)


def _inline(file: ExportedFile, factory: CheckpointStreamFactory) -> FileRef:
    factory.account(file.size)
    return FileRef(
        name=file.name,
        key="",
        size=file.size,
        sha256=file.sha256,
        shared=False,
        inline=file.path.read_bytes(),
    )


def _delete(
    factory: CheckpointStreamFactory, spec: CanonicalSpec, files: list[ExportedFile]
) -> None:
    for file in files:
        key = factory.prefix + savepoint_key(spec.uid, spec.start, spec.end, file.name)
        try:
            factory.store.delete(key)
        except MoorageError:
            return
