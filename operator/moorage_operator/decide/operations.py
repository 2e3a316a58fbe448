"""How operations begin and end, what a job is blocked by, and when it is tried again. Pure."""

from datetime import datetime
from typing import Any

from moorage_api.status import OperationStatus, OperationStep, OperationType
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.fencing import strangers
from moorage_operator.decide.restore_point import Obstacle, named_snapshot
from moorage_operator.decide.specs import desired, is_valid, keep_revision, note_restart, target
from moorage_operator.world import StoreView

FAILED = "MaxRestartsExceeded"
"""The reason of a block that is shown as phase Failed."""


def begin(
    draft: Draft,
    kind: OperationType,
    step: OperationStep,
    reason: str,
    message: str,
    deadline: datetime | None = None,
    **changes: Any,
) -> None:
    """Begin an operation in place of the one under way, if there is one."""
    counter = draft.status.operation_counter + 1
    operation = OperationStatus(
        id=f"{draft.meta.generation}-{counter}",
        type=kind,
        step=step,
        started_at=draft.now,
        step_started_at=draft.now,
        deadline=deadline,
        reason=reason,
        message=message,
        **changes,
    )
    draft.put(operation=operation, operation_counter=counter)
    if kind not in ("Suspend", "Delete"):
        name = target(draft)
        draft.put_operation(target_revision=name)
        keep_revision(draft, name)
        draft.put_reconciliation(desired_state="Running")
        draft.put(finished_at=None)
    elif kind == "Suspend":
        draft.put_reconciliation(desired_state=desired(draft))
    draft.wake(draft.config.busy_resync)


def end(draft: Draft) -> None:
    """The operation is over."""
    draft.put(operation=None)
    draft.wake(draft.config.busy_resync)


def block(draft: Draft, reason: str, message: str, *, told: bool = False) -> None:
    """Stop trying: a person has to do what `message` says.

    Args:
        told: whether an event says already that `reason` has come up.
    """
    generation = draft.meta.generation
    draft.put(
        operation=None,
        blocked_reason=reason,
        message=message,
        blocked_generation=generation,
        blocked_adopt=draft.meta.annotation("adopt-lineage"),
    )
    note_restart(draft)
    draft.put_restarts(next_retry_at=None)
    key = f"{generation}-{draft.status.operation_counter}-{draft.attempt.number}"
    if not told:
        draft.tell("Warning", reason, message, key)
    draft.tell("Warning", "ManualActionRequired", f"{reason}: {message}", key)


def clear_block(draft: Draft) -> None:
    """What blocked the job is over: it begins with a clean sheet."""
    draft.put(blocked_reason="", blocked_generation=0, blocked_adopt="", message="")
    draft.forget_restarts()
    note_restart(draft)


def leave_block(draft: Draft) -> bool:
    """Lift the block if it is time; say whether the job is free to act."""
    if not draft.status.blocked_reason:
        return True
    if not (_person_acted(draft) or _cause_is_gone(draft)):
        return False
    reason = draft.status.blocked_reason
    clear_block(draft)
    key = f"{draft.meta.generation}-{draft.status.operation_counter}"
    draft.tell("Normal", "Unblocked", f"The job is tried again; it was blocked by {reason}", key)
    draft.wake(draft.config.busy_resync)
    return True


def _person_acted(draft: Draft) -> bool:
    status, meta = draft.status, draft.meta
    if is_valid(draft) and meta.generation > status.blocked_generation:
        return True
    if draft.restart_asked:
        return True
    return meta.annotation("adopt-lineage") not in ("", status.blocked_adopt)


def _cause_is_gone(draft: Draft) -> bool:
    """What a driver refused under its fence is not tried again on the word of a reader."""
    world, reason = draft.world, draft.status.blocked_reason
    store = world.store
    if reason == "InvalidSpec":
        return is_valid(draft)
    if reason == "ForeignDriver":
        return not strangers(draft)
    if reason == "CheckpointDirConflict":
        foreign = isinstance(store, StoreView) and store.owner is not None and not _same_job(draft)
        refused = draft.attempt.outcome_reason == reason
        return not world.directory_rival and not foreign and not refused
    if reason == "AdoptRequired" and draft.attempt.outcome_reason != reason:
        return isinstance(store, StoreView) and store.released
    if reason == "RestorePointNotFound" and world.spec is not None:
        named = is_valid(draft) and world.spec.restore.mode == "Snapshot"
        unstarted = draft.attempt.number == 0
        return named and unstarted and not isinstance(named_snapshot(draft, world.spec), Obstacle)
    return False


def _same_job(draft: Draft) -> bool:
    store = draft.world.store
    if not isinstance(store, StoreView) or store.owner is None:
        return False
    meta = draft.meta
    return store.owner[:3] == (draft.config.cluster_id, meta.namespace, meta.name)
