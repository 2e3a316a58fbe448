"""What is done where a ResourceQuota has no room: who waits for it, and what is said of it. Pure.

Nothing is stopped and nothing is begun for pods that would be refused. A start waits; an edit waits
and what runs goes on; a version that is to stand by waits for room beside the one that runs.
"""

from datetime import timedelta

from moorage_api import JobSpec
from moorage_api.changes import classify
from moorage_operator.decide.draft import QUOTA_EXCEEDED, Draft
from moorage_operator.decide.preflight import is_wanted
from moorage_operator.decide.restore_point import Obstacle
from moorage_operator.decide.standby import room_beside, wants_standby
from moorage_operator.plan import TidyAttempt
from moorage_operator.world import Room

_SETTLES = timedelta(seconds=10)
"""In which quotas count pods still that are gone."""
_LOOKS_AGAIN = timedelta(minutes=1)
_ONE_PASS = timedelta(seconds=15)
"""In which at least one pass falls of a start that waits for room."""
_FOR_TRIAL = (
    "for the pod of the preflight beside the version that runs; upgrade.preflight asks for it"
)


def hinders_start(draft: Draft) -> Obstacle | None:
    """Pods that a quota refuses are not tried for: it is said what they lack, and waited."""
    room, operation = draft.world.room, draft.operation
    drivers = [one for one in draft.drivers if one.owned]
    may_have_left = bool(drivers) or (draft.attempt.number > 0 and _is_looked_for(draft))
    if room.left and may_have_left and all(one.terminal for one in drivers):
        # Volumes that are reused, and what Spark made for executors, belong to the pod of their
        # driver, which stays for its log.
        draft.do(TidyAttempt(below=draft.attempt.number + 1, keep=0))
    if not room.start:
        return None
    if operation.deadline is None:
        left = _SETTLES if draft.attempt.number else timedelta(0)
        draft.put_operation(deadline=draft.now + left)
    return Obstacle(QUOTA_EXCEEDED, lacks_start(draft) or "waits for room in quotas", passes=True)


def _is_looked_for(draft: Draft) -> bool:
    """Whether it is time to look for what an attempt left of which no pod is there to say so.

    In each pass until quotas are up to date; then now and again, as it waits for that alone where
    an operator had not come to the end of tidying, or somebody deleted the pods.
    """
    deadline = draft.operation.deadline
    if deadline is None or not draft.reached(deadline):
        return True
    turn = (draft.now - deadline) // _LOOKS_AGAIN
    return not draft.reached(deadline + turn * _LOOKS_AGAIN + _ONE_PASS)


def lacks_start(draft: Draft) -> str:
    """What a start waits for; empty if for nothing, or only until a quota is up to date."""
    operation = draft.status.operation
    if operation is None or operation.step != "Fencing" or operation.deadline is None:
        return ""
    return draft.world.room.start if draft.reached(operation.deadline) else ""


def lacks_edit(draft: Draft) -> str:
    """What the newest spec waits for while another one runs; empty if for nothing."""
    room, running = draft.world.room, draft.world.revisions.get(draft.attempt.revision)
    new, runs = draft.world.spec, draft.is_active and draft.attempt.running_since is not None
    if not runs or new is None or running is None:
        return room.growth
    wanted = {"beside": wants_standby(draft), "trial": is_wanted(draft)}
    return edit_lacks(room, running.spec, new, **wanted)


def edit_lacks(room: Room, running: JobSpec, new: JobSpec, *, beside: bool, trial: bool) -> str:
    """What an edit of a version that runs waits for; empty if for nothing.

    Args:
        beside: whether the new version is to stand by.
        trial: whether a preflight comes first.
    """
    if classify(running, new).kind not in ("Upgrade", "Redeploy"):
        return room.growth
    # All pods beside those that run ask for more than any growth of theirs.
    lacks = [(room_beside(room) if beside else "") or room.growth]
    if trial and room.trial:
        lacks.append(f"{room.trial}, {_FOR_TRIAL}")
    return "; ".join(filter(None, lacks))


def tell_fewer(draft: Draft) -> None:
    """Tell once of a start that gets fewer executors than it asks for."""
    lacks = draft.world.room.whole
    if lacks and draft.report is not None:
        text = f"not all pods have room, and it runs with fewer: {lacks}"
        draft.tell("Warning", QUOTA_EXCEEDED, text, f"{draft.attempt.number}")
