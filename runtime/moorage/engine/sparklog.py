"""Spark's own progress files: captured after an epoch, laid back so that a query resumes there.

Decides which of the files below a query's checkpoint location a later run needs, and writes a
fresh location from them with the inputs in another order, more of them or fewer. What Spark keeps
there, and what is captured of it for batch N::

    metadata              {"id": query id}                                   as it is
    offsets/<batch>       v1, a line of JSON with watermark and pinned       of N and N-1, taken
                          configuration, then a line of JSON for each input  apart by input
                          in the order of the plan, "-" for none yet
    commits/<batch>       v1, {"nextBatchWatermarkMs": ms}                   nothing: written anew
    sources/<i>/...       what input i keeps for itself                      of each input

On start Spark reads the last two offsets, asks every source for the batch between them, and goes on
with N+1 when commits/N exists.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from moorage_state.errors import CorruptState, UserError
from moorage_state.formats import read_json, refuse_unknown
from moorage_state.snapshots import Cutter

_VERSION = "v1"
_NO_OFFSET = "-"
_COMPACT = ".compact"

COMPACT_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"
"""After how many entries the file source compacts its log."""

USUAL_INTERVAL = 10
"""Of Spark, where nobody sets it."""


class InputLog(msgspec.Struct, frozen=True):
    """Where one input stands.

    Attributes:
        offset: the source's JSON at the end of batch N; None when it has not delivered anything.
        previous: the same at the end of batch N-1.
        files: path below the source's directory -> text.
    """

    offset: str | None
    previous: str | None
    files: dict[str, str]


class SparkLog(msgspec.Struct, frozen=True):
    """All that Spark needs to resume a query after batch N.

    Attributes:
        query_id: Spark's id of the query, kept over restarts.
        metadata: the text of `metadata`.
        batch_id: N.
        header: the JSON line of offsets/N: watermark, time, configuration pinned by Spark.
        previous_header: the JSON line of offsets/N-1; None for the first batch.
        inputs: input uid -> where it stands.
    """

    query_id: str
    metadata: str
    batch_id: int
    header: str
    previous_header: str | None
    inputs: dict[str, InputLog]

    def to_json(self) -> dict[str, Any]:
        """Return this as plain data that JSON can carry."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "SparkLog":
        """Return what `to_json` described.

        Raises:
            CorruptState: a field is missing.
            NewerFormat: a newer Moorage wrote it.
        """
        where = "source of the manifest"
        refuse_unknown("source progress", data, cls.__struct_fields__, where)
        try:
            for entry in data["inputs"].values():
                refuse_unknown("source progress", entry, InputLog.__struct_fields__, where)
            return msgspec.convert(data, cls)
        except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
            raise CorruptState(
                f"source progress cannot be read: error={error!r}",
                advice="restore another checkpoint",
            ) from error


@dataclass(frozen=True, slots=True)
class _Offsets:
    """One file of `offsets/`."""

    header: str
    lines: tuple[str | None, ...]


def capture(
    checkpoint_location: Path,
    batch_id: int,
    input_uids: Sequence[str],
    cutter: Cutter | None = None,
) -> SparkLog:
    """Read what a later run needs to go on after batch `batch_id`.

    To be called while the batch runs or after it, before the next one is planned; that batch counts
    as committed from then on, although Spark has not written so.

    Args:
        input_uids: the uids of the query's inputs in the order of its plan, left to right.
        cutter: takes the beginnings of large files out, of which only the ends are in the answer.

    Raises:
        CorruptState: a file of Spark's is missing or not in the form this version knows.
        UserError: a source keeps files that are not text.
    """
    if cutter is not None:
        cutter.begin()
    metadata = _read(checkpoint_location / "metadata")
    current = _read_offsets(checkpoint_location, batch_id, len(input_uids))
    before = _read_offsets(checkpoint_location, batch_id - 1, len(input_uids)) if batch_id else None
    previous = before.lines if before else (None,) * len(input_uids)
    inputs = {}
    for index, uid in enumerate(input_uids):
        directory = checkpoint_location / "sources" / str(index)
        offset = current.lines[index]
        names = [] if offset is None else _source_files(directory, offset, previous[index])
        files = {name: _read(directory / name, cutter, _path(uid, name)) for name in names}
        inputs[uid] = InputLog(offset, previous[index], files)
    return SparkLog(
        query_id=_query_id(metadata, checkpoint_location),
        metadata=metadata,
        batch_id=batch_id,
        header=current.header,
        previous_header=before.header if before else None,
        inputs=inputs,
    )


def lay(
    target_dir: Path, log: SparkLog, input_uids: Sequence[str], *, allow_dropped: bool = False
) -> None:
    """Write a fresh checkpoint location from which a query goes on with the batch after `log`.

    The location appears whole or not at all.

    Args:
        target_dir: must not exist or be empty; its parent is created.
        input_uids: of the query to be started, in the order of its plan. One that `log` does not
            know starts from its source's beginning.
        allow_dropped: forget the inputs of `log` that are not in `input_uids`.

    Raises:
        UserError: an input was dropped, a uid is there twice, or `target_dir` is not empty.
        CorruptState: `log` holds no usable header, or a path that leads out of its directory.
    """
    _check_uids(log, input_uids, allow_dropped=allow_dropped)
    if target_dir.exists() and any(target_dir.iterdir()):
        raise UserError(f"checkpoint location not empty: path={target_dir}; use a fresh directory")
    target_dir.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target_dir.name}.", dir=target_dir.parent))
    try:
        for path, text in _laid_files(log, input_uids):
            file = scratch / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
        os.rename(scratch, target_dir)  # noqa: PTH104  as rename(2): onto an empty directory too
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def compact_interval(log: SparkLog, usual: int) -> int:
    """The setting `COMPACT_INTERVAL` with which the file source finds what is laid of its log.

    It looks for a compact entry wherever its interval says that there is one, and does not start
    without. The interval is not written down: of one compact entry it is the least divisor of its
    number (from 1) that is not below the setting, which need not be the one that the log has. So
    the setting must be beyond the entries since that one: `CompactibleFileStreamLog` of Spark.

    Args:
        usual: the least that the answer may be.
    """
    for entry in log.inputs.values():
        last = None if entry.offset is None else file_source_position(entry.offset)
        if last is not None:
            compacts = [name.removesuffix(_COMPACT) for name in entry.files if _COMPACT in name]
            compact = max(map(int, filter(str.isdecimal, compacts)), default=-1)
            usual = max(usual, last - compact + 1)
    return usual


def _laid_files(log: SparkLog, input_uids: Sequence[str]) -> Iterator[tuple[PurePosixPath, str]]:
    """Path below the checkpoint location and text of each file to lay."""
    nothing = InputLog(None, None, {})
    inputs = [log.inputs.get(uid, nothing) for uid in input_uids]
    yield PurePosixPath("metadata"), log.metadata
    offsets = PurePosixPath("offsets")
    if log.previous_header is not None:
        lines = [entry.previous for entry in inputs]
        yield offsets / str(log.batch_id - 1), _offsets_text(log.previous_header, lines)
    lines = [entry.offset for entry in inputs]
    yield offsets / str(log.batch_id), _offsets_text(log.header, lines)
    watermark = json.dumps({"nextBatchWatermarkMs": _watermark(log)}, separators=(",", ":"))
    yield PurePosixPath("commits") / str(log.batch_id), f"{_VERSION}\n{watermark}"
    for index, entry in enumerate(inputs):
        for name, text in entry.files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise CorruptState("source file outside of its directory", name)
            yield PurePosixPath("sources") / str(index) / path, text


def _offsets_text(header: str, lines: Sequence[str | None]) -> str:
    return "\n".join([_VERSION, header, *(line or _NO_OFFSET for line in lines)])


def _watermark(log: SparkLog) -> int:
    """The watermark that batch N ran under: the next one's is not known before N ends."""
    try:
        return int(read_json(log.header)["batchWatermarkMs"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptState(
            f"header of source offsets cannot be read: batch={log.batch_id} error={error!r}",
            advice="restore another checkpoint",
        ) from error


def _check_uids(log: SparkLog, input_uids: Sequence[str], *, allow_dropped: bool) -> None:
    twice = sorted({uid for uid in input_uids if input_uids.count(uid) > 1})
    if twice:
        raise UserError(f"input uid used twice: uids={twice}; give each input its own uid")
    dropped = sorted(set(log.inputs) - set(input_uids))
    if dropped and not allow_dropped:
        raise UserError(
            f"inputs of the checkpoint are not in the job: dropped={dropped}"
            f" inputs={list(input_uids)}; keep their uids or set allowNonRestoredState"
        )


def _read_offsets(checkpoint_location: Path, batch_id: int, inputs: int) -> _Offsets:
    path = checkpoint_location / "offsets" / str(batch_id)
    # Not splitlines(): JSON may hold characters that only Python takes for the end of a line.
    version, *rest = _read(path).split("\n")
    if version != _VERSION or not rest:
        raise CorruptState(
            f"offsets of an unknown version: version={version[:64]} known={_VERSION}",
            str(path),
            "run the job on a spark version this release supports",
        )
    header, *lines = rest
    if len(lines) != inputs:
        raise CorruptState(
            f"offsets do not fit the inputs: offsets={len(lines)} inputs={inputs}", str(path)
        )
    return _Offsets(header, tuple(None if line == _NO_OFFSET else line for line in lines))


def read_offsets(
    checkpoint_location: Path, batch_id: int, input_uids: Sequence[str]
) -> Mapping[str, str | None]:
    """By input uid, the source's JSON at the end of a batch; None for nothing yet.

    Raises CorruptState: the file is missing or not in the form this version knows.
    """
    lines = _read_offsets(checkpoint_location, batch_id, len(input_uids)).lines
    return dict(zip(input_uids, lines, strict=True))


def _query_id(metadata: str, checkpoint_location: Path) -> str:
    try:
        return str(read_json(metadata)["id"])
    except (KeyError, TypeError, ValueError) as error:
        path = str(checkpoint_location / "metadata")
        raise CorruptState(f"query id cannot be read: error={error!r}", path) from error


def _path(uid: str, name: str) -> tuple[str, ...]:
    """Where the JSON form has the text of a file."""
    return "inputs", uid, "files", name


def _source_files(directory: Path, offset: str, previous: str | None) -> list[str]:
    """The files of one source that a resume after `offset` reads, as paths below `directory`."""
    last = file_source_position(offset)
    if last is not None:
        replayed = -1 if previous is None else file_source_position(previous)
        return _file_source_entries(directory, -1 if replayed is None else replayed, last)
    return sorted(
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    )


def file_source_position(offset: str) -> int | None:
    """The last entry of the file source's log that `offset` includes; None for other sources."""
    try:
        parsed = read_json(offset)
    except ValueError:
        return None
    position = parsed.get("logOffset") if isinstance(parsed, dict) else None
    return position if isinstance(position, int) else None


def _file_source_entries(directory: Path, replayed: int, last: int) -> list[str]:
    """The entries up to `last` from which the set of files seen can be rebuilt."""
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    found = {}
    for name in names:
        number = name.removesuffix(_COMPACT)
        # Later ones are of batches that this capture does not contain: left out, their files are
        # found again.
        if number.isdecimal() and int(number) <= last:
            found[int(number)] = name
    # A compact entry holds all before it. Those after `replayed` are needed one by one: on start
    # Spark asks for the batch between them and `last`.
    compact = max((n for n, name in found.items() if name.endswith(_COMPACT)), default=0)
    first = min(compact, replayed + 1)
    wanted = range(first, last + 1)
    missing = [n for n in wanted if n not in found]
    if missing:
        raise CorruptState(
            f"file source log has a gap: missing={missing[:8]} last={last}",
            str(directory),
            "restore a checkpoint; this capture would read files twice",
        )
    return [found[n] for n in wanted]


def _read(path: Path, cutter: Cutter | None = None, name: tuple[str, ...] = ()) -> str:
    """The text of a file of Spark's, byte for byte; or its end, where `cutter` has the rest."""
    try:
        return cutter.cut(name, path) if cutter else path.read_bytes().decode()
    except FileNotFoundError as error:
        raise CorruptState("file of spark's checkpoint location missing", str(path)) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"source keeps files that are not text: path={path}; this source cannot be captured"
        ) from error
