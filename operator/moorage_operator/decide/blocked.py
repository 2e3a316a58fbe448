"""When a blocked job is tried again: a person did something, or the cause went away. Pure."""

from moorage_operator.decide.draft import Draft
from moorage_operator.decide.operations import clear_block
from moorage_operator.decide.pods import strangers
from moorage_operator.decide.restore_point import Obstacle, named_snapshot
from moorage_operator.decide.specs import is_valid
from moorage_operator.world import StoreView

__all__ = ["leave_block"]


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
    asked = meta.annotation("restart")
    if asked and asked != status.snapshots.last_trigger.restart:
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
