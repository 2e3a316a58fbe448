"""Secrets and Service of a running job, deleted by hand."""

import asyncio
import base64
from dataclasses import replace

import pytest

from moorage_api.driver import DriverState
from moorage_api.lifecycle import Ui
from moorage_operator.children.names import owner_reference
from moorage_operator.children.secrets import config_owner, scrape_secret, token_secret
from moorage_operator.objects import meta_of
from moorage_operator.plan import ActionFailed, SetIngress
from moorage_operator.ports import Forbidden


def body_of(kind, name, owners, **more):
    meta = {"name": name, "namespace": "here", "ownerReferences": owners}
    return {"apiVersion": "v1", "kind": kind, "metadata": meta, **more}


@pytest.fixture
async def running(shell):
    """A job whose driver lives and was asked once, so that its token is known."""
    job = shell.make_job()
    uid = job["metadata"]["uid"]
    owner = {"apiVersion": "moorage.dev/v1alpha1", "kind": "StatefulSparkJob", "name": "clicks"}
    owners = [{**owner, "uid": uid, "controller": True}]
    config = body_of("ConfigMap", "clicks-1-config", owners, data={})
    config_uid = shell.api.create(config)["metadata"]["uid"]
    meta = meta_of(job)
    shell.api.create(token_secret(meta, 1, "s3cret", config_owner(meta, 1, config_uid)))
    shell.api.create(scrape_secret(meta, "r3ad"))
    shell.api.create(body_of("Service", "clicks-driver", owners, spec={}))
    shell.make_pod(status={"phase": "Running", "podIP": "10.0.0.1"})
    shell.drivers.answer = DriverState(attempt=1, job_uid=uid, phase="running")
    await shell.reconcile()
    return shell


def there(shell):
    return {kind: len(shell.api.list(kind, "here")) for kind in ("Secret", "Service")}


def secret(shell, name, key):
    return base64.b64decode(shell.api.get("Secret", "here", name)["data"][key]).decode()


async def test_a_deleted_secret_comes_back_with_what_the_driver_has(running):
    before = running.api.get("Secret", "here", "clicks-1-tokens")
    running.api.delete("Secret", "here", "clicks-1-tokens")
    running.clock.advance(61)
    await running.reconcile()
    after = running.api.get("Secret", "here", "clicks-1-tokens")
    assert after["data"] == before["data"]
    assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]


async def test_a_secret_that_went_with_its_config_map_comes_back_as_the_jobs(running):
    running.api.delete("ConfigMap", "here", "clicks-1-config")
    running.api.collect()
    assert running.api.get("Secret", "here", "clicks-1-tokens") is None
    running.clock.advance(61)
    await running.reconcile()
    assert secret(running, "clicks-1-tokens", "control") == "s3cret"
    running.api.delete("StatefulSparkJob", "here", "clicks")
    running.api.collect()
    assert there(running)["Secret"] == 0


async def test_what_is_beside_the_pods_comes_back_as_it_was(running):
    page = SetIngress(Ui(ingress_template="/{{name}}"))
    decide = running.reconciler._decide_job
    running.reconciler._decide_job = lambda world: replace(decide(world), effects=(page,))
    await running.settle()
    running.api.delete("Ingress", "here", "clicks-driver")
    await running.settle()
    assert not running.api.list("Ingress")
    running.clock.advance(61)
    await running.settle()
    [made] = running.api.list("Ingress")
    changed = {"spec": {"rules": [{"host": "elsewhere.example.com"}]}}
    running.api.patch("Ingress", "here", "clicks-driver", changed)
    running.clock.advance(61)
    await running.settle()
    [again] = running.api.list("Ingress")
    assert again["spec"] == made["spec"]


async def test_a_deleted_token_for_reading_is_replaced_by_another(running):
    running.api.delete("Secret", "here", "clicks-scrape")
    running.clock.advance(61)
    await running.reconcile()
    assert secret(running, "clicks-scrape", "token") not in ("", "r3ad", "s3cret")


async def test_metrics_of_a_driver_by_an_older_operator_are_read_with_its_one_token(running):
    for name in ("clicks-1-tokens", "clicks-scrape"):
        running.api.delete("Secret", "here", name)
    job = running.job()
    owners = [owner_reference(meta_of(job))]
    older = body_of("Secret", "clicks-token", owners, stringData={"token": "one-for-all"})
    running.api.create(older)
    running.reconciler = running.another()
    await running.reconcile()
    running.clock.advance(61)
    await running.reconcile()
    assert secret(running, "clicks-scrape", "token") == "one-for-all"
    assert running.api.get("Secret", "here", "clicks-1-tokens") is None


async def test_a_deleted_service_comes_back(running):
    running.api.delete("Service", "here", "clicks-driver")
    running.clock.advance(61)
    await running.reconcile()
    assert there(running) == {"Secret": 2, "Service": 1}


@pytest.mark.parametrize("said", ["true", ""])
async def test_of_a_paused_job_nothing_is_made(running, said):
    body = running.api.get("StatefulSparkJob", "here", "clicks")
    said_so = {"metadata": {"annotations": {"moorage.dev/paused": said}}}
    running.api.patch("StatefulSparkJob", "here", body["metadata"]["name"], said_so)
    running.api.delete("Service", "here", "clicks-driver")
    running.clock.advance(61)
    await running.reconcile()
    assert there(running)["Service"] == (0 if said == "true" else 1)


async def test_they_are_looked_for_once_a_minute(running):
    running.clock.advance(61)
    await running.reconcile()
    running.cluster.journal.clear()
    running.api.delete("Service", "here", "clicks-driver")
    running.clock.advance(30)
    await running.reconcile()
    assert there(running) == {"Secret": 2, "Service": 0}


async def test_a_token_that_nobody_remembers_is_not_made_up(running):
    running.api.delete("Secret", "here", "clicks-1-tokens")
    running.reconciler = running.another()
    await running.reconcile()
    running.clock.advance(61)
    await running.reconcile()
    assert there(running) == {"Secret": 1, "Service": 1}


async def test_a_job_without_a_driver_gets_nothing(shell):
    shell.make_job()
    await shell.reconcile()
    shell.clock.advance(61)
    await shell.reconcile()
    assert there(shell) == {"Secret": 0, "Service": 0}


async def test_an_api_server_that_refuses_holds_up_no_pass(running, monkeypatch, caplog):
    async def refuse(*_, **__):
        raise Forbidden("no", "Forbidden")

    running.api.delete("Service", "here", "clicks-driver")
    monkeypatch.setattr(running.cluster, "apply", refuse)
    running.clock.advance(61)
    done = await running.reconcile()
    assert not done.problem
    assert "not looked after" in caplog.text


class Over:
    """A pass that began too long ago, or whose job is another operator's by now."""

    def __init__(self, gone):
        self.gone = gone

    async def until(self):
        if self.gone:
            raise ActionFailed("the job is another operator's by now")
        return asyncio.get_running_loop().time() - 1.0


@pytest.mark.parametrize("gone", [True, False])
async def test_who_may_not_act_on_the_job_any_more_makes_nothing_again(running, gone):
    running.api.delete("Secret", "here", "clicks-1-tokens")
    running.clock.advance(61)
    world = replace(running.world, now=running.clock.now())
    await running.reconciler._actor.repair(world, Over(gone))
    assert there(running)["Secret"] == 1
    running.clock.advance(61)
    await running.reconciler._actor.repair(world, None)
    assert there(running)["Secret"] == 2
