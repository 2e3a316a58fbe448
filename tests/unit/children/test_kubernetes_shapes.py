"""What an API server refuses in a body, checked by hand on every kind of attempt."""

import dataclasses
import re

import pytest
import yaml

from moorage_api import Quantity
from moorage_operator.children import bodies
from moorage_operator.children.names import owner_reference
from moorage_operator.children.secrets import scrape_secret, token_secret

LONG = "a" + "b" * 44
LOCAL = {
    "EmptyDir": {"type": "EmptyDir", "size": "1Gi"},
    "EphemeralPVC": {"type": "EphemeralPVC", "size": "1Gi"},
    "ReusedPVC": {"type": "ReusedPVC", "size": "1Gi", "storageClassName": "fast"},
    "HostPath": {"type": "HostPath", "path": "/mnt/x"},
}
LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
PORT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")


@pytest.fixture(params=LOCAL)
def made(request, meta, spec, order):
    """The bodies of the longest name and a late attempt, and the executor's template."""
    longest = dataclasses.replace(meta, name=LONG)
    late = order.model_copy(update={"attempt": 2_000_000})
    changes = {
        "state.local": LOCAL[request.param],
        "state.credentialsSecretRef": {"name": "s3"},
        "executor.cores": 4,
    }
    found = [
        token_secret(longest, late.attempt, "t" * 8, owner_reference(longest)),
        scrape_secret(longest, "t" * 8),
        *bodies(longest, spec(changes), f"{LONG}-0123456789", late),
    ]
    template = yaml.safe_load(found[3]["data"]["executor.yaml"])
    return request.param, found, template


def pods(made):
    _, found, template = made
    return [found[-1], template]


def containers(pod):
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def test_names_are_dns_labels_and_labels_are_labels(made):
    _, found, template = made
    for body in found:
        name = body["metadata"]["name"]
        assert len(name) <= 63 or body["kind"] == "Pod"
        assert DNS_LABEL.fullmatch(name) or body["kind"] in ("Pod", "ConfigMap", "Secret"), name
        assert len(name) <= 253
    for body in [*found, template]:
        for value in body["metadata"]["labels"].values():
            assert LABEL.fullmatch(value), value


def test_everything_made_belongs_to_the_job(made, meta):
    _, found, _ = made
    for body in found:
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (meta.uid, True)


def test_mounts_name_volumes_that_the_pod_has(made):
    kind, _, _ = made
    for pod in pods(made):
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        if kind == "ReusedPVC":
            volumes.add("moorage-local")  # Spark adds it
        for container in containers(pod):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(paths) == len(set(paths))


def test_a_claim_of_sparks_is_mounted_by_spark_and_by_the_state_server(made):
    kind, _, template = made
    executor, sidecar = template["spec"]["containers"][0], template["spec"]["initContainers"][0]
    mounted = [
        any(mount["name"] == "moorage-local" for mount in container["volumeMounts"])
        for container in (executor, sidecar)
    ]
    assert mounted == [kind != "ReusedPVC", True]


def test_every_volume_has_one_source(made):
    for pod in pods(made):
        assert all(len(volume) == 2 for volume in pod["spec"]["volumes"])


def test_ports_have_short_names_of_their_own(made):
    for pod in pods(made):
        ports = [port for container in containers(pod) for port in container.get("ports", [])]
        names = [port["name"] for port in ports]
        assert all(PORT_NAME.fullmatch(name) for name in names)
        assert len(set(names)) == len(names)
        assert len({port["containerPort"] for port in ports}) == len(ports)


def test_variables_have_one_source_and_one_place(made):
    for pod in pods(made):
        for container in containers(pod):
            names = [variable["name"] for variable in container["env"]]
            assert len(set(names)) == len(names)
            for variable in container["env"]:
                assert ("value" in variable) != ("valueFrom" in variable)


def test_requests_are_within_limits(made):
    for pod in pods(made):
        for container in containers(pod):
            resources = container.get("resources", {})
            for name, limit in resources.get("limits", {}).items():
                assert Quantity(resources["requests"][name]) <= Quantity(limit)


def test_no_container_may_become_root(made):
    for pod in pods(made):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in containers(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_only_the_driver_has_a_token_of_the_api_server(made):
    driver, executor = pods(made)
    assert driver["spec"]["automountServiceAccountToken"] is True
    assert executor["spec"]["automountServiceAccountToken"] is False
