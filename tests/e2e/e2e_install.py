"""The operator on the cluster, by Helm: this release, or another one in its place."""

import json
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

__all__ = ["CHART", "install", "make_job_account", "other_settings", "replace_release"]

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
    _release(cluster, system, image, pull_policy, CHART, crds=_install_crds(cluster))
    try:
        yield system.name
    finally:
        helm("uninstall", system.name, *_reach(cluster, system))


def replace_release(
    cluster: Cluster, system: Namespace, image: str, pull_policy: str, chart: Path
) -> None:
    """Have the chart and the image of another release in place of what is installed."""
    known = helm("get", "values", system.name, *_reach(cluster, system), "-o", "json")
    crds = bool(json.loads(known)["crds"]["enabled"])
    for path in sorted((chart / "files" / "crds").glob("*.yaml")) if not crds else ():
        cluster.apply(yaml.safe_load(path.read_text()))
    _release(cluster, system, image, pull_policy, chart, crds=crds)


@contextmanager
def other_settings(cluster: Cluster, system: Namespace, **values: object) -> Iterator[None]:
    """Have the operator run with other `settings` for a while."""
    known = helm("get", "values", system.name, *_reach(cluster, system), "-o", "json")
    _roll_out(cluster, system, CHART, {**json.loads(known), "settings": values})
    try:
        yield
    finally:
        _roll_out(cluster, system, CHART, json.loads(known))


def _release(
    cluster: Cluster, system: Namespace, image: str, pull_policy: str, chart: Path, *, crds: bool
) -> None:
    repository, _, tag = image.rpartition(":")
    values = {
        "fullnameOverride": system.name,
        "image": {"repository": repository, "tag": tag, "pullPolicy": pull_policy},
        "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}},
        "crds": {"enabled": crds},
    }
    _roll_out(cluster, system, chart, values)


def _roll_out(cluster: Cluster, system: Namespace, chart: Path, values: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        reach = _reach(cluster, system)
        helm("upgrade", "--install", system.name, str(chart), *reach, "-f", file.name)
    wait_until(
        lambda: _rolled_out(system, system.name), 300, f"deployment {system.name} is rolled out"
    )


def _reach(cluster: Cluster, system: Namespace) -> list[str]:
    where = ["-n", system.name, "--kubeconfig", str(cluster.kubeconfig)]
    return [*where, *(["--kube-context", cluster.context] if cluster.context else [])]


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


def _rolled_out(system: Namespace, name: str) -> bool:
    """Whether its pods are there, and none of another version."""
    found = system.get("Deployment", name, "apps/v1") or {"metadata": {}, "spec": {}}
    status, wanted = found.get("status", {}), found["spec"].get("replicas", 1)
    if status.get("observedGeneration") != found["metadata"].get("generation"):
        return False
    counts = ("replicas", "updatedReplicas", "availableReplicas")
    return all(status.get(one) == wanted for one in counts)
