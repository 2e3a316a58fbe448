"""The operator's process: in the test's own loop, as `serve` makes it, or as one of its own."""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from prometheus_client.exposition import generate_latest

from moorage_operator.app import build, run_until
from moorage_operator.kube.client import KubeCluster
from moorage_operator.settings import Settings

__all__ = ["OperatorProcess", "start_operator", "until"]

_ROOT = Path(__file__).parents[4]

_QUICK = {"cluster_id": "test", "lease_duration": 3.0, "resync": 1.0, "stop_grace": 5.0}


class OperatorProcess:
    """Runs while inside `running`; `stop` is what SIGTERM sets.

    Args:
        found: how the API server is reached.
        settings: other than the quick ones.
    """

    def __init__(self, found, **settings):
        self.settings, self.found = Settings(**{**_QUICK, **settings}), found
        self.stop = asyncio.Event()

    @asynccontextmanager
    async def running(self):
        async with AsyncExitStack() as stack:
            self.cluster = KubeCluster(self.found)
            stack.push_async_callback(self.cluster.close)
            self.app = await build(self.settings, self.found, self.cluster, stack)
            self.task = asyncio.create_task(run_until(self.app, self.stop))
            try:
                yield self
            finally:
                self.stop.set()
                await asyncio.gather(self.task, return_exceptions=True)

    @property
    def ended(self):
        return self.task.done()

    def metric(self, name):
        """The series of a metric, by their labels as Prometheus writes them."""
        lines = generate_latest(self.app.metrics.registry).decode().splitlines()
        series = (line.partition("{")[2].rsplit("} ", 1) for line in lines if f"{name}{{" in line)
        return {labels: float(value) for labels, value in series}


def _kubeconfig(folder, url):
    """Of a user without credentials."""
    file = folder / "config"
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "kind-a",
        "contexts": [{"name": "kind-a", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": str(url).rstrip("/")}}],
        "users": [{"name": "u", "user": {}}],
    }
    file.write_text(json.dumps(found))
    return file


async def start_operator(folder, url, *arguments):
    """A process of its own, on the API server at `url`; its log can be read from it."""
    path = os.pathsep.join(str(_ROOT / part) for part in ("operator", "backends"))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "moorage_operator",
        *(("--kubeconfig", str(_kubeconfig(folder, url))) if url else ()),
        *arguments,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        stderr=asyncio.subprocess.PIPE,
    )


async def until(there, seconds=30.0):
    """Wait for what is behind HTTP."""
    async with asyncio.timeout(seconds):
        while not there():  # noqa: ASYNC110  what is waited for is behind HTTP
            await asyncio.sleep(0.02)
