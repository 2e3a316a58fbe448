"""The claims of volumes that are reused: kept while executors use them, given up if they do harm.

Which ones executors have is Spark's to decide, and their pods say it. Pure.
"""

from datetime import timedelta

from moorage_operator.decide.draft import Draft
from moorage_operator.plan import DeletePod, GiveUpClaim, KeepClaims
from moorage_operator.world import PodView, Unreadable

_PATIENCE = timedelta(minutes=3)
"""For a volume to come from another node, or for a node to come to which it can be attached."""


def keep_claims(draft: Draft) -> None:
    """Keep what executors use, and part an executor that does not get on from another's claim."""
    executors = draft.world.executors
    if isinstance(executors, Unreadable):
        return
    living = [one for one in executors if one.claim and not one.terminal and one.deleted_at is None]
    if living:
        names = frozenset(one.claim for one in living)
        draft.do(KeepClaims(draft.attempt.number, names))
    for one in living:
        if _waits_for_its_volume(draft, one):
            draft.do(GiveUpClaim(one.claim))
            draft.do(DeletePod(one.name, one.uid))
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
    over = pod.created_at + _PATIENCE
    if not draft.reached(over):
        draft.wake_at(over)
        return False
    return True
