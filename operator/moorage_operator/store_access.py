"""Which store matters to a job or a snapshot now, and how it is reached. Pure."""

from datetime import datetime

from moorage_api import JobSpec
from moorage_api.snapshot import StoreAccess
from moorage_operator.ports import JobRefs
from moorage_operator.world import JobWorld, Meta, SnapshotWorld

_BEFORE_THE_END = ("Preflight", "Standby", "Snapshotting", "Stopping")


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
    pod, attempt = world.current_driver, world.status.attempt
    fresh = pod is not None and pod.ended is not None and not attempt.outcome
    ended = world.now if fresh else attempt.ended_at
    return ended.replace(microsecond=0) if ended is not None else None


def access_of(spec: JobSpec) -> StoreAccess:
    """What a snapshot keeps of its job's spec, so that its data can be deleted without the job."""
    secret = spec.state.credentials_secret_ref
    return StoreAccess(
        image=spec.image or "",
        service_account_name=spec.service_account_name,
        credentials_secret=secret.name if secret else "",
        endpoint=spec.state.s3.endpoint or "",
        region=spec.state.s3.region or "",
        path_style=spec.state.s3.path_style,
    )


def store_task_refs(world: SnapshotWorld) -> JobRefs | None:
    """In whose name store tasks for this snapshot run: its job's, else as the snapshot remembers.

    None if neither is known. A job that is gone has an empty uid, so that nothing is owned by it.
    Beside the operator, where a pod may have its rights, only a job that ran there before that was
    refused lends its name.
    """
    job = world.job
    if _is_beside_operator(world) and (job is None or job.status.attempt.number == 0):
        return None
    if job is not None and (job.spec or job.newest) is not None:
        spec = job.spec or job.newest
        return JobRefs(job.meta, spec) if spec is not None else None
    access = world.snapshot.status.access
    if access is None:
        return None
    meta = world.snapshot.meta
    name = world.snapshot.spec.job_ref.name
    gone = Meta(name, meta.namespace, "", 0, "")
    try:
        return JobRefs(gone, _remembered(access))
    except ValueError:
        # Somebody wrote it by hand: nothing is reached by that.
        return None


def _is_beside_operator(world: SnapshotWorld) -> bool:
    return world.snapshot.meta.namespace == world.config.own_namespace


def _remembered(access: StoreAccess) -> JobSpec:
    """A spec that says how to reach the store, and nothing else that matters."""
    secret = access.credentials_secret
    return JobSpec.model_validate(
        {
            "image": access.image or None,
            "serviceAccountName": access.service_account_name or "default",
            "application": {"mainFile": "local:///none.py"},
            "scaling": {"parallelism": 1},
            "state": {
                "checkpointDir": "s3://none/none",
                "credentialsSecretRef": {"name": secret} if secret else None,
                "s3": {
                    "endpoint": access.endpoint or None,
                    "region": access.region or None,
                    "pathStyle": access.path_style,
                },
            },
            "upgrade": {"mode": "LastCheckpoint"},
        }
    )
