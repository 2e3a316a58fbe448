"""Two versions of the API, and the day on which the newer one is stored."""

import functools

import pytest

from moorage_api.crds import JOB_CRD_NAME, SNAPSHOT_CRD_NAME

from .e2e_cluster import wait_until

CRD = "apiextensions.k8s.io/v1"
CRDS = {JOB_CRD_NAME: "StatefulSparkJob", SNAPSHOT_CRD_NAME: "StatefulSparkSnapshot"}
MERGE = {"content_type": "application/merge-patch+json"}


def store_as(cluster, version):
    """What docs/upgrade.md tells people to do when a release stores another version."""
    definitions = cluster.resource("CustomResourceDefinition", CRD)
    for name in CRDS:
        versions = definitions.get(name=name).to_dict()["spec"]["versions"]
        stored = [{**one, "storage": one["name"] == version} for one in versions]
        definitions.patch(name=name, body={"spec": {"versions": stored}}, **MERGE)

    def stores(name):
        return version in definitions.get(name=name).to_dict()["status"]["storedVersions"]

    def take_over():
        note = {"metadata": {"annotations": {"moorage.dev/stored-as": version}}}
        for kind in CRDS.values():
            found = cluster.resource(kind, f"moorage.dev/{version}")
            for one in found.get().to_dict()["items"]:
                meta = one["metadata"]
                found.patch(name=meta["name"], namespace=meta["namespace"], body=note, **MERGE)

    for name in CRDS:
        wait_until(
            functools.partial(stores, name),
            60,
            f"{name} is stored as {version}",
        )
    take_over()
    for name in CRDS:
        definitions.status.patch(name=name, body={"status": {"storedVersions": [version]}}, **MERGE)
    return {name: definitions.get(name=name).to_dict()["status"]["storedVersions"] for name in CRDS}


@pytest.fixture
def stored_again(cluster):
    yield
    store_as(cluster, "v1alpha1")


@pytest.mark.usefixtures("stored_again")
def test_another_version_is_stored_while_a_job_runs(ticker):
    ticker.wait_ready()
    before, driver = ticker.attempt, ticker.driver["metadata"]["uid"]
    cluster, namespace = ticker.namespace.cluster, ticker.namespace
    assert store_as(cluster, "v1beta1") == {name: ["v1beta1"] for name in CRDS}

    beta = namespace.get("StatefulSparkJob", ticker.name, "moorage.dev/v1beta1")
    assert beta["spec"] == namespace.job(ticker.name)["spec"]
    beta_edit = {"spec": {"savepoint": {"retain": {"count": 7}}}}
    namespace.patch("StatefulSparkJob", ticker.name, beta_edit, "moorage.dev/v1beta1")
    assert namespace.job(ticker.name)["spec"]["savepoint"]["retain"]["count"] == 7
    namespace.annotate({"savepoint": "as-beta"})
    ticker.wait_savepoint("as-beta")
    assert ticker.attempt == before
    assert ticker.driver["metadata"]["uid"] == driver
    ticker.audit()
