"""Where a world's API server is: in memory, or a real one of which it has a namespace to itself."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from moorage_testing.kube import ApiRefusal, ApiStore, CrashPoints, MemoryCluster
from moorage_testing.kube.remote import RemoteApi, RemotePort, Stamps
from moorage_testing.kube.servers import Real

__all__ = ["MemorySite", "RealSite", "Site"]

_OPERATORS = "/apis/apps/v1/deployments?labelSelector=app.kubernetes.io/name%3Dmoorage-operator"
_WATCHED = "MOORAGE_WATCH_NAMESPACES"


class MemorySite:
    """The server in memory.

    Attributes:
        namespace: where all objects of the world are.
        prefix: of the names of its nodes.
        real: whether its controllers, rules and refusals are a cluster's.
    """

    namespace = "default"
    prefix = ""
    real = False

    def __init__(self) -> None:
        self.api: Any = None

    def begin(self, now: Callable[[], datetime]) -> Any:
        """The server, on the clock of the world."""
        self.api = ApiStore(now=now)
        return self.api

    def client(self, points: CrashPoints) -> Any:
        """The `Cluster` port of one operator."""
        return MemoryCluster(self.api, points=points)


class RealSite(MemorySite):
    """A namespace of a real server. Open it in the loop that uses it, and close it there."""

    real = True

    def __init__(self, server: Any, namespace: str, file: str, context: str | None) -> None:
        super().__init__()
        self._server = server
        self._file, self._context = file, context
        self.namespace = namespace
        self.prefix = f"{namespace}-"

    @classmethod
    async def open(cls, file: str, context: str | None) -> "RealSite":
        """Make a namespace in which no real thing happens to pods."""
        server = await Real.at(file, context)
        namespace = await server.namespace("scn")
        account = {"name": "spark", "namespace": namespace}
        await server.cluster.create(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}
        )
        return cls(server, namespace, file, context)

    def begin(self, now: Callable[[], datetime]) -> Any:
        """The server, on the clock of the world."""
        self._stamps = Stamps(now)
        self.api = RemoteApi(self._file, self._context, self.namespace, self._stamps)
        return self.api

    def client(self, points: CrashPoints) -> Any:
        """The operator's real client."""
        port = RemotePort(self._server.cluster, self.namespace, self._stamps)
        return MemoryCluster(self.api, points=points, port=port)

    def rival(self) -> str:
        """An operator of the cluster that would take up the jobs; empty if there is none."""
        for found in self.api.raw(_OPERATORS)["items"]:
            if found["metadata"].get("namespace") and _watches_all(found):
                return f"{found['metadata']['namespace']}/{found['metadata']['name']}"
        return ""

    async def close(self) -> None:
        """Leave nothing behind."""
        api = self.api
        for kind in ("StatefulSparkJob", "StatefulSparkSnapshot", "Pod"):
            for found in api.list(kind):
                name = found["metadata"]["name"]
                with suppress(ApiRefusal):
                    if found["metadata"].get("finalizers"):
                        api.patch(kind, self.namespace, name, {"metadata": {"finalizers": None}})
                    if kind == "Pod":
                        api.delete(kind, self.namespace, name, grace=0)
        for node in api.list("Node"):
            if node["metadata"]["name"].startswith(self.prefix):
                api.delete("Node", None, node["metadata"]["name"])
        with suppress(ApiRefusal):
            api.delete("Namespace", None, self.namespace)
        api.close()
        await self._server.cluster.close()


Site = MemorySite


def _watches_all(deployment: dict[str, Any]) -> bool:
    if not (deployment.get("status") or {}).get("replicas"):
        return False
    containers = deployment["spec"]["template"]["spec"]["containers"]
    named = {env["name"] for one in containers for env in one.get("env", []) if env.get("value")}
    return _WATCHED not in named
