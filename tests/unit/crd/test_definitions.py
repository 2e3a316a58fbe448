"""The definitions: that an API server takes them, and that they are those of the models."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from moorage_testing.crd import nodes, structural_faults

from moorage_api import API_VERSION
from moorage_api.crds import JOB_CRD_NAME, SNAPSHOT_CRD_NAME, job_crd, snapshot_crd
from moorage_api.manifest import parse_manifest
from moorage_api.status import JobStatus

ROOT = Path(__file__).parents[3]
CRDS = {JOB_CRD_NAME: job_crd, SNAPSHOT_CRD_NAME: snapshot_crd}


@pytest.fixture(params=CRDS)
def crd(request):
    return CRDS[request.param]()


def schema_of(crd):
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_deleting_all_deletes_no_job_and_no_savepoint(crd):
    """`kubectl delete all --all` is for what can be made anew."""
    assert crd["spec"]["names"]["categories"] == ["moorage"]


def test_the_schema_is_structural(crd):
    assert structural_faults(schema_of(crd)) == []


def test_everything_a_user_writes_is_bounded(crd):
    """What has no bound makes rules over it too costly for the API server."""
    loose = []
    for path, node in nodes(schema_of(crd)["properties"]["spec"], "spec"):
        if node.get("x-kubernetes-preserve-unknown-fields"):
            continue
        bounds = {"string": "maxLength", "array": "maxItems", "integer": "maximum"}
        bound = bounds.get(str(node.get("type")))
        if "additionalProperties" in node:
            bound = "maxProperties"
        if bound and bound not in node and "enum" not in node:
            loose.append(f"{path}: no {bound}")
    assert loose == []


def test_every_field_says_what_it_is_for(crd):
    fields = nodes(schema_of(crd)["properties"]["spec"], "spec")
    mute = [p for p, n in fields if not n.get("description") and p[-1] not in "]}"]
    assert [p for p in mute if not p.endswith((".cpu", ".memory")) or "resources" not in p] == []


def test_no_rule_asks_for_the_text_of_a_number(crd):
    """The API server cannot bound the cost of string(x) and refuses the definition."""
    rules = [r for _, n in nodes(schema_of(crd)) for r in n.get("x-kubernetes-validations", [])]
    assert rules
    assert not [r for r in rules if "string(" in r["rule"] + r.get("messageExpression", "")]


def test_a_status_is_never_refused_for_what_it_says(crd):
    """A definition older than the operator must not stop it from writing down its intent."""
    for path, node in nodes(schema_of(crd)["properties"]["status"], "status"):
        assert not {"default", "enum", "pattern", "maximum", "maxLength"} & set(node), path
        if not path.endswith("conditions[]"):
            assert "required" not in node, path


def test_conditions_are_a_map_by_their_type(crd):
    conditions = schema_of(crd)["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_every_path_that_the_definition_names_is_a_field(crd):
    version = crd["spec"]["versions"][0]
    known = {path for path, _ in nodes(schema_of(crd))}
    named = [f["jsonPath"] for f in version["selectableFields"]]
    named += list(version["subresources"].get("scale", {}).values())
    named += [c["jsonPath"] for c in version["additionalPrinterColumns"]]
    plain = [p for p in named if not p.startswith((".metadata", ".status.conditions"))]
    assert plain
    assert set(plain) <= known


def test_a_definition_is_small_enough_for_kubectl_apply(crd):
    assert len(json.dumps(crd, separators=(",", ":"))) < 200_000


def test_all_versions_are_alike_and_the_operator_asks_for_the_stored_one(crd):
    """What has no conversion may differ in nothing; definitions of a release before know it."""
    versions = crd["spec"]["versions"]
    assert crd["spec"]["conversion"] == {"strategy": "None"}
    assert [v["name"] for v in versions] == ["v1beta1", "v1alpha1"]
    assert [v["name"] for v in versions if v["storage"]] == [API_VERSION.partition("/")[2]]
    assert all(v["served"] for v in versions)
    different = {"name": "", "storage": False}
    assert versions[0] | different == versions[1] | different


@pytest.mark.parametrize("name", CRDS)
def test_the_written_definition_is_that_of_the_models(name):
    assert yaml.safe_load((ROOT / "crds" / f"{name}.yaml").read_text()) == CRDS[name]()


def test_nothing_that_is_generated_is_stale():
    command = [sys.executable, "scripts/crds.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_written_status_survives_the_server(jobs, job):
    """What the operator writes is declared, or the server would drop it."""
    full = _filled(JobStatus)
    status = JobStatus.model_validate(full).to_json()
    assert jobs.faults({**job(), "status": status}) == []
    assert jobs.stored({**job(), "status": status})["status"] == status


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("job.yaml")), ids=str)
def test_an_example_moved_to_a_cluster_is_accepted(path, jobs):
    data = yaml.safe_load(path.read_text())
    parse_manifest(path.read_bytes(), str(path))
    spec = data["spec"]
    spec |= {"image": "examples:1", "upgrade": {"mode": "LastCheckpoint"}}
    spec["application"]["mainFile"] = "local:///app/job.py"
    if spec["application"].pop("pyFiles", None):
        spec["application"]["pyFiles"] = ["local:///app/lib"]
    for name in {"checkpointDir", "savepointDir"} & set(spec["state"]):
        spec["state"][name] = f"s3://examples/{name}"
    assert jobs.faults(data) == []


def _filled(model):
    """A value for every field, by type."""
    from typing import Literal, get_args, get_origin

    from pydantic import BaseModel

    def value(annotation):
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return {f.alias or n: value(f.annotation) for n, f in annotation.model_fields.items()}
        if get_origin(annotation) is Literal:
            return get_args(annotation)[-1]
        if get_origin(annotation) is tuple:
            return [value(get_args(annotation)[0])]
        if get_origin(annotation) is Mapping:
            return {"name": "text"}
        if get_args(annotation):
            return value(get_args(annotation)[0])
        samples = {int: 7, float: 0.5, bool: True, str: "text"}
        return samples.get(annotation, "2026-11-20T10:00:00.123456+00:00")

    return value(model)
