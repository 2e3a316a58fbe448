"""One step of a snapshot's life: how it goes on, fails, ends; and the plan it becomes. Pure.

What came of a snapshot is kept from a driver's answer or from what was read of the store.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from moorage_api.driver import CheckpointSummary, SavepointInfo
from moorage_api.snapshot import FINAL_STATES, SnapshotStatus
from moorage_api.status import Condition
from moorage_operator.plan import Effect, Event, SnapshotPlan
from moorage_operator.snapshots.naming import (
    JOB_LABEL,
    STATE_LABEL,
    TRIGGER_LABEL,
    TYPE_LABEL,
    attempt_of,
    data_go_too,
    request_id,
    trigger_of,
)
from moorage_operator.snapshots.retention import uses
from moorage_operator.world import SnapshotView, SnapshotWorld

COMPLETE, VERIFIED, IN_USE, FAILED = "Complete", "Verified", "InUse", "Failed"
_CONDITIONS = {COMPLETE, VERIFIED, IN_USE, FAILED}


@dataclass(frozen=True, slots=True)
class Step:
    """What a state's own decision says."""

    status: SnapshotStatus  # without conditions
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    # Of the conditions Complete and Failed, CamelCase; empty leaves them as they are
    reason: str = ""
    verified: str = ""  # why the data are known to be whole; empty leaves the condition as it is
    again_after: float | None = None  # None for the usual time


def changed(status: SnapshotStatus, **fields: Any) -> SnapshotStatus:
    """The status with other values in these fields."""
    return status.model_copy(update=fields)


def waiting(
    world: SnapshotWorld, reason: str, message: str, again_after: float | None = None
) -> Step:
    """Nothing is done yet, and why."""
    status = changed(world.snapshot.status, message=message)
    return Step(status, reason=reason, again_after=again_after)


def failed(
    world: SnapshotWorld,
    reason: str,
    message: str,
    *,
    state: str = "Failed",
    event: str = "",
    **fields: Any,
) -> Step:
    """It comes to nothing, for good.

    Args:
        state: Failed or Abandoned.
        event: the event's reason; that of the snapshot's type by default.
    """
    status = changed(
        world.snapshot.status, state=state, message=message, next_retry_at=None, **fields
    )
    told = Event("Warning", event or event_name(world, "Failed"), message, f"{state}-{reason}")
    return Step(status, events=(told,), reason=reason)


def finished(
    world: SnapshotWorld, verified: str, status: SnapshotStatus, message: str = ""
) -> Step:
    """It is complete: its data are there."""
    done = changed(status, state="Completed", message="", next_retry_at=None)
    text = message or f"{done.path or 'snapshot'} is complete"
    told = Event("Normal", event_name(world, "Completed"), text, "completed")
    return Step(done, events=(told,), reason="Completed", verified=verified)


def no_place(world: SnapshotWorld, job: str) -> Step:
    """Its job has no directory for savepoints."""
    text = (
        f"spec.state.savepointDir of {job}: is missing, so that there is no place "
        "for savepoints; add it to the job, then make another snapshot"
    )
    return failed(world, "NoSavepointDir", text)


def is_final(snapshot: SnapshotView) -> bool:
    """Whether it has come to an end, and time changes nothing of it any more.

    What it is needed for may change: its job's passes see to that.
    """
    return snapshot.status.state in FINAL_STATES and snapshot.meta.deleted_at is None


def is_in_order(snapshot: SnapshotView, finalizer: str) -> bool:
    """Whether one that has come to its end shows all that passes have to say of it.

    But for what it is needed for: that is its job's to say.
    """
    meta = snapshot.meta
    # When the data were seen to be whole stays as it was said then.
    said = {
        one.type
        for one in snapshot.status.conditions
        if one.observed_generation == meta.generation or one.type == VERIFIED
    }
    return (
        is_final(snapshot)
        and said >= _CONDITIONS
        and data_go_too(snapshot) == (finalizer in meta.finalizers)
        and _labels(snapshot, snapshot.status) is None
    )


def event_name(world: SnapshotWorld, what: str) -> str:
    """`SavepointStarted`, `CheckpointFailed` and so on."""
    return f"{world.snapshot.spec.type}{what}"


def plan_of(world: SnapshotWorld, step: Step) -> SnapshotPlan:
    """The step with conditions, labels and what is in use."""
    in_use = uses(world.snapshot, world.job)
    # A person's pin is no news to that person.
    status = changed(step.status, in_use_by=in_use)
    status = changed(status, conditions=tuple(_conditions(world, status, step, in_use)))
    again_after = world.config.resync if step.again_after is None else step.again_after
    return SnapshotPlan(
        status=status,
        effects=step.effects,
        events=step.events,
        labels=_labels(world.snapshot, status),
        again_after=None if is_final(world.snapshot) else again_after,
    )


def _labels(snapshot: SnapshotView, status: SnapshotStatus) -> Mapping[str, str] | None:
    wanted = {
        JOB_LABEL: snapshot.spec.job_ref.name,
        TYPE_LABEL: snapshot.spec.type,
        TRIGGER_LABEL: trigger_of(snapshot),
        STATE_LABEL: str(status.state),
    }
    same = all(snapshot.meta.labels.get(name) == value for name, value in wanted.items())
    return None if same else wanted


def _conditions(
    world: SnapshotWorld, status: SnapshotStatus, step: Step, in_use: tuple[str, ...]
) -> Iterator[Condition]:
    before = {condition.type: condition for condition in world.snapshot.status.conditions}
    ended, complete = status.state in ("Failed", "Abandoned"), _is_complete(status)
    reason = step.reason or str(status.state)
    facts = (
        (COMPLETE, "True" if complete else "False", "Completed" if complete else reason),
        (FAILED, "True" if ended else "False", reason if ended else "NotFailed"),
    )
    for kind, truth, why in facts:
        message = status.message if kind == (FAILED if ended else COMPLETE) else ""
        yield _condition(world, before.get(kind), kind, truth, why, message, keep=not step.reason)
    was = before.get(VERIFIED)
    if step.verified or was is None:
        truth, why = ("True", step.verified) if step.verified else ("Unknown", "NotVerified")
        yield _condition(world, was, VERIFIED, truth, why, "")
    else:
        yield was
    truth, why = ("True", "Needed") if in_use else ("False", "NotNeeded")
    yield _condition(world, before.get(IN_USE), IN_USE, truth, why, "; ".join(in_use))


def _is_complete(status: SnapshotStatus) -> bool:
    """While it is deleted it is not: what is there may be a part."""
    return status.state == "Completed"


def _condition(
    world: SnapshotWorld,
    before: Condition | None,
    kind: str,
    truth: str,
    reason: str,
    message: str,
    *,
    keep: bool = False,
) -> Condition:
    """The condition; as long as its truth stays, so does its time, and with `keep` its reason."""
    since: datetime = world.now
    if before is not None and before.status == truth:
        since = before.last_transition_time
        reason = before.reason if keep else reason
    return Condition.model_validate({
        "type": kind,
        "status": truth,
        "reason": reason,
        "message": message[:1024],
        "observed_generation": world.snapshot.meta.generation,
        "last_transition_time": since,
    })  # fmt: skip


_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 40.0


def pause(tries: int, longest: float = _LONGEST_PAUSE) -> timedelta:
    """How long to wait after so many tries: 10, 20, 40 seconds and so on."""
    return timedelta(seconds=min(_FIRST_PAUSE * 2.0 ** min(max(tries - 1, 0), 20), longest))


def void(world: SnapshotWorld, reason: str, message: str, *, answered: bool) -> Step:
    """Count a failure, and wait for the next try if there is one left.

    Args:
        answered: the driver itself said so: it would say the same again under the same id. A
            driver that vanished leaves the id to the next one, which carries on.
    """
    snapshot = world.snapshot
    failures, limit = snapshot.status.failures + 1, snapshot.spec.backoff_limit
    if failures > limit:
        text = f"{message}; given up after {failures} tries: backoffLimit={limit}"
        return failed(world, reason, text, failures=failures)
    base = request_id(snapshot.meta.uid)
    kept = snapshot.status.request_id if attempt_of(snapshot.status.request_id) == base else base
    wait = pause(failures)
    status = changed(
        snapshot.status,
        state="Pending",
        failures=failures,
        request_id=f"{base}.{failures}" if answered else kept,
        next_retry_at=world.now + wait,
        message=f"try {failures} of {limit + 1} failed: {message}",
    )
    told = Event("Warning", event_name(world, "Failed"), status.message, f"try-{failures}")
    return Step(status, (), (told,), "RetryWait", again_after=wait.total_seconds())


def of_savepoint(status: SnapshotStatus, info: SavepointInfo, now: datetime) -> SnapshotStatus:
    """As a driver reports it."""
    return changed(
        status,
        path=info.path or status.path,
        manifest_digest=info.manifest_digest,
        epoch=info.epoch,
        checkpoint_id=info.checkpoint_id,
        max_parallelism=info.max_parallelism,
        spark_version=info.spark_version,
        size_bytes=info.size_bytes,
        completed_at=info.completed_at or now,
    )


def of_checkpoint(status: SnapshotStatus, info: CheckpointSummary) -> SnapshotStatus:
    """As a driver reports it."""
    return changed(
        status,
        path=info.path,
        epoch=info.epoch,
        checkpoint_id=info.id,
        size_bytes=info.size_bytes,
        completed_at=info.completed_at,
    )


def of_verified(status: SnapshotStatus, result: Mapping[str, Any], now: datetime) -> SnapshotStatus:
    """As a store task found it."""
    return changed(
        status,
        path=str(result.get("path") or status.path),
        manifest_digest=str(result.get("digest", "")),
        epoch=int(result.get("epoch", 0)),
        checkpoint_id=int(result.get("checkpoint_id", 0)),
        max_parallelism=int(result.get("max_parallelism", 0)),
        spark_version=str(result.get("spark_version", "")),
        size_bytes=int(result.get("size_bytes", 0)),
        completed_at=_time(result.get("completed_at")) or now,
    )


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else None
