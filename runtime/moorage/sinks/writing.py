"""The writer of output files: one attempt's rows, by partition, at the place a sink gives them."""

from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from moorage.api.sinks import Committable, StageId
from moorage.sinks.formats import FileFormat, RowFile, open_file
from moorage.sinks.names import file_name
from moorage.sinks.partitions import check_partitioning, split, without

__all__ = ["FileWriter", "Place"]

_MAX_OPEN = 32
"""Files that one attempt keeps open."""

_GROUP_BYTES = 2 << 20
"""Rows wait in memory until there are so many, for a partition's share of a batch may be tiny."""


class Place(Protocol):
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
    """Writes rows to files, made at the first row of each partition; see `SinkWriter`."""

    def __init__(
        self,
        place: Place,
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
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._made: dict[str, Path] = {}
        self._done: list[Committable] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows to the files of their partitions."""
        if batch.num_rows == 0:
            return
        for folder, rows in split(batch, self._partition_by):
            self._file(folder).add(rows)

    def finish(self) -> list[Committable]:
        """Close all files and make them durable."""
        while self._open:
            self._close(next(iter(self._open)))
        return self._done

    def abort(self) -> None:
        """Remove every file of this attempt, whatever goes wrong while closing them."""
        with ExitStack() as stack:
            for name, path in self._made.items():
                stack.callback(self._place.drop, name, path)
            for file in self._open.values():
                stack.callback(file.rows.close)
            self._open = OrderedDict()

    def _file(self, folder: str) -> "_OpenFile":
        found = self._open.get(folder)
        if found is not None:
            self._open.move_to_end(folder)
            return found
        if len(self._open) >= _MAX_OPEN:
            self._close(next(iter(self._open)))
        name = file_name(self._stage, self._format)
        name = f"{folder}/{name}" if folder else name
        path = self._made[name] = self._place.create(name)
        file = _OpenFile(name, path, open_file(self._format, path, self._schema))
        self._open[folder] = file
        return file

    def _close(self, folder: str) -> None:
        file = self._open[folder]
        file.flush()
        del self._open[folder]
        file.rows.close()
        size = file.path.stat().st_size
        extra = self._place.keep(file.name, file.path)
        self._done.append({"file": file.name, **extra, "rows": file.count, "bytes": size})


class _OpenFile:
    def __init__(self, name: str, path: Path, rows: RowFile) -> None:
        self.name = name
        self.path = path
        self.rows = rows
        self.count = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self.count += rows.num_rows
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits as one row group."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if waiting:
            for batch in pa.Table.from_batches(waiting).combine_chunks().to_batches():
                self.rows.write_batch(batch)
