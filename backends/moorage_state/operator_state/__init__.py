"""Operator state: what belongs to a subtask of an operator and to no key.

Lists that are split evenly or read whole by all subtasks, broadcast maps, and raw byte streams.
Decides what a user may do with them (`states`, `store`, `raw`), where they lie in a range
(`layout`, `ranges`), and who gets what where subtasks are others than before (`redistribution`,
`moving`). Knows no Spark. The in-process form is in `backend`, which is imported by itself.
"""

from moorage_state.operator_state.moving import Mover
from moorage_state.operator_state.ranges import RangeOperatorStates
from moorage_state.operator_state.raw import (
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStreamProvider,
    OperatorStateCheckpointOutputStream,
    RawStates,
    StatePartitionStreamProvider,
)
from moorage_state.operator_state.schemas import OperatorStateMode, OperatorStateSchema
from moorage_state.operator_state.states import (
    BroadcastState,
    OperatorListState,
    ReadOnlyBroadcastState,
)
from moorage_state.operator_state.store import OperatorStateStore

__all__ = [
    "BroadcastState",
    "KeyGroupStatePartitionStreamProvider",
    "KeyedStateCheckpointOutputStream",
    "Mover",
    "OperatorListState",
    "OperatorStateCheckpointOutputStream",
    "OperatorStateMode",
    "OperatorStateSchema",
    "OperatorStateStore",
    "RangeOperatorStates",
    "RawStates",
    "ReadOnlyBroadcastState",
    "StatePartitionStreamProvider",
]
