"""Whether pods would be taken: what is asked, and what of the answers counts."""

from decimal import Decimal
from typing import Any

import pytest
from moorage_testing.kube import ApiStore, MemoryCluster
from moorage_testing.snapshot_worlds import job_meta, job_spec

from moorage_operator.admission import Admission, amount
from moorage_operator.children.pods import executor_pod
from moorage_operator.ports import ApiUnavailable, Forbidden

FORBIDDEN = 'pods "x" is forbidden: '
GPU, CLAIMS = "requests.nvidia.com/gpu", "persistentvolumeclaims"


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
    assert await refusals(cluster, executor={"memory": "4Gi", "cores": 2}) == ()
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
    assert await refusals(cluster_that(said)) == ()


async def test_what_the_operator_may_not_do_is_not_the_versions_fault():
    said = 'pods is forbidden: User "u" cannot create resource "pods" in API group ""'
    with pytest.raises(Forbidden):
        await refusals(cluster_that(said))


def told(requested, used, limited):
    return f"requested: {requested}, used: {used}, limited: {limited}"


@pytest.mark.parametrize(
    ("quota", "short"),
    [
        (told("pods=1", "pods=9", "pods=9"), "pods needed=4 free=0 of 9"),
        (told("pods=1", "pods=3", "pods=9"), ""),
        (
            told("limits.memory=4Gi,pods=1", "limits.memory=30Gi,pods=1", "limits.memory=32Gi"),
            "limits.memory needed=",
        ),
        (told(f"{GPU}=1", f"{GPU}=1", f"{GPU}=1"), ""),
        (told(f"{CLAIMS}=1", f"{CLAIMS}=1", f"{CLAIMS}=1"), ""),
    ],
    ids=["pods", "room", "memory", "what it does not ask for", "not of pods"],
)
async def test_a_quota_refuses_what_all_pods_together_lack(quota, short):
    said = f"{FORBIDDEN}exceeded quota: small, {quota}"
    found = await refusals(cluster_that(said), executor={"instances": 3})
    assert bool(found) == bool(short)
    assert all(short in one for one in found)


def test_a_pod_takes_what_its_containers_take_beside_each_other_or_the_most_of_one_before():
    pod = executor_pod(job_meta(), job_spec(executor={"cores": 1, "memory": "2Gi"}), "r", 1)
    (sidecar,) = pod["spec"]["initContainers"]
    beside = Decimal(str(sidecar["resources"]["requests"]["memory"]).removesuffix("Mi"))
    mib = Decimal(1 << 20)
    assert amount(pod, "requests.memory") == (2048 + beside) * mib
    assert amount(pod, "memory") == amount(pod, "requests.memory")
    once = {"name": "fetch", "resources": {"requests": {"memory": "64Gi"}}}
    pod["spec"]["initContainers"].append(once)
    assert amount(pod, "memory") == 64 * 1024 * mib
    assert amount(pod, "count/pods") == 1
    assert amount(pod, "services.loadbalancers") is None
