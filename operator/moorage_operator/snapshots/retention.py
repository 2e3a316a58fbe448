"""Which savepoints that no person asked for may go. Pure; deleting them is the caller's.

Deleting the object deletes the data first: the object's finalizer stays until they are gone.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime

from moorage_api.state import SavepointRetention
from moorage_operator.snapshots.naming import is_imported, order, trigger_of
from moorage_operator.world import SnapshotView

__all__ = ["victims"]

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def victims(
    snapshots: Sequence[SnapshotView],
    retain: SavepointRetention,
    now: datetime,
    in_use: Collection[str],
) -> tuple[SnapshotView, ...]:
    """Return the snapshots whose objects to delete, oldest first.

    Of the completed savepoints of the schedule, and apart from them of those of upgrades, the
    newest `retain.count` stay that are younger than `retain.max_age`; of those that came to
    nothing, as many. Never returned are those that a person asked for or that a deleted job left,
    that are pinned, in use, still under way or being deleted already, and the newest completed one
    of each sort, however old.

    Args:
        snapshots: all of one job.
        retain: the policy.
        now: the time.
        in_use: names of the objects that something needs.
    """
    found: dict[str, SnapshotView] = {}
    for trigger in ("Periodic", "Upgrade"):
        same = [s for s in snapshots if trigger_of(s) == trigger and not is_imported(s)]
        alive = [s for s in same if s.meta.deleted_at is None]
        found |= {s.meta.name: s for s in _surplus(alive, retain, now)}
    free = (s for s in found.values() if not s.spec.pinned and s.meta.name not in in_use)
    return tuple(sorted(free, key=order))


def _surplus(
    snapshots: Sequence[SnapshotView], retain: SavepointRetention, now: datetime
) -> Iterator[SnapshotView]:
    completed = sorted((s for s in snapshots if s.status.state == "Completed"), key=_completed)
    failed = sorted((s for s in snapshots if s.status.state in ("Failed", "Abandoned")), key=order)
    oldest = now - retain.max_age.timedelta
    yield from (s for s in completed[:-1] if _completed(s)[0] < oldest)
    yield from completed[: -retain.count]
    yield from (s for s in failed if order(s)[0] < oldest)
    yield from failed[: -retain.count]


def _completed(snapshot: SnapshotView) -> tuple[datetime, str]:
    at = snapshot.status.completed_at or snapshot.meta.created_at or _LONG_AGO
    return at, snapshot.meta.name
