"""The operator on the cluster, by Helm."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from .e2e_cluster import Cluster, Namespace, wait_until

__all__ = ["install", "make_job_account"]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "moorage"


def helm(*arguments: str) -> str:
    """Run helm; what it printed."""
    beside = Path(sys.executable).parent / "helm"
    found = os.environ.get("HELM") or shutil.which("helm") or (beside.exists() and str(beside))
    if not found:
        pytest.skip("needs helm: on PATH, in $HELM, or by `make helm`")
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"helm {' '.join(arguments)}\n{done.stderr}"
    return done.stdout


@contextmanager
def install(cluster: Cluster, system: Namespace, image: str, pull_policy: str) -> Iterator[str]:
    """Install the operator into `system`; the name of its Deployment."""
    repository, _, tag = image.rpartition(":")
    values = {
        "fullnameOverride": system.name,
        "image": {"repository": repository, "tag": tag, "pullPolicy": pull_policy},
        "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}},
        "crds": {"enabled": _install_crds(cluster)},
    }
    reach = ["-n", system.name, "--kubeconfig", str(cluster.kubeconfig)]
    reach += ["--kube-context", cluster.context] if cluster.context else []
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        helm("upgrade", "--install", system.name, str(CHART), *reach, "-f", file.name)
    wait_until(
        lambda: _available(system, system.name), 300, f"deployment {system.name} is available"
    )
    try:
        yield system.name
    finally:
        helm("uninstall", system.name, *reach)


def _install_crds(cluster: Cluster) -> bool:
    """Whether the chart is to bring the CRDs; those that are there are brought up to date."""
    crds = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    resource = cluster.resource("CustomResourceDefinition", "apiextensions.k8s.io/v1")
    there = {found["metadata"]["name"] for found in resource.get().to_dict()["items"]}
    if not any(crd["metadata"]["name"] in there for crd in crds):
        return True
    for crd in crds:
        cluster.apply(crd)
    return False


def make_job_account(namespace: Namespace) -> None:
    """The service account of drivers, as the chart makes it for namespaces that it is told of."""
    rendered = helm(
        "template",
        "moorage",
        str(CHART),
        "--show-only",
        "templates/jobs/account.yaml",
        "--set",
        f"jobs.namespaces={{{namespace.name}}}",
    )
    for body in yaml.safe_load_all(rendered):
        if body:
            namespace.apply(_bare(body))


def _bare(body: dict[str, Any]) -> dict[str, Any]:
    """Without the mark that keeps it when a release goes: the namespace goes with the test."""
    meta = {k: v for k, v in body["metadata"].items() if k != "annotations"}
    return {**body, "metadata": meta}


def _available(system: Namespace, name: str) -> bool:
    found = system.get("Deployment", name, "apps/v1") or {}
    return bool(found.get("status", {}).get("availableReplicas"))
