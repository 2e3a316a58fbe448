"""The part of a subtask that concerns operator state and broadcast rows.

Decides when a function is initialized and asked for its snapshot, and that broadcast rows are
through before the first keyed one. Operators without an `OperatorStatePlan` pay nothing for it.
"""

# ruff: noqa: SLF001 - a context's underscored side is the engine's, the rest is the user's

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from itertools import chain
from tempfile import gettempdir
from typing import Any

import numpy as np
import pyarrow as pa

from moorage.api.broadcast import BroadcastContext, KeyedBroadcastProcessFunction, ReadOnlyContext
from moorage.api.checkpointed import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from moorage.api.functions import ProcessContext, RuntimeContext, TimerService
from moorage.engine.columns import BROADCAST, INPUT_COLUMN, KIND_COLUMN, broadcast_column
from moorage.engine.outputs import SubtaskOutput
from moorage.engine.range_access import Connect, RangeConnections
from moorage.engine.rows import TupleReader, missing_times, times_of
from moorage.engine.subtask_plan import SubtaskPlan
from moorage.engine.union_lists import UnionLists
from moorage_state.errors import Bug
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.access import RangeAccess
from moorage_state.keyed.visits import KeyVisits
from moorage_state.keygroups import range_of
from moorage_state.keys import KeyCodec
from moorage_state.operator_state import OperatorStateSchema, RangeOperatorStates, RawStates


class SubtaskOperatorState:
    """Operator state and broadcast rows of one attempt of one subtask.

    Args:
        access: its range, as this attempt reads it.
        store: its keyed state, which takes what this attempt writes.
        connect: see `run_subtask`.
    """

    def __init__(
        self,
        plan: SubtaskPlan,
        subtask: int,
        access: RangeAccess,
        store: KeyedStateStore,
        connect: Connect | None = None,
    ) -> None:
        if plan.operator_state is None:
            raise Bug(f"an operator without a plan for it has no operator state: uid={plan.uid}")
        self._plan = plan
        self._needs = plan.operator_state
        self._function: Any = plan.function
        self._connections = RangeConnections(plan.token, connect)
        groups = range_of(subtask, plan.parallelism, plan.max_parallelism)
        union = UnionLists(
            plan.uid, self._needs.union_version, plan.ranges, subtask, self._connections.to
        )
        self._states = RangeOperatorStates(
            access,
            store,
            groups.start,
            plan.epoch,
            self._needs.schemas,
            # Without stored state there is nothing that the others could have left.
            None if plan.batch else union.read,
            self._needs.changed,
        )
        self._raw = RawStates(self._states, access, store, groups)
        self._visits = KeyVisits(store, _key_of(plan), _scratch())
        descriptors = self._needs.descriptors
        self._broadcast = {d.name: self._states.get_broadcast_state(d) for d in descriptors}
        self._ctx = BroadcastContext(
            self._broadcast, self._visits.visit, watermark=plan.row_watermark, now_ms=plan.now_ms
        )
        self.broadcast_rows = self.bad_times = 0
        self.first_bad_time = ""

    @property
    def schemas(self) -> list[OperatorStateSchema]:
        """Schemas of all operator states of the operator."""
        return self._states.schemas

    @property
    def wrote_union(self) -> bool:
        """Whether a union list has elements that the next epoch finds."""
        return self._states.wrote_union

    def context(self, timers: TimerService) -> ProcessContext:
        """What keyed rows and timers are handed."""
        if isinstance(self._function, KeyedBroadcastProcessFunction):
            return ReadOnlyContext(timers, self._broadcast)
        return ProcessContext(timers)

    def initialize(self, keyed: RuntimeContext) -> None:
        """Let the function take up its state, before it is opened."""
        if isinstance(self._function, CheckpointedFunction):
            context = FunctionInitializationContext(
                self._needs.restored,
                self._needs.restored_checkpoint_id,
                self._states,
                keyed,
                self._raw,
            )
            self._function.initialize_state(context)

    def take_broadcast(
        self, batches: Iterator[pa.RecordBatch], sending: SubtaskOutput
    ) -> Generator[pa.RecordBatch, None, Iterator[pa.RecordBatch]]:
        """Process the broadcast rows, which come first; returns the batches of keyed rows.

        Yields what is for the next operator meanwhile.
        """
        if not self._needs.columns:
            return batches
        reader = TupleReader(self._needs.columns)
        self._ctx._emit = sending.buffer.emit
        for batch in batches:
            kinds = batch.column(KIND_COLUMN).to_numpy()
            count = int(np.count_nonzero(kinds == BROADCAST))
            yield from self._process(batch.slice(0, count), reader, sending)
            if count < batch.num_rows:
                self._visits.end()
                return chain((batch.slice(count),), batches)
        self._visits.end()
        return iter(())

    def finish(self) -> None:
        """Ask the function for its snapshot and write what changed; after the last timer."""
        if isinstance(self._function, CheckpointedFunction):
            context = FunctionSnapshotContext(
                self._needs.checkpoint_id, self._plan.now_ms, self._raw
            )
            self._function.snapshot_state(context)
        self._states.flush()
        self._raw.flush()

    def close(self) -> None:
        """Close connections to other ranges, and drop what visits kept."""
        self._visits.close()
        self._connections.close()

    def _process(
        self, batch: pa.RecordBatch, reader: TupleReader, sending: SubtaskOutput
    ) -> Iterator[pa.RecordBatch]:
        batch = self._with_times(batch)
        if batch.num_rows == 0:
            return
        self.broadcast_rows += batch.num_rows
        names = self._needs.columns
        columns = [batch.column(broadcast_column(i)) for i in range(len(names))]
        rows = reader.rows(pa.RecordBatch.from_arrays(columns, names=list(names)))
        times = times_of(batch) or [None] * len(rows)
        ctx, process = self._ctx, self._function.process_broadcast_element
        for row, time_ms in zip(rows, times, strict=True):
            ctx._timestamp = time_ms
            produced = process(row, ctx)
            left = None if produced is None else sending.buffer.extend(produced)
            if sending.buffer.full:
                yield from sending.flush_with(left)

    def _with_times(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without rows that have no event time although their input declares one."""
        missing = missing_times(batch, self._needs.time_columns)
        if missing is None:
            return batch
        if not self.bad_times:
            several = len(self._needs.inputs) > 1
            row = int(missing.argmax())
            index = batch.column(INPUT_COLUMN)[row].as_py() if several else 0
            uid, column = self._needs.inputs[index], self._needs.time_columns[index]
            self.first_bad_time = f"input={uid} column={column}"
        self.bad_times += int(missing.sum())
        return batch.filter(pa.array(~missing))


def _key_of(plan: SubtaskPlan) -> Callable[[bytes], Any]:
    """From a key's bytes to the key as a function knows it."""
    decode = KeyCodec(plan.key_types).decode
    return decode if len(plan.key_types) > 1 else lambda raw: decode(raw)[0]


def _scratch() -> list[str]:
    """Where temporary files go: Spark's local directories, which have a volume on a cluster."""
    found = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    with suppress(FileNotFoundError):
        found.append(gettempdir())
    return [directory for directory in found if directory]
