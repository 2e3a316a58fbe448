"""How operations begin and end, and what a job is blocked by. Pure."""

from datetime import datetime
from typing import Any

from moorage_api.status import Operation, OperationStep, OperationType
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.specs import desired, keep_revision, target

__all__ = ["FAILED", "begin", "block", "clear_block", "end"]

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
    operation = Operation(
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
        draft: the decision.
        reason: of the block.
        message: for people.
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
    draft.put_triggers(restart=draft.meta.annotation("restart"))
    draft.put_restarts(next_retry_at=None)
    key = f"{generation}-{draft.status.operation_counter}-{draft.attempt.number}"
    if not told:
        draft.tell("Warning", reason, message, key)
    draft.tell("Warning", "ManualActionRequired", f"{reason}: {message}", key)


def clear_block(draft: Draft) -> None:
    """What blocked the job is over: it begins with a clean sheet."""
    draft.put(blocked_reason="", blocked_generation=0, blocked_adopt="", message="")
    draft.put_restarts(window=(), backoff_level=0, restore_failures=0, next_retry_at=None)
    draft.put_triggers(restart=draft.meta.annotation("restart"))
