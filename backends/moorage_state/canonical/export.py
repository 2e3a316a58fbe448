"""Writing: one range of an operator as canonical files, and their upload.

Decides what a file is: one state of one range, one row group for each key group that has data (more
for one that is too large to hold), compressed with zstd. Called by the state server beside running
epochs, with the hard-linked copy of a database, and by whoever writes savepoints.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from moorage_state.canonical.layout import file_name, with_meta
from moorage_state.canonical.scanning import SCAN_BYTES, scan_rows
from moorage_state.canonicalspec import TIMERS, CanonicalSpec, FileMeta
from moorage_state.database import RangeDatabase, RangeView
from moorage_state.errors import LocalDiskError, Retryable, StoreUnavailable
from moorage_state.snapshots import FileRef, RangeHandle, savepoint_key
from moorage_state.stores import ObjectStore, check_key

__all__ = ["ExportedFile", "export_range", "export_snapshot", "handle_of", "upload_files"]

_COMPRESSION_LEVEL = 3


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file that was written. `size` is in bytes, `sha256` in hex."""

    name: str
    path: Path
    size: int
    sha256: str
    rows: int


def export_range(
    database: RangeView, spec: CanonicalSpec, directory: Path, *, budget: int = SCAN_BYTES
) -> list[ExportedFile]:
    """Write the files of one range into `directory`, which exists.

    Every declared state gets a file, also one without rows; timers get one if there are any.
    Memory is bounded by `budget` bytes of rows, not by the size of the range.

    Raises:
        CorruptState: the database is damaged, or holds what is not declared.
        LocalDiskError: the volume is full or cannot be read.
        UserError: a declared type is not known.
    """
    metas = spec.metas()
    with _Files(directory) as files:
        for meta in metas:
            if meta.state != TIMERS:
                files.open(meta)
        ranges = [(spec.start, spec.end)]
        for meta, batch in scan_rows(database, metas, ranges, budget=budget):
            files.write(meta, batch)
    return files.finished()


def export_snapshot(
    snapshot: Path | RangeView,
    spec: CanonicalSpec,
    scratch: Path,
    store: ObjectStore,
    *,
    open_copy: Callable[[Path], RangeDatabase],
    prefix: str = "",
    digest: str = "",
    backend_uuid: str = "",
    stopped: Callable[[], bool] = lambda: False,
) -> RangeHandle:
    """Bring a copy of a range to the store in the canonical format.

    The copy is not changed, so epochs and native uploads go on beside it.

    Args:
        snapshot: a directory with the files of a copy; or state in memory.
        scratch: a directory of the same volume that is made, and deleted again.
        open_copy: opens such files to be read.
        prefix: what keys begin with, ending in `/`; empty in a store that is the savepoint's own.
        digest: the digest of the epoch's delta, as the handle records it.
        stopped: asked between files whether to give up.

    Raises:
        CorruptState, LocalDiskError, UserError: see `export_range`.
        Retryable: it was stopped.
        StoreUnavailable: the store does not answer.
    """
    copy, output = scratch / "db", scratch / "files"
    with _disk_errors("make a directory for an export", scratch):
        shutil.rmtree(scratch, ignore_errors=True)
        output.mkdir(parents=True)
        if isinstance(snapshot, Path):
            _link_database(snapshot, copy)
    try:
        if isinstance(snapshot, Path):
            files = _export_files(open_copy(copy), spec, output)
        else:
            files = export_range(snapshot, spec, output)
        refs = upload_files(files, spec, store, prefix=prefix, stopped=stopped)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return handle_of(spec, refs, digest=digest, backend_uuid=backend_uuid)


def _export_files(database: RangeDatabase, spec: CanonicalSpec, output: Path) -> list[ExportedFile]:
    try:
        return export_range(database, spec, output)
    finally:
        database.close()


def upload_files(
    files: Sequence[ExportedFile],
    spec: CanonicalSpec,
    store: ObjectStore,
    *,
    prefix: str = "",
    stopped: Callable[[], bool] = lambda: False,
) -> list[FileRef]:
    """Put the files under `<prefix><uid>/<start>-<end>/<name>`; see `export_snapshot`."""
    refs = []
    for file in files:
        if stopped():
            raise Retryable(
                f"export was stopped: uid={spec.uid} range={spec.start}-{spec.end}; "
                f"the savepoint is not completed"
            )
        key = check_key(prefix + savepoint_key(spec.uid, spec.start, spec.end, file.name))
        store.put_file(key, file.path)
        stored = store.head(key)
        if stored is None or stored.size != file.size:
            found = None if stored is None else stored.size
            raise StoreUnavailable(
                f"store does not have what was uploaded: key={key} bytes={file.size} found={found}"
            )
        refs.append(
            FileRef(name=file.name, key=key, size=file.size, sha256=file.sha256, shared=False)
        )
    return refs


def handle_of(
    spec: CanonicalSpec, refs: list[FileRef], *, digest: str = "", backend_uuid: str = ""
) -> RangeHandle:
    """The handle of a range whose files are in the store."""
    return RangeHandle(
        uid=spec.uid,
        start=spec.start,
        end=spec.end,
        epoch=spec.epoch,
        digest=digest,
        backend_uuid=backend_uuid,
        files=refs,
        bytes_total=sum(ref.size for ref in refs),
        format="canonical",
    )


class _Files:
    """The files of a range while they are being written; all closed at the end of the with block.

    What an error leaves is deleted.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._begun: list[Path] = []
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._rows: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_rest: object) -> None:
        try:
            with _disk_errors("finish a canonical file", self._directory):
                self._stack.close()
        except LocalDiskError:
            self._discard()
            raise
        if kind is not None:
            self._discard()

    def open(self, meta: FileMeta) -> pq.ParquetWriter:
        """Begin the file of a state."""
        path = self._directory / file_name(meta.state)
        self._begun.append(path)
        with _disk_errors("create a canonical file", path):
            writer = pq.ParquetWriter(
                path, with_meta(meta), compression="zstd", compression_level=_COMPRESSION_LEVEL
            )
        self._stack.callback(writer.close)
        self._writers[meta.state] = writer
        self._rows[meta.state] = 0
        return writer

    def write(self, meta: FileMeta, batch: pa.RecordBatch) -> None:
        """Add one row group."""
        writer = self._writers.get(meta.state) or self.open(meta)
        with _disk_errors("write a canonical file", self._directory):
            table = pa.Table.from_batches([batch]).cast(writer.schema)
            writer.write_table(table, row_group_size=max(1, batch.num_rows))
        self._rows[meta.state] += batch.num_rows

    def finished(self) -> list[ExportedFile]:
        """What was written, by name; after the with block."""
        return [self._finished(state) for state in sorted(self._writers)]

    def _finished(self, state: str) -> ExportedFile:
        path = self._directory / file_name(state)
        with _disk_errors("read a canonical file", path), path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size = path.stat().st_size
        return ExportedFile(path.name, path, size, sha256, self._rows[state])

    def _discard(self) -> None:
        for path in self._begun:
            with suppress(OSError):
                path.unlink()


def _link_database(source: Path, target: Path) -> None:
    """A directory that may be opened: that changes no file, but may leave others beside them."""
    target.mkdir()
    for path in source.iterdir():
        try:
            os.link(path, target / path.name)
        except OSError:  # a volume without hard links
            shutil.copyfile(path, target / path.name)


@contextmanager
def _disk_errors(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalDiskError(
            f"could not {what}: path={path} error={error}; check space and health of this volume"
        ) from error
