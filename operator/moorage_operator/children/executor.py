"""The template that Spark makes executors' pods from.

Spark adds to the container `executor`: image, CPU, memory, variables, argument and a stop hook. The
state server's container starts before it and ends after it.
"""

import json
from typing import Any

from moorage_api import JobSpec
from moorage_api.driver import TOKEN_FILE, certificate_name
from moorage_api.pods import (
    EXECUTOR_CONTAINER,
    LOCAL_DIR,
    SIDECAR_CONTAINER,
    SIDECAR_HEALTH_PORT,
    SIDECAR_PORT,
    TLS_DIR,
)
from moorage_api.sizing import sidecar_memory
from moorage_operator.children.merge import merged_pod
from moorage_operator.children.names import (
    REVISION_ANNOTATION,
    labels,
    token_secret_name,
)
from moorage_operator.children.parts import (
    container_security,
    environment,
    pod_security,
    tls_mounts,
    tls_volumes,
    token_mount,
    token_volume,
)
from moorage_operator.children.secrets import SPARK_SECRET_KEY
from moorage_operator.children.volumes import local_mounts, local_requests, local_volumes
from moorage_operator.world import Meta

__all__ = ["executor_template"]

_UPLOAD_SECONDS = 40
# Spark's stop hook hands over shuffle files first; only then the sidecar is told to end.
_HOOK_SECONDS = 45
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
            "containers": [_executor(spec, token_secret_name(meta.name, attempt))],
            "volumes": [
                # No more than what opens state servers: an executor gives the driver no orders.
                token_volume(token_secret_name(meta.name, attempt), ("token",)),
                *tls_volumes(spec),
                *local_volumes(meta, spec.state.local, attempt),
            ],
        },
    }
    return merged_pod(ours, spec.executor.pod_template)


def _spark_secret(secret: str) -> dict[str, Any]:
    reference = {"name": secret, "key": SPARK_SECRET_KEY}
    return {"name": "_SPARK_AUTH_SECRET", "valueFrom": {"secretKeyRef": reference}}


def _executor(spec: JobSpec, secret: str) -> dict[str, Any]:
    return {
        "name": EXECUTOR_CONTAINER,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "env": [*environment(spec), _spark_secret(secret)],
        "securityContext": container_security(),
        "volumeMounts": [
            token_mount(),
            *tls_mounts(spec),
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
        "env": environment(spec),
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
            *local_mounts(spec.state.local, spark=False),
        ],
    }


def _sidecar_command(meta: Meta, spec: JobSpec) -> list[str]:
    options = {
        "--dir": LOCAL_DIR,
        "--servers": str(spec.executor.cores),
        "--port": str(SIDECAR_PORT),
        "--token-file": TOKEN_FILE,
        "--memory": str(sidecar_memory(spec.executor).databases),
        "--grace": str(_UPLOAD_SECONDS),
    }
    if spec.state.backend not in ("rocksdb", "batch"):
        options["--backend"] = spec.state.backend
    if spec.state.options:
        options["--state-options"] = json.dumps(dict(sorted(spec.state.options.items())))
    if spec.tls_secret:
        options["--tls-dir"] = TLS_DIR
        options["--tls-name"] = certificate_name(meta.name, meta.namespace)
    words = [word for option in options.items() for word in option]
    return ["tini", "-s", "--", "python", "-m", "moorage_state.server.sidecar", *words]


def _sidecar_resources(spec: JobSpec) -> dict[str, dict[str, str]]:
    """What the spec says; else a share of a core and half a gigabyte for each server.

    The databases are this container's, so that their room on the node's disk is its request.
    """
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
