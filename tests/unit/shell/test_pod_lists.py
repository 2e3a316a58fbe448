"""What a list lacks is there no more, however many pages and selectors it takes."""

from types import SimpleNamespace
from typing import Any

from moorage_testing.kube import MemoryCluster

from moorage_operator.app import App
from moorage_operator.ports import Page
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
    app: Any = SimpleNamespace(cluster=cluster, watched=watched, selection=Selection())

    async def known():
        await App._list_pods(app, "here", fresh=True)
        return [one["metadata"]["name"] for one in watched.of_job("Pod", "here", "clicks")]

    assert await known() == ["d1", "d2", "e1", "e2"]
    for name in ("d1", "e1"):
        cluster.api.delete("Pod", "here", name, grace=0)
    assert await known() == ["d2", "e2"]


def body(name, version=1):
    meta = {"name": name, "namespace": "here", "uid": name, "resourceVersion": str(version)}
    return {"metadata": {**meta, "labels": {"moorage.dev/job": "clicks"}}}


def test_a_list_that_begins_anew_half_way_drops_what_only_its_first_half_showed():
    watched = WatchCache()
    for name in ("a", "b", "c"):
        watched.seen("", "Pod", body(name))
    listing = watched.listing("Pod", None)
    listing.take(Page([body("a"), body("b")], first=True))
    listing.take(Page([body("b")], first=True))
    listing.take(Page([body("c")], first=False))
    assert listing.end() == [("here", "a")]
    assert [place[2] for place, _ in watched.versions("Pod", None)] == ["b", "c"]


def test_what_a_watch_shows_while_pages_come_in_is_newer_than_the_list():
    watched = WatchCache()
    watched.seen("", "Pod", body("a"))
    listing = watched.listing("Pod", None)
    watched.seen("ADDED", "Pod", body("b", 7))
    watched.seen("MODIFIED", "Pod", body("a", 8))
    listing.take(Page([], first=True))
    assert listing.end() == []
    assert dict(watched.versions("Pod", None)) == {("Pod", "here", "b"): 7, ("Pod", "here", "a"): 8}


def test_what_is_deleted_while_pages_come_in_is_not_brought_back_by_them():
    watched = WatchCache()
    for name in ("a", "b"):
        watched.seen("", "Pod", body(name))
    listing = watched.listing("Pod", "here", fresh=False)
    watched.seen("DELETED", "Pod", body("a", 5))
    watched.seen("DELETED", "Pod", body("b", 6))
    listing.take(Page([body("a"), body("b", 7)], first=True))
    assert listing.end() == []
    assert dict(watched.versions("Pod", None)) == {("Pod", "here", "b"): 7}, "made again"
    later = watched.listing("Pod", "here")
    later.take(Page([body("a")], first=True))
    assert later.end() == [("here", "b")]
    assert dict(watched.versions("Pod", None)) == {("Pod", "here", "a"): 1}, "a later list counts"


def test_an_event_that_comes_twice_is_news_once():
    watched = WatchCache()
    assert watched.seen("ADDED", "Pod", body("a", 5))
    mark = watched.mark_of("here", "clicks")
    assert not watched.seen("ADDED", "Pod", body("a", 5))
    assert not watched.seen("MODIFIED", "Pod", body("a", 4))
    assert watched.mark_of("here", "clicks") == mark


def test_a_list_tells_what_no_watch_had_shown_unless_none_need_have():
    watched = WatchCache()
    watched.seen("ADDED", "Pod", body("a", 5))
    first, later = watched.listing("Pod", None), watched.listing("Pod", "here", fresh=False)
    later.take(Page([body("a", 5), body("b", 6)], first=True))
    assert later.news == {("Pod", "here", "b"): 6}
    first.take(Page([body("c", 7)], first=True))
    assert first.news is None
