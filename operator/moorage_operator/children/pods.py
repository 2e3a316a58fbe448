"""The driver's pod, and the template that Spark makes executors' pods from.

Spark adds to the container `executor`: image, CPU, memory, variables, argument and a stop hook. The
state server's container starts before it and ends after it. The volume with an executor's working
databases goes by `state.local.type`.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from moorage_api import JobSpec, LocalVolume
from moorage_api.driver import (
    CONFIG_DIR,
    ENDPOINT_PORT,
    HEALTH_PATH,
    TOKEN_FILE,
    StartOrder,
    certificate_name,
)
from moorage_api.reserved import (
    BLOCK_MANAGER_PORT,
    CONFIG_VOLUME,
    CREDENTIAL_ENV,
    CREDENTIALS_DIR,
    CREDENTIALS_DIR_ENV,
    CREDENTIALS_VOLUME,
    DRIVER_CONTAINER,
    DRIVER_PORT,
    EXECUTOR_CONTAINER,
    LOCAL_DIR,
    LOCAL_VOLUME,
    SCRAPE_DIR,
    SCRAPE_VOLUME,
    SIDECAR_CONTAINER,
    SIDECAR_HEALTH_PORT,
    SIDECAR_PORT,
    SPARK_UID,
    TLS_DIR,
    TLS_VOLUME,
    TOKEN_DIR,
    TOKEN_VOLUME,
)
from moorage_api.sizing import driver_memory, empty_dir_size, executor_memory, sidecar_memory
from moorage_operator.children.names import (
    REVISION_ANNOTATION,
    STANDBY_ANNOTATION,
    application_id,
    config_map_name,
    driver_pod_name,
    executor_prefix,
    labels,
    owner_reference,
    scrape_secret_name,
    token_secret_name,
)
from moorage_operator.children.pod_template import merged_pod
from moorage_operator.children.secrets import SPARK_SECRET_KEY
from moorage_operator.world import Meta

TLS_KEYS = ("ca.crt", "tls.crt", "tls.key")

_DOWNWARD = {
    "MOORAGE_NAMESPACE": "metadata.namespace",
    "MOORAGE_POD_IP": "status.podIP",
    "MOORAGE_POD_NAME": "metadata.name",
    "MOORAGE_POD_UID": "metadata.uid",
}


def environment(spec: JobSpec) -> list[dict[str, Any]]:
    """What every container of a job gets: where it is, credentials, the application's variables.

    In this order, so that the application's may refer to ours as $(MOORAGE_POD_IP).
    """
    return list(_environment(spec))


def _environment(spec: JobSpec) -> Iterator[dict[str, Any]]:
    for name, path in _DOWNWARD.items():
        yield {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
    secret = spec.state.credentials_secret_ref
    if secret is not None:
        for name in CREDENTIAL_ENV:
            reference: dict[str, Any] = {"name": secret.name, "key": name}
            if name == "AWS_SESSION_TOKEN":
                reference["optional"] = True
            yield {"name": name, "valueFrom": {"secretKeyRef": reference}}
    for variable in spec.application.env:
        if variable.value_from is not None:
            yield {"name": variable.name, "valueFrom": dict(variable.value_from)}
        else:
            yield {"name": variable.name, "value": variable.value or ""}


def pod_security() -> dict[str, Any]:
    """No root, and volumes that the group of the containers may write."""
    return {
        "runAsNonRoot": True,
        "runAsUser": SPARK_UID,
        "runAsGroup": SPARK_UID,
        "fsGroup": SPARK_UID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Nothing that a job needs is taken away by it."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def token_volume(secret: str, keys: Sequence[str]) -> dict[str, Any]:
    """These keys of the attempt's Secret, readable by owner and group."""
    return {
        "name": TOKEN_VOLUME,
        "secret": {
            "secretName": secret,
            "items": [{"key": key, "path": key} for key in keys],
            "defaultMode": 0o440,
        },
    }


def token_mount() -> dict[str, Any]:
    """Where it lies."""
    return {"name": TOKEN_VOLUME, "mountPath": TOKEN_DIR, "readOnly": True}


def scrape_volume(secret: str) -> dict[str, Any]:
    """The Secret with the token that only reads; a driver starts without it, too."""
    return {
        "name": SCRAPE_VOLUME,
        "secret": {
            "secretName": secret,
            "items": [{"key": "token", "path": "token"}],
            "defaultMode": 0o440,
            "optional": True,
        },
    }


def scrape_mount() -> dict[str, Any]:
    """Where it lies. The whole volume, so that a change of the Secret arrives."""
    return {"name": SCRAPE_VOLUME, "mountPath": SCRAPE_DIR, "readOnly": True}


def tls_volumes(spec: JobSpec) -> list[dict[str, Any]]:
    """The Secret with the job's certificate, where there is one."""
    if not spec.tls_secret:
        return []
    items = [{"key": key, "path": key} for key in TLS_KEYS]
    secret = {"secretName": spec.tls_secret, "items": items, "defaultMode": 0o440}
    return [{"name": TLS_VOLUME, "secret": secret}]


def tls_mounts(spec: JobSpec) -> list[dict[str, Any]]:
    """Where it lies. The whole volume, so that a renewed certificate arrives."""
    if not spec.tls_secret:
        return []
    return [{"name": TLS_VOLUME, "mountPath": TLS_DIR, "readOnly": True}]


def credential_volumes(spec: JobSpec) -> list[dict[str, Any]]:
    """The keys of a store once more, as files: those in variables stay as a pod began.

    What the Secret lacks holds up no volume: the variables say it, and their error is plainer.
    """
    secret = spec.state.credentials_secret_ref
    if secret is None:
        return []
    items = [{"key": key, "path": key} for key in CREDENTIAL_ENV]
    sources = [
        {"secret": {"name": secret.name, "items": [item], "optional": True}} for item in items
    ]
    return [{"name": CREDENTIALS_VOLUME, "projected": {"sources": sources, "defaultMode": 0o440}}]


def credential_mounts(spec: JobSpec) -> list[dict[str, Any]]:
    """Where they lie. The whole volume, so that a change of the Secret arrives."""
    if spec.state.credentials_secret_ref is None:
        return []
    return [{"name": CREDENTIALS_VOLUME, "mountPath": CREDENTIALS_DIR, "readOnly": True}]


def _mounted_environment(spec: JobSpec) -> list[dict[str, Any]]:
    """`environment`, and where the keys of the store lie as files."""
    mounted = [
        {"name": CREDENTIALS_DIR_ENV, "value": mount["mountPath"]}
        for mount in credential_mounts(spec)
    ]
    return [*environment(spec), *mounted]


_CLAIM = f"spark.kubernetes.executor.volumes.persistentVolumeClaim.{LOCAL_VOLUME}"


def local_volumes(meta: Meta, local: LocalVolume, attempt: int) -> list[dict[str, Any]]:
    """The volume as the executor's template carries it; none where Spark adds it (ReusedPVC)."""
    if local.type == "ReusedPVC":
        return []
    return [{"name": LOCAL_VOLUME, **_source(meta, local, attempt)}]


def local_mounts(local: LocalVolume, *, spark: bool) -> list[dict[str, Any]]:
    """Where a container has it.

    Args:
        spark: whether it is Spark's container: a claim of Spark's is mounted there by Spark.
    """
    if local.type == "ReusedPVC" and spark:
        return []
    return [{"name": LOCAL_VOLUME, "mountPath": LOCAL_DIR}]


def local_settings(meta: Meta, local: LocalVolume, attempt: int) -> dict[str, str]:
    """Spark's settings for claims that outlive an executor; see `moorage_operator.volumes`.

    Without a storage class and a size Spark makes no claim at all; a manifest that lacks one is
    refused before.
    """
    if local.type != "ReusedPVC":
        return {}
    return {
        **{f"{_CLAIM}.label.{name}": value for name, value in labels(meta).items()},
        "spark.app.id": application_id(meta.uid, attempt),
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
    return {"ephemeral-storage": str(empty_dir_size(local))} if local.type == "EmptyDir" else {}


def _source(meta: Meta, local: LocalVolume, attempt: int) -> dict[str, Any]:
    if local.type == "HostPath":
        # Not DirectoryOrCreate: a directory that the kubelet makes is root's, and no use to us.
        return {"hostPath": {"path": local.path, "type": "Directory"}}
    if local.type == "EphemeralPVC":
        return {"ephemeral": {"volumeClaimTemplate": _claim(meta, local, attempt)}}
    return {"emptyDir": {"sizeLimit": str(empty_dir_size(local))}}


def _claim(meta: Meta, local: LocalVolume, attempt: int) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(local.size)}},
    }
    if local.storage_class_name:
        spec["storageClassName"] = local.storage_class_name
    return {"metadata": {"labels": labels(meta, "executor", attempt)}, "spec": spec}


_COMMAND = ("tini", "-s", "--", "python", "-m", "moorage.cluster")
# After the last checkpoint the driver still writes its end and stops Spark.
_AFTER_GRACE_SECONDS = 10


def driver_pod(meta: Meta, spec: JobSpec, revision: str, order: StartOrder) -> dict[str, Any]:
    """Return the pod of one attempt; it never restarts, the next attempt is another pod."""
    ours: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": driver_pod_name(meta.name, order.attempt),
            "namespace": meta.namespace,
            "labels": labels(meta, "driver", order.attempt),
            "annotations": {
                REVISION_ANNOTATION: revision,
                **({STANDBY_ANNOTATION: "true"} if order.standby else {}),
            },
            "ownerReferences": [owner_reference(meta)],
        },
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": spec.service_account_name,
            # Spark makes the executors with the account's token.
            "automountServiceAccountToken": True,
            # A variable for every Service of the namespace: SPARK_DRIVER_PORT from one "spark-".
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": math.ceil(order.grace_seconds) + _AFTER_GRACE_SECONDS,
            "securityContext": pod_security(),
            "containers": [_driver_container(spec)],
            "volumes": [
                {
                    "name": CONFIG_VOLUME,
                    "configMap": {
                        "name": config_map_name(meta.name, order.attempt),
                        "defaultMode": 0o444,
                    },
                },
                token_volume(
                    token_secret_name(meta.name, order.attempt), ("control", "spark-file", "token")
                ),
                scrape_volume(scrape_secret_name(meta.name)),
                *tls_volumes(spec),
                *credential_volumes(spec),
            ],
        },
    }
    pod = merged_pod(ours, spec.driver.pod_template)
    pod["spec"]["automountServiceAccountToken"] = True
    return pod


def _driver_container(spec: JobSpec) -> dict[str, Any]:
    memory = f"{driver_memory(spec.driver).total}Mi"
    return {
        "name": DRIVER_CONTAINER,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": list(_COMMAND),
        "env": _mounted_environment(spec),
        "ports": [
            {"name": "endpoint", "containerPort": ENDPOINT_PORT, "protocol": "TCP"},
            {"name": "driver-rpc", "containerPort": DRIVER_PORT, "protocol": "TCP"},
            {"name": "blockmanager", "containerPort": BLOCK_MANAGER_PORT, "protocol": "TCP"},
        ],
        # Each second: Spark makes no executors until it has waited a second for its driver's pod to
        # be ready, or the pod is. The endpoint listens some seconds before Spark looks.
        "readinessProbe": {
            "httpGet": {"path": HEALTH_PATH, "port": ENDPOINT_PORT, "scheme": _scheme(spec)},
            "periodSeconds": 1,
            "timeoutSeconds": 3,
            "failureThreshold": 15,
        },
        "resources": {
            "requests": {
                "cpu": str(spec.driver.cpu_request or spec.driver.cores),
                "memory": memory,
            },
            "limits": {"memory": memory},
        },
        "securityContext": container_security(),
        "terminationMessagePath": "/dev/termination-log",
        # The end is what the driver writes there; the log's tail would be read as garbage.
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            {"name": CONFIG_VOLUME, "mountPath": CONFIG_DIR, "readOnly": True},
            token_mount(),
            scrape_mount(),
            *tls_mounts(spec),
            *credential_mounts(spec),
        ],
    }


def _scheme(spec: JobSpec) -> str:
    return "HTTPS" if spec.tls_secret else "HTTP"


_UPLOAD_SECONDS = 30
# Spark's stop hook (decom.sh) asks whether the driver ends too, and hands over shuffle files; only
# then the sidecar is told to end.
_HOOK_SECONDS = 35
# No longer than a driver's: see StartOrder.grace_seconds.
_GRACE_SECONDS = _HOOK_SECONDS + _UPLOAD_SECONDS + 5
_MILLICORES_PER_SERVER = 100


def executor_template(meta: Meta, spec: JobSpec, revision: str, attempt: int) -> dict[str, Any]:
    """Return the pod template of an attempt's executors."""
    ours: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": labels(meta, "executor", attempt),
            "annotations": {REVISION_ANNOTATION: revision},
        },
        "spec": {
            "serviceAccountName": spec.service_account_name,
            # Executors ask nothing of the API server.
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "securityContext": pod_security(),
            "initContainers": [_sidecar(meta, spec)],
            "containers": [_executor_container(spec, token_secret_name(meta.name, attempt))],
            "volumes": [
                # No more than what opens state servers: an executor gives the driver no orders.
                token_volume(token_secret_name(meta.name, attempt), ("token",)),
                *tls_volumes(spec),
                *credential_volumes(spec),
                *local_volumes(meta, spec.state.local, attempt),
            ],
        },
    }
    return merged_pod(ours, spec.executor.pod_template)


_LIMIT_CORES = "spark.kubernetes.executor.limit.cores"


def executor_pod(meta: Meta, spec: JobSpec, revision: str, attempt: int) -> dict[str, Any]:
    """An executor's pod, about as Spark makes it of the template; to be tried, never to be run."""
    pod = executor_template(meta, spec, revision, attempt)
    pod["metadata"] |= {
        "name": f"{executor_prefix(meta.name, attempt)}-exec-1",
        "namespace": meta.namespace,
    }
    pod["spec"]["restartPolicy"] = "Never"
    main = next(one for one in pod["spec"]["containers"] if one["name"] == EXECUTOR_CONTAINER)
    memory = f"{executor_memory(spec.executor).total}Mi"
    given = main.get("resources") or {}
    cpu = str(spec.executor.cpu_request or spec.executor.cores)
    most = spec.spark_conf.get(_LIMIT_CORES)
    main["args"] = ["executor"]
    main["resources"] = {
        **given,
        "requests": {**(given.get("requests") or {}), "cpu": cpu, "memory": memory},
        "limits": {
            **(given.get("limits") or {}),
            **({"cpu": str(most)} if most is not None else {}),
            "memory": memory,
        },
    }
    return pod


def _spark_secret(secret: str) -> dict[str, Any]:
    reference = {"name": secret, "key": SPARK_SECRET_KEY}
    return {"name": "_SPARK_AUTH_SECRET", "valueFrom": {"secretKeyRef": reference}}


def _executor_container(spec: JobSpec, secret: str) -> dict[str, Any]:
    return {
        "name": EXECUTOR_CONTAINER,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "env": [*_mounted_environment(spec), _spark_secret(secret)],
        "securityContext": container_security(),
        "volumeMounts": [
            token_mount(),
            *tls_mounts(spec),
            *credential_mounts(spec),
            *local_mounts(spec.state.local, spark=True),
        ],
    }


def _sidecar(meta: Meta, spec: JobSpec) -> dict[str, Any]:
    health = {"path": "/healthz", "port": SIDECAR_HEALTH_PORT, "scheme": "HTTP"}
    return {
        "name": SIDECAR_CONTAINER,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "restartPolicy": "Always",
        "command": _sidecar_command(meta, spec),
        "env": _mounted_environment(spec),
        "ports": [
            {"name": "state-health", "containerPort": SIDECAR_HEALTH_PORT, "protocol": "TCP"},
            {"name": "state", "containerPort": SIDECAR_PORT, "protocol": "TCP"},
        ],
        # Spark's container waits for it: ten minutes, as it ends by itself where it cannot start,
        # and one that is only slow gives its servers more time from try to try.
        "startupProbe": {"httpGet": health, "periodSeconds": 1, "failureThreshold": 600},
        "livenessProbe": {
            "httpGet": health,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "resources": _sidecar_resources(spec),
        "securityContext": container_security(),
        "volumeMounts": [
            token_mount(),
            *tls_mounts(spec),
            *credential_mounts(spec),
            *local_mounts(spec.state.local, spark=False),
        ],
    }


def _sidecar_command(meta: Meta, spec: JobSpec) -> list[str]:
    options = {
        "--dir": LOCAL_DIR,
        "--job": f"{meta.namespace}/{meta.name}",
        "--servers": str(spec.executor.cores),
        "--port": str(SIDECAR_PORT),
        "--token-file": TOKEN_FILE,
        "--memory": str(sidecar_memory(spec.executor).databases),
        "--grace": str(_UPLOAD_SECONDS),
    }
    # State servers of a batch job are never asked for state, and are RocksDB's.
    if spec.state.effective_backend not in ("rocksdb", "batch"):
        options["--backend"] = spec.state.effective_backend
    if spec.state.options:
        options["--state-options"] = json.dumps(dict(sorted(spec.state.options.items())))
    if spec.tls_secret:
        options["--tls-dir"] = TLS_DIR
        options["--tls-name"] = certificate_name(meta.name, meta.namespace)
    words = [word for option in options.items() for word in option]
    if spec.state.names_own_backend:
        # Where the driver looks for it: beside the job file, and in what the job brings.
        application = spec.application
        folder = PurePosixPath(application.main_file.removeprefix("local://")).parent
        names = [str(folder), *application.import_paths]
        words += [word for name in names for word in ("--code", name)]
    return ["tini", "-s", "--", "python", "-m", "moorage_state.server.sidecar", *words]


def _sidecar_resources(spec: JobSpec) -> dict[str, dict[str, str]]:
    """What the spec says; else a share of a core and half a gigabyte for each server."""
    # The databases are this container's, so that their room on the node's disk is its request.
    given, limit = spec.executor.sidecar.resources, sidecar_memory(spec.executor).limit
    cpu = f"{spec.executor.cores * _MILLICORES_PER_SERVER}m"
    asked: dict[str, str] = {name: str(amount) for name, amount in given.requests.items()}
    bounds: dict[str, str] = {name: str(amount) for name, amount in given.limits.items()}
    if "cpu" in bounds:
        cpu = bounds["cpu"]
    return {
        "requests": {
            "cpu": cpu,
            "memory": f"{limit}Mi",
            **local_requests(spec.state.local),
            **asked,
        },
        "limits": {"memory": f"{limit}Mi", **bounds},
    }
