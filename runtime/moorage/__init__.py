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
    from moorage.api.broadcast import (
        BroadcastConnectedStream,
        BroadcastContext,
        BroadcastStream,
        KeyedBroadcastProcessFunction,
        ReadOnlyContext,
    )
    from moorage.api.checkpointed import (
        CheckpointedFunction,
        FunctionInitializationContext,
        FunctionSnapshotContext,
    )
    from moorage.api.file_sink import FileSink
    from moorage.api.functions import (
        MAX_WATERMARK,
        NO_WATERMARK,
        KeyedProcessFunction,
        OutputTag,
        ProcessContext,
        RuntimeContext,
        TimeDomain,
        TimerService,
    )
    from moorage.api.sinks import (
        CheckpointInfo,
        EpochInfo,
        LiveOutput,
        Sink,
        SinkContext,
        SinkOrigin,
        SinkRestore,
        SinkRetire,
        SinkWriter,
        StageId,
        TwoPhaseCommitSink,
    )
    from moorage.api.streams import DataStream, KeyedStream, StreamEnvironment
    from moorage.api.vectorized import BatchContext, KeyedBatchFunction
    from moorage_state.descriptors import (
        AggregateFunction,
        AggregatingStateDescriptor,
        FoldingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )
    from moorage_state.keyed import (
        AggregatingState,
        FoldingState,
        ListState,
        MapState,
        ReducingState,
        ValueState,
    )
    from moorage_state.operator_state import (
        BroadcastState,
        OperatorListState,
        OperatorStateStore,
        ReadOnlyBroadcastState,
    )
    from moorage_state.timetolive import StateTtlConfig, StateVisibility, UpdateType

__version__ = "0.1.0.dev0"

__all__ = [
    "MAX_WATERMARK",
    "NO_WATERMARK",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BatchContext",
    "BroadcastConnectedStream",
    "BroadcastContext",
    "BroadcastState",
    "BroadcastStream",
    "CheckpointInfo",
    "CheckpointedFunction",
    "DataStream",
    "EpochInfo",
    "FileSink",
    "FoldingState",
    "FoldingStateDescriptor",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeyedBatchFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "LiveOutput",
    "MapState",
    "MapStateDescriptor",
    "OperatorListState",
    "OperatorStateStore",
    "OutputTag",
    "ProcessContext",
    "ReadOnlyBroadcastState",
    "ReadOnlyContext",
    "ReducingState",
    "ReducingStateDescriptor",
    "RuntimeContext",
    "Sink",
    "SinkContext",
    "SinkOrigin",
    "SinkRestore",
    "SinkRetire",
    "SinkWriter",
    "StageId",
    "StateTtlConfig",
    "StateVisibility",
    "StreamEnvironment",
    "TimeDomain",
    "TimerService",
    "TwoPhaseCommitSink",
    "UpdateType",
    "ValueState",
    "ValueStateDescriptor",
    "__version__",
]

_HOMES = {
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
    "moorage.api.file_sink": ("FileSink",),
    "moorage.api.functions": (
        "MAX_WATERMARK",
        "NO_WATERMARK",
        "KeyedProcessFunction",
        "OutputTag",
        "ProcessContext",
        "RuntimeContext",
        "TimeDomain",
        "TimerService",
    ),
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
    "moorage.api.vectorized": ("BatchContext", "KeyedBatchFunction"),
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


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
