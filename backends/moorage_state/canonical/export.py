"""Writing: one range of an operator as canonical files, and their upload.

Decides what a file is: one state of one range, one row group for each key group that has data (more
for one that is too large to hold), compressed with zstd. Called by the state server beside running
epochs, with the hard-linked copy of a database, and by whoever writes savepoints.

Rows come from one pass over key groups, in the order of stored keys: a batch never spans two key
groups, memory stays bounded however large a group is, and nothing in the database is passed over.
"""

import hashlib
import os
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from moorage_state.canonical.file_schema import file_name, with_meta
from moorage_state.canonical.rows import SIDE_ENTRIES, RowBuffer, side_parts, side_place, stored_id
from moorage_state.canonicalspec import SIDE_KINDS, TIMERS, CanonicalSpec, FileMeta
from moorage_state.database import RangeCursor, RangeDatabase, RangeView
from moorage_state.errors import (
    CorruptState,
    LocalDiskError,
    Retryable,
    StoreUnavailable,
    disk_errors,
)
from moorage_state.keylayout import EVENT_TIMERS, EXPIRIES, KEYED_STATE, PROCESSING_TIMERS
from moorage_state.snapshots import FileRef, RangeHandle, savepoint_key
from moorage_state.stores import ObjectStore, check_key

SCAN_BYTES = 32 << 20
"""What is held of a key group, at most, before a batch is given out."""

_HEAD = struct.Struct(">HBI")
_ID_BYTES = 4
_PAGE_ENTRIES = 10_000
_PAGE_BYTES = 8 << 20
_ADVICE = "restore an older checkpoint, or a savepoint"

_COMPRESSION_LEVEL = 3


def scan_rows(
    database: RangeView,
    metas: Sequence[FileMeta],
    ranges: Sequence[tuple[int, int]],
    *,
    states: Collection[str] | None = None,
    keys: Collection[bytes] | None = None,
    budget: int = SCAN_BYTES,
) -> Iterator[tuple[FileMeta, pa.RecordBatch]]:
    """Rows of each state, by key group; within one in the order of stored keys.

    A key group gives one batch of each state that has data in it, and more where all that is held
    would take more than `budget` bytes.

    Args:
        metas: all states of the operator, the timers included.
        ranges: the key groups to scan, as (first, last), in order.
        states: the states to give; None for all.
        keys: the canonical bytes of the keys to give; None for all.

    Raises CorruptState where the database holds what the operator did not declare, or is damaged,
    and LocalDiskError.
    """
    scan = _Scan(database, metas, states, keys, budget)
    for first, last in ranges:
        for meta, batch in scan.run(first, last):
            if batch.num_rows:
                yield meta, batch


class _Scan:
    def __init__(
        self,
        database: RangeView,
        metas: Sequence[FileMeta],
        states: Collection[str] | None,
        keys: Collection[bytes] | None,
        budget: int,
    ) -> None:
        self._path = str(database.path)
        self._database = database
        self._keys = keys
        self._budget = budget
        self._buffers: dict[bytes, RowBuffer | None] = {}
        self._sides: dict[bytes, RowBuffer | None] = {}
        for meta in metas:
            buffer = RowBuffer(meta) if states is None or meta.state in states else None
            if meta.kind in SIDE_KINDS:
                self._sides[side_place(meta, stored_id(meta))] = buffer
            else:
                self._buffers[stored_id(meta)] = buffer
        everything = (*self._buffers.values(), *self._sides.values())
        self._wanted = [buffer for buffer in everything if buffer is not None]
        self._expires = any(meta.ttl_ms is not None for meta in metas)
        self._packs_timers = any(meta.state == TIMERS for meta in metas)

    def run(self, first: int, last: int) -> Iterator[tuple[FileMeta, pa.RecordBatch]]:
        lower, upper = _start(first), _start(last + 1)
        with self._database.cursor(lower, upper) as cursor:
            found = cursor.seek(lower)
            while found is not None:
                group, kind = int.from_bytes(found[:2], "big"), found[2:3]
                if kind == bytes([KEYED_STATE]) or (kind[0] in SIDE_ENTRIES and self._sides):
                    yield from self._group(cursor, group, kind[0])
                    found = cursor.key()
                elif kind[0] in {EVENT_TIMERS, PROCESSING_TIMERS} and self._packs_timers:
                    # The indexes by time say what the packed timers say.
                    found = cursor.seek(_start(group) + bytes([kind[0] + 1]))
                elif kind[0] == EXPIRIES and self._expires:
                    # This index says what the stamps say.
                    found = cursor.seek(_start(group) + bytes([EXPIRIES + 1]))
                else:
                    raise self._corrupt(f"an entry of unknown kind {kind.hex()}", group)

    def _group(
        self, cursor: RangeCursor, group: int, kind: int
    ) -> Iterator[tuple[FileMeta, pa.RecordBatch]]:
        end = _start(group) + bytes([kind + 1])
        collect = self._collect if kind == KEYED_STATE else self._collect_sides
        complete = False
        while not complete:
            keys, values, complete = cursor.take(end, _PAGE_ENTRIES, _PAGE_BYTES)
            collect(group, keys, values)
            # However large a key group is: the largest buffer becomes a batch of its own.
            while sum(buffer.bytes for buffer in self._wanted) > self._budget:
                yield self._taken(max(self._wanted, key=lambda b: b.bytes), group)
        for buffer in self._wanted:
            if buffer:
                yield self._taken(buffer, group)

    def _collect(self, group: int, keys: list[bytes], values: list[bytes]) -> None:
        buffers, only = self._buffers, self._keys
        try:
            for entry, value in zip(keys, values, strict=True):
                at = _HEAD.size + _HEAD.unpack_from(entry)[2]
                key = entry[_HEAD.size : at]
                buffer = buffers[entry[at : at + _ID_BYTES]]
                if buffer is not None and (only is None or key in only):
                    buffer.add(key, entry[at + _ID_BYTES :], value)
        except KeyError as error:
            raise self._corrupt("an entry of a state that was not declared", group) from error
        except struct.error as error:
            raise self._corrupt(f"an entry with a torn key ({error})", group) from error

    def _collect_sides(self, group: int, keys: list[bytes], values: list[bytes]) -> None:
        try:
            for entry, value in zip(keys, values, strict=True):
                place, rest = side_parts(entry)
                buffer = self._sides[place]
                if buffer is not None:
                    buffer.add(b"", rest, value)
        except KeyError as error:
            raise self._corrupt("an entry of an operator state not declared", group) from error

    def _taken(self, buffer: RowBuffer, group: int) -> tuple[FileMeta, pa.RecordBatch]:
        try:
            return buffer.meta, buffer.take(group)
        except ValueError as error:
            what = f"a value that is not of its state's type ({error})"
            raise self._corrupt(f"{what}: state={buffer.meta.state}", group) from error

    def _corrupt(self, what: str, group: int) -> CorruptState:
        return CorruptState(f"database holds {what}: key_group={group}", self._path, _ADVICE)


def _start(group: int) -> bytes:
    """The least key of a key group."""
    return group.to_bytes(2, "big")


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

    Every declared state gets a file, also one without rows; timers get one if there are any. Memory
    is bounded by `budget` bytes of rows, not by the size of the range. Raises as `scan_rows`, and
    UserError where a declared type is not known.
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

    Args:
        snapshot: a directory with the files of a copy, which `open_copy` reads; or state in memory.
        scratch: a directory of the same volume that is made, and deleted again.
        prefix: what keys begin with, ending in `/`; empty in a store that is the savepoint's own.
        digest: the digest of the epoch's delta, as the handle records it.
        stopped: asked between files whether to give up; `Retryable` then.

    Raises as `export_range`, and StoreUnavailable.
    """
    copy, output = scratch / "db", scratch / "files"
    with disk_errors("make a directory for an export", scratch):
        shutil.rmtree(scratch, ignore_errors=True)
        output.mkdir(parents=True)
        if isinstance(snapshot, Path):
            # The copy is not changed: epochs and native uploads go on beside it.
            _link_database(snapshot, copy)
    try:
        if isinstance(snapshot, Path):
            with closing(open_copy(copy)) as database:
                files = export_range(database, spec, output)
        else:
            files = export_range(snapshot, spec, output)
        refs = upload_files(files, spec, store, prefix=prefix, stopped=stopped)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return handle_of(spec, refs, digest=digest, backend_uuid=backend_uuid)


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
    """The files of a range while they are being written, until the end of the with block."""

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
            with disk_errors("finish a canonical file", self._directory):
                self._stack.close()
        except LocalDiskError:
            self._discard()
            raise
        # What an error leaves must not be taken for a whole file.
        if kind is not None:
            self._discard()

    def open(self, meta: FileMeta) -> pq.ParquetWriter:
        """Begin the file of a state."""
        path = self._directory / file_name(meta.state)
        self._begun.append(path)
        with disk_errors("create a canonical file", path):
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
        with disk_errors("write a canonical file", self._directory):
            table = pa.Table.from_batches([batch]).cast(writer.schema)
            writer.write_table(table, row_group_size=max(1, batch.num_rows))
        self._rows[meta.state] += batch.num_rows

    def finished(self) -> list[ExportedFile]:
        """What was written, by name; after the with block."""
        return [self._finished(state) for state in sorted(self._writers)]

    def _finished(self, state: str) -> ExportedFile:
        path = self._directory / file_name(state)
        with disk_errors("read a canonical file", path), path.open("rb") as file:
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
