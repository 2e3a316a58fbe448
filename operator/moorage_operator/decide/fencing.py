"""The barrier before a start: no driver and no executor of an earlier attempt is left. Pure.

What is left is asked to end, and what does not end is deleted by force once its node is known to be
silent or its grace is long over. The fence in the store makes a zombie harmless then.
"""

from datetime import timedelta

from moorage_operator.decide.draft import TRIAL, Draft
from moorage_operator.decide.specs import lost_patience
from moorage_operator.plan import DeletePod
from moorage_operator.world import PodView, Unreadable

_ENDINGS = ("Snapshotting", "Stopping", "Fencing")
_MOMENT = 1
"""Of grace, in seconds. With none the pod's object would go while the pod may still run."""
_ORPHAN_GRACE = 5
"""Of an executor whose driver is gone, in seconds. Its own is for files that others are to take
over, and for uploads of a checkpoint. Both are of no use any more; its files outlive a kill."""


def cleared(draft: Draft) -> bool:
    """Whether no pod of any attempt can still run; asks for the end of those that can."""
    executors = draft.world.executors
    if isinstance(draft.world.drivers, Unreadable) or isinstance(executors, Unreadable):
        return False
    left = [p for p in draft.drivers if p.owned and not p.terminal]
    for pod in left:
        remove(draft, pod)
    # Executors end with their driver; they are helped along only once that is gone.
    if not left:
        left = [p for p in executors if not p.terminal]
        for pod in left:
            remove(draft, pod, _ORPHAN_GRACE)
    if left:
        draft.wake(draft.config.busy_resync)
        _say_what_stays(draft, left)
    return not left


def _say_what_stays(draft: Draft, left: list[PodView]) -> None:
    """A pod that does not even go by force is held by somebody: a person must know by whom."""
    held = [pod.name for pod in left if pod.deleted_at is not None and pod.grace_seconds == 0]
    if held and draft.status.operation is not None:
        text = (
            f"waits for the end of pod {held[0]}, which stays though it was deleted by force: see "
            "its node, and take off finalizers that nobody serves"
        )
        draft.put_operation(message=text)


def drop_strays(draft: Draft) -> None:
    """See to the end of this object's drivers that no attempt waits for.

    A request to make a pod may go through long after it was given up: what it makes would claim
    the lineage from the driver that runs, or run unwatched. So it is with pods that try a version
    for no operation any more; one that has ended stays for its log, as those of store tasks do.
    """
    operation = draft.status.operation
    wanted = draft.trial_id if operation is not None and operation.step == "Preflight" else ""
    for pod in draft.world.store_task_pods:
        tries = pod.store_task.startswith(TRIAL) and pod.store_task != wanted
        if tries and not pod.terminal and pod.deleted_at is None:
            draft.do(DeletePod(pod.name, pod.uid))
    for pod in draft.drivers:
        if pod.owned and not pod.terminal and _is_stray(draft, pod):
            remove(draft, pod)
            draft.wake(draft.config.busy_resync)


def remove(draft: Draft, pod: PodView, grace: int | None = None) -> None:
    """See to it that a pod ends: by asking, and where nobody listens, by force.

    It has `grace` seconds, also where it was told to end before and given more; without, its own.
    """
    grace = _grace(draft) if grace is None else grace
    if pod.deleted_at is not None and _is_abandoned(draft, pod):
        draft.do(DeletePod(pod.name, pod.uid, grace_seconds=0))
    elif pod.deleted_at is None or (grace is not None and grace < pod.grace_seconds):
        draft.do(DeletePod(pod.name, pod.uid, grace_seconds=grace))


def _grace(draft: Draft) -> int | None:
    """The seconds that a pod has which is told to end; None for its own."""
    operation = draft.status.operation
    if operation is None or operation.type != "Rollback" or operation.step not in _ENDINGS:
        return None
    # With its own a driver that is about to run takes a last checkpoint, and publishes by it what
    # is to be taken back.
    return _MOMENT


def strangers(draft: Draft) -> list[PodView]:
    """Living pods that are not this object's and have names of its drivers."""
    return [pod for pod in draft.drivers if not pod.owned and not pod.terminal]


def _is_stray(draft: Draft, pod: PodView) -> bool:
    attempt, operation = draft.attempt, draft.status.operation
    standby = operation.standby if operation is not None else None
    if standby is not None and pod.attempt == standby.attempt:
        return False
    return pod.attempt != attempt.number or (bool(attempt.outcome) and pod.ended is None)


def _is_abandoned(draft: Draft, pod: PodView) -> bool:
    deleted = pod.deleted_at
    if deleted is None:
        return False
    # The API server's clock may be behind: a step that waits for the end began when it did here.
    operation = draft.status.operation
    asked = max(deleted, operation.step_started_at) if operation is not None else deleted
    over = asked + timedelta(seconds=pod.grace_seconds)
    silent = pod.node_ready is False or pod.phase == "Unknown"
    lost = draft.attempt.outcome_reason == "NodeLost" and pod.attempt == draft.attempt.number
    if silent and lost:
        return True
    return draft.reached(over + lost_patience(draft))
