"""The writer of output files: one attempt's rows, by partition, at the place a sink gives them.

Decides the forms of files, Parquet and JSON with one row a line, and which columns can become
directories.
"""

import base64
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from moorage.api.sinks import Committable, StageId
from moorage.sinks.file_names import file_name
from moorage_state.errors import UserError, disk_errors

FileFormat = Literal["parquet", "json"]
_Convert = Callable[[Any], Any]
_encode = msgspec.json.Encoder(decimal_format="number").encode
_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^") | {chr(c) for c in (*range(1, 32), 127)}
_MAX_NAME_BYTES = 255
_MAX_ESCAPE = 255
"""The highest character that two hex digits can name."""

_TYPES = (pt.is_integer, pt.is_string, pt.is_large_string, pt.is_boolean, pt.is_date, pt.is_decimal)
_MAX_OPEN = 32
"""Files that one attempt keeps open."""

_GROUP_BYTES = 2 << 20
"""Rows wait in memory until there are so many, for a partition's share of a batch may be tiny."""

_WAITING_BYTES = 64 << 20
"""What waits of all partitions: with more, those that wait with the most are written."""

_COLUMN_BYTES = 512
"""What a column takes beside its values; those of a batch of one row are next to nothing."""


class RowFile(Protocol):
    """An output file that is being written."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        ...

    def close(self) -> None:
        """Write what is left; the file is whole afterwards, and not yet synced."""
        ...


def open_file(file_format: FileFormat, path: Path, schema: pa.Schema) -> RowFile:
    """A new file at `path`."""
    if file_format == "json":
        return _JsonFile(path, schema)
    writer: RowFile = pq.ParquetWriter(path, schema, compression="zstd")
    return writer


class _JsonFile:
    """JSON lines that Spark reads back as the same rows, given the schema."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._converters = [(field.name, _converter(field.type)) for field in schema]
        self._file = path.open("wb")

    def write_batch(self, batch: pa.RecordBatch) -> None:
        columns = [
            values if convert is None else [None if v is None else convert(v) for v in values]
            for (_, convert), values in zip(
                self._converters, (column.to_pylist() for column in batch.columns), strict=True
            )
        ]
        names = [name for name, _ in self._converters]
        for row in zip(*columns, strict=True):
            self._file.write(_encode(dict(zip(names, row, strict=True))) + b"\n")

    def close(self) -> None:
        self._file.close()


def _converter(kind: pa.DataType) -> _Convert | None:
    """What turns a value into what JSON says for it; None where it does by itself."""
    if pt.is_floating(kind):
        return _number
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pt.is_list(kind) or pt.is_large_list(kind):
        return _each(_converter(kind.value_type))
    if pt.is_map(kind):
        item = _or_same(_converter(kind.item_type))
        return lambda pairs: {str(key): item(value) for key, value in pairs}
    if pt.is_struct(kind):
        fields = {field.name: _or_same(_converter(field.type)) for field in kind}
        return lambda row: {name: convert(row[name]) for name, convert in fields.items()}
    return None


def _number(value: float) -> float | str:
    """JSON has no words for these; Spark reads and writes them as strings."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"


def _each(convert: _Convert | None) -> _Convert | None:
    if convert is None:
        return None
    item = _or_same(convert)
    return lambda values: [item(value) for value in values]


def _or_same(convert: _Convert | None) -> _Convert:
    return lambda value: value if value is None or convert is None else convert(value)


def check_partitioning(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise UserError where rows of `schema` cannot be partitioned by `columns`."""
    missing = [name for name in columns if name not in schema.names]
    if missing or len(set(columns)) < len(columns):
        raise UserError(
            f"partition_by needs different columns of the stream: partition_by={list(columns)} "
            f"columns={schema.names}"
        )
    if columns and len(columns) == len(schema.names):
        raise UserError(
            f"partition_by takes every column, so nothing is left for the files: "
            f"columns={schema.names}; leave one out"
        )
    if hidden := [name for name in columns if name.startswith(".")]:
        raise UserError(
            f"readers skip directories that start with a dot; rename the column: columns={hidden}"
        )
    for name in columns:
        if not any(check(schema.field(name).type) for check in _TYPES):
            raise UserError(
                f"this type has no sure spelling as a directory name: column={name} "
                f"type={schema.field(name).type}; partition by a string, a whole number, a "
                f"decimal, a boolean or a date"
            )


def without(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """What is left for the files."""
    return pa.schema([field for field in schema if field.name not in columns])


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The directory and the rows, without its columns, of each partition; rows keep their order."""
    if not columns:
        yield "", batch
        return
    rest = batch.select([name for name in batch.schema.names if name not in columns])
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    for name in columns:
        encoded = batch.column(name).dictionary_encode()
        indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        # Renumbered from 0 after each column, so that no product of sizes can overflow.
        codes = codes * (len(encoded.dictionary) + 1) + indices + 1
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for start, end in pairwise([*starts, len(order)]):
        rows = order[start:end]
        first = int(rows[0])
        yield (
            "/".join(partition_name(name, batch.column(name)[first].as_py()) for name in columns),
            rest.take(pa.array(rows)),
        )


def partition_name(column: str, value: Any) -> str:
    """`column=value`, escaped; null and the empty string are one partition, as in Spark.

    Raises:
        UserError: the value cannot be the name of a directory.
    """
    name = f"{_escape(column)}={_escape(_text(value))}"
    if len(name.encode()) > _MAX_NAME_BYTES or not name.isprintable():
        raise UserError(
            f"a partition value is too long for a directory name, or has characters that cannot "
            f"be printed: column={column} value={str(value)[:80]!r}"
        )
    return name


def _text(value: Any) -> str:
    if value is None or value == "":
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.isoformat() if isinstance(value, date) else str(value)


def _escape(text: str) -> str:
    def escaped(char: str) -> str:
        must = char in _ESCAPED or (not char.isprintable() and 0 < ord(char) <= _MAX_ESCAPE)
        return f"%{ord(char):02X}" if must else char

    return "".join(map(escaped, text))


class StagingArea(Protocol):
    """Where an attempt's files go."""

    def create(self, file: str) -> Path:
        """The local path to write the new file at."""
        ...

    def keep(self, file: str, path: Path) -> Committable:
        """Make a finished file durable; returns what else the committable holds."""
        ...

    def drop(self, file: str, path: Path) -> None:
        """Remove a file, finished or not."""
        ...


class FileWriter:
    """Writes rows to files, made when the first rows of a partition are; see `SinkWriter`."""

    def __init__(
        self,
        place: StagingArea,
        stage: StageId,
        schema: pa.Schema,
        file_format: FileFormat = "parquet",
        partition_by: tuple[str, ...] = (),
    ) -> None:
        check_partitioning(schema, partition_by)
        self._place = place
        self._stage = stage
        self._schema = without(schema, partition_by)
        self._format: FileFormat = file_format
        self._partition_by = partition_by
        self._waiting: dict[str, _Waiting] = {}
        self._waiting_bytes = 0
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._made: dict[str, Path] = {}
        self._done: list[Committable] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows to the files of their partitions."""
        if batch.num_rows == 0:
            return
        for folder, rows in split(batch, self._partition_by):
            waiting = self._waiting.setdefault(folder, _Waiting())
            self._waiting_bytes += waiting.add(rows)
            if waiting.bytes >= _GROUP_BYTES:
                self._flush(folder)
        if self._waiting_bytes >= _WAITING_BYTES:
            self._make_room()

    def finish(self) -> list[Committable]:
        """Close all files and make them durable."""
        for folder in [*self._open, *self._waiting]:
            self._close(folder)
        return self._done

    def abort(self) -> None:
        """Remove every file of this attempt, whatever goes wrong while closing them."""
        self._waiting = {}
        with ExitStack() as stack:
            for name, path in self._made.items():
                stack.callback(self._place.drop, name, path)
            for file in self._open.values():
                stack.callback(file.close)
            self._open = OrderedDict()

    def _make_room(self) -> None:
        """Write what waits for the partitions with the most, until half is written."""
        for folder in sorted(self._waiting, key=lambda f: self._waiting[f].bytes, reverse=True):
            if self._waiting_bytes < _WAITING_BYTES // 2:
                break
            self._flush(folder)

    def _flush(self, folder: str) -> None:
        """Write what waits for a partition as one row group."""
        waiting = self._waiting.pop(folder, None)
        if waiting is None:
            return
        self._waiting_bytes -= waiting.bytes
        file = self._file(folder)
        # One row group, whatever the batches were cut like.
        for batch in pa.Table.from_batches(waiting.batches).combine_chunks().to_batches():
            with disk_errors("write an output file", file.path):
                file.rows.write_batch(batch)
            file.count += batch.num_rows

    def _file(self, folder: str) -> "_OpenFile":
        found = self._open.get(folder)
        if found is not None:
            self._open.move_to_end(folder)
            return found
        # A file of a partition that comes again later is another file: open ones cost memory.
        if len(self._open) >= _MAX_OPEN:
            self._close(next(iter(self._open)))
        name = file_name(self._stage, self._format)
        name = f"{folder}/{name}" if folder else name
        path = self._made[name] = self._place.create(name)
        with disk_errors("make an output file", path):
            file = _OpenFile(name, path, open_file(self._format, path, self._schema))
        self._open[folder] = file
        return file

    def _close(self, folder: str) -> None:
        """Close the file of a partition, with what waits; nothing if that is done."""
        self._flush(folder)
        file = self._open.pop(folder, None)
        if file is None:
            return
        size = file.close()
        extra = self._place.keep(file.name, file.path)
        self._done.append({"file": file.name, **extra, "rows": file.count, "bytes": size})


class _Waiting:
    """Rows of a partition that are not written yet."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.bytes = 0

    def add(self, rows: pa.RecordBatch) -> int:
        """Let rows wait; returns the bytes that they take."""
        taken: int = rows.nbytes + _COLUMN_BYTES * (1 + rows.num_columns)
        self.batches.append(rows)
        self.bytes += taken
        return taken


@dataclass(slots=True)
class _OpenFile:
    name: str
    path: Path
    rows: RowFile
    count: int = 0

    def close(self) -> int:
        """Write what is left; returns the size in bytes."""
        with disk_errors("write an output file", self.path):
            self.rows.close()
            return self.path.stat().st_size
