"""How the data of a snapshot are reached, with its job or without. Pure."""

from moorage_api import JobSpec
from moorage_api.snapshot import StoreAccess
from moorage_operator.ports import JobRefs
from moorage_operator.world import Meta, SnapshotWorld

__all__ = ["access_of", "errand_refs"]


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


def errand_refs(world: SnapshotWorld) -> JobRefs | None:
    """In whose name errands for this snapshot run: its job's, else as the snapshot remembers.

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
