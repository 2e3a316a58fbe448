"""The one word and the one sentence for people, derived from everything else. Pure."""

from datetime import timedelta

from moorage_api.status import OperationStep, OperationType, Phase
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.findings import degrading
from moorage_operator.decide.operations import FAILED
from moorage_operator.decide.specs import desired
from moorage_operator.world import PodView, Unreadable

PAUSED = (
    "the annotation moorage.dev/paused is true, so that the operator looks on and does nothing; "
    "take it off to let it go on"
)

_SLOW = timedelta(minutes=3)
"""After that a pod that has a node and no running container is worth a look."""

_OF_OPERATION: dict[OperationType, Phase] = {
    "Deploy": "Deploying",
    "Resume": "Deploying",
    "Upgrade": "Upgrading",
    "Redeploy": "Upgrading",
    "Rescale": "Rescaling",
    "Rollback": "RollingBack",
    "Suspend": "Suspending",
    "Recover": "Recovering",
    "Delete": "Deleting",
}


def phase(draft: Draft) -> Phase:  # noqa: PLR0911  one line a phase
    """The phase of the job."""
    status = draft.status
    if draft.meta.deleted_at is not None:
        return "Deleting"
    if status.blocked_reason:
        return "Failed" if status.blocked_reason == FAILED else "Blocked"
    if status.operation is not None:
        return _of_operation(draft)
    if status.finished_at is not None:
        return "Finished"
    if is_suspended(draft):
        return "Suspended"
    if status.attempt.number == 0:
        return "Created"
    if not draft.is_active:
        return "Recovering"
    return "Stable" if status.attempt.stable_since is not None else "Running"


def is_suspended(draft: Draft) -> bool:
    """Whether nothing runs because nothing is to run."""
    status = draft.status
    idle = status.operation is None and not draft.is_active and status.finished_at is None
    return idle and desired(draft) == "Suspended" and not status.blocked_reason


def stuck(draft: Draft) -> tuple[str, str] | None:
    """Why a driver's pod does not start, as the kubelet or the scheduler says; None if it does."""
    return held_pod(draft.pod) if draft.is_active and draft.pod is not None else None


def stuck_executor(draft: Draft) -> tuple[str, str] | None:
    """Likewise of the first of the executors that Spark asked for and that do not start."""
    held = next((held for held in map(held_pod, _executors(draft)) if held is not None), None)
    return held or refused_executors(draft, "Verifying")


def refused_executors(draft: Draft, step: OperationStep) -> tuple[str, str] | None:
    """Why none is made in this step: nobody but Spark's log would say it; None if one is."""
    operation, refused = draft.status.operation, draft.world.refused_pods
    if operation is None or operation.step != step or not isinstance(refused, tuple):
        return None
    # The driver's pod is there.
    said = [text for text in refused if not text.startswith("driver: ")]
    return ("PodsRefused", f"the API server takes no {'; '.join(said)}") if said else None


def slow_start(draft: Draft) -> str:
    """Which pod has had a node for long and does not run, though nobody says why; else empty.

    An image may be large; but a volume that cannot be mounted shows in the pod's events alone.
    """
    own = (draft.pod,) if draft.is_active and draft.pod is not None else ()
    for pod in (*own, *_executors(draft)):
        since = pod.created_at
        if pod.phase != "Pending" or not pod.node or since is None:
            continue
        if not draft.reached(since + _SLOW):
            continue
        return (
            f"{pod.name} has a node and does not run since {since:%H:%M:%S} UTC; its events say "
            f"what it waits for: kubectl describe pod {pod.name}"
        )
    return ""


def message(draft: Draft) -> str:  # noqa: PLR0911  one line a case
    """The one thing to know now; for a blocked job, the one thing to do."""
    status = draft.status
    if status.blocked_reason:
        return status.message
    if draft.problems and draft.meta.deleted_at is None:
        return f"the spec is not acted on: {draft.problems[0]}"
    if draft.is_paused:
        return PAUSED
    if draft.world.trouble:
        return draft.world.trouble
    held = stuck(draft) or stuck_executor(draft)
    waits = held[1] if held is not None else slow_start(draft)
    if waits:
        return waits
    if status.operation is not None:
        return status.operation.message
    found = degrading(draft)
    return found.message if found is not None else ""


def _executors(draft: Draft) -> list[PodView]:
    pods = draft.world.executors
    if isinstance(pods, Unreadable) or not draft.is_active:
        return []
    return sorted((pod for pod in pods if pod.deleted_at is None), key=lambda pod: pod.name)


def held_pod(pod: PodView) -> tuple[str, str] | None:
    """Why a pod does not start, in a word and a sentence; None if it does."""
    if pod.phase != "Pending":
        return None
    if pod.waiting:
        return _word(pod.waiting), f"{pod.name}: {pod.waiting_message or pod.waiting}"
    if pod.unschedulable:
        return "Unschedulable", f"{pod.name}: {pod.unschedulable}"
    return None


def _of_operation(draft: Draft) -> Phase:
    operation, status = draft.operation, draft.status
    waits = status.restarts.next_retry_at
    if operation.type == "Recover" and operation.step == "Fencing" and waits is not None:
        return "Recovering" if draft.reached(waits) else "BackOff"
    starting = operation.type in ("Deploy", "Resume") and operation.step == "Verifying"
    if starting and status.job.state == "restoring":
        return "Restoring"
    return _OF_OPERATION[operation.type]


def _word(text: str) -> str:
    """A kubelet's reason as a condition's: letters and digits, beginning with a letter."""
    found = "".join(c for c in text if c.isascii() and c.isalnum())
    return found if found[:1].isalpha() else f"Waiting{found}"
