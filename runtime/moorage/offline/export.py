"""`state export`: one state as a file that other programs read (Parquet, JSON lines, CSV).

A file exists whole or not at all. Memory holds one row group, or one batch of rows.
"""

import csv
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from moorage.offline.state_queries import whole_name
from moorage.offline.value_text import json_value, show_value
from moorage.state.reader import select, selected_rows
from moorage.state.snapshot_path import Found, unless_retired
from moorage_state.canonical import LAST_ACCESS, FileMeta, namespace_columns, schema_of
from moorage_state.canonical.file_schema import key_columns
from moorage_state.errors import LocalDiskError, UserError
from moorage_state.types import StateType, parse_type

FORMS = (".parquet", ".jsonl", ".csv")

_ROW_GROUP_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written; the size in bytes."""

    uid: str
    state: str
    file: str
    rows: int
    bytes: int


def export(
    found: Found,
    name: str,
    target: Path,
    *,
    force: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Exported:
    """Write all rows of a state, in the order of key groups and stored keys.

    Args:
        name: `UID/STATE`; `UID/_timers` for timers.
        target: ends in one of `FORMS`.
        progress: called with how many more ranges were written, and how many there are.

    Raises:
        UserError: no such state, another ending, or the file is there; or the checkpoint was
            retired meanwhile.
        LocalDiskError: the file cannot be written; nothing of it is left.
        CorruptState, StoreUnavailable: see `moorage.state.read`; nothing of it is left.
    """
    uid, state = whole_name(found, name)
    if target.suffix not in FORMS:
        raise UserError(
            f"file of an export has an unknown ending: file={target}; end it in {', '.join(FORMS)}"
        )
    if not force and os.path.lexists(target):
        raise _taken(target)
    selection = select(found.snapshot, uid, state)
    rows = 0
    kept = unless_retired(found.store, found.checkpoint)
    with kept, _placed(target, force=force) as partial:
        with _writer(partial, target, selection.meta) as writer:
            for handle in selection.handles:
                for batch in selected_rows(selection, handle):
                    with _disk_errors(target):
                        writer.write(batch)
                    rows += batch.num_rows
                progress(1, len(selection.handles))
        size = partial.stat().st_size
    return Exported(uid, state, str(target), rows, size)


def _taken(target: Path) -> UserError:
    return UserError(f"file of an export exists: file={target}; name another, or pass --force")


@contextmanager
def _placed(target: Path, *, force: bool) -> Iterator[Path]:
    """A name beside `target` to write under; what is there at the end takes the place."""
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        with _disk_errors(target):
            _sync(partial)
            # Complete and on disk before it takes the place: a reader sees all of it or nothing.
            if force:
                partial.replace(target)
            else:
                _link(partial, target)
            _sync(target.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _link(partial: Path, target: Path) -> None:
    """Name the file without replacing one that somebody else put there meanwhile."""
    try:
        os.link(partial, target)
    except FileExistsError as error:
        raise _taken(target) from error
    except OSError:
        # Some file systems have no hard links; then nothing better than looking again is left.
        if os.path.lexists(target):
            raise _taken(target) from None
        partial.replace(target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalDiskError(
            f"cannot write the file of an export: file={target} error={error.strerror or error}; "
            f"nothing of it is left; make room, or choose a directory that exists and is writable"
        ) from error


class _Writer(Protocol):
    """Writes batches into a new file."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""

    def close(self) -> None:
        """Finish the file."""


@contextmanager
def _writer(path: Path, target: Path, meta: FileMeta) -> Iterator[_Writer]:
    kinds: dict[str, Callable[[Path, FileMeta], _Writer]] = {
        ".parquet": _ParquetWriter,
        ".jsonl": _JsonWriter,
        ".csv": _CsvWriter,
    }
    with _disk_errors(target):
        writer = kinds[target.suffix](path, meta)
    try:
        yield writer
    finally:
        with _disk_errors(target):
            writer.close()


class _ParquetWriter:
    """Row groups are of as many batches as make reading worth it."""

    def __init__(self, path: Path, meta: FileMeta) -> None:
        self._file = pq.ParquetWriter(path, schema_of(meta), compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._file.close()

    def _flush(self) -> None:
        if self._waiting:
            self._file.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._bytes = [], 0


class _JsonWriter:
    def __init__(self, path: Path, meta: FileMeta) -> None:
        self._file = path.open("x", encoding="utf-8")
        self._types = _column_types(meta)

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            plain = {name: json_value(kind, row[name]) for name, kind in self._types.items()}
            self._file.write(json.dumps(plain, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


class _CsvWriter:
    def __init__(self, path: Path, meta: FileMeta) -> None:
        self._file = path.open("x", encoding="utf-8", newline="")
        self._types = _column_types(meta)
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow(self._types)

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self._rows.writerow(show_value(kind, row[name]) for name, kind in self._types.items())

    def close(self) -> None:
        self._file.close()


def _column_types(meta: FileMeta) -> dict[str, StateType]:
    """The columns in order, and the types of their values."""
    fixed = {
        "key_group": "int",
        "list_epoch": "bigint",
        "list_ordinal": "bigint",
        "piece": "bigint",
    }
    fixed |= {"kind": "string", "time": "bigint", "value": meta.type, LAST_ACCESS: "bigint"}
    fixed |= dict(zip(namespace_columns(meta), meta.namespace_types, strict=True))
    keys = dict(zip(key_columns(len(meta.key_types)), meta.key_types, strict=True))
    names = schema_of(meta).names
    types = {**fixed, **keys, "map_key": meta.key_type or ""}
    return {name: parse_type(types[name]) for name in names}
