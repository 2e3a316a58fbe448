"""What a job is made of: inputs, stateful operators and sinks, and how they hang together.

Made by streams while a job is described, read by the engine and the driver.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CellType, FunctionType
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from moorage.api.broadcast import BroadcastStream
from moorage.api.declarations import SideOutput
from moorage.api.functions import KeyedProcessFunction, OutputTag, innermost
from moorage.api.join_functions import BY_FUNCTION
from moorage.api.sinks import Sink
from moorage.api.vectorized import KeyedBatchFunction
from moorage_state.errors import UserError

if TYPE_CHECKING:
    from moorage.api.streams import DataStream


Transform = Callable[[DataFrame], DataFrame]


@dataclass(slots=True, eq=False)
class InputNode:
    """One streaming source. Its uid is how checkpoints find its offsets again.

    `source` is Spark's name of its kind, empty where the job opened it by itself. `nested` says
    whether it reads files in all folders below `files`, and not in those of partitions alone;
    `name_filter` is the pattern that names of files match, None for all.
    """

    uid: str
    frame: DataFrame
    files: str | None = None
    source: str = ""
    nested: bool = False
    name_filter: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class KeyedInput:
    """A stream that an operator reads, and the columns that are its key there."""

    stream: "DataStream"
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """One way by which rows come to an operator: an input, or what another operator sends.

    Attributes:
        side: 0 for the first of the operator's streams, 1 for the second.
        keyed: that stream.
        source: where the rows come from.
    """

    side: int
    keyed: KeyedInput
    source: "Branch | OperatorNode"

    @property
    def branch(self) -> "Branch | None":
        """The input, if it is one."""
        return self.source if isinstance(self.source, Branch) else None

    @property
    def producer(self) -> "OperatorNode | None":
        """The operator whose output it is, if it is one."""
        return self.source if isinstance(self.source, OperatorNode) else None

    @property
    def told(self) -> str:
        """What errors call it: the input, or the operator with its side output."""
        if isinstance(self.source, Branch):
            return f"input={self.source.node.uid}"
        side = self.keyed.stream.side_output
        return f"from={self.source.uid}" + (f" side_output={side}" if side else "")

    @property
    def event_time(self) -> str | None:
        """The column of event time; None where none is declared."""
        return (self.branch or self.keyed.stream).event_time

    @property
    def event_time_shift_ms(self) -> int:
        """What is added to it."""
        return 0 if self.branch else self.keyed.stream.event_time_shift_ms


@dataclass(slots=True, eq=False)
class OperatorNode:
    """One stateful operator.

    `null_key` and `bad_time` are "fail", "drop", or the side output that such rows go to. `second`
    is the other stream of an operator over two, whose rows have columns of their own.
    """

    uid: str
    upstream: "DataStream"
    key_columns: tuple[str, ...]
    key_types: tuple[str, ...]
    function: KeyedProcessFunction
    output: StructType
    null_key: str | OutputTag
    broadcast: BroadcastStream | None = None
    side_outputs: tuple[SideOutput, ...] = ()
    bad_time: str | OutputTag = "fail"
    second: KeyedInput | None = None

    @property
    def reads(self) -> frozenset[str] | None:
        """The columns of its stream that it has a use for; None: all."""
        function = self.function
        reads = function.reads if isinstance(function, KeyedBatchFunction) else None
        # What goes aside goes as it came.
        aside = any(isinstance(way, OutputTag) for way in (self.null_key, self.bad_time))
        if reads is None or aside:
            return None
        counted = (branch.per for branch in self.upstream.branches)
        return frozenset({*reads, *self.key_columns, *counted})

    @property
    def changed_in(self) -> str:
        """Where its rows are filtered and changed, to be told: no DataFrame comes after it."""
        function = innermost(self.function)
        if not type(function).__module__.startswith("moorage."):
            told = f"do it inside the function {type(function).__name__} instead"
        elif self.second is not None:
            told = f"in place of the join's select call {BY_FUNCTION}"
        else:
            told = 'call key_by("column").process(function, uid="...", output="...") after it'
        return f"{told}: operator={self.uid}"

    @property
    def keyed_inputs(self) -> tuple[KeyedInput, ...]:
        """The streams whose rows it has by key: one, or two."""
        first = KeyedInput(self.upstream, self.key_columns)
        return (first,) if self.second is None else (first, self.second)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """How their rows come; `INPUT_COLUMN` holds positions in it."""
        return tuple(
            Feed(side, keyed, source)
            for side, keyed in enumerate(self.keyed_inputs)
            for source in (
                [keyed.stream.operator] if keyed.stream.operator else keyed.stream.branches
            )
        )

    @property
    def chain(self) -> "tuple[OperatorNode, ...]":
        """The operator itself, and all that it reads by way of others."""
        found = {id(self): self}
        waiting = [self]
        while waiting:
            producers = [feed.producer for feed in waiting.pop().feeds]
            new = [p for p in producers if p is not None and id(p) not in found]
            found |= {id(p): p for p in new}
            waiting += new
        return tuple(found.values())

    @property
    def branches(self) -> "tuple[Branch, ...]":
        """The inputs that it hangs on, also by way of other operators."""
        return tuple(f.branch for o in self.chain for f in o.feeds if f.branch is not None)

    @property
    def broadcast_branches(self) -> "tuple[Branch, ...]":
        """The inputs whose rows go to all of its subtasks."""
        return self.broadcast.stream.branches if self.broadcast is not None else ()


@dataclass(slots=True, eq=False)
class SinkNode:
    """One sink at the end of a stream."""

    uid: str
    upstream: "DataStream"
    sink: Sink


@dataclass(slots=True)
class JobGraph:
    """Everything a job is made of, in the order it was declared."""

    inputs: list[InputNode] = field(default_factory=list)
    operators: list[OperatorNode] = field(default_factory=list)
    sinks: list[SinkNode] = field(default_factory=list)

    def check(self) -> None:
        """Raise `UserError` where the job cannot run: nothing read, nothing done, ..."""
        if not self.inputs:
            raise UserError("the job reads nothing: build(env) must call env.read_stream(...)")
        if not self.operators and not self.sinks:
            raise UserError("the job does nothing: add .process(...) or .sink_to(...) to a stream")
        for operator in self.operators:
            for feed in operator.feeds:
                if feed.producer is not None and feed.event_time is not None:
                    _require_clock(operator, feed.producer.branches)
        _refuse_times_of_one_name(feed.branch for o in self.operators for feed in o.feeds)

    def unread(self) -> list[str]:
        """Uids of operators of whose outputs nobody reads any; maybe their state is all."""
        read = {id(feed.producer) for o in self.operators for feed in o.feeds}
        read |= {id(sink.upstream.operator) for sink in self.sinks}
        return [operator.uid for operator in self.operators if id(operator) not in read]


@dataclass(frozen=True, slots=True)
class Branch:
    """One input with the stateless transformations applied to it, and its event time.

    `made_by` has the columns that the input itself does not have, each with its `maker`.
    """

    node: InputNode
    transforms: tuple[Transform, ...] = ()
    event_time: str | None = None
    max_delay_ms: int = 0
    idle_after_ms: int | None = None
    per: str = ""
    made_by: Mapping[str, object] = field(default_factory=dict, compare=False)

    def apply(self, frame: DataFrame) -> DataFrame:
        """The branch's rows, from the input's."""
        for transform in self.transforms:
            frame = transform(frame)
        return frame


def maker(function: Transform, columns: Collection[str]) -> object:
    """Equal for transformations that are taken to make the same columns.

    Such are functions that are written in one place, as in a loop or a factory, and hold the same
    functions and the same names of `columns`. What else they hold differs for other reasons.
    """
    held: list[object] = []
    called: object = function
    if isinstance(called, partial):
        held += [*called.args, *called.keywords.values()]
        called = called.func
    if not isinstance(called, FunctionType):
        return function
    held += [*(called.__defaults__ or ()), *(called.__kwdefaults__ or {}).values()]
    held += [c.cell_contents for c in called.__closure__ or () if c != CellType()]
    named = [value for value in held if isinstance(value, str) and value in columns]
    return called.__code__, named, [h.__code__ for h in held if isinstance(h, FunctionType)]


def _require_clock(operator: OperatorNode, branches: tuple[Branch, ...]) -> None:
    if all(branch.event_time is None for branch in branches):
        raise UserError(
            f"event time is declared on the output of an operator and on none of its "
            f"inputs, so no watermark would ever come: operator={operator.uid} "
            f"inputs={sorted({b.node.uid for b in branches})}; declare it on an input "
            f"before key_by"
        )


def _refuse_times_of_one_name(branches: Iterable[Branch | None]) -> None:
    # A clock is known by its column's name, in checkpoints too: two times that share a name would
    # share the clock, and rows of the one that is behind would be late.
    known: dict[tuple[str, str, str], object] = {}
    for branch in branches:
        if branch is None or branch.event_time is None:
            continue
        made_by = branch.made_by.get(branch.event_time)
        clock = (branch.node.uid, branch.event_time, branch.per)
        if known.setdefault(clock, made_by) != made_by:
            raise UserError(
                f"different transforms make the event time of one input under one name, and the "
                f"watermark would follow whichever is ahead: input={branch.node.uid} "
                f"column={branch.event_time}; give different times different names, or make the "
                f"column in one transform that all of these streams come from"
            )
