"""The claims of volumes that are reused: kept while executors use them, given up if they do harm.

Which ones executors have is Spark's to decide, and their pods say it. Pure.
"""

from datetime import timedelta

from moorage_operator.decide.draft import Draft
from moorage_operator.plan import DeletePod, GiveUpClaim, KeepClaims
from moorage_operator.world import PodView, Unreadable

_PATIENCE = timedelta(minutes=3)
"""For a volume to come from another node, or for a node to come to which it can be attached."""
_OF_VOLUMES = ("volume", "pvc")
"""One of these is in all that a scheduler says against a pod for the sake of its claims."""


def keep_claims(draft: Draft) -> None:
    """Keep what executors use, and part an executor that does not get on from another's claim."""
    executors, number = draft.world.executors, draft.attempt.number
    if isinstance(executors, Unreadable):
        return
    # They are of the attempt that was there when the pass began.
    living = [
        one
        for one in executors
        if one.claim and one.attempt == number and not one.terminal and one.deleted_at is None
    ]
    if living:
        operation, report = draft.status.operation, draft.report
        standby = operation.standby.attempt if operation and operation.standby else 0
        whole = report is not None and 0 < report.executors_desired <= len(living)
        draft.do(KeepClaims(number, frozenset(one.claim for one in living), standby, whole))
    for one in living:
        if _waits_for_its_volume(draft, one):
            draft.do(GiveUpClaim(one.claim, DeletePod(one.name, one.uid)))
            why = one.unschedulable or "its events say why"
            text = (
                f"{one.name} did not start within {_PATIENCE.seconds} s on the volume of an "
                f"executor before it: {why}. It gets a new one, and its state from the store: "
                f"claim={one.claim}"
            )
            draft.tell("Warning", "VolumeGivenUp", text, one.claim)


def _waits_for_its_volume(draft: Draft, pod: PodView) -> bool:
    # Spark names a claim that it makes after the pod: such a one has been nowhere else.
    is_anothers = not pod.claim.startswith(f"{pod.name}-")
    if not is_anothers or pod.phase != "Pending" or pod.waiting or pod.created_at is None:
        return False
    # With no other volume would there be more room on any node.
    lacks = pod.unschedulable.lower()
    if lacks and not any(word in lacks for word in _OF_VOLUMES):
        return False
    over = pod.created_at + _PATIENCE
    if not draft.reached(over):
        draft.wake_at(over)
        return False
    return True
