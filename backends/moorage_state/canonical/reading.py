"""Reading: canonical files as batches of rows, and as writes to a database.

Decides which row groups have to be read for some key groups, and that a file is believed only when
it is of the state and range that it is taken for. Called by restores and by readers of savepoints;
the files' bytes have been checked against the manifest before.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moorage_state.canonical.file_schema import file_name, read_meta
from moorage_state.canonical.rows import RowReader
from moorage_state.canonicalspec import FileMeta
from moorage_state.deltas import Frame
from moorage_state.errors import CorruptState

_BATCH_ROWS = 20_000
_ADVICE = "restore this object from a backup, or use another savepoint"
_READ_ERRORS = (pa.ArrowException, OSError, ValueError)


class CanonicalFile:
    """One open file, with what it says of itself (`meta`); a context manager.

    `where` is where it came from, for errors.

    Raises (constructor and methods): CorruptState where it is no canonical file, or is damaged;
    UserError where a newer Moorage wrote it.
    """

    def __init__(self, path: Path, where: str = "") -> None:
        self.where = where or str(path)
        try:
            self._file = pq.ParquetFile(path, memory_map=True)
        except _READ_ERRORS as error:
            raise self._damaged(error) from error
        try:
            self.meta: FileMeta = read_meta(self._file.schema_arrow, self.where)
            self._refuse_others()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    def row_groups(self, first: int, last: int) -> list[int]:
        """The row groups that may have rows of the key groups `first` to `last`."""
        metadata = self._file.metadata
        return [n for n in range(metadata.num_row_groups) if self._may_hold(n, first, last)]

    def batches(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """The rows of the key groups `first` to `last`, in order."""
        try:
            wanted = self.row_groups(first, last)
            if not wanted:
                return
            for batch in self._file.iter_batches(_BATCH_ROWS, row_groups=wanted):
                groups = batch.column("key_group")
                inside = pc.and_(pc.greater_equal(groups, first), pc.less_equal(groups, last))
                kept = batch.filter(inside)
                if kept.num_rows:
                    yield kept.replace_schema_metadata(None)
        except _READ_ERRORS as error:
            raise self._damaged(error) from error

    def _refuse_others(self) -> None:
        """Of a file that another tool wrote: what rows are chosen by must be there."""
        first = self._file.schema_arrow.field(0)
        if first.name != "key_group" or not pa.types.is_integer(first.type):
            raise self._damaged(ValueError(f"its first column is {first.name}: {first.type}"))

    def _may_hold(self, number: int, first: int, last: int) -> bool:
        statistics = self._file.metadata.row_group(number).column(0).statistics
        # Of a file that another tool wrote: it may hold any.
        if statistics is None or not statistics.has_min_max:
            return True
        return bool(statistics.min <= last and statistics.max >= first)

    def _damaged(self, error: Exception) -> CorruptState:
        return CorruptState(f"canonical file cannot be read ({error})", self.where, _ADVICE)


def frames_of(
    files: Sequence[tuple[Path, str]],
    first: int,
    last: int,
    generations: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[Frame]:
    """What has to be written to a database so that it holds the key groups of these files.

    `files` are those of one range, each with where it came from; `generations` are, by state, what
    `RowReader` is told, 0 where a state is not among them.

    Raises: see `CanonicalFile`.
    """
    for path, where in files:
        with CanonicalFile(path, where) as file:
            if path.name != file_name(file.meta.state):
                raise CorruptState(
                    f"file is of another state than its name says: state={file.meta.state}",
                    file.where,
                    _ADVICE,
                )
            reader = RowReader(file.meta, where, generations.get(file.meta.state, 0))
            for keys, values in reader.entries(file.batches(first, last)):
                yield Frame([], keys, list(values))
