"""`moorage render`: plain manifests of what a job needs on a cluster."""

import json
from pathlib import Path

import pytest
import yaml

from moorage.cli.render import DRIVER_RULES

ROOT = Path(__file__).parents[3]
JOB = """\
apiVersion: moorage.dev/v1alpha1
kind: StatefulSparkJob
metadata: {name: clicks, namespace: streams}
spec:
  image: registry.example.com/clicks:1
  serviceAccountName: mine
  application: {mainFile: "local:///app/job.py"}
  scaling: {parallelism: 2}
  state: {checkpointDir: "s3://bucket/clicks", savepointDir: "s3://bucket/savepoints"}
"""


@pytest.fixture
def cluster_job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def documents_of(out):
    return [(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(out)]


def test_a_job_comes_with_the_definitions_and_the_account_of_its_driver(moorage, cluster_job):
    status, out, _ = moorage("render", cluster_job)
    assert status == 0
    assert documents_of(out) == [
        ("CustomResourceDefinition", "statefulsparkjobs.moorage.dev"),
        ("CustomResourceDefinition", "statefulsparksnapshots.moorage.dev"),
        ("ServiceAccount", "mine"),
        ("Role", "mine-driver"),
        ("RoleBinding", "mine-driver"),
        ("StatefulSparkJob", "clicks"),
    ]
    namespaces = {one["metadata"].get("namespace") for one in yaml.safe_load_all(out)}
    assert namespaces == {None, "streams"}
    assert out.startswith("# Made by `moorage render`: the definitions, the drivers' account mine")
    assert "Not in here: the operator" in out


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_for_programs_it_is_one_list_that_kubectl_takes(moorage, cluster_job, output):
    _, out, _ = moorage("render", cluster_job)
    status, found, err = moorage("render", cluster_job, "-o", output)
    document = json.loads(found) if output == "json" else yaml.safe_load(found)
    assert (status, err) == (0, "")
    assert document == {
        "format": 1,
        "command": "render",
        "apiVersion": "v1",
        "kind": "List",
        "items": list(yaml.safe_load_all(out)),
    }


def test_the_job_is_what_stands_in_its_file(moorage, cluster_job):
    _, out, _ = moorage("render", cluster_job, "--no-definitions")
    assert list(yaml.safe_load_all(out))[-1] == yaml.safe_load(JOB)


def test_definitions_are_those_that_the_chart_installs(moorage):
    status, out, _ = moorage("render", "-n", "streams")
    assert status == 0
    for one in list(yaml.safe_load_all(out))[:2]:
        stored = ROOT / "crds" / f"{one['metadata']['name']}.yaml"
        assert one == yaml.safe_load(stored.read_text())


def test_drivers_have_the_rights_that_the_chart_gives_them():
    template = (ROOT / "charts/moorage/templates/jobs/account.yaml").read_text()
    rules = template.partition("rules:\n")[2].partition("---")[0]
    assert yaml.safe_load(rules) == DRIVER_RULES


def test_a_job_of_another_namespace_is_refused(moorage, cluster_job):
    status, _, err = moorage("render", cluster_job, "-n", "other")
    assert (status, "manifest=streams asked=other" in err) == (2, True)


@pytest.mark.parametrize("named", ["Bad Name", "streams_eu", "-streams", "a" * 64])
def test_what_no_namespace_can_be_called_is_refused(moorage, named):
    status, out, err = moorage("render", f"--namespace={named}")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"not the name of a namespace: namespace={named!r}; use small letters" in err


def test_a_manifest_that_no_cluster_would_take_is_not_rendered(moorage, cluster_job):
    cluster_job.write_text(JOB.replace("parallelism: 2", "parallelism: none"))
    status, out, err = moorage("render", cluster_job)
    assert (status, out, "parallelism" in err) == (2, "", True)


FLEET = """
profile: standard
profiles: {standard: {serviceAccountName: theirs, checkpoint: {interval: 30s}}}
limits: {executors: 1}
"""


@pytest.fixture
def fleet(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


def test_with_a_fleet_the_job_has_the_values_of_its_profile(moorage, cluster_job, fleet):
    status, out, _ = moorage("render", cluster_job, "--no-definitions", "--fleet", fleet)
    assert status == 0
    job = list(yaml.safe_load_all(out))[-1]
    assert job["spec"]["checkpoint"] == {"interval": "30s"}
    assert job["spec"]["serviceAccountName"] == "mine"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("executors: 1", "executors: 0", "limits.executors"),
        ("profile: standard", "profile: other", "has no such profile"),
        ("30s", "soon", "checkpoint.interval"),
        ("executors: 1", "parallelism: 1", "limits.parallelism is 1"),
        ("30s}", "30s}, driver: {memory: 1Mi}", "driver.memory 1Mi is below"),
    ],
)
def test_what_the_operator_would_refuse_is_not_rendered(
    moorage, cluster_job, fleet, old, new, words
):
    fleet.write_text(FLEET.replace(old, new))
    status, out, err = moorage("render", cluster_job, "--fleet", fleet)
    assert status != 0
    assert not out
    assert words in " ".join(err.split())
