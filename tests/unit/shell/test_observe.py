"""What a pass reads, what it leaves unread, and what it makes of failures."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from moorage_api.status import read_status
from moorage_operator.ports import (
    ApiUnavailable,
    EndpointRefused,
    EndpointUnreachable,
    EndpointUntrusted,
    Forbidden,
)
from moorage_operator.world import StoreView, Unreadable

RUNNING = {"phase": "Running", "podIP": "10.0.0.1"}
OWNER = {"kind": "StatefulSparkJob", "name": "clicks", "controller": True}


def give_status(shell, **status):
    shell.api.set_status("StatefulSparkJob", "here", "clicks", **status)


def give_token(shell, uid=""):
    uid = uid or shell.job()["metadata"]["uid"]
    shell.api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": "clicks-1-tokens",
                "namespace": "here",
                "labels": {"moorage.dev/job-uid": uid},
            },
            "stringData": {"control": "s3cret", "token": "d3rived"},
        }
    )


def running(shell, **more):
    """A job whose first driver runs."""
    shell.make_job(**more)
    give_status(
        shell, phase="Running", attempt={"number": 1, "runningSince": "2026-03-01T11:00:00Z"}
    )
    shell.make_pod(1, status=RUNNING)
    give_token(shell)


def calls(shell, verb, kind):
    return [c for c in shell.cluster.journal if (c.verb, c.kind) == (verb, kind)]


# -- the spec and its facts ------------------------------------------------------------------------


async def test_a_spec_that_cannot_be_read_is_none_with_every_problem(shell):
    shell.make_job(scaling={"parallelism": "two"}, image=7)
    await shell.reconcile()
    assert shell.world.spec is None
    assert {p.field for p in shell.world.problems} == {"spec.scaling.parallelism", "spec.image"}


async def test_what_a_cluster_cannot_run_is_a_problem(shell):
    shell.make_job(application={"mainFile": "job.py"})
    await shell.reconcile()
    assert [p.field for p in shell.world.problems] == ["spec.application.mainFile"]


async def test_a_missing_secret_is_a_problem_and_a_present_one_is_none(shell):
    shell.make_job(state={**STATE, "credentialsSecretRef": {"name": "creds"}})
    await shell.reconcile()
    assert [p.field for p in shell.world.problems] == ["spec.state.credentialsSecretRef.name"]
    shell.api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "creds", "namespace": "here"},
            "stringData": {"AWS_ACCESS_KEY_ID": "a"},
        }
    )
    await shell.reconcile()
    assert "AWS_SECRET_ACCESS_KEY" in shell.world.problems[0].reason
    data = {"data": {"AWS_SECRET_ACCESS_KEY": "Yg=="}}
    shell.api.patch("Secret", "here", "creds", data)
    await shell.reconcile()
    assert shell.world.problems == ()


async def test_a_priority_class_that_is_not_there_is_a_problem(shell):
    high = {"podTemplate": {"spec": {"priorityClassName": "high"}}}
    shell.make_job(driver=high, executor=high)
    await shell.reconcile()
    field = "spec.{}.podTemplate.spec.priorityClassName"
    found = [one.field for one in shell.world.problems]
    assert found == [field.format("driver"), field.format("executor")]
    assert "names a PriorityClass that is not there: high" in shell.world.problems[0].reason
    meta = {"name": "high"}
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    shell.api.create({**kind, "metadata": meta, "value": 1000})
    await shell.reconcile()
    assert shell.world.problems == ()


async def test_a_priority_class_that_may_not_be_read_is_no_problem(shell):
    shell.make_job(executor={"podTemplate": {"spec": {"priorityClassName": "high"}}})
    shell.cluster.fail(Forbidden("no"), verb="get", kind="PriorityClass")
    await shell.reconcile()
    assert shell.world.problems == ()


def certificate(shell, **data):
    meta = {"name": "clicks-tls", "namespace": "here"}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data}
    shell.api.create(body)


PEMS = {"ca.crt": "the authority", "tls.crt": "c", "tls.key": "k"}
SECURED = {"tls": {"secretName": "clicks-tls"}}


async def test_a_missing_certificate_is_a_problem_and_so_is_one_without_an_authority(shell):
    shell.make_job(security=SECURED)
    await shell.reconcile()
    assert [p.field for p in shell.world.problems] == ["spec.security.tls.secretName"]
    certificate(shell, **{**PEMS, "ca.crt": ""})
    await shell.reconcile()
    assert "without ca.crt" in shell.world.problems[0].reason
    shell.api.delete("Secret", "here", "clicks-tls")
    certificate(shell, **PEMS)
    await shell.reconcile()
    assert shell.world.problems == ()


STATE = {"checkpointDir": "s3://state/clicks", "savepointDir": "s3://savepoints/clicks"}


async def test_a_missing_service_account_is_a_problem(shell):
    shell.make_job(serviceAccountName="nobody")
    await shell.reconcile()
    assert [p.field for p in shell.world.problems] == ["spec.serviceAccountName"]


async def test_a_job_beside_the_operator_is_a_problem(shell):
    """Its driver may make pods, and so have any service account of the namespace."""
    shell.reconciler = shell.another(own_namespace="here")
    shell.make_job()
    await shell.reconcile()
    (problem,) = shell.world.problems
    assert str(problem).startswith("metadata.namespace: is the operator's own")
    assert "jobs.namespaces" in str(problem)


async def test_what_may_not_be_looked_at_is_no_problem(shell):
    shell.make_job(serviceAccountName="nobody")
    shell.cluster.fail(Forbidden("no"), verb="get", kind="ServiceAccount")
    await shell.reconcile()
    assert shell.world.problems == ()


async def test_a_failed_look_ends_the_pass_and_proves_nothing(shell):
    shell.make_job(state={**STATE, "credentialsSecretRef": {"name": "creds"}})
    shell.cluster.fail(ApiUnavailable("away"), verb="get", kind="Secret")
    done = await shell.reconcile()
    assert done.problem == "away"
    assert not shell.worlds


@pytest.mark.parametrize(
    ("made", "job", "said"), [(False, "", "not there"), (True, "other", "of another job")]
)
async def test_a_restore_from_a_snapshot_that_is_not_the_jobs_is_a_problem(shell, made, job, said):
    shell.make_job(restore={"mode": "Snapshot", "snapshotName": "snap"})
    if made:
        snapshot = {"name": "snap", "namespace": "here"}
        kind = {"apiVersion": "moorage.dev/v1alpha1", "kind": "StatefulSparkSnapshot"}
        shell.api.create({**kind, "metadata": snapshot, "spec": {"jobRef": {"name": job}}})
    await shell.reconcile()
    [problem] = [p for p in shell.world.problems if p.field == "spec.restore.snapshotName"]
    assert said in problem.reason


async def test_a_rival_for_the_directory_is_seen(shell):
    shell.make_job("older", state={**STATE})
    shell.reconciler.directories.note(shell.api.get("StatefulSparkJob", "here", "older"))
    shell.api._now = lambda: shell.clock.now() + timedelta(days=400)
    shell.make_job()
    await shell.reconcile()
    await shell.reconcile()
    assert shell.world.directory_rival == "here/older"
    [told] = shell.api.list("Event")
    assert (told["reason"], told["involvedObject"]["name"]) == ("CheckpointDirConflict", "older")


# -- pods ------------------------------------------------------------------------------------------


async def test_a_failed_list_of_pods_is_unreadable_and_never_empty(shell):
    running(shell)
    shell.cluster.fail(ApiUnavailable("away"), verb="list", kind="Pod", times=2)
    await shell.reconcile()
    shell.clock.advance(10)
    await shell.reconcile()
    assert isinstance(shell.world.drivers, Unreadable)
    assert isinstance(shell.world.executors, Unreadable)
    assert shell.world.drivers.since == shell.clock.now() - timedelta(seconds=10)
    assert shell.lineages.inspected == 0


async def test_a_driver_that_an_old_list_lacks_is_found_by_a_get(shell):
    shell.make_job()
    give_status(shell, attempt={"number": 1})
    with shell.cluster.frozen("Pod"):
        shell.make_pod(1, status=RUNNING)
        await shell.reconcile()
    assert [pod.name for pod in shell.world.drivers] == ["clicks-1-driver"]


@pytest.mark.parametrize(
    "labels",
    [
        {"moorage.dev/job": None, "moorage.dev/role": None},
        {"moorage.dev/role": None},
        {"moorage.dev/role": "executor"},
        {"moorage.dev/attempt": "7"},
        {"moorage.dev/attempt": None},
    ],
)
async def test_a_driver_whose_labels_were_taken_off_is_still_the_driver(shell, labels):
    running(shell)
    shell.api.patch("Pod", "here", "clicks-1-driver", {"metadata": {"labels": labels}})
    await shell.reconcile()
    assert [(pod.role, pod.attempt) for pod in shell.world.drivers] == [("driver", 1)]
    target = await shell.reconciler._observer.target(shell.world.meta, 1)
    assert target is not None


async def test_an_ended_attempt_is_not_looked_for(shell):
    shell.make_job()
    give_status(shell, attempt={"number": 1, "outcome": "Failed"})
    await shell.reconcile()
    assert not calls(shell, "get", "Pod")


async def test_pods_of_a_former_object_of_the_name_are_seen_as_foreign(shell):
    running(shell)
    shell.make_pod(2, uid="former", status=RUNNING)
    await shell.reconcile()
    assert {(pod.attempt, pod.owned) for pod in shell.world.drivers} == {(1, True), (2, False)}


async def test_only_the_current_attempts_executors_are_shown(shell):
    running(shell)
    for attempt in (1, 2):
        shell.make_pod(attempt, role="executor", name=f"e-{attempt}")
    await shell.reconcile()
    assert [pod.name for pod in shell.world.executors] == ["e-1"]


async def test_a_healthy_drivers_node_is_not_asked_for(shell):
    running(shell)
    ready = [{"type": "Ready", "status": "True"}]
    shell.api.set_status("Pod", "here", "clicks-1-driver", conditions=ready)
    await shell.reconcile()
    assert not calls(shell, "get", "Node")


@pytest.mark.parametrize(
    ("conditions", "seen"),
    [
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "Unknown"}], False),
        (None, False),
    ],
)
async def test_a_silent_drivers_node_is_looked_at(shell, conditions, seen):
    running(shell)
    if conditions is not None:
        shell.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}})
        shell.api.set_status("Node", "", "node-1", conditions=conditions)
    await shell.reconcile()
    assert shell.world.drivers[0].node_ready is seen


async def test_a_node_that_may_not_be_looked_at_is_unknown(shell):
    running(shell)
    shell.cluster.fail(Forbidden("no"), verb="get", kind="Node")
    await shell.reconcile()
    assert shell.world.drivers[0].node_ready is None


# -- the driver's report ---------------------------------------------------------------------------


async def test_a_running_driver_is_asked(shell, a_state):
    running(shell)
    shell.drivers.answer = a_state(shell, epoch=7)
    await shell.reconcile()
    assert shell.world.report.epoch == 7


async def test_a_driver_that_does_not_run_is_not_asked(shell):
    running(shell)
    shell.api.set_status("Pod", "here", "clicks-1-driver", phase="Failed")
    await shell.reconcile()
    assert shell.world.report is None


async def test_silence_is_told_with_its_beginning(shell):
    running(shell)
    begun = shell.clock.now()
    for _ in range(2):
        await shell.reconcile()
        shell.clock.advance(20)
    assert (shell.world.report.reason, shell.world.report.since) == ("EndpointUnreachable", begun)


async def test_silence_that_was_broken_begins_anew(shell, a_state):
    running(shell)
    await shell.reconcile()
    shell.drivers.answer, silence = a_state(shell), shell.drivers.answer
    await shell.reconcile()
    shell.clock.advance(20)
    shell.drivers.answer = silence
    await shell.reconcile()
    assert shell.world.report.since == shell.clock.now()


async def test_a_driver_that_takes_too_long_is_unreachable(shell, monkeypatch):
    running(shell)
    shell.reconciler._observer.report_timeout = 0.02

    async def never(_target):
        await asyncio.Event().wait()

    monkeypatch.setattr(shell.drivers, "state", never)
    await shell.reconcile()
    assert shell.world.report.reason == "EndpointUnreachable"


async def test_another_driver_at_the_address_is_not_believed(shell, a_state):
    running(shell)
    shell.drivers.answer = a_state(shell, attempt=9)
    await shell.reconcile()
    assert shell.world.report.reason == "EndpointForeign"


async def test_a_refused_token_is_read_again(shell):
    running(shell)
    shell.drivers.answer = EndpointRefused("unauthorized", "no")
    await shell.reconcile()
    await shell.reconcile()
    assert shell.world.report.reason == "EndpointRefused"
    assert len(calls(shell, "get", "Secret")) == 2


async def test_a_token_is_read_once_while_it_does(shell, a_state):
    running(shell)
    shell.drivers.answer = a_state(shell)
    for _ in range(3):
        await shell.reconcile()
    assert len(calls(shell, "get", "Secret")) == 1


async def test_another_objects_token_is_not_used(shell):
    running(shell)
    shell.api.delete("Secret", "here", "clicks-1-tokens")
    give_token(shell, uid="former")
    await shell.reconcile()
    assert shell.world.report.reason == "EndpointRefused"
    assert "s3cret" not in repr(shell.world)


@pytest.mark.parametrize("whose", ["mine", "former"])
async def test_a_driver_that_an_older_operator_started_is_asked_with_the_jobs_one_token(
    shell, a_state, whose
):
    running(shell)
    shell.api.delete("Secret", "here", "clicks-1-tokens")
    uid = shell.job()["metadata"]["uid"] if whose == "mine" else "former"
    owner = {**OWNER, "uid": uid}
    shell.api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": "clicks-token",
                "namespace": "here",
                "ownerReferences": [owner],
            },
            "stringData": {"token": "s3cret"},
        }
    )
    shell.drivers.answer = a_state(shell)
    await shell.reconcile()
    refused = getattr(shell.world.report, "reason", "")
    assert refused == ("" if whose == "mine" else "EndpointRefused")


def running_secured(shell):
    """A driver whose pod has a certificate, and a client that notes whom it was to believe."""
    running(shell, security=SECURED)
    volume = {"name": "moorage-tls", "secret": {"secretName": "clicks-tls"}}
    shell.api.delete("Pod", "here", "clicks-1-driver", grace=0)
    shell.make_pod(1, status=RUNNING, volumes=[volume])


async def test_a_driver_with_a_certificate_is_asked_for_the_jobs_name(shell, a_state, monkeypatch):
    running_secured(shell)
    certificate(shell, **PEMS)
    targets = []

    async def state(target):
        targets.append(target)
        return a_state(shell)

    monkeypatch.setattr(shell.drivers, "state", state)
    for _ in range(2):
        await shell.reconcile()
    told = {(one.authority, one.name) for one in targets}
    assert told == {("the authority", "clicks-driver.here.svc")}


async def test_a_certificate_that_is_not_believed_is_looked_at_again_each_time(shell, a_state):
    running_secured(shell)
    certificate(shell, **PEMS)
    shell.drivers.answer = EndpointUntrusted("certificate has expired")
    await shell.reconcile()
    assert shell.world.report.reason == "EndpointUntrusted"
    assert "expired" in shell.world.report.message
    shell.api.delete("Secret", "here", "clicks-tls")
    await shell.reconcile()
    assert "Secret=clicks-tls" in shell.world.report.message
    certificate(shell, **PEMS)
    shell.drivers.answer = a_state(shell)
    await shell.reconcile()
    assert shell.world.report.epoch == 0


# -- the store -------------------------------------------------------------------------------------


async def test_a_first_start_looks_into_the_store(shell):
    shell.make_job()
    await shell.reconcile()
    assert isinstance(shell.world.store, StoreView)


async def test_a_running_jobs_store_is_left_alone(shell, a_state):
    running(shell)
    shell.drivers.answer = a_state(shell)
    await shell.reconcile()
    assert shell.world.store is None


@pytest.mark.parametrize(
    "status",
    [
        {"blockedReason": "AdoptRequired", "attempt": {"number": 1, "outcome": "Failed"}},
        {"lineageOwnerUid": "another"},
        {"attempt": {"number": 1}},
    ],
)
async def test_what_only_the_store_can_settle_looks_into_it(shell, status):
    shell.make_job()
    give_status(shell, **status)
    await shell.reconcile()
    assert shell.lineages.inspected == 1


@pytest.mark.parametrize(
    "status",
    [
        {"attempt": {"number": 1, "outcome": "Finished"}, "phase": "Finished"},
        {"attempt": {"number": 1, "outcome": "Stopped"}, "phase": "Suspended"},
    ],
)
async def test_what_has_ended_leaves_the_store_alone(shell, status):
    shell.make_job(desiredState="Suspended")
    give_status(shell, **status)
    await shell.reconcile()
    assert shell.lineages.inspected == 0


async def test_a_paused_job_leaves_everything_dear_alone(shell):
    shell.make_job(meta={"annotations": {"moorage.dev/paused": "true"}})
    await shell.reconcile()
    assert shell.lineages.inspected == 0
    assert not calls(shell, "get", "ServiceAccount")


async def test_an_unreadable_store_is_told_with_its_beginning(shell):
    shell.make_job()
    shell.lineages.view = Unreadable("StoreUnavailable", "down")
    begun = shell.clock.now()
    await shell.reconcile()
    shell.clock.advance(30)
    await shell.reconcile()
    assert shell.world.store.since == begun


async def test_a_namespace_is_looked_at_only_when_the_job_goes(shell):
    shell.make_job(meta={"finalizers": ["moorage.dev/operator"]})
    await shell.reconcile()
    assert not calls(shell, "get", "Namespace")
    shell.api.delete("Namespace", "", "here")
    shell.api.collect()
    await shell.reconcile()
    assert shell.world.namespace_terminating


async def test_unreachable_drivers_do_not_change_what_is_stored(shell):
    running(shell)
    shell.drivers.answer = EndpointUnreachable("no")
    before = read_status(shell.status())
    await shell.settle()
    assert read_status(shell.status()) == before


async def test_a_secret_that_may_not_be_read_is_no_problem_of_the_spec(shell):
    state = {"checkpointDir": "s3://state/clicks", "savepointDir": "s3://savepoints/clicks"}
    shell.make_job(state={**state, "credentialsSecretRef": {"name": "s3-creds"}})
    shell.cluster.fail(Forbidden("no"), verb="get", kind="Secret")
    await shell.reconcile()
    assert shell.world.problems == ()


async def test_a_long_value_of_an_annotation_is_told_apart_by_a_hash(shell):
    shell.make_job(meta={"annotations": {"moorage.dev/restart": "x" * 100_000}})
    await shell.reconcile()
    kept = shell.world.meta.annotation("restart")
    assert len(kept) == 256
    assert kept.startswith("x" * 200)
    longer = {"moorage.dev/restart": "x" * 100_001}
    assert replace(shell.world.meta, annotations=longer).annotation("restart") != kept
