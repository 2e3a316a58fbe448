"""Secret and Service of a running job, deleted by hand."""

import base64

import pytest

from moorage_api.driver import DriverState
from moorage_operator.ports import Forbidden


@pytest.fixture
async def running(shell):
    """A job whose driver lives and was asked once, so that its token is known."""
    job = shell.make_job()
    uid = job["metadata"]["uid"]
    owner = {"apiVersion": "moorage.dev/v1alpha1", "kind": "StatefulSparkJob", "name": "clicks"}
    for kind, more in (("Secret", {"stringData": {"token": "s3cret"}}), ("Service", {"spec": {}})):
        shell.api.create(
            {
                "apiVersion": "v1",
                "kind": kind,
                "metadata": {
                    "name": {"Secret": "clicks-token", "Service": "clicks-driver"}[kind],
                    "namespace": "here",
                    "ownerReferences": [{**owner, "uid": uid, "controller": True}],
                },
                **more,
            }
        )
    shell.make_pod(status={"phase": "Running", "podIP": "10.0.0.1"})
    shell.drivers.answer = DriverState(attempt=1, job_uid=uid, phase="running")
    await shell.reconcile()
    return shell


def there(shell):
    return {kind: len(shell.api.list(kind, "here")) for kind in ("Secret", "Service")}


async def test_a_deleted_secret_comes_back_with_the_token_that_the_driver_has(running):
    running.api.delete("Secret", "here", "clicks-token")
    running.clock.advance(61)
    await running.reconcile()
    (secret,) = running.api.list("Secret", "here")
    assert base64.b64decode(secret["data"]["token"]) == b"s3cret"


async def test_a_deleted_service_comes_back(running):
    running.api.delete("Service", "here", "clicks-driver")
    running.clock.advance(61)
    await running.reconcile()
    assert there(running) == {"Secret": 1, "Service": 1}


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
    assert there(running) == {"Secret": 1, "Service": 0}


async def test_a_token_that_nobody_remembers_is_not_made_up(running):
    running.api.delete("Secret", "here", "clicks-token")
    running.reconciler = running.another()
    await running.reconcile()
    running.clock.advance(61)
    await running.reconcile()
    assert there(running) == {"Secret": 0, "Service": 1}


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
