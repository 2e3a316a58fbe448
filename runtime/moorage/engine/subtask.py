"""One subtask of a stateful operator in one epoch: what runs inside `mapInArrow`.

Decides the order of things for each key: due timers, then its rows with the timers that come
before each, then timers that have become due. Called by Spark in a Python worker; talks to the
range's state server in batches, never per record. It never changes committed state: it prepares a
delta and acknowledges it as its last row.

The watermark of an epoch lies before the rows that inputs bring in it, but behind what an operator
sent when its own timers fired at that watermark. So after another operator the rows come first.
"""

# ruff: noqa: SLF001 - a context's underscored side is the engine's, the rest is the user's

import errno
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from moorage.engine.acks import Ack, encode_ack
from moorage.engine.chunks import Chunk, by_key, chunk_of, time_column, times_of
from moorage.engine.columns import (
    INPUT_COLUMN,
    ack_batch,
    row_batch,
)
from moorage.engine.failures import SubtaskFailure, UserFunctionError
from moorage.engine.garbage import seldom_collecting
from moorage.engine.head import Head, read_head
from moorage.engine.range_access import BoundRange, LeasedRange, connect_to
from moorage.engine.rows import FLUSH_ROWS, OutputBuffer, RowReader
from moorage.functions import (
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    TimerService,
)
from moorage.sinks import Sink, SinkWriter, StageId
from moorage_state.errors import LocalDiskError, MoorageError
from moorage_state.keyed import EventTimeTimers, KeyedStateStore
from moorage_state.keyed.store import StateSchema
from moorage_state.keys import KeyCodec, key_prefix, timer_parts

__all__ = ["SubtaskPlan", "run_subtask"]

_log = logging.getLogger(__name__)

_DUE_PAGE = 4096
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


@dataclass(frozen=True, slots=True)
class SubtaskPlan:
    """All that the subtasks of one operator need to know in one epoch; picklable.

    Attributes:
        ranges: by subtask, its range at the version this epoch reads.
        inputs: input uids; the input column holds positions in it.
        timer_delay_ms: how far timers stay behind a row's time within a key.
        downstream: parallelism of the operator that reads the output; 0 where none does.
        upstream: uid and parallelism of the operator whose output is read, if it is one.
    """

    uid: str
    lineage: str
    run: str
    epoch: int
    parallelism: int
    max_parallelism: int
    function: KeyedProcessFunction
    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    key_types: tuple[str, ...]
    output: pa.Schema
    watermark: int
    ranges: tuple[LeasedRange, ...]
    token: str = field(repr=False)
    inputs: tuple[str, ...] = ()
    timer_delay_ms: int = 0
    downstream: int = 0
    upstream: tuple[str, int] | None = None
    schemas: tuple[StateSchema, ...] = ()
    sinks: tuple[tuple[str, Sink], ...] = ()


def run_subtask(plan: SubtaskPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run one subtask over its rows; the last batch ends with its acknowledgement.

    Raises:
        SubtaskFailure: for every failure, with the code that tells the driver what to do.
    """
    subtask: _Subtask | None = None
    try:
        head, rest = read_head(batches)
        leased = plan.ranges[head.subtask]
        with closing(connect_to(leased.door, plan.token)) as client:
            subtask = _Subtask(plan, head, BoundRange(client, leased, plan.epoch, uuid4().hex))
            try:
                with seldom_collecting():
                    yield from subtask.run(rest)
                    subtask.close()
            finally:
                subtask.release()
    except SubtaskFailure:
        raise
    except Exception as exc:
        where = subtask.where() if subtask is not None else f"operator={plan.uid}"
        raise _failure(exc, where) from exc


def _failure(exc: Exception, where: str) -> SubtaskFailure:
    """What the driver is told; for an error in user code where, what, and the end of the trace."""
    if isinstance(exc, MoorageError):
        return SubtaskFailure(exc.code, str(exc))
    if isinstance(exc, OSError) and exc.errno in _DISK_ERRORS:
        return SubtaskFailure(LocalDiskError.code, str(exc))
    trace = "".join(traceback.format_exception(exc)[-6:])
    return SubtaskFailure(UserFunctionError.code, f"{where}: {type(exc).__name__}: {exc}\n{trace}")


class _Subtask:
    """The state of one attempt; used once."""

    def __init__(self, plan: SubtaskPlan, head: Head, bound: BoundRange) -> None:
        self._plan = plan
        self._head = head
        self._range = bound
        self._store = KeyedStateStore(self._range, plan.epoch, plan.schemas)
        self._keys = KeyCodec(plan.key_types)
        self._reader = RowReader(plan.columns)
        self._function = plan.function
        has_timers = type(plan.function).on_timer is not KeyedProcessFunction.on_timer
        self._timers = EventTimeTimers(self._store) if has_timers else None
        self._ctx = ProcessContext(TimerService(self._timers, plan.watermark))
        self._out = OutputBuffer(plan.uid, plan.output)
        self._sinks: list[tuple[str, SinkWriter]] = []
        self._hash = xxhash.xxh3_128()
        self._sent = 0
        self._in_key = False
        self._due: set[bytes] = set()
        self._counts = {"rows_in": 0, "null_keys": 0, "keys": 0, "timers_fired": 0}
        self._newest: dict[str, int] = {}
        self._opened = False

    def where(self) -> str:
        """The place a failure is reported at."""
        key = f" key={self._ctx.key!r:.100}" if self._in_key else ""
        return f"operator={self._plan.uid} subtask={self._head.subtask}{key}"

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All batches, then timers of keys without rows, then the acknowledgement."""
        plan = self._plan
        consumed = self._upstream_digests()
        self._open_sinks()
        self._due = self._find_due()
        context = RuntimeContext(self._store, plan.uid, self._head.subtask, plan.parallelism)
        self._function.open(context)
        self._opened = True
        for batch in batches:
            yield from self._process(batch)
        self._end_key()
        yield from self._fire_without_rows()
        yield from self._flush_output()
        self._store.finish()
        yield self._ack_batch(self._range.prepare(), consumed)

    def close(self) -> None:
        """Close the function, once, if it was opened."""
        if self._opened:
            self._opened = False
            self._function.close()

    def release(self) -> None:
        """Let go of everything, dropping what sinks staged unless it is acknowledged.

        Never raises: after a failure, that failure is what the driver must hear of.
        """
        for _, writer in self._sinks:
            self._quietly(writer.abort)
        self._quietly(self.close)

    def _quietly(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - user code and other people's sinks
            _log.exception("cleaning up after a failure failed too: %s", self.where())

    # -- rows ------------------------------------------------------------------------------

    def _process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._observe(batch)
        batch = self._without_null_keys(batch)
        if batch.num_rows == 0:
            return
        self._counts["rows_in"] += batch.num_rows
        chunk = chunk_of(batch, self._plan.key_columns, self._keys, self._current())
        if not chunk.runs_on:
            self._end_key()
        self._store.begin_chunk(chunk.prefixes)
        times = times_of(chunk.rows)
        if times is None and self._timers is None:
            yield from self._plain_keys(chunk, self._reader.rows(chunk.rows))
        else:
            yield from self._keys_in_time(chunk, self._reader.rows(chunk.rows), times)

    def _plain_keys(self, chunk: Chunk, rows: list[Any]) -> Iterator[pa.RecordBatch]:
        """Keys of a function without timers, whose rows have no time.

        The usual case, and a loop that is run for every key: it calls nothing but the function
        and the store.
        """
        process, ctx, switch_to = self._function.process, self._ctx, self._store.switch_to
        made = self._out.rows
        append, as_tuple = made.append, self._out.as_tuple
        ctx._timestamp = None
        self._in_key = True
        self._counts["keys"] += len(chunk.keys) - chunk.runs_on
        running = 0 if chunk.runs_on else -1
        for i, (key, mine) in enumerate(zip(chunk.keys, by_key(rows, chunk.starts), strict=True)):
            if i != running:
                switch_to(i)
                ctx.key = key
            for row in mine:
                produced = process(row, ctx)
                if produced is not None:
                    for out in produced:
                        append(out if type(out) is tuple else as_tuple(out))
            if len(made) >= FLUSH_ROWS:
                yield from self._flush_output()

    def _keys_in_time(
        self, chunk: Chunk, rows: list[Any], times: list[int | None] | None
    ) -> Iterator[pa.RecordBatch]:
        """Keys of a function that has timers, or whose rows have times."""
        stamps = [None] * len(rows) if times is None else times
        spans = zip(
            chunk.keys, by_key(rows, chunk.starts), by_key(stamps, chunk.starts), strict=True
        )
        for i, (key, mine, when) in enumerate(spans):
            if i > 0 or not chunk.runs_on:
                self._begin_key(i, key)
            self._timed_rows(mine, when)
            if self._out.full:
                yield from self._flush_output()

    def _current(self) -> bytes:
        """The prefix of the key whose rows may run on; empty when there is none."""
        return self._store.prefix if self._in_key else b""

    def _begin_key(self, index: int, key: Any) -> None:
        timers, store = self._timers, self._store
        if timers is not None and index > 0:
            self._end_key()
        store.switch_to(index)
        self._ctx.key = key
        self._in_key = True
        self._counts["keys"] += 1
        if timers is not None:
            self._due.discard(store.prefix)
            if self._plan.upstream is None:
                self._fire(self._plan.watermark)

    def _end_key(self) -> None:
        if self._in_key and self._timers is not None:
            self._fire(self._plan.watermark)
        self._store.flush_key()
        self._in_key = False

    def _timed_rows(self, rows: Sequence[Any], times: Sequence[int | None]) -> None:
        process, extend, ctx = self._function.process, self._out.extend, self._ctx
        by_rows = self._timers is not None and self._plan.upstream is None
        for row, time_ms in zip(rows, times, strict=True):
            if by_rows and time_ms is not None:
                self._fire(time_ms - self._plan.timer_delay_ms - 1)
            ctx._timestamp = time_ms
            produced = process(row, ctx)
            if produced is not None:
                extend(produced)

    def _observe(self, batch: pa.RecordBatch) -> None:
        """Take note of the newest event time of each input, rows with a null key included."""
        column = time_column(batch)
        if column is None or not self._plan.inputs:
            return
        timed = column.is_valid().to_numpy(zero_copy_only=False)
        inputs = batch.column(INPUT_COLUMN).to_numpy()
        stamps = column.fill_null(0).to_numpy()
        for index, uid in enumerate(self._plan.inputs):
            mine = stamps[timed & (inputs == index)]
            if len(mine):
                newest = int(mine.max())
                self._newest[uid] = max(self._newest.get(uid, newest), newest)

    def _without_null_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows whose key is null are counted and never processed."""
        columns = [batch.column(name) for name in self._plan.key_columns]
        if not any(column.null_count for column in columns):
            return batch
        keep = np.ones(batch.num_rows, dtype=bool)
        for column in columns:
            keep &= column.is_valid().to_numpy(zero_copy_only=False)
        self._counts["null_keys"] += int(batch.num_rows - keep.sum())
        return batch.filter(pa.array(keep))

    # -- timers ----------------------------------------------------------------------------

    def _find_due(self) -> set[bytes]:
        """Prefixes of the keys that have a timer due at this epoch's watermark."""
        if self._timers is None:
            return set()
        due: set[bytes] = set()
        after = b""
        while True:
            page = self._range.due_timers(self._plan.watermark, _DUE_PAGE, after)
            for entry in page:
                group, _, key = timer_parts(entry)
                due.add(key_prefix(group, key))
            if len(page) < _DUE_PAGE:
                return due
            after = page[-1]

    def _fire(self, up_to_ms: int) -> None:
        timers = self._timers
        if timers is None:
            return
        while (time_ms := timers.pop_due(up_to_ms)) is not None:
            self._counts["timers_fired"] += 1
            self._ctx._timestamp = time_ms
            produced = self._function.on_timer(time_ms, self._ctx)
            if produced is not None:
                self._out.extend(produced)

    def _fire_without_rows(self) -> Iterator[pa.RecordBatch]:
        """Timers of the keys that had no row in this epoch, in the order of their stored keys."""
        remaining = sorted(self._due)
        for at in range(0, len(remaining), _DUE_PAGE):
            page = remaining[at : at + _DUE_PAGE]
            self._store.begin_chunk(page)
            for i, prefix in enumerate(page):
                key = self._keys.decode(prefix[7:])
                self._begin_key(i, key[0] if len(key) == 1 else key)
                if self._out.full:
                    yield from self._flush_output()
            self._end_key()

    # -- output ----------------------------------------------------------------------------

    def _open_sinks(self) -> None:
        plan = self._plan
        stage = StageId(plan.lineage, plan.run, plan.epoch, plan.uid, self._head.subtask)
        for uid, sink in plan.sinks:
            self._sinks.append((uid, sink.open_writer(stage, plan.output)))

    def _flush_output(self) -> Iterator[pa.RecordBatch]:
        rows, batch = self._out.take()
        if not rows:
            return
        for _, writer in self._sinks:
            writer.write(batch)
        if self._plan.downstream:
            self._hash.update(_hashable(rows))
            yield row_batch(batch, self._head.subtask, self._sent)
            self._sent += batch.num_rows

    def _upstream_digests(self) -> dict[str, dict[int, str]]:
        """Digests of the upstream attempts whose rows this attempt reads; all must be there."""
        if self._plan.upstream is None:
            return {}
        uid, count = self._plan.upstream
        return {uid: self._head.upstream_digests(uid, count, self.where())}

    def _ack_batch(self, delta: str, consumed: dict[str, dict[int, str]]) -> pa.RecordBatch:
        committables = {uid: writer.finish() for uid, writer in self._sinks}
        self._sinks = []
        plan = self._plan
        ack = Ack(
            uid=plan.uid,
            subtask=self._head.subtask,
            run=plan.run,
            epoch=plan.epoch,
            delta=delta,
            output=self._hash.hexdigest() if plan.downstream else "",
            rows_out=self._out.total,
            max_event_time=self._newest,
            schemas=self._store.schemas,
            committables={uid: items for uid, items in committables.items() if items},
            consumed=consumed,
            forwarded=list(self._head.acks) if self._head.subtask == 0 else [],
            **self._counts,
        )
        return ack_batch(encode_ack(ack), plan.output, self._head.subtask, plan.downstream)


def _plain(value: Any) -> Any:
    """What stands for a value in a digest: all of it, where `repr` would shorten an array."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else repr(value)


_pack = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def _hashable(rows: list[Any]) -> bytes:
    try:
        return _pack(rows)
    except OverflowError:  # integers of more than 64 bits, in a column of decimals
        return repr(rows).encode()
