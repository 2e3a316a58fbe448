"""A try that came to nothing: another one, or the end. Pure."""

from datetime import timedelta

from moorage_operator.plan import Event
from moorage_operator.snapshots.naming import attempt_of, request_id
from moorage_operator.snapshots.step import Step, changed, event_name, failed
from moorage_operator.world import SnapshotWorld

__all__ = ["pause", "void"]

_FIRST = 10.0
_LONGEST = 40.0


def pause(tries: int, longest: float = _LONGEST) -> timedelta:
    """How long to wait after so many tries: 10, 20, 40 seconds and so on."""
    return timedelta(seconds=min(_FIRST * 2.0 ** min(max(tries - 1, 0), 20), longest))


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
