"""The kinds that the operator touches, and where the API server has them."""

from dataclasses import dataclass

from moorage_operator.ports import Kind

__all__ = ["MANAGER", "RESOURCES", "Resource", "resource_of"]

MANAGER = "moorage-operator"
"""The field manager of everything that the operator applies."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Where a kind lives.

    Attributes:
        group: empty for the core group.
        status: it has a status subresource.
    """

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    status: bool = False

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


RESOURCES: dict[Kind, Resource] = {
    "StatefulSparkJob": Resource(
        "StatefulSparkJob", "statefulsparkjobs", "moorage.dev", "v1alpha1", status=True
    ),
    "StatefulSparkSnapshot": Resource(
        "StatefulSparkSnapshot", "statefulsparksnapshots", "moorage.dev", "v1alpha1", status=True
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
