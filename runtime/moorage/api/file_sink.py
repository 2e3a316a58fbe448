"""`FileSink`: Parquet or JSON files, partitioned or not, on a directory or an object store."""

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import quote

import pyarrow as pa

from moorage.api.sinks import (
    Committable,
    SinkContext,
    SinkOrigin,
    SinkRestore,
    SinkRetire,
    StageId,
)
from moorage.sinks.bucket import Bucket, StoreFolder
from moorage.sinks.directory import Folder, StagingFolder
from moorage.sinks.file_names import IF_MISSING
from moorage.sinks.file_writer import FileFormat, FileWriter, StagingArea, check_partitioning
from moorage_state import failpoints
from moorage_state.errors import CorruptState, UserError, disk_errors
from moorage_state.stores.s3 import S3Address

_SCHEMES = ("file", "memory", "s3")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class FileSink:
    """Parquet files or JSON lines in a folder that plain Spark reads, exactly once.

    On a local directory a file becomes visible by a rename when the checkpoint that covers it has
    completed, and any tool reads the folder. An object store has no rename: there a file is
    uploaded once and becomes visible through the list `_spark_metadata/`, which Spark's readers
    follow when they are given the whole folder; other tools get the names from `files()`.

    Going back to an older checkpoint takes back what it does not cover, and going forward again
    brings it back.

    Args:
        path: a directory, as an absolute path, a path relative to the job file, or a ``file://``
            URL; or an object store, ``s3://bucket/prefix``.
        format: "parquet", or "json" for one row a line.
        partition_by: columns that become directories, ``column=value/``, as Spark names them.
        commit: "rename" or "list"; by default what fits `path`. "list" works on directories, too.
        reader_url: the address that Spark has for the folder, which goes into the list; by
            default ``s3a://`` for ``s3://`` and else the same.
        other_lineages: "refuse" a folder with output of another lineage where readers would see
            rows twice, such as after the checkpoints were deleted and the output was not; or
            "keep" it, for several jobs that write into one folder.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: FileFormat = "parquet",  # noqa: A002 - what Spark calls it
        *,
        partition_by: Sequence[str] = (),
        commit: Literal["rename", "list"] | None = None,
        reader_url: str | None = None,
        other_lineages: Literal["refuse", "keep"] = "refuse",
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise UserError(f"a file sink's path is text or a pathlib.Path: path={path!r}")
        text = os.fspath(path)
        scheme = _scheme(text)
        relative = scheme == "file" and not text.startswith("file:///")
        if not text or text.startswith("~") or scheme not in (None, *_SCHEMES) or relative:
            raise UserError(
                f"a file sink needs a path, absolute or relative to the job file, or one of "
                f"file:///absolute/path and s3://bucket/prefix: path={text}"
            )
        if format not in get_args(FileFormat):
            raise UserError(f"the format is 'parquet' or 'json': format={format!r} path={text}")
        if isinstance(partition_by, str):
            raise UserError(f"partition_by is a list of columns: partition_by=[{partition_by!r}]")
        local = scheme in (None, "file")
        if commit not in (None, "rename", "list") or (commit == "rename" and not local):
            raise UserError(
                f"commit is 'rename' (directories only) or 'list': commit={commit!r} path={text}"
            )
        if other_lineages not in ("refuse", "keep"):
            raise UserError(
                f"other_lineages is 'refuse' or 'keep': other_lineages={other_lineages!r} "
                f"path={text}"
            )
        self.path = os.path.normpath(text.removeprefix("file://")) if local else text.rstrip("/")
        self.format: FileFormat = format
        self.partition_by = tuple(partition_by)
        self.commit = commit or ("rename" if local else "list")
        self.other_lineages = other_lineages
        self._reader_url = reader_url.rstrip("/") if reader_url else None
        self._opened: Folder | Bucket | None = None

    def __getstate__(self) -> dict[str, object]:
        """Executors only stage."""
        return {**self.__dict__, "_opened": None}

    def bind(self, context: SinkContext) -> "FileSink":
        """The same sink with its path resolved; refuses columns that are not there."""
        check_partitioning(context.schema, self.partition_by)
        if self.path.startswith("memory:"):
            raise UserError(
                f"a memory store is of one process, and a job has several; name a directory or "
                f"s3://bucket/prefix: uid={context.uid} path={self.path}"
            )
        if self.path.startswith("s3://"):
            _check_address(context.uid, self.path)
        bound = copy(self)
        bound._opened = None  # noqa: SLF001
        if self._local and not self.path.startswith("/"):
            if not context.base_dir.startswith("/"):
                raise UserError(
                    f"a relative path needs a job file that it is relative to; name the absolute "
                    f"path: uid={context.uid} path={self.path}"
                )
            bound.path = os.path.normpath(f"{context.base_dir}/{self.path}")
        return bound

    def open_writer(self, stage: StageId, schema: pa.Schema) -> FileWriter:
        """A writer of files that nobody sees yet."""
        place: StagingArea = (
            StagingFolder(Path(self._absolute()), stage)
            if self.commit == "rename"
            else StoreFolder(self._url)
        )
        return FileWriter(place, stage, schema, self.format, self.partition_by)

    def admit(self, lineage: str, origin: SinkOrigin | None) -> list[str]:
        """Refuse a folder whose readers would see rows twice; see `Sink`."""
        keep = self.other_lineages == "keep"
        with self._on_disk("look at output"):
            # Opening a store would make its folder, and another sink may yet refuse the run.
            if self._local and not Path(self._absolute()).exists():
                return []
            return self._output().admit(lineage, origin, keep=keep)

    def check_covered(self, lineage: str, committables: list[Committable]) -> None:
        """Refuse output that lies elsewhere; see `Sink`."""
        if self.commit == "rename":
            with self._on_disk("look at output"):
                Folder(Path(self._absolute())).check_covered(lineage, committables)
            return
        # Opening a store would make its folder.
        if not committables:
            return
        if self._local and not Path(self._absolute()).exists():
            raise CorruptState(
                "the folder of output that the checkpoint covers is missing",
                path=self._absolute(),
                advice=IF_MISSING,
            )
        Bucket(self._url, self.reader_url).check_covered(committables)

    def publish(self, lineage: str, checkpoint_id: int, committables: list[Committable]) -> int:
        """See `Sink.publish`."""
        failpoints.hit("sink.before_publish")
        with self._on_disk("publish output"):
            return self._output().publish(lineage, checkpoint_id, committables)

    def restore(self, point: SinkRestore) -> list[str]:
        """See `Sink.restore`."""
        with self._on_disk("restore output"):
            return self._output().restore(point)

    def takes_back(self) -> str:
        """The folder: what went into it can be made invisible again."""
        return f"{self._url} {self.commit}"

    def retire(self, point: SinkRetire) -> None:
        """Drop what no restore can ask for: what was taken back, what losing attempts staged."""
        with self._on_disk("tidy output"):
            self._output().retire(point)

    def files(self) -> list[str]:
        """The addresses of the files that readers should see, whatever the way of committing."""
        return self._output().files()

    @property
    def reader_url(self) -> str:
        """The address that Spark has for the folder."""
        return self._reader_url or _spark_url(self._url)

    @property
    def _local(self) -> bool:
        return _scheme(self.path) is None

    @property
    def _url(self) -> str:
        return f"file://{quote(self._absolute())}" if self._local else self.path

    def _absolute(self) -> str:
        if self._local and not self.path.startswith("/"):
            raise UserError(
                f"this path is relative to a job file; attach the sink to a stream of a job, or "
                f"name the absolute path: path={self.path}"
            )
        return self.path

    def _on_disk(self, what: str) -> AbstractContextManager[None]:
        """Tells what the disk refuses; a store tells by itself."""
        if self.commit == "list":
            return nullcontext()
        return disk_errors(what, Path(self._absolute()))

    def _output(self) -> Folder | Bucket:
        # Kept: it knows whether it was restored, and a list's end that it wrote last.
        if self._opened is None:
            self._opened = (
                Folder(Path(self._absolute()))
                if self.commit == "rename"
                else Bucket(self._url, self.reader_url)
            )
        return self._opened


def _check_address(uid: str, url: str) -> None:
    try:
        S3Address.parse(url)
    except UserError as error:
        raise UserError(f"a sink cannot write there: sink={uid}: {error}") from error


def _scheme(text: str) -> str | None:
    match = _URL.match(text)
    if match is None:
        return None
    return match[1] if text.startswith(f"{match[1]}://") else ""


def _spark_url(url: str) -> str:
    """The address that Spark's file systems take for the same folder."""
    address = url.partition("?")[0].rstrip("/")
    return f"s3a://{address.removeprefix('s3://')}" if address.startswith("s3://") else address
