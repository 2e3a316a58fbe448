"""Whether pods would be taken: what is asked, and what of the answers counts."""

from typing import Any

import pytest
from moorage_testing.kube import ApiStore, MemoryCluster
from moorage_testing.snapshot_worlds import job_meta, job_spec

from moorage_operator.admission import Admission, Refusals
from moorage_operator.ports import ApiUnavailable, Forbidden

FORBIDDEN = 'pods "x" is forbidden: '


def cluster_that(said):
    store = ApiStore()
    store.admission = said if callable(said) else lambda _body: said
    return MemoryCluster(store)


def noting(seen):
    def look(body):
        seen.append(body)
        return ""

    return look


async def refusals(cluster, operation="1-1", admission=None, **spec):
    admission = admission or Admission(cluster)
    return await admission.refusals(job_meta(), operation, "clicks-a", job_spec(**spec), 4, "c")


async def test_a_driver_and_an_executor_are_tried_and_nothing_is_made():
    seen: list[Any] = []
    cluster = cluster_that(noting(seen))
    assert await refusals(cluster, executor={"memory": "4Gi", "cores": 2}) == Refusals()
    driver, executor = seen
    assert driver["metadata"]["name"] == "clicks-4-driver"
    (main,) = executor["spec"]["containers"]
    assert main["resources"]["requests"] == {"cpu": "2", "memory": "4096Mi"}
    assert main["resources"]["limits"]["memory"] == "4096Mi"
    assert cluster.api.list("Pod") == []


async def test_it_is_asked_once_for_each_operation_and_anew_after_a_failure():
    seen: list[Any] = []
    cluster = cluster_that(noting(seen))
    admission = Admission(cluster)
    cluster.fail(ApiUnavailable("503"), verb="try_create", times=1)
    with pytest.raises(ApiUnavailable):
        await refusals(cluster, admission=admission)
    for _ in range(3):
        await refusals(cluster, admission=admission)
    assert len(seen) == 2
    await refusals(cluster, "1-2", admission)
    assert len(seen) == 4


async def test_a_webhook_that_is_never_asked_in_a_dry_run_says_nothing():
    said = 'admission webhook "x" does not support dry run'
    assert await refusals(cluster_that(said)) == Refusals()


async def test_what_the_operator_may_not_do_is_not_the_versions_fault():
    said = 'pods is forbidden: User "u" cannot create resource "pods" in API group ""'
    with pytest.raises(Forbidden):
        await refusals(cluster_that(said))


async def test_a_quota_that_is_full_is_passed_on_once_to_be_judged():
    full = "exceeded quota: small, requested: pods=1, used: pods=9, limited: pods=9"
    found = await refusals(cluster_that(f"{FORBIDDEN}{full}"))
    assert found.texts == ()
    (quota,) = found.quotas
    assert quota["metadata"] == {"name": "small"}
    assert quota["status"] == {"hard": {"pods": "9"}, "used": {"pods": "9"}}


async def test_whose_pod_is_refused_for_another_reason_is_said():
    said = f"{FORBIDDEN}violates PodSecurity"
    found = await refusals(cluster_that(said))
    assert found == Refusals((f"driver: {said}", f"executor: {said}"), ())


def add_node(cluster, memory):
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "a"},
        "status": {"allocatable": {"cpu": "64", "memory": memory, "ephemeral-storage": "1Ti"}},
    }
    cluster.api.apply(body, manager="kubelet")
    cluster.api.apply(body, manager="kubelet", subresource="status")


async def test_pods_that_no_node_could_hold_are_named():
    cluster = cluster_that("")
    add_node(cluster, "4Gi")
    found = await refusals(cluster, executor={"memory": "40Gi", "cores": 2})
    assert found.texts == ()
    assert found.unplaced.startswith("executor: of 1 nodes 1 with too little memory (4096Mi at")
    add_node(cluster, "64Gi")
    assert (await refusals(cluster, executor={"memory": "40Gi", "cores": 2})).unplaced == ""


async def test_where_nodes_may_not_be_listed_nothing_is_said_of_them():
    cluster = cluster_that("")
    add_node(cluster, "4Gi")
    cluster.fail(Forbidden("nodes is forbidden"), verb="list", kind="Node")
    assert await refusals(cluster, executor={"memory": "40Gi"}) == Refusals()
