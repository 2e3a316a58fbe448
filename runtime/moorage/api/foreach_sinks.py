"""Sinks that hand rows to a function of the job, on the driver: per epoch or per checkpoint.

What was handed out per checkpoint is recorded, and what was not is staged beside the checkpoints
until it is. Called by `DataStream.foreach_epoch` and `foreach_checkpoint`.
"""

import functools
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from moorage.api.sinks import (
    CheckpointInfo,
    Committable,
    EpochInfo,
    LiveOutput,
    SinkContext,
    SinkRestore,
    SinkRetire,
    StageId,
    already_published,
)
from moorage.sinks.bucket import StoreFolder, open_output
from moorage.sinks.file_names import IF_MISSING, lost, origin_of, require_kind, run_age
from moorage.sinks.file_writer import FileWriter
from moorage.sinks.records import decode, encode, record_name
from moorage_state import failpoints
from moorage_state.errors import CorruptState, MoorageError, ObjectNotFound, UserError
from moorage_state.stores import delete_all

EpochFunction = Callable[[pa.Table, EpochInfo], None]
CheckpointFunction = Callable[[Iterator[pa.Table], CheckpointInfo], None]


_IN_MEMORY_BYTES = 16 << 20
"""Epochs whose staged files have more bytes than this are handed over from a local file."""


class _StagedRows:
    """What both sinks share: rows staged below `sinks/<uid>/` of the checkpoint directory."""

    def __init__(self) -> None:
        self._staging = ""
        self._uid = ""

    def __getstate__(self) -> dict[str, object]:
        """Executors only stage."""
        # The function stays here, with whatever it holds on to.
        return {**self.__dict__, "_function": None}

    def bind(self, context: SinkContext) -> Self:
        """The same sink, with a place for staged rows."""
        if not context.staging:
            raise UserError(
                f"rows for a function are staged in the checkpoint directory, and there is none: "
                f"uid={context.uid}; run the job from its manifest"
            )
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__, _staging=context.staging, _uid=context.uid)
        return bound

    def open_writer(self, stage: StageId, schema: pa.Schema) -> FileWriter:
        """A writer of rows that the function gets later."""
        return FileWriter(StoreFolder(self._staging, self._folder(stage.lineage)), stage, schema)

    def _folder(self, lineage: str, kind: str = "staged") -> str:
        return f"sinks/{self._uid}/{kind}/{lineage}/"

    def _tables(
        self, lineage: str, items: Iterable[Committable]
    ) -> Generator[pa.Table, None, None]:
        """The staged rows, one table for each file, in the order of producers and subtasks."""
        with closing(self._fetched(lineage, items)) as paths:
            for path in paths:
                yield pq.read_table(path)

    def _table(self, lineage: str, items: Sequence[Committable]) -> pa.Table:
        """The staged rows as one table; one that is large lies in a local file, not in memory."""
        if sum(int(item["bytes"]) for item in items) <= _IN_MEMORY_BYTES:
            return pa.concat_tables(self._tables(lineage, items))
        with tempfile.TemporaryDirectory(prefix="moorage-output-") as scratch, ExitStack() as stack:
            path = Path(scratch, "rows.arrow")
            writer = None
            for file in self._fetched(lineage, items):
                with pq.ParquetFile(file) as parquet:
                    if writer is None:
                        writer = stack.enter_context(pa.ipc.new_file(path, parquet.schema_arrow))
                    for batch in parquet.iter_batches():
                        writer.write_batch(batch)
            stack.close()
            # The file is gone with its directory; what is mapped stays for as long as the table.
            return pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    def _fetched(self, lineage: str, items: Iterable[Committable]) -> Generator[Path, None, None]:
        """Local copies of the staged files, each until the next one is asked for."""
        store, folder = open_output(self._staging), self._folder(lineage)
        for item in items:
            with tempfile.TemporaryDirectory(prefix="moorage-output-") as scratch:
                path = Path(scratch, "rows.parquet")
                try:
                    store.get_to_file(folder + item["file"], path)
                except ObjectNotFound as error:
                    raise _missing(f"{store.url}/{folder}{item['file']}") from error
                yield path

    def _drop(self, lineage: str, files: Iterable[str]) -> None:
        folder = self._folder(lineage)
        delete_all(open_output(self._staging), [folder + file for file in files])
        failpoints.hit("sink.dropped")

    def _staged(self, lineage: str) -> list[str]:
        folder = self._folder(lineage)
        infos = open_output(self._staging).list(folder)
        return [info.key.removeprefix(folder) for info in infos]

    def _drop_older(self, point: SinkRestore, wanted: set[str]) -> None:
        """Drop what runs before this one staged and nobody can ask for."""
        own = run_age(point.run)
        origins = ((f, origin_of(point.lineage, f)) for f in self._staged(point.lineage))
        old = [f for f, origin in origins if origin is not None and origin.run < own]
        self._drop(point.lineage, [file for file in old if file not in wanted])

    def _drop_lost(self, point: SinkRetire, wanted: set[str]) -> None:
        staged = self._staged(point.lineage)
        self._drop(point.lineage, [f for f in staged if f not in wanted and lost(point, f)])

    def _call(self, call: Callable[[], None], where: str) -> None:
        """Call the function; what it raises ends the run with a sentence that says where."""
        failpoints.hit("sink.before_call")
        try:
            call()
        except MoorageError:
            raise
        except Exception as error:
            raise UserError(
                f"the function of a sink failed; it is called again with these rows by the next "
                f"run: sink={self._uid} {where} error={type(error).__name__}: {error}"
            ) from error
        failpoints.hit("sink.after_call")


class ForeachEpoch(_StagedRows):
    """Calls `function(table, EpochInfo)` with the rows of each epoch once it is committed."""

    def __init__(self, function: EpochFunction) -> None:
        super().__init__()
        self._function = function

    def commit_epoch(self, info: EpochInfo, committables: list[Committable]) -> None:
        """Hand the epoch's rows over, then drop what was staged."""
        table = self._table(info.lineage, committables)
        self._call(
            functools.partial(self._function, table, info), f"run={info.run} epoch={info.epoch}"
        )
        self._drop(info.lineage, [item["file"] for item in committables])

    def publish(self, lineage: str, checkpoint_id: int, committables: list[Committable]) -> int:
        """Nothing is left to do: the rows were handed over with their epochs."""
        del lineage, checkpoint_id
        return sum(int(item["rows"]) for item in committables)

    def restore(self, point: SinkRestore) -> list[str]:
        """Drop what older runs staged; what was handed over stays so."""
        self._drop_older(point, set())
        if not point.left_behind:
            return []
        return [already_published(f"foreach_epoch {self._uid}", point.left_behind)]

    def retire(self, point: SinkRetire) -> None:
        """Drop what losing attempts staged."""
        self._drop_lost(point, set())


class ForeachCheckpoint(_StagedRows):
    """Calls `function(tables, CheckpointInfo)` once a checkpoint completed."""

    _kind = "foreach_checkpoint"
    """What people are told that it is."""

    def __init__(self, function: CheckpointFunction) -> None:
        super().__init__()
        self._function = function

    def publish(self, lineage: str, checkpoint_id: int, committables: list[Committable]) -> int:
        """Hand the rows over unless the record says so, then record that; see `Sink.publish`."""
        rows = sum(int(item["rows"]) for item in committables)
        if not committables:
            return rows
        handed = self._handed(lineage)
        known = {file for files in handed.values() for file in files}
        # A crash between the call and the record leads to another call with the same id and rows.
        if checkpoint_id not in handed:
            todo = [item for item in committables if item["file"] not in known]
            try:
                self._hand_over(CheckpointInfo(lineage, checkpoint_id), todo)
            except CorruptState:
                # A driver that was replaced may have been at it, and have dropped the rows since.
                if checkpoint_id not in self._handed(lineage):
                    raise
        self._drop(lineage, [item["file"] for item in committables])
        return rows

    def check_covered(self, lineage: str, committables: list[Committable]) -> None:
        """Refuse rows that were staged elsewhere; see `Sink`."""
        require_kind(f"sink={self._uid}", committables, "modified")
        # In this order: what is handed over is recorded before it is dropped.
        files = {item["file"] for item in committables}
        if files and (missing := files.difference(self._staged(lineage))):
            handed = {file for known in self._handed(lineage).values() for file in known}
            for name in sorted(missing - handed):
                store = open_output(self._staging)
                raise _missing(f"{store.url}/{self._folder(lineage)}{name}")

    def restore(self, point: SinkRestore) -> list[str]:
        """Hand over what the checkpoint covers and was not; keep what can still be asked for."""
        if point.history:
            self.publish(point.lineage, point.history[-1], point.committables)
        handed = self._handed(point.lineage)
        if point.live is not None:
            self._drop_older(point, self._wanted(point.live, handed))
        if left := tuple(i for i in point.left_behind if i in handed):
            return [already_published(f"{self._kind} {self._uid}", left)]
        return []

    def retire(self, point: SinkRetire) -> None:
        """Drop what losing attempts staged, and records that nothing can ask for."""
        handed = self._handed(point.lineage)
        wanted = self._wanted(point.live, {})
        ids = {output.history[-1] for output in point.live if output.history}
        # What is newer was handed over by a driver that replaced this one.
        ids.update(i for i in handed if i > point.checkpoint_id)
        store, folder = open_output(self._staging), self._folder(point.lineage, "handed")
        over = [i for i, files in handed.items() if i not in ids and wanted.isdisjoint(files)]
        delete_all(store, [folder + record_name(checkpoint_id) for checkpoint_id in over])
        failpoints.hit("sink.forgotten")
        self._drop_lost(point, self._wanted(point.live, handed))

    def _hand_over(self, info: CheckpointInfo, items: list[Committable]) -> None:
        if items:
            # A function that fails leaves the rest unread, and a file of it here.
            with closing(self._tables(info.lineage, items)) as tables:
                call = functools.partial(self._function, tables, info)
                self._call(call, f"checkpoint={info.checkpoint_id}")
        self._record(info, [item["file"] for item in items])

    def _record(self, info: CheckpointInfo, files: list[str]) -> None:
        """Remember that a checkpoint's rows, staged in these files, were handed over."""
        key = self._folder(info.lineage, "handed") + record_name(info.checkpoint_id)
        open_output(self._staging).put(key, encode(info.checkpoint_id, files).encode())
        failpoints.hit("sink.recorded")

    def _handed(self, lineage: str) -> dict[int, list[str]]:
        """Files that were handed over, by checkpoint."""
        store, folder = open_output(self._staging), self._folder(lineage, "handed")
        keys = [info.key for info in store.list(folder)]
        records = ((key.removeprefix(folder), store.get(key)) for key in keys)
        return decode(records, f"{store.url}/{folder}")

    @staticmethod
    def _wanted(live: Iterable[LiveOutput], handed: dict[int, list[str]]) -> set[str]:
        """Files that a restore may ask for and that were not handed over."""
        done = {file for files in handed.values() for file in files}
        return {item["file"] for output in live for item in output.committables} - done


def _missing(path: str) -> CorruptState:
    return CorruptState("rows that the checkpoint covers are missing", path, IF_MISSING)
