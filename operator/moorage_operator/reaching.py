"""Which store matters to a job now, and how it is reached. Pure."""

from datetime import datetime

from moorage_api import JobSpec
from moorage_operator.needs import current_driver
from moorage_operator.ports import JobRefs
from moorage_operator.world import JobWorld

__all__ = ["last_end", "store_refs"]

_BEFORE_THE_END = ("Preflight", "Snapshotting", "Stopping")


def store_refs(world: JobWorld) -> JobRefs | None:
    """What reaching the store that matters now takes; None without any spec.

    What an attempt left is where its own revision says, whatever was written since; a start that is
    under way, or is asked for by a new nonce, looks where it leads. Where both are one directory,
    the newest good spec says how it is reached. Where no job may be, only what ran there before
    that rule is reached: a pod goes there, of an image and an account that the spec names.
    """
    newest = world.spec if world.spec is not None and not world.problems else None
    place = _place(world, newest)
    if place is None and world.meta.namespace != world.config.own_namespace:
        place = world.spec
    if place is None:
        return None
    same = newest is not None and _directory(newest) == _directory(place)
    return JobRefs(world.meta, newest if newest is not None and same else place)


def _place(world: JobWorld, newest: JobSpec | None) -> JobSpec | None:
    status, operation = world.status, world.status.operation
    left = _spec_of(world, status.attempt.revision)
    if left is None:
        left = _spec_of(world, status.reconciliation.current_revision)
    if left is None or world.meta.deleted_at is not None:
        return left or newest
    if operation is not None:
        leads = operation.step not in _BEFORE_THE_END
        return _spec_of(world, operation.target_revision) or left if leads else left
    anew = newest is not None and newest.restore.nonce > status.reconciliation.restore_nonce
    return newest if anew else left


def _spec_of(world: JobWorld, revision: str) -> JobSpec | None:
    found = world.revisions.get(revision)
    return found.spec if found is not None else None


def _directory(spec: JobSpec) -> tuple[str, str | None]:
    return spec.state.checkpoint_dir, spec.state.s3.endpoint


def last_end(world: JobWorld) -> datetime | None:
    """When the lineage's last writer ended: what was read of the store before may lack its end.

    By this clock, on which readings are timed as well: an end that was not seen before is now.
    """
    pod, attempt = current_driver(world), world.status.attempt
    fresh = pod is not None and pod.ended is not None and not attempt.outcome
    ended = world.now if fresh else attempt.ended_at
    return ended.replace(microsecond=0) if ended is not None else None
