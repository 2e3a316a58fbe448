"""Which periodic savepoints may go. Pure; what asks for their deletion is the caller's.

Deleting the object deletes the data first: the object's finalizer stays until they are gone.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from moorage_api.state import SavepointRetention
from moorage_operator.snapshots.naming import is_periodic, order
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

    Of the completed periodic savepoints the newest `retain.count` stay that are younger than
    `retain.max_age`; of the periodic ones that came to nothing, as many. Never returned are those
    that a person or an operation asked for, that are pinned, in use, still under way or being
    deleted already, and the newest completed one, however old.

    Args:
        snapshots: all of one job.
        retain: the policy.
        now: the time.
        in_use: names of the objects that something needs.
    """
    periodic = [s for s in snapshots if is_periodic(s) and s.meta.deleted_at is None]
    completed = sorted((s for s in periodic if s.status.state == "Completed"), key=_completed)
    failed = sorted((s for s in periodic if s.status.state in ("Failed", "Abandoned")), key=order)
    oldest = now - retain.max_age.timedelta
    surplus = [s for s in completed[:-1] if _completed(s)[0] < oldest]
    surplus += completed[: -retain.count]
    surplus += [s for s in failed if order(s)[0] < oldest] + failed[: -retain.count]
    unique = {s.meta.name: s for s in surplus if not s.spec.pinned and s.meta.name not in in_use}
    return tuple(sorted(unique.values(), key=order))


def _completed(snapshot: SnapshotView) -> tuple[datetime, str]:
    at = snapshot.status.completed_at or snapshot.meta.created_at or _LONG_AGO
    return at, snapshot.meta.name
