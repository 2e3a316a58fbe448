"""The chart's own files, looked at without Helm."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from moorage_testing.chart import CHART, ROOT
from moorage_testing.crd import Judge

import moorage
from moorage_api import cluster_problems
from moorage_api.crds import job_crd, snapshot_crd
from moorage_api.manifest import parse_manifest

META = yaml.safe_load((CHART / "Chart.yaml").read_text())
EXAMPLES = ROOT / "examples" / "kubernetes"
JUDGES = {
    "StatefulSparkJob": Judge(job_crd()),
    "StatefulSparkSnapshot": Judge(snapshot_crd()),
}


def test_what_is_generated_is_up_to_date():
    script = [sys.executable, "scripts/chart_docs.py", "--check"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_definitions_in_the_chart_are_those_of_the_repository_byte_for_byte():
    copies = {path.name: path.read_bytes() for path in (CHART / "files" / "crds").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in (ROOT / "crds").iterdir()}
    assert len(copies) == 2


def test_a_definition_holds_nothing_that_helm_would_take_for_its_own():
    for path in (ROOT / "crds").iterdir():
        assert "{{" not in path.read_text()


def test_the_chart_installs_the_image_of_this_version():
    assert META["appVersion"] == moorage.__version__


def test_the_charts_version_is_the_same_one_as_helm_writes_it():
    """PEP 440's 1.2.0.dev3 and 1.2.0rc1 are SemVer's 1.2.0-dev.3 and 1.2.0-rc.1."""
    plain = META["version"].replace("-dev.", ".dev").replace("-rc.", "rc")
    assert plain == moorage.__version__


def test_the_catalogue_names_the_kinds_that_there_are():
    listed = yaml.safe_load(META["annotations"]["artifacthub.io/crds"])
    made = [job_crd(), snapshot_crd()]
    assert [(one["kind"], one["name"]) for one in listed] == [
        (crd["spec"]["names"]["kind"], crd["metadata"]["name"]) for crd in made
    ]


def test_the_catalogues_example_is_a_good_job():
    (example,) = yaml.safe_load(META["annotations"]["artifacthub.io/crdsExamples"])
    assert JUDGES["StatefulSparkJob"].faults(example) == []


def examples():
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for index, text in enumerate(path.read_text().split("\n---\n")):
            yield pytest.param(text, id=f"{path.stem}-{index}")


@pytest.mark.parametrize("text", list(examples()))
def test_an_example_is_taken_by_the_api_server_and_by_the_operator(text):
    example = yaml.safe_load(text)
    if example["kind"] not in JUDGES:
        assert example["kind"] in {"PodMonitor", "PersistentVolumeClaim"}
        return
    assert JUDGES[example["kind"]].faults(example) == []
    if example["kind"] == "StatefulSparkJob":
        assert cluster_problems(parse_manifest(text.encode(), "example")) == []


def test_every_example_is_listed_and_every_listed_example_is_there():
    text = (EXAMPLES / "README.md").read_text()
    there = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "argocd"}
    assert {name for name in there if f"]({name})" in text} == there
    listed = {word.split(")")[0] for word in text.split("](")[1:]}
    assert [name for name in sorted(listed) if not (EXAMPLES / name).exists()] == []


def test_examples_share_no_directory():
    jobs = [yaml.safe_load(one.values[0]) for one in examples()]
    specs = [job["spec"] for job in jobs if job["kind"] == "StatefulSparkJob"]
    used = [
        place
        for spec in specs
        for place in (spec["state"]["checkpointDir"], spec["application"]["args"][0])
    ]
    assert len(set(used)) == len(used)


def test_the_image_of_the_example_is_made_from_this_version():
    assert f"moorage-runtime:{moorage.__version__}\n" in (EXAMPLES / "Dockerfile").read_text()


def test_links_of_the_charts_page_lead_somewhere():
    for page in (CHART / "README.md", ROOT / "docs" / "install.md", ROOT / "docs" / "upgrade.md"):
        for link in page.read_text().split("](")[1:]:
            target = link.split(")")[0].split("#")[0]
            if target and "://" not in target:
                assert (page.parent / Path(target)).exists(), f"{page.name}: {target}"
