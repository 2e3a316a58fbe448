"""Events that follow from a condition's change, told in the pass that writes it. Pure."""

import hashlib

from moorage_api.status import Condition
from moorage_operator.decide.conditions import (
    ACTION_FAILED,
    EXECUTORS_MISSING,
    WITHOUT_EFFECT,
)
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.phase import stuck_executor

__all__ = ["tell_changes"]

_ON_FALSE = {
    "SpecValid": "ValidationFailed",
    "StorageReachable": "StoreUnreachable",
}
_LAGGING = "CheckpointLagging"


def tell_changes(draft: Draft, before: tuple[Condition, ...], after: tuple[Condition, ...]) -> None:
    """Tell what a person should hear of."""
    old = {one.type: one for one in before}
    for new in after:
        reason = _reason(draft, new)
        if reason and _is_news(old.get(new.type), new):
            draft.tell("Warning", reason, new.message or new.reason, _key(draft, new))


def _reason(draft: Draft, new: Condition) -> str:
    """The event's reason; empty if there is nothing to tell."""
    if new.status == "False" and new.type in _ON_FALSE:
        return _ON_FALSE[new.type]
    if new.reason == ACTION_FAILED:
        return ACTION_FAILED if new.type == "Degraded" else ""
    if new.reason == WITHOUT_EFFECT:
        return WITHOUT_EFFECT
    if new.reason == EXECUTORS_MISSING:
        # One that is only late needs nobody.
        return EXECUTORS_MISSING if stuck_executor(draft) is not None else ""
    stuck = new.type == "Progressing" and _is_stuck(draft, new)
    return new.reason if stuck or new.reason == _LAGGING else ""


def _is_news(was: Condition | None, new: Condition) -> bool:
    """Whether it says something else; a spec that is wrong in another way is news as well."""
    if was is None or was.status != new.status or was.reason != new.reason:
        return True
    changes = new.type == "SpecValid" or new.reason == EXECUTORS_MISSING
    return changes and was.message != new.message


def _is_stuck(draft: Draft, new: Condition) -> bool:
    operation = draft.status.operation
    waits = new.status == "False" and operation is not None and not draft.status.blocked_reason
    return waits and new.reason != "Idle"


def _key(draft: Draft, new: Condition) -> str:
    digest = hashlib.sha256(f"{new.reason}{new.message}".encode()).hexdigest()[:8]
    return f"{draft.meta.generation}-{draft.attempt.number}-{digest}"
