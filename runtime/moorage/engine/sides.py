"""What epochs need to know of the state that belongs to subtasks and to no key.

Decides which operators have such state, what of it is known already, and which checkpoint id an
epoch's snapshot may name. Kept by the epoch runner, on the driver.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from moorage.broadcast import BroadcastSide
from moorage.checkpointed import CheckpointedFunction
from moorage.engine.acks import EpochOutcome
from moorage.engine.side_plan import SidePlan
from moorage.graph import JobGraph, OperatorNode
from moorage_state.operator_state import OperatorStateSchema

__all__ = ["OperatorSides"]


@dataclass(slots=True)
class OperatorSides:
    """Operator state of all operators of a job, between epochs.

    Attributes:
        schemas: by operator uid, the operator states known so far.
        restored: uids of the operators that have state from before.
        restored_checkpoint_id: what the run was restored from; None for an empty start.
        next_checkpoint_id: asked at the beginning of an epoch, when no checkpoint can begin.
    """

    schemas: dict[str, tuple[OperatorStateSchema, ...]] = field(default_factory=dict)
    restored: Collection[str] = ()
    restored_checkpoint_id: int | None = None
    next_checkpoint_id: Callable[[], int] = lambda: 1

    def plans(self, graph: JobGraph) -> dict[str, SidePlan]:
        """By operator uid, the plans of the next epoch; only for operators that need one."""
        operators = [operator for operator in graph.operators if _has_side(operator)]
        if not operators:
            return {}
        checkpoint_id = self.next_checkpoint_id()
        return {operator.uid: self._plan(operator, checkpoint_id) for operator in operators}

    def committed(self, outcome: EpochOutcome, uids: Collection[str]) -> None:
        """Take in an epoch that these operators went through."""
        self.restored = frozenset(self.restored) | frozenset(uids)
        for uid, schemas in outcome.operator_states().items():
            self.schemas[uid] = tuple(schemas)

    def _plan(self, operator: OperatorNode, checkpoint_id: int) -> SidePlan:
        side = operator.broadcast
        return SidePlan(
            restored=operator.uid in self.restored,
            restored_checkpoint_id=self.restored_checkpoint_id,
            checkpoint_id=checkpoint_id,
            schemas=self.schemas.get(operator.uid, ()),
            columns=_columns(side),
            descriptors=side.descriptors if side is not None else (),
        )


def _has_side(operator: OperatorNode) -> bool:
    return operator.broadcast is not None or isinstance(operator.function, CheckpointedFunction)


def _columns(side: BroadcastSide | None) -> tuple[str, ...]:
    return tuple(side.stream.schema.names) if side is not None else ()
