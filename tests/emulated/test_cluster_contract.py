"""What every `Cluster` does, whoever answers: the operator is built on these answers alone."""

import pytest

from moorage_operator.ports import Conflict, Forbidden, Invalid, NameTaken, NotFound

JOB, POD, MAP, REVISION = "StatefulSparkJob", "Pod", "ConfigMap", "ControllerRevision"


def config_map(namespace, name="settings", data=None, **meta):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, **meta},
        "data": data or {"a": "1"},
    }


def owned_by(owner, **more):
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
    return [{**reference, "name": meta["name"], "uid": meta["uid"], **more}]


# -- reading ---------------------------------------------------------------------------------------


async def test_what_is_not_there_is_none(cluster, namespace):
    assert await cluster.get("ConfigMap", namespace, "nothing") is None


async def test_a_list_holds_only_objects_with_all_labels(cluster, namespace):
    for name, labels in (("a", {"x": "1", "y": "1"}), ("b", {"x": "1"}), ("c", {})):
        await cluster.create(config_map(namespace, name, labels=labels))
    found = await cluster.list(MAP, namespace, {"x": "1", "y": "1"})
    assert [item["metadata"]["name"] for item in found] == ["a"]


async def test_listed_objects_know_their_kind(cluster, namespace):
    await cluster.create(config_map(namespace, labels={"x": "1"}))
    [found] = await cluster.list(MAP, namespace, {"x": "1"})
    assert (found["apiVersion"], found["kind"]) == ("v1", "ConfigMap")


async def test_a_list_of_all_namespaces_reaches_everywhere(cluster, namespace, other_namespace):
    mark = {"mark": namespace}
    await cluster.create(config_map(namespace, labels=mark))
    await cluster.create(config_map(other_namespace, labels=mark))
    found = await cluster.list(MAP, None, mark)
    assert {item["metadata"]["namespace"] for item in found} == {namespace, other_namespace}


# -- creating and applying -------------------------------------------------------------------------


async def test_a_created_object_has_identity(cluster, namespace, a_job):
    made = (await cluster.create(a_job(namespace)))["metadata"]
    assert made["generation"] == 1
    assert made["uid"]
    assert made["resourceVersion"]
    assert made["creationTimestamp"]


async def test_a_second_creation_already_exists(cluster, namespace):
    await cluster.create(config_map(namespace))
    with pytest.raises(NameTaken, match="settings"):
        await cluster.create(config_map(namespace))


async def test_a_dry_run_makes_nothing_and_says_what_a_creation_would(cluster, namespace):
    await cluster.try_create(config_map(namespace))
    assert await cluster.get(MAP, namespace, "settings") is None
    await cluster.create(config_map(namespace))
    with pytest.raises(NameTaken):
        await cluster.try_create(config_map(namespace))


async def test_a_name_whose_object_is_being_deleted_already_exists(cluster, namespace, a_job):
    made = await cluster.create(a_job(namespace, finalizers=["moorage.dev/operator"]))
    await cluster.delete(JOB, namespace, "clicks", uid=made["metadata"]["uid"])
    with pytest.raises(NameTaken, match="object is being deleted"):
        await cluster.create(a_job(namespace))


async def test_status_in_a_creation_is_passed_over(cluster, namespace, a_job):
    made = await cluster.create({**a_job(namespace), "status": {"phase": "Running"}})
    assert not made.get("status")


async def test_applying_creates_and_then_merges(cluster, namespace):
    await cluster.apply(config_map(namespace, data={"a": "1"}))
    await cluster.patch(MAP, namespace, "settings", {"data": {"theirs": "x"}})
    await cluster.apply(config_map(namespace, data={"a": "2"}))
    found = await cluster.get(MAP, namespace, "settings")
    assert found["data"] == {"a": "2", "theirs": "x"}


async def test_what_is_not_applied_any_more_goes(cluster, namespace):
    await cluster.apply(config_map(namespace, data={"a": "1", "b": "1"}))
    await cluster.apply(config_map(namespace, data={"a": "1"}))
    assert (await cluster.get(MAP, namespace, "settings"))["data"] == {"a": "1"}


async def test_applying_the_same_again_changes_nothing(cluster, namespace):
    first = await cluster.apply(config_map(namespace))
    again = await cluster.apply(config_map(namespace))
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_applying_with_the_uid_of_a_gone_object_is_a_conflict(cluster, namespace):
    made = await cluster.apply(config_map(namespace))
    await cluster.delete(MAP, namespace, "settings")
    with pytest.raises(Conflict):
        await cluster.apply(config_map(namespace, uid=made["metadata"]["uid"]))


async def test_the_spec_of_a_pod_is_fixed(cluster, namespace, a_pod):
    await cluster.apply(a_pod(namespace, args=["1"]))
    with pytest.raises(Invalid):
        await cluster.apply(a_pod(namespace, args=["2"]))


async def test_the_data_of_a_revision_are_fixed_and_its_labels_are_not(cluster, namespace):
    body = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": "clicks-1", "namespace": namespace},
        "revision": 1,
        "data": {"spec": {"text": "a < b & c > d, naïve", "number": 1}},
    }
    await cluster.create(body)
    await cluster.patch(REVISION, namespace, "clicks-1", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Invalid):
        await cluster.patch(REVISION, namespace, "clicks-1", {"data": {"spec": {"number": 2}}})


async def test_a_name_that_is_none_is_invalid(cluster, namespace):
    with pytest.raises(Invalid):
        await cluster.create(config_map(namespace, "Not_A_Name"))


async def test_a_label_that_is_none_is_invalid(cluster, namespace):
    with pytest.raises(Invalid):
        await cluster.create(config_map(namespace, labels={"x": "no spaces here"}))


# -- generation and status -------------------------------------------------------------------------


async def test_only_the_spec_moves_the_generation(cluster, namespace, a_job):
    made = await cluster.create(a_job(namespace))
    noted = await cluster.patch(JOB, namespace, "clicks", {"metadata": {"annotations": {"a": "b"}}})
    kept = await cluster.replace_status({**noted, "status": {"phase": "Running"}})
    moved = await cluster.patch(JOB, namespace, "clicks", {"spec": {"bounded": True}})
    generations = [o["metadata"]["generation"] for o in (made, noted, kept, moved)]
    assert generations == [1, 1, 1, 2]


async def test_a_status_write_writes_nothing_but_status(cluster, namespace, a_job):
    made = await cluster.create(a_job(namespace))
    made["spec"]["bounded"] = True
    made["metadata"]["labels"] = {"a": "b"}
    await cluster.replace_status({**made, "status": {"phase": "Running"}})
    found = await cluster.get(JOB, namespace, "clicks")
    assert found["status"] == {"phase": "Running"}
    assert "a" not in found["metadata"].get("labels", {})
    assert not found["spec"].get("bounded")


async def test_the_main_resource_does_not_write_status(cluster, namespace, a_job):
    made = await cluster.create(a_job(namespace))
    await cluster.replace_status({**made, "status": {"phase": "Running"}})
    await cluster.patch(JOB, namespace, "clicks", {"status": {"phase": "Failed"}})
    assert (await cluster.get(JOB, namespace, "clicks"))["status"] == {"phase": "Running"}


async def test_the_same_status_again_keeps_the_version(cluster, namespace, a_job):
    made = await cluster.create(a_job(namespace))
    once = await cluster.replace_status({**made, "status": {"phase": "Running"}})
    twice = await cluster.replace_status(once)
    assert twice["metadata"]["resourceVersion"] == once["metadata"]["resourceVersion"]


async def test_a_status_that_rests_on_an_old_version_is_a_conflict(cluster, namespace, a_job):
    made = await cluster.create(a_job(namespace))
    await cluster.patch(JOB, namespace, "clicks", {"metadata": {"annotations": {"a": "b"}}})
    with pytest.raises(Conflict):
        await cluster.replace_status({**made, "status": {"phase": "Running"}})


async def test_a_status_without_a_version_is_invalid(cluster, namespace, a_job):
    made = await cluster.create(a_job(namespace))
    del made["metadata"]["resourceVersion"]
    with pytest.raises(Invalid):
        await cluster.replace_status({**made, "status": {"phase": "Running"}})


async def test_the_status_of_a_gone_object_is_not_found(cluster, namespace, a_job):
    made = await cluster.create(a_job(namespace))
    await cluster.delete(JOB, namespace, "clicks")
    with pytest.raises(NotFound):
        await cluster.replace_status({**made, "status": {"phase": "Running"}})


async def test_the_status_of_a_recreated_object_is_a_conflict(cluster, namespace, a_job):
    made = await cluster.create(a_job(namespace))
    await cluster.delete(JOB, namespace, "clicks")
    await cluster.create(a_job(namespace))
    with pytest.raises(Conflict):
        await cluster.replace_status({**made, "status": {"phase": "Running"}})


# -- patching --------------------------------------------------------------------------------------


async def test_a_patch_under_an_old_version_is_a_conflict(cluster, namespace):
    made = await cluster.create(config_map(namespace))
    await cluster.patch(MAP, namespace, "settings", {"data": {"b": "2"}})
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {}}
    with pytest.raises(Conflict):
        await cluster.patch(MAP, namespace, "settings", {**stale, "data": {"c": "3"}})


async def test_a_null_in_a_patch_deletes(cluster, namespace):
    await cluster.create(config_map(namespace, data={"a": "1", "b": "2"}))
    patched = await cluster.patch(MAP, namespace, "settings", {"data": {"a": None}})
    assert patched["data"] == {"b": "2"}


async def test_a_patch_of_what_is_not_there_is_not_found(cluster, namespace):
    with pytest.raises(NotFound):
        await cluster.patch(MAP, namespace, "nothing", {"data": {"a": "1"}})


# -- deleting --------------------------------------------------------------------------------------


async def test_deleting_what_is_gone_is_fine(cluster, namespace):
    await cluster.delete(MAP, namespace, "nothing")
    await cluster.delete(MAP, namespace, "nothing", uid="00000000-0000-0000-0000-000000000000")


async def test_another_objects_uid_protects_from_deletion(cluster, namespace):
    await cluster.create(config_map(namespace))
    with pytest.raises(Conflict):
        await cluster.delete(MAP, namespace, "settings", uid="00000000-0000-0000-0000-000000000000")
    assert await cluster.get(MAP, namespace, "settings") is not None


async def test_a_finalizer_holds_the_object_and_counts_as_a_generation(cluster, namespace, a_job):
    made = await cluster.create(a_job(namespace, finalizers=["moorage.dev/operator"]))
    await cluster.delete(JOB, namespace, "clicks", uid=made["metadata"]["uid"])
    held = await cluster.get(JOB, namespace, "clicks")
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["generation"] == 2
    kept = await cluster.replace_status({**held, "status": {"phase": "Deleting"}})
    version = kept["metadata"]["resourceVersion"]
    release = {"metadata": {"finalizers": [], "resourceVersion": version}}
    await cluster.patch(JOB, namespace, "clicks", release)
    assert await cluster.get(JOB, namespace, "clicks") is None


async def test_a_dying_object_takes_no_new_finalizer(cluster, namespace, a_job):
    await cluster.create(a_job(namespace, finalizers=["moorage.dev/operator"]))
    await cluster.delete(JOB, namespace, "clicks")
    more = {"metadata": {"finalizers": ["moorage.dev/operator", "moorage.dev/other"]}}
    with pytest.raises((Invalid, Forbidden)):
        await cluster.patch(JOB, namespace, "clicks", more)
    await cluster.patch(JOB, namespace, "clicks", {"metadata": {"finalizers": []}})


async def test_a_pod_without_a_node_is_deleted_at_once(cluster, namespace, a_pod):
    made = await cluster.create(a_pod(namespace))
    await cluster.delete(POD, namespace, "driver", uid=made["metadata"]["uid"])
    assert await cluster.get(POD, namespace, "driver") is None


# -- owners ----------------------------------------------------------------------------------------


async def test_dependents_go_with_their_owner(cluster, namespace, a_job, collected):
    job = await cluster.create(a_job(namespace))
    await cluster.create(config_map(namespace, ownerReferences=owned_by(job)))
    await cluster.delete(JOB, namespace, "clicks")
    await collected(cluster, MAP, namespace, "settings")


async def test_dependents_stay_while_a_finalizer_holds_their_owner(
    cluster, namespace, a_job, collected
):
    job = await cluster.create(a_job(namespace, finalizers=["moorage.dev/operator"]))
    await cluster.create(config_map(namespace, ownerReferences=owned_by(job)))
    await cluster.delete(JOB, namespace, "clicks")
    assert await cluster.get(MAP, namespace, "settings") is not None
    await cluster.patch(JOB, namespace, "clicks", {"metadata": {"finalizers": []}})
    await collected(cluster, MAP, namespace, "settings")


async def test_a_dependent_of_another_uid_is_collected(cluster, namespace, a_job, collected):
    job = await cluster.create(a_job(namespace))
    dead = owned_by(job, uid="00000000-0000-0000-0000-000000000001")
    await cluster.create(config_map(namespace, ownerReferences=dead))
    await collected(cluster, MAP, namespace, "settings")


async def test_foreground_deletion_takes_the_dependents_first(cluster, namespace, a_job, collected):
    job = await cluster.create(a_job(namespace))
    blocking = owned_by(job, blockOwnerDeletion=True)
    await cluster.create(config_map(namespace, ownerReferences=blocking))
    await cluster.delete(JOB, namespace, "clicks", foreground=True)
    await collected(cluster, MAP, namespace, "settings")
    await collected(cluster, JOB, namespace, "clicks")


# -- namespaces ------------------------------------------------------------------------------------


async def test_a_terminating_namespace_takes_nothing_new(
    cluster, other_namespace, terminate, a_job
):
    await cluster.create(a_job(other_namespace, finalizers=["moorage.dev/operator"]))
    await terminate(other_namespace)
    with pytest.raises(Forbidden) as refused:
        await cluster.create(config_map(other_namespace))
    assert refused.value.reason == "NamespaceTerminating"
    with pytest.raises(Forbidden) as refused:
        await cluster.apply(config_map(other_namespace))
    assert refused.value.reason == "NamespaceTerminating"
    held = await cluster.get(JOB, other_namespace, "clicks")
    await cluster.replace_status({**held, "status": {"phase": "Deleting"}})
    await cluster.patch(JOB, other_namespace, "clicks", {"metadata": {"finalizers": []}})
