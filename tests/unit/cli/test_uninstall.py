"""`moorage uninstall`: what goes, in which order, and what is refused."""

import json
import subprocess

import pytest

from moorage.cli import uninstall as module
from moorage.cli.kubectl import JOBS, SNAPSHOTS


def object_of(kind, name, namespace="streams"):
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}}


class ClusterOfTwo:
    """kubectl and helm on a cluster with two jobs and a snapshot; what was said, in order."""

    def __init__(self):
        self.objects = {
            JOBS: [object_of("StatefulSparkJob", "clicks"), object_of("StatefulSparkJob", "views")],
            SNAPSHOTS: [object_of("StatefulSparkSnapshot", "clicks-before")],
            "serviceaccounts": [
                object_of("ServiceAccount", "spark"),
                object_of("ServiceAccount", "moorage", "moorage"),
            ],
            "roles.rbac.authorization.k8s.io": [object_of("Role", "spark-driver")],
            "rolebindings.rbac.authorization.k8s.io": [object_of("RoleBinding", "spark-driver")],
            "leases.coordination.k8s.io": [
                object_of("Lease", "moorage-leader", "moorage"),
                object_of("Lease", "cert-manager-leader", "moorage"),
                object_of("Lease", "somebody-leader", "others"),
            ],
            "deployments.apps": [object_of("Deployment", "moorage", "moorage")],
        }
        self.final_savepoints = False
        self.without = ""
        self.done = []
        self.changes = {}
        self.helm_error = ""

    def kubectl(self, arguments, _text=""):
        verb, kind, *words = arguments
        if verb == "get":
            assert "--all-namespaces" in words
            if kind == self.without:
                told = f"error: the server doesn't have a resource type {kind!r}"
                return subprocess.CompletedProcess([], 1, "", told)
            told = json.dumps({"items": self.objects[kind]})
            return subprocess.CompletedProcess([], 0, told)
        self.done.append((verb, kind, words[0]))
        if verb == "patch":
            self.changes[words[0]] = json.loads(words[words.index("-p") + 1])
            return subprocess.CompletedProcess([], 0, "{}")
        if kind == JOBS and self.final_savepoints:
            final = object_of("StatefulSparkSnapshot", f"{words[0]}-final")
            self.objects[SNAPSHOTS] = [*self.objects[SNAPSHOTS], final]
        known = self.objects.get(kind, [])
        self.objects[kind] = [one for one in known if one["metadata"]["name"] != words[0]]
        return subprocess.CompletedProcess([], 0, "")

    def helm(self, arguments):
        if arguments[0] == "uninstall":
            self.done.append(tuple(arguments))
        if self.helm_error:
            return subprocess.CompletedProcess([], 1, "", self.helm_error)
        return subprocess.CompletedProcess([], 0, 'release "moorage" uninstalled')


@pytest.fixture
def cluster(monkeypatch):
    made = ClusterOfTwo()
    monkeypatch.setattr(module, "kubectl_of", lambda _context: made.kubectl)
    monkeypatch.setattr(module, "helm_of", lambda _context: made.helm)
    return made


HELM = ("uninstall", "moorage", "--namespace=moorage")


def test_the_operator_alone_goes_and_jobs_go_on(moorage, cluster):
    status, out, err = moorage("uninstall", "--yes")
    assert (status, cluster.done) == (0, [HELM])
    assert 'release "moorage" uninstalled' in err
    rows = [line.split(maxsplit=3) for line in out.splitlines()[1:]]
    assert rows[0] == ["job", "streams", "clicks", "goes on"]
    assert "stay, with all jobs and snapshots" in out


def test_for_programs_it_is_one_document_and_nobody_is_asked(moorage, cluster):
    status, _, err = moorage("uninstall", "-o", "json")
    assert (status, cluster.done, "add --yes" in err) == (2, [], True)
    status, out, _ = moorage("uninstall", "--yes", "-o", "json")
    assert (status, cluster.done) == (0, [HELM])
    document = json.loads(out)
    assert document["objects"][0] == {
        "what": "job",
        "namespace": "streams",
        "name": "clicks",
        "outcome": "goes on",
    }


def test_everything_goes_in_the_order_in_which_nothing_is_lost(moorage, cluster):
    status, out, _ = moorage("uninstall", "--jobs", "--definitions", "--yes")
    assert status == 0
    assert cluster.done == [
        ("patch", JOBS, "clicks"),
        ("delete", JOBS, "clicks"),
        ("patch", JOBS, "views"),
        ("delete", JOBS, "views"),
        ("patch", SNAPSHOTS, "clicks-before"),
        ("delete", SNAPSHOTS, "clicks-before"),
        HELM,
        ("delete", "serviceaccount", "spark"),
        ("delete", "role", "spark-driver"),
        ("delete", "rolebinding", "spark-driver"),
        ("delete", "lease", "moorage-leader"),
        ("delete", "customresourcedefinitions", JOBS),
        ("delete", "customresourcedefinitions", SNAPSHOTS),
    ]
    assert "its object is deleted, its data stay" in out
    assert cluster.changes["clicks-before"] == {"spec": {"deletionPolicy": "Retain"}}
    assert cluster.changes["clicks"] == {
        "spec": {"deletion": {"policy": "Retain"}, "profile": "none"}
    }


def job_of(spec, *, runs=True, annotations=None, profile=None):
    """A job as the API server shows it."""
    job = object_of("StatefulSparkJob", "clicks")
    job["metadata"]["annotations"] = annotations or {}
    job["spec"] = spec
    job["status"] = {"attempt": {"runningSince": "2026-11-23T14:18:30Z"}, "profile": profile}
    if not runs:
        job["status"]["attempt"]["outcome"] = "Stopped"
    return job


SAVES = {"savepointDir": "s3://bucket/saves"}


@pytest.mark.parametrize(
    ("job", "end"),
    [
        (job_of({"state": SAVES}), "ends with its final savepoint"),
        (job_of({"state": {}}), "ends with a final checkpoint"),
        (
            job_of({"state": SAVES, "deletion": {"finalSnapshot": "Checkpoint"}}),
            "ends with a final checkpoint",
        ),
        (
            job_of({"state": SAVES, "deletion": {"finalSnapshot": "None"}}),
            "ends without a final snapshot",
        ),
        (
            job_of({"state": SAVES}, annotations={"moorage.dev/skip-final-savepoint": "true"}),
            "ends without a final snapshot",
        ),
        (
            job_of({"state": SAVES}, profile={"values": {"deletion": {"finalSnapshot": "None"}}}),
            "ends without a final snapshot",
        ),
        (job_of({"state": SAVES}, runs=False), "does not run"),
        (object_of("StatefulSparkJob", "never-started"), "does not run"),
    ],
)
def test_of_each_job_it_is_told_what_is_taken_at_its_end(moorage, cluster, job, end):
    cluster.objects[JOBS] = [job]
    status, out, _ = moorage("uninstall", "--jobs", "--yes", "-o", "json")
    assert status == 0
    assert json.loads(out)["objects"][0]["outcome"].startswith(end)


def test_checkpoints_stay_also_where_a_profile_says_otherwise(moorage, cluster):
    profile = {"name": "short", "values": {"deletion": {"policy": "Delete"}}}
    cluster.objects[JOBS] = [job_of({"state": SAVES}, profile=profile)]
    status, _, _ = moorage("uninstall", "--jobs", "--yes")
    assert status == 0
    assert cluster.changes["clicks"] == {
        "spec": {"deletion": {"policy": "Retain"}, "profile": "none"}
    }


def test_a_job_ends_as_its_profile_says_though_that_no_longer_counts(moorage, cluster):
    deletion = {"policy": "Delete", "finalSnapshot": "None", "timeout": "1m"}
    profile = {"name": "short", "values": {"deletion": deletion}}
    spec = {"state": SAVES, "deletion": {"finalSnapshot": "Savepoint", "timeout": "2m"}}
    cluster.objects[JOBS] = [job_of(spec, profile=profile)]
    status, out, _ = moorage("uninstall", "--jobs", "--yes", "-o", "json")
    assert status == 0
    assert json.loads(out)["objects"][0]["outcome"].startswith("ends without a final snapshot")
    assert cluster.changes["clicks"]["spec"] == {
        "deletion": {"policy": "Retain", "finalSnapshot": "None", "timeout": "2m"},
        "profile": "none",
    }


def test_final_savepoints_of_jobs_that_ended_are_let_go_as_well(moorage, cluster):
    cluster.final_savepoints = True
    status, _, err = moorage("uninstall", "--jobs", "--definitions", "--yes", "--timeout", "1")
    assert status == 0, err
    assert ("patch", SNAPSHOTS, "clicks-final") in cluster.done
    assert ("delete", SNAPSHOTS, "views-final") in cluster.done


def test_definitions_with_jobs_behind_them_are_refused_before_anything_is_done(moorage, cluster):
    status, _, err = moorage("uninstall", "--definitions", "--yes")
    assert (status, cluster.done) == (2, [])
    assert "jobs=2; end them first (--jobs)" in err


def test_what_was_begun_goes_on_after_the_release_and_a_definition_went(moorage, cluster):
    cluster.helm_error = "Error: release: not found"
    for kind in (JOBS, "deployments.apps"):
        cluster.objects[kind] = []
    cluster.without = JOBS
    status, out, err = moorage("uninstall", "--jobs", "--definitions", "--yes")
    assert status == 0, err
    assert "is gone already" in out
    assert HELM not in cluster.done
    assert ("delete", SNAPSHOTS, "clicks-before") in cluster.done
    assert cluster.done[-1] == ("delete", "customresourcedefinitions", SNAPSHOTS)


def test_a_release_of_another_name_is_not_taken_for_gone(moorage, cluster):
    cluster.helm_error = "Error: release: not found"
    cluster.objects[JOBS] = []
    status, _, err = moorage("uninstall", "--definitions", "--yes")
    assert (status, cluster.done) == (2, [])
    assert "release: not found" in err


def test_who_does_not_say_yes_keeps_everything(moorage, cluster):
    status, out, _ = moorage("uninstall", "--jobs")
    assert (status, cluster.done) == (1, [])
    assert "Go on?" in out


def test_jobs_that_do_not_end_keep_the_operator(moorage, cluster, monkeypatch):
    kubectl = cluster.kubectl

    def stuck(arguments, text=""):
        if arguments[0] == "delete":
            cluster.done.append(tuple(arguments[:3]))
            return subprocess.CompletedProcess([], 0, "")
        return kubectl(arguments, text)

    monkeypatch.setattr(module, "kubectl_of", lambda _context: stuck)
    status, _, err = moorage("uninstall", "--jobs", "--yes", "--timeout", "1")
    assert (status, HELM in cluster.done) == (2, False)
    assert "not deleted yet: clicks, views" in err


def test_a_release_that_helm_does_not_know_is_told_before_anything_is_done(moorage, cluster):
    cluster.helm_error = "Error: release: not found"
    status, out, err = moorage("uninstall", "--jobs", "--yes")
    assert (status, cluster.done, out) == (2, [], "")
    assert "release: not found" in err
