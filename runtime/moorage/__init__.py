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

This module is the public API of jobs; it is what user code imports. Names are imported when they
are first used, so that the command line starts without Arrow and Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moorage.functions import (
        MAX_WATERMARK,
        NO_WATERMARK,
        KeyedProcessFunction,
        ProcessContext,
        RuntimeContext,
        TimerService,
    )
    from moorage.graph import DataStream, KeyedStream, StreamEnvironment
    from moorage.sinks import (
        CheckpointInfo,
        EpochInfo,
        FileSink,
        LiveOutput,
        Sink,
        SinkContext,
        SinkRestore,
        SinkRetire,
        SinkWriter,
        StageId,
        TwoPhaseCommitSink,
    )
    from moorage_state.descriptors import (
        ListStateDescriptor,
        MapStateDescriptor,
        ValueStateDescriptor,
    )
    from moorage_state.keyed import ListState, MapState, ValueState

__version__ = "0.1.0.dev0"

__all__ = [
    "MAX_WATERMARK",
    "NO_WATERMARK",
    "CheckpointInfo",
    "DataStream",
    "EpochInfo",
    "FileSink",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "LiveOutput",
    "MapState",
    "MapStateDescriptor",
    "ProcessContext",
    "RuntimeContext",
    "Sink",
    "SinkContext",
    "SinkRestore",
    "SinkRetire",
    "SinkWriter",
    "StageId",
    "StreamEnvironment",
    "TimerService",
    "TwoPhaseCommitSink",
    "ValueState",
    "ValueStateDescriptor",
    "__version__",
]

_HOMES = {
    "moorage.functions": (
        "MAX_WATERMARK",
        "NO_WATERMARK",
        "KeyedProcessFunction",
        "ProcessContext",
        "RuntimeContext",
        "TimerService",
    ),
    "moorage.graph": ("DataStream", "KeyedStream", "StreamEnvironment"),
    "moorage.sinks": (
        "CheckpointInfo",
        "EpochInfo",
        "FileSink",
        "LiveOutput",
        "Sink",
        "SinkContext",
        "SinkRestore",
        "SinkRetire",
        "SinkWriter",
        "StageId",
        "TwoPhaseCommitSink",
    ),
    "moorage_state.descriptors": (
        "ListStateDescriptor",
        "MapStateDescriptor",
        "ValueStateDescriptor",
    ),
    "moorage_state.keyed": ("ListState", "MapState", "ValueState"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
