"""Sinks: where output goes, staged with each epoch and published with each checkpoint.

Decides how output becomes visible exactly once: a subtask stages what an attempt produced, the
staged files of the attempt that was acknowledged become part of the checkpoint, and only a
completed checkpoint moves them to where readers look. Called by the subtask (`open_writer`) and
by the driver (`publish`, `restore`, `retire`). Must not know what an epoch's plan looks like.
"""

from moorage.sinks.base import (
    CheckpointInfo,
    Committable,
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
from moorage.sinks.calls import CheckpointFunction, EpochFunction, ForeachCheckpoint, ForeachEpoch
from moorage.sinks.files import FileSink

__all__ = [
    "CheckpointFunction",
    "CheckpointInfo",
    "Committable",
    "EpochFunction",
    "EpochInfo",
    "FileSink",
    "ForeachCheckpoint",
    "ForeachEpoch",
    "LiveOutput",
    "Sink",
    "SinkContext",
    "SinkOrigin",
    "SinkRestore",
    "SinkRetire",
    "SinkWriter",
    "StageId",
    "TwoPhaseCommitSink",
]
