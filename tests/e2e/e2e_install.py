"""The operator on the cluster: by Helm, or from the manifests that the chart gives."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from e2e_cluster import Cluster, Namespace, wait_until

__all__ = ["install"]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "moorage"


@contextmanager
def install(cluster: Cluster, system: Namespace, image: str, pull_policy: str) -> Iterator[str]:
    """Install the operator into `system`; the name of its Deployment."""
    repository, _, tag = image.rpartition(":")
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": pull_policy},
        "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}},
    }
    helm = os.environ.get("HELM") or shutil.which("helm")
    if helm is None:
        raise RuntimeError("helm is needed: put it on PATH or name it in HELM")
    release = system.name
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        command = [helm, "upgrade", "--install", release, str(CHART), "-n", system.name]
        command += ["--kubeconfig", str(cluster.kubeconfig), "-f", file.name]
        subprocess.run(command, check=True)
    name = f"{release}-moorage"
    wait_until(lambda: _available(system, name), 300, f"deployment {name} is available")
    try:
        yield name
    finally:
        uninstall = [helm, "uninstall", release, "-n", system.name]
        subprocess.run([*uninstall, "--kubeconfig", str(cluster.kubeconfig)], check=False)


def _available(system: Namespace, name: str) -> bool:
    found = system.get("Deployment", name, "apps/v1") or {}
    return bool(found.get("status", {}).get("availableReplicas"))
