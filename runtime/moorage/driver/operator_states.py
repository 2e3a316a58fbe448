"""Operator state between manifests and the engine.

Decides what of a manifest the engine has to know of operator state, and what a manifest records of
it. Called by the run when it restores, and by whoever makes manifests.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from moorage.engine.operator_states import OperatorMove, OperatorStates, redistribute
from moorage_state.operator_state import OperatorStateSchema
from moorage_state.snapshots import Manifest, OperatorState, OperatorStateMeta

if TYPE_CHECKING:  # the context holds what makes manifests, which asks here
    from moorage.driver.context import DriverContext

__all__ = ["deal_out", "operator_metas", "operator_sides"]


def operator_metas(schemas: Iterable[OperatorStateSchema]) -> list[OperatorStateMeta]:
    """Operator states as a manifest records them."""
    return [
        OperatorStateMeta(name=s.name, mode=s.mode, type=s.type, key_type=s.key_type or None)
        for s in schemas
    ]


def operator_sides(manifest: Manifest | None) -> OperatorStates:
    """What a run that begins with this manifest knows of operator state; None begins empty."""
    if manifest is None:
        return OperatorStates()
    schemas = {uid: _schemas(state) for uid, state in manifest.operators.items()}
    return OperatorStates(
        {uid: known for uid, known in schemas.items() if known},
        frozenset(manifest.operators),
        manifest.checkpoint_id,
    )


def deal_out(context: "DriverContext", manifest: Manifest | None) -> int:
    """Give the subtasks of this run their operator state, where they are others than before.

    Returns the epoch after which the run begins.
    """
    if manifest is None:
        return 0
    settings, uids = context.settings, [operator.uid for operator in context.graph.operators]
    moves = {
        uid: OperatorMove(_schemas(state), state.operator_state_owners)
        for uid, state in manifest.operators.items()
        if uid in uids
    }
    return redistribute(
        context.fleet,
        context.token,
        uids,
        settings.parallelism,
        settings.max_parallelism,
        moves=moves,
        epoch=manifest.epoch,
    )


def _schemas(state: OperatorState) -> tuple[OperatorStateSchema, ...]:
    return tuple(
        OperatorStateSchema(s.name, s.mode, s.type, s.key_type or "") for s in state.operator_states
    )
