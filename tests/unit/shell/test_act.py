"""Each effect: that it is done, that doing it again does no harm, and what it refuses to touch."""

from base64 import b64decode

import pytest

from moorage_api.driver import CheckpointBody, StartOrder
from moorage_api.lifecycle import Ui
from moorage_api.status import read_status
from moorage_operator import memory
from moorage_operator.objects import meta_of, read_job_spec, revision_body
from moorage_operator.plan import (
    AskDriver,
    DeleteObject,
    DeletePod,
    KeepSnapshot,
    Plan,
    RunStoreTask,
    SaveRevision,
    SetDisruptionBudget,
    SetFinalizer,
    SetIngress,
    SetPodMonitor,
    StartDriver,
    StoreTask,
    TidyAttempt,
    TidyRevisions,
)
from moorage_operator.ports import ApiUnavailable, EndpointRefused, EndpointUnreachable, NotFound
from moorage_operator.snapshots.naming import second_name
from moorage_operator.world import StoreTaskView

from .conftest import job_body

RUNNING = {"phase": "Running", "podIP": "10.0.0.1"}


def always(shell, *effects):
    """Decide for these effects in every pass, whatever is there."""
    shell.decide = lambda world: Plan(world.status, effects)


def start(shell, attempt=1):
    uid = shell.job()["metadata"]["uid"]
    order = StartOrder(attempt=attempt, cluster_id="test", job_uid=uid)
    return SaveRevision("clicks-abc", attempt, "hash"), StartDriver("clicks-abc", order)


def intend(shell, attempt=1):
    shell.api.set_status("StatefulSparkJob", "here", "clicks", attempt={"number": attempt})


def names(shell, kind):
    return [found["metadata"]["name"] for found in shell.api.list(kind)]


# -- starting --------------------------------------------------------------------------------------


async def test_a_start_makes_everything_with_the_pod_last(shell):
    shell.make_job()
    intend(shell)
    always(shell, *start(shell))
    await shell.settle()
    made = [call.kind for call in shell.cluster.effects]
    assert made.index("Pod") == max(
        made.index(kind) for kind in ("Secret", "Service", "ConfigMap", "Pod")
    )
    assert names(shell, "Pod") == ["clicks-1-driver"]
    assert names(shell, "ConfigMap") == ["clicks-1-config"]


def secret(shell, name, key):
    return b64decode(shell.api.get("Secret", "here", name)["data"][key]).decode()


async def started_anew(shell):
    """The first driver has ended, the second one is started."""
    shell.make_job()
    intend(shell)
    always(shell, *start(shell))
    await shell.settle()
    shell.api.set_status("Pod", "here", "clicks-1-driver", phase="Failed")
    intend(shell, 2)
    always(shell, *start(shell, 2))
    await shell.settle()


async def test_a_second_start_has_new_tokens_and_the_same_one_for_reading(shell):
    await started_anew(shell)
    one, two = (secret(shell, f"clicks-{number}-tokens", "control") for number in (1, 2))
    assert one != two
    assert min(len(one), len(two)) >= 32
    assert len(secret(shell, "clicks-scrape", "token")) >= 32
    assert len(names(shell, "Secret")) == 3


async def test_the_secrets_of_ended_attempts_go_with_their_config_maps(shell):
    await started_anew(shell)
    always(shell, TidyAttempt(below=2))
    await shell.settle()
    shell.api.collect()
    assert sorted(names(shell, "Secret")) == ["clicks-2-tokens", "clicks-scrape"]
    shell.api.delete("StatefulSparkJob", "here", "clicks")
    shell.api.collect()
    assert names(shell, "Secret") == []


async def test_a_start_that_is_repeated_keeps_the_attempts_tokens(shell):
    shell.make_job()
    intend(shell)
    shell.cluster.fail(ApiUnavailable("away"), verb="create", kind="Pod")
    always(shell, *start(shell))
    await shell.reconcile()
    control = secret(shell, "clicks-1-tokens", "control")
    shell.reconciler = shell.another()
    await shell.settle()
    assert names(shell, "Pod") == ["clicks-1-driver"]
    assert secret(shell, "clicks-1-tokens", "control") == control


async def test_a_token_for_reading_that_somebody_chose_is_left_alone(shell):
    shell.make_job()
    intend(shell)
    theirs = {"apiVersion": "v1", "kind": "Secret", "stringData": {"token": "their own choice"}}
    shell.api.create({**theirs, "metadata": {"name": "clicks-scrape", "namespace": "here"}})
    always(shell, *start(shell))
    await shell.settle()
    assert secret(shell, "clicks-scrape", "token") == "their own choice"
    assert names(shell, "Pod") == ["clicks-1-driver"]


async def test_nothing_is_started_that_the_status_does_not_name(shell):
    shell.make_job()
    intend(shell, 7)
    always(shell, *start(shell, 1))
    done = await shell.reconcile()
    assert "another attempt" in done.problem
    assert names(shell, "Pod") == []


async def test_nothing_is_started_beside_an_earlier_driver(shell):
    shell.make_job()
    shell.make_pod(1, status=RUNNING)
    intend(shell, 2)
    with shell.cluster.frozen("StatefulSparkSnapshot"):
        always(shell, *start(shell, 2))
        done = await shell.reconcile()
    assert "clicks-1-driver" in done.problem
    assert names(shell, "Pod") == ["clicks-1-driver"]


async def test_an_ended_driver_is_no_hindrance(shell):
    shell.make_job()
    shell.make_pod(1, status={"phase": "Failed"})
    intend(shell, 2)
    always(shell, *start(shell, 2))
    await shell.settle()
    assert names(shell, "Pod") == ["clicks-1-driver", "clicks-2-driver"]


@pytest.mark.parametrize("kind", ["Pod", "ConfigMap", "Service", "Secret"])
async def test_another_ones_object_of_our_name_is_not_taken_over(shell, kind):
    shell.make_job()
    intend(shell)
    name = {
        "Pod": "clicks-1-driver",
        "ConfigMap": "clicks-1-config",
        "Service": "clicks-driver",
        "Secret": "clicks-1-tokens",
    }[kind]
    theirs = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "here"}}
    before = shell.api.create({**theirs, "spec": {}} if kind != "Secret" else theirs)
    always(shell, *start(shell))
    done = await shell.reconcile()
    assert name in done.problem
    assert shell.api.get(kind, "here", name) == before


async def test_a_revision_that_is_gone_cannot_be_started(shell):
    shell.make_job()
    intend(shell)
    always(shell, start(shell)[1])
    done = await shell.reconcile()
    assert "revision=clicks-abc" in done.problem


# -- revisions -------------------------------------------------------------------------------------


async def test_a_revision_keeps_the_spec_with_its_defaults(shell):
    shell.make_job()
    always(shell, SaveRevision("clicks-abc", 1, "hash"))
    await shell.settle()
    shell.api.set_status(
        "StatefulSparkJob", "here", "clicks", reconciliation={"currentRevision": "clicks-abc"}
    )
    await shell.settle()
    found = shell.world.revisions["clicks-abc"]
    assert (found.number, found.spec_hash) == (1, "hash")
    assert found.spec == shell.world.spec


async def test_a_spec_that_comes_back_gets_a_new_number(shell):
    shell.make_job()
    for number in (1, 3, 2):
        always(shell, SaveRevision("clicks-abc", number, "hash"))
        await shell.settle()
    assert shell.api.get("ControllerRevision", "here", "clicks-abc")["revision"] == 3


async def test_a_revision_of_a_former_object_makes_way(shell):
    shell.make_job()
    always(shell, SaveRevision("clicks-abc", 1, "hash"))
    await shell.settle()
    shell.api.delete("StatefulSparkJob", "here", "clicks")
    uid = shell.make_job()["metadata"]["uid"]
    for _ in range(3):
        await shell.reconcile()
    owners = shell.api.get("ControllerRevision", "here", "clicks-abc")["metadata"][
        "ownerReferences"
    ]
    assert [owner["uid"] for owner in owners] == [uid]


async def test_tidying_keeps_what_it_is_told_to(shell):
    shell.make_job()
    for name in ("clicks-a", "clicks-b"):
        always(shell, SaveRevision(name, 1, "hash"))
        await shell.settle()
    always(shell, TidyRevisions(frozenset({"clicks-b"})))
    await shell.settle()
    assert names(shell, "ControllerRevision") == ["clicks-b"]


# -- drivers ---------------------------------------------------------------------------------------


async def test_a_driver_is_asked_with_its_token_and_once_counts_as_a_change(shell, a_state):
    shell.make_job()
    intend(shell)
    always(shell, *start(shell))
    await shell.settle()
    shell.api.set_status("Pod", "here", "clicks-1-driver", **RUNNING)
    shell.drivers.answer = a_state(shell)
    always(shell, AskDriver(1, "/checkpoints", CheckpointBody(request_id="r-1")))
    await shell.settle()
    control = secret(shell, "clicks-1-tokens", "control")
    assert {asked[:3] for asked in shell.drivers.asked} == {("10.0.0.1", control, "/checkpoints")}
    assert {asked[3].request_id for asked in shell.drivers.asked} == {"r-1"}


@pytest.mark.parametrize(
    "error", [EndpointUnreachable("silence"), EndpointRefused("request_conflict", "another body")]
)
async def test_a_driver_that_does_not_take_it_ends_the_pass(shell, error):
    shell.make_job()
    intend(shell)
    always(shell, *start(shell))
    await shell.settle()
    shell.api.set_status("Pod", "here", "clicks-1-driver", **RUNNING)
    shell.drivers.answer = error
    always(shell, AskDriver(1, "/checkpoints", CheckpointBody(request_id="r-1")))
    assert str(error) in (await shell.reconcile()).problem


async def test_a_driver_that_does_not_run_cannot_be_asked(shell):
    shell.make_job()
    always(shell, AskDriver(1, "/checkpoints", CheckpointBody(request_id="r-1")))
    assert "does not run" in (await shell.reconcile()).problem


# -- pods ------------------------------------------------------------------------------------------


async def test_only_the_pod_of_the_uid_is_deleted(shell):
    shell.make_job()
    shell.make_pod(1)
    always(shell, DeletePod("clicks-1-driver", "another-uid"), DeletePod("gone", "u"))
    assert not (await shell.reconcile()).problem
    assert "deletionTimestamp" not in shell.api.get("Pod", "here", "clicks-1-driver")["metadata"]


async def test_a_pod_of_a_lost_node_is_deleted_without_grace(shell):
    shell.make_job()
    uid = shell.make_pod(1)["metadata"]["uid"]
    always(shell, DeletePod("clicks-1-driver", uid, 0))
    await shell.settle()
    assert names(shell, "Pod") == []


async def test_tidying_keeps_the_newest_ended_pods_and_living_ones(shell):
    shell.make_job()
    for attempt in (1, 2, 3, 4):
        shell.make_pod(attempt, status={"phase": "Running" if attempt == 1 else "Failed"})
        shell.make_pod(attempt, role="executor", name=f"e-{attempt}", status={"phase": "Succeeded"})
    always(shell, TidyAttempt(below=4, keep=1))
    await shell.settle()
    assert names(shell, "Pod") == [
        "clicks-1-driver",
        "clicks-3-driver",
        "clicks-4-driver",
        "e-3",
        "e-4",
    ]


async def test_tidying_removes_the_config_of_old_attempts_only(shell):
    shell.make_job()
    for attempt in (1, 2):
        intend(shell, attempt)
        always(shell, *start(shell, attempt))
        await shell.settle()
        shell.api.set_status("Pod", "here", f"clicks-{attempt}-driver", phase="Failed")
    always(shell, TidyAttempt(below=2))
    await shell.settle()
    assert names(shell, "ConfigMap") == ["clicks-2-config"]


async def test_pods_go_last_as_they_say_that_something_is_left(shell):
    shell.make_job()
    intend(shell, 1)
    always(shell, *start(shell, 1))
    await shell.settle()
    shell.api.set_status("Pod", "here", "clicks-1-driver", phase="Failed")
    always(shell, TidyAttempt(below=2, keep=0))
    await shell.settle()
    deleted = [call.kind for call in shell.cluster.effects if call.verb == "delete"]
    assert deleted == ["ConfigMap", "Pod"]


# -- objects and store tasks ----------------------------------------------------------------------


async def test_the_finalizer_is_added_beside_others_and_removed_alone(shell):
    shell.make_job(meta={"finalizers": ["theirs.example/x"]})
    always(shell, SetFinalizer(present=True))
    await shell.settle()
    assert shell.job()["metadata"]["finalizers"] == ["theirs.example/x", "moorage.dev/operator"]
    always(shell, SetFinalizer(present=False))
    await shell.settle()
    assert shell.job()["metadata"]["finalizers"] == ["theirs.example/x"]


async def test_a_dying_object_gets_no_finalizer(shell):
    shell.make_job(meta={"finalizers": ["theirs.example/x"]})
    shell.api.delete("StatefulSparkJob", "here", "clicks")
    always(shell, SetFinalizer(present=True))
    assert not (await shell.reconcile()).problem


async def test_the_object_goes_with_its_last_finalizer(shell):
    shell.make_job(meta={"finalizers": ["moorage.dev/operator"]})
    shell.api.delete("StatefulSparkJob", "here", "clicks")
    always(shell, SetFinalizer(present=False))
    await shell.settle()
    assert shell.job() is None


async def test_an_object_of_another_uid_is_not_deleted(shell):
    shell.make_job()
    always(shell, DeleteObject("StatefulSparkJob", "clicks", "another-uid"))
    assert not (await shell.reconcile()).changed
    assert shell.job() is not None


async def test_a_snapshot_is_kept_once_and_has_no_owner(shell):
    shell.make_job()
    spec = {"jobRef": {"name": "clicks"}, "type": "Savepoint", "name": "a"}
    always(shell, KeepSnapshot("clicks-a", spec, "Manual", "a"))
    await shell.settle()
    [made] = shell.api.list("StatefulSparkSnapshot")
    assert made["spec"] == spec
    assert made["metadata"]["labels"] == {
        "moorage.dev/job": "clicks",
        "moorage.dev/trigger": "Manual",
        "moorage.dev/type": "Savepoint",
    }
    assert "ownerReferences" not in made["metadata"]


async def test_a_snapshot_that_an_upgrade_began_is_made_to_stay_where_it_is_the_last(shell):
    shell.make_job()
    spec = {"jobRef": {"name": "clicks"}, "type": "Savepoint", "name": "a"}
    always(shell, KeepSnapshot("clicks-a", {**spec, "deletionPolicy": "Delete"}, "Upgrade", "1"))
    await shell.settle()
    always(shell, KeepSnapshot("clicks-a", {**spec, "deletionPolicy": "Retain"}, "Final", "2"))
    await shell.settle()
    [left] = shell.api.list("StatefulSparkSnapshot")
    assert left["spec"] == {**spec, "deletionPolicy": "Retain"}
    assert left["metadata"]["labels"]["moorage.dev/trigger"] == "Final"
    assert left["metadata"]["labels"]["moorage.dev/job"] == "clicks"
    assert not (await shell.reconcile()).changed


async def test_a_store_tasks_outcome_is_seen_by_the_next_pass(shell):
    shell.make_job()
    always(shell, RunStoreTask(StoreTask("e-1", "Release")))
    await shell.settle()
    assert shell.world.store_tasks["e-1"].state == "Pending"


async def test_a_status_is_only_ever_the_models(shell):
    shell.make_job()
    shell.api.set_status("StatefulSparkJob", "here", "clicks", format=1, ofTheFuture=1)
    always(shell)
    await shell.settle()
    assert read_status(shell.status()).format == 1


async def test_a_snapshot_whose_name_another_jobs_has_gets_another_one_once(shell):
    shell.make_job("clicks-eu")
    shell.make_job()
    theirs = {"jobRef": {"name": "clicks-eu"}, "type": "Savepoint", "name": "final"}
    shell.api.create(
        {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkSnapshot",
            "metadata": {"name": "clicks-eu-final", "namespace": "here"},
            "spec": theirs,
        }
    )
    mine = {"jobRef": {"name": "clicks"}, "type": "Savepoint", "name": "eu-final"}
    always(shell, KeepSnapshot("clicks-eu-final", mine, "Manual", "a"))
    await shell.settle()
    made = {o["metadata"]["name"]: o["spec"] for o in shell.api.list("StatefulSparkSnapshot")}
    assert made.pop("clicks-eu-final") == theirs
    assert list(made) == [second_name("clicks", "clicks-eu-final")]
    assert list(made.values()) == [mine]


async def test_of_store_tasks_only_the_newest_are_remembered(shell):
    shell.make_job()
    for number in range(100):
        always(shell, RunStoreTask(StoreTask(f"e-{number}", "Release")))
        await shell.settle()
    assert len(shell.world.store_tasks) < 40
    assert "e-99" in shell.world.store_tasks


PAGE = {
    "ingressTemplate": "streams.example.com/{{namespace}}/{{name}}",
    "className": "nginx",
    "annotations": {"example.com/a": "b"},
    "labels": {"team": "a", "moorage.dev/job": "other"},
    "tls": [{"hosts": ["streams.example.com"], "secretName": "streams-tls"}],
}


async def test_an_ingress_is_made_changed_and_removed_once_each(shell):
    shell.make_job()
    always(shell, SetIngress(Ui.model_validate(PAGE)))
    await shell.settle()
    before = len(shell.cluster.effects)
    await shell.reconcile()
    assert len(shell.cluster.effects) == before
    [made] = shell.api.list("Ingress")
    meta, spec = made["metadata"], made["spec"]
    assert meta["ownerReferences"][0]["uid"] == shell.job()["metadata"]["uid"]
    assert (meta["annotations"], meta["labels"]["team"]) == ({"example.com/a": "b"}, "a")
    assert meta["labels"]["moorage.dev/job"] == "clicks"
    assert (spec["ingressClassName"], spec["tls"]) == ("nginx", PAGE["tls"])
    [rule] = spec["rules"]
    service = {"name": "clicks-driver", "port": {"name": "endpoint"}}
    path = {"path": "/here/clicks", "pathType": "Prefix", "backend": {"service": service}}
    assert rule == {"host": "streams.example.com", "http": {"paths": [path]}}
    always(shell, SetIngress(Ui(ingress_template="/{{name}}")))
    await shell.settle()
    [made] = shell.api.list("Ingress")
    assert list(made["spec"]) == ["rules"]
    assert "annotations" not in made["metadata"]
    assert "host" not in made["spec"]["rules"][0]
    always(shell, SetIngress(None))
    await shell.settle()
    assert not shell.api.list("Ingress")


async def test_an_ingress_of_somebody_else_is_left_alone_and_said(shell, monkeypatch):
    monkeypatch.setattr(memory, "_FIRST_SETBACK", 0.0)
    shell.make_job()
    theirs = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress"}
    shell.api.create({**theirs, "metadata": {"name": "clicks-driver", "namespace": "here"}})
    always(shell, SetIngress(Ui(ingress_template="/{{name}}")))
    for _ in range(3):
        await shell.reconcile()
    [found] = shell.api.list("Ingress")
    assert "spec" not in found
    assert "Ingress" in shell.world.trouble
    assert "clicks-driver" in shell.world.trouble


async def test_a_pod_monitor_is_made_once_and_removed_when_it_is_not_wanted(shell):
    shell.make_job()
    always(shell, SetPodMonitor(present=True))
    await shell.settle()
    before = len(shell.cluster.effects)
    await shell.reconcile()
    assert len(shell.cluster.effects) == before
    [made] = shell.api.list("PodMonitor")
    uid = shell.job()["metadata"]["uid"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == uid
    [endpoint] = made["spec"]["podMetricsEndpoints"]
    token = {"name": "clicks-scrape", "key": "token"}
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": token}
    assert made["spec"]["selector"]["matchLabels"]["moorage.dev/job-uid"] == uid
    always(shell, SetPodMonitor(present=False))
    await shell.settle()
    assert not shell.api.list("PodMonitor")


async def test_a_pod_monitor_believes_the_jobs_authority_and_name(shell):
    shell.make_job()
    always(shell, SetPodMonitor(present=True))
    await shell.settle()
    always(shell, SetPodMonitor(present=True, tls_secret="clicks-tls"))  # noqa: S106  its name
    await shell.settle()
    [made] = shell.api.list("PodMonitor")
    [endpoint] = made["spec"]["podMetricsEndpoints"]
    authority = {"secret": {"name": "clicks-tls", "key": "ca.crt"}}
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {"ca": authority, "serverName": "clicks-driver.here.svc"}


async def test_a_cluster_without_pod_monitors_says_so_and_the_job_goes_on(shell, monkeypatch):
    monkeypatch.setattr(memory, "_FIRST_SETBACK", 0.0)
    shell.make_job()
    shell.cluster.fail(NotFound("no matches for kind"), verb="apply", kind="PodMonitor", times=-1)
    always(shell, SetPodMonitor(present=True), SetFinalizer(present=True))
    for _ in range(3):
        await shell.reconcile()
    assert shell.job()["metadata"]["finalizers"] == ["moorage.dev/operator"]
    assert "this cluster has no kind PodMonitor" in shell.world.trouble


async def test_another_objects_pod_monitor_is_left_alone(shell):
    shell.make_job()
    theirs = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor"}
    shell.api.create({**theirs, "metadata": {"name": "clicks-driver", "namespace": "here"}})
    always(shell, SetPodMonitor(present=False))
    await shell.settle()
    assert shell.api.list("PodMonitor")


async def test_a_store_task_for_a_store_that_the_job_has_left_goes_there(shell, monkeypatch):
    shell.make_job()
    other = {"state": {"checkpointDir": "s3://state/left", "savepointDir": "s3://savepoints/left"}}
    spec = read_job_spec(job_body(**other))[0]
    body = revision_body(meta_of(shell.job()), "clicks-old", 1, "hash", spec)  # type: ignore[arg-type]  # a dict of the emulator's
    shell.api.create(body)
    left = [{"revision": "clicks-old"}]
    shell.api.set_status("StatefulSparkJob", "here", "clicks", leaving=left)
    asked = []

    async def run(job, store_task):
        asked.append((job.spec.state.checkpoint_dir, store_task.id))
        return StoreTaskView("Pending")

    async def look(job, task_id):
        there = job.spec.state.checkpoint_dir == "s3://state/left"
        return StoreTaskView("Completed") if there and task_id else None

    monkeypatch.setattr(shell.lineages, "run", run)
    monkeypatch.setattr(shell.lineages, "look", look)
    uid = shell.job()["metadata"]["uid"]
    store_task = StoreTask(f"{uid}-left-clicks-old-0-0", "Release")
    always(shell, RunStoreTask(store_task, "clicks-old"))
    await shell.settle()
    assert asked[0] == ("s3://state/left", store_task.id)
    assert shell.world.store_tasks[store_task.id].state == "Completed"


async def test_a_disruption_budget_is_made_changed_and_removed_once_each(shell):
    shell.make_job()
    for least, attempt in ((2, 1), (3, 1), (3, 2)):
        always(shell, SetDisruptionBudget("executor", least, attempt))
        await shell.settle()
        before = len(shell.cluster.effects)
        await shell.reconcile()
        assert len(shell.cluster.effects) == before
        [made] = shell.api.list("PodDisruptionBudget")
        assert made["spec"]["minAvailable"] == least
        labels = made["spec"]["selector"]["matchLabels"]
        assert labels["moorage.dev/attempt"] == str(attempt)
    uid = shell.job()["metadata"]["uid"]
    assert made["metadata"]["name"] == "clicks-executor"
    assert made["metadata"]["ownerReferences"][0]["uid"] == uid
    assert labels["moorage.dev/job-uid"] == uid
    always(shell, SetDisruptionBudget("executor", 0, 2))
    await shell.settle()
    assert not shell.api.list("PodDisruptionBudget")
