"""After a release is gone: what stays is said, and no deletion waits for an operator."""

import pytest
from moorage_testing.kube.memory import MemoryCluster

from moorage_operator.ports import Conflict, Forbidden
from moorage_operator.uninstall import FINALIZER, Labelled, let_go, report

VERSION = "moorage.dev/v1alpha1"
OTHER = "theirs.example/x"


@pytest.fixture
def cluster():
    """Two namespaces with a job and a snapshot each, as an operator held them."""
    cluster = MemoryCluster()
    for namespace in ("streams-a", "streams-b"):
        _make(cluster, "StatefulSparkJob", namespace, "clicks", [FINALIZER])
        _make(cluster, "StatefulSparkSnapshot", namespace, "clicks-a", [OTHER, FINALIZER])
    return cluster


def _make(cluster, kind, namespace, name, finalizers):
    spec = {"jobRef": {"name": "clicks"}} if kind == "StatefulSparkSnapshot" else {"image": "a:1"}
    meta = {"name": name, "namespace": namespace, "finalizers": finalizers}
    cluster.api.create({"apiVersion": VERSION, "kind": kind, "metadata": meta, "spec": spec})


def _held(cluster, kind, namespace):
    return [
        one
        for body in cluster.api.list(kind, namespace)
        for one in body["metadata"].get("finalizers", [])
    ]


async def test_released_objects_keep_other_finalizers_and_can_be_deleted_without_an_operator(
    cluster,
):
    left = await let_go(cluster, (None,), release=True)
    assert [one.held for one in left] == [False] * 4
    for namespace in ("streams-a", "streams-b"):
        assert _held(cluster, "StatefulSparkJob", namespace) == []
        assert _held(cluster, "StatefulSparkSnapshot", namespace) == [OTHER]
    cluster.api.delete("StatefulSparkJob", "streams-a", "clicks")
    assert cluster.api.get("StatefulSparkJob", "streams-a", "clicks") is None


async def test_kept_objects_are_not_touched_and_named_as_held(cluster):
    left = await let_go(cluster, (None,), release=False)
    assert [one.held for one in left] == [True] * 4
    assert not cluster.effects
    said = report(left, release=False)
    assert "StatefulSparkJob streams-a/clicks: stays; deleting it waits for an operator" in said
    assert "install it again" in said


async def test_only_the_namespaces_of_the_release_are_seen_to(cluster):
    left = await let_go(cluster, ("streams-a",), release=True)
    assert {one.namespace for one in left} == {"streams-a"}
    assert _held(cluster, "StatefulSparkJob", "streams-b") == [FINALIZER]


async def test_what_was_being_deleted_and_waited_for_the_operator_alone_is_gone(cluster):
    cluster.api.delete("StatefulSparkJob", "streams-a", "clicks")
    cluster.api.delete("StatefulSparkSnapshot", "streams-a", "clicks-a")
    left = await let_go(cluster, ("streams-a",), release=True)
    assert cluster.api.get("StatefulSparkJob", "streams-a", "clicks") is None
    assert [(one.kind, one.going) for one in left] == [("StatefulSparkSnapshot", True)]
    assert "StatefulSparkSnapshot streams-a/clicks-a: is being deleted" in report(
        left, release=True
    )


async def test_somebody_who_writes_at_the_same_moment_loses_nothing(cluster):
    cluster.fail(Conflict("changed"), verb="patch", times=2)
    await let_go(cluster, ("streams-a",), release=True)
    assert _held(cluster, "StatefulSparkSnapshot", "streams-a") == [OTHER]


async def test_a_refusal_is_no_success(cluster):
    cluster.fail(Forbidden("no"), verb="patch", times=-1)
    with pytest.raises(Forbidden):
        await let_go(cluster, (None,), release=True)


async def test_a_namespace_that_is_closed_keeps_no_other_from_being_seen_to(cluster):
    cluster.fail(Forbidden("no such right"), verb="list", kind="StatefulSparkJob", times=1)
    with pytest.raises(Forbidden, match="no such right"):
        await let_go(cluster, ("gone", "streams-b"), release=True)
    assert _held(cluster, "StatefulSparkJob", "streams-b") == []
    assert _held(cluster, "StatefulSparkSnapshot", "streams-b") == [OTHER]


# -- namespaces by label

OURS, THEIRS = "moorage/moorage-leader", "others/theirs-leader"
BY_LABEL = Labelled(frozenset({"streams-a"}), frozenset({OURS}))


def _looked_after(cluster, namespace, lease):
    job = cluster.api.get("StatefulSparkJob", namespace, "clicks")
    job["status"] = {"operator": {"lease": lease}}
    cluster.api.replace_status(job)


async def test_jobs_of_a_namespace_that_lost_the_label_are_found_by_their_lease(cluster):
    _looked_after(cluster, "streams-b", OURS)
    left = await let_go(cluster, (None,), release=True, mine=BY_LABEL)
    assert {one.namespace for one in left} == {"streams-a", "streams-b"}
    for namespace in ("streams-a", "streams-b"):
        assert _held(cluster, "StatefulSparkJob", namespace) == []
        assert _held(cluster, "StatefulSparkSnapshot", namespace) == [OTHER]


@pytest.mark.parametrize("lease", [THEIRS, ""], ids=["taken over", "by nobody that is known"])
async def test_what_another_operator_holds_elsewhere_is_left_alone(cluster, lease):
    if lease:
        _looked_after(cluster, "streams-b", lease)
    left = await let_go(cluster, (None,), release=True, mine=BY_LABEL)
    assert {one.namespace for one in left} == {"streams-a"}
    assert _held(cluster, "StatefulSparkJob", "streams-b") == [FINALIZER]
    assert _held(cluster, "StatefulSparkSnapshot", "streams-b") == [OTHER, FINALIZER]


async def test_a_job_that_is_taken_over_at_the_same_moment_keeps_its_finalizer(cluster):
    _looked_after(cluster, "streams-b", OURS)
    patch = cluster.patch

    async def slow(kind, namespace, name, body):
        if namespace == "streams-b":
            _looked_after(cluster, "streams-b", THEIRS)
        return await patch(kind, namespace, name, body)

    cluster.patch = slow
    left = await let_go(cluster, (None,), release=True, mine=BY_LABEL)
    assert {one.namespace for one in left} == {"streams-a"}
    assert _held(cluster, "StatefulSparkJob", "streams-b") == [FINALIZER]
    assert _held(cluster, "StatefulSparkSnapshot", "streams-b") == [OTHER, FINALIZER]


def test_where_nothing_is_left_that_is_said():
    assert report([], release=True) == "nothing of Moorage is left: no job and no snapshot"
