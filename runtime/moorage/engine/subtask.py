"""One subtask of a stateful operator in one epoch: what runs inside `mapInArrow`.

Decides what happens from the first row to the acknowledgement, and what the driver hears of a
failure. Talks to the range's state server in batches, never per record; never changes committed
state: it prepares a delta and acknowledges it as its last row. `stage_rows` is the same for a sink
without an operator before it.
"""

# ruff: noqa: SLF001 - a context's underscored side is the engine's, the rest is the user's

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from moorage.api.functions import (
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    TimerService,
)
from moorage.api.sinks import Sink, StageId
from moorage.api.vectorized import KeyedBatchFunction
from moorage.engine.acks import Ack, EpochIncomplete, ReadRows, Tally, encode_ack, tally
from moorage.engine.blank_columns import BlankColumnSearch
from moorage.engine.chunk_timers import ChunkTimers
from moorage.engine.columns import (
    ACK_COLUMN,
    GROUP_COLUMN,
    INPUT_COLUMN,
    KIND_COLUMN,
    MARK_COLUMN,
    ROW,
    START,
    ack_batch,
)
from moorage.engine.event_time import EventTimes
from moorage.engine.kept_functions import close, give_back, take
from moorage.engine.key_loop import KeyLoop
from moorage.engine.outputs import OutputBuffer, SubtaskOutput
from moorage.engine.range_access import BoundRange, Connect, connect_to
from moorage.engine.rows import RowFilter, count_rows
from moorage.engine.samples import Sampler, Sampling
from moorage.engine.subtask_operator_state import SubtaskOperatorState
from moorage.engine.subtask_plan import NEVER, UNKNOWN, SubtaskPlan
from moorage.engine.task_failures import SubtaskFailure, failure_in
from moorage.engine.timers import Firing, FiringAtTheEnd, NothingStored
from moorage.engine.vectorized_loop import VectorizedLoop
from moorage_state.errors import MoorageError, UserError
from moorage_state.keyed import KeyedStateStore, KeyTimers
from moorage_state.keygroups import range_of

# A subtask makes some tuples for every row and few cycles. At Python's own threshold of 700 new
# objects the collector walks over the rows of the batch again and again: half of a subtask's time.
_NEW_OBJECTS = 200_000

_log = logging.getLogger(__name__)


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Within, young objects are looked over each 200,000, some megabytes; afterwards as before."""
    before = gc.get_threshold()
    # A collector that was switched off, or set to even fewer looks, stays as it was.
    if 0 < before[0] < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Waits:
    """Batches of rows, and for how many seconds they were waited for."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.seconds = 0.0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        began = time.monotonic()
        try:
            return next(self._batches)
        finally:
            self.seconds += time.monotonic() - began


@dataclass(frozen=True, slots=True)
class Header:
    """Which subtask this is, and acknowledgements on their way to the driver, encoded."""

    subtask: int
    acks: tuple[bytes, ...]


def read_header(batches: Iterator[pa.RecordBatch]) -> tuple[Header, Iterator[pa.RecordBatch]]:
    """Split off the leading start and acknowledgement rows; they sort before all others.

    Raises:
        SubtaskFailure: there is not exactly one start row.
    """
    subtasks: list[int] = []
    acks: list[bytes] = []
    for batch in batches:
        kinds = batch.column(KIND_COLUMN).to_numpy()
        count = int(np.count_nonzero(kinds > ROW))
        for i in range(count):
            if kinds[i] == START:
                subtasks.append(batch.column(GROUP_COLUMN)[i].as_py())
            else:
                acks.append(batch.column(ACK_COLUMN)[i].as_py())
        if count < batch.num_rows:
            return _header(subtasks, acks), chain((batch.slice(count),), batches)
    return _header(subtasks, acks), iter(())


def _header(subtasks: list[int], acks: list[bytes]) -> Header:
    if len(subtasks) != 1:
        raise SubtaskFailure(
            EpochIncomplete.code,
            f"a partition holds the rows of {len(subtasks)} subtasks: subtasks={subtasks}",
        )
    return Header(subtasks[0], tuple(acks))


def run_subtask(
    plan: SubtaskPlan, batches: Iterator[pa.RecordBatch], connect: Connect | None = None
) -> Iterator[pa.RecordBatch]:
    """Run one subtask over its rows; the last batch ends with its acknowledgement.

    Args:
        connect: how its state servers are reached where they are no processes of their own.

    Raises:
        SubtaskFailure: for every failure, with the code that tells the driver what to do.
    """
    subtask: _Subtask | None = None
    began_ms = wall_ms()
    try:
        header, rest = read_header(batches)
        leased = plan.ranges[header.subtask]
        with closing((connect or connect_to)(leased.door, plan.token)) as client:
            access = NothingStored if plan.batch else BoundRange
            bound = access(client, leased, plan.epoch, uuid4().hex)
            own = replace(plan, function=take(plan))
            subtask = _Subtask(own, header, bound, connect, began_ms)
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
        raise failure_in(plan.function, exc, where) from exc


def wall_ms() -> int:
    """Milliseconds since 1970 UTC by this machine's clock."""
    return time.time_ns() // 1_000_000


def _timers_of(
    plan: SubtaskPlan, store: KeyedStateStore
) -> tuple[KeyTimers | None, ChunkTimers | None]:
    """The timers of a function, one key at a time or many; none for one that handles none."""
    function = plan.function
    if not isinstance(function, KeyedBatchFunction):
        return (KeyTimers(store) if function.has_timers else None), None
    if type(function).on_timer is not KeyedProcessFunction.on_timer:
        raise UserError(
            f"a vectorized function has its timers in on_timers(keys, timers, ctx): "
            f"operator={plan.uid} function={type(function).__name__}; leave out on_timer, or write "
            f"a KeyedProcessFunction"
        )
    return None, (ChunkTimers(store) if function.has_timers else None)


def _firing(
    plan: SubtaskPlan,
    header: Header,
    ctx: ProcessContext,
    timers: Any,  # of one key at a time or many: whose they are asks them itself
    out: OutputBuffer,
) -> Firing:
    if plan.batch:
        return FiringAtTheEnd(plan.function, ctx, timers, out)
    known = plan.next_timers[header.subtask] if plan.next_timers else UNKNOWN
    return Firing(plan.function, ctx, timers, out, plan.watermark, known)


class _Subtask:
    """The state of one attempt; used once."""

    def __init__(
        self,
        plan: SubtaskPlan,
        header: Header,
        bound: BoundRange,
        connect: Connect | None,
        began_ms: int,
    ) -> None:
        self._began = time.monotonic()
        self._began_ms = began_ms
        self._waited = 0.0
        self._plan = plan
        self._header = header
        self._range = bound
        groups = range_of(header.subtask, plan.parallelism, plan.max_parallelism)
        self._store = KeyedStateStore(
            bound, plan.epoch, plan.schemas, now_ms=plan.now_ms, groups=groups
        )
        self._function = plan.function
        self._sending = SubtaskOutput(plan, header.subtask)
        timers, many = _timers_of(plan, self._store)
        self._operator_state = (
            SubtaskOperatorState(plan, header.subtask, bound, self._store, connect)
            if plan.operator_state
            else None
        )
        service = TimerService(timers, plan.row_watermark, plan.now_ms)
        self._ctx = (
            self._operator_state.context(service)
            if self._operator_state
            else ProcessContext(service)
        )
        self._ctx._emit = self._sending.buffer.emit
        self._firing: Firing | None = None
        if (found := timers or many) is not None:
            self._firing = _firing(plan, header, self._ctx, found, self._sending.buffer)
        common = plan, self._ctx, self._store, self._sending, self._firing
        self._loop: KeyLoop | VectorizedLoop = (
            VectorizedLoop(*common, many)
            if isinstance(plan.function, KeyedBatchFunction)
            else KeyLoop(*common)
        )
        self._rows_in = self._rows_read = 0
        self._dropped_before = 0
        self._read = [Tally()] * len(plan.upstreams)
        self._filter = RowFilter(plan)
        self._times = EventTimes(plan)
        self._blank = BlankColumnSearch(plan)
        # A long-lived one was opened when its worker took it.
        self._opened = plan.function.long_lived

    def where(self) -> str:
        """The place a failure is reported at."""
        key = f" key={self._ctx.key!r:.100}" if self._loop.in_key else ""
        return f"operator={self._plan.uid} subtask={self._header.subtask}{key}"

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All batches, then timers of keys without rows, then the acknowledgement."""
        plan = self._plan
        self._sending.open()
        waits = batches = _Waits(batches)
        context = RuntimeContext(self._store, plan.uid, self._header.subtask, plan.parallelism)
        if self._operator_state is not None:
            self._operator_state.initialize(context)
        if not self._opened:
            self._function.open(context)
            self._opened = True
        self._dropped_before = self._function.late_rows_dropped
        self._function.open_epoch(context)
        self._store.sweep_expired()
        if self._operator_state is not None:
            batches = yield from self._operator_state.take_broadcast(batches, self._sending)
            self._rows_in += self._operator_state.broadcast_rows if self._header.subtask == 0 else 0
        for batch in batches:
            self._tally(batch)
            self._times.observe(batch)
            self._blank.observe(batch)
            keyed, aside = self._filter.sort_out(batch)
            for name, rows in aside:
                yield from self._sending.send_aside(name, rows)
            self._rows_in += self._new_rows(keyed)
            self._rows_read += keyed.num_rows
            if keyed.num_rows:
                yield from self._loop.rows(keyed)
        yield from self._loop.end_key()
        yield from self._loop.fire_without_rows(self._range)
        yield from self._sending.flush()
        self._store.finish()
        if self._operator_state is not None:
            self._operator_state.finish()
            self._store.finish()
        self._waited = waits.seconds
        # Last: whoever has read an acknowledgement has read all rows before it.
        yield self._ack_batch(self._range.prepare())

    def _tally(self, batch: pa.RecordBatch) -> None:
        """Add up the marks of rows that other operators sent."""
        for position, up in enumerate(self._plan.upstreams):
            marks = batch.column(MARK_COLUMN)
            if up.feed is not None:
                marks = marks.filter(pc.equal(batch.column(INPUT_COLUMN), up.feed))
            self._read[position] += tally(marks.to_numpy())

    def _new_rows(self, batch: pa.RecordBatch) -> int:
        """How many rows are of inputs; where there are none, how many there are."""
        every = count_rows(batch)
        sent = [up.feed for up in self._plan.upstreams if up.feed is not None]
        if not sent or len(sent) == len(self._plan.time_columns):
            return every
        return every - int(np.isin(batch.column(INPUT_COLUMN).to_numpy(), sent).sum())

    def close(self) -> None:
        """The epoch is done: close the function, or keep it for the next one."""
        self._opened = False
        give_back(self._plan, self._function)

    def release(self) -> None:
        """Let go of everything and drop what sinks staged, unless acknowledged; never raises."""
        # After a failure, that failure is what the driver must hear of.
        for writer in self._sending.writers():
            self._quietly(writer.abort)
        if self._opened:
            self._opened = False
            close(self._function, self._plan.uid)
        if self._operator_state is not None:
            self._operator_state.close()

    def _quietly(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - user code and other people's sinks
            _log.exception("cleaning up after a failure failed too: %s", self.where())

    # -- the acknowledgement ---------------------------------------------------------------

    def _times_spent(self) -> dict[str, Any]:
        # What operators read must be the same in every attempt, or Spark takes a shuffle that is
        # computed again for another one, and fails the epoch.
        if self._plan.downstream:
            return {}
        return {
            "began_ms": self._began_ms,
            "seconds": time.monotonic() - self._began,
            "wait_seconds": self._waited,
            "state_seconds": self._range.seconds,
            "sink_seconds": self._sending.sink_seconds,
        }

    def _ack_batch(self, delta: str) -> pa.RecordBatch:
        plan, firing, odd, state = self._plan, self._firing, self._filter, self._operator_state
        next_timer = firing.next_timer(self._range) if firing is not None else NEVER
        committables = self._sending.finish()
        ack = Ack(
            uid=plan.uid,
            subtask=self._header.subtask,
            run=plan.run,
            epoch=plan.epoch,
            delta=delta,
            output=self._sending.digest,
            rows_out=self._sending.buffer.total,
            keys=self._loop.keys,
            timers_fired=firing.fired if firing is not None else 0,
            next_timer=next_timer,
            rows_in=self._rows_in,
            rows_read=self._rows_read,
            late_rows=self._times.late_rows,
            late_rows_dropped=self._function.late_rows_dropped - self._dropped_before,
            max_event_time=self._times.newest,
            value_times=self._times.values,
            schemas=self._store.schemas,
            operator_states=state.schemas if state is not None else [],
            wrote_union=state.wrote_union if state is not None else False,
            committables=committables,
            queryable=self._store.kv_states.names(),
            sent=self._sending.sent,
            samples=self._sending.samples,
            read=tuple(
                ReadRows(up.uid, up.side_output, mine)
                for up, mine in zip(plan.upstreams, self._read, strict=True)
            ),
            null_feeds=odd.null_feeds,
            null_rows=odd.null_rows,
            blank_columns=self._blank.found,
            bad_times=odd.bad_times,
            bad_time=odd.first_bad_time,
            # Every subtask has all broadcast rows.
            bad_broadcasts=state.bad_times
            if state is not None and self._header.subtask == 0
            else 0,
            bad_broadcast=state.first_bad_time if state is not None else "",
            **self._times_spent(),
        )
        raws = (encode_ack(ack), *self._header.acks)
        return ack_batch(raws, plan.carried, ack.subtask, downstream=plan.downstream)


def stage_rows(
    lineage: str,
    run: str,
    epoch: int,
    uid: str,
    sink: Sink,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    sampling: Sampling | None = None,
) -> Iterator[pa.RecordBatch]:
    """Stage a partition of rows for a sink and acknowledge it.

    Raises SubtaskFailure: with the code that tells the driver what to do.
    """
    writer = sink.open_writer(StageId(lineage, run, epoch, uid, uuid4().int % 100_000), schema)
    rows, began, began_ms, waits = 0, time.monotonic(), wall_ms(), _Waits(batches)
    sampler = Sampler(sampling) if sampling is not None else None
    try:
        for batch in waits:
            made = batch.cast(schema)
            writer.write(made)
            rows += batch.num_rows
            if sampler is not None:
                sampler.add([uid], made)
        staged = {uid: items} if (items := writer.finish()) else {}
    except BaseException as error:
        try:
            writer.abort()
        except Exception:  # noqa: BLE001 - the first failure is what the driver must hear of
            _log.exception("cleaning up after a failure failed too: sink=%s", uid)
        if isinstance(error, MoorageError):
            raise SubtaskFailure(error.code, str(error)) from error
        raise
    seconds = time.monotonic() - began
    ack = Ack(
        uid=uid,
        subtask=0,
        run=run,
        epoch=epoch,
        rows_in=rows,
        committables=staged,
        samples=sampler.taken() if sampler is not None else {},
        began_ms=began_ms,
        seconds=seconds,
        wait_seconds=waits.seconds,
        sink_seconds=seconds - waits.seconds,
    )
    yield pa.RecordBatch.from_arrays([pa.array([encode_ack(ack)], pa.binary())], [ACK_COLUMN])
