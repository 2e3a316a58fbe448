"""Makes the scene of a pass of what was observed and decided. Pure; called by the loop alone."""

from moorage_operator.objects import meta_of
from moorage_operator.plan import Plan, SaveRevision
from moorage_operator.ports import Object
from moorage_operator.reaching import store_refs
from moorage_operator.scene import Scene
from moorage_operator.snapshots.access import errand_refs
from moorage_operator.world import JobWorld, Revision, SnapshotWorld

__all__ = ["job_scene", "snapshot_scene"]


def job_scene(body: Object, world: JobWorld, plan: Plan) -> Scene:
    """Revisions that the plan saves first can be started from in the same pass."""
    meta = meta_of(body)
    revisions = dict(world.revisions)
    for effect in plan.effects:
        if isinstance(effect, SaveRevision) and world.spec is not None:
            saved = Revision(effect.name, effect.number, effect.spec_hash, world.spec)
            revisions.setdefault(effect.name, saved)
    return Scene("StatefulSparkJob", body, meta, meta, world.spec, store_refs(world), revisions)


def snapshot_scene(body: Object, world: SnapshotWorld) -> Scene:
    """The snapshot's, with what is known of its job."""
    job = world.job
    spec = job.spec if job is not None else None
    job_meta = job.meta if job is not None else None
    refs = errand_refs(world)
    return Scene("StatefulSparkSnapshot", body, meta_of(body), job_meta, spec, refs)
