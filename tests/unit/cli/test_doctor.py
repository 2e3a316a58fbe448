"""`moorage doctor`: what it finds, what it says to do, and its exit status."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from moorage.cli import doctor as module
from moorage.cli.doctor import cluster, packages
from moorage.cli.kubectl import OPERATORS
from moorage_api import load_manifest
from moorage_state.errors import UserError


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


class Kubectl:
    """Answers by the words of the question; those of an intact installation unless told else."""

    def __init__(self, **other):
        crd = {"spec": {"versions": [{"name": "v1alpha1", "served": True}]}}
        operator = {"metadata": {"namespace": "moorage", "name": "moorage"}}
        ready = operator | {"status": {"readyReplicas": 1}}
        self.answers = {
            "version": (0, json.dumps({"serverVersion": {"gitVersion": "v1.36.2"}}), ""),
            "crd": (0, json.dumps(crd), ""),
            "deployments": (0, json.dumps({"items": [ready]}), ""),
            "serviceaccount": (0, "serviceaccount/spark", ""),
            "can-i": (0, "yes\n", ""),
            "--as": (0, "yes\n", ""),
        } | other
        self.asked = []

    def __call__(self, arguments):
        self.asked.append(list(arguments))
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


def test_without_kubectl_it_says_to_install_it(moorage, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    status, out, _ = moorage("doctor", "--for", "cluster")
    assert status == 2
    assert "install kubectl" in out
