"""Sinks: where output goes, staged with each epoch and published with each checkpoint.

Decides how output becomes visible exactly once: a subtask stages what an attempt produced, the
staged files of the attempt that was acknowledged become part of the checkpoint, and only a
completed checkpoint moves them to where readers look. Called by the subtask (`open_writer`) and
by the driver (`publish`, `restore`). Must not know what an epoch's plan looks like.
"""

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from moorage_state.errors import CorruptState, UserError

__all__ = ["Committable", "FileSink", "Sink", "SinkWriter", "StageId"]

Committable = dict[str, Any]
"""What a subtask staged, as JSON; it travels in acknowledgements and manifests."""

_STAGING = "_staging"
_LOG = "_moorage_log"


@dataclass(frozen=True, slots=True)
class StageId:
    """Names one subtask's output of one epoch of one run of a lineage."""

    lineage: str
    run: str
    epoch: int
    producer: str
    subtask: int


class SinkWriter(Protocol):
    """Takes the output of one attempt of one subtask in one epoch."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Stage a batch of output rows."""
        ...

    def finish(self) -> list[Committable]:
        """Finish staging; an attempt without rows returns nothing to publish."""
        ...

    def abort(self) -> None:
        """Drop what was staged."""
        ...


class Sink(Protocol):
    """A picklable description of a sink; it holds configuration only."""

    def open_writer(self, stage: StageId, schema: pa.Schema) -> SinkWriter:
        """A writer for one attempt; called on an executor."""
        ...

    def publish(self, lineage: str, checkpoint_id: int, committables: list[Committable]) -> int:
        """Make staged output visible; idempotent. Returns the number of rows published."""
        ...

    def restore(
        self, lineage: str, checkpoint_id: int | None, committables: list[Committable]
    ) -> list[str]:
        """Go back to what `checkpoint_id` had published (None: nothing was).

        Publishes what that checkpoint holds, takes back what later ones published, drops what is
        staged. Returns sentences for the person who restores, one for each thing taken back.
        """
        ...


class FileSink:
    """Parquet files in a directory, readable by any tool as a plain Parquet folder.

    Files become visible by an atomic rename when the checkpoint that covers them has completed;
    `_moorage_log/` lists them by checkpoint, written before they are renamed. Exactly once, also
    across restarts and rewinds. Going back takes away only files that the log lists.

    Args:
        path: a local directory, as a path or a ``file://`` URL.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path).removeprefix("file://")
        if "://" in self.path or not self.path.startswith("/"):
            raise UserError(
                f"a file sink needs an absolute local path or a file:// URL: path={path}"
            )
        self.path = os.path.normpath(self.path)

    def open_writer(self, stage: StageId, schema: pa.Schema) -> "_ParquetWriter":
        """A writer of one Parquet file under `_staging`."""
        return _ParquetWriter(Path(self.path), stage, schema)

    def publish(self, lineage: str, checkpoint_id: int, committables: list[Committable]) -> int:
        """Record staged files, then rename them into place; see `Sink.publish`."""
        root = Path(self.path)
        for item in committables:
            _require_file(root, item)
        if committables:
            _write_log(root / _LOG / lineage, checkpoint_id, [i["file"] for i in committables])
            _rename(root, committables)
        return sum(int(item["rows"]) for item in committables)

    def restore(
        self, lineage: str, checkpoint_id: int | None, committables: list[Committable]
    ) -> list[str]:
        """See `Sink.restore`."""
        root = Path(self.path)
        if checkpoint_id is not None:
            self.publish(lineage, checkpoint_id, committables)
        taken_back = _truncate(root, lineage, checkpoint_id or 0)
        shutil.rmtree(root / _STAGING / lineage, ignore_errors=True)
        if not taken_back:
            return []
        sentence = "took back published files that were newer than the restore point"
        return [f"{sentence}: directory={root} files={taken_back}"]


class _ParquetWriter:
    """Writes one attempt's rows to one staged file, made at the first row."""

    def __init__(self, root: Path, stage: StageId, schema: pa.Schema) -> None:
        self._root = root
        self._schema = schema
        self._rows = 0
        attempt = uuid4().hex[:12]
        self._name = (
            f"part-{stage.lineage}-{stage.run}-{stage.epoch:012d}-{stage.producer}-"
            f"{stage.subtask:05d}-{attempt}.parquet"
        )
        self._staged = root / _STAGING / stage.lineage / stage.run / self._name
        self._writer: pq.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._writer is None:
            self._staged.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._staged, self._schema, compression="zstd")
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def finish(self) -> list[Committable]:
        if self._writer is None:
            return []
        self._writer.close()
        _sync(self._staged)
        _sync(self._staged.parent)
        staged = str(self._staged.relative_to(self._root))
        return [
            {
                "file": self._name,
                "staged": staged,
                "rows": self._rows,
                "bytes": self._staged.stat().st_size,
            }
        ]

    def abort(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            finally:
                self._staged.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _require_file(root: Path, item: Committable) -> None:
    final = root / item["file"]
    if not final.exists() and not (root / item["staged"]).exists():
        raise CorruptState(
            "an output file that the checkpoint covers is neither staged nor published",
            path=str(final),
            advice="put it back from a copy, or restore an older checkpoint",
        )


def _rename(root: Path, committables: list[Committable]) -> None:
    """Move what is still staged; what was moved before a crash stays where it is."""
    for item in committables:
        with contextlib.suppress(FileNotFoundError):
            (root / item["staged"]).rename(root / item["file"])
    _sync(root)


def _write_log(log: Path, checkpoint_id: int, files: list[str]) -> None:
    log.mkdir(parents=True, exist_ok=True)
    target = log / f"{checkpoint_id:020d}.json"
    temporary = target.with_name(f".{target.name}.{uuid4().hex}")
    temporary.write_text(json.dumps({"format": 0, "checkpoint": checkpoint_id, "files": files}))
    _sync(temporary)
    temporary.rename(target)
    _sync(log)


def _truncate(root: Path, lineage: str, keep_up_to: int) -> int:
    """Delete what checkpoints newer than `keep_up_to` published; returns the number of files.

    Only files that the lineage's own log lists are touched: others belong to somebody else.
    """
    taken_back = 0
    for entry in sorted((root / _LOG / lineage).glob("[0-9]*.json"), reverse=True):
        if int(entry.stem) <= keep_up_to:
            break
        surplus = [root / name for name in json.loads(entry.read_text())["files"]]
        published = [path for path in surplus if path.exists()]
        for path in published:
            path.unlink()
        _sync(root)
        entry.unlink()
        taken_back += len(published)
    return taken_back
