"""What the pods of driver and executors have in common."""

from collections.abc import Iterator, Sequence
from typing import Any

from moorage_api import JobSpec
from moorage_api.pods import (
    CREDENTIAL_ENV,
    SCRAPE_DIR,
    SCRAPE_VOLUME,
    SPARK_UID,
    TLS_DIR,
    TLS_VOLUME,
    TOKEN_DIR,
    TOKEN_VOLUME,
)

__all__ = [
    "TLS_KEYS",
    "container_security",
    "environment",
    "pod_security",
    "scrape_mount",
    "scrape_volume",
    "tls_mounts",
    "tls_volumes",
    "token_mount",
    "token_volume",
]

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
