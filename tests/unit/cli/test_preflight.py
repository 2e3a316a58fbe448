"""`moorage preflight` of a cluster: what is asked by kubectl, and what is said to be untried."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import yaml
from moorage_testing.manifests import job_object, spec_data

from moorage.cli import preflight as module
from moorage.cli.exit_codes import exit_code
from moorage.driver.preflight import Preflight
from moorage.errand import REQUEST_ENV
from moorage_api import JobSpec
from moorage_operator.children.names import labels
from moorage_operator.objects import revision_body
from moorage_operator.world import Meta
from moorage_state.errors import StoreUnavailable
from moorage_state.snapshots.store_tasks import decode_request

DENIED = 'Error from server (Forbidden): {} is forbidden: User "me" cannot list resource'


COULD_START = (
    "clicks could start: 1 stateful operators, begins from chk-7 (epoch 40), drops state of gone\n"
)


@dataclass
class Kubectl:
    """A cluster behind `kubectl`: objects by kind as it is asked for, and what is refused."""

    objects: dict[str, list] = field(default_factory=dict)
    apply: str = ""
    version: str = ""
    admission: Callable = lambda _body: ""
    denied: set = field(default_factory=set)
    answer: dict | None = None  # of a pod
    stays: str = ""  # why none is deleted
    made: list = field(default_factory=list)
    deleted: list = field(default_factory=list)

    def __call__(self, words, text=""):
        done, said = self._get(*words[1:3]) if words[0] == "get" else self._other(words, text)
        return subprocess.CompletedProcess(words, 1 if said else 0, done, said)

    def _other(self, words, text):
        match words:
            case ["version", *_]:
                return "", self.version
            case ["config", *_]:
                return "streams", ""
            case ["apply", *_]:
                return "", self.apply
            case ["create", "--dry-run=server", *_]:
                return "", self.admission(json.loads(text))
            case ["create", *_]:
                self.made.append(json.loads(text))
            case ["delete", _, name, *_]:
                self.deleted.append(name)
                return "", self.stays
        return text, ""

    def _get(self, kind, name):
        if kind in self.denied:
            return "", DENIED.format(kind)
        if kind == "pod":
            return json.dumps({**self.made[-1], "status": self.answer}), ""
        items = self.objects.get(kind, [])
        if name in ("-o", "-l"):
            return json.dumps({"items": items}), ""
        if not name:
            return "", "error: resource name may not be empty"
        found = [one for one in items if one["metadata"]["name"] == name]
        if not found:
            return "", f"Error from server (NotFound): {kind} not found"
        return json.dumps(found[0]), ""


def named(kind, name, **more):
    return {"kind": kind, "metadata": {"name": name, "uid": f"u-{name}"}, **more}


@pytest.fixture
def kubectl(monkeypatch):
    fake = Kubectl({"ServiceAccount": [named("ServiceAccount", "spark")]})
    monkeypatch.setattr(module, "kubectl_of", lambda *_: fake)
    return fake


@pytest.fixture
def manifest(tmp_path):
    def write(**changes):
        path = tmp_path / "clicks.yaml"
        body = job_object(spec_data(**changes), namespace="streams")
        path.write_text(yaml.safe_dump(body))
        return path

    return write


@pytest.fixture
def for_both(manifest, tmp_path, here):  # noqa: ARG001  it is tried here, too
    """A manifest that is one for this machine and for a cluster."""
    (tmp_path / "job.py").write_text("def build(env): ...\n")
    return manifest(application={"mainFile": f"local://{tmp_path}/job.py"})


@pytest.fixture
def here(monkeypatch):
    """What is tried on this machine goes well."""
    found = Preflight(("count",), "chk-7", 40, ("gone",), ("look",))
    monkeypatch.setattr("moorage.driver.preflight.preflight", lambda *_: found)


def test_all_that_the_operator_asks_is_asked_and_what_was_not_tried_is_said(
    moorage, kubectl, manifest
):
    status, out, err = moorage("preflight", manifest())
    assert status == 0
    assert "not tried on this machine: spec.application.mainFile (line 8): is not a file" in err
    assert "Asked of the cluster, for namespace streams:" in out
    assert "a driver and an executor would be admitted" in out
    assert "not tried on the cluster: image, job file, restore point and sinks" in out
    assert "--pod sends a short pod of the image" in out
    for check in ("manifest", "references", "pods", "quotas", "nodes"):
        assert f"{check} " in out
    assert kubectl.made == []


def quota(**hard):
    names = {name.replace("_", "."): amount for name, amount in hard.items()}
    return named("ResourceQuota", "compute", spec={"hard": names}, status={"hard": names})


def test_what_is_wrong_is_all_told_and_fails_the_command(moorage, kubectl, manifest):
    kubectl.apply = 'The StatefulSparkJob "clicks" is invalid: spec.x: no'
    kubectl.objects |= {"ServiceAccount": [], "ResourceQuota": [quota(pods="1")]}
    denied = 'Error from server (Forbidden): pods "x" is forbidden: violates PodSecurity'
    kubectl.admission = lambda body: denied if "driver" in body["metadata"]["name"] else ""
    small = {"allocatable": {"cpu": "1", "memory": "1Gi"}}
    kubectl.objects["Node"] = [named("Node", "a", status=small)]
    status, out, _ = moorage("preflight", manifest(), "--for", "cluster")
    assert status == 2
    assert "is invalid: spec.x: no" in out
    assert "names a service account that is not there: spark" in out
    assert "driver: Error from server (Forbidden)" in out
    assert "ResourceQuota compute has no room for pods 2 of 1" in out
    assert "none could hold driver: of 1 nodes" in out


def test_what_a_person_may_not_read_is_unknown_and_fails_nothing(moorage, kubectl, manifest):
    job = "statefulsparkjobs.moorage.dev"
    kubectl.denied = {"ServiceAccount", "ResourceQuota", "LimitRange", "Node", job}
    kubectl.admission = lambda _body: (
        'Error from server (Forbidden): pods is forbidden: User "me" cannot create resource'
    )
    status, out, _ = moorage("preflight", manifest(), "--for", "cluster")
    assert status == 0
    assert 'ServiceAccount is forbidden: User "me"' in out
    assert "not asked for in a dry run" in out
    assert "not counted" in out
    assert " ok " not in "".join(line for line in out.splitlines() if line.startswith("pods"))


@pytest.mark.parametrize(
    ("field", "said", "why"),
    [
        (
            "version",
            "The connection to the server was refused",
            "kubectl reaches no cluster: The conn",
        ),
        ("apply", 'error: no matches for kind "StatefulSparkJob"', "there is no Moorage in"),
    ],
)
def test_without_a_cluster_that_is_said_and_fails_only_who_asked_for_one(
    moorage, kubectl, manifest, for_both, field, said, why
):
    setattr(kubectl, field, said)
    status, out, err = moorage("preflight", for_both)
    assert (status, out) == (0, COULD_START)
    assert f"not tried on a cluster: {why}" in err
    status, _, err = moorage("preflight", for_both, "--for", "cluster")
    assert status == 2
    assert f"no cluster can be asked: {why}" in err
    assert "kubectl config get-contexts" in err
    # What is tried nowhere has passed nothing.
    status, _, err = moorage("preflight", manifest())
    assert status == 2
    assert why in err


def test_what_fails_here_keeps_nobody_from_asking_the_cluster(
    moorage, kubectl, for_both, monkeypatch
):
    def away(*_):
        raise StoreUnavailable("the store does not answer: endpoint=s3.example")

    monkeypatch.setattr("moorage.driver.preflight.preflight", away)
    status, out, err = moorage("preflight", for_both)
    assert status == exit_code(StoreUnavailable(""))
    assert "tried on this machine: the store does not answer: endpoint=s3.example" in err
    assert "a driver and an executor would be admitted" in out
    kubectl.objects["ServiceAccount"] = []
    status, _, _ = moorage("preflight", for_both)
    assert status == 2
    status, out, err = moorage("preflight", for_both, "--for", "local")
    assert (status, out) == (exit_code(StoreUnavailable("")), "")
    assert "the store does not answer" in err


def test_what_came_out_is_there_for_programs(moorage, kubectl, manifest, for_both, monkeypatch):
    status, out, err = moorage("preflight", for_both, "-o", "json")
    found = json.loads(out)
    assert (status, found["format"], found["command"]) == (0, 1, "preflight")
    assert (found["job"], found["ok"]) == ("clicks", True)
    assert found["local"] == {
        "outcome": "ok",
        "detail": COULD_START.partition(": ")[2].strip(),
        "operators": ["count"],
        "restore": "chk-7",
        "epoch": 40,
        "dropped": ["gone"],
        "warnings": ["look"],
    }
    assert (found["cluster"]["outcome"], found["cluster"]["namespace"]) == ("ok", "streams")
    checks = {one["check"]: one for one in found["cluster"]["findings"]}
    assert checks["pods"]["outcome"] == "ok"
    assert checks["image and job"]["outcome"] == "unknown"
    assert "look" in err
    # What fails on either side is in it, and the status is that of the text.
    kubectl.objects["ServiceAccount"] = []
    status, out, _ = moorage("preflight", for_both, "-o", "yaml")
    found = yaml.safe_load(out)
    assert (status, found["ok"], found["local"]["outcome"]) == (2, False, "ok")
    assert found["cluster"]["outcome"] == "failed"

    def away(*_):
        raise StoreUnavailable("the store does not answer: endpoint=s3.example")

    monkeypatch.setattr("moorage.driver.preflight.preflight", away)
    status, out, err = moorage("preflight", for_both, "--for", "local", "-o", "json")
    found = json.loads(out)
    assert (status, found["ok"]) == (exit_code(StoreUnavailable("")), False)
    assert found["local"]["outcome"] == "failed"
    assert "the store does not answer" in found["local"]["detail"]
    assert "the store does not answer" in err
    assert found["cluster"] == {
        "outcome": "unknown",
        "detail": "--for local",
        "namespace": None,
        "findings": [],
    }
    # Nobody who asked for a cluster takes one that was not asked for a yes.
    kubectl.version = "The connection to the server was refused"
    status, out, err = moorage("preflight", manifest(), "-o", "json")
    found = json.loads(out)
    assert (status, found["ok"], found["cluster"]["outcome"]) == (2, False, "unknown")
    assert found["local"]["outcome"] == "unknown"
    assert "no cluster can be asked" in err


def test_without_kubectl_that_is_said(moorage, for_both, monkeypatch):
    def none(*_):
        raise FileNotFoundError("kubectl")

    monkeypatch.setattr(module, "kubectl_of", lambda *_: none)
    status, _, err = moorage("preflight", for_both)
    assert status == 0
    assert "not tried on a cluster: kubectl is not installed" in err


@pytest.mark.usefixtures("kubectl", "here")
def test_a_job_for_this_machine_is_tried_here_and_why_not_elsewhere_is_said(moorage, job_file):
    status, out, err = moorage("preflight", job_file)
    assert (status, out) == (0, COULD_START)
    assert "look" in err
    assert "not tried on a cluster: spec." in err
    status, out, err = moorage("preflight", job_file, "--for", "local")
    assert (status, out) == (0, COULD_START)
    assert "cluster" not in err


@pytest.mark.usefixtures("kubectl")
def test_a_manifest_that_is_for_neither_is_refused_with_what_is_wrong(moorage, manifest):
    status, _, err = moorage("preflight", manifest(scaling={"parallelism": 0}))
    assert status == 2
    assert "spec.scaling.parallelism" in err


def test_what_a_start_would_be_refused_or_get_less_for_is_a_warning(moorage, kubectl, manifest):
    kubectl.objects["ResourceQuota"] = [quota(pods="2", limits_cpu="64")]
    wide = manifest(scaling={"parallelism": 4})
    status, out, _ = moorage("preflight", wide, "--for", "cluster")
    assert status == 0
    assert "it would start with fewer executors: ResourceQuota compute has no room for pods" in out
    assert "asks every container for limits.cpu" in out
    assert "room for all pods" not in out


def test_pods_are_tried_without_an_owner_which_may_not_be_there_yet(moorage, kubectl, manifest):
    kubectl.admission = lambda body: str(body["metadata"].get("ownerReferences") or "")
    status, out, _ = moorage("preflight", manifest(), "--for", "cluster")
    assert status == 0
    assert "a driver and an executor would be admitted" in out


def test_where_the_pods_of_what_runs_may_not_be_read_room_is_unknown(moorage, kubectl, manifest):
    run_of(kubectl)
    kubectl.denied = {"Pod"}
    kubectl.objects["ResourceQuota"] = [quota(pods="1")]
    status, out, _ = moorage("preflight", manifest(), "--for", "cluster")
    assert status == 0
    assert "whether the pods of the version that runs make room is not known" in out


def test_each_thing_that_could_not_be_looked_at_is_told_and_the_rest_is_asked(
    moorage, kubectl, manifest
):
    kubectl.denied = {"PriorityClass", "LimitRange", "Node"}
    kubectl.objects["ResourceQuota"] = [quota(pods="1", limits_cpu="64")]
    kubectl.objects["ServiceAccount"] = []
    classed = {"podTemplate": {"spec": {"priorityClassName": "high"}}}
    status, out, _ = moorage("preflight", manifest(driver=classed), "--for", "cluster")
    assert status == 2
    assert "PriorityClass: Error from server (Forbidden)" in out
    assert "adds to containers is not known, nor room for limits.cpu: Error from" in out
    assert "names a service account that is not there: spark" in out
    assert "ResourceQuota compute has no room for pods 2 of 1" in out
    assert "not looked at: Error from server (Forbidden): Node is forbidden" in out
    assert " ok " not in "".join(line for line in out.splitlines() if line.startswith("ref"))


def quotas_said(out):
    """Of each finding about quotas what came out."""
    return [line.split()[1] for line in out.splitlines() if line.startswith("quotas ")]


@pytest.mark.parametrize(
    ("bounds", "outcomes", "code"),
    [
        ({"limits_cpu": "64"}, ["unknown"], 0),
        ({"requests_memory": "1Mi"}, ["unknown"], 0),
        ({"limits_cpu": "64", "pods": "1"}, ["unknown", "failed"], 2),
        ({"pods": "64", "requests_storage": "1Ti"}, ["ok"], 0),
    ],
)
@pytest.mark.parametrize("runs", [False, True])
def test_what_depends_on_limit_ranges_that_may_not_be_read_is_unknown(
    moorage, kubectl, manifest, bounds, outcomes, code, runs
):
    if runs:
        run_of(kubectl)
    kubectl.denied = {"LimitRange"}
    kubectl.objects["ResourceQuota"] = [quota(**bounds)]
    warm = manifest(image="b:2", upgrade={"strategy": "WarmStandby"})
    status, out, _ = moorage("preflight", warm, "--for", "cluster")
    assert (status, quotas_said(out)) == (code, outcomes), out
    assert "has no room for limits" not in out
    assert "says none" not in out


def test_where_the_job_may_not_be_read_its_pods_are_nobody_elses(moorage, kubectl, manifest):
    kubectl.denied = {"statefulsparkjobs.moorage.dev"}
    kubectl.objects["ResourceQuota"] = [quota(pods="1")]
    status, out, _ = moorage("preflight", manifest(), "--for", "cluster")
    assert status == 0
    assert "whether the pods of the version that runs make room is not known" in out


def run_of(kubectl, **changes):
    """The job runs, with a driver and two executors."""
    spec = JobSpec.model_validate(spec_data(**changes))
    meta = Meta("clicks", "streams", "u-1", 1, "1")
    body = {
        "metadata": {"name": "clicks", "namespace": "streams", "uid": "u-1", "generation": 1},
        "spec": {},
        "status": {"attempt": {"number": 3, "revision": "clicks-a"}},
    }
    kubectl.objects["statefulsparkjobs.moorage.dev"] = [body]
    kubectl.objects["ControllerRevision"] = [revision_body(meta, "clicks-a", 1, "hash", spec)]
    kubectl.objects["Pod"] = [
        {
            "metadata": {
                "name": f"clicks-3-{role}-{n}",
                "uid": f"{role}{n}",
                "labels": labels(meta, role, 3),
            },
            "spec": {},
            "status": {"phase": "Running"},
        }
        for n, role in enumerate(("driver", "executor", "executor"))
    ]


def test_pods_of_the_version_that_runs_count_as_free(moorage, kubectl, manifest):
    run_of(kubectl, scaling={"parallelism": 4})
    full = quota(pods="3")
    full["status"]["used"] = {"pods": "3"}
    kubectl.objects["ResourceQuota"] = [full]
    edited = {"image": "b:2", "scaling": {"parallelism": 4}}
    status, out, _ = moorage("preflight", manifest(**edited), "--for", "cluster")
    assert (status, "room for all pods" in out) == (0, True)
    warm = manifest(**edited, upgrade={"strategy": "WarmStandby"})
    status, out, _ = moorage("preflight", warm, "--for", "cluster")
    assert status == 2
    assert "no room for pods 3 of 3, beside the version that runs, which upgrade.strategy" in out
    tried = manifest(**{**edited, "scaling": {"parallelism": 6}}, upgrade={"preflight": True})
    status, out, _ = moorage("preflight", tried, "--for", "cluster")
    assert status == 2
    assert "no room for pods 4 of 3; ResourceQuota compute has no room for pods 1 of 3, for" in out


def test_of_a_job_that_was_never_started_no_version_is_looked_up(moorage, kubectl, manifest):
    run_of(kubectl)
    kubectl.objects["statefulsparkjobs.moorage.dev"][0]["status"] = {}
    kubectl.objects["Pod"] = []
    full = quota(pods="3")
    full["status"]["used"] = {"pods": "3"}
    kubectl.objects["ResourceQuota"] = [full]
    status, out, _ = moorage("preflight", manifest(), "--for", "cluster")
    assert (status, "no room for pods" in out) == (2, True), out


def ended(**answer):
    message = json.dumps({"format": 1, "id": "", "state": "Completed", **answer})
    state = {"terminated": {"exitCode": 0, "message": message, "finishedAt": None}}
    return {"phase": "Succeeded", "containerStatuses": [{"name": "errand", "state": state}]}


def test_a_pod_of_the_image_tries_it_and_is_deleted(moorage, kubectl, manifest):
    kubectl.objects["namespace"] = [named("Namespace", "kube-system")]
    kubectl.answer = ended(result={"text": "2 stateful operators, begins with nothing"})
    status, out, _ = moorage("preflight", manifest(), "--pod")
    assert status == 0
    assert "2 stateful operators, begins with nothing" in out
    assert "not tried on the cluster" not in out
    (pod,) = kubectl.made
    assert kubectl.deleted == [pod["metadata"]["name"]]
    assert pod["spec"]["containers"][0]["command"][-1] == "moorage.preflight"
    # The operator looks after pods of a job's uid, and would delete one that it did not send.
    assert pod["metadata"]["labels"]["moorage.dev/job-uid"] == ""
    assert "ownerReferences" not in pod["metadata"]


POINT = "s3://bucket/saves/friday"


def asked_of(moorage, kubectl, path, *words):
    """What a pod of this manifest is asked for: the point, and the digest of its manifest."""
    kubectl.made.clear()
    kubectl.objects["namespace"] = [named("Namespace", "kube-system")]
    kubectl.answer = ended(result={"text": "2 stateful operators"})
    status, out, _ = moorage("preflight", path, "--pod", *words)
    assert status == 0, out
    (pod,) = kubectl.made
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    asked = decode_request(env[REQUEST_ENV])
    return asked.path or asked.source, asked.digest


@pytest.mark.parametrize("restore", [{"mode": "Path", "path": POINT}, {"mode": "Empty"}])
def test_a_pod_tries_what_is_named_until_a_start_has_followed_it(
    moorage, kubectl, manifest, restore
):
    first = (restore.get("path", "Empty"), "")
    assert asked_of(moorage, kubectl, manifest(restore=restore)) == first
    run_of(kubectl)
    assert asked_of(moorage, kubectl, manifest(restore=restore)) == ("", "")
    raised = manifest(restore=restore | {"nonce": 1})
    assert asked_of(moorage, kubectl, raised) == first
    other = "s3://bucket/saves/other"
    assert asked_of(moorage, kubectl, raised, "--restore", other) == (other, "")
    body = kubectl.objects["statefulsparkjobs.moorage.dev"][0]
    body["status"]["reconciliation"] = {"restoreNonce": 1}
    assert asked_of(moorage, kubectl, raised) == ("", "")


def test_a_pod_tries_the_snapshot_that_is_named(moorage, kubectl, manifest):
    path = manifest(restore={"mode": "Snapshot", "snapshotName": "friday"})
    body = named("StatefulSparkSnapshot", "friday", spec={"jobRef": {"name": "clicks"}})
    kubectl.objects["StatefulSparkSnapshot"] = [body]
    status, out, _ = moorage("preflight", path, "--pod")
    assert (status, kubectl.made) == (2, [])
    assert "spec.restore.snapshotName names friday, which is not completed" in out
    body["status"] = {"state": "Completed", "path": POINT, "manifestDigest": "d" * 64}
    assert asked_of(moorage, kubectl, path) == (POINT, "d" * 64)


def test_a_pod_that_cannot_be_deleted_is_said_and_the_answer_counts(moorage, kubectl, manifest):
    kubectl.objects["namespace"] = [named("Namespace", "kube-system")]
    kubectl.answer = ended(result={"text": "2 stateful operators"})
    kubectl.stays = "Error from server (Forbidden): pods is forbidden"
    status, out, err = moorage("preflight", manifest(), "--pod")
    assert status == 0
    assert "2 stateful operators" in out
    assert "was not deleted, and ends by itself" in err


def test_what_the_pod_says_against_it_fails_the_command(moorage, kubectl, manifest):
    kubectl.objects["namespace"] = [named("Namespace", "kube-system")]
    kubectl.answer = ended(state="Failed", code="user", message="job.py cannot be imported: line=3")
    status, out, _ = moorage("preflight", manifest(), "--pod")
    assert status == 2
    assert "job.py cannot be imported: line=3" in out
    assert len(kubectl.deleted) == 1


@pytest.mark.usefixtures("kubectl")
def test_a_pod_that_may_not_be_sent_is_said(moorage, manifest):
    status, out, _ = moorage("preflight", manifest(), "--pod")
    assert status == 0
    assert "by the cluster: Error from server (NotFound): namespace not found" in out
    assert "image and job: ask for a right to get the namespace kube-system" in out


def test_a_pod_is_told_by_a_url_what_to_restore(moorage, kubectl, manifest):
    asked: list[dict] = []

    def admission(body: dict) -> str:
        asked.append(body)
        return ""

    kubectl.admission = admission
    status, _, err = moorage("preflight", manifest(), "--pod", "--restore", "chk-3")
    assert status == 2
    assert "a pod is told by a URL what to restore: given=chk-3" in err
    assert "kubectl moorage history clicks shows them" in err
    assert asked == [], "the cluster was asked in vain"


@pytest.mark.usefixtures("kubectl")
def test_what_is_wrong_with_a_manifest_is_there_for_programs_as_validate_has_it(moorage, for_both):
    for_both.write_text(for_both.read_text().replace("parallelism:", "paralelism:"))
    _, told, _ = moorage("validate", for_both, "-o", "json")
    problems = json.loads(told)["problems"]
    assert len(problems) == 2
    for target, tried in (("both", {"failed"}), ("local", {"failed", "unknown"})):
        status, out, err = moorage("preflight", for_both, "--for", target, "-o", "json")
        found = json.loads(out)
        assert (status, err) == (2, "")
        assert (found["job"], found["ok"], found["problems"]) == (None, False, problems)
        assert {found[place]["outcome"] for place in ("local", "cluster")} == tried
        assert problems[0]["reason"] in found["local"]["detail"]
    status, out, err = moorage("preflight", for_both)
    assert (status, out) == (2, "")
    assert "paralelism" in err
