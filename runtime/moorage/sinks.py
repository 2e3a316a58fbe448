"""Sinks: where output goes, staged with each epoch and published with each checkpoint.

Decides how output becomes visible exactly once: a subtask stages what an attempt produced, the
staged files of the attempt that was acknowledged become part of the checkpoint, and only a
completed checkpoint moves them to where readers look. Called by the subtask (`open_writer`) and
by the driver (`publish`, `restore`). Must not know what an epoch's plan looks like.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from moorage_state.errors import Bug, CorruptState, UserError

__all__ = ["Committable", "FileSink", "Sink", "SinkRestore", "SinkWriter", "StageId"]

Committable = dict[str, Any]
"""What a subtask staged, as JSON; it travels in acknowledgements and manifests."""

_STAGING = "_staging"
_LOG = "_moorage_log"
_RETRACTED = "_retracted"
_RUN = re.compile(r"f(\d+)r(\d+)")


@dataclass(frozen=True, slots=True)
class StageId:
    """Names one subtask's output of one epoch of one run of a lineage."""

    lineage: str
    run: str
    epoch: int
    producer: str
    subtask: int


@dataclass(frozen=True, slots=True)
class SinkRestore:
    """Where a sink goes back to, or forward again.

    Attributes:
        lineage: the id of the lineage.
        run: the token `f<fence>r<run>` of the run that restores.
        history: the checkpoints that the restored state descends from, oldest first, the restored
            one last; empty for an empty start.
        committables: what the restored checkpoint covers.
    """

    lineage: str
    run: str
    history: tuple[int, ...]
    committables: list[Committable]


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

    def restore(self, point: SinkRestore) -> list[str]:
        """Make visible what the checkpoints in `point.history` published, and nothing else.

        Publishes what the restored checkpoint holds, takes back what checkpoints outside its
        history published, drops what older runs staged. What is taken back must be there again
        when a later restore goes to a checkpoint that covers it. A driver may wake up in here
        after another took over: what newer runs staged or published is not its to touch.

        Returns sentences for the person who restores, one for each kind of change.
        """
        ...


class FileSink:
    """Parquet files in a directory, readable by any tool as a plain Parquet folder.

    Files become visible by an atomic rename when the checkpoint that covers them has completed;
    `_moorage_log/` lists them by checkpoint, written before they are renamed. Exactly once, also
    across restarts and rewinds. Going back moves files that the log lists to `_retracted/`, from
    where going forward again brings them back. A published file belongs to whoever reads it: it
    may be moved, compacted or deleted.

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
        _require_files(root, lineage, committables)
        if committables:
            _write_log(root / _LOG / lineage, checkpoint_id, [i["file"] for i in committables])
            _rename(root, committables)
        return sum(int(item["rows"]) for item in committables)

    def restore(self, point: SinkRestore) -> list[str]:
        """Take back, publish, bring back, drop, in this order; see `Sink.restore`.

        Readers may miss rows in between but see none twice. Every step can be cut short: the next
        restore does what is left.
        """
        root, lineage = Path(self.path), point.lineage
        own = _age(point.run)
        if own is None:
            raise Bug(f"not a run token: run={point.run}")
        _require_files(root, lineage, point.committables)
        log = _read_log(root / _LOG / lineage)
        covered = {item["file"] for item in point.committables}
        covered.update(*(log.get(checkpoint_id, []) for checkpoint_id in point.history))
        listed = set().union(*log.values())

        retracted = root / _RETRACTED / lineage
        surplus = {name for name in listed - covered if _no_newer(_run_of(lineage, name), own)}
        taken = _move(surplus & _names(root), root, retracted)
        if point.history:
            self.publish(lineage, point.history[-1], point.committables)
        older = _older_runs(root / _STAGING / lineage, own)
        for staged in older:
            # Listed but not renamed: the end of the process came between. Keep it, too.
            _move(listed & _names(staged), staged, retracted)
        brought = _move(covered & _names(retracted) - _names(root), retracted, root)
        for staged in older:
            shutil.rmtree(staged, ignore_errors=True)
        return _sentences(root, retracted, taken, brought)


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


def _require_files(root: Path, lineage: str, committables: list[Committable]) -> None:
    """Refuse to lose output.

    A listed file that is nowhere was published, and its owner took it away: that is their right.
    """
    places = (root / _RETRACTED / lineage, root)
    lost = [
        item["file"]
        for item in committables
        if not (root / item["staged"]).exists()
        and not any((place / item["file"]).exists() for place in places)
    ]
    if not lost:
        return
    listed = set().union(*_read_log(root / _LOG / lineage).values())
    for name in lost:
        if name not in listed:
            raise CorruptState(
                "an output file that the checkpoint covers is neither staged nor published",
                path=str(root / name),
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


def _read_log(log: Path) -> dict[int, list[str]]:
    """Files by checkpoint."""
    return {
        int(entry.stem): json.loads(entry.read_text())["files"] for entry in log.glob("[0-9]*.json")
    }


def _names(directory: Path) -> set[str]:
    try:
        return {path.name for path in directory.iterdir()}
    except FileNotFoundError:
        return set()


def _move(names: Iterable[str], source: Path, target: Path) -> int:
    """Rename files into another directory; returns how many there were to rename."""
    moved = 0
    for name in sorted(names):
        target.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (source / name).rename(target / name)
            moved += 1
    if moved:
        _sync(target)
        _sync(source)
    return moved


def _age(token: str) -> tuple[int, int] | None:
    """The fence and the run of a run token; later runs compare greater."""
    match = _RUN.fullmatch(token)
    return (int(match[1]), int(match[2])) if match else None


def _run_of(lineage: str, name: str) -> tuple[int, int] | None:
    """The run that a file of the lineage is of; None for files of others."""
    prefix = f"part-{lineage}-"
    if not name.startswith(prefix):
        return None
    return _age(name.removeprefix(prefix).partition("-")[0])


def _no_newer(run: tuple[int, int] | None, own: tuple[int, int]) -> bool:
    return run is not None and run <= own


def _older_runs(staging: Path, own: tuple[int, int]) -> list[Path]:
    """The staging directories of runs before `own`."""
    runs = ((name, _age(name)) for name in sorted(_names(staging)))
    return [staging / name for name, run in runs if run is not None and run < own]


def _sentences(root: Path, retracted: Path, taken: int, brought: int) -> list[str]:
    sentences = []
    if taken:
        sentences.append(
            f"took back published files that the restore point does not cover: directory={root} "
            f"files={taken} moved_to={retracted}"
        )
    if brought:
        sentences.append(
            f"brought back files that an earlier restore took back: directory={root} "
            f"files={brought} moved_from={retracted}"
        )
    return sentences
