"""`moorage doctor`: what it finds, what it says to do, and its exit status."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from moorage_testing.manifests import job_object, spec_data

from moorage import __version__
from moorage.cli import doctor as module
from moorage.cli.doctor import cluster, packages
from moorage.cli.kubectl import JOBS, OPERATORS, SNAPSHOTS
from moorage_api import load_manifest
from moorage_api.crds import job_crd, snapshot_crd
from moorage_state.errors import StoreUnavailable, UserError
from moorage_state.stores import MemoryStore

ROOT = Path(__file__).parents[3]


def outcomes(findings):
    return [(one.check, one.outcome) for one in findings]


def test_this_machine_can_run_jobs(moorage):
    status, out, err = moorage("doctor")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["CHECK", "RESULT", "DETAIL"]
    checks = [line.split("  ")[0] for line in lines[1:]]
    assert checks[:5] == ["python", "packages", "java", "local volume", "control sockets"]


def test_the_store_of_a_job_is_tried_and_folders_of_a_first_run_are_its_own_to_make(
    moorage, job_file
):
    status, out, _ = moorage("doctor", job_file)
    assert status == 0
    assert "the first run makes it" in out
    (job_file.parent / "state").mkdir()
    status, out, _ = moorage("doctor", job_file, "-o", "json")
    found = {one["check"]: one for one in json.loads(out)["findings"]}
    assert (status, found["checkpointDir"]["outcome"]) == (0, "ok")
    assert "create once" in found["checkpointDir"]["detail"]
    assert (found["clock"]["outcome"], found["clock"]["detail"][:2]) == ("ok", "+0")


def test_what_is_wrong_is_all_told_at_once_and_each_with_what_to_do(moorage, job_file, monkeypatch):
    def none(_environ):
        raise UserError("there is none on PATH; install Java")

    monkeypatch.setattr(module, "java_text", none)
    monkeypatch.setattr(module, "LEAST_FREE_BYTES", 1 << 60)
    text = job_file.read_text().replace("file://./state", "file://./none/state")
    job_file.write_text(text)
    status, out, _ = moorage("doctor", job_file, "-o", "json")
    document = json.loads(out)
    wrong = {one["check"]: one for one in document["findings"] if one["outcome"] != "ok"}
    assert (status, document["ok"]) == (2, False)
    assert sorted(wrong) == ["checkpointDir", "java", "local volume"]
    assert all(one["todo"] for one in wrong.values())
    job_file.write_text(text.replace("parallelism: 2", "parallelism: x, y: 1"))
    status, out, _ = moorage("doctor", job_file)
    assert status == 2
    found = [line for line in out.splitlines() if line.startswith("manifest ")]
    assert len(found) == 2
    assert "spec.scaling.parallelism" in found[0]
    assert "manifest: remove it; known here: " in out


def test_packages_that_lack_or_are_too_old_are_named_with_the_command_that_mends_it():
    required = ["pydantic>=2", 'rich>=14,<16; extra == "cli"', 'kopf>=1; extra == "operator"']
    versions = {"pydantic": "2.12.1", "rich": "13.0"}
    found = list(packages(required, ("cli",), versions.get))
    assert [(one.outcome, one.detail) for one in found] == [
        ("failed", "rich: 13.0 is not supported")
    ]
    assert found[0].todo == "pip install 'rich<16,>=14'"
    versions["rich"] = "15.1"
    assert outcomes(packages(required, ("cli",), versions.get)) == [("packages", "ok")]
    del versions["pydantic"]
    assert [one.detail for one in packages(required, ("cli",), versions.get)] == [
        "pydantic: is not installed"
    ]


DEFINITIONS = {JOBS: job_crd(), SNAPSHOTS: snapshot_crd()}


def version_of(text):
    return 0, json.dumps({"serverVersion": {"gitVersion": text}}), ""


def operator_of(release, image="moorage-operator"):
    labels = {"app.kubernetes.io/version": release}
    containers = [{"name": "operator", "image": image}]
    one = {
        "metadata": {"namespace": "moorage", "name": "moorage", "labels": labels},
        "spec": {"template": {"spec": {"containers": containers}}},
        "status": {"readyReplicas": 1},
    }
    return 0, json.dumps({"items": [one]}), ""


class Kubectl:
    """Answers by the words of the question; those of an intact installation unless told else."""

    def __init__(self, **other):
        self.answers = {
            "version": version_of("v1.36.2"),
            "deployments": operator_of(__version__),
            "serviceaccount": (0, "serviceaccount/spark", ""),
            "can-i": (0, "yes\n", ""),
            "--as": (0, "yes\n", ""),
        } | other
        self.asked = []

    def __call__(self, arguments):
        self.asked.append(list(arguments))
        if "crd" in arguments and "crd" not in self.answers:
            return subprocess.CompletedProcess(arguments, 0, json.dumps(DEFINITIONS[arguments[2]]))
        for word in ("--as", "version", "crd", "deployments", "serviceaccount", "can-i"):
            if any(one == word or one.startswith(word + "=") for one in arguments):
                return subprocess.CompletedProcess(arguments, *self.answers[word])
        raise AssertionError(arguments)


def test_an_installation_that_is_whole_has_nothing_to_mend(job_file):
    kubectl = Kubectl()
    found = list(cluster(kubectl, "streams", load_manifest(job_file)))
    assert {one.outcome for one in found} == {"ok"}
    assert [one.check for one in found][-3:] == [
        "operator",
        "your rights",
        "drivers' rights",
    ]
    asked = [one for one in kubectl.asked if "--as=system:serviceaccount:streams:spark" in one]
    assert asked[0][:4] == ["auth", "can-i", "create", "pods"]


def test_the_operator_is_found_by_the_labels_that_the_chart_gives_it():
    golden = Path(__file__).parents[2] / "chart/golden/default.yaml"
    documents = yaml.safe_load_all(golden.read_text(encoding="utf-8"))
    (labels,) = (one["metadata"]["labels"] for one in documents if one["kind"] == "Deployment")
    key, _, value = OPERATORS.partition("=")
    assert labels[key] == value


NOT_READY = json.dumps({"items": [{"metadata": {"namespace": "moorage", "name": "one"}}]})


@pytest.mark.parametrize(
    ("word", "answer", "check", "outcome", "todo"),
    [
        ("crd", (1, "", "Error from server (NotFound): none"), "definition", "failed", "install"),
        ("crd", (1, "", "Error (Forbidden): you may not"), "definition", "unknown", ""),
        ("deployments", (0, '{"items": []}', ""), "operator", "failed", "install the chart"),
        ("deployments", (0, NOT_READY, ""), "operator", "failed", "kubectl describe"),
        ("deployments", (1, "", "Forbidden"), "operator", "unknown", "ask"),
        ("serviceaccount", (1, "", "NotFound"), "service account", "failed", "jobs.namespaces"),
        ("can-i", (1, "no\n", ""), "your rights", "failed", "Role"),
        ("--as", (1, "no\n", ""), "drivers' rights", "failed", "jobs.rbac.create"),
        ("--as", (1, "", "Forbidden"), "drivers' rights", "unknown", "ask"),
        ("version", (1, "", "x\nrefused"), "cluster", "failed", "get-contexts"),
    ],
)
def test_each_part_that_lacks_is_named(word, answer, check, outcome, todo):
    found = [
        one for one in cluster(Kubectl(**{word: answer}), "streams", None) if one.check == check
    ]
    assert found[0].outcome == outcome
    assert todo in found[0].todo


@pytest.mark.parametrize(
    ("version", "outcome"),
    [
        ("v1.28.15", "failed"),
        ("v1.29.0", "ok"),
        ("v1.36.2-eks-1a2b", "ok"),
        ("v2.0.0", "ok"),
        ("main", "unknown"),
    ],
)
def test_the_cluster_is_as_new_as_the_chart_asks_for(version, outcome):
    (found,) = (
        one
        for one in cluster(Kubectl(version=version_of(version)), "streams", None)
        if one.check == "cluster"
    )
    assert (found.outcome, version in found.detail) == (outcome, True)
    assert bool(found.todo) == (outcome == "failed")
    chart = yaml.safe_load((ROOT / "charts/moorage/Chart.yaml").read_text(encoding="utf-8"))
    least = "{}.{}".format(*module.LEAST_KUBERNETES)
    assert chart["kubeVersion"] == f">={least}.0-0"


@pytest.mark.parametrize(
    ("release", "image", "told"),
    [
        (__version__, "moorage-operator", __version__),
        (__version__, f"reg:5000/moorage-operator:{__version__}@sha256:00", __version__),
        ("9.1", f"moorage-operator:{__version__}", __version__),
        (__version__, "reg:5000/moorage-operator:mine", __version__),
        (__version__, "reg:5000/moorage-operator:9.1", "9.1"),
        ("9.1", "moorage-operator@sha256:00", "9.1"),
    ],
)
def test_the_operator_is_of_the_release_of_the_command_line(release, image, told):
    kubectl = Kubectl(deployments=operator_of(release, image))
    (found,) = (one for one in cluster(kubectl, "streams", None) if one.check == "operator")
    assert found.detail.startswith(f"moorage/moorage {told}")
    if told == __version__:
        assert found.outcome == "ok"
    else:
        assert (found.outcome, __version__ in found.detail) == ("warning", True)
        assert "helm upgrade" in found.todo


def test_definitions_of_another_release_say_what_they_lack():
    def told(change):
        definition = json.loads(json.dumps(DEFINITIONS[JOBS]))
        change(definition["spec"]["versions"])
        kubectl = Kubectl(crd=(0, json.dumps(definition), ""))
        return next(one for one in cluster(kubectl, "streams", None) if JOBS in one.detail)

    def spec_of(versions, name):
        version = next(one for one in versions if one["name"] == name)
        return version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]

    assert told(lambda _versions: None).outcome == "ok"
    # What is new to this command line is the operator's to say.
    newer = told(lambda versions: spec_of(versions, "v1beta1").update(more={"type": "string"}))
    assert newer.outcome == "ok"
    older = told(lambda versions: spec_of(versions, "v1beta1").pop("profile"))
    assert older.outcome == "warning"
    assert older.detail.endswith("of another release, without v1beta1.spec.profile")
    assert "helm upgrade" in older.todo
    alone = told(lambda versions: versions[0].update(served=False))
    assert alone.detail.endswith("v1alpha1; of another release, without v1beta1")
    many = told(lambda versions: spec_of(versions, "v1beta1").clear())
    assert many.detail.endswith(" ...")
    assert len(many.detail) < 300


def test_without_a_job_it_says_that_no_store_was_tried_and_how_to(moorage, monkeypatch):
    monkeypatch.setattr(module, "kubectl_of", lambda _context: Kubectl())
    status, out, _ = moorage("doctor", "--for", "cluster", "-o", "json")
    last = json.loads(out)["findings"][-1]
    assert (status, last["check"], last["outcome"]) == (0, "store, clock", "unknown")
    assert "moorage doctor JOB.yaml --for cluster" in last["todo"]
    assert "moorage store check" in last["todo"]


@pytest.fixture
def for_cluster(tmp_path, monkeypatch):
    """The manifest of a job for a cluster; its stores are made by a function that a test gives."""
    monkeypatch.setattr(module, "kubectl_of", lambda _context: Kubectl())
    path = tmp_path / "clicks.yaml"
    path.write_text(yaml.safe_dump(job_object(spec_data(), namespace="streams")))

    def made(make):
        monkeypatch.setattr(module, "open_store", make)
        return path

    return made


def store_findings(moorage, path):
    status, out, _ = moorage("doctor", path, "--for", "cluster", "-o", "json")
    found = {one["check"]: one for one in json.loads(out)["findings"]}
    kept = ("checkpointDir", "savepointDir", "clock")
    return status, {name: found[name] for name in kept if name in found}


def test_the_store_of_a_job_for_a_cluster_is_tried_from_here(moorage, for_cluster):
    status, found = store_findings(moorage, for_cluster(MemoryStore))
    assert (status, {one["outcome"] for one in found.values()}) == (0, {"ok"})
    assert "create once" in found["checkpointDir"]["detail"]
    assert found["savepointDir"]["detail"].startswith("s3://savepoints/clicks")
    assert found["clock"]["detail"].startswith("this machine's: ")


def test_a_store_that_two_can_create_in_is_refused(moorage, for_cluster):
    class Careless(MemoryStore):
        def put_if_absent(self, key, data):
            self.put(key, data)

    status, found = store_findings(moorage, for_cluster(Careless))
    assert (status, found["checkpointDir"]["outcome"]) == (2, "failed")
    assert "two runs could write" in found["checkpointDir"]["detail"]


def test_a_store_that_only_pods_reach_is_no_fault_and_says_where_to_try_it(moorage, for_cluster):
    def away(_url):
        raise StoreUnavailable("no answer: endpoint=http://s3.minio.svc")

    status, found = store_findings(moorage, for_cluster(away))
    assert (status, {one["outcome"] for one in found.values()}) == (0, {"unknown"})
    assert "no answer" in found["checkpointDir"]["detail"]
    assert "moorage store check s3://state/clicks" in found["checkpointDir"]["todo"]
    assert "clock" not in found


def test_a_volume_of_the_pods_is_not_looked_for_here():
    ((found,), ahead) = module._tried("checkpointDir", "file:///state/clicks", "cluster")
    assert (found.outcome, ahead) == ("unknown", None)
    assert "moorage store check file:///state/clicks" in found.todo


@pytest.mark.parametrize("target", ["local", "cluster"])
def test_a_clock_that_is_wrong_is_told_with_what_to_set(target):
    found = module._clock(-31.4, "s3://b", target)
    assert (found.outcome, "-31 s before s3://b" in found.detail) == ("warning", True)
    assert ("nodes" in found.todo) == (target == "cluster")
    assert module._clock(-9.0, "s3://b", target).todo == ""


def test_without_kubectl_it_says_to_install_it(moorage, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    status, out, _ = moorage("doctor", "--for", "cluster")
    assert status == 2
    assert "install kubectl" in out
