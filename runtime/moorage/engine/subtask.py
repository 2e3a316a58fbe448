"""One subtask of a stateful operator in one epoch: what runs inside `mapInArrow`.

Decides what happens from the first row to the acknowledgement, and what the driver hears of a
failure. Called by Spark in a Python worker; talks to the range's state server in batches, never per
record. It never changes committed state: it prepares a delta and acknowledges it as its last row.
"""

# ruff: noqa: SLF001 - a context's underscored side is the engine's, the rest is the user's

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from uuid import uuid4

import pyarrow as pa

from moorage.api.functions import (
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    TimerService,
)
from moorage.api.vectorized import KeyedBatchFunction
from moorage.engine.acks import Ack, encode_ack
from moorage.engine.batch import FiringAtTheEnd, NothingStored
from moorage.engine.batch_loop import BatchLoop
from moorage.engine.buffers import OutputBuffer
from moorage.engine.columns import ack_batch
from moorage.engine.event_times import EventTimes
from moorage.engine.failures import SubtaskFailure
from moorage.engine.firing import Firing
from moorage.engine.garbage import seldom_collecting
from moorage.engine.head import Head, read_head
from moorage.engine.key_loop import KeyLoop
from moorage.engine.operator_side import OperatorSide
from moorage.engine.range_access import BoundRange, connect_to
from moorage.engine.row_filter import RowFilter
from moorage.engine.sending import Sending
from moorage.engine.subtask_plan import NEVER, UNKNOWN, SubtaskPlan
from moorage.engine.user_errors import failure_in
from moorage_state.keyed import KeyedStateStore, KeyTimers
from moorage_state.keygroups import range_of

__all__ = ["SubtaskPlan", "run_subtask"]

_log = logging.getLogger(__name__)


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
            access = NothingStored if plan.batch else BoundRange
            subtask = _Subtask(plan, head, access(client, leased, plan.epoch, uuid4().hex))
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


def _has_timers(function: KeyedProcessFunction) -> bool:
    return type(function).on_timer is not KeyedProcessFunction.on_timer


def _firing(
    plan: SubtaskPlan, head: Head, ctx: ProcessContext, timers: KeyTimers, out: OutputBuffer
) -> Firing:
    if plan.batch:
        return FiringAtTheEnd(plan.function, ctx, timers, out)
    known = plan.next_timers[head.subtask] if plan.next_timers else UNKNOWN
    return Firing(plan.function, ctx, timers, out, plan.watermark, known)


class _Subtask:
    """The state of one attempt; used once."""

    def __init__(self, plan: SubtaskPlan, head: Head, bound: BoundRange) -> None:
        self._plan = plan
        self._head = head
        self._range = bound
        groups = range_of(head.subtask, plan.parallelism, plan.max_parallelism)
        self._store = KeyedStateStore(
            bound, plan.epoch, plan.schemas, now_ms=plan.now_ms, groups=groups
        )
        self._function = plan.function
        self._sending = Sending(plan, head.subtask)
        timers = KeyTimers(self._store) if _has_timers(plan.function) else None
        self._side = OperatorSide(plan, head.subtask, bound, self._store) if plan.side else None
        service = TimerService(timers, plan.row_watermark, plan.now_ms)
        self._ctx = self._side.context(service) if self._side else ProcessContext(service)
        self._ctx._emit = self._sending.buffer.emit
        self._firing: Firing | None = None
        if timers is not None:
            self._firing = _firing(plan, head, self._ctx, timers, self._sending.buffer)
        loop = BatchLoop if isinstance(plan.function, KeyedBatchFunction) else KeyLoop
        self._loop = loop(plan, self._ctx, self._store, self._sending, self._firing)
        self._rows_in = 0
        self._filter = RowFilter(plan)
        self._times = EventTimes(plan)
        self._opened = False

    def where(self) -> str:
        """The place a failure is reported at."""
        key = f" key={self._ctx.key!r:.100}" if self._loop.in_key else ""
        return f"operator={self._plan.uid} subtask={self._head.subtask}{key}"

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All batches, then timers of keys without rows, then the acknowledgement."""
        plan = self._plan
        consumed = self._upstream_digests()
        self._sending.open()
        context = RuntimeContext(self._store, plan.uid, self._head.subtask, plan.parallelism)
        if self._side is not None:
            self._side.initialize(context)
        self._function.open(context)
        self._opened = True
        self._store.sweep_expired()
        if self._side is not None:
            batches = yield from self._side.take_broadcast(batches, self._sending)
            self._rows_in += self._side.broadcast_rows if self._head.subtask == 0 else 0
        for batch in batches:
            self._times.observe(batch)
            keyed, aside = self._filter.sort_out(batch)
            for name, rows in aside:
                yield from self._sending.send_aside(name, rows)
            self._rows_in += keyed.num_rows
            if keyed.num_rows:
                yield from self._loop.rows(keyed)
        yield from self._loop.end_key()
        yield from self._loop.fire_without_rows(self._range)
        yield from self._sending.flush()
        self._store.finish()
        if self._side is not None:
            self._side.finish()
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
        for writer in self._sending.writers():
            self._quietly(writer.abort)
        self._quietly(self.close)
        if self._side is not None:
            self._side.close()

    def _quietly(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - user code and other people's sinks
            _log.exception("cleaning up after a failure failed too: %s", self.where())

    # -- the acknowledgement ---------------------------------------------------------------

    def _upstream_digests(self) -> dict[str, dict[int, str]]:
        """Digests of the upstream attempts whose rows this attempt reads; all must be there."""
        if self._plan.upstream is None:
            return {}
        uid, count = self._plan.upstream
        return {uid: self._head.upstream_digests(uid, count, self.where())}

    def _ack_batch(self, delta: str, consumed: dict[str, dict[int, str]]) -> pa.RecordBatch:
        plan, firing, odd, side = self._plan, self._firing, self._filter, self._side
        ack = Ack(
            uid=plan.uid,
            subtask=self._head.subtask,
            run=plan.run,
            epoch=plan.epoch,
            delta=delta,
            output=self._sending.digest,
            rows_out=self._sending.buffer.total,
            keys=self._loop.keys,
            timers_fired=firing.fired if firing is not None else 0,
            next_timer=firing.next_timer(self._range) if firing is not None else NEVER,
            rows_in=self._rows_in,
            late_rows=self._times.late_rows,
            max_event_time=self._times.newest,
            value_times=self._times.values,
            schemas=self._store.schemas,
            operator_states=side.schemas if side is not None else [],
            committables=self._sending.finish(),
            consumed=consumed,
            forwarded=list(self._head.acks) if self._head.subtask == 0 else [],
            null_keys=odd.null_keys,
            null_rows=odd.null_rows,
            bad_times=odd.bad_times,
            bad_time=odd.first_bad_time,
            # Every subtask has all broadcast rows.
            bad_broadcasts=side.bad_times if side is not None and self._head.subtask == 0 else 0,
            bad_broadcast=side.first_bad_time if side is not None else "",
        )
        raw, brief = encode_ack(ack), encode_ack(ack.brief)
        return ack_batch(raw, plan.carried, ack.subtask, plan.downstream, brief)
