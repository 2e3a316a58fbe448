"""Moorage: stateful PySpark streaming with checkpoints, savepoints and exactly-once state.

A job file defines ``build(env)``; functions over keyed streams hold state through descriptors::

    from moorage import KeyedProcessFunction, ValueStateDescriptor

    class Count(KeyedProcessFunction):
        def open(self, ctx):
            self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

        def process(self, row, ctx):
            n = (self.n.value() or 0) + 1
            self.n.update(n)
            yield ctx.key, n

    def build(env):
        clicks = env.read_stream("clicks", "json", schema="user string, page string", path="in")
        counts = clicks.key_by("user").process(Count(), uid="count", output="user string, n long")

These are the names of `moorage.api`; user code imports them from here. They are imported when they
are first used, so that the command line starts without Arrow and Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moorage.api.aggregates import Aggregate as Aggregate
    from moorage.api.aggregates import avg as avg
    from moorage.api.aggregates import count as count
    from moorage.api.aggregates import max_ as max_
    from moorage.api.aggregates import min_ as min_
    from moorage.api.aggregates import sum_ as sum_
    from moorage.api.broadcast import BroadcastConnectedStream as BroadcastConnectedStream
    from moorage.api.broadcast import BroadcastContext as BroadcastContext
    from moorage.api.broadcast import BroadcastStream as BroadcastStream
    from moorage.api.broadcast import KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction
    from moorage.api.broadcast import ReadOnlyContext as ReadOnlyContext
    from moorage.api.checkpointed import CheckpointedFunction as CheckpointedFunction
    from moorage.api.checkpointed import (
        FunctionInitializationContext as FunctionInitializationContext,
    )
    from moorage.api.checkpointed import FunctionSnapshotContext as FunctionSnapshotContext
    from moorage.api.connected_streams import ConnectedStreams as ConnectedStreams
    from moorage.api.file_sink import FileSink as FileSink
    from moorage.api.functions import MAX_WATERMARK as MAX_WATERMARK
    from moorage.api.functions import NO_WATERMARK as NO_WATERMARK
    from moorage.api.functions import KeyedCoProcessFunction as KeyedCoProcessFunction
    from moorage.api.functions import KeyedProcessFunction as KeyedProcessFunction
    from moorage.api.functions import OutputTag as OutputTag
    from moorage.api.functions import ProcessContext as ProcessContext
    from moorage.api.functions import RichFunction as RichFunction
    from moorage.api.functions import RuntimeContext as RuntimeContext
    from moorage.api.functions import TimerService as TimerService
    from moorage.api.functions import WorkerContext as WorkerContext
    from moorage.api.interval_join import IntervalJoin as IntervalJoin
    from moorage.api.interval_join import IntervalJoined as IntervalJoined
    from moorage.api.interval_join import JoinContext as JoinContext
    from moorage.api.interval_join import ProcessJoinFunction as ProcessJoinFunction
    from moorage.api.join_functions import CoGroupFunction as CoGroupFunction
    from moorage.api.join_functions import JoinFunction as JoinFunction
    from moorage.api.sinks import CheckpointInfo as CheckpointInfo
    from moorage.api.sinks import EpochInfo as EpochInfo
    from moorage.api.sinks import LiveOutput as LiveOutput
    from moorage.api.sinks import Sink as Sink
    from moorage.api.sinks import SinkContext as SinkContext
    from moorage.api.sinks import SinkOrigin as SinkOrigin
    from moorage.api.sinks import SinkRestore as SinkRestore
    from moorage.api.sinks import SinkRetire as SinkRetire
    from moorage.api.sinks import SinkWriter as SinkWriter
    from moorage.api.sinks import StageId as StageId
    from moorage.api.sinks import TwoPhaseCommitSink as TwoPhaseCommitSink
    from moorage.api.streams import DataStream as DataStream
    from moorage.api.streams import KeyedStream as KeyedStream
    from moorage.api.streams import StreamEnvironment as StreamEnvironment
    from moorage.api.temporal_join import TemporalJoin as TemporalJoin
    from moorage.api.vectorized import BatchContext as BatchContext
    from moorage.api.vectorized import KeyedBatchFunction as KeyedBatchFunction
    from moorage.api.window_join import CoGroupedStreams as CoGroupedStreams
    from moorage.api.window_join import CoGroupedWindows as CoGroupedWindows
    from moorage.api.window_join import JoinedStreams as JoinedStreams
    from moorage.api.window_join import JoinedWindows as JoinedWindows
    from moorage.api.windowed_stream import WindowedStream as WindowedStream
    from moorage.api.windows import AtEnd as AtEnd
    from moorage.api.windows import Count as Count
    from moorage.api.windows import EachCount as EachCount
    from moorage.api.windows import Early as Early
    from moorage.api.windows import Global as Global
    from moorage.api.windows import Never as Never
    from moorage.api.windows import ProcessWindowFunction as ProcessWindowFunction
    from moorage.api.windows import Session as Session
    from moorage.api.windows import Sliding as Sliding
    from moorage.api.windows import TimeWindow as TimeWindow
    from moorage.api.windows import Trigger as Trigger
    from moorage.api.windows import TriggerContext as TriggerContext
    from moorage.api.windows import TriggerResult as TriggerResult
    from moorage.api.windows import Tumbling as Tumbling
    from moorage.api.windows import WindowAssigner as WindowAssigner
    from moorage.api.windows import WindowContext as WindowContext
    from moorage.kafka.sink import KafkaSink as KafkaSink
    from moorage_state.descriptors import AggregateFunction as AggregateFunction
    from moorage_state.descriptors import AggregatingStateDescriptor as AggregatingStateDescriptor
    from moorage_state.descriptors import FoldingStateDescriptor as FoldingStateDescriptor
    from moorage_state.descriptors import ListStateDescriptor as ListStateDescriptor
    from moorage_state.descriptors import MapStateDescriptor as MapStateDescriptor
    from moorage_state.descriptors import ReducingStateDescriptor as ReducingStateDescriptor
    from moorage_state.descriptors import ValueStateDescriptor as ValueStateDescriptor
    from moorage_state.keyed import AggregatingState as AggregatingState
    from moorage_state.keyed import FoldingState as FoldingState
    from moorage_state.keyed import ListState as ListState
    from moorage_state.keyed import MapState as MapState
    from moorage_state.keyed import ReducingState as ReducingState
    from moorage_state.keyed import TimeDomain as TimeDomain
    from moorage_state.keyed import ValueState as ValueState
    from moorage_state.operator_state import BroadcastState as BroadcastState
    from moorage_state.operator_state import OperatorListState as OperatorListState
    from moorage_state.operator_state import OperatorStateStore as OperatorStateStore
    from moorage_state.operator_state import ReadOnlyBroadcastState as ReadOnlyBroadcastState
    from moorage_state.timetolive import StateTtlConfig as StateTtlConfig
    from moorage_state.timetolive import StateVisibility as StateVisibility
    from moorage_state.timetolive import UpdateType as UpdateType

__version__ = "0.1.0.dev0"

_HOMES = {
    "moorage.api.aggregates": ("Aggregate", "avg", "count", "max_", "min_", "sum_"),
    "moorage.api.broadcast": (
        "BroadcastConnectedStream",
        "BroadcastContext",
        "BroadcastStream",
        "KeyedBroadcastProcessFunction",
        "ReadOnlyContext",
    ),
    "moorage.api.checkpointed": (
        "CheckpointedFunction",
        "FunctionInitializationContext",
        "FunctionSnapshotContext",
    ),
    "moorage.api.connected_streams": ("ConnectedStreams",),
    "moorage.api.file_sink": ("FileSink",),
    "moorage.api.functions": (
        "MAX_WATERMARK",
        "NO_WATERMARK",
        "KeyedCoProcessFunction",
        "KeyedProcessFunction",
        "OutputTag",
        "ProcessContext",
        "RichFunction",
        "RuntimeContext",
        "TimerService",
        "WorkerContext",
    ),
    "moorage.api.interval_join": (
        "IntervalJoin",
        "IntervalJoined",
        "JoinContext",
        "ProcessJoinFunction",
    ),
    "moorage.api.join_functions": ("CoGroupFunction", "JoinFunction"),
    "moorage.api.sinks": (
        "CheckpointInfo",
        "EpochInfo",
        "LiveOutput",
        "Sink",
        "SinkContext",
        "SinkOrigin",
        "SinkRestore",
        "SinkRetire",
        "SinkWriter",
        "StageId",
        "TwoPhaseCommitSink",
    ),
    "moorage.api.streams": ("DataStream", "KeyedStream", "StreamEnvironment"),
    "moorage.api.temporal_join": ("TemporalJoin",),
    "moorage.api.vectorized": ("BatchContext", "KeyedBatchFunction"),
    "moorage.api.window_join": (
        "CoGroupedStreams",
        "CoGroupedWindows",
        "JoinedStreams",
        "JoinedWindows",
    ),
    "moorage.api.windowed_stream": ("WindowedStream",),
    "moorage.api.windows": (
        "AtEnd",
        "Count",
        "EachCount",
        "Early",
        "Global",
        "Never",
        "ProcessWindowFunction",
        "Session",
        "Sliding",
        "TimeWindow",
        "Trigger",
        "TriggerContext",
        "TriggerResult",
        "Tumbling",
        "WindowAssigner",
        "WindowContext",
    ),
    "moorage.kafka.sink": ("KafkaSink",),
    "moorage_state.descriptors": (
        "AggregateFunction",
        "AggregatingStateDescriptor",
        "FoldingStateDescriptor",
        "ListStateDescriptor",
        "MapStateDescriptor",
        "ReducingStateDescriptor",
        "ValueStateDescriptor",
    ),
    "moorage_state.keyed": (
        "AggregatingState",
        "FoldingState",
        "ListState",
        "MapState",
        "ReducingState",
        "TimeDomain",
        "ValueState",
    ),
    "moorage_state.operator_state": (
        "BroadcastState",
        "OperatorListState",
        "OperatorStateStore",
        "ReadOnlyBroadcastState",
    ),
    "moorage_state.timetolive": ("StateTtlConfig", "StateVisibility", "UpdateType"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]  # noqa: PLE0604  names of classes, which are strings


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
