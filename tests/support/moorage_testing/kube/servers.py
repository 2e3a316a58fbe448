"""API servers for a test: in memory, emulated over HTTP, or a real one that may be used for tests.

All are driven alike, so that the same test body runs on each.
"""

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.client import Configuration

from moorage_operator.kube.client import KubeCluster, configuration
from moorage_operator.ports import ClusterError
from moorage_testing.kube.memory import MemoryCluster

__all__ = ["Emulated", "InMemory", "Real"]

ALLOWED = ("kind-",)
"""Only contexts of these names are touched: a kubeconfig may well lead to somebody's cluster."""

_CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRDS = Path(__file__).parents[4] / "crds"


class InMemory:
    """A store, and a client of it in this process."""

    def __init__(self):
        self.cluster: Any = MemoryCluster()
        self.api = self.cluster.api

    async def namespace(self):
        return f"t-{uuid.uuid4().hex[:8]}"

    async def collected(self, cluster, kind, namespace, name):
        self.api.collect()
        assert await cluster.get(kind, namespace, name) is None

    async def terminate(self, namespace):
        self.api.delete("Namespace", "", namespace)


class Emulated(InMemory):
    """The same store behind HTTP, and the real client."""

    def __init__(self, emulator):
        self.emulator = emulator
        self.api = emulator.api
        self.cluster = KubeCluster(Configuration(host=str(emulator.url).rstrip("/")))


class Real:
    """A real API server; everything happens in namespaces of the test's own."""

    def __init__(self, cluster):
        self.cluster = cluster
        self._namespaces = []

    @classmethod
    async def at(cls, file, context):
        """The server of a kubeconfig; refused unless its context is allowed."""
        text = await asyncio.to_thread(Path(file).read_text)
        named = context or yaml.safe_load(text).get("current-context", "")
        if not named.startswith(ALLOWED):
            raise RuntimeError(
                f"context {named!r} is not for tests; use one whose name starts with {ALLOWED}"
            )
        server = cls(KubeCluster(await configuration(Path(file), named)))
        await server._install()
        return server

    async def _install(self):
        """The CRDs, as `kubectl apply --server-side` does it."""
        for file in sorted(_CRDS.glob("*.yaml")):
            body = yaml.safe_load(file.read_text())
            path = f"{_CRD_PATH}/{body['metadata']['name']}"
            params = {"fieldManager": "tests", "force": "true"}
            form = "application/apply-patch+yaml"
            await self.cluster._send("PATCH", path, body, params=params, form=form)
        for kind in ("StatefulSparkJob", "StatefulSparkSnapshot"):
            await _until(lambda kind=kind: self._served(kind))

    async def _served(self, kind):
        await self.cluster.list(kind, "default")
        return True

    async def namespace(self, prefix="moorage-test"):
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        await self.cluster.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        )
        self._namespaces.append(name)
        await _until(lambda: self.cluster.get("ServiceAccount", name, "default"))
        return name

    async def collected(self, cluster, kind, namespace, name):
        async def gone():
            return await cluster.get(kind, namespace, name) is None

        await _until(gone)

    async def terminate(self, namespace):
        await self.cluster.delete("Namespace", "", namespace)

    async def clean(self):
        """Let go of everything that a finalizer holds, then of the namespaces."""
        for namespace in self._namespaces:
            for found in await self.cluster.list("StatefulSparkJob", namespace):
                none: dict = {"metadata": {"finalizers": []}}
                name = found["metadata"]["name"]
                await self.cluster.patch("StatefulSparkJob", namespace, name, none)
            await self.cluster.delete("Namespace", "", namespace)
        await self.cluster.close()


async def _until(there, seconds=30.0):
    async with asyncio.timeout(seconds):
        while True:
            with suppress(ClusterError):  # a CRD is served a little after it is made
                if await there():
                    return
            await asyncio.sleep(0.1)
