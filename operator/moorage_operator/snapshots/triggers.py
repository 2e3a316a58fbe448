"""Which snapshots a job asks for: by annotations, by its schedule; and which it may let go. Pure.

A trigger counts as handled once its object is *seen*: until then making the object is asked for
again and again, under the one name that the trigger has. So an operator that dies in between loses
none and takes none twice. checkpoint.cron is not looked at here: checkpoints are the driver's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfoNotFoundError

from moorage_api import JobSpec
from moorage_api.cron import next_tick, previous_tick
from moorage_api.state import Schedule
from moorage_api.status import Triggers
from moorage_operator.plan import DeleteObject, Event, KeepSnapshot
from moorage_operator.snapshots.naming import (
    TRIGGER_ANNOTATION,
    directory_name,
    object_names,
    periodic_name,
    trigger_id,
)
from moorage_operator.snapshots.retention import next_victim_at, uses, victims
from moorage_operator.world import JobFacts, JobWorld, SnapshotView, Unreadable


@dataclass(frozen=True, slots=True)
class Wanted:
    """What follows from annotations, schedule and retention."""

    triggers: Triggers  # for `status.snapshots.lastTrigger`
    last_scheduled_time: datetime | None  # for `status.snapshots.lastScheduledTime`
    effects: tuple[KeepSnapshot | DeleteObject, ...] = ()  # snapshots to make, then those to delete
    events: tuple[Event, ...] = ()
    # When the schedule is due next, or a snapshot too old, to be woken then; None if never
    next_at: datetime | None = None


@dataclass(slots=True)
class _Draft:
    """What is gathered on the way."""

    made: list[KeepSnapshot] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def wanted(world: JobWorld) -> Wanted:
    """Return what the job asks for now; the same world gives the same answer.

    Nothing is asked for while the job's snapshots cannot be read, which is told where an annotation
    waits for it, while the object is being deleted and while it is paused.
    """
    before = world.status.snapshots
    quiet = Wanted(before.last_trigger, before.last_scheduled_time)
    if world.meta.deleted_at is not None or world.meta.annotation("paused") == "true":
        return quiet
    if isinstance(world.snapshots, Unreadable):
        again = world.now + timedelta(seconds=world.config.resync)
        return replace(quiet, events=tuple(_unread(world, world.snapshots)), next_at=again)
    draft = _Draft()
    triggers = before.last_trigger.model_copy(
        update={
            **_trigger(world, draft, world.snapshots, "Savepoint"),
            **_trigger(world, draft, world.snapshots, "Checkpoint"),
        }
    )
    spec = _spec(world)
    schedule = spec.savepoint.schedule if spec is not None else None
    last, next_at = before.last_scheduled_time, None
    if schedule is not None:
        last, next_at = _scheduled(world, draft, world.snapshots, schedule)
    elif spec is not None:
        last = None  # one that is put in again was not there meanwhile
    gone: tuple[DeleteObject, ...] = ()
    if spec is not None:
        gone = tuple(_surplus(world, world.snapshots, spec))
        end = next_victim_at(world.snapshots, spec.savepoint.retain, world.now)
        next_at = min((at for at in (next_at, end) if at is not None), default=None)
    return Wanted(triggers, last, (*draft.made, *gone), tuple(draft.events), next_at)


def _spec(world: JobWorld) -> JobSpec | None:
    """The newest spec; where that is wrong, the one that runs."""
    if world.spec is not None and not world.problems:
        return world.spec
    current = world.revisions.get(world.status.reconciliation.current_revision)
    return current.spec if current is not None else world.spec


# -- annotations -------------------------------------------------------------------------------


def _trigger(
    world: JobWorld,
    draft: _Draft,
    snapshots: Sequence[SnapshotView],
    kind: Literal["Savepoint", "Checkpoint"],
) -> dict[str, str]:
    """What is handled by this, for `Triggers`; what there is to do goes to `draft`."""
    annotation = kind.lower()
    value = world.meta.annotation(annotation)
    last = world.status.snapshots.last_trigger
    handled: str = getattr(last, annotation)
    if not value or value == handled:
        return {}
    # A status that was written before there were marks has the value alone.
    before: str = getattr(last, f"{annotation}_mark") or handled
    mine = trigger_id(world.meta.uid, kind, before, value)
    name = directory_name(value)
    prefix = "" if kind == "Savepoint" else "checkpoint-"
    can_be = object_names(world.meta.name, f"{prefix}{name}")
    found = next((s for s in snapshots if s.meta.name in can_be), None)
    if found is None:
        spec = _snapshot_spec(world, kind, name)
        draft.made.append(KeepSnapshot(can_be[0], spec, "Manual", mine))
        return {}
    if found.meta.annotations.get(TRIGGER_ANNOTATION) != mine:
        draft.events.append(_taken(annotation, value, found, mine))
    return {annotation: value, f"{annotation}_mark": mine}


def _snapshot_spec(world: JobWorld, kind: str, name: str) -> Mapping[str, Any]:
    spec: dict[str, Any] = {"jobRef": {"name": world.meta.name}, "type": kind}
    return {**spec, "name": name} if kind == "Savepoint" else spec


def _taken(annotation: str, value: str, found: SnapshotView, mine: str) -> Event:
    text = (
        f"moorage.dev/{annotation}: {value!r} was asked for before and is {found.meta.name} "
        f"({found.status.state}); nothing is taken: use a new value"
    )
    reason = "SavepointNameConflict" if annotation == "savepoint" else "CheckpointNameConflict"
    return Event("Warning", reason, text, f"{annotation}-{mine}")


def _unread(world: JobWorld, why: Unreadable) -> Iterator[Event]:
    """What is asked for and waits: nobody knows which snapshots there are."""
    last = world.status.snapshots.last_trigger
    for annotation in ("savepoint", "checkpoint"):
        value = world.meta.annotation(annotation)
        if value not in ("", getattr(last, annotation)):
            text = (
                f"moorage.dev/{annotation}: {value!r} waits until the job's snapshots can be read: "
                f"{why.message}"
            )
            yield Event("Warning", "SnapshotsUnreadable", text, f"unread-{annotation}-{value}")


# -- the schedule ------------------------------------------------------------------------------


def _scheduled(
    world: JobWorld, draft: _Draft, snapshots: Sequence[SnapshotView], schedule: Schedule
) -> tuple[datetime | None, datetime | None]:
    """The newest tick that is handled after this, and the next one."""
    # Ticks that were missed coalesce to the newest. One that is seen for the first time starts with
    # the next tick: a schedule does not reach back to before it was there.
    last = world.status.snapshots.last_scheduled_time
    try:
        due = previous_tick(schedule.cron, schedule.time_zone, world.now)
        following = next_tick(schedule.cron, schedule.time_zone, world.now)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        draft.events.append(_no_zone(schedule.time_zone))
        return last, None
    if last is None:
        return world.now, following
    if due is None or due <= last:
        return last, following
    return _tick(world, draft, snapshots, schedule, due), following


def _tick(
    world: JobWorld,
    draft: _Draft,
    snapshots: Sequence[SnapshotView],
    schedule: Schedule,
    due: datetime,
) -> datetime | None:
    last = world.status.snapshots.last_scheduled_time
    name = periodic_name(due)
    can_be = object_names(world.meta.name, name)
    if any(s.meta.name in can_be for s in snapshots) or _is_idle(world):
        return due
    deadline = schedule.starting_deadline
    if world.now - due > deadline.timedelta:
        draft.events.append(_missed(due, str(deadline)))
        return due
    spec = {
        **_snapshot_spec(world, "Savepoint", name),
        "deletionPolicy": "Delete",
        "startDeadline": _left(due + deadline.timedelta - world.now),
    }
    draft.made.append(KeepSnapshot(can_be[0], spec, "Periodic", due.isoformat()))
    return last


def _is_idle(world: JobWorld) -> bool:
    """Whether the job stands still on purpose: what it has is kept already."""
    spec = world.spec
    suspended = spec is not None and spec.desired_state == "Suspended"
    return suspended or world.status.phase in ("Suspended", "Finished")


def _left(time: timedelta) -> str:
    return f"{max(int(time.total_seconds()), 1)}s"


def _missed(due: datetime, deadline: str) -> Event:
    text = f"no savepoint for {due.isoformat()}: later than startingDeadline={deadline}"
    return Event("Warning", "SavepointMissed", text, f"missed-{due.isoformat()}")


def _no_zone(zone: str) -> Event:
    text = (
        f"spec.savepoint.schedule.timeZone: is not known here: {zone!r}; write UTC, or one of the "
        "IANA database such as Europe/Paris"
    )
    return Event("Warning", "ScheduleInvalid", text, f"zone-{zone}")


# -- what they are needed for ------------------------------------------------------------------


def stale(world: JobWorld) -> tuple[str, ...]:
    """Snapshots, by name, that show other uses than the job has for them now.

    One that has come to its end is looked at only when something says so: that is this.
    """
    if isinstance(world.snapshots, Unreadable):
        return ()
    job = _facts(world)
    return tuple(s.meta.name for s in world.snapshots if s.status.in_use_by != uses(s, job))


def _facts(world: JobWorld) -> JobFacts:
    """The job, as its snapshots see it."""
    return JobFacts(world.meta, _running(world), world.status, newest=world.spec)


# -- retention ---------------------------------------------------------------------------------


def _surplus(
    world: JobWorld, snapshots: Sequence[SnapshotView], spec: JobSpec
) -> Iterator[DeleteObject]:
    job = _facts(world)
    for one in victims(snapshots, spec.savepoint.retain, world.now, lambda s: uses(s, job)):
        yield DeleteObject("StatefulSparkSnapshot", one.meta.name, one.meta.uid)


def _running(world: JobWorld) -> JobSpec | None:
    current = world.revisions.get(world.status.reconciliation.current_revision)
    return current.spec if current is not None else world.spec
