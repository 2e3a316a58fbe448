"""The API server's own ways: where each kind lies, how it writes JSON, what its refusals mean.

Pure, so that stand-ins for the server are judged by the same tables as the server itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage_api import API_VERSION
from moorage_operator.ports import (
    ApiUnavailable,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    Kind,
    NameTaken,
    NotFound,
)

MANAGER = "moorage-operator"
"""The field manager of everything that the operator applies."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Where a kind lives."""

    kind: str
    plural: str
    group: str = ""  # empty for the core group
    version: str = "v1"
    namespaced: bool = True
    status: bool = False  # it has a status subresource

    @property
    def api_version(self) -> str:
        """As objects write it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The path of its group and version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """The path of one object, or of all of them; of all namespaces if that is None."""
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        parts = [f"{self.root}{inside}/{self.plural}", name, subresource]
        return "/".join(part for part in parts if part)


_GROUP, _, _VERSION = API_VERSION.partition("/")

RESOURCES: dict[Kind, Resource] = {
    "StatefulSparkJob": Resource(
        "StatefulSparkJob", "statefulsparkjobs", _GROUP, _VERSION, status=True
    ),
    "StatefulSparkSnapshot": Resource(
        "StatefulSparkSnapshot", "statefulsparksnapshots", _GROUP, _VERSION, status=True
    ),
    "Pod": Resource("Pod", "pods", status=True),
    "Service": Resource("Service", "services", status=True),
    "ServiceAccount": Resource("ServiceAccount", "serviceaccounts"),
    "Secret": Resource("Secret", "secrets"),
    "ConfigMap": Resource("ConfigMap", "configmaps"),
    "PersistentVolumeClaim": Resource(
        "PersistentVolumeClaim", "persistentvolumeclaims", status=True
    ),
    "ControllerRevision": Resource("ControllerRevision", "controllerrevisions", "apps"),
    "Event": Resource("Event", "events"),
    "Lease": Resource("Lease", "leases", "coordination.k8s.io"),
    "Namespace": Resource("Namespace", "namespaces", namespaced=False, status=True),
    "Node": Resource("Node", "nodes", namespaced=False, status=True),
    "ResourceQuota": Resource("ResourceQuota", "resourcequotas"),
    "LimitRange": Resource("LimitRange", "limitranges"),
    "PriorityClass": Resource(
        "PriorityClass", "priorityclasses", "scheduling.k8s.io", namespaced=False
    ),
    "PodDisruptionBudget": Resource("PodDisruptionBudget", "poddisruptionbudgets", "policy"),
    "Ingress": Resource("Ingress", "ingresses", "networking.k8s.io"),
    "PodMonitor": Resource("PodMonitor", "podmonitors", "monitoring.coreos.com"),
}


def resource_of(kind: str) -> Resource:
    """Where this kind lives.

    Raises:
        LookupError: the operator has nothing to do with it.
    """
    try:
        return RESOURCES[kind]  # type: ignore[index]  # else KeyError
    except KeyError:
        raise LookupError(f"no such kind: kind={kind}; add it to RESOURCES") from None


_ESCAPES = str.maketrans(
    {
        "<": "\\u003c",
        ">": "\\u003e",
        "&": "\\u0026",
        "\u2028": "\\u2028",
        "\u2029": "\\u2029",
    }
)


def encoded(body: Any) -> bytes:
    """Compact, keys in order, `<`, `>`, `&` and line separators escaped, other text as it is."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return text.translate(_ESCAPES).encode()


_LONGEST = 512
_TERMINATING = "NamespaceTerminating"
_BUSY = (408, 429)


def cluster_error(
    code: int, status: Mapping[str, Any] | None, retry_after: float | None = None
) -> ClusterError:
    """The error for an HTTP status and the `Status` object in the body, if there was one.

    Args:
        status: the body, as far as it was a Status object.
        retry_after: seconds, from the header.
    """
    status = status or {}
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"the API server answered {code}")[:_LONGEST]
    details = status.get("details")
    if retry_after is None and isinstance(details, Mapping) and code in {*_BUSY, 503, 500}:
        seconds = details.get("retryAfterSeconds")
        retry_after = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None
    if code in _BUSY or code >= 500:
        return ApiUnavailable(message, reason, retry_after)
    if code in {404, 410}:
        return NotFound(message, reason)
    if code == 409:
        return (NameTaken if reason == "AlreadyExists" else Conflict)(message, reason)
    if code in {401, 403}:
        return Forbidden(message, _TERMINATING if _terminating(status) else reason)
    if code in {400, 413, 415, 422}:
        return Invalid(message, reason)
    return ClusterError(message, reason)


def _terminating(status: Mapping[str, Any]) -> bool:
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return isinstance(causes, list) and any(
        isinstance(cause, Mapping) and cause.get("reason") == _TERMINATING for cause in causes
    )
