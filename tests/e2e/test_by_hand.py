"""What a person asks of a cluster before an edit, and what a person takes away from a job.

One job with all that is made beside its pods. `moorage preflight` is asked about edits of it, with
all rights and with few; then its objects are deleted, and the operator makes them again.
"""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from .e2e_cluster import wait_until
from .e2e_install import other_settings
from .e2e_pages import at_hand
from .ticker import Ticker

BESIDE = {
    "failurePolicy": {"disruptionBudget": {"driver": True, "executorsAtOnce": 1}},
    "observability": {"ui": {"ingressTemplate": "/{{namespace}}/{{name}}"}},
}
CLASSED = {"podTemplate": {"spec": {"priorityClassName": "system-cluster-critical"}}}
"""One that every cluster has."""
OF_A_DEVELOPER = {
    "moorage.dev": ["statefulsparkjobs", "statefulsparksnapshots"],
    "apps": ["controllerrevisions"],
    "": ["configmaps", "pods", "resourcequotas", "secrets", "serviceaccounts"],
}
VERBS = ["create", "delete", "get", "list", "patch"]


@pytest.fixture(scope="module")
def ticker(namespace, images, pull_policy, s3):
    """As everywhere, with an Ingress and budgets."""
    ticker = Ticker(namespace, images["job"], pull_policy, s3, "spark")
    ticker.start(**BESIDE)
    ticker.wait_ready()
    ticker.wait_checkpoints()
    return ticker


@pytest.fixture(scope="module")
def environment(cluster, tmp_path_factory):
    """A person's, with the cluster and the tools at hand."""
    return at_hand(cluster, tmp_path_factory.mktemp("person"))


@pytest.fixture
def preflight(ticker, environment, tmp_path):
    """Asks about an edit of the job; the exit status, and what was printed."""

    def ask(*words, kubeconfig=None, **spec):
        body = ticker.manifest(**BESIDE)
        body["metadata"]["namespace"] = ticker.namespace.name
        body["spec"] |= spec
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(body))
        there = {**environment, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})}
        command = ["moorage", "preflight", str(file), "--for", "cluster", *words]
        done = subprocess.run(
            command, env=there, capture_output=True, text=True, check=False, timeout=600
        )
        return done.returncode, done.stdout + done.stderr

    return ask


def results(text):
    """What each check came to."""
    rows = (re.split(r" {2,}", line) for line in text.splitlines())
    return {row[0]: row[1] for row in rows if len(row) > 2}


@pytest.fixture
def quota(ticker):
    """A bound of pods, that just those have room in that run."""
    name = {"name": "full"}
    kind = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": name}
    ticker.namespace.apply({**kind, "spec": {"hard": {"pods": "3"}}})

    def counted():
        found = ticker.namespace.get("ResourceQuota", "full", "v1") or {}
        return "pods" in found.get("status", {}).get("used", {})

    wait_until(counted, 60, "the quota counts")
    yield
    ticker.namespace.delete("ResourceQuota", "full", "v1")


@pytest.fixture
def developer(ticker, environment, tmp_path):
    """The kubeconfig of one who has rights to jobs in one namespace, and to nothing beyond it."""
    namespace, named = ticker.namespace, {"metadata": {"name": "developer"}}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    rules = [
        {"apiGroups": [group], "resources": kinds, "verbs": VERBS}
        for group, kinds in OF_A_DEVELOPER.items()
    ]
    account = {"kind": "ServiceAccount", "name": "developer", "namespace": namespace.name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "developer"}
    namespace.apply({"apiVersion": "v1", "kind": "ServiceAccount", **named})
    namespace.apply({**rbac, "kind": "Role", **named, "rules": rules})
    namespace.apply(
        {**rbac, "kind": "RoleBinding", **named, "roleRef": role, "subjects": [account]}
    )
    words = ["kubectl", "-n", namespace.name, "create", "token", "developer"]
    token = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    known = yaml.safe_load(Path(environment["KUBECONFIG"]).read_text())
    for user in known["users"]:
        user["user"] = {"token": token.stdout.strip()}
    mine = tmp_path / "kubeconfig"
    mine.touch(mode=0o600)
    mine.write_text(yaml.safe_dump(known))
    return mine


def test_a_good_edit_passes_on_the_cluster_and_in_a_pod_of_its_own(ticker, preflight):
    before = ticker.attempt
    status, said = preflight("--pod", driver={**ticker.manifest()["spec"]["driver"], **CLASSED})
    assert status == 0, said
    checks = ("manifest", "references", "pods", "quotas", "nodes", "image and job")
    assert [results(said)[one] for one in checks] == ["ok"] * len(checks), said
    assert "begins from" in said
    assert not [p for p in ticker.namespace.every("Pod") if "by-hand" in p["metadata"]["name"]]
    assert ticker.attempt == before


def test_a_program_that_cannot_be_built_is_told_in_its_words(ticker, preflight):
    application = ticker.manifest()["spec"]["application"]
    status, said = preflight(
        "--pod", application={**application, "args": [*application["args"], "no-number"]}
    )
    assert status == 2, said
    assert results(said)["image and job"] == "failed"
    assert "no-number" in said


@pytest.mark.usefixtures("quota")
def test_an_edit_that_a_quota_has_no_room_for_is_told_with_what_it_lacks(preflight):
    status, said = preflight()
    assert (status, results(said)["quotas"]) == (0, "ok"), said
    warm = {"strategy": "WarmStandby", "preflight": True}
    status, said = preflight(image="another:1", upgrade=warm)
    assert (status, results(said)["quotas"]) == (2, "failed"), said
    assert "ResourceQuota full has no room for pods 3 of 3, beside the version that runs" in said
    assert "ResourceQuota full has no room for pods 1 of 3, for the pod of the preflight" in said


def test_who_may_not_look_beyond_the_namespace_is_told_of_what_was_not_asked(
    ticker, preflight, developer
):
    driver = {**ticker.manifest()["spec"]["driver"], **CLASSED}
    status, said = preflight("--pod", kubeconfig=developer, driver=driver)
    assert status == 0, said
    assert 'cannot get resource "priorityclasses"' in said
    assert 'cannot list resource "nodes"' in said
    found = results(said)
    passed = ("manifest", "pods", "quotas", "image and job")
    assert [found[one] for one in passed] == ["ok"] * len(passed), said
    assert [found[one] for one in ("references", "nodes")] == ["unknown"] * 2, said


OBJECTS = [
    ("Service", "ticker-driver", "v1"),
    ("Ingress", "ticker-driver", "networking.k8s.io/v1"),
    ("PodDisruptionBudget", "ticker-driver", "policy/v1"),
    ("PodDisruptionBudget", "ticker-executor", "policy/v1"),
]


def test_what_is_deleted_beside_a_job_at_rest_is_made_again(ticker, cluster, system):
    before, namespace = ticker.attempt, ticker.namespace

    def uids():
        found = [namespace.get(kind, name, version) for kind, name, version in OBJECTS]
        return {one["metadata"]["uid"] for one in found if one is not None}

    wait_until(lambda: len(uids()) == len(OBJECTS), 120, "all of them are there")
    with other_settings(cluster, system, relist=20):
        # Who has just begun to look after it looks at all of it anyway.
        ticker.wait_checkpoints(2)
        old = uids()
        for kind, name, version in OBJECTS:
            namespace.delete(kind, name, version)
        wait_until(lambda: len(uids() - old) == len(OBJECTS), 180, "each is made again")
        (operator,) = system.operators()
        log = system.log(operator)
        assert "orbidden" not in log
        assert "an object of a job is gone: kind=Ingress" in log
    ticker.wait_checkpoints()
    assert ticker.attempt == before
