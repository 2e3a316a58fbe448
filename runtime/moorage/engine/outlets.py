"""Who takes which output of an operator, and how several outputs share one frame.

Rows of the main output are in its own columns; those of a side output that another operator reads
are in a struct beside them, which is null in all other rows. An operator whose side outputs nobody
reads has the frame of one that declares none. Called by the planner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from moorage.api.declarations import arrow_schema
from moorage.api.graph import JobGraph, OperatorNode
from moorage.api.sinks import Sink
from moorage.api.streams import DataStream
from moorage.engine.columns import KIND_COLUMN, ROW, output_columns, side_column
from moorage.engine.subtask_plan import SideOutputPlan

__all__ = ["Outlets", "Pick", "outlets_of"]


@dataclass(frozen=True, slots=True)
class Pick:
    """What an operator takes of the frame of another."""

    rows: Column
    columns: Sequence[Column]

    def of(self, frame: DataFrame) -> DataFrame:
        """The rows of one output, and all acknowledgements."""
        return frame.where(self.rows).select(*self.columns)


@dataclass(frozen=True, slots=True)
class Outlets:
    """The outputs of one operator.

    Attributes:
        consumers: the operators that read any of them.
        sinks: uids and sinks of the main output.
        main_read: whether an operator reads the main output.
        sides: its side outputs.
        fields: the columns that carry what operators read.
    """

    consumers: tuple[OperatorNode, ...]
    sinks: tuple[tuple[str, Sink], ...]
    main_read: bool
    sides: tuple[SideOutputPlan, ...]
    fields: tuple[StructField, ...]

    def pick(self, stream: DataStream) -> Pick | None:
        """What takes one output from the frame; None where it is all there is."""
        read = {s.name: side_column(i) for i, s in enumerate(self.sides) if s.read}
        if not read:
            return None
        engine = [sf.col(name) for name in output_columns()]
        if stream.side_output is None:
            rows = reduce(and_, (sf.col(column).isNull() for column in read.values()))
            return Pick(rows, [*(sf.col(f"`{n}`") for n in stream.schema.names), *engine])
        mine = read[stream.side_output]
        rows = (sf.col(KIND_COLUMN) != ROW) | sf.col(mine).isNotNull()
        own = [sf.col(f"{mine}.`{name}`").alias(name) for name in stream.schema.names]
        return Pick(rows, [*own, *engine])


def outlets_of(graph: JobGraph, operator: OperatorNode) -> Outlets:
    """The outputs of an operator, as the graph uses them."""
    consumers = tuple(o for o in graph.operators if o.upstream.operator is operator)
    read = {o.upstream.side_output for o in consumers}
    sides = tuple(
        SideOutputPlan(
            side.name,
            arrow_schema(side.schema),
            _sinks(graph, operator, side.name),
            side.name in read,
        )
        for side in operator.side_outputs
    )
    fields = [*operator.output.fields] if None in read else []
    for index, side in enumerate(operator.side_outputs):
        if side.name in read:
            columns = [StructField(f.name, f.dataType, True) for f in side.schema.fields]
            fields.append(StructField(side_column(index), StructType(columns)))
    return Outlets(
        consumers,
        _sinks(graph, operator, None),
        None in read,
        sides,
        tuple(StructField(f.name, f.dataType, True) for f in fields),
    )


def _sinks(
    graph: JobGraph, operator: OperatorNode, side_output: str | None
) -> tuple[tuple[str, Sink], ...]:
    return tuple(
        (s.uid, s.sink)
        for s in graph.sinks
        if s.upstream.operator is operator and s.upstream.side_output == side_output
    )
