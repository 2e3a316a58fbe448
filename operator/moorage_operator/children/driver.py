"""The driver's pod."""

import math
from typing import Any

from moorage_api import JobSpec
from moorage_api.driver import CONFIG_DIR, ENDPOINT_PORT, HEALTH_PATH, StartOrder
from moorage_api.pods import BLOCK_MANAGER_PORT, CONFIG_VOLUME, DRIVER_CONTAINER, DRIVER_PORT
from moorage_api.sizing import driver_memory
from moorage_operator.children.merge import merged_pod
from moorage_operator.children.names import (
    REVISION_ANNOTATION,
    config_map_name,
    driver_pod_name,
    labels,
    owner_reference,
    scrape_secret_name,
    token_secret_name,
)
from moorage_operator.children.parts import (
    container_security,
    environment,
    pod_security,
    scrape_mount,
    scrape_volume,
    tls_mounts,
    tls_volumes,
    token_mount,
    token_volume,
)
from moorage_operator.world import Meta

__all__ = ["driver_pod"]

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
            "annotations": {REVISION_ANNOTATION: revision},
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
            "containers": [_container(spec)],
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
            ],
        },
    }
    pod = merged_pod(ours, spec.driver.pod_template)
    pod["spec"]["automountServiceAccountToken"] = True
    return pod


def _container(spec: JobSpec) -> dict[str, Any]:
    memory = f"{driver_memory(spec.driver).total}Mi"
    return {
        "name": DRIVER_CONTAINER,
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": list(_COMMAND),
        "env": environment(spec),
        "ports": [
            {"name": "endpoint", "containerPort": ENDPOINT_PORT, "protocol": "TCP"},
            {"name": "driver-rpc", "containerPort": DRIVER_PORT, "protocol": "TCP"},
            {"name": "blockmanager", "containerPort": BLOCK_MANAGER_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {
            "httpGet": {"path": HEALTH_PATH, "port": ENDPOINT_PORT, "scheme": _scheme(spec)},
            "periodSeconds": 5,
            "timeoutSeconds": 3,
            "failureThreshold": 3,
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
        ],
    }


def _scheme(spec: JobSpec) -> str:
    return "HTTPS" if spec.tls_secret else "HTTP"
