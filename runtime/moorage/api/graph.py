"""What a job is made of: inputs, stateful operators and sinks, and how they hang together.

Made by streams while a job is described, read by the engine and the driver.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from moorage.api.broadcast import BroadcastStream
from moorage.api.declarations import SideOutput
from moorage.api.functions import KeyedProcessFunction, OutputTag
from moorage.api.sinks import Sink
from moorage_state.errors import UserError

if TYPE_CHECKING:
    from moorage.api.streams import DataStream


Transform = Callable[[DataFrame], DataFrame]


@dataclass(slots=True, eq=False)
class InputNode:
    """One streaming source. Its uid is how checkpoints find its offsets again."""

    uid: str
    frame: DataFrame
    files: str | None = None


@dataclass(slots=True, eq=False)
class OperatorNode:
    """One stateful operator.

    `null_key` and `bad_time` are "fail", "drop", or the side output that such rows go to.
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

    @property
    def first(self) -> "OperatorNode":
        """The operator at the head of its chain, which reads inputs."""
        first = self
        while first.upstream.operator is not None:
            first = first.upstream.operator
        return first

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
            branches = operator.first.upstream.branches
            declared = any(b.event_time is not None for b in branches)
            if operator.upstream.event_time is not None and not declared:
                raise UserError(
                    f"event time is declared on the output of an operator and on none of its "
                    f"inputs, so no watermark would ever come: operator={operator.uid} "
                    f"inputs={sorted({b.node.uid for b in branches})}; declare it on an input "
                    f"before key_by"
                )

    def unread(self) -> list[str]:
        """Uids of operators of whose outputs nobody reads any; maybe their state is all."""
        streams = [*(o.upstream for o in self.operators), *(s.upstream for s in self.sinks)]
        read = {id(stream.operator) for stream in streams}
        return [operator.uid for operator in self.operators if id(operator) not in read]


@dataclass(frozen=True, slots=True)
class Branch:
    """One input with the stateless transformations applied to it, and its event time."""

    node: InputNode
    transforms: tuple[Transform, ...] = ()
    event_time: str | None = None
    max_delay_ms: int = 0
    idle_after_ms: int | None = None
    per: str = ""

    def apply(self, frame: DataFrame) -> DataFrame:
        """The branch's rows, from the input's."""
        for transform in self.transforms:
            frame = transform(frame)
        return frame
