"""Claims that executors leave to others, as Spark's own allocator makes, takes and leaves them."""

import pytest
from moorage_testing.executor_pods import ApiServer, session
from moorage_testing.jobs import wait_until

from moorage.cluster.environment import leave_claims
from moorage_api.state import LocalVolume
from moorage_operator.children.names import labels
from moorage_operator.children.pods import local_settings
from moorage_operator.volumes import SPARK_LABEL
from moorage_operator.world import Meta

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

META = Meta("clicks", "team", "5f0c6e1a-0000-4000-8000-00000000c11c", 1, "1")
LOCAL = LocalVolume.model_validate({"type": "ReusedPVC", "size": "1Gi", "storageClassName": "fast"})
WAIT_SECONDS = 240.0


def handed_on(name, application, size="1Gi", made="2026-01-01T00:00:00Z"):
    """A claim as the operator leaves it to an attempt."""
    marks = {**labels(META), SPARK_LABEL: application}
    meta = {"name": name, "namespace": "team", "labels": marks, "creationTimestamp": made}
    requests = {"requests": {"storage": size}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {**meta, "uid": name},
        "spec": {"storageClassName": "fast", "resources": requests},
    }


def scenario():
    api = ApiServer()
    ordered = local_settings(META, LOCAL, 7)
    api.claims = {
        # Somebody has expanded it.
        "kept": handed_on("kept", f"{META.uid}-7", size="3Gi"),
        "of-another-attempt": handed_on("of-another-attempt", f"{META.uid}-6"),
    }
    with session(api, ordered) as spark:
        wait_until(lambda: len(api.pods) >= 2, WAIT_SECONDS)
        taken = [
            volume["persistentVolumeClaim"]["claimName"]
            for pod in api.pods.values()
            for volume in pod["spec"]["volumes"]
            if volume["name"] == "moorage-local"
        ]
        made = [claim for name, claim in api.claims.items() if name in taken and name != "kept"]
        seen = {"taken": taken, "made": made[0]["metadata"]}
        leave_claims(spark.sparkContext)
    seen["left"] = sorted(api.claims)
    return seen


@pytest.fixture(scope="module")
def seen(fresh_process):
    return fresh_process(scenario, timeout=540)


def test_an_executor_takes_a_claim_that_its_attempt_was_given(seen):
    assert "kept" in seen["taken"]
    assert "of-another-attempt" not in seen["taken"]


def test_one_that_finds_none_gets_one_by_which_the_operator_knows_it(seen):
    made = seen["made"]
    assert made["labels"].items() >= labels(META).items()
    assert made["labels"][SPARK_LABEL] == f"{META.uid}-7"
    assert [owner["kind"] for owner in made["ownerReferences"]] == ["Pod"]


def test_a_driver_that_ends_leaves_its_claims(seen):
    assert seen["left"] == sorted(["kept", "of-another-attempt", seen["made"]["name"]])
