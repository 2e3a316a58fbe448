"""Several operators in one release: each its own Deployment and Lease; the rest is for all."""

import pytest
from moorage_testing.chart import CHART, NAMESPACE, of_kind

from moorage_operator.settings import read_settings
from moorage_operator.shards import Selection

FULL = ("--values", CHART / "ci" / "full-values.yaml")
LABELLED = ("--set", "watchNamespaceSelector=moorage.dev/jobs=yes")


@pytest.fixture(scope="session")
def sharded(template):
    """Everything switched on, and two shards."""
    return template(*FULL, "--set", "shards={a,b}")


def settings_of(deployment):
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    found = {one["name"]: one.get("value", "x") for one in container["env"]}
    return read_settings([], {key: value for key, value in found.items() if "MOORAGE" in key})


def pods_of(objects):
    return {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in of_kind(objects, "Deployment")
    }


def finds(selector, labels):
    return selector.items() <= labels.items()


def test_each_operator_has_its_own_lease_and_together_they_have_every_job_once(sharded):
    settings = [settings_of(one) for one in of_kind(sharded, "Deployment")]
    assert [one.shard for one in settings] == ["", "a", "b"]
    assert [one.lease for one in settings] == [
        "boat-moorage-leader",
        "boat-moorage-a-leader",
        "boat-moorage-b-leader",
    ]
    for label in ("", "a", "b", "c"):
        labels = {"moorage.dev/shard": label}
        has = [Selection((), one.shard, one.shards).has("x", labels) for one in settings]
        assert sum(has) == 1


def test_the_first_operator_is_the_one_that_was_there_without_shards(sharded, template):
    """Its Deployment's selector cannot change, and its jobs stay with it."""
    first, (before,) = of_kind(sharded, "Deployment")[0], of_kind(template(*FULL), "Deployment")
    assert first["metadata"] == before["metadata"]
    assert first["spec"]["selector"] == before["spec"]["selector"]
    assert settings_of(first).lease == settings_of(before).lease


@pytest.mark.parametrize("kind", ["Deployment", "PodDisruptionBudget"])
def test_what_is_of_one_operator_finds_its_pods_alone(sharded, kind):
    pods = pods_of(sharded)
    for one in of_kind(sharded, kind):
        found = [n for n, s in pods.items() if finds(one["spec"]["selector"]["matchLabels"], s)]
        assert found == [one["metadata"]["name"]]
    assert len(of_kind(sharded, kind)) == 3


def test_what_is_of_the_release_finds_the_pods_of_all_and_no_others(sharded, template):
    (service,), pods = of_kind(sharded, "Service"), pods_of(sharded)
    monitored = template(
        *FULL,
        "--set",
        "shards={a,b},metrics.serviceMonitor.enabled=false,metrics.podMonitor.enabled=true",
    )
    (monitor,) = [
        one for one in of_kind(monitored, "PodMonitor") if one["metadata"]["namespace"] == NAMESPACE
    ]
    own, jobs = of_kind(sharded, "NetworkPolicy")
    if own["metadata"]["namespace"] != NAMESPACE:
        own, jobs = jobs, own
    (job,) = of_kind(sharded, "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = next(a for a in container["args"] if a.startswith("--operator-labels="))
    selectors = [
        service["spec"]["selector"],
        monitor["spec"]["selector"]["matchLabels"],
        own["spec"]["podSelector"]["matchLabels"],
        jobs["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"],
        dict(pair.split("=") for pair in words.partition("=")[2].split(",")),
    ]
    others = job["spec"]["template"]["metadata"]["labels"]
    for selector in selectors:
        assert all(finds(selector, labels) for labels in pods.values())
        assert not finds(selector, others)


def test_they_may_write_their_own_leases_and_read_those_of_other_releases(sharded):
    (role,) = [r for r in of_kind(sharded, "Role") if r["metadata"]["name"].endswith("-leader")]
    (named,) = [rule for rule in role["rules"] if "resourceNames" in rule]
    leases = {settings_of(one).lease for one in of_kind(sharded, "Deployment")}
    assert set(named["resourceNames"]) == leases
    everywhere = [
        rule["verbs"]
        for one in of_kind(sharded, "ClusterRole")
        for rule in one["rules"]
        if "leases" in rule["resources"]
    ]
    assert everywhere == [["get"]]


def test_without_rights_in_the_cluster_the_lease_of_a_shard_that_was_given_up_may_be_read(template):
    """Its jobs name it, and would never be taken over."""
    values = CHART / "ci" / "namespaced-values.yaml"
    objects = template("--values", values, "--set", "shards={a}")
    (role,) = [r for r in of_kind(objects, "Role") if r["metadata"]["name"].endswith("-leader")]
    (free,) = [rule for rule in role["rules"] if "resourceNames" not in rule]
    assert "get" in free["verbs"]


def test_no_shards_may_be_said_with_null(template):
    assert template("--set", "shards=null") == template()
    assert template(*LABELLED, "--set", "shards=null") == template(*LABELLED)


def test_what_tidies_up_after_labelled_namespaces_knows_the_leases_of_all(template):
    objects = template(*FULL, *LABELLED, "--set", "shards={a,b}")
    (job,) = of_kind(objects, "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    leases = [f"{NAMESPACE}/{settings_of(one).lease}" for one in of_kind(objects, "Deployment")]
    assert len(leases) == 3
    assert f"--leases={','.join(leases)}" in container["args"]
