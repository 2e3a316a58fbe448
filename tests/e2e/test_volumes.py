"""Claims that executors leave to those of the next driver, and what is found on them.

After each start the auditor compares all state and all output with what a clock must give.
"""

import pytest

from .e2e_cluster import wait_until
from .ticker import Ticker

DEFAULT = "storageclass.kubernetes.io/is-default-class"
OLD_SECONDS = 75
"""After which Spark takes a claim for one that has been used."""


@pytest.fixture(scope="module")
def storage_class(cluster):
    """The cluster's own, as others may make no volumes."""
    found = cluster.resource("StorageClass", "storage.k8s.io/v1").get().to_dict()["items"]
    for one in found:
        if one["metadata"].get("annotations", {}).get(DEFAULT) == "true":
            return str(one["metadata"]["name"])
    pytest.skip("the cluster has no default StorageClass")


@pytest.fixture(scope="module")
def ticker(namespace, images, pull_policy, s3, storage_class):
    """As everywhere, on claims that are reused."""
    ticker = Ticker(namespace, images["job"], pull_policy, s3, "spark")
    state = ticker.manifest()["spec"]["state"]
    local = {"type": "ReusedPVC", "size": "1Gi", "storageClassName": storage_class}
    # What begins with a savepoint, as an upgrade does by default, reads that.
    upgrade = {"mode": "LastCheckpoint"}
    ticker.start(state={**state, "local": local}, upgrade=upgrade)
    ticker.wait_ready()
    ticker.wait_checkpoints()
    return ticker


def claims(ticker):
    """The kind of each claim's owner, by the claim's name."""
    return {
        one["metadata"]["name"]: one["metadata"]["ownerReferences"][0]["kind"]
        for one in ticker.namespace.every("PersistentVolumeClaim")
        if not one["metadata"].get("deletionTimestamp")
    }


def mounted(ticker):
    """The claims that executors of the attempt have."""
    return {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in ticker.namespace.pods("executor")
        if not pod["metadata"].get("deletionTimestamp")
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }


@pytest.fixture
def kept(ticker):
    """The claims of a job that has run for a while; they are its own."""
    ticker.wait_ready()
    wait_until(
        lambda: len(claims(ticker)) == 2 and set(claims(ticker).values()) == {"StatefulSparkJob"},
        60,
        f"the claims are the job's: {claims(ticker)}",
    )
    wait_until(lambda: mounted(ticker) == claims(ticker).keys(), 60, "executors have them")
    before = ticker.newest_checkpoint() or 0
    wait_until(
        lambda: (ticker.newest_checkpoint() or 0) >= before + OLD_SECONDS // 10,
        300,
        "the claims are no young ones",
    )
    return mounted(ticker)


def found_again(ticker, kept, before):
    """The executors of the next driver have the same claims, and what they begin with is there."""
    ticker.wait_ready(attempt=before + 1)
    ticker.wait_checkpoints()
    assert mounted(ticker) == kept
    opened = ticker.ranges_opened()
    assert opened.get("local", 0) > 0, f"all was fetched: {opened}"
    assert claims(ticker) == dict.fromkeys(kept, "StatefulSparkJob")
    ticker.audit()


def test_executors_of_the_next_driver_find_the_state_of_one_that_was_deleted(ticker, kept):
    before, name = ticker.attempt, ticker.driver["metadata"]["name"]
    ticker.namespace.delete("Pod", name, "v1")
    found_again(ticker, kept, before)


def test_executors_of_the_next_version_find_the_state_of_the_one_before(ticker, kept):
    before = ticker.attempt
    env = [{"name": "VERSION", "value": "2"}]
    application = {**ticker.manifest()["spec"]["application"], "env": env}
    ticker.namespace.edit({"application": application})
    found_again(ticker, kept, before)


def test_executors_of_the_next_driver_find_the_state_of_one_that_was_killed(ticker, kept):
    before, name = ticker.attempt, ticker.driver["metadata"]["name"]
    ticker.namespace.run_in(name, "driver", "pkill", "-9", "-f", "moorage.cluster")
    found_again(ticker, kept, before)
