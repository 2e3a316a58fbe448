"""What the subtasks of an operator are told about operator state and broadcast rows.

Made on the driver for the operators that have either, pickled to executors. Holds values only.
"""

from dataclasses import dataclass

from moorage_state.descriptors import MapStateDescriptor
from moorage_state.operator_state import OperatorStateSchema

__all__ = ["SidePlan"]


@dataclass(frozen=True, slots=True)
class SidePlan:
    """What the subtasks of one operator need in one epoch beside keyed state; picklable.

    Attributes:
        restored: whether the operator has state from before.
        restored_checkpoint_id: what the job was restored from; None for an empty start.
        checkpoint_id: the id of the next checkpoint that begins, or less.
        schemas: the operator states known so far.
        changed: those that some subtask declares with another type in this epoch, as it does.
        columns: the columns of the broadcast stream; empty where there is none.
        inputs: the uids of its inputs.
        time_columns: of these, as in `SubtaskPlan`.
        descriptors: the states that its rows build up.
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
