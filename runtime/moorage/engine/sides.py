"""What epochs need to know of the state that belongs to subtasks and to no key.

Decides which operators have such state, what of it is known already, and which checkpoint id an
epoch's snapshot may name. Kept by the epoch runner, on the driver.

All of a state has one type between epochs. Where a subtask declares another one, those that did not
ask for the state convert theirs as well; that it is so the driver learns from an attempt, so that
one is made once more.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from moorage.api.broadcast import BroadcastSide
from moorage.api.checkpointed import CheckpointedFunction
from moorage.api.graph import JobGraph, OperatorNode
from moorage.engine.acks import EpochOutcome
from moorage.engine.side_plan import SidePlan
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
    _changed: dict[str, dict[str, OperatorStateSchema]] = field(default_factory=dict)

    def plans(self, graph: JobGraph) -> dict[str, SidePlan]:
        """By operator uid, the plans of the next epoch; only for operators that need one."""
        operators = [operator for operator in graph.operators if _has_side(operator)]
        if not operators:
            return {}
        checkpoint_id = self.next_checkpoint_id()
        return {operator.uid: self._plan(operator, checkpoint_id) for operator in operators}

    def changes(self, outcome: EpochOutcome) -> bool:
        """Whether subtasks left a state as it is of which others change the type.

        Then `plans` tells them, and the epoch has to be attempted again.
        """
        found = False
        for uid, states in outcome.reported_operator_states().items():
            before = {schema.name: schema for schema in self.schemas.get(uid, ())}
            told = self._changed.setdefault(uid, {})
            for name, reported in states.items():
                others = reported - {before.get(name)}
                if len(reported) == 2 and len(others) == 1 and told.get(name) not in others:
                    (told[name],) = others
                    found = True
        return found

    def committed(
        self, schemas: Mapping[str, Sequence[OperatorStateSchema]], uids: Collection[str]
    ) -> None:
        """Take in an epoch that these operators went through, and what of it is known now."""
        self.restored = frozenset(self.restored) | frozenset(uids)
        self.schemas.update({uid: tuple(states) for uid, states in schemas.items()})
        self._changed = {}

    def _plan(self, operator: OperatorNode, checkpoint_id: int) -> SidePlan:
        side, branches = operator.broadcast, operator.broadcast_branches
        return SidePlan(
            restored=operator.uid in self.restored,
            restored_checkpoint_id=self.restored_checkpoint_id,
            checkpoint_id=checkpoint_id,
            schemas=self.schemas.get(operator.uid, ()),
            columns=_columns(side),
            inputs=tuple(b.node.uid for b in branches),
            time_columns=tuple(b.event_time or "" for b in branches),
            descriptors=side.descriptors if side is not None else (),
            changed=tuple(self._changed.get(operator.uid, {}).values()),
        )


def _has_side(operator: OperatorNode) -> bool:
    return operator.broadcast is not None or isinstance(operator.function, CheckpointedFunction)


def _columns(side: BroadcastSide | None) -> tuple[str, ...]:
    return tuple(side.stream.schema.names) if side is not None else ()
