"""What a newcomer types: the pages' commands as they stand there, on a cluster without Moorage.

Only making the cluster, and building and loading images, is left to the fixtures. Claims are new,
so that volumes are empty.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .e2e_cluster import GROUP, Cluster, Namespace, wait_until
from .e2e_pages import at_hand, commands, type_in, watch

ROOT = Path(__file__).parents[2]
CHART = yaml.safe_load((ROOT / "charts" / "moorage" / "Chart.yaml").read_text())
PAGE = ROOT / "docs" / "quickstart-kubernetes.md"
OURS = re.compile(r"(kind|make image|docker build|docker tag)\b")
WATCHES = re.compile(r"\s-w(\s|$)")
NAMESPACES = ("streams", "moorage")
CRDS = ("statefulsparkjobs.moorage.dev", "statefulsparksnapshots.moorage.dev")
DEFINITION = ("CustomResourceDefinition", "apiextensions.k8s.io/v1")


@pytest.fixture(scope="module")
def page_images(request, builder) -> None:
    """The images that the pages name are on the nodes."""
    if request.config.getoption("--page-images"):
        return
    if builder is None:
        pytest.skip("needs --load COMMAND, or --page-images: the pages' images are on the nodes")
    operator = f"moorage-operator:{CHART['appVersion']}"
    builder.build_ours()
    builder.build("ticker:1", "examples/kubernetes/Dockerfile", "examples/ticker")
    builder.load_on_nodes([operator, "ticker:1"])


@pytest.fixture
def bare(cluster, page_images, artifacts) -> Iterator[Cluster]:  # noqa: ARG001
    """A cluster without Moorage, before and after."""
    there = [name for name in NAMESPACES if not Namespace(cluster, name).is_gone()]
    if there:
        pytest.skip(f"the pages' namespaces are there already: {', '.join(there)}")
    _forget_definitions(cluster)
    try:
        yield cluster
    finally:
        _tidy(cluster, artifacts)


@pytest.fixture
def person(bare, tmp_path) -> "Person":
    return Person(bare, tmp_path)


class Person:
    """Types the commands of a page in the root of the repository, and reads what they print."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.jobs = Namespace(cluster, "streams")
        self.environment = at_hand(cluster, folder)

    def type_all(self, page: Path, section: str = "") -> dict[str, str]:
        """Every command but those that make clusters and images; what each printed."""
        printed = {}
        for command in commands(page, section):
            if OURS.match(command):
                continue
            before = self._attempt()
            if WATCHES.search(command.partition("#")[0]):
                watch(command.partition("#")[0], ROOT, self.environment, self._until_it_runs)
                continue
            printed[command] = self.type_in(command)
            if "delete pod" in command:
                self._until_another(before)
        return printed

    def type_in(self, command: str) -> str:
        """One command; what it printed."""
        return type_in(command, ROOT, self.environment, 600)

    def _until_another(self, before: int) -> None:
        """As a person sees in the watch: it is another driver that is ready."""
        wait_until(lambda: self._attempt() > before, 120, "the next attempt")

    def _attempt(self) -> int:
        return int(self._status().get("attempt", {}).get("number", 0))

    def _until_it_runs(self) -> None:
        def runs() -> bool:
            attempt = self._status().get("attempt", {})
            return self.jobs.is_ready("first") and bool(attempt.get("checkpointed"))

        wait_until(runs, 300, "first runs and has completed a checkpoint")

    def _status(self) -> dict:
        try:
            found = self.jobs.get("StatefulSparkJob", "first") or {}
        except Exception as error:  # the definitions are not there before the chart is
            if "No matches found" in str(error):
                return {}
            raise
        return dict(found.get("status") or {})


@pytest.mark.scenario(63)
def test_the_quickstart_works_as_it_is_written(person):
    """To the end: killed, audited, saved, copied from the savepoint, tidied up."""
    printed = person.type_all(PAGE)
    (audit,) = [text for command, text in printed.items() if "audit.py" in command]
    found = json.loads(audit.strip().splitlines()[-1])
    assert (found["lost"], found["twice"], found["right"]) == (0, 0, True)
    looked_up = [text for command, text in printed.items() if "state get" in command]
    assert len(looked_up) == 2
    assert all("last" in text for text in looked_up)
    (left,) = [text for command, text in printed.items() if "get ssnap" in command]
    assert "first-before-copy" in left


@pytest.mark.scenario(48)
def test_the_readme_works_as_it_is_written_and_what_it_leaves_needs_no_operator_to_go(person):
    person.type_all(ROOT / "README.md", "On Kubernetes")
    wait_until(
        lambda: _savepoint(person.jobs).get("state") == "Completed", 300, "the savepoint is taken"
    )
    wait_until(lambda: person.jobs.is_ready("first", attempt=2), 300, "first is back")
    person.type_in("helm uninstall moorage --namespace moorage")
    said = person.type_in("kubectl --namespace moorage logs job/moorage-uninstall")
    assert "StatefulSparkJob streams/first: stays\n" in said
    assert "StatefulSparkSnapshot streams/first-before-black-friday: stays\n" in said
    assert person.jobs.is_ready("first")
    person.jobs.delete_itself()
    wait_until(person.jobs.is_gone, 60, "the namespace of the jobs goes")


def test_moorage_uninstall_ends_jobs_with_savepoints_and_leaves_nothing_but_them(person):
    for command in commands(ROOT / "README.md", "On Kubernetes"):
        if not OURS.match(command):
            person.type_in(command)
        if "wait ssj/first" in command:
            break
    person.type_in("! moorage uninstall --definitions --yes")  # with jobs there
    assert person.jobs.is_ready("first")
    told = person.type_in("moorage uninstall --jobs --definitions --yes")
    assert "ends with its final savepoint" in told
    wait_until(lambda: not _definitions(person.cluster), 60, "the definitions go")
    assert "moorage" not in person.type_in("helm list --namespace moorage --short")
    left = person.type_in("kubectl --namespace streams get serviceaccounts,rolebindings -o name")
    assert "spark" not in left
    kept = person.jobs.run_pod("look", _looks_at("/data/first/savepoints"))
    assert kept[0] == "Succeeded"
    assert "/MANIFEST\n" in kept[1]


def _looks_at(folder: str) -> dict:
    claim = {"claimName": "moorage"}
    return {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "look",
                "image": "ticker:1",
                "imagePullPolicy": "Never",
                "command": ["find", folder],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": claim}],
    }


def _savepoint(jobs: Namespace) -> dict:
    found = jobs.get("StatefulSparkSnapshot", "first-before-black-friday") or {}
    return dict(found.get("status") or {})


def _forget_definitions(cluster: Cluster) -> None:
    """Definitions that another release left: the chart would not take them over."""
    resource = cluster.resource(*DEFINITION)
    there = {found["metadata"]["name"] for found in resource.get().to_dict()["items"]}
    for kind in ("StatefulSparkJob", "StatefulSparkSnapshot"):
        if f"{kind.lower()}s.moorage.dev" in there and cluster.resource(kind, GROUP).get().items:
            pytest.skip(f"there are objects of kind {kind} on the cluster: they would be lost")
    for name in there.intersection(CRDS):
        resource.delete(name=name)
    wait_until(lambda: not _definitions(cluster), 60, "the definitions go")


def _definitions(cluster: Cluster) -> set[str]:
    items = cluster.resource(*DEFINITION).get().to_dict()["items"]
    return {found["metadata"]["name"] for found in items}.intersection(CRDS)


def _tidy(cluster: Cluster, artifacts: Path) -> None:
    """Jobs while the operator is there, then all the rest."""
    jobs = Namespace(cluster, "streams")
    if not jobs.is_gone():
        jobs.dump(artifacts / "quickstart")
        if _definitions(cluster):
            jobs.remove()
        jobs.delete_itself()
    helm = shutil.which("helm") or str(Path(sys.executable).parent / "helm")
    reach = ["--namespace", "moorage", "--kubeconfig", str(cluster.kubeconfig)]
    reach += ["--kube-context", cluster.context] if cluster.context else []
    uninstall = [helm, "uninstall", "moorage", "--ignore-not-found", *reach]
    subprocess.run(uninstall, check=False, capture_output=True)
    operators = Namespace(cluster, "moorage")
    operators.delete_itself()
    for one in (jobs, operators):
        wait_until(one.is_gone, 180, f"namespace {one.name} goes")
    _forget_definitions(cluster)
