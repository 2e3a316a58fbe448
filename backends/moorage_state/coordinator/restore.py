"""Which tasks a snapshot has state for, and what a claim makes of it."""

from collections.abc import Collection

from moorage_state.coordinator.messages import TaskId
from moorage_state.coordinator.pending import CompletedCheckpoint
from moorage_state.coordinator.properties import CheckpointProperties, ClaimMode
from moorage_state.errors import UserError

__all__ = ["check_mapping", "claimed_properties"]


def claimed_properties(mode: ClaimMode, own: CheckpointProperties) -> CheckpointProperties:
    """Return the properties that a restored snapshot has from now on.

    Args:
        own: those of the checkpoints that the job takes.
    """
    match mode:
        case ClaimMode.CLAIM:
            return own
        case ClaimMode.NO_CLAIM:
            return CheckpointProperties.for_unclaimed_snapshot()
        case ClaimMode.LEGACY:
            return CheckpointProperties.for_savepoint(forced=False)


def check_mapping(
    checkpoint: CompletedCheckpoint,
    tasks: Collection[TaskId],
    *,
    all_or_nothing_state: bool,
    allow_non_restored_state: bool,
) -> None:
    """Check that a snapshot fits the job.

    Args:
        all_or_nothing_state: an operator's subtasks must all have state of their own, or none;
            no other parallelism then.
        allow_non_restored_state: state of operators that the job does not have is left behind.

    Raises:
        UserError: it does not fit.
    """
    own = {task.operator for task in tasks}
    stray = sorted(checkpoint.operators - own)
    where = f"checkpoint={checkpoint.checkpoint_id} path={checkpoint.external_pointer}"
    if stray and not allow_non_restored_state:
        raise UserError(
            f"the snapshot has state of operators that the job does not have: {where} "
            f"operators={','.join(stray)}; map their uids, or allow state that is not restored"
        )
    for operator in sorted(checkpoint.operators & own) if all_or_nothing_state else ():
        wanted = {task for task in tasks if task.operator == operator}
        having = {task for task in checkpoint.states if task.operator == operator}
        if wanted != having:
            raise UserError(
                f"the snapshot has state for other subtasks than the job has: {where} "
                f"operator={operator} subtasks={len(wanted)} with_state={len(having)}; keep the "
                f"parallelism, or do not ask for all or nothing"
            )
