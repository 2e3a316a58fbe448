"""The volume with an executor's working databases, by `state.local.type`."""

from typing import Any

from moorage_api import LocalVolume, Quantity
from moorage_api.pods import LOCAL_DIR, LOCAL_VOLUME
from moorage_operator.children.names import labels
from moorage_operator.world import Meta

__all__ = ["local_mounts", "local_requests", "local_settings", "local_volumes"]

_CLAIM = f"spark.kubernetes.executor.volumes.persistentVolumeClaim.{LOCAL_VOLUME}"

_DEFAULT_SIZE = Quantity("10Gi")
"""Of a volume on the node's own disk: without a bound one job fills it for all."""


def local_volumes(meta: Meta, local: LocalVolume, attempt: int) -> list[dict[str, Any]]:
    """The volume as the executor's template carries it; none where Spark adds it (ReusedPVC)."""
    if local.type == "ReusedPVC":
        return []
    return [{"name": LOCAL_VOLUME, **_source(meta, local, attempt)}]


def local_mounts(local: LocalVolume, *, spark: bool) -> list[dict[str, Any]]:
    """Where a container has it.

    Args:
        local: the volume.
        spark: whether it is Spark's container: a claim of Spark's is mounted there by Spark.
    """
    if local.type == "ReusedPVC" and spark:
        return []
    return [{"name": LOCAL_VOLUME, "mountPath": LOCAL_DIR}]


def local_settings(local: LocalVolume) -> dict[str, str]:
    """Spark's settings for claims that outlive an executor and belong to the driver's pod.

    Without a storage class and a size Spark makes no claim at all; a manifest that lacks one is
    refused before.
    """
    if local.type != "ReusedPVC":
        return {}
    return {
        f"{_CLAIM}.mount.path": LOCAL_DIR,
        f"{_CLAIM}.mount.readOnly": "false",
        f"{_CLAIM}.options.claimName": "OnDemand",
        f"{_CLAIM}.options.sizeLimit": str(local.size),
        f"{_CLAIM}.options.storageClass": str(local.storage_class_name),
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "true",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "true",
    }


def local_requests(local: LocalVolume) -> dict[str, str]:
    """What the node must have room for, so that the scheduler does not fill its disk twice."""
    return {"ephemeral-storage": _size(local)} if local.type == "EmptyDir" else {}


def _size(local: LocalVolume) -> str:
    return str(local.size or _DEFAULT_SIZE)


def _source(meta: Meta, local: LocalVolume, attempt: int) -> dict[str, Any]:
    if local.type == "HostPath":
        # Not DirectoryOrCreate: a directory that the kubelet makes is root's, and no use to us.
        return {"hostPath": {"path": local.path, "type": "Directory"}}
    if local.type == "EphemeralPVC":
        return {"ephemeral": {"volumeClaimTemplate": _claim(meta, local, attempt)}}
    return {"emptyDir": {"sizeLimit": _size(local)}}


def _claim(meta: Meta, local: LocalVolume, attempt: int) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(local.size)}},
    }
    if local.storage_class_name:
        spec["storageClassName"] = local.storage_class_name
    return {"metadata": {"labels": labels(meta, "executor", attempt)}, "spec": spec}
