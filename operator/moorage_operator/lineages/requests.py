"""From a job and a store task to a request, and from an answer to what decisions look at. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moorage_operator.plan import StoreTask
from moorage_operator.ports import JobRefs
from moorage_operator.snapshots.naming import reach
from moorage_operator.world import LogPoint, StoreTaskView, StoreView, Unreadable
from moorage_state.snapshots import Owner
from moorage_state.snapshots.store_tasks import Answer, StoreTaskRequest

INSPECT = StoreTask("inspect", "Inspect")
PENDING = StoreTaskView("Pending")

_REASONS = {
    "store_unavailable": "StoreUnavailable",
    "store_denied": "StoreDenied",
    "credentials_missing": "CredentialsMissing",
    "corrupt_state": "StoreCorrupt",
    "newer_format": "NewerFormat",
    "restore_point_retired": "RestorePointRetired",
    "errand_failed": "ErrandFailed",
}


def request_of(job: JobRefs, store_task: StoreTask, cluster_id: str) -> StoreTaskRequest:
    """The request of a store task for a job."""
    meta, spec = job.meta, job.spec
    return StoreTaskRequest(
        id=store_task.id,
        kind=store_task.kind,
        checkpoint_dir=reach(spec.state.checkpoint_dir, spec),
        path=store_task.path,
        digest=store_task.digest,
        attempt=store_task.attempt,
        source=store_task.source,
        owner=Owner(cluster_id, meta.namespace, meta.name, meta.uid),
    )


def store_task_view(answer: Answer) -> StoreTaskView:
    """What came of a store task."""
    return StoreTaskView(
        answer.state, answer.result, answer.code, answer.message, retryable=answer.retryable
    )


def store_view(answer: Answer) -> StoreView | Unreadable:
    """What an inspection found; a failed one says nothing about what there is."""
    if answer.state == "Failed":
        reason = _REASONS.get(answer.code, "StoreUnreadable")
        return Unreadable(reason, answer.message)
    try:
        return _store_view(answer.result)
    except (KeyError, TypeError, ValueError) as error:
        text = f"answer of an inspection cannot be read: problem={error}; use one moorage version"
        return Unreadable("StoreUnreadable", text)


def _store_view(result: Mapping[str, Any]) -> StoreView:
    if not result["exists"]:
        return StoreView(exists=False, read_at=datetime.fromisoformat(result["read_at"]))
    owner = result["owner"]
    return StoreView(
        exists=True,
        lineage=result["lineage"],
        owner=(owner[0], owner[1], owner[2], owner[3]) if owner else None,
        released=result["released"],
        fence=result["fence"],
        newest=_point(result["newest"]),
        previous=_point(result.get("previous")),
        order_ids=frozenset(result["order_ids"]),
        savepoints={
            url: point
            for url, raw in result["savepoints"].items()
            if (point := _point(raw)) is not None
        },
        read_at=datetime.fromisoformat(result["read_at"]),
    )


def _point(raw: Mapping[str, Any] | None) -> LogPoint | None:
    if raw is None:
        return None
    return LogPoint(
        path=raw["path"],
        checkpoint_id=raw["checkpoint_id"],
        epoch=raw["epoch"],
        completed_at=datetime.fromisoformat(raw["completed_at"]),
        manifest_digest=raw["manifest_digest"],
        explicit=raw["explicit"],
    )
