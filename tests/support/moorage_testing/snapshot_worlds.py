"""Worlds for decisions about snapshots: a job that runs, and a snapshot that was just made."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moorage_api import JobSpec
from moorage_api.driver import DriverState, RequestView, SavepointBody
from moorage_api.snapshot import SnapshotSpec, SnapshotStatus
from moorage_api.status import JobStatus
from moorage_operator.plan import AskDriver, RunStoreTask, SnapshotPlan, StoreTask
from moorage_operator.snapshots import decide_snapshot
from moorage_operator.snapshots.naming import data_go_too
from moorage_operator.world import (
    Config,
    JobFacts,
    Meta,
    SnapshotView,
    SnapshotWorld,
    StoreTaskView,
)
from moorage_testing.manifests import changed, spec_data

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
CONFIG = Config(cluster_id="test")
DIGEST = "sha256:" + "a" * 64
FOUND = {
    "found": True,
    "kind": "savepoint",
    "path": "s3://savepoints/clicks/a",
    "attempt": "ssnap-uid-clicks-a",
    "digest": DIGEST,
    "checkpoint_id": 12,
    "epoch": 99,
    "max_parallelism": 128,
    "size_bytes": 1000,
    "completed_at": NOW.isoformat(),
}
RECOVERY = {
    "id": "1-1",
    "type": "Recover",
    "step": "Starting",
    "startedAt": NOW,
    "stepStartedAt": NOW,
}


def job_spec(**changes: Any) -> JobSpec:
    usual: dict[str, Any] = {"image": "clicks:1", "scaling": {"parallelism": 2}}
    named = changed(spec_data(**usual), {"state.credentialsSecretRef": {"name": "s3-creds"}})
    return JobSpec.model_validate({**named, **changes})


def job_status(**changes: Any) -> JobStatus:
    plain: dict[str, Any] = {
        "phase": "Running",
        "attempt": {
            "number": 3,
            "startedAt": NOW - timedelta(hours=1),
            "runningSince": NOW - timedelta(minutes=59),
        },
        **changes,
    }
    return JobStatus.model_validate(plain)


def job_meta(**changes: Any) -> Meta:
    return replace(Meta("clicks", "default", "job-uid", 1, "7"), **changes)


def job(spec: JobSpec | None = None, *, newest: JobSpec | None = None, **status: Any) -> JobFacts:
    return JobFacts(job_meta(), spec or job_spec(), job_status(**status), newest)


def snapshot(
    name: str = "clicks-a",
    /,
    *,
    status: dict[str, Any] | None = None,
    trigger: str = "Manual",
    age: float = 60.0,
    deleted: bool = False,
    **spec: Any,
) -> SnapshotView:
    spec = {"jobRef": {"name": "clicks"}, "name": name.removeprefix("clicks-"), **spec}
    spec = {field: value for field, value in spec.items() if value is not None}
    meta = Meta(
        name,
        "default",
        f"uid-{name}",
        1,
        "9",
        labels={
            "moorage.dev/job": "clicks",
            "moorage.dev/type": spec.get("type", "Savepoint"),
            "moorage.dev/trigger": trigger,
        },
        created_at=NOW - timedelta(seconds=age),
        deleted_at=NOW if deleted else None,
    )
    view = SnapshotView(
        meta, SnapshotSpec.model_validate(spec), SnapshotStatus.model_validate(status or {})
    )
    if not deleted and not data_go_too(view):
        return view
    return replace(view, meta=replace(meta, finalizers=("moorage.dev/operator",)))


def report(*requests: dict[str, Any], **changes: Any) -> DriverState:
    views = [RequestView.model_validate(request) for request in requests]
    plain = {"attempt": 3, "job_uid": "job-uid", "phase": "running", "requests": views, **changes}
    return DriverState(**plain)


def savepoint_info(name: str = "a", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "path": f"s3://savepoints/clicks/{name}",
        "checkpointId": 12,
        "epoch": 99,
        "sizeBytes": 1000,
        "manifestDigest": DIGEST,
        "maxParallelism": 128,
        "completedAt": NOW,
        **changes,
    }


def world(view: SnapshotView | None = None, **changes: Any) -> SnapshotWorld:
    return SnapshotWorld(
        **{
            "now": NOW,
            "config": CONFIG,
            "snapshot": view or snapshot(),
            "job": changes["job"] if "job" in changes else job(),
            "report": report(),
            **changes,
        }
    )


def after(before: SnapshotWorld, **changes: Any) -> SnapshotWorld:
    """The world as the next pass finds it: the status was kept."""
    plan = decide_snapshot(before)
    return replace(before, snapshot=replace(before.snapshot, status=plan.status), **changes)


def question_of(plan: SnapshotPlan) -> AskDriver:
    """What the driver is asked, before anything else is done."""
    effect = plan.effects[0]
    assert isinstance(effect, AskDriver)
    return effect


def savepoint_body_of(plan: SnapshotPlan) -> SavepointBody:
    """The body of the savepoint that the driver is asked for, before anything else is done."""
    body = question_of(plan).body
    assert isinstance(body, SavepointBody)
    return body


def store_task_of(plan: SnapshotPlan) -> StoreTask:
    """The store task that is run, before anything else is done."""
    effect = plan.effects[0]
    assert isinstance(effect, RunStoreTask)
    return effect.store_task


def asked(view: SnapshotView | None = None, **changes: Any) -> SnapshotWorld:
    """A world in which the driver was asked for the snapshot."""
    return replace(after(world(view)), **changes)


def condition(plan: SnapshotPlan, kind: str) -> Any:
    return plan.status.condition(kind)


def kinds(plan: SnapshotPlan) -> list[type]:
    return [type(effect) for effect in plan.effects]


def reasons(plan: SnapshotPlan) -> list[str]:
    return [event.reason for event in plan.events]


def lost_driver(before: SnapshotWorld) -> SnapshotWorld:
    """The driver that was asked has ended, and another one runs."""
    other = job(attempt={"number": 4, "runningSince": NOW, "startedAt": NOW})
    return replace(before, job=other, report=report(attempt=4))


def with_store_task(before: SnapshotWorld, view: StoreTaskView) -> SnapshotWorld:
    return replace(before, store_tasks={before.snapshot.status.store_task: view})
