"""Operator state: what belongs to a subtask of an operator and to no key.

Lists that are split evenly or read whole by all subtasks, broadcast maps, and raw byte streams.
Decides what a user may do with them (`states`, `store`, `raw`), where they lie in a range
(`layout`, `ranges`), and who gets what where subtasks are others than before (`redistribution`,
`moving`). Knows no Spark. The in-process form is in `backend`, which is imported by itself.
"""

from moorage_state.operator_state.moving import Mover as Mover
from moorage_state.operator_state.ranges import RangeOperatorStates as RangeOperatorStates
from moorage_state.operator_state.raw import (
    KeyedStateCheckpointOutputStream as KeyedStateCheckpointOutputStream,
)
from moorage_state.operator_state.raw import (
    KeyGroupStatePartitionStreamProvider as KeyGroupStatePartitionStreamProvider,
)
from moorage_state.operator_state.raw import (
    OperatorStateCheckpointOutputStream as OperatorStateCheckpointOutputStream,
)
from moorage_state.operator_state.raw import RawStates as RawStates
from moorage_state.operator_state.raw import (
    StatePartitionStreamProvider as StatePartitionStreamProvider,
)
from moorage_state.operator_state.schemas import OperatorStateSchema as OperatorStateSchema
from moorage_state.operator_state.states import BroadcastState as BroadcastState
from moorage_state.operator_state.states import OperatorListState as OperatorListState
from moorage_state.operator_state.states import ReadOnlyBroadcastState as ReadOnlyBroadcastState
from moorage_state.operator_state.store import OperatorStateStore as OperatorStateStore
