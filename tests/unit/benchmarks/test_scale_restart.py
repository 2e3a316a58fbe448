"""The stand-in for an API server that a restart is measured on; the figures are the benchmark's."""

import json

import pytest
from aiohttp.test_utils import make_mocked_request
from benchmarks.scale.restart import Cluster, settled

from moorage_operator.watch_cache import page_of

PODS = "/api/v1/pods?limit=3&labelSelector=moorage.dev/role%3Dexecutor"


@pytest.fixture
async def cluster():
    return Cluster(2, *await settled())


async def answer(cluster, path, method="GET"):
    response = await cluster._api(make_mocked_request(method, path))
    return response.body


async def test_each_job_has_names_uids_and_addresses_of_its_own(cluster):
    jobs, _ = page_of(
        "StatefulSparkJob",
        await answer(cluster, "/apis/moorage.dev/v1alpha1/statefulsparkjobs?limit=9"),
    )
    assert [one["metadata"]["name"] for one in jobs] == ["job-00000", "job-00001"]
    assert len({one["metadata"]["uid"] for one in jobs}) == 2
    drivers, _ = page_of("Pod", await answer(cluster, PODS.replace("executor", "driver")))
    owners = {one["metadata"]["ownerReferences"][0]["uid"] for one in drivers}
    assert owners == {one["metadata"]["uid"] for one in jobs}
    reports = [json.loads(cluster._reports[one["status"]["podIP"]]) for one in drivers]
    assert {one["jobUid"] for one in reports} == owners


async def test_lists_have_pages_and_what_nothing_matches_is_empty(cluster):
    names, after = [], ""
    while True:
        items, after = page_of("Pod", await answer(cluster, f"{PODS}&continue={after}"))
        names += [one["metadata"]["name"] for one in items]
        if not after:
            break
    assert len(set(names)) == len(names) == 20
    nothing = "/api/v1/pods?limit=3&labelSelector=moorage.dev/job,%21moorage.dev/job"
    assert page_of("Pod", await answer(cluster, nothing)) == ([], "")
