"""The stand-ins' own promises: a death at a counted step, refusals, lost replies, old views."""

import pytest
from kubernetes.aio.client import Configuration
from moorage_testing.kube import MemoryCluster, OperatorKilled

from moorage_operator.kube.client import KubeCluster
from moorage_operator.ports import ApiUnavailable, Conflict

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}}


@pytest.fixture
def cluster():
    return MemoryCluster()


@pytest.mark.parametrize(("when", "there"), [("before", False), ("after", True)])
async def test_a_death_comes_before_or_after_its_step(cluster, when, there):
    cluster.points.crash_at, cluster.points.crash_when = 1, when
    with pytest.raises(OperatorKilled):
        await cluster.create(MAP)
    assert (cluster.api.get("ConfigMap", "n", "a") is not None) is there


async def test_the_dead_do_nothing_until_revived(cluster):
    cluster.points.crash_at = 1
    with pytest.raises(OperatorKilled):
        await cluster.create(MAP)
    for call in (cluster.get("ConfigMap", "n", "a"), cluster.delete("ConfigMap", "n", "a")):
        with pytest.raises(OperatorKilled):
            await call
    cluster.points.revive()
    assert await cluster.get("ConfigMap", "n", "a") is not None


async def test_a_refused_step_is_a_step_too(cluster):
    await cluster.create(MAP)
    cluster.points.crash_at = 2
    with pytest.raises(OperatorKilled):
        await cluster.create(MAP)


async def test_reading_is_no_step(cluster):
    cluster.points.crash_at = 1
    await cluster.list("ConfigMap", "n")
    assert cluster.points.count == 0


async def test_other_stand_ins_share_the_count(cluster):
    cluster.points.crash_at = 2
    await cluster.create(MAP)
    with pytest.raises(OperatorKilled), cluster.points.effect("POST /stop"):
        pass
    assert cluster.points.steps == ["create ConfigMap n/a", "POST /stop"]


async def test_a_fault_strikes_as_often_as_it_should_and_where(cluster):
    cluster.fail(ApiUnavailable("no"), verb="get", name="a", skip=1, times=2)
    outcomes = []
    for _ in range(4):
        try:
            outcomes.append(await cluster.get("ConfigMap", "n", "a"))
        except ApiUnavailable:
            outcomes.append("no")
    assert outcomes == [None, "no", "no", None]
    assert await cluster.get("ConfigMap", "n", "b") is None


async def test_a_lost_reply_has_done_it_and_a_conflict_has_not(cluster):
    cluster.fail(ApiUnavailable("lost"), verb="create", when="after")
    with pytest.raises(ApiUnavailable):
        await cluster.create(MAP)
    cluster.fail(Conflict("no"), verb="delete")
    with pytest.raises(Conflict):
        await cluster.delete("ConfigMap", "n", "a")
    assert cluster.api.get("ConfigMap", "n", "a") is not None


async def test_a_frozen_list_shows_what_was_and_a_get_what_is(cluster):
    with cluster.frozen("ConfigMap"):
        cluster.api.create(MAP)
        assert await cluster.list("ConfigMap", "n") == []
        assert await cluster.get("ConfigMap", "n", "a") is not None
    assert len(await cluster.list("ConfigMap", "n")) == 1


async def test_what_others_do_is_neither_counted_nor_disturbed(cluster):
    cluster.fail(ApiUnavailable("no"), times=-1)
    cluster.api.create(MAP)
    assert cluster.journal == []
    assert cluster.points.count == 0


async def test_watchers_see_every_change_and_no_others(cluster):
    seen = []
    cluster.watch(lambda event, found: seen.append((event, found["kind"])))
    await cluster.apply(MAP)
    await cluster.apply(MAP)
    await cluster.patch("ConfigMap", "n", "a", {"data": {"k": "v"}})
    await cluster.delete("ConfigMap", "n", "a")
    assert [event for event, kind in seen if kind == "ConfigMap"] == [
        "ADDED",
        "MODIFIED",
        "DELETED",
    ]


async def test_a_pod_on_a_node_lingers_until_its_kubelet_has_killed_it(cluster):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}}
    cluster.api.create({**pod, "spec": {"nodeName": "x", "terminationGracePeriodSeconds": 60}})
    await cluster.delete("Pod", "n", "p")
    held = await cluster.get("Pod", "n", "p")
    assert held["metadata"]["deletionGracePeriodSeconds"] == 60
    cluster.api.delete("Pod", "n", "p", grace=0)
    assert await cluster.get("Pod", "n", "p") is None


async def test_a_token_that_cannot_be_read_is_an_api_server_that_cannot_be_asked(monkeypatch):
    async def unreadable():
        raise PermissionError("the token is being replaced")

    found = Configuration()
    found.host = "http://127.0.0.1:9"
    monkeypatch.setattr(found, "auth_settings", unreadable)
    cluster = KubeCluster(found)
    try:
        with pytest.raises(ApiUnavailable, match="is being replaced"):
            await cluster.get("Pod", "n", "a")
    finally:
        await cluster.close()
