"""What a list of pods lacks is there no more: neither drivers nor executors stay in the cache."""

from types import SimpleNamespace
from typing import Any

from moorage_testing.kube import MemoryCluster

from moorage_operator.app import App
from moorage_operator.shards import Selection
from moorage_operator.watch_cache import WatchCache


def pod(name, role, job="clicks"):
    labels = {"moorage.dev/job": job, "moorage.dev/role": role}
    meta = {"name": name, "namespace": "here", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}}


async def test_a_list_drops_pods_of_both_roles_that_are_gone_and_keeps_the_rest():
    cluster, watched = MemoryCluster(), WatchCache()
    for name, role in (("d1", "driver"), ("d2", "driver"), ("e1", "executor"), ("e2", "executor")):
        cluster.api.create(pod(name, role))
    app: Any = SimpleNamespace(
        cluster=cluster, watched=watched, selection=Selection(), _show_canary=lambda *_: None
    )

    async def known():
        await App._list_pods(app, "here")
        return [one["metadata"]["name"] for one in watched.of_job("Pod", "here", "clicks")]

    assert await known() == ["d1", "d2", "e1", "e2"]
    for name in ("d1", "e1"):
        cluster.api.delete("Pod", "here", name, grace=0)
    assert await known() == ["d2", "e2"]
