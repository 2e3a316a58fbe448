"""What the subtasks of one operator are told about one epoch.

Made by the planner on the driver, pickled to executors. Holds values only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from moorage.api.functions import MAX_WATERMARK, NO_WATERMARK, KeyedProcessFunction
from moorage.api.sinks import Sink
from moorage.engine.columns import carried_schema
from moorage.engine.range_access import LeasedRange
from moorage.engine.samples import Sampling
from moorage_state.descriptors import MapStateDescriptor
from moorage_state.keyed.schema import StateSchema
from moorage_state.operator_state import OperatorStateSchema

NEVER = MAX_WATERMARK
"""Stands for the time of a timer where there is none."""

UNKNOWN = NO_WATERMARK
"""Stands for the time of the next timer where nobody has looked yet."""


@dataclass(frozen=True, slots=True)
class OperatorStatePlan:
    """What the subtasks of one operator need in one epoch beside keyed state; picklable.

    Attributes:
        restored: whether the operator has state from before.
        restored_checkpoint_id: what the job was restored from; None for an empty start.
        checkpoint_id: the id of the next checkpoint that begins, or less.
        schemas: the operator states known so far.
        columns: the columns of the broadcast stream; empty where there is none.
        inputs, time_columns: of the broadcast stream, as in `SubtaskPlan`.
        descriptors: the states that its rows build up.
        changed: those that some subtask declares with another type in this epoch, as it does.
        union_version: another one after each epoch in which a subtask wrote to a union list; no
            two of a run's, and of different runs, are equal.
    """

    restored: bool
    restored_checkpoint_id: int | None
    checkpoint_id: int
    schemas: tuple[OperatorStateSchema, ...] = ()
    columns: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    time_columns: tuple[str, ...] = ()
    descriptors: tuple[MapStateDescriptor, ...] = ()
    changed: tuple[OperatorStateSchema, ...] = ()
    union_version: str = ""


@dataclass(frozen=True, slots=True)
class SideOutputPlan:
    """One side output of an operator, and whether an operator reads it; picklable."""

    name: str
    schema: pa.Schema
    sinks: tuple[tuple[str, Sink], ...] = ()
    read: bool = False

    @property
    def used(self) -> bool:
        """Whether anybody takes its rows."""
        return self.read or bool(self.sinks)


@dataclass(frozen=True, slots=True)
class Upstream:
    """The output `side_output` ("" for the main one) of another operator.

    `feed` tells which rows are of it, where the operator has several feeds.
    """

    uid: str
    side_output: str = ""
    feed: int | None = None


@dataclass(frozen=True, slots=True)
class SubtaskPlan:
    """All that the subtasks of one operator need to know in one epoch; picklable.

    Attributes:
        watermark: up to which event-time timers are due; with `timer_delay_ms` at the least.
        row_watermark: what rows find.
        ranges: by subtask, its range at the version this epoch reads.
        inputs: clocks of the feeds, "" where one has none; the input column holds positions in it.
        per: the column by whose values each of them counts, "" for those that do not; empty where
            none does.
        streams: of an operator over two streams, the columns of each; `columns` are those of the
            key then, and one for each stream's rows.
        now_ms: the epoch's processing time.
        next_timers: by subtask, a processing time before which none of its stored timers is due;
            empty where nothing is known.
        timer_delay_ms: how far event time within a key stays behind its rows; None: it stands
            still.
        batch: this epoch holds all there is: no state is read or kept.
        downstream: whether operators read any of its outputs.
        main_read: whether one of these reads the main output.
        time_columns: by feed the column of event time, empty for one that declares none.
        null_keys_to: name of the side output for rows whose key is null; empty where there is none.
        bad_times_to: the same for rows without the event time that their input declares.
        upstreams: the outputs of other operators that are read.
        blank_columns_of: the feeds whose columns are looked at for those of nulls alone.
        operator_state: for an operator with operator state or broadcast rows.
        sampling: of what goes to sinks; None for no sample.
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
    row_watermark: int
    ranges: Sequence[LeasedRange]
    token: str = field(repr=False)
    inputs: tuple[str, ...] = ()
    per: tuple[str, ...] = ()
    now_ms: int = 0
    next_timers: Sequence[int] = ()
    timer_delay_ms: int | None = None
    downstream: bool = False
    main_read: bool = True
    side_outputs: tuple[SideOutputPlan, ...] = ()
    time_columns: tuple[str, ...] = ()
    null_keys_to: str = ""
    bad_times_to: str = ""
    upstreams: tuple[Upstream, ...] = ()
    blank_columns_of: tuple[int, ...] = ()
    streams: tuple[tuple[str, ...], ...] = ()
    schemas: tuple[StateSchema, ...] = ()
    sinks: tuple[tuple[str, Sink], ...] = ()
    operator_state: OperatorStatePlan | None = None
    batch: bool = False
    sampling: Sampling | None = None

    @property
    def carried(self) -> pa.Schema:
        """The columns that carry what other operators read."""
        read = [(i, side.schema) for i, side in enumerate(self.side_outputs) if side.read]
        return carried_schema(self.output if self.main_read else None, read)
